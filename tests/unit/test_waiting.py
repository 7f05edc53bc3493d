"""Where the compiled server waits on a crowded machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckptfs.fuse.server.interface import ServerModule
from ckptfs.model import Inode
from tests.support.crowd import crowd
from tests.support.kernel import LOOKUP, Kernel, Owner

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is no other"
)

_SPIN_NS = 50_000
#: Longer than it is before the server looks again where the client is.
_LOOK_S = 0.02
#: More than the requests of a test take.
_TURN_NS = 200_000_000
#: So many turns without a request, and the server looks whether the machine is crowded.
_IN_VAIN = 8


class Waking(Owner):
    """A lookup wakes another task, as a request of a verb does: of that the server is told."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes: list[Callable[[], object]] = []

    def lookup(self, parent: int, name: bytes) -> Inode:
        time.sleep(_LOOK_S)
        if self.wakes:
            self.wakes.pop()()
        return super().lookup(parent, name)


@pytest.fixture
def served(module: ServerModule) -> Iterator[Callable[[Callable[[Kernel], None]], None]]:
    """Runs something with a server, in a thread of its own, on a crowded machine."""
    kernel = Kernel(module, Waking())

    def run(scenario: Callable[[Kernel], None]) -> None:
        with crowd(), ThreadPoolExecutor(1) as thread:
            thread.submit(scenario, kernel).result()

    yield run
    kernel.close()


def ask(kernel: Kernel, count: int, spin_ns: int) -> None:
    """By this very thread, whose CPU is known."""
    for _ in range(count):
        kernel.send(LOOKUP, b"5\0", pid=threading.get_native_id())
    serve(kernel, spin_ns)
    for _ in range(count):
        assert kernel.error() == 0


def serve(kernel: Kernel, spin_ns: int, turn_ns: int = _TURN_NS) -> None:
    kernel.server.serve(kernel.theirs, spin_ns, time.monotonic_ns() + turn_ns, -1)


def become_bound(kernel: Kernel) -> None:
    for _ in range(_IN_VAIN):
        serve(kernel, _SPIN_NS, 10 * _SPIN_NS)
    ask(kernel, 1, _SPIN_NS)
    assert len(os.sched_getaffinity(0)) == 1


def test_it_goes_to_no_cpu_while_other_tasks_are_about_to_run(
    served: Callable[[Callable[[Kernel], None]], None],
) -> None:
    """What they start would stay there."""

    def scenario(kernel: Kernel) -> None:
        allowed = os.sched_getaffinity(0)
        become_bound(kernel)
        kernel.server.leave_client()
        assert os.sched_getaffinity(0) == allowed
        time.sleep(_LOOK_S)
        ask(kernel, 1, 0)
        assert os.sched_getaffinity(0) == allowed

    served(scenario)


def test_a_task_that_a_request_wakes_finds_it_on_no_cpu_of_a_client(
    served: Callable[[Callable[[Kernel], None]], None],
) -> None:
    def scenario(kernel: Kernel) -> None:
        allowed = os.sched_getaffinity(0)
        become_bound(kernel)
        assert isinstance(kernel.owner, Waking)
        kernel.owner.wakes.append(kernel.server.leave_client)
        ask(kernel, 3, _SPIN_NS)
        assert os.sched_getaffinity(0) == allowed

    served(scenario)
