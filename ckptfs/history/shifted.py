"""Versions of a large file: what one has at another place than the other.

A byte that is inserted at the front of a large file moves all that follows, and every block of the
new version is another. Here the blocks that only history has are related to those of a version that
is kept whole, at the place where their bytes are in that one: each is then kept as the few bytes
that differ. A block that was shifted lies in two neighbouring blocks of the other version, and is
kept by both. Places are found by looking for a few bytes of a block; once found, the same shift is
tried first for the next block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from typing import NamedTuple

from ckptfs.history.upkeep import Job, Steps, pause
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import Store
from ckptfs.store.blocks import CorruptBlock

#: Files with a block of this number are large: their versions do not fit into a pack together.
LARGE = 16
#: So many steps may lead from a version to one that is whole: each takes a reader 20 to 60 µs.
_DEPTH_MAX = 16
#: A piece of a block that is looked for, and where in the block it stands.
_PIECE = 64
_PLACES = (BLOCK_SIZE // 2, BLOCK_SIZE // 8, BLOCK_SIZE * 7 // 8)
#: So few bytes in a neighbour are not worth naming it.
_SLIVER = 32
#: After so many blocks of which nothing was found, the whole other version is searched; after twice
#: as many again. So versions that have nothing in common are searched a few times.
_FAR = 32
#: After so many blocks in a row that nothing was gained with, only one in so many is tried with the
#: block that stands in its place.
_HOPELESS, _SAMPLED = 64, 16
#: Blocks are looked through so many in a step.
_STRIDE = 16


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
    found = yield from _overview(store, stored)
    search = _Search(store, found.newest)
    for block in stored:
        if found.is_to_be_related(store, block):
            store.charge(block.length)
            yield from search.relate(block)
        yield from pause(store)


class _Overview(NamedTuple):
    """What is known of the blocks of a file."""

    #: The newest block in each place that is no difference.
    newest: dict[int, bytes]
    #: Blocks that the workspace has.
    live: set[bytes]
    #: How often versions of the file, and differences among its blocks, name a block.
    named: Counter[bytes]
    #: How many steps lead to a block from others of the file that are kept by it.
    depths: Counter[bytes]

    def is_to_be_related(self, store: Store, block: Stored) -> bool:
        key = block.key
        if key in self.live or self.newest.get(block.number) == key:
            return False
        # Blocks that something else uses, too, stay as they are: it may be in the workspace.
        return self.depths[key] < _DEPTH_MAX and store.blocks.uses(key) == self.named[key]


def _overview(store: Store, stored: list[Stored]) -> Generator[Job | None, object, _Overview]:
    found = _Overview({}, set(), Counter(), Counter())
    is_whole: dict[bytes, bool] = {}
    for number, block in enumerate(stored):
        key = block.key
        if key not in is_whole:
            bases = store.blocks.differs_from(key)
            is_whole[key] = not bases
            found.named.update(bases)
            _deepen(store, found.depths, key)
        found.named[key] += 1
        if block.is_live:
            found.live.add(key)
        if is_whole[key]:
            found.newest.setdefault(block.number, key)
        if not number % _STRIDE:
            yield from pause(store)
    return found


def _deepen(store: Store, depths: Counter[bytes], key: bytes) -> None:
    """Count the steps from a block to all that it is kept by."""
    pending = [key]
    while pending:
        user = pending.pop()
        for base in store.blocks.differs_from(user):
            if depths[user] < _DEPTH_MAX and depths[base] <= depths[user]:
                depths[base] = depths[user] + 1
                pending.append(base)


class _Search:
    """Looks for the places of blocks in another version, one block after the other."""

    def __init__(self, store: Store, versions: Mapping[int, bytes]) -> None:
        self._store = store
        self._versions = versions
        #: By how much the last block that was found is shifted.
        self._shift = 0
        #: How many blocks in a row nothing was gained with, and when to search everywhere again.
        self._missed = 0
        self._far_at = 0

    def relate(self, block: Stored) -> Steps:
        """Keep a block by those that have its bytes, if there are such."""
        pieces = list(_pieces(_bytes(self._store, block.key)))
        for shift in self._near(block.number, pieces):
            if self._relate(block, shift):
                return
        if self._missed >= self._far_at and pieces:
            found = yield from self._far(block.number, pieces)
            if found is not None and self._relate(block, found):
                return
            self._far_at = max(_FAR, 2 * self._missed)
        self._missed += 1
        if self._missed <= _HOPELESS or not block.number % _SAMPLED:
            self._relate(block, 0)

    def _relate(self, block: Stored, shift: int) -> bool:
        bases = self._bases(block, shift)
        if len(bases) > 1:
            self._store.allow_two_bases()
        if not bases or not self._store.blocks.relate(block.key, *bases):
            return False
        self._shift = shift
        self._missed = self._far_at = 0
        return True

    def _bases(self, block: Stored, shift: int) -> list[bytes]:
        """The blocks that bytes with that shift are in."""
        first, start = divmod(block.number * BLOCK_SIZE + shift, BLOCK_SIZE)
        numbers = []
        if start < BLOCK_SIZE - _SLIVER:
            numbers.append(first)
        if start + block.length > BLOCK_SIZE + _SLIVER:
            numbers.append(first + 1)
        found = (self._versions.get(number) for number in numbers or [first])
        return [key for key in dict.fromkeys(found) if key is not None and key != block.key]

    def _near(self, number: int, pieces: list[tuple[int, bytes]]) -> Iterator[int]:
        """Shifts with which a piece is found in neighbouring blocks, each once; first the one that
        the last block had."""
        tried: set[int] = set()
        for place, piece in pieces:
            for other, start in _likely(number, place, self._shift):
                shift = self._found(number, place, piece, other, start)
                if shift is not None and shift not in tried:
                    tried.add(shift)
                    yield shift

    def _far(
        self, number: int, pieces: list[tuple[int, bytes]]
    ) -> Generator[Job | None, object, int | None]:
        """The shift with which a piece is found anywhere."""
        for step, other in enumerate(sorted(self._versions, key=lambda n: abs(n - number))):
            for place, piece in pieces:
                shift = self._found(number, place, piece, other, None)
                if shift is not None:
                    return shift
            if not step % _STRIDE:
                yield from pause(self._store)
        return None

    def _found(
        self, number: int, place: int, piece: bytes, other: int, start: int | None
    ) -> int | None:
        """The shift with which a piece of one block is found in another one, at a place or
        anywhere."""
        there = _bytes(self._store, self._versions.get(other, b""))
        at = there.find(piece) if start is None else there.find(piece, start, start + _PIECE)
        return None if at < 0 else (other - number) * BLOCK_SIZE + at - place


def _pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    for place in _PLACES:
        piece = data[place : place + _PIECE]
        if len(set(piece)) >= _PIECE // 8:  # not as zeros, which are everywhere
            yield place, piece


def _likely(number: int, place: int, shift: int) -> Iterator[tuple[int, int | None]]:
    """Blocks that may have a piece, and where in them; None for anywhere."""
    yield divmod(number * BLOCK_SIZE + place + shift, BLOCK_SIZE)
    yield from ((number + step, None) for step in (0, 1, -1))


def _bytes(store: Store, key: bytes) -> bytes:
    try:
        return bytes(store.blocks.read(key)) if key else b""
    except CorruptBlock:
        return b""
