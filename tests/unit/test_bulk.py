"""Entries that come in by the thousand, beside the same entries made one by one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, ROOT_INO, Ino
from ckptfs.store.format import INLINE_MAX
from tests.direct import Life
from tests.support.errnos import fails

#: More than wait at once.
MANY = 5_000


@pytest.fixture
def file(tmp_path: Path) -> os.stat_result:
    path = tmp_path / "seen"
    path.write_bytes(b"")
    path.chmod(0o4751)
    os.utime(path, ns=(11, 22))
    return path.stat()


@pytest.fixture
def directory(tmp_path: Path) -> os.stat_result:
    path = tmp_path / "seen-too"
    path.mkdir()
    path.chmod(0o1750)
    os.utime(path, ns=(33, 44))
    return path.stat()


def _names(fs: Filesystem, ino: Ino = ROOT_INO) -> list[bytes]:
    return [name for name, _ in fs.entries(fs.head, ino)]


def test_a_file_has_its_attributes_and_content(fs: Filesystem, file: os.stat_result) -> None:
    for size in (0, 1, INLINE_MAX, INLINE_MAX + 1, BLOCK_SIZE):
        name, data = b"%d" % size, os.urandom(size)
        made = fs.insert(fs.head, ROOT_INO, name, file, data)
        fs.new_entries.flush()
        found = fs.lookup(fs.head, ROOT_INO, name)
        assert found == made and found.mode == file.st_mode
        assert (found.size, found.atime_ns, found.mtime_ns, found.nlink) == (size, 11, 22, 1)
        assert bytes(fs.read(fs.head, found.ino, 0, BLOCK_SIZE)) == data
    fs.commit()


def test_directories_count_in_those_above(fs: Filesystem, directory: os.stat_result) -> None:
    outer = fs.insert_directory(fs.head, ROOT_INO, b"outer", directory)
    for name in (b"one", b"two"):
        fs.insert_directory(fs.head, outer.ino, name, directory)
    fs.commit()
    found = fs.lookup(fs.head, ROOT_INO, b"outer")
    assert (found.mode, found.nlink) == (directory.st_mode, 4)
    assert (found.atime_ns, found.mtime_ns) == (33, 44)
    assert fs.getattr(fs.head, ROOT_INO).nlink == 3


def test_a_commit_takes_what_waits_along(
    life: Life, file: os.stat_result, directory: os.stat_result
) -> None:
    fs = life.fs
    inner = fs.insert_directory(fs.head, ROOT_INO, b"dir", directory).ino
    wanted = [b"%06d" % number for number in range(MANY)]
    for name in reversed(wanted):
        fs.insert(fs.head, inner, name, file, name)
    fs.commit()
    fs.insert(fs.head, inner, b"late", file, b"x")
    fs = life.crash()
    assert _names(fs, inner) == wanted
    assert fs.head.inodes == 2 + MANY


def test_what_is_kept_out_of_history_goes_to_the_excluded_epoch(
    fs: Filesystem, file: os.stat_result, directory: os.stat_result
) -> None:
    fs.store.open_excluded()
    fs.exclusion.set_patterns(["out", "*.o"])
    out = fs.insert_directory(fs.head, ROOT_INO, b"out", directory).ino
    fs.insert(fs.head, out, b"in it", file, b"x")
    fs.insert(fs.head, ROOT_INO, b"a.o", file, b"x")
    kept = fs.insert(fs.head, ROOT_INO, b"a.c", file, b"x")
    fs.commit()
    assert _names(fs) == [b"a.c", b"a.o", b"out"]
    assert [name for name, _ in fs.entries(fs.head.bare, ROOT_INO)] == [b"a.c"]
    assert fs.is_excluded(out) and not fs.is_excluded(kept.ino)
    assert fs.getattr(fs.head, ROOT_INO).nlink == 3


def test_a_name_that_no_directory_can_hold(fs: Filesystem, file: os.stat_result) -> None:
    with fails(errno.ENAMETOOLONG):
        fs.insert(fs.head, ROOT_INO, b"n" * 256, file)


def test_several_files_come_in_together(fs: Filesystem, file: os.stat_result) -> None:
    contents = [os.urandom(size) for size in (0, 1, INLINE_MAX + 1, BLOCK_SIZE)]
    files = [(b"%d" % len(data), file, data) for data in contents]
    made = fs.insert_files(fs.head, ROOT_INO, files)
    fs.commit()
    assert [fs.lookup(fs.head, ROOT_INO, name) for name, _, _ in files] == made
    assert [bytes(fs.read(fs.head, inode.ino, 0, BLOCK_SIZE)) for inode in made] == contents


def test_each_of_several_files_is_kept_out_of_history_by_its_name(
    fs: Filesystem, file: os.stat_result
) -> None:
    fs.store.open_excluded()
    fs.exclusion.set_patterns(["*.o"])
    names = (b"a.o", b"a.c")
    made = fs.insert_files(fs.head, ROOT_INO, [(name, file, b"x") for name in names])
    assert [fs.is_excluded(inode.ino) for inode in made] == [True, False]
    fs.commit()
