"""Pending state: one flush in one order, and reads that pass a dirty buffer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptfs.fs import Filesystem
from ckptfs.model import NO_CONTENT, ROOT_INO, Ino
from ckptfs.store import Store, pending
from ckptfs.store.format import block_entity, dirent_entity, inode_entity, pack_u32, pack_u64
from ckptfs.store.pending import ORDER, Pending, Read, ReadPastBuffer
from tests.direct import new_filesystem

Past = Callable[[Filesystem], object]


def _file(fs: Filesystem, name: bytes = b"file") -> Ino:
    return fs.mknod(fs.head, ROOT_INO, name, 0o644, 0, 0).ino


def _past_dirty_inodes(fs: Filesystem) -> object:
    return fs.store.inodes.get(fs.head, inode_entity(_file(fs)))


def _past_changes_of_dirty_inodes(fs: Filesystem) -> object:
    _file(fs)
    return list(fs.store.changes.walk(fs.head.epoch, fs.store.inodes.kind))


def _past_a_walk_over_inodes(fs: Filesystem) -> object:
    _file(fs)
    return list(fs.store.inodes.versions(b""))


def _past_partial_blocks(fs: Filesystem) -> object:
    ino = _file(fs)
    fs.write(fs.head, ino, 0, b"short")
    inode = fs.getattr(fs.head, ino)
    assert inode.content != NO_CONTENT
    return fs.store.blockmap.get(fs.head, block_entity(inode.content, 0))


def _past_new_entries(fs: Filesystem) -> object:
    fs.insert(fs.head, ROOT_INO, b"new", os.stat(__file__), b"data")
    return fs.store.dirents.get(fs.head, dirent_entity(ROOT_INO, b"new"))


def _past_new_entries_of_a_directory(fs: Filesystem) -> object:
    fs.insert(fs.head, ROOT_INO, b"new", os.stat(__file__), b"data")
    return list(fs.entries(fs.head, ROOT_INO))


def _past_authors(fs: Filesystem) -> object:
    fs.signing = fs.authorship.of("me", {"pid": 1})
    _file(fs)
    return list(fs.store.authors.walk(pack_u32(fs.head.epoch)))


def _past_orphans(fs: Filesystem) -> object:
    ino = _file(fs)
    fs.hold(ino)
    fs.unlink(fs.head, ROOT_INO, b"file")
    return fs.store.orphans.get(pack_u64(ino))


def _past_borders(fs: Filesystem) -> object:
    fs.store.open_excluded()
    fs.exclusion.set_patterns(["*.o"])
    _file(fs, b"a.o")
    return list(fs.store.borders.walk())


def _past_the_ledger(fs: Filesystem) -> object:
    fs.store.ledger.put(ROOT_INO, b"name", b"value")
    return fs.store.ledger._table.get(pack_u64(ROOT_INO) + b"name")


def _past_counters(fs: Filesystem) -> object:
    fs.commit()
    _file(fs)
    return fs.store._counters.get(b"next_ino")


@pytest.mark.parametrize(
    "past",
    [
        _past_dirty_inodes,
        _past_changes_of_dirty_inodes,
        _past_a_walk_over_inodes,
        _past_partial_blocks,
        _past_new_entries,
        _past_new_entries_of_a_directory,
        _past_authors,
        _past_orphans,
        _past_borders,
        _past_the_ledger,
        _past_counters,
    ],
    ids=lambda past: past.__name__,
)
def test_a_read_past_a_dirty_buffer_raises_until_it_is_flushed(fs: Filesystem, past: Past) -> None:
    with pytest.raises(ReadPastBuffer):
        past(fs)
    fs.flush()
    every = fs.store.pending._buffers.items()
    for name, buffer in ((name, each) for name, lines in every for each in lines.values()):
        for table in ("inodes", "dirents", "blockmap", "authors", "orphans", "borders", "below"):
            assert not buffer.holds(Read(table)), f"{name} still holds records of {table}"


def test_a_read_that_asks_a_buffer_for_nothing_passes(fs: Filesystem) -> None:
    first = _file(fs, b"first")
    fs.flush()
    _file(fs, b"second")
    assert fs.store.inodes.get(fs.head, inode_entity(first)) is not None


def test_without_the_mode_tables_are_read_as_they_are(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(pending.CHECK_READS)
    with new_filesystem(memory / "store") as fs:
        assert "get" not in vars(fs.store.inodes), "a check stands in front of every read"
        assert _past_dirty_inodes(fs) is None


def test_buffers_are_flushed_in_the_one_order_whatever_order_they_came_in() -> None:
    flushed: list[str] = []
    owner = Pending()
    for name in reversed(ORDER):
        owner.register(name, lambda name=name: flushed.append(name))  # type: ignore[misc]
    owner.flush()
    assert flushed == list(ORDER)


def test_a_buffer_without_a_place_in_the_order_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="no place in the order"):
        store.pending.register("another", lambda: None)
