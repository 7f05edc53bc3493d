"""Retention: which checkpoints stay and which expire, as a pure function with a reason for each.

Knows no store; what it needs to know about one comes in `Figures` and `Insight`. Saved, tagged and
pinned checkpoints stay. All automatic ones stay while they are young, then one an hour, then one a
day, then none; the very first, the state before the work began, stays as long as the daily ones.
Limits come on top, and count only what may expire. Moments have limits of their own. A young
checkpoint that is one too many becomes a moment, so that lists are short and nothing is lost.

Where space is short, moments go first, and only those that really free some. To free disk space
nothing younger than ``keep_all`` goes, and nothing at all if that would not be enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice, takewhile
from math import inf
from operator import attrgetter, le
from types import MappingProxyType
from typing import NamedTuple, ParamSpec, TypeVar

from ckptfs import interrupts
from ckptfs.history.checkpoints import LOST, Checkpoint
from ckptfs.history.hook_checkpoints import MARK
from ckptfs.interrupts import Steps
from ckptfs.model import MAIN_LINE

P = ParamSpec("P")
T = TypeVar("T")

_HOUR_NS = 3_600_000_000_000
_DAY_NS = 24 * _HOUR_NS

#: A checkpoint that holds less than this fraction of what is to be freed is light, and so is one
#: that holds a few edits of source files: neither fills a disk.
_LIGHT = 1000
LIGHT_BYTES = 64 << 10
#: How many times closer together precious ones may be.
_PRECIOUS = 20


class MinFree(NamedTuple):
    """How much of the disk must stay free: the smaller of a size and a share of the disk."""

    bytes: int | None = 512 << 20
    percent: float | None = 5

    def of(self, disk_bytes: int) -> int:
        """In bytes, of a disk of this size."""
        share = None if self.percent is None else int(disk_bytes * self.percent / 100)
        return min((size for size in (self.bytes, share) if size is not None), default=0)


@dataclass(frozen=True)
class RetentionPolicy:
    """``max_bytes`` of the store's file in use and ``min_free`` of the disk; 0 is no limit.
    Times are nanoseconds of age. ``moment_bytes`` is of what only moments hold, as far as that is
    known without counting all of it."""

    max_checkpoints: int = 100
    keep_all_ns: int = _HOUR_NS
    hourly_ns: int = _DAY_NS
    daily_ns: int = 30 * _DAY_NS
    max_bytes: int = 0
    min_free: MinFree = MinFree()  # noqa: RUF009 (immutable)
    moments_max: int = 1000
    moments_ns: int = _DAY_NS
    moment_bytes: int = 2 << 30


class Decision(NamedTuple):
    id: int
    keep: bool
    reason: str


class Figures(NamedTuple):
    """Sizes of a store and its disk: bytes of the store in use, bytes of the disk that a write
    could still get, and all of them. ``given_bytes`` of history were deleted for space in the last
    hour."""

    store_bytes: int = 0
    free_bytes: int | None = None
    disk_bytes: int = 0
    given_bytes: int = 0


class Shortage(NamedTuple):
    """The disk has ``free_bytes``, less than ``wanted_bytes``. What may expire for that holds
    ``expirable_bytes``. ``expiring`` counts the checkpoints that do: none if that is not enough."""

    free_bytes: int
    wanted_bytes: int
    expirable_bytes: int
    expiring: int


class Insight(NamedTuple):
    """Questions about a checkpoint, asked only where the answer matters.

    ``is_precious``: goes later than another that is missed as little. ``precedes_loss``: the state
    after it lacks something that it has. ``weigh``: about how many bytes only a moment holds, and
    ``holds_more`` whether that is more than the path it was taken for. ``frees``: how many bytes
    its deletion would free after those with the given numbers. The bytes of both are found in
    steps.
    """

    is_precious: Callable[[Checkpoint], bool] = lambda checkpoint: False
    precedes_loss: Callable[[Checkpoint], bool] = lambda checkpoint: False
    weigh: Callable[[Checkpoint], Steps[int]] = lambda item: _bytes_of(item)
    holds_more: Callable[[Checkpoint], bool] = lambda moment: False
    frees: Callable[[Checkpoint, Collection[int]], Steps[int]] = lambda item, gone: _bytes_of(item)


def _bytes_of(checkpoint: Checkpoint) -> Steps[int]:
    yield from ()
    return checkpoint.bytes


def judging(
    checkpoints: Sequence[Checkpoint],
    policy: RetentionPolicy,
    now_ns: int,
    figures: Figures = Figures(),  # noqa: B008 (immutable)
    *,
    undo: Collection[int] = (),
    held: Mapping[int, str] = MappingProxyType({}),
    lines: Collection[int] = (MAIN_LINE,),
    insight: Insight = Insight(),  # noqa: B008 (immutable)
    among: Sequence[Checkpoint] | None = None,
) -> Steps[Verdicts]:
    """What happens to each checkpoint, in steps. ``undo`` are those that `undo` and `redo` would
    restore, ``held`` others that stay, and why. Limits count for each line; ``lines`` are those
    that there are: of each the newest stays.
    ``among`` are all that lists show, oldest first, where not all are to be judged (`candidates`).

    Where a limit of bytes is exceeded, carry out the verdicts and judge again: what each deletion
    frees is an estimate, and may not have been enough.
    """
    verdicts = Verdicts(checkpoints, policy, now_ns, among)
    verdicts.hold_moments(held)
    yield from verdicts.thin_moments(insight.weigh, insight.holds_more)
    verdicts.protect(undo, held, lines)
    verdicts.thin()
    if interrupts.is_due():
        yield
    verdicts.limit_count(insight.is_precious)
    yield from verdicts.limit_bytes(figures, insight)
    return verdicts


def _in_one_step(function: Callable[P, Steps[T]]) -> Callable[P, T]:
    def in_one_step(*args: P.args, **kwargs: P.kwargs) -> T:
        return interrupts.at_once(function(*args, **kwargs))

    return in_one_step


#: `judging` for a caller that has nothing to give way to.
judge = _in_one_step(judging)


def is_short(figures: Figures, policy: RetentionPolicy) -> bool:
    """Whether a limit of bytes is exceeded."""
    return excess_bytes(figures, policy) > 0


def excess_bytes(figures: Figures, policy: RetentionPolicy) -> int:
    """By how much the limits of bytes are exceeded."""
    lacking = too_many = 0
    if figures.free_bytes is not None:
        lacking = policy.min_free.of(figures.disk_bytes) - figures.free_bytes
    if policy.max_bytes > 0:
        too_many = figures.store_bytes - policy.max_bytes
    return max(lacking, too_many, 0)


def candidates(
    expirable: Sequence[Checkpoint],
    among: Sequence[Checkpoint],
    lines: Collection[int] = (MAIN_LINE,),
) -> list[Checkpoint]:
    """Those to judge if only what expires is asked for: what may, and the first and the newest of
    each line that lists show."""
    ends = {item.id: item for item in (*among[:1], *among[-1:])}
    waiting = set(lines)
    for item in reversed(among) if len(waiting) > 1 else ():
        if item.fork in waiting:
            ends[item.id] = item
            waiting.discard(item.fork)
    judged = {**ends, **{item.id: item for item in expirable}}
    return sorted(judged.values(), key=attrgetter("id"))


def has_credible_times(oldest_first: Sequence[Checkpoint], now_ns: int) -> bool:
    times = list(map(attrgetter("time_ns"), oldest_first))
    return not times or (times[-1] <= now_ns and all(map(le, times, times[1:])))


def credible(oldest_first: list[Checkpoint], now_ns: int) -> list[Checkpoint]:
    """The checkpoints with times that never decrease and are not in the future: a clock that was
    wrong for a while must make checkpoints neither old at once nor young for ever. Those from the
    future keep their distances from each other."""
    if has_credible_times(oldest_first, now_ns):
        return oldest_first
    times = [item.time_ns for item in oldest_first]
    following, ahead = now_ns, 0
    for index in reversed(range(len(times))):
        ahead = max(ahead, times[index] - following) if times[index] > now_ns else 0
        following = times[index] = times[index] - ahead
    rising = accumulate(times, max)
    return [replace(item, time_ns=ns) for item, ns in zip(oldest_first, rising, strict=True)]


class Verdicts:
    """The verdicts so far: (keep, reason) by number. ``open`` are those that may expire and have
    not yet, newest first."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        policy: RetentionPolicy,
        now_ns: int,
        among: Sequence[Checkpoint] | None = None,
    ) -> None:
        ordered = sorted(checkpoints, key=attrgetter("id"))
        #: The times as recorded: they say which hour and day a checkpoint belongs to.
        self._recorded_ns = {item.id: item.time_ns for item in ordered}
        newest_first = credible(ordered, now_ns)[::-1]
        self._all = [item for item in newest_first if not item.is_moment]
        #: Those between which a checkpoint stands, newest first.
        self._among = self._all if among is None else among[::-1]
        #: The moments that have not expired yet, newest first.
        self._moments = [item for item in newest_first if item.is_moment]
        self._policy = policy
        self._now_ns = now_ns
        self.found: dict[int, tuple[bool, str]] = {}
        self.open: list[Checkpoint] = []
        #: The first of all, if it may expire and stays: the state before the work began.
        self._first: Checkpoint | None = None
        #: How many stay because of what they are, and count against no limit.
        self._protected: set[int] = set()
        #: Those that become moments.
        self.demoted: list[int] = []
        #: What the disk lacks, if it does.
        self.shortage: Shortage | None = None

    def all(self) -> list[Decision]:
        """The decision on each checkpoint, newest first."""
        return [Decision(number, *self.found[number]) for number in sorted(self.found)[::-1]]

    def expired(self) -> list[Decision]:
        """The same for those that expire: usually none among very many."""
        gone = (number for number, (keep, _) in self.found.items() if not keep)
        return [Decision(number, *self.found[number]) for number in sorted(gone, reverse=True)]

    def hold_moments(self, held: Mapping[int, str]) -> None:
        """These stay, and count against no limit."""
        self.found.update(
            (item.id, (True, held[item.id])) for item in self._moments if item.id in held
        )
        self._moments = [item for item in self._moments if item.id not in held]

    def thin_moments(
        self, weigh: Callable[[Checkpoint], Steps[int]], holds_more: Callable[[Checkpoint], bool]
    ) -> Steps[None]:
        """Moments expire by age; beyond their number and bytes those go that are missed least."""
        policy = self._policy
        stay = f"a moment younger than {_age(policy.moments_ns)}"
        old = f"a moment older than {_age(policy.moments_ns)}"
        for item in self._moments:
            young = self._now_ns - item.time_ns <= policy.moments_ns
            self.found[item.id] = (young, stay if young else old)
        self._drop_expired_moments()
        too_many = len(self._moments) > policy.moments_max
        crowd = Crowd(self._moments if too_many else (), self._now_ns, holds_more)
        while len(crowd) > policy.moments_max:
            reason = f"a moment, and more than {policy.moments_max:,} of them"
            self.found[self._moments[crowd.thin()].id] = (False, reason)
        self._drop_expired_moments()
        if 0 < policy.moment_bytes < sum(item.bytes for item in self._moments):
            yield from self._thin_heavy_moments(weigh)

    def _thin_heavy_moments(self, weigh: Callable[[Checkpoint], Steps[int]]) -> Steps[None]:
        """The heaviest go first, and before them those whose path has a newer moment. Light ones
        stay: they would be missed and free no space."""
        limit = self._policy.moment_bytes
        weights = {}
        for item in self._moments:
            weights[item.id] = yield from weigh(item)
        total = sum(weights.values())
        heavy = [item for item in self._moments if weights[item.id] > (total - limit) // _LIGHT]
        newest = {item.metadata.get(LOST, ""): item.id for item in reversed(self._moments)}

        def order(item: Checkpoint) -> tuple[bool, int]:
            return newest[item.metadata.get(LOST, "")] == item.id, -weights[item.id]

        for item in sorted(heavy, key=order):
            if total <= limit:
                break
            total -= weights[item.id]
            self.found[item.id] = (False, f"a moment, and they hold more than {limit:,} bytes")
        self._drop_expired_moments()

    def _drop_expired_moments(self) -> None:
        self._moments = [item for item in self._moments if self.found[item.id][0]]

    def protect(
        self, undo: Collection[int], held: Mapping[int, str], lines: Collection[int]
    ) -> None:
        waiting = set(lines)
        for checkpoint in self._all:
            reason = checkpoint.protection or held.get(checkpoint.id, "")
            if reason:
                self._protected.add(checkpoint.id)
            if not reason and checkpoint.id in undo:
                reason = "undo goes there"
            if not reason and (checkpoint is self._all[0] or checkpoint.fork in waiting):
                reason = "the newest"
            waiting.discard(checkpoint.fork)
            if reason:
                self.found[checkpoint.id] = (True, reason)
            else:
                self.open.append(checkpoint)
        self._keep_first()

    def _keep_first(self) -> None:
        """Keep the first of all besides the newest, unless the list has room for one only."""
        if not self.open or self.open[-1] is not self._all[-1]:
            return
        age_ns = self._now_ns - self.open[-1].time_ns
        if self._policy.max_checkpoints > 1 and age_ns <= self._policy.daily_ns:
            self._first = self.open.pop()
            self.found[self._first.id] = (True, "the first of all")

    def thin(self) -> None:
        """Only the newest of each hour, then of each day, stays; one that a program asked for is
        preferred. Hours and days are those of the clock, so that the next run keeps the same
        one."""
        seen: set[tuple[int, int, int]] = set()
        gone: set[int] = set()
        for checkpoint in sorted(self.open, key=_is_unmarked):
            keep, reason, span_ns = self._by_age(checkpoint)
            slot = None
            if span_ns:
                slot = checkpoint.fork, span_ns, self._recorded_ns[checkpoint.id] // span_ns
            if slot in seen:
                keep, reason = False, f"a newer or marked one of that {_span(span_ns)} stays"
            if slot is not None:
                seen.add(slot)
            if keep:
                self.found[checkpoint.id] = (True, reason)
            else:
                gone.add(checkpoint.id)
                self._let_go(checkpoint, reason)
        self.open = [checkpoint for checkpoint in self.open if checkpoint.id not in gone]

    def _by_age(self, checkpoint: Checkpoint) -> tuple[bool, str, int]:
        policy, age_ns = self._policy, self._now_ns - checkpoint.time_ns
        newest = "the newest" if _is_unmarked(checkpoint) else "the newest mark"
        if age_ns <= policy.keep_all_ns:
            return True, f"younger than {_age(policy.keep_all_ns)}", 0
        if age_ns <= policy.hourly_ns:
            return True, f"{newest} of its hour", _HOUR_NS
        if age_ns <= policy.daily_ns:
            return True, f"{newest} of its day", _DAY_NS
        return False, f"older than {_age(policy.daily_ns)}", 0

    def limit_count(self, is_precious: Callable[[Checkpoint], bool]) -> None:
        """The oldest of a line go first, unless a busy hour would push out all that is older: then
        its own are thinned, while it has more than half of the places. Protected ones take no
        place."""
        by_line: dict[int, list[Checkpoint]] = {}
        for item in self.open:
            by_line.setdefault(item.fork, []).append(item)
        counts = Counter(item.fork for item in self._taking_places())
        for line, mine in by_line.items():
            self._limit_line(mine, counts[line], is_precious)
        left = {item.id for mine in by_line.values() for item in mine}
        self.open = [item for item in self.open if item.id in left]

    def _taking_places(self) -> Iterator[Checkpoint]:
        free = self._protected.union(self.demoted)
        return (item for item in self._all if self.found[item.id][0] and item.id not in free)

    def _limit_line(
        self, mine: list[Checkpoint], kept: int, is_precious: Callable[[Checkpoint], bool]
    ) -> None:
        """Let go of those of one line that are too many, and take them out of the list."""
        excess = min(kept - self._policy.max_checkpoints, len(mine))
        reason = f"more than {self._policy.max_checkpoints:,} checkpoints"
        if excess <= 0:
            return
        young = list(takewhile(self.is_young, mine))
        crowded = len(young) - max(self._policy.max_checkpoints // 2, 1)
        closest = self._closest(young, is_precious) if crowded > 0 else iter(())
        thinned = {item.id: item for item in islice(closest, max(0, min(excess, crowded)))}
        for item in thinned.values():
            self._let_go(item, reason)
        mine[:] = [item for item in mine if item.id not in thinned]
        for _ in range(excess - len(thinned)):
            self._let_go(mine.pop(), reason)

    def _closest(
        self, young: list[Checkpoint], is_precious: Callable[[Checkpoint], bool]
    ) -> Iterator[Checkpoint]:
        """The young ones, that first which is missed least: whose neighbours are closest together
        for its age. So checkpoints are further apart the older they are, and the very first
        stays."""
        gone = set(self.demoted)
        gone.update(number for number, (keep, _) in self.found.items() if not keep)
        row = _Row(one for one in self._among if one.id not in gone)
        by_id = {item.id: item for item in young}
        precious = {item.id for item in young if is_precious(item)}

        def apart(number: int) -> float:
            age_ns = max(self._now_ns - by_id[number].time_ns, 1)
            worth = _PRECIOUS if number in precious else 1
            return worth * row.gap_ns(number) / age_ns

        heap = [(apart(number), number) for number in by_id]
        heapify(heap)
        while heap:
            worth, number = heappop(heap)
            if number not in by_id or worth != apart(number):
                continue  # it went, or a neighbour did, and it is in the heap again
            neighbours = row.remove(number)
            yield by_id.pop(number)
            for other in by_id.keys() & neighbours:
                heappush(heap, (apart(other), other))

    def is_young(self, checkpoint: Checkpoint) -> bool:
        """Whether it is of the age at which all stay."""
        return checkpoint.time_ns >= self._now_ns - self._policy.keep_all_ns

    def limit_bytes(self, figures: Figures, insight: Insight) -> Steps[None]:
        """A limit on the store is kept as far as possible, at any age."""
        policy = self._policy
        wanted = policy.min_free.of(figures.disk_bytes)
        if 0 < policy.max_bytes < figures.store_bytes:
            over = figures.store_bytes - policy.max_bytes
            chosen = yield from _choosing(self._expendable(insight), over, insight.frees)
            self._expire(chosen, f"the store has more than {policy.max_bytes:,} bytes")
        elif figures.free_bytes is not None and figures.free_bytes < wanted:
            yield from self._make_room(figures.free_bytes, wanted, figures.given_bytes, insight)

    def _make_room(self, free: int, wanted: int, given: int, insight: Insight) -> Steps[None]:
        """As much expires as the disk lacks, or nothing if that is not available: space that others
        fill is not won back by deleting history. Nor may they get all of it bit by bit."""
        old = [item for item in self._expendable(insight) if not self.is_young(item)]
        chosen = yield from _choosing(old, wanted - free, insight.frees)
        found = sum(chosen.values())
        expires = found >= wanted - free and given < wanted
        self.shortage = Shortage(free, wanted, found, len(chosen) if expires else 0)
        if expires:
            self._expire(chosen, f"the disk has less than {wanted:,} bytes free")

    def _expire(self, numbers: Iterable[int], reason: str) -> None:
        self.found.update(dict.fromkeys(numbers, (False, reason)))

    def _expendable(self, insight: Insight) -> list[Checkpoint]:
        """What may go to free space, in this order: moments whose path has a newer one, other
        moments, checkpoints, each the oldest first, and last the very first. The newest state
        before a deletion stays."""
        stay = {number for number, (keep, _) in self.found.items() if keep}
        shown = [item for item in self._all if item.id in stay]
        both = sorted((*self._moments, *shown), key=attrgetter("id"), reverse=True)
        spared = next(filter(insight.precedes_loss, both), None)
        newest = {_lost(item): item for item in reversed(self._moments)}
        moments = sorted(self._moments, key=lambda item: (newest[_lost(item)] is item, item.id))
        first = () if self._first is None else (self._first,)
        order = (*moments, *reversed(self.open), *first)
        return [item for item in order if item is not spared]

    def _let_go(self, checkpoint: Checkpoint, reason: str) -> None:
        """Drop it from the list; it stays as a moment while it is young enough to be one."""
        policy = self._policy
        if policy.moments_max and self._now_ns - checkpoint.time_ns <= policy.moments_ns:
            self.demoted.append(checkpoint.id)
            self.found[checkpoint.id] = (True, f"as a moment: {reason}")
        else:
            self.found[checkpoint.id] = (False, reason)


class _Row:
    """Checkpoints, newest first, that go one by one, and how far apart the neighbours of each
    are."""

    def __init__(self, newest_first: Iterable[Checkpoint]) -> None:
        items = list(newest_first)
        numbers = [item.id for item in items]
        self._times = {item.id: item.time_ns for item in items}
        self._newer: dict[int, int | None] = dict(zip(numbers, [None, *numbers], strict=False))
        self._older: dict[int, int | None] = dict(zip(numbers, [*numbers[1:], None], strict=True))

    def gap_ns(self, number: int) -> float:
        newer, older = self._newer[number], self._older[number]
        if newer is None or older is None:
            return inf
        return self._times[newer] - self._times[older]

    def remove(self, number: int) -> set[int]:
        """Take one out; returns those that were its neighbours."""
        newer, older = self._newer[number], self._older[number]
        if newer is not None:
            self._older[newer] = older
        if older is not None:
            self._newer[older] = newer
        return {each for each in (newer, older) if each is not None}


def _lost(moment: Checkpoint) -> str | int:
    """The path that a moment was taken for; its own number for one that was a checkpoint."""
    return moment.metadata.get(LOST) or moment.id


def _choosing(
    order: Iterable[Checkpoint],
    short: int,
    frees: Callable[[Checkpoint, Collection[int]], Steps[int]],
) -> Steps[dict[int, int]]:
    """As many of these as free ``short`` bytes, and what each frees. Light ones stay: they would be
    missed and free no space."""
    chosen: dict[int, int] = {}
    total = 0
    for item in order:
        if total >= short:
            break
        given = yield from frees(item, chosen)
        if given > max(short // _LIGHT, LIGHT_BYTES):
            chosen[item.id] = given
            total += given
    return chosen


def _is_unmarked(checkpoint: Checkpoint) -> bool:
    return checkpoint.kind != MARK


def _span(span_ns: int) -> str:
    return "hour" if span_ns == _HOUR_NS else "day"


def _age(age_ns: int) -> str:
    for unit_ns, unit in ((_DAY_NS, "day"), (_HOUR_NS, "hour"), (_HOUR_NS // 60, "minute")):
        if age_ns >= unit_ns:
            count = age_ns // unit_ns
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{age_ns // 1_000_000_000} seconds"


#: How many times further from its neighbours a moment counts that is needed more.
_NEEDED = 1e4


class Crowd:
    """Moments, newest first, that can go one by one: first those closest together for their age, so
    that they are further apart the older they are.

    One whose path has a newer moment goes long before others, so that a program that rewrites its
    own file all day pushes nothing else out; one that holds more than the path it was taken for
    goes last."""

    def __init__(
        self,
        moments: Sequence[Checkpoint],
        now_ns: int,
        holds_more: Callable[[Checkpoint], bool] = lambda moment: False,
    ) -> None:
        self._times = [item.time_ns for item in moments]
        self._now_ns = now_ns
        self._gone: set[int] = set()
        count = len(moments)
        self._newer, self._older = list(range(-1, count - 1)), [*range(1, count), -1]
        self._paths = [item.metadata.get(LOST, "") for item in moments]
        self._newest: dict[str, int] = {}
        for index in reversed(range(count)):
            self._newest[self._paths[index]] = index
        self._more = [holds_more(item) for item in moments]
        self._heap = [(self.worth(index), -index) for index in range(count)]
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._times) - len(self._gone)

    def worth(self, index: int) -> float:
        """How far apart its neighbours are for its age, times how much it is needed."""
        newer, older = self._newer[index], self._older[index]
        if newer < 0:
            return inf
        since_ns = self._times[older] if older >= 0 else self._times[index]
        apart = (self._times[newer] - since_ns) / max(self._now_ns - self._times[index], 1)
        is_last = self._newest[self._paths[index]] == index
        return (
            max(apart, 1e-9) * (_NEEDED if is_last else 1) * (_NEEDED if self._more[index] else 1)
        )

    def thin(self) -> int:
        """Remove the one that is missed least; returns its index in the sequence."""
        while True:
            worth, place = heappop(self._heap)
            index = -place
            if index not in self._gone and worth == self.worth(index):
                break
        self._gone.add(index)
        newer, older = self._newer[index], self._older[index]
        if newer >= 0:
            self._older[newer] = older
        if older >= 0:
            self._newer[older] = newer
        for neighbour in (newer, older):
            if neighbour >= 0:
                heappush(self._heap, (self.worth(neighbour), -neighbour))
        return index
