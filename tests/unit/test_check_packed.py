"""`check` sees each invariant of packed records broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.history import packing
from ckptfs.store import Store, check
from ckptfs.store import format as fmt
from ckptfs.store.packed import Record, pack_chunk
from tests.direct import Ticks, find, put


@pytest.fixture
def fs(memory: Path) -> Iterator[Filesystem]:
    """Three versions of two files, the older ones packed."""
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    for version in range(3):
        put(fs, b"a", b"%d" % version)
        put(fs, b"b", b"%d" % version)
        history.seal(fs, "manual", "", 0)
    packing.pack_records(fs)
    fs.commit()
    assert check(store) == []
    yield fs
    store.close(commit=False)


def found(fs: Filesystem) -> set[str]:
    fs.store.packed._decoded.clear()
    return {problem.invariant for problem in check(fs.store)}


def chunk(fs: Filesystem, kind: bytes) -> list[Record]:
    (records,) = (list(zip(*c, strict=True)) for k, _, c in fs.store.packed.chunks() if k == kind)
    return records


def put_chunk(fs: Filesystem, kind: bytes, name: bytes, records: list[Record]) -> None:
    fs.store.packed._table.put(kind + name, pack_chunk(records))


def test_a_chunk_that_cannot_be_read(fs: Filesystem) -> None:
    name, data = next(fs.store.packed._table.walk(b"i"))
    fs.store.packed._table.put(name, data[:-3] + b"???")
    assert found(fs) == {"records"}


def test_a_chunk_under_a_key_behind_its_first_is_found(fs: Filesystem) -> None:
    records = chunk(fs, b"i")
    fs.store.packed._table.delete(b"i" + records[0][0])
    put_chunk(fs, b"i", records[1][0], records)
    assert "packed" in found(fs)


def test_keys_out_of_order_are_found(fs: Filesystem) -> None:
    first, *others = chunk(fs, b"i")
    put_chunk(fs, b"i", first[0], [first, *reversed(others)])
    assert "packed" in found(fs)


def test_an_entity_in_two_chunks_is_found(fs: Filesystem) -> None:
    records = chunk(fs, b"i")
    # The second is of the same inode as the first.
    put_chunk(fs, b"i", records[0][0], records[:1])
    put_chunk(fs, b"i", records[1][0], records[1:])
    assert found(fs) == {"packed"}


def test_a_record_that_is_packed_and_in_its_table_is_found(fs: Filesystem) -> None:
    key, value = chunk(fs, b"i")[0]
    fs.store.inodes.rewrite(key, value)
    assert "packed" in found(fs)


def test_a_packed_record_of_the_head_is_found(fs: Filesystem) -> None:
    put(fs, b"a", b"new")
    fs.flush()
    key = fmt.inode_entity(find(fs, fs.head, b"a").ino) + fs.head.suffix
    record = fs.store.inodes.own(fs.head, key[:-4])
    assert record is not None
    first, *others = chunk(fs, b"i")
    put_chunk(fs, b"i", first[0], sorted([first, *others, (key, record)]))
    fs.store.inodes.erase(key)
    assert "packed" in found(fs)


def test_a_packed_record_that_the_head_needs_is_found(fs: Filesystem) -> None:
    fs.store.anchor = min(fs.store.epochs)
    assert "packed" in found(fs)
