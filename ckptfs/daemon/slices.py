"""Slices: how a verb that changes much, and housekeeping, give way to requests.

The work is a generator (`ckptfs.interrupts.Steps`): where it yields, everything is whole. A slice
lasts 5 ms at most, and half a millisecond if a request waits. While programs are at work in the
workspace, each slice is followed by a rest of twice its length, in which only requests are served:
so programs have two thirds of the time. A commit cannot be divided, and mostly one request waits
for it; after one the rest is thirty times as long, so that it is one in more than a hundred. Work
that only reads has no such steps, and rests for two milliseconds.

One work runs at a time; the next one waits for its end, or until it waits itself for something else
(a process, a disk). All other verbs (saves, hooks, restores, reads) and all requests are served
between two slices.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import TypeVar

import trio

from ckptfs import interrupts
from ckptfs.fuse import loop
from ckptfs.interrupts import Ended, Steps

T = TypeVar("T")

#: How long a slice may last, in nanoseconds: at most, and where a request waits.
_MOST_NS = 5_000_000
_LEAST_NS = 500_000
#: How often to look whether one does: a look takes as long as a small step.
_LOOK_NS = 200_000
#: How long requests have the loop for themselves after a slice, and after one that committed: as a
#: multiple of its length, at least and at most.
_REST_TIMES = 2
_REST_COMMIT_TIMES = 30
_REST_LEAST_S = 0.002
_REST_MOST_S = 0.3
#: Programs are at work in the workspace if a request came no longer ago.
_ACTIVE_S = 0.1
#: In so many turns of the loop a request that waits is read for sure.
_TURNS = 3


async def _nothing() -> None:
    pass


class Slices:
    """Runs work in slices, one work at a time."""

    def __init__(
        self,
        commits: Callable[[], int] = lambda: 0,
        *,
        requests: Callable[[], int] = loop.requests,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``commits`` counts the commits of the store, ``requests`` what programs asked for."""
        self._commits, self._requests, self._clock = commits, requests, clock
        self._turn = trio.Lock()
        #: How many requests there were, and when there was a new one.
        self._seen = 0
        self._active_at = -inf

    async def idle(self) -> None:
        """Return when no work is under way."""
        async with self._turn:
            pass

    async def run(
        self,
        steps: Steps[T],
        gone: Callable[[], bool] | None = None,
        *,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        between: Callable[[], Awaitable[None]] = _nothing,
        in_turn: bool = True,
    ) -> T:
        """Run a work to its end; its result. What it does before its first yield is done at once,
        even while another work is under way. ``gone`` tells whether its client has hung up;
        ``around`` is entered for each slice, ``between`` is awaited after each. Work that only
        reads, or changes no more than one step can, need not wait for its turn (``in_turn``)."""
        has_turn = False
        try:
            while True:
                begun, commits = self._clock(), self._commits()
                with around(), interrupts.watching(gone), interrupts.sliced(_budget()):
                    ended = interrupts.resume(steps, gone)
                if isinstance(ended, Ended):
                    result: T = ended.result
                    return result
                took = self._clock() - begun
                await between()
                times = _REST_TIMES if self._commits() == commits else _REST_COMMIT_TIMES
                await self._give_way(times * took if in_turn else 0)
                if ended and has_turn:
                    self._turn.release()
                    has_turn = False
                await trio.sleep(ended)
                if in_turn and not has_turn:
                    await self._turn.acquire()
                    has_turn = True
        finally:
            steps.close()
            if has_turn:
                self._turn.release()

    async def _give_way(self, rest_s: float) -> None:
        """Have the requests answered that came while a slice ran; and while programs are at work,
        those that follow in so many seconds."""
        for _ in range(_TURNS):
            await trio.lowlevel.checkpoint()
            if not loop.is_waiting():
                break
        if self._is_active():
            await trio.sleep(min(max(rest_s, _REST_LEAST_S), _REST_MOST_S))

    def _is_active(self) -> bool:
        """Whether programs are at work in the workspace."""
        seen, now = self._requests(), self._clock()
        if seen != self._seen:
            self._seen, self._active_at = seen, now
        return now - self._active_at < _ACTIVE_S


def _budget() -> Callable[[], bool]:
    """Tells whether the slice that begins now is used up."""
    began = time.monotonic_ns()
    look_at = began + _LEAST_NS

    def is_used_up() -> bool:
        nonlocal look_at
        now = time.monotonic_ns()
        if now < look_at:
            return False
        look_at = now + _LOOK_NS
        return now - began >= _MOST_NS or loop.is_waiting()

    return is_used_up


async def until_idle(idle_s: float, deadline: float = inf) -> bool:
    """Wait until no request has come for so long, or until trio's clock passes the deadline.
    Whether it was the first."""
    seen = -1
    while loop.requests() != seen and trio.current_time() < deadline:
        seen = loop.requests()
        await trio.sleep(idle_s)
    return loop.requests() == seen
