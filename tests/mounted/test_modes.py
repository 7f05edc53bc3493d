"""Modes, owners, set-id bits, sticky and set-gid directories, and who may do what."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.peer import NOBODY, STRANGER, peer
from tests.support.trees import Link, plant

ALL_MODES = [0, 0o400, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4755, 0o7777]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.mark.parametrize("mode", ALL_MODES, ids=oct)
def test_chmod_sets_every_bit_and_leaves_the_content(mount: Path, mode: int) -> None:
    plant(mount, {"file": "x", "dir": {}})
    for name in ("file", "dir"):
        os.chmod(mount / name, mode)
        assert mode_of(mount / name) == mode
        os.chmod(mount / name, 0o755)
    assert (mount / "file").read_text() == "x"


def test_chmod_works_through_a_link_and_a_descriptor(mount: Path) -> None:
    plant(mount, {"file": "x", "link": Link("file")})
    os.chmod(mount / "link", 0o611)
    assert (mode_of(mount / "file"), mode_of(mount / "link")) == (0o611, 0o777)
    with open(mount / "file", "rb") as file:
        os.fchmod(file.fileno(), 0o622)
    assert mode_of(mount / "file") == 0o622


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777], ids=oct)
def test_umask_limits_what_a_new_file_allows(mount: Path, mask: int) -> None:
    os.umask(mask)
    try:
        os.close(os.open(mount / "file", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(mount / "dir", 0o777)
        os.mkfifo(mount / "fifo", 0o666)
        os.symlink("x", mount / "link")
    finally:
        os.umask(0o022)
    modes = {name: mode_of(mount / name) for name in ("file", "dir", "fifo", "link")}
    assert modes == {
        "file": 0o666 & ~mask,
        "dir": 0o777 & ~mask,
        "fifo": 0o666 & ~mask,
        "link": 0o777,
    }


def test_new_files_belong_to_their_maker(mount: Path) -> None:
    plant(mount, {"file": "x", "dir": {}, "link": Link("x")})
    for name in ("file", "dir", "link"):
        info = os.lstat(mount / name)
        assert (info.st_uid, info.st_gid) == (os.geteuid(), os.getegid())


@pytest.mark.needs_root
def test_chown_sets_owner_and_group(mount: Path) -> None:
    plant(mount, {"file": "x", "dir": {}, "link": Link("file")})
    os.chown(mount / "file", 1234, 5678)
    os.chown(mount / "dir", -1, 99)
    os.chown(mount / "link", 4294967294, 4294967293, follow_symlinks=False)
    owners = {name: os.lstat(mount / name)[4:6] for name in ("file", "dir", "link")}
    assert owners == {
        "file": (1234, 5678),
        "dir": (0, 99),
        "link": (4294967294, 4294967293),
    }
    os.chown(mount / "file", -1, -1)
    assert os.lstat(mount / "file")[4:6] == (1234, 5678)


def test_set_gid_directories_give_their_group(mount: Path) -> None:
    """The group of the directory, and for directories the bit itself, go to what is made in it."""
    group = 4321 if os.geteuid() == 0 else os.getegid()
    os.mkdir(mount / "dir")
    os.chown(mount / "dir", -1, group)
    os.chmod(mount / "dir", 0o2775)
    plant(mount / "dir", {"file": "x", "sub": {}, "link": Link("x")})
    os.mkdir(mount / "dir/plain", 0o755)
    os.mkfifo(mount / "dir/fifo")
    for name in ("file", "sub", "link", "plain", "fifo"):
        assert os.lstat(mount / "dir" / name).st_gid == group
    assert mode_of(mount / "dir/plain") == 0o2755
    assert mode_of(mount / "dir/file") == 0o644


def _write(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, b"news")
    os.close(fd)


def _truncate(path: Path) -> None:
    os.truncate(path, 1)


@pytest.mark.needs_root
@pytest.mark.parametrize("change", [_write, _truncate])
@pytest.mark.parametrize(
    "mode, left",
    [(0o6777, 0o777), (0o4755 | 0o022, 0o777), (0o2777, 0o777), (0o1777, 0o1777)],
)
def test_a_write_by_another_user_clears_set_id_bits(
    open_mount: Path, change: Callable[[Path], None], mode: int, left: int
) -> None:
    plant(open_mount, {"program": "content"})
    os.chmod(open_mount / "program", mode)
    with peer(NOBODY) as nobody:
        nobody(change, open_mount / "program")
    assert mode_of(open_mount / "program") == left


@pytest.mark.needs_root
def test_set_gid_without_group_execute_is_kept_on_write(open_mount: Path) -> None:
    """That combination once meant mandatory locking; writing leaves it alone."""
    plant(open_mount, {"file": "content"})
    os.chown(open_mount / "file", -1, NOBODY)
    os.chmod(open_mount / "file", 0o2666)
    with peer(NOBODY) as nobody:
        nobody(_write, open_mount / "file")
    assert mode_of(open_mount / "file") == 0o2666


@pytest.mark.needs_root
def test_root_writes_without_clearing(mount: Path) -> None:
    plant(mount, {"program": "content"})
    os.chmod(mount / "program", 0o6755)
    _write(mount / "program")
    assert mode_of(mount / "program") == 0o6755


@pytest.mark.needs_root
@pytest.mark.parametrize(
    "mode, left", [(0o6755, 0o755), (0o4711, 0o711), (0o2755, 0o755), (0o2644, 0o2644)]
)
def test_chown_clears_set_id_bits(mount: Path, mode: int, left: int) -> None:
    plant(mount, {"program": "content"})
    os.chmod(mount / "program", mode)
    os.chown(mount / "program", 1000, 1000)
    assert mode_of(mount / "program") == left


@pytest.mark.needs_root
def test_chown_leaves_the_bits_of_a_directory(mount: Path) -> None:
    (mount / "dir").mkdir()
    os.chmod(mount / "dir", 0o6755)
    os.chown(mount / "dir", 1000, 1000)
    assert mode_of(mount / "dir") == 0o6755


@pytest.mark.needs_root
def test_chmod_outside_of_the_group_drops_set_gid(open_mount: Path) -> None:
    plant(open_mount, {"file": "x"})
    os.chown(open_mount / "file", NOBODY, 1234)
    with peer(NOBODY) as nobody:
        nobody(os.chmod, open_mount / "file", 0o2755)
        assert mode_of(open_mount / "file") == 0o755
    with peer(NOBODY, groups=(1234,)) as member:
        member(os.chmod, open_mount / "file", 0o2755)
        assert mode_of(open_mount / "file") == 0o2755


# --- who may do what -------------------------------------------------------------------------


def _use(path: Path) -> None:
    """Read, as a user who may."""
    os.close(os.open(path, os.O_RDONLY))


@pytest.mark.needs_root
def test_the_kernel_checks_access(open_mount: Path) -> None:
    plant(open_mount, {"secret": "x", "locked": {"file": "x"}, "open": "x"})
    os.chmod(open_mount / "secret", 0o600)
    os.chmod(open_mount / "locked", 0o700)
    with peer(NOBODY) as nobody:
        nobody(_use, open_mount / "open")
        assert nobody(os.stat, open_mount / "secret").st_size == 1
        denied: list[tuple[Callable[..., object], tuple[object, ...], int]] = [
            (os.open, (open_mount / "secret", os.O_RDONLY), errno.EACCES),
            (os.open, (open_mount / "open", os.O_WRONLY), errno.EACCES),
            (os.open, (open_mount / "new", os.O_CREAT | os.O_WRONLY), errno.EACCES),
            (os.stat, (open_mount / "locked/file",), errno.EACCES),
            (os.listdir, (open_mount / "locked",), errno.EACCES),
            (os.mkdir, (open_mount / "new",), errno.EACCES),
            (os.unlink, (open_mount / "open",), errno.EACCES),
            (os.rename, (open_mount / "open", open_mount / "new"), errno.EACCES),
            (os.chmod, (open_mount / "open", 0o777), errno.EPERM),
            (os.chown, (open_mount / "open", NOBODY, NOBODY), errno.EPERM),
            (os.utime, (open_mount / "open",), errno.EACCES),
            (os.truncate, (open_mount / "open", 0), errno.EACCES),
            (os.symlink, ("x", open_mount / "new"), errno.EACCES),
        ]
        for call, arguments, number in denied:
            with fails(number):
                nobody(call, *arguments)
    assert sorted(os.listdir(open_mount)) == ["locked", "open", "secret"]


@pytest.mark.needs_root
def test_supplementary_groups_are_respected(open_mount: Path) -> None:
    plant(open_mount, {"file": "x"})
    os.chown(open_mount / "file", 0, 1234)
    os.chmod(open_mount / "file", 0o640)
    with peer(NOBODY, groups=(1234,)) as member:
        member(_use, open_mount / "file")
        with fails(errno.EACCES):
            member(os.open, open_mount / "file", os.O_WRONLY)
    with peer(NOBODY) as other, fails(errno.EACCES):
        other(os.open, open_mount / "file", os.O_RDONLY)


@pytest.mark.needs_root
def test_a_change_of_mode_holds_at_once(open_mount: Path) -> None:
    plant(open_mount, {"dir": {"file": "x"}})
    with peer(NOBODY) as nobody:
        for _ in range(5):
            nobody(_use, open_mount / "dir/file")
            os.chmod(open_mount / "dir", 0o700)
            with fails(errno.EACCES):
                nobody(os.open, open_mount / "dir/file", os.O_RDONLY)
            os.chmod(open_mount / "dir", 0o755)


@pytest.mark.needs_root
def test_another_user_works_in_a_directory_of_its_own(open_mount: Path) -> None:
    (open_mount / "home").mkdir()
    os.chown(open_mount / "home", NOBODY, NOBODY)
    with peer(NOBODY) as nobody:
        nobody(plant, open_mount / "home", {"a": "x", "d": {"b": "y"}, "l": Link("a")})
        nobody(os.rename, open_mount / "home/a", open_mount / "home/d/a")
        with fails(errno.EPERM):
            nobody(os.chown, open_mount / "home/d/a", 0, -1)
    owners = {
        (entry.stat(follow_symlinks=False).st_uid, entry.stat(follow_symlinks=False).st_gid)
        for entry in os.scandir(open_mount / "home")
    }
    assert owners == {(NOBODY, NOBODY)}


@pytest.mark.needs_root
def test_in_a_sticky_directory_only_the_owner_deletes(open_mount: Path) -> None:
    os.chmod(open_mount, 0o1777)
    with peer(NOBODY) as owner, peer(STRANGER) as stranger:
        owner(plant, open_mount, {"file": "x", "dir": {}})
        stranger(plant, open_mount, {"theirs": "y"})
        for call, arguments in (
            (os.unlink, (open_mount / "file",)),
            (os.rmdir, (open_mount / "dir",)),
            (os.rename, (open_mount / "file", open_mount / "stolen")),
            (os.rename, (open_mount / "theirs", open_mount / "file")),
        ):
            with fails(errno.EPERM, errno.EACCES):
                stranger(call, *arguments)
        owner(os.rename, open_mount / "file", open_mount / "moved")
        owner(os.unlink, open_mount / "moved")
        owner(os.rmdir, open_mount / "dir")
    assert os.listdir(open_mount) == ["theirs"]


@pytest.mark.needs_root
@pytest.mark.needs_mount
def test_without_allow_other_no_other_user_enters(mount: Path) -> None:
    plant(mount, {"file": "x"})
    os.chmod(mount, 0o777)
    with peer(NOBODY) as nobody, fails(errno.EACCES):
        nobody(os.stat, mount / "file")


def test_the_owner_is_bound_by_the_mode_too(mount: Path) -> None:
    plant(mount, {"file": "x"})
    os.chmod(mount / "file", 0o000)
    if os.geteuid() == 0:
        assert (mount / "file").read_text() == "x"
    else:
        with fails(errno.EACCES):
            (mount / "file").read_text()
    assert not os.access(mount / "file", os.X_OK)
