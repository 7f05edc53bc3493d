"""Other ends than a kill, in the middle of a load: a signal, an unmount from outside; and a clock
that is set back."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from tests.crash.clock import Clock
from tests.crash.harness import Trial
from tests.support.mounting import HAVE_FUSE, Workspace, is_mounted, scratch, succeed
from tests.support.trees import facts
from tests.support.waiting import wait_for_exit

pytestmark = [pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"), pytest.mark.timeout(0)]

ROUNDS = 4
DAY = 24 * 3600


def _let_go(workspace: Workspace) -> int:
    """The daemon's process, which is about to end."""
    assert workspace.pid is not None
    pid, workspace.pid = workspace.pid, None
    return pid


def test_sigterm_loses_nothing_that_was_closed(workspace: Workspace) -> None:
    trial, rng = Trial(workspace, 5), random.Random(5)

    def end() -> None:
        pid = _let_go(workspace)
        os.kill(pid, signal.SIGTERM)
        wait_for_exit(pid)

    for _ in range(ROUNDS):
        trial.load(end, rng.random())
        assert not is_mounted(workspace.path)
        below = {actor.name: facts(workspace.path / actor.name) for actor in trial.actors}
        trial.ask(in_order=True)
        # What it left behind is an ordinary directory with the same content.
        assert below == {actor.name: facts(workspace.path / actor.name) for actor in trial.actors}
    trial.close()


@pytest.mark.skipif(not shutil.which("fusermount3"), reason="fusermount3 is not installed")
def test_a_lazy_unmount_lets_everyone_finish(workspace: Workspace) -> None:
    """Whoever has the workspace open goes on undisturbed; with the last one it ends in order."""
    trial, rng = Trial(workspace, 6), random.Random(6)

    def end() -> None:
        succeed_quietly(["fusermount3", "-u", "-z", str(workspace.path)])
        assert not is_mounted(workspace.path)
        time.sleep(0.3)

    for _ in range(ROUNDS):
        trial.load(end, rng.random() * 0.5, errors=False)
        wait_for_exit(_let_go(workspace))
        trial.ask(in_order=True)
    trial.close()


def succeed_quietly(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    """Before a start and in the middle of a load; history keeps its order and loses nothing."""
    with scratch() as base:
        clock = Clock(base)
        workspace = Workspace(base, "--no-write-back")
        workspace.env.update(clock.env)
        workspace.mount()
        try:
            trial = Trial(workspace, 7)
            for shift in (0, -DAY, 5 * DAY, -400 * DAY):
                trial.load(lambda to=shift: clock.set(to), 0.3, errors=False)
                trial.reopen()
                trial.load(workspace.kill, 0.5)
                trial.ask()
            trial.close()
            _ask_order(workspace)
        finally:
            workspace.finish()


def _ask_order(workspace: Workspace) -> None:
    listed = json.loads(succeed(workspace.cli("list", "-w", workspace.path, "--json")).stdout)
    numbers = [item["id"] for item in listed["checkpoints"]]
    assert numbers == sorted(numbers, reverse=numbers[0] > numbers[-1])
    times = [item["time_ns"] for item in listed["checkpoints"]]
    assert times != sorted(times) and times != sorted(times, reverse=True)
    succeed(workspace.cli("diff", "-w", workspace.path, "@-1"))
    succeed(workspace.cli("prune", "-w", workspace.path, "--dry-run"))
