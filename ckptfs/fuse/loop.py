"""The request loop: pyfuse3's session loop without three quarters of its cost.

pyfuse3 takes a trio lock and arms epoll through trio for every request, about 40 µs each, several
times what most requests need. It finds trio through a module attribute, so that another event loop
can stand in (its asyncio support does that). Here a stand-in answers the two calls that matter:

* ``Lock``, taken before every read, costs nothing while nobody else holds it;
* ``wait_readable`` waits in poll(2) for the next request for up to a millisecond before it goes
  through trio. Under load the next request is there within that time; when idle, the daemon sleeps
  in trio's epoll and uses no CPU.

Everything else is trio's own. The price: other tasks of the process get their turn only every
millisecond under load.
"""

from __future__ import annotations

import select
import types
from collections import deque
from collections.abc import Callable
from time import monotonic_ns

import pyfuse3
import trio

#: How long to wait in poll(2), blocking the event loop, before going through trio.
POLL_MS = 1
#: Other tasks get their turn at least this often.
YIELD_NS = 1_000_000


class FreeLock:
    """A lock that does not visit the scheduler when it is free.

    It is not handed over: releasing it wakes one waiter, which takes it only if its last holder
    has not come back by the time the waiter runs. So one task serves request after request, and
    another takes over as soon as that one has to wait inside a request.
    """

    def __init__(self) -> None:
        self._held = False
        self._woken = False
        self._waiters: deque[trio.lowlevel.Task] = deque()

    async def __aenter__(self) -> None:
        while self._held:
            await self._wait()
        self._held = True

    async def _wait(self) -> None:
        task = trio.lowlevel.current_task()
        self._waiters.append(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            if task in self._waiters:
                self._waiters.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._woken = False

    async def __aexit__(self, *_: object) -> None:
        self._held = False
        if self._waiters and not self._woken:
            self._woken = True
            trio.lowlevel.reschedule(self._waiters.popleft())


class RequestWaiter:
    """Waits for the FUSE descriptor. ``requests`` counts how often there was something to read."""

    def __init__(self, turn: Callable[[], None]) -> None:
        self.requests = 0
        self._turn = turn
        self._poll = select.poll()
        self._fd = -1
        self._turn_ns = 0

    async def wait_readable(self, fd: int) -> None:
        """Return when a read from ``fd`` will not block."""
        if fd != self._fd:
            self._watch(fd)
        now = monotonic_ns()
        if now - self._turn_ns > YIELD_NS:
            self._turn()
            await trio.lowlevel.checkpoint()
            self._turn_ns = now
        timeout = POLL_MS
        while not self._poll.poll(timeout):
            # The descriptor blocks, and a read that finds nothing would hold the interpreter:
            # after trio's word look again.
            self._turn()
            await trio.lowlevel.wait_readable(fd)
            self._turn_ns = monotonic_ns()
            timeout = 0
        self.requests += 1

    def _watch(self, fd: int) -> None:
        if self._fd >= 0:
            self._poll.unregister(self._fd)
        self._poll.register(fd, select.POLLIN)
        self._fd = fd


def stand_in(waiter: RequestWaiter) -> types.SimpleNamespace:
    """What pyfuse3 takes for trio."""
    lowlevel = types.SimpleNamespace(
        current_task=trio.lowlevel.current_task,
        current_trio_token=trio.lowlevel.current_trio_token,
        notify_closing=trio.lowlevel.notify_closing,
        wait_readable=waiter.wait_readable,
    )
    return types.SimpleNamespace(
        lowlevel=lowlevel,
        Lock=FreeLock,
        open_nursery=trio.open_nursery,
        ClosedResourceError=trio.ClosedResourceError,
    )


def install(turn: Callable[[], None]) -> Callable[[], int]:
    """Put the stand-in into pyfuse3; return a function that tells how many requests came.

    ``turn`` is called whenever the requests pause, and every millisecond when they do not.
    """
    waiter = RequestWaiter(turn)
    pyfuse3.trio = stand_in(waiter)  # type: ignore[attr-defined]
    return lambda: waiter.requests
