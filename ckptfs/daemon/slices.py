"""Slices: how a verb that changes much, and housekeeping, give way to requests.

The work is a generator (`ckptfs.interrupts.Steps`): where it yields, everything is whole. A slice
lasts 5 ms at most, and half a millisecond if a request waits. Where requests came during a slice
they get the loop for the next two milliseconds: a program that creates file after file has four
fifths of the time, and one that asks now and then waits for half a millisecond, unless a single
step or a commit takes longer.

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
#: How long requests that came during a slice have the loop for themselves.
_REST_S = 0.002
#: In so many turns of the loop a request that waits is read for sure.
_TURNS = 3


async def _nothing() -> None:
    pass


class Slices:
    """Runs work in slices, one work at a time."""

    def __init__(self) -> None:
        self._turn = trio.Lock()

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
        reads need not wait for its turn (``in_turn``)."""
        has_turn = False
        try:
            while True:
                seen = loop.requests()
                with around(), interrupts.watching(gone), interrupts.sliced(_budget()):
                    ended = interrupts.resume(steps, gone)
                if isinstance(ended, Ended):
                    result: T = ended.result
                    return result
                await between()
                await _give_way(seen)
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


def _budget() -> Callable[[], bool]:
    """Tells whether the slice that begins now is used up."""
    began = time.monotonic_ns()

    def is_used_up() -> bool:
        passed = time.monotonic_ns() - began
        return passed >= _MOST_NS or (passed >= _LEAST_NS and loop.is_waiting())

    return is_used_up


async def _give_way(seen: int) -> None:
    """Have the requests answered that came while a slice ran, and those that follow them at
    once. ``seen`` is how many had come before it."""
    for _ in range(_TURNS):
        await trio.lowlevel.checkpoint()
        if not loop.is_waiting():
            break
    if loop.requests() != seen:
        await trio.sleep(_REST_S)


async def until_idle(idle_s: float, deadline: float = inf) -> None:
    """Wait until no request has come for so long, or until trio's clock passes the deadline."""
    seen = -1
    while loop.requests() != seen and trio.current_time() < deadline:
        seen = loop.requests()
        await trio.sleep(idle_s)
