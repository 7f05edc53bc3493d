"""Pieces: what was synced of a block that is still being filled, and what becomes of it."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fs.buffers import PARTIAL_MAX
from ckptfs.history import excluded
from ckptfs.model import BLOCK_SIZE, Attributes, Ino
from ckptfs.store import Store, check, repair
from ckptfs.store.format import block_entity
from tests.direct import Life, Ticks, find, get, put


def journalling(fs: Filesystem, size: int = 3 * BLOCK_SIZE) -> Ino:
    """A file that stands in a commit, with a journal from here on."""
    ino = put(fs, b"file", random.Random(1).randbytes(size))
    for name in (b"a", b"b"):
        put(fs, name)
        fs.sync()
    assert fs.store._journal.is_open
    return ino


def write(fs: Filesystem, ino: Ino, offset: int, data: bytes) -> None:
    fs.write(fs.head, ino, offset, data)
    fs.sync()


def blocks_of(fs: Filesystem) -> int:
    return fs.store.blocks.count()


def test_the_block_is_stored_once_however_often_it_is_synced(life: Life) -> None:
    fs = life.fs
    ino = journalling(fs)
    before = fs.store.blockmap.changed
    for number in range(50):
        write(fs, ino, 100 * number, b"%03d" % number)
    assert fs.store.blockmap.changed == before
    fs.flush()
    assert fs.store.blockmap.changed == before + 1


Use = Callable[[Filesystem, Ino], object]


def over_it(fs: Filesystem, ino: Ino) -> None:
    """The whole block is written at once."""
    fs.write(fs.head, ino, 0, b"w" * BLOCK_SIZE)


def cut(fs: Filesystem, ino: Ino) -> None:
    fs.setattr(fs.head, ino, Attributes(size=10))


def cut_to_nothing(fs: Filesystem, ino: Ino) -> None:
    fs.setattr(fs.head, ino, Attributes(size=0))
    fs.write(fs.head, ino, 5, b"anew")


def crowd_out(fs: Filesystem, ino: Ino) -> None:
    other = put(fs, b"other")
    for number in range(PARTIAL_MAX + 5):
        fs.write(fs.head, other, number * BLOCK_SIZE + 7, b"x")
    assert ino not in fs.partial


def flush(fs: Filesystem, ino: Ino) -> None:
    fs.flush()


def go_on(fs: Filesystem, ino: Ino) -> None:
    fs.flush()
    fs.write(fs.head, ino, 50, b"on top of it")


def nothing(fs: Filesystem, ino: Ino) -> None:
    """The pieces are all there is."""


USES = [over_it, cut, cut_to_nothing, crowd_out, flush, go_on, nothing]


@pytest.mark.parametrize("size", [0, 1_000, 30_000, 3 * BLOCK_SIZE])
@pytest.mark.parametrize("use", USES)
def test_what_was_synced_and_then_used_survives_a_crash(life: Life, use: Use, size: int) -> None:
    fs = life.fs
    ino = journalling(fs, size)
    for offset in (0, 40, 2_000, BLOCK_SIZE - 2, BLOCK_SIZE + 9):
        write(fs, ino, offset, b"piece")
    use(fs, ino)
    fs.sync()
    wanted, shown = get(fs, b"file"), fs.getattr(fs.head, ino)
    after = life.crash()
    assert get(after, b"file") == wanted
    assert after.getattr(after.head, ino) == shown
    assert check(after.store) == []


def test_with_files_that_are_kept_out_of_history(life: Life) -> None:
    """Theirs are stored with every sync; those of the others are pieces all the same."""
    fs = life.fs
    excluded.apply(fs, ("*.log",))
    ino, log = journalling(fs), put(fs, b"a.log")
    fs.sync()
    before = fs.store.blockmap.changed
    for number in range(20):
        write(fs, ino, 100 * number, b"piece")
        write(fs, log, 10 * number, b"of the log")
    assert fs.store.blockmap.changed == before + 20
    wanted = get(fs, b"file"), get(fs, b"a.log")
    after = life.crash()
    assert (get(after, b"file"), get(after, b"a.log")) == wanted
    assert check(after.store) == []


def test_of_a_write_that_fails_midway_what_was_written_is_counted(life: Life) -> None:
    fs = life.fs
    ino = put(fs, b"file", b"short")
    fs.write(fs.head, ino, BLOCK_SIZE, b"y" * BLOCK_SIZE)
    fs.commit()
    inode = fs.getattr(fs.head, ino)
    key = block_entity(inode.content, 1) + fs.head.suffix
    record = fs.store.blockmap.own(fs.head, block_entity(inode.content, 1)) or b""
    fs.store.blockmap.rewrite(key, b"C" + record[1:])
    with pytest.raises(OSError, match="damaged"):
        fs.write(fs.head, ino, 20, b"z" * 2 * BLOCK_SIZE)
    fs.store.blockmap.rewrite(key, record)
    after = fs.getattr(fs.head, ino)
    assert after.allocated == 2 * BLOCK_SIZE
    assert after.mtime_ns > inode.mtime_ns
    wanted = b"short" + bytes(15) + b"z" * (BLOCK_SIZE - 20) + b"y" * BLOCK_SIZE
    assert get(fs, b"file")[: 2 * BLOCK_SIZE] == wanted


def test_a_file_that_went_leaves_nothing(life: Life) -> None:
    fs = life.fs
    ino = journalling(fs)
    before = blocks_of(fs)
    write(fs, ino, 100, b"piece")
    fs.unlink(fs.head, Ino(1), b"file")
    fs.sync()
    after = life.crash()
    assert find(after, after.head, b"a") and check(after.store) == []
    assert blocks_of(after) == before - 3


def test_a_block_that_is_damaged_by_then_stays_so_and_nothing_else_does(memory: Path) -> None:
    fs = Filesystem(Store.create(memory / "store"), Ticks())
    ino = journalling(fs)
    wanted = get(fs, b"file")
    write(fs, ino, 100, b"piece")
    write(fs, ino, BLOCK_SIZE + 100, b"piece")
    fs.store.close(commit=False)
    damage(fs.store.path, wanted[200:300], b"z" * 100)
    after = Filesystem(Store.open(fs.store.path), Ticks())
    with pytest.raises(OSError, match="damaged") as refused:
        after.read(after.head, ino, 0, 10)
    assert refused.value.errno == errno.EIO
    assert after.read(after.head, ino, BLOCK_SIZE + 98, 9) == (
        wanted[BLOCK_SIZE + 98 :][:2] + b"piece" + wanted[BLOCK_SIZE + 105 :][:2]
    )
    assert {problem.invariant for problem in check(after.store)} == {"blocks"}
    after.store.close()


def test_a_damaged_record_under_a_piece_does_not_keep_the_store_shut(memory: Path) -> None:
    fs = Filesystem(Store.create(memory / "store"), Ticks())
    ino = journalling(fs)
    put(fs, b"other", b"precious")
    write(fs, ino, 100, b"piece")
    content = fs.getattr(fs.head, ino).content
    key = block_entity(content, 0) + fs.head.suffix
    fs.store.close(commit=False)
    damage(fs.store.path, key + b"B", key + b"C")
    after = Filesystem(Store.open(fs.store.path), Ticks())
    assert get(after, b"other") == b"precious"
    after.store.close(commit=False)
    repair.repair(fs.store.path)
    after = Filesystem(Store.open(fs.store.path), Ticks())
    assert get(after, b"other") == b"precious"
    assert check(after.store) == []
    after.store.close()


def damage(path: Path, found: bytes, other: bytes) -> None:
    """Change what stands once in a store's file."""
    data = (path / "data.mdb").read_bytes()
    assert data.count(found) == 1
    (path / "data.mdb").write_bytes(data.replace(found, other))


def test_a_write_that_is_refused_leaves_no_record(life: Life) -> None:
    """It begins in a hole, and ends in a block that is damaged."""
    fs = life.fs
    ino = put(fs, b"file")
    fs.write(fs.head, ino, BLOCK_SIZE, b"x" * BLOCK_SIZE)
    history.seal(fs, "manual", "", 0)
    key = fs.store.blocks.digest(b"x" * BLOCK_SIZE, 0)
    table = fs.store.blocks._blocks
    record = table.get(key)
    assert record is not None
    table.put(key, record[:-1] + b"y")
    with pytest.raises(OSError, match="damaged"):
        fs.write(fs.head, ino, BLOCK_SIZE - 5, b"1234567890")
    table.put(key, record)
    fs.commit()
    assert get(fs, b"file") == bytes(BLOCK_SIZE) + b"x" * BLOCK_SIZE


def test_a_crash_while_they_are_put_into_blocks_loses_nothing(life: Life) -> None:
    """The replay of the journal is committed, what follows is not."""
    fs = life.fs
    ino = journalling(fs)
    write(fs, ino, 100, b"piece")
    wanted = get(fs, b"file")
    path = fs.store.path
    fs.store.close(commit=False)
    for _ in range(3):
        Store.open(path).close(commit=False)
    life.fs = Filesystem(Store.open(path), Ticks())
    assert get(life.fs, b"file") == wanted


def test_a_partial_block_is_read_without_being_stored(life: Life) -> None:
    fs = life.fs
    ino = journalling(fs)
    data = bytearray(get(fs, b"file"))
    before = fs.store.blockmap.changed
    chance = random.Random(2)
    for _ in range(60):
        offset, piece = chance.randrange(3 * BLOCK_SIZE), os.urandom(chance.randrange(1, 300))
        fs.write(fs.head, ino, offset, piece)
        data[offset : offset + len(piece)] = piece
        assert get(fs, b"file") == data
        start = chance.randrange(3 * BLOCK_SIZE)
        assert fs.read(fs.head, ino, start, 5_000) == data[start : start + 5_000]
    assert fs.getattr(fs.head, ino).allocated == len(data)
    assert fs.store.blockmap.changed == before
