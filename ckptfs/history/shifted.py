"""Versions of a large file: what one has at another place than the other.

A byte that is inserted at the front of a large file moves all that follows, and every block of the
new version is another. Here the blocks that only history has are related to those of a version that
is kept whole, at the place where their bytes are in that one: each is then kept as the few bytes
that differ. Places are found by looking for a few bytes of a block; once found, the same shift is
tried first for the next block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ckptfs.history.upkeep import Steps, pause
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import Store
from ckptfs.store.blocks import CorruptBlock

#: Files with a block of this number are large: their versions do not fit into a pack together.
LARGE = 16
#: So many steps may lead from a version to one that is whole: each takes a reader 20 to 50 µs.
_DEPTH_MAX = 8
#: A piece of a block that is looked for, and where in the block it stands.
_PIECE = 32
_PLACES = (BLOCK_SIZE // 2, BLOCK_SIZE // 8, BLOCK_SIZE * 7 // 8)
#: Where nothing is found beside its place, every so many blocks as many are searched on each side.
_FAR = 32


class Stored(NamedTuple):
    """A block of a version of a file: ``number`` says where it stands in it, ``is_live`` whether
    the workspace has it there."""

    key: bytes
    length: int
    number: int
    is_live: bool


def relate_versions(store: Store, stored: list[Stored]) -> Steps:
    """Keep the blocks that only history has of a large file, given newest first, by those of its
    other versions."""
    if not any(block.number >= LARGE for block in stored):
        return
    newest: dict[int, bytes] = {}
    for block in stored:
        if not store.blocks.is_difference(block.key):
            newest.setdefault(block.number, block.key)
    live = {block.key for block in stored if block.is_live}
    depths, users = _kept_by(store, stored)
    shift = 0
    for block in stored:
        key = block.key
        # Blocks that something else uses, too, stay as they are: it may be in the workspace.
        is_own = key not in live and store.blocks.uses(key) == 1 + users[key]
        if is_own and depths[key] < _DEPTH_MAX and newest.get(block.number) != key:
            found = _place(store, block, newest, shift)
            if found is not None:
                store.charge(block.length)
                if store.blocks.relate(key, newest[found[0]]):
                    shift = found[1]
        yield from pause(store)


def _kept_by(store: Store, stored: list[Stored]) -> tuple[Counter[bytes], Counter[bytes]]:
    """Of each block, how many steps lead to it from others of the file that are kept by it, and how
    many take the first one."""
    depths: Counter[bytes] = Counter()
    users: Counter[bytes] = Counter()
    for key in {block.key for block in stored}:
        chain = store.blocks.chain(key)
        users.update(chain[1:2])
        for steps, base in enumerate(chain):
            depths[base] = max(depths[base], steps)
    return depths, users


def _place(
    store: Store, block: Stored, versions: Mapping[int, bytes], shift: int
) -> tuple[int, int] | None:
    """The number of the block that has most of the bytes, and by how much they are shifted."""
    data = _bytes(store, block.key)
    for place in _PLACES:
        piece = data[place : place + _PIECE]
        if len(set(piece)) < _PIECE // 4:
            continue  # as zeros, which are everywhere
        for number, start in _likely(block.number, place, shift):
            there = _bytes(store, versions.get(number, b""))
            at = there.find(piece, start, start + _PIECE if start else None)
            if at >= 0:
                shift = (number - block.number) * BLOCK_SIZE + at - place
                # The nearer border decides which of two neighbours has more of the block.
                best = (block.number * BLOCK_SIZE + shift + BLOCK_SIZE // 2) // BLOCK_SIZE
                return (best if best in versions else number), shift
    return (block.number, 0) if block.number in versions else None


def _likely(number: int, place: int, shift: int) -> Iterator[tuple[int, int]]:
    """Blocks that may have a piece, and where in them; 0 for anywhere."""
    other, start = divmod(number * BLOCK_SIZE + place + shift, BLOCK_SIZE)
    yield other, start
    yield from ((number + step, 0) for step in (0, 1, -1))
    if not number % _FAR and place == _PLACES[0]:
        for step in range(2, _FAR):
            yield number + step, 0
            yield number - step, 0


def _bytes(store: Store, key: bytes) -> bytes:
    try:
        return bytes(store.blocks.read(key)) if key else b""
    except CorruptBlock:
        return b""
