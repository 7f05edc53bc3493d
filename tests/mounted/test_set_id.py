"""Set-id bits and capabilities go with a change by somebody who may not keep them, and the kernel
starts no program with rights that the file has lost. Through both servers."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.mounting import Workspace, workspace
from tests.support.peer import NOBODY, peer
from tests.support.syscalls import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, fallocate

pytestmark = [pytest.mark.needs_mount, pytest.mark.needs_root]

CAPABILITY = "security.capability"
#: CAP_SETUID, permitted and effective; as in linux/capability.h.
SETUID = struct.pack("<5I", 0x0200_0001, 1 << 7, 0, 0, 0)


@pytest.fixture(scope="module", params=["on", "off"])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Whether the compiled server is used, or the portable path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKPTFS_SERVER", request.param)
        yield request.param


@pytest.fixture(scope="module")
def space(server: str) -> Iterator[Workspace]:
    with workspace("--allow-other", "--no-write-back", "--auto", "off", "--xattrs") as made:
        # Whatever the mount's default is: what the mode says shall happen.
        subprocess.run(["mount", "-o", "remount,bind,suid", made.path], check=True)
        (made.path / "source").write_bytes(b"new")
        yield made


@pytest.fixture
def program(space: Workspace) -> Iterator[Path]:
    """A program that tells whose rights it has: `id`, which anybody may write to."""
    path = space.path / "program"
    shutil.copy(shutil.which("id") or "/usr/bin/id", path)
    with path.open("ab") as file:
        file.write(bytes(8192))  # to be written over
        os.fsync(file.fileno())
    yield path
    path.unlink()


def rights(program: Path) -> set[str]:
    """Whose rights the program has, if it is nobody who starts it: "euid=0", "egid=0"."""
    told = subprocess.run(
        [program], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True
    )
    assert told.returncode == 0 and "uid=65534" in told.stdout
    return {word.partition("(")[0] for word in told.stdout.split() if word.startswith("e")}


def mode_of(path: Path) -> int:
    """The mode alone. With all attributes the kernel would have to ask: a write changes others."""
    told = subprocess.run(["stat", "-c", "%a", path], check=True, capture_output=True, text=True)
    return int(told.stdout, 8)


def _opened(path: Path, flags: int, change: Callable[[int, int], object]) -> None:
    fd = os.open(path, flags)
    try:
        change(fd, os.lseek(fd, 0, os.SEEK_END))
    finally:
        os.close(fd)


def overwrite(path: Path) -> None:
    _opened(path, os.O_WRONLY, lambda fd, size: os.pwrite(fd, b"x", size - 1))


def append(path: Path) -> None:
    _opened(path, os.O_WRONLY | os.O_APPEND, lambda fd, size: os.write(fd, b"x"))


def append_often(path: Path) -> None:
    _opened(path, os.O_WRONLY | os.O_APPEND, lambda fd, size: [os.write(fd, b"x") for _ in "123"])


def write_past_the_cache(path: Path) -> None:
    with mmap.mmap(-1, 4096) as page:
        _opened(path, os.O_WRONLY | os.O_DIRECT, lambda fd, size: os.pwritev(fd, [page], 1 << 20))


def splice(path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x")
    _opened(path, os.O_WRONLY, lambda fd, size: os.splice(reader, fd, 1, offset_dst=size))


def truncate(path: Path) -> None:
    os.truncate(path, 1 << 20)


def ftruncate(path: Path) -> None:
    _opened(path, os.O_WRONLY, lambda fd, size: os.ftruncate(fd, size + 1))


def copy_range(path: Path) -> None:
    source = os.open(path.with_name("source"), os.O_RDONLY)
    _opened(path, os.O_WRONLY, lambda fd, size: os.copy_file_range(source, fd, 3, 0, size))


def allocate(path: Path) -> None:
    _opened(path, os.O_WRONLY, lambda fd, size: fallocate(fd, 0, size, 10))


def punch(path: Path) -> None:
    mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    _opened(path, os.O_WRONLY, lambda fd, size: fallocate(fd, mode, size - 10, 10))


CHANGES = [
    overwrite,
    append,
    append_often,
    write_past_the_cache,
    splice,
    truncate,
    ftruncate,
    copy_range,
    allocate,
    punch,
]


def changed_by_nobody(server: str, change: Callable[[Path], None], program: Path) -> bool:
    """Whether it was changed; pyfuse3 alone has no fallocate(2)."""
    with peer(NOBODY) as nobody:
        if server == "on" or change not in (allocate, punch):
            nobody(change, program)
            return True
        with fails(errno.EOPNOTSUPP):
            nobody(change, program)
        return False


@pytest.mark.parametrize("change", CHANGES)
def test_a_program_that_another_user_changed_has_no_rights_of_its_owner(
    server: str, program: Path, change: Callable[[Path], None]
) -> None:
    os.chmod(program, 0o6777)
    assert rights(program) == {"euid=0", "egid=0"}
    if changed_by_nobody(server, change, program):
        assert rights(program) == set()
        assert mode_of(program) == 0o777


@pytest.mark.parametrize("mode, left", [(0o4777, 0o777), (0o2777, 0o777), (0o4767, 0o767)])
def test_each_bit_goes_by_itself(program: Path, mode: int, left: int) -> None:
    os.chmod(program, mode)
    rights(program)
    with peer(NOBODY) as nobody:
        nobody(overwrite, program)
    assert rights(program) == set()
    assert mode_of(program) == left


def test_a_program_that_is_not_in_the_store_yet_loses_its_bits_too(space: Workspace) -> None:
    """It is made, given its bits and written to in one go."""
    program = space.path / "made"
    with peer(NOBODY) as nobody:
        shutil.copy(shutil.which("id") or "/usr/bin/id", program)
        os.chmod(program, 0o6777)
        nobody(append, program)
        assert rights(program) == set()
    assert mode_of(program) == 0o777
    program.unlink()


def test_a_write_through_a_descriptor_that_was_opened_before_counts(program: Path) -> None:
    os.chmod(program, 0o777)
    with peer(NOBODY) as nobody:
        fd = nobody(os.open, program, os.O_WRONLY)
        nobody(os.pwrite, fd, b"x", 1 << 20)
        os.chmod(program, 0o6777)
        nobody(os.pwrite, fd, b"x", 1 << 20)
        assert mode_of(program) == 0o777
        nobody(os.close, fd)
    assert rights(program) == set()


def test_root_keeps_the_bits_of_what_it_writes(program: Path) -> None:
    os.chmod(program, 0o6777)
    for change in (overwrite, append_often, truncate):
        change(program)
    assert mode_of(program) == 0o6777
    assert rights(program) == {"euid=0", "egid=0"}


def test_who_may_not_write_takes_no_bits(program: Path) -> None:
    os.chmod(program, 0o6755)
    with peer(NOBODY) as nobody:
        for change in (overwrite, truncate):
            with fails(errno.EACCES):
                nobody(change, program)
        nobody(_chown_to_nobody_else, program)
    assert mode_of(program) == 0o6755


def _chown_to_nobody_else(path: Path) -> None:
    """The kernel sends the same request for it as before a write."""
    with suppress(PermissionError):
        os.chown(path, -1, -1)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_takes_capabilities(
    server: str, program: Path, change: Callable[[Path], None]
) -> None:
    os.chmod(program, 0o777)
    changed_by_nobody(server, overwrite, program)  # the kernel now knows that it has none
    os.setxattr(program, CAPABILITY, SETUID)
    if changed_by_nobody(server, change, program):
        assert os.listxattr(program) == []


def test_a_change_of_owner_takes_capabilities_and_bits(program: Path) -> None:
    os.chmod(program, 0o6777)
    os.setxattr(program, CAPABILITY, SETUID)
    os.chown(program, NOBODY, NOBODY)
    assert mode_of(program) == 0o777
    assert os.listxattr(program) == []
