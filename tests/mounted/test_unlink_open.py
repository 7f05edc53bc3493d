"""Files that lose their last name while somebody holds them open, and files that never had one."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import tempfile
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.mounting import Workspace
from tests.support.peer import peer
from tests.support.syscalls import link_following
from tests.support.trees import plant


def test_reads_writes_and_stat_go_on(mount: Path) -> None:
    plant(mount, {"file": "content"})
    fd = os.open(mount / "file", os.O_RDWR)
    try:
        os.unlink(mount / "file")
        assert os.listdir(mount) == []
        assert os.fstat(fd).st_nlink == 0
        assert os.pread(fd, 99, 0) == b"content"
        os.pwrite(fd, b"x" * 200_000, 7)
        assert os.fstat(fd).st_size == 200_007
        assert os.pread(fd, 300_000, 0) == b"content" + b"x" * 200_000
        os.fsync(fd)
        os.ftruncate(fd, 3)
        assert os.pread(fd, 99, 0) == b"con"
        os.fchmod(fd, 0o600)
        assert os.fstat(fd).st_mode & 0o7777 == 0o600
        os.utime(fd, ns=(1, 2))
        assert os.fstat(fd).st_mtime_ns == 2
    finally:
        os.close(fd)


def test_data_not_yet_flushed_survives_the_unlink(mount: Path) -> None:
    data = os.urandom(300_000)
    fd = os.open(mount / "file", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.write(fd, data)
        os.unlink(mount / "file")
        assert os.pread(fd, len(data), 0) == data
    finally:
        os.close(fd)


def test_the_name_is_free_for_a_new_file(mount: Path) -> None:
    plant(mount, {"file": "old"})
    with open(mount / "file", "r+") as old:
        os.unlink(mount / "file")
        (mount / "file").write_text("new")
        old.seek(0, os.SEEK_END)
        old.write(" and written")
        old.flush()
        old.seek(0)
        assert old.read() == "old and written"
    assert (mount / "file").read_text() == "new"


def test_two_processes_hold_it(mount: Path) -> None:
    plant(mount, {"file": "shared"})
    fd = os.open(mount / "file", os.O_RDWR)
    with peer() as other:
        theirs = other(os.open, mount / "file", os.O_RDWR)
        os.unlink(mount / "file")
        other(os.pwrite, theirs, b"SH", 0)
        assert os.pread(fd, 99, 0) == b"SHared"
        os.close(fd)
        assert other(os.pread, theirs, 99, 0) == b"SHared"
        assert other(os.fstat, theirs).st_nlink == 0


def test_a_mapping_outlives_name_and_descriptor(mount: Path) -> None:
    (mount / "file").write_bytes(b"m" * 100_000)
    with open(mount / "file", "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        os.unlink(mount / "file")
    mapped[50_000:50_004] = b"DATA"
    mapped.flush()
    assert mapped[49_999:50_005] == b"mDATAm"
    mapped.close()


def test_an_unlinked_file_is_reopened_through_proc(mount: Path) -> None:
    plant(mount, {"file": "content"})
    fd = os.open(mount / "file", os.O_RDONLY)
    try:
        os.unlink(mount / "file")
        with open(f"/proc/self/fd/{fd}", "r+b") as again:
            again.write(b"CON")
        assert os.pread(fd, 99, 0) == b"CONtent"
    finally:
        os.close(fd)


def nameless(mount: Path, flags: int = 0) -> int:
    return os.open(mount, os.O_TMPFILE | os.O_RDWR | flags, 0o640)


@pytest.mark.compiled_only
def test_a_file_that_never_has_a_name(mount: Path) -> None:
    fd = nameless(mount)
    os.write(fd, b"x" * 100_000)
    found = os.fstat(fd)
    assert (found.st_nlink, found.st_size, stat.S_IMODE(found.st_mode)) == (0, 100_000, 0o640)
    assert os.listdir(mount) == []
    assert os.pread(fd, 100_001, 0) == b"x" * 100_000
    os.close(fd)
    assert os.listdir(mount) == []


@pytest.mark.compiled_only
def test_a_file_that_gets_its_name_when_it_is_whole(mount: Path) -> None:
    fd = nameless(mount)
    os.write(fd, b"whole")
    link_following(f"/proc/self/fd/{fd}", mount / "file")
    assert os.fstat(fd).st_nlink == 1
    link_following(f"/proc/self/fd/{fd}", mount / "second")
    os.write(fd, b" and more")
    os.close(fd)
    os.unlink(mount / "file")
    assert (mount / "second").read_bytes() == b"whole and more"
    assert (mount / "second").stat().st_nlink == 1
    assert os.listdir(mount) == ["second"]


@pytest.mark.compiled_only
def test_a_file_that_must_not_get_a_name(mount: Path) -> None:
    fd = nameless(mount, os.O_EXCL)
    with fails(errno.ENOENT):
        link_following(f"/proc/self/fd/{fd}", mount / "file")
    os.close(fd)
    assert os.listdir(mount) == []


@pytest.mark.compiled_only
@pytest.mark.needs_root
def test_a_nameless_file_belongs_to_the_group_of_a_set_gid_directory(mount: Path) -> None:
    os.chown(mount, -1, 1234)
    os.chmod(mount, 0o2755)
    fd = nameless(mount)
    assert os.fstat(fd).st_gid == 1234
    os.close(fd)


@pytest.mark.compiled_only
@pytest.mark.needs_mount
@pytest.mark.parametrize("named", [True, False])
def test_a_kill_leaves_of_nameless_files_what_has_a_name(own_mount: Workspace, named: bool) -> None:
    fd = nameless(own_mount.path)
    os.write(fd, b"x" * 100_000)
    if named:
        link_following(f"/proc/self/fd/{fd}", own_mount.path / "file")
    os.fsync(fd)
    own_mount.kill()
    with fails(errno.ENOTCONN):
        os.close(fd)
    own_mount.mount()
    assert os.listdir(own_mount.path) == ["file"] * named
    if named:
        assert (own_mount.path / "file").read_bytes() == b"x" * 100_000


def test_a_temporary_file_of_python_has_no_name(mount: Path) -> None:
    with tempfile.TemporaryFile(dir=mount) as file:
        file.write(b"x" * 10_000)
        file.seek(0)
        assert file.read() == b"x" * 10_000
        assert os.listdir(mount) == []


@pytest.mark.parametrize("size", [0, 10, 100_000, 3_000_000])
def test_many_files_are_unlinked_and_open_at_once(mount: Path, size: int) -> None:
    fds = []
    for number in range(20):
        fds.append(os.open(mount / str(number), os.O_RDWR | os.O_CREAT))
        os.write(fds[-1], bytes([number]) * size)
    for number in range(20):
        os.unlink(mount / str(number))
    assert os.listdir(mount) == []
    for number, fd in enumerate(fds):
        assert os.pread(fd, size + 1, 0) == bytes([number]) * size
        os.close(fd)
