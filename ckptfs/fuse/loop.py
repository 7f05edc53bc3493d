"""The request loop: pyfuse3's session loop without three quarters of its cost.

pyfuse3 takes a trio lock and arms epoll through trio for every request, about 40 µs each, several
times what most requests need. It finds trio through a module attribute, so that another event loop
can stand in (its asyncio support does that). Here a stand-in answers the two calls that matter:

* ``Lock``, taken before every read, costs nothing while it is free;
* ``wait_readable`` looks for the next request itself: it spins for some microseconds, since a
  client that got its reply mostly asks again at once, and waking a sleeping process costs both
  sides more than that; then it waits in poll(2), for a request or for what other tasks wait for.
  Every two milliseconds, and when none came for that long, it goes through trio. When idle, the
  daemon sleeps in trio's epoll and uses no CPU.

Where the compiled server is at hand, it answers most requests while it looks for the next, and
pyfuse3 is left with what remains.

Everything else is trio's own. The price: while requests come without a pause, other tasks of the
process get their turn only every two milliseconds. docs/design/fuse.md has the figures.
"""

from __future__ import annotations

import select
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from time import monotonic_ns

import pyfuse3
import trio

from ckptfs.fuse.latency import ROW, Latency
from ckptfs.fuse.server.interface import CompiledServer

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


#: Tasks that wait for the lock, for nothing else: to wake one is no work.
_parked: set[trio.lowlevel.Task] = set()


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
        _parked.add(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            if task in self._waiters:
                self._waiters.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            _parked.discard(task)
        self._woken = False

    def __aexit__(self, *_: object) -> Awaitable[None]:
        self._held = False
        if self._waiters and not self._woken:
            self._woken = True
            trio.lowlevel.reschedule(self._waiters.popleft())
        return _READY


class _Others(trio.abc.Instrument):
    """Notes whether any task but the one that waits for requests may be about to run. trio can tell
    who is scheduled, but not who of those that have a turn together comes next: so one that was
    scheduled has run for sure when the waiting task had two turns more.

    ``leave_client`` is called before one runs: the thread may be bound to the CPU of a client, and
    what another task starts would stay there."""

    def __init__(self, leave_client: Callable[[], object]) -> None:
        self._leave_client = leave_client
        self._waiting = trio.lowlevel.current_task()
        self._turns = 0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        if task is not self._waiting and task not in _parked:
            self._turns = 3
            self._leave_client()

    def count_turn(self, waiting: trio.lowlevel.Task) -> None:
        """The waiting task has another turn."""
        self._waiting = waiting
        self._turns -= self._turns > 0

    @property
    def at_work(self) -> bool:
        """Then requests are answered, but not waited for."""
        return self._turns > 0


def _nothing() -> None:
    """Where no server binds the thread."""


def _trios_own() -> int:
    """The descriptor that is readable when another task has work, or -1. trio has no word
    for it; without it, other tasks wait for their turn."""
    try:
        return int(trio._core._run.GLOBAL_RUN_CONTEXT.runner.io_manager._epoll.fileno())
    except AttributeError:
        return -1


class RequestWaiter:
    """Waits for the FUSE descriptor, and lets the server, if there is one, answer what it can."""

    def __init__(
        self,
        turn: Callable[[], None],
        server: CompiledServer | None = None,
        latency: Latency | None = None,
    ) -> None:
        self._passed = 0
        #: How many requests had come at the end of the last turn.
        self._seen = 0
        self._turn = turn
        self._server = server
        self._latency = latency
        #: The descriptor of the requests; the same, and the one on which other tasks are called.
        self._requests = select.poll()
        self._poll = self._both = self._requests.poll
        self._fd = self._calls = -1
        self._turn_ns = 0
        self._others: _Others
        #: Readable while any mount has a request, once there is more than one.
        self._any: select.epoll | None = None
        #: Ends a sleep for the mounts that there were when it began.
        self._sleep = trio.CancelScope()
        #: Called when the mount of a companion has ended.
        self.ended: Callable[[], None] = lambda: None

    def requests(self) -> int:
        """How often there was something to read."""
        return self._passed + (self._server.requests() if self._server else 0)

    def is_waiting(self) -> bool:
        """Whether a request waits to be read."""
        return bool(self._poll(0))

    def wait_readable(self, fd: int) -> Awaitable[None]:
        """Return when a request is there for pyfuse3 to take."""
        if fd != self._fd:
            self._watch(fd)
        if self._is_left(fd):
            return _READY
        return self._wait(fd)

    def _is_left(self, fd: int) -> bool:
        """Whether a request for pyfuse3 comes before it is another task's turn."""
        server = self._server
        turn_ns = self._turn_ns + YIELD_NS
        spin_ns = 0 if self._others.at_work else SPIN_NS
        if server is not None and server.hooked():
            outcome: int = server.serve(fd, spin_ns, turn_ns, self._calls)
            if outcome == server.ENDED:
                self.ended()
            return bool(outcome == server.LEFT)
        now = monotonic_ns()
        if now > turn_ns or not (self._poll(0) or self._look(now + spin_ns, turn_ns)):
            return False
        self._passed += 1
        return True

    def _look(self, deadline: int, turn_ns: int) -> bool:
        """Spin for a request, then sleep until one comes or it is another task's turn."""
        poll = self._poll
        while not poll(0):
            now = monotonic_ns()
            if now > deadline:
                if not self._others.at_work and now < turn_ns:
                    self._both((turn_ns - now) / 1_000_000)  # rounded up to a millisecond
                return bool(poll(0))
        return True

    async def _wait(self, fd: int) -> None:
        """Give other tasks their turn again and again, until a request is there."""
        left = False
        quiet = False
        last_ns = monotonic_ns()
        task = trio.lowlevel.current_task()
        while not left:
            self._turn()
            if quiet:
                if self._latency is not None:
                    self._latency.relax()
                self._sleep = trio.CancelScope()
                with self._sleep:
                    await trio.lowlevel.wait_readable(self._any or fd)
            else:
                await trio.lowlevel.checkpoint()
            self._others.count_turn(task)
            # The descriptor blocks, and a read that finds nothing would hold the interpreter:
            # after trio's word it is looked at again.
            self._turn_ns = monotonic_ns()
            left = self._is_left(fd)
            now = monotonic_ns()
            came, self._seen = self.requests() - self._seen, self.requests()
            if came:
                last_ns = now
            quiet = now - last_ns >= YIELD_NS
            if came >= ROW and self._latency is not None:
                self._latency.hold()

    def wake(self) -> None:
        """Have the server look for requests now, also those that it keeps itself."""
        self._sleep.cancel()

    def follow(self, companions: int) -> None:
        """Wake up for this descriptor, too: it is readable while a companion has a request."""
        if self._any is None:
            self._any = select.epoll()
            self._any.register(self._fd, select.EPOLLIN)
            self._any.register(companions, select.EPOLLIN)
            self._requests.register(companions, select.POLLIN)
            self.wake()

    def _watch(self, fd: int) -> None:
        requests, both = select.poll(), select.poll()
        self._fd, self._calls = fd, _trios_own()
        requests.register(fd, select.POLLIN)
        both.register(fd, select.POLLIN)
        if self._calls >= 0:
            both.register(self._calls, select.POLLIN)
        self._requests = requests
        self._poll, self._both = requests.poll, both.poll
        self._others = _Others(self._server.leave_client if self._server else _nothing)
        trio.lowlevel.add_instrument(self._others)


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
    turn: Callable[[], None], server: CompiledServer | None, latency: Latency
) -> RequestWaiter:
    """Put the stand-in into pyfuse3; return what waits for requests.

    ``turn`` is called whenever the requests pause, and every two milliseconds when they do not.
    """
    waiter = RequestWaiter(turn, server, latency)
    pyfuse3.trio = stand_in(waiter)  # type: ignore[attr-defined]
    _installed.append(waiter)
    return waiter


#: pyfuse3 serves one mount in a process, so there is one waiter that counts.
_installed: list[RequestWaiter] = []


def requests() -> int:
    """How many requests came so far; housekeeping waits for a pause."""
    return _installed[-1].requests() if _installed else 0


def is_waiting() -> bool:
    """Whether a request waits while something else runs."""
    return bool(_installed) and _installed[-1].is_waiting()


def wake() -> None:
    """Have the server look for requests now."""
    if _installed:
        _installed[-1].wake()
