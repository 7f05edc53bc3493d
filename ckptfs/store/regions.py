"""The tree of epochs in an order in which a lineage is a stack, and what that is good for.

What a view shows of an entity is what the nearest epoch above it that has a record of it says. So
the epochs with records of an entity part the tree into *regions*, in which all views show the same
of it, and what holds for one view of a region holds for all. Does not know what records mean, but
for the blocks of a content.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from ckptfs.model import BLOCK_SIZE, Epoch
from ckptfs.store import format as fmt

T = TypeVar("T")

#: The place above all epochs.
EVERYWHERE = 0
#: Before all blocks of a file are looked through for the last one, so many are asked for.
_STEPS = 64


class EpochOrder:
    """The tree of epochs in preorder. Every epoch has a place, from 1 on; what descends from it has
    the places up to its ``last``. Place 0 is above all of them and has no records."""

    def __init__(self, epochs: Mapping[Epoch, fmt.EpochRecord]) -> None:
        self.epochs: list[Epoch] = [fmt.NO_EPOCH]
        self.above: list[int] = [EVERYWHERE]
        self.last: list[int] = [0]
        self._number(epochs)
        self.place = {fmt.suffix_of(epoch): n for n, epoch in enumerate(self.epochs) if n}
        #: Whether there is a view to check: that of a hidden epoch may be half removed.
        self.shown = [False, *(_is_shown(epochs[epoch]) for epoch in self.epochs[1:])]
        self._shown_before = [0]
        for shown in self.shown:
            self._shown_before.append(self._shown_before[-1] + shown)

    def _number(self, epochs: Mapping[Epoch, fmt.EpochRecord]) -> None:
        children: dict[Epoch, list[Epoch]] = defaultdict(list)
        for epoch in sorted(epochs, reverse=True):
            parent = epochs[epoch].parent
            children[parent if parent in epochs else fmt.NO_EPOCH].append(epoch)
        way = [(EVERYWHERE, epoch) for epoch in children.pop(fmt.NO_EPOCH, ())]
        while way:
            above, epoch = way.pop()
            self.above.append(above)
            self.last.append(len(self.epochs))
            way += ((len(self.epochs), child) for child in children.pop(epoch, ()))
            self.epochs.append(epoch)
        for place in range(len(self.epochs) - 1, 0, -1):
            above = self.above[place]
            self.last[above] = max(self.last[above], self.last[place])

    def shown_below(self, place: int) -> int:
        """How many views there are from a place down."""
        return self._shown_before[self.last[place] + 1] - self._shown_before[place]

    def shown_from(self, place: int, borders: Collection[int] = ()) -> Iterator[Epoch]:
        """The first views on all ways down from a place, up to the borders of its region."""
        at = place
        while at <= self.last[place]:
            if at in borders and at != place:
                at = self.last[at]
            elif self.shown[at]:
                yield self.epochs[at]
                at = self.last[at]
            at += 1


def _is_shown(record: fmt.EpochRecord) -> bool:
    return bool(record.info) or not record.sealed


class Version(NamedTuple, Generic[T]):
    """What an epoch says of an entity, and what it hides by that."""

    place: int
    before: T | None
    now: T | None


def with_before(order: EpochOrder, found: list[tuple[int, T | None]]) -> list[Version[T]]:
    """Versions of one entity in the order of their places."""
    if len(found) == 1:
        return [Version(found[0][0], None, found[0][1])]
    found.sort(key=lambda item: item[0])
    stack: list[tuple[int, T | None]] = []
    versions = []
    for place, now in found:
        while stack and order.last[stack[-1][0]] < place:
            stack.pop()
        versions.append(Version(place, stack[-1][1] if stack else None, now))
        stack.append((place, now))
    return versions


@dataclass
class Region(Generic[T]):
    """A region while its part of the tree is gone through: where it begins, what its views show,
    and how many views are in it."""

    place: int
    state: T
    views: int


def faulty(
    order: EpochOrder,
    events: Iterable[int],
    following: Callable[[T, int], T],
    start: T,
    fits: Callable[[T], bool],
) -> Iterator[Epoch]:
    """The first views of each region in which a state does not fit. ``following`` is the state
    after what happens at a place, given that of the region above."""
    places = sorted(events)
    stack: list[Region[T]] = []
    closed: list[Region[T]] = []
    for place in places:
        while stack and order.last[stack[-1].place] < place:
            closed.append(stack.pop())
        above = stack[-1] if stack else None
        views = order.shown_below(place)
        if above is not None:
            above.views -= views
        state = following(above.state if above is not None else start, place)
        stack.append(Region(place, state, views))
    for region in (*closed, *stack):
        if region.views and not fits(region.state):
            yield from order.shown_from(region.place, set(places))


# -- the blocks of a content -----------------------------------------------------------------------


class Claim(NamedTuple):
    """From a place on, a file has so many bytes in blocks of a content, and ends there. None: it
    is another's, or of no use."""

    place: int
    allocated: int | None
    size: int


class _Shown(NamedTuple):
    """The blocks of a content in the views of a region: what is claimed, what is there, the number
    of the last block, and what to put back when the region is left."""

    region: Region[bool]
    claim: Claim | None
    allocated: int
    top: int
    undo: list[tuple[int, int]]


class VisibleBlocks:
    """The blocks of one content, as a way through the tree of epochs sees them."""

    def __init__(
        self,
        order: EpochOrder,
        claims: dict[int, Claim],
        changes: dict[int, list[tuple[int, int]]],
    ) -> None:
        self._order = order
        self._claims = claims
        self._changes = changes
        self._lengths: dict[int, int] = {}
        self._stack: list[_Shown] = []

    def faulty(self) -> Iterator[Epoch]:
        """The first views of each region in which blocks and claim do not agree."""
        order, regions = self._order, []
        places = sorted({*self._claims, *self._changes})
        for place in places:
            while self._stack and order.last[self._stack[-1].region.place] < place:
                self._leave()
            regions.append(self._enter(place).region)
        for region in regions:
            if region.views and not region.state:
                yield from order.shown_from(region.place, set(places))

    def _enter(self, place: int) -> _Shown:
        above = self._stack[-1] if self._stack else None
        views = self._order.shown_below(place)
        claim, allocated, top = self._claims.get(place), 0, -1
        if above is not None:
            above.region.views -= views
            allocated, top, claim = above.allocated, above.top, claim or above.claim
        undo = []
        for number, length in self._changes.get(place, ()):
            before = self._set(number, length)
            undo.append((number, before))
            allocated += max(length, 0) - max(before, 0)
            top = max(top, number)
        top = self._highest(top)
        fits = claim is None or claim.allocated is None or self._fits(claim, allocated, top)
        self._stack.append(_Shown(Region(place, fits, views), claim, allocated, top, undo))
        return self._stack[-1]

    def _leave(self) -> None:
        for number, before in self._stack.pop().undo:
            self._set(number, before)

    def _set(self, number: int, length: int) -> int:
        before = self._lengths.pop(number, -1)
        if length >= 0:
            self._lengths[number] = length
        return before

    def _highest(self, top: int) -> int:
        """The number of the last block, from one that may be gone on down."""
        for number in range(top, max(top - _STEPS, -1), -1):
            if number in self._lengths:
                return number
        return max(self._lengths, default=-1)

    def _fits(self, claim: Claim, allocated: int, top: int) -> bool:
        end = top * BLOCK_SIZE + self._lengths[top] if top >= 0 else 0
        return claim.allocated == allocated and end <= claim.size
