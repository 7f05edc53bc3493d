"""Pieces that replace bytes which wait in partial blocks: compiled as in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.fs import buffers
from ckptfs.fs.buffers import PartialBlock, Piece
from ckptfs.fuse.server.interface import ServerModule
from ckptfs.model import BLOCK_SIZE, Ino
from tests.direct import new_filesystem, put

Overwrite = Callable[[dict[int, PartialBlock], Sequence[Piece], dict[PartialBlock, None]], int]

PLACES = st.sampled_from([0, 1, 100, 4_096, 8_192, 61_440, 65_000, BLOCK_SIZE - 1])
SIZES = st.sampled_from([0, 1, 99, 4_096, 5_000, BLOCK_SIZE])
WRITES = st.lists(st.tuples(PLACES, SIZES), max_size=6)
PIECES = st.lists(st.tuples(st.integers(0, 3), PLACES, SIZES), max_size=12)


def blocks_of(written: Sequence[Sequence[tuple[int, int]]]) -> dict[int, PartialBlock]:
    """Blocks to which these ranges were written."""
    found = {}
    for number, ranges in enumerate(written):
        block = PartialBlock(None, None, number, bytearray(), b"")  # type: ignore[arg-type]
        for start, size in ranges:
            block.put(start, memoryview(b"a" * min(size, BLOCK_SIZE - start)))
        block.unlogged = (BLOCK_SIZE, 0)
        found[number] = block
    return found


def state_of(blocks: dict[int, PartialBlock]) -> list[tuple[object, ...]]:
    return [
        (bytes(each.data), each.start, each.stop, each.stopped_at, each.unlogged)
        for each in blocks.values()
    ]


def overwritten(
    overwrite: Overwrite, written: Sequence[Sequence[tuple[int, int]]], pieces: Sequence[Piece]
) -> tuple[int, list[tuple[object, ...]], list[int]]:
    blocks = blocks_of(written)
    unlogged: dict[PartialBlock, None] = {}
    count = overwrite(blocks, pieces, unlogged)
    return count, state_of(blocks), [block.number for block in unlogged]


@given(st.lists(WRITES, max_size=3), PIECES)
def test_compiled_and_in_python_it_is_the_same(
    written: list[list[tuple[int, int]]], wanted: list[tuple[int, int, int]]
) -> None:
    from ckptfs.fuse.server import binding

    module = binding.load().module
    assert module is not None
    pieces: list[Piece] = [
        (number * BLOCK_SIZE + start, b"%x" % (place % 16) * size)
        for place, (number, start, size) in enumerate(wanted)
    ]
    compiled = overwritten(module.overwrite, written, pieces)
    assert compiled == overwritten(buffers._overwrite, written, pieces)


def test_it_ends_at_the_first_piece_that_is_more(module: ServerModule) -> None:
    written = [[(0, 8_192)]]
    pieces: list[Piece] = [(0, b"b" * 4_096), (4_096, b"c" * 4_097), (10, b"d")]
    for overwrite in (module.overwrite, buffers._overwrite):
        count, [(data, *_)], unlogged = overwritten(overwrite, written, pieces)
        assert (count, unlogged) == (1, [0])
        assert data == b"b" * 4_096 + b"a" * 4_096


def test_what_is_no_piece_is_an_error(module: ServerModule) -> None:
    for pieces in ([None], [(0,)], [(0, "text")]):
        with pytest.raises(TypeError):
            module.overwrite(blocks_of([[(0, 10)]]), pieces, {})  # type: ignore[arg-type]


class Odd:
    """Looks like a partial block, and does something when it is asked for where it ends."""

    start, stopped_at, unlogged = 0, 0, (BLOCK_SIZE, 0)

    def __init__(self, data: object, stop: object = BLOCK_SIZE) -> None:
        self.data = data
        self._stop = stop

    @property
    def stop(self) -> object:
        return self._stop() if callable(self._stop) else self._stop


def overwrite_odd(module: ServerModule, block: Odd, pieces: list[Piece]) -> int:
    return module.overwrite({0: block}, pieces, {})  # type: ignore[dict-item]


def test_a_block_that_is_not_what_it_says_is_left_alone(module: ServerModule) -> None:
    """It is Python's to say what is wrong with it."""
    assert overwrite_odd(module, Odd(bytearray(10)), [(5, b"123456")]) == 0
    assert overwrite_odd(module, Odd(bytearray(10), 1 << 62), [(BLOCK_SIZE - 1, b"ab")]) == 0
    assert overwrite_odd(module, Odd(b"read-only!"), [(0, b"abc")]) == 0
    for block in (Odd(None, "text"), Odd(None, 1 << 80), object()):
        with pytest.raises((TypeError, OverflowError, AttributeError)):
            overwrite_odd(module, block, [(0, b"abc")])  # type: ignore[arg-type]


def test_a_block_and_pieces_may_go_while_they_are_looked_at(module: ServerModule) -> None:
    blocks: dict[int, Odd] = {}
    pieces: list[Piece] = [(0, bytearray(b"abc")), (3, bytearray(b"def")), (6, bytearray(b"ghi"))]
    data = bytearray(10)

    def drop() -> int:
        blocks.clear()
        pieces.clear()
        return BLOCK_SIZE

    blocks[0] = Odd(data, drop)
    unlogged: dict[PartialBlock, None] = {}
    assert module.overwrite(blocks, pieces, unlogged) == 1  # type: ignore[arg-type]
    assert (bytes(data), len(unlogged)) == (b"abc" + bytes(7), 1)


def test_a_block_that_is_looked_at_is_overwritten(module: ServerModule) -> None:
    """A reply is made of views of blocks; to overwrite one changes no size."""
    for overwrite in (module.overwrite, buffers._overwrite):
        blocks = blocks_of([[(0, 100)]])
        with memoryview(blocks[0].data) as view:
            assert overwrite(blocks, [(10, b"bcd"), (90, b"e" * 10)], {}) == 2
            assert bytes(view[9:14]) == b"abcda"
            # A piece of the block itself.
            assert overwrite(blocks, [(0, view[10:13])], {}) == 1
        assert blocks[0].data.startswith(b"bcd")


@pytest.mark.parametrize("compiled", [True, False])
def test_overwriting_charges_once_and_is_read(
    tmp_path: Path, module: ServerModule, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    monkeypatch.setattr(buffers, "overwrite", module.overwrite if compiled else buffers._overwrite)
    with new_filesystem(tmp_path / "store") as fs:
        ino = Ino(put(fs, b"file", bytes(3 * BLOCK_SIZE)))
        fs.write(fs.head, ino, 100, b"a" * 1_000)
        before = fs.store.dirty_bytes
        fs.write_pieces(fs.head, ino, [(200, b"b" * 10), (300, b"c" * 10)], now_ns=17)
        assert fs.store.dirty_bytes - before < 10_000
        fs.write_pieces(
            fs.head, ino, [(210, b"d"), (2 * BLOCK_SIZE, b"e" * 3), (211, b"f")], now_ns=18
        )
        inode = fs.getattr(fs.head, ino)
        assert (inode.size, inode.mtime_ns) == (3 * BLOCK_SIZE, 18)
        data = bytes(fs.read(fs.head, ino, 0, 3 * BLOCK_SIZE))
        assert data[200:212] == b"b" * 10 + b"df" and data[300:310] == b"c" * 10
        assert data[2 * BLOCK_SIZE :][:4] == b"eee\0"
