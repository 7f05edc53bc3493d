"""How long work in slices leaves the loop to programs."""

from __future__ import annotations

from itertools import count, pairwise

import trio
from trio.testing import MockClock

from ckptfs.daemon.slices import Slices
from ckptfs.interrupts import Steps

_SLICE_S = 0.004


class _Store:
    """A clock that slices set forward, and how many commits there were."""

    def __init__(self) -> None:
        self.now, self.commits = 0.0, 0

    def clock(self) -> float:
        return self.now

    def commit_count(self) -> int:
        return self.commits


def _rests(*committing: bool, are_programs_at_work: bool) -> list[float]:
    """The rest after each slice of a work, in seconds."""
    store, seen, begun = _Store(), count(1), list[float]()

    def work() -> Steps[None]:
        for commits in (*committing, False):
            begun.append(trio.current_time())
            store.now += _SLICE_S
            store.commits += commits
            yield

    requests = seen.__next__ if are_programs_at_work else lambda: 0

    async def run() -> None:
        await Slices(store.commit_count, requests=requests, clock=store.clock).run(work())

    store.now = 1.0
    trio.run(run, clock=MockClock(autojump_threshold=0))
    return [round(after - before, 6) for before, after in pairwise(begun)]


def test_programs_have_the_loop_for_longer_after_a_commit() -> None:
    """Nothing divides a commit, so few requests should meet one."""
    rests = _rests(False, True, False, are_programs_at_work=True)
    assert rests == [2 * _SLICE_S, 30 * _SLICE_S, 2 * _SLICE_S]


def test_nothing_rests_where_no_program_is_at_work() -> None:
    assert _rests(False, True, False, are_programs_at_work=False) == [0, 0, 0]
