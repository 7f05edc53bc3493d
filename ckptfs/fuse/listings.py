"""Directory listings: where one goes on after what the kernel has read of it.

A directory is read in pieces, and entries come and go between two of them. What stands in it is
given in the order of names, so a piece goes on behind the last name of the one before it: nothing
is given twice, and nothing that stays is left out. The kernel, however, names the place by a
number, the *cookie*. It is made of the number of the stream (one reading of one directory) and the
place in it: 1 is behind ".", 2 behind "..", n + 2 behind the n-th name that the stream gave out. A
name keeps its place; one that is met later, by reading a part again, gets the next free one.

The end of a stream is not announced, so the latest ones are kept. A cookie of which nothing is
known (its stream is no longer kept, is another directory's, or never was) is a place to count to in
the order of names: whatever number a program seeks to, nothing fails and nothing is given twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from ckptfs.model import Ino, Inode

#: How many streams, and names of all of them together, are remembered.
_STREAMS_MAX = 64
_NAMES_MAX = 50_000

POSITION_BITS = 32
_POSITION_MASK = (1 << POSITION_BITS) - 1
#: "." and "..".
_DOTS = 2
#: Streams from here on are the server's, until they are adopted.
STREAM_FIRST = 1 << 30

#: Of what the kernel knows already the number is enough.
Item = Inode | Ino
Dots = Callable[[int], tuple[Item, Item]]
Walk = Callable[[int, bytes], Iterator[tuple[bytes, Item]]]


class Listings:
    def __init__(self, dots: Dots, walk: Walk) -> None:
        self._dots = dots
        self._walk = walk
        #: The names given out so far, by directory and stream; the one used last stands last.
        self._streams: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()
        #: How many those are.
        self._count = 0
        self._latest = 0

    def entries(self, node: int, cookie: int) -> Iterator[tuple[bytes, Item, int]]:
        """(name, inode, cookie) behind a cookie. An entry is taken for given when the next one is
        asked for."""
        number, given = cookie >> POSITION_BITS, cookie & _POSITION_MASK
        number = number or self._next()
        names = self._names(node, number)
        base = number << POSITION_BITS
        if given < _DOTS:
            yield from self._first_two(node, base, given)
        for name, inode, place in self._behind(node, names, max(given - _DOTS, 0)):
            yield name, inode, base | (place + _DOTS)

    def _behind(
        self, node: int, names: list[bytes], position: int
    ) -> Iterator[tuple[bytes, Item, int]]:
        """(name, inode, place) of what stands behind a place."""
        # A stream that is no longer remembered is counted through again.
        unknown = max(position - len(names), 0)
        known = (
            {name: place for place, name in enumerate(names, 1)} if position < len(names) else {}
        )
        after = names[min(position, len(names)) - 1] if names and position else b""
        for name, inode in self._walk(node, after):
            place = known.get(name, 0)
            if unknown:
                unknown -= 1
            else:
                yield name, inode, place or len(names) + 1
            if not place:
                names.append(name)
                self._count += 1

    def _first_two(self, node: int, base: int, given: int) -> Iterator[tuple[bytes, Item, int]]:
        here, above = self._dots(node)
        if given == 0:
            yield b".", here, base | 1
        yield b"..", above, base | 2

    def adopt(self, node: int, number: int, names: list[bytes]) -> None:
        """Remember the names of a stream that the compiled server began."""
        self._make_room()
        self._streams[node, number] = names
        self._count += len(names)

    def _next(self) -> int:
        self._latest = self._latest % (STREAM_FIRST - 1) + 1
        self._make_room()
        return self._latest

    def _make_room(self) -> None:
        while len(self._streams) >= _STREAMS_MAX or (self._streams and self._count > _NAMES_MAX):
            _, names = self._streams.popitem(last=False)
            self._count -= len(names)
        if not self._streams:
            self._count = 0  # one that was dropped while it was read has been counted on

    def _names(self, node: int, number: int) -> list[bytes]:
        names = self._streams.setdefault((node, number), [])
        self._streams.move_to_end((node, number))
        return names
