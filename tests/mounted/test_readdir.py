"""Reading a directory while entries come and go: nothing twice, nothing untouched left out."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syscalls import Dirent, getdents
from tests.support.trees import Fifo, Link, plant

DOTS = {b".", b".."}


@pytest.fixture
def names() -> list[bytes]:
    return [b"entry-%05d" % number for number in range(1000)]


@pytest.fixture
def directory(mount: Path, names: list[bytes]) -> Iterator[int]:
    """A descriptor of a directory with a thousand files."""
    fd = os.open(mount, os.O_RDONLY)
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    yield fd
    os.close(fd)


def rest(fd: int, size: int = 512) -> Iterator[Dirent]:
    """Everything from the present position on, fetched in small portions."""
    while batch := getdents(fd, size):
        yield from batch


def left(fd: int) -> set[bytes]:
    """What a new reading from the start finds."""
    os.lseek(fd, 0, os.SEEK_SET)
    return {entry.name for entry in rest(fd)} - DOTS


def test_every_entry_is_listed_once(directory: int, names: list[bytes]) -> None:
    seen = [entry.name for entry in rest(directory)]
    assert sorted(seen) == sorted([*names, *DOTS])


@pytest.mark.parametrize("size", [300, 4096, 32_768, 1 << 20])
def test_every_entry_is_listed_once_with_any_size_of_buffer(
    directory: int, names: list[bytes], size: int
) -> None:
    seen = Counter(entry.name for entry in rest(directory, size))
    assert seen == Counter([*names, *DOTS])


def test_entries_tell_type_and_inode(mount: Path) -> None:
    plant(mount, {"file": "x", "dir": {}, "link": Link("x"), "fifo": Fifo()})
    fd = os.open(mount, os.O_RDONLY)
    entries = {os.fsdecode(entry.name): entry for entry in rest(fd)}
    os.close(fd)
    for name in os.listdir(mount):
        info = os.lstat(mount / name)
        assert entries[name].ino == info.st_ino
        assert entries[name].kind == stat.S_IFMT(info.st_mode) >> 12
    assert entries["."].ino == os.stat(mount).st_ino
    assert entries[".."].ino == os.stat(mount.parent).st_ino
    assert entries["."].kind == entries[".."].kind == stat.S_IFDIR >> 12


def test_the_top_directory_lists_its_dots(mount: Path) -> None:
    entries = {entry.name: entry for entry in _list(mount.parent)}
    assert {b".", b".."} <= set(entries)


def _list(path: Path) -> list[Dirent]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return list(rest(fd))
    finally:
        os.close(fd)


def test_deleting_each_entry_as_it_is_seen(directory: int, names: list[bytes]) -> None:
    """What rm -rf does. Whoever counts entries from the start skips some."""
    seen: Counter[bytes] = Counter()
    for entry in rest(directory):
        seen[entry.name] += 1
        if entry.name not in DOTS:
            os.unlink(entry.name, dir_fd=directory)
    assert seen == Counter([*names, *DOTS])
    assert left(directory) == set()


def test_entries_deleted_ahead_and_behind_disturb_no_other(
    directory: int, names: list[bytes]
) -> None:
    doomed = set(names[::3])
    reader = rest(directory)
    seen = Counter(next(reader).name for _ in range(100))
    for name in doomed:
        os.unlink(name, dir_fd=directory)
    seen.update(entry.name for entry in reader)
    assert max(seen.values()) == 1
    assert set(names) - doomed <= set(seen)
    assert set(seen) <= {*names, *DOTS}


def test_entries_added_while_reading_disturb_no_other(directory: int, names: list[bytes]) -> None:
    added = [b"%s-new" % name for name in names[::5]] + [b"aaa", b"zzz"]
    reader = rest(directory)
    seen = Counter(next(reader).name for _ in range(100))
    for name in added:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    seen.update(entry.name for entry in reader)
    assert max(seen.values()) == 1
    assert {*names, *DOTS} <= set(seen) <= {*names, *DOTS, *added}
    assert left(directory) == {*names, *added}


def test_entries_renamed_while_reading_disturb_no_other(directory: int, names: list[bytes]) -> None:
    moved = set(names[::4])
    reader = rest(directory)
    seen = Counter(next(reader).name for _ in range(100))
    for name in moved:
        os.rename(name, b"x" + name, src_dir_fd=directory, dst_dir_fd=directory)
    seen.update(entry.name for entry in reader)
    assert max(seen.values()) == 1
    assert set(names) - moved <= set(seen)


def test_entries_replaced_while_reading_disturb_no_other(
    directory: int, names: list[bytes]
) -> None:
    """A name deleted and made again in mid-reading may be seen again, but disturbs no other."""
    reader = rest(directory)
    seen = Counter(next(reader).name for _ in range(100))
    touched = set(names[:50])
    for name in touched:
        os.unlink(name, dir_fd=directory)
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    seen.update(entry.name for entry in reader)
    assert all(seen[name] == 1 for name in set(names) - touched)


def test_seeking_back_to_a_told_position_lists_the_same_again(directory: int) -> None:
    entries = list(rest(directory))
    for index in (0, 1, 2, 57, 500, 998):
        os.lseek(directory, entries[index].after, os.SEEK_SET)
        again = [entry.name for entry in rest(directory)]
        assert again == [entry.name for entry in entries[index + 1 :]]


def test_a_told_position_outlives_deletions(directory: int, names: list[bytes]) -> None:
    entries = list(rest(directory))
    position = entries[400].after
    for entry in entries[350:450]:
        os.unlink(entry.name, dir_fd=directory)
    os.lseek(directory, position, os.SEEK_SET)
    # Names that were removed since may come once more, as POSIX allows.
    removed = {entry.name for entry in entries[350:450]}
    again = [entry.name for entry in rest(directory) if entry.name not in removed]
    assert again == [entry.name for entry in entries[450:]]


def test_rewinding_sees_the_present(directory: int, names: list[bytes]) -> None:
    list(rest(directory))
    os.unlink(names[0], dir_fd=directory)
    os.close(os.open(b"new", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    assert left(directory) == {*names[1:], b"new"}


def test_two_readers_do_not_disturb_each_other(
    mount: Path, directory: int, names: list[bytes]
) -> None:
    second = os.open(mount, os.O_RDONLY)
    one, other = rest(directory), rest(second, 300)
    pairs = [(first.name, next(other).name) for first in one]
    os.close(second)
    assert Counter(first for first, _ in pairs) == Counter([*names, *DOTS])
    assert Counter(last for _, last in pairs) == Counter([*names, *DOTS])


def test_five_thousand_entries_are_listed_once_each(mount: Path) -> None:
    names = {f"file number {number} with a longer name" for number in range(5000)}
    for name in names:
        (mount / name).touch()
    assert Counter(os.listdir(mount)) == Counter(names)
    assert {entry.name for entry in os.scandir(mount) if entry.is_file()} == names
    for name in names:
        os.unlink(mount / name)
    assert os.listdir(mount) == []
    mount.rmdir()
    mount.mkdir()


def test_directories_are_deleted_while_scandir_reads(mount: Path) -> None:
    for number in range(700):
        (mount / f"d{number}").mkdir()
    with os.scandir(mount) as entries:
        for entry in entries:
            os.rmdir(entry.path)
    assert os.listdir(mount) == []
    assert mount.stat().st_nlink == 2


def test_an_entry_seen_in_a_listing_can_be_used_at_once(mount: Path) -> None:
    """Listings prime the kernel's lookups; what they prime must be right."""
    for number in range(300):
        (mount / str(number)).write_text(str(number))
    for entry in os.scandir(mount):
        assert entry.stat().st_size == len(entry.name)
        assert Path(entry.path).read_text() == entry.name
    os.rename(mount / "1", mount / "2")
    os.listdir(mount)
    assert (mount / "2").read_text() == "1"
