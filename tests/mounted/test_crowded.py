"""A machine with more runnable processes than CPUs: the daemon goes to the client's CPU, before
others, and leaves it when other tasks have their turn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.crowd import crowd
from tests.support.mounting import Workspace, succeed
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.needs_mount,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is no other"),
]

#: Longer than the daemon spins for a request.
_PAUSE_S = 0.001
#: Longer than it goes before others without a request.
_CALM_S = 0.2


@pytest.fixture(name="crowd")
def crowded() -> Iterator[None]:
    with crowd():
        yield


@pytest.fixture
def work(make_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("CKPTFS_SERVER", "on")
    return make_workspace("--auto", "off")


def serving(work: Workspace) -> int:
    """The thread that serves."""
    assert work.pid is not None
    return work.pid


def cpus(work: Workspace) -> set[int]:
    """Those that it may run on."""
    return os.sched_getaffinity(serving(work))


def request_slowly(work: Workspace, number: int) -> None:
    (work.path / f"{number}").touch()
    time.sleep(_PAUSE_S)


def request_until(work: Workspace, true: Callable[[], object], what: str) -> None:
    numbers = iter(range(10**9))

    def asked() -> object:
        request_slowly(work, next(numbers))
        return true()

    wait_until(asked, what)


def session_niceness(pid: int) -> int | None:
    """None where the kernel does not weigh sessions."""
    file = Path(f"/proc/{pid}/autogroup")
    return int(file.read_text().split()[-1]) if file.exists() and file.read_text() else None


def niceness(work: Workspace) -> tuple[int, int | None]:
    pid = serving(work)
    return os.getpriority(os.PRIO_PROCESS, pid), session_niceness(pid)


def raised_from(ordinary: tuple[int, int | None]) -> tuple[int, int | None]:
    """What it becomes on a crowded machine. One that was started as a nice one stays so."""
    if os.geteuid() != 0 or ordinary[0] != 0:
        return ordinary
    return -10, None if ordinary[1] is None else -10


def make_nice(work: Workspace) -> int:
    chosen = min(niceness(work)[0] + 15, 19)
    os.setpriority(os.PRIO_PROCESS, serving(work), chosen)
    return chosen


def test_the_daemon_serves_on_the_clients_cpu_before_others(work: Workspace, crowd: None) -> None:
    mine = sorted(os.sched_getaffinity(0))[0]
    allowed = os.sched_getaffinity(0)
    ordinary = niceness(work)
    os.sched_setaffinity(0, {mine})
    try:
        request_until(work, lambda: cpus(work) == {mine}, "the daemon is on the client's CPU")
        assert niceness(work) == raised_from(ordinary)
    finally:
        os.sched_setaffinity(0, allowed)


def test_when_other_tasks_have_their_turn_it_is_as_it_was_until_the_next_requests(
    work: Workspace, crowd: None
) -> None:
    ordinary = niceness(work)
    request_until(work, lambda: len(cpus(work)) == 1, "the daemon is bound to a CPU")
    # A verb that comes after a pause finds it as it was, unless a program has asked meanwhile.
    wait_until(
        lambda: (
            work.status() and cpus(work) == os.sched_getaffinity(0) and niceness(work) == ordinary
        ),
        "the daemon is as it was",
    )
    raised = raised_from(ordinary)
    request_until(work, lambda: niceness(work) == raised, "the daemon goes before others again")


def test_the_setting_leaves_the_niceness_as_it_is(work: Workspace, crowd: None) -> None:
    succeed(work.cli("config", "-w", work.path, "serve.priority", "off"))
    work.remount()
    ordinary = niceness(work)
    request_until(work, lambda: len(cpus(work)) == 1, "the daemon is bound to a CPU")
    assert niceness(work) == ordinary


def test_a_niceness_that_the_user_gives_it_stays(work: Workspace, crowd: None) -> None:
    chosen = make_nice(work)
    request_until(work, lambda: len(cpus(work)) == 1, "the daemon is bound to a CPU")
    assert niceness(work)[0] == chosen


def test_a_niceness_that_the_user_gives_it_meanwhile_stays(work: Workspace, crowd: None) -> None:
    request_until(work, lambda: len(cpus(work)) == 1, "the daemon is bound to a CPU")
    chosen = make_nice(work)
    time.sleep(_CALM_S)
    assert work.status()
    assert niceness(work)[0] == chosen
