"""What the kernel is told about the map of a store's file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from ckptfs.fs import Filesystem
from ckptfs.store import Store
from tests.direct import get, put

#: As /proc/PID/smaps has it: nothing that lies around a page is read with it.
RANDOM = "rr"


def flags_of(store: Store) -> set[str]:
    """What holds for the map of the store's file in this process."""
    data_file = os.fspath((store.path / "data.mdb").resolve())
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(data_file):
            return set(next(each for each in lines if each.startswith("VmFlags:")).split()[1:])
    raise AssertionError(f"{data_file} is not mapped")


def test_a_store_without_a_daemon_is_read_as_the_kernel_likes(fs: Filesystem) -> None:
    assert RANDOM not in flags_of(fs.store)


def test_records_are_read_alone_and_bytes_with_what_is_around(fs: Filesystem) -> None:
    for size in (1_000, 100_000):  # with its record, and in blocks of its own
        ino = put(fs, b"%d" % size, b"x" * size)
        fs.commit()
        fs.store.expect_records()
        fs.getattr(fs.head, ino)
        assert RANDOM in flags_of(fs.store)
        assert get(fs, b"%d" % size) == b"x" * size
        assert RANDOM not in flags_of(fs.store)


def test_a_block_that_is_read_for_itself_counts_too(fs: Filesystem) -> None:
    key = fs.store.blocks.add(b"x" * 5_000)
    fs.store.expect_records()
    fs.store.blocks.read(key)
    assert RANDOM not in flags_of(fs.store)
    fs.store.blocks.release(key)


def test_a_file_that_was_exchanged_is_told_of_anew(fs: Filesystem) -> None:
    put(fs, b"file", b"x" * 100_000)
    fs.store.expect_records()
    fs.store.compact()
    assert RANDOM not in flags_of(fs.store)
    fs.store.expect_records()
    assert RANDOM in flags_of(fs.store)
    assert get(fs, b"file") == b"x" * 100_000


def test_pages_are_dropped_and_read_again(fs: Filesystem) -> None:
    put(fs, b"file", b"x" * 100_000)
    fs.commit()
    fs.store._map.release()
    assert get(fs, b"file") == b"x" * 100_000


def test_what_came_where_others_had_mapped_the_file_stays(fs: Filesystem) -> None:
    """A map is made and goes; then something else is in its place."""
    put(fs, b"file", os.urandom(1 << 20))
    fs.commit()
    data_file = fs.store.path / "data.mdb"
    size = data_file.stat().st_size
    with data_file.open("rb") as file:
        passing = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        fs.store.expect_records()  # looks for maps of the file
        passing.close()
    fs.store.expect_blocks()
    others = [mmap.mmap(-1, size) for _ in range(4)]
    for other in others:
        other[:] = b"x" * size
    fs.store._map.release()
    fs.store.expect_records()
    assert all(other[:] == b"x" * size for other in others)
