"""The request loop: pyfuse3's session loop without three quarters of its cost.

pyfuse3 takes a trio lock and arms epoll through trio for every request, about 40 µs each, several
times what most requests need. It finds trio through a module attribute, so that another event loop
can stand in (its asyncio support does that). Here a stand-in answers the two calls that matter:

* ``Lock``, taken before every read, costs nothing while nobody else holds it;
* ``wait_readable`` looks for the next request itself: it spins for some microseconds, since a
  client that got its answer mostly asks again at once, and waking a sleeping process costs both
  sides more than that; then it waits in poll(2). Every two milliseconds, and when none came for
  that long, it goes through trio. When idle, the daemon sleeps in trio's epoll and uses no CPU.

Where the compiled front is at hand, it answers most requests while it looks for the next, and
pyfuse3 is left with what remains.

Everything else is trio's own. The price: other tasks of the process get their turn only every two
milliseconds under load. docs/design/fuse.md has the figures.
"""

from __future__ import annotations

import select
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from time import monotonic_ns
from types import ModuleType

import pyfuse3
import trio

from ckptfs.fuse.latency import ROW, Latency

#: How long to look for the next request without sleeping.
SPIN_NS = 50_000
#: Other tasks get their turn at least this often; until then requests are waited for in poll(2).
YIELD_NS = 2_000_000


class _Ready:
    """What to await where there is nothing to wait for; cheaper than a coroutine."""

    _over = iter(())

    def __await__(self) -> Generator[None, None, None]:
        return self._over  # type: ignore[return-value]


_READY = _Ready()


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

    def __aenter__(self) -> Awaitable[None]:
        if self._held:
            return self._acquire()
        self._held = True
        return _READY

    async def _acquire(self) -> None:
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

    def __aexit__(self, *_: object) -> Awaitable[None]:
        self._held = False
        if self._waiters and not self._woken:
            self._woken = True
            trio.lowlevel.reschedule(self._waiters.popleft())
        return _READY


class RequestWaiter:
    """Waits for the FUSE descriptor, and lets the front, if there is one, answer what it can."""

    def __init__(
        self,
        turn: Callable[[], None],
        front: ModuleType | None = None,
        latency: Latency | None = None,
    ) -> None:
        self._passed = 0
        self._turn = turn
        self._front = front
        self._latency = latency
        self._poller = select.poll()
        self._poll = self._poller.poll
        self._fd = -1
        self._turn_ns = 0

    def requests(self) -> int:
        """How often there was something to read."""
        return self._passed + (self._front.count() if self._front else 0)

    def wait_readable(self, fd: int) -> Awaitable[None]:
        """Return when a request is there for pyfuse3 to take."""
        if fd != self._fd:
            self._watch(fd)
        if self._is_left(fd):
            return _READY
        return self._wait(fd)

    def _is_left(self, fd: int) -> bool:
        """Whether a request for pyfuse3 comes before it is somebody else's turn."""
        front = self._front
        if front is not None and front.hooked():
            outcome: int = front.serve(fd, SPIN_NS, self._turn_ns + YIELD_NS)
            return bool(outcome == front.LEFT)
        now = monotonic_ns()
        turn_ns = self._turn_ns + YIELD_NS
        if now > turn_ns or not self._look(now + SPIN_NS, turn_ns):
            return False
        self._passed += 1
        return True

    def _look(self, deadline: int, turn_ns: int) -> bool:
        poll = self._poll
        while not poll(0):
            now = monotonic_ns()
            if now > deadline:
                return bool(poll(max(turn_ns - now, 0) // 1_000_000))
        return True

    async def _wait(self, fd: int) -> None:
        """Give other tasks their turn again and again, until a request is there."""
        left = False
        quiet = False
        while not left:
            self._turn()
            if quiet:
                if self._latency is not None:
                    self._latency.relax()
                await trio.lowlevel.wait_readable(fd)
            else:
                await trio.lowlevel.checkpoint()
            # The descriptor blocks, and a read that finds nothing would hold the interpreter:
            # after trio's word it is looked at again.
            self._turn_ns = monotonic_ns()
            before = self.requests()
            left = self._is_left(fd)
            came = self.requests() - before
            quiet = not came
            if came >= ROW and self._latency is not None:
                self._latency.hold()

    def _watch(self, fd: int) -> None:
        if self._fd >= 0:
            self._poller.unregister(self._fd)
        self._poller.register(fd, select.POLLIN)
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


def install(
    turn: Callable[[], None], front: ModuleType | None, latency: Latency
) -> Callable[[], int]:
    """Put the stand-in into pyfuse3; return a function that tells how many requests came.

    ``turn`` is called whenever the requests pause, and every two milliseconds when they do not.
    """
    waiter = RequestWaiter(turn, front, latency)
    pyfuse3.trio = stand_in(waiter)  # type: ignore[attr-defined]
    _installed.append(waiter)
    return waiter.requests


#: pyfuse3 serves one mount in a process, so there is one waiter that counts.
_installed: list[RequestWaiter] = []


def requests() -> int:
    """How many requests came so far; whoever works when it is quiet looks here."""
    return _installed[-1].requests() if _installed else 0
