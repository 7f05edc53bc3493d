"""The daemon is killed at random moments of a load; what was acknowledged is there afterwards."""

from __future__ import annotations

import random

import pytest

from tests.crash.harness import Trial
from tests.support.mounting import HAVE_FUSE, Workspace, scratch

pytestmark = [pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"), pytest.mark.timeout(0)]


def _rounds(count: int, seed: int) -> None:
    rng = random.Random(seed)
    with scratch() as base:
        workspace = Workspace(base, "--no-write-back")
        workspace.mount()
        try:
            trial = Trial(workspace, seed)
            for _ in range(count):
                trial.load(workspace.kill, rng.random() * rng.random() * 1.5)
                trial.ask()
            trial.close()
        finally:
            workspace.finish()


def test_killed_twenty_times() -> None:
    _rounds(20, 1)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 12))
def test_killed_two_hundred_times(seed: int) -> None:
    _rounds(20, seed)
