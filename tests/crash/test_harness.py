"""The harness itself: a daemon that does not keep what it acknowledged is found out.

Sabotage is a `sitecustomize` that the daemon's Python loads at its start.
"""

from __future__ import annotations

import os
import random
import signal

import pytest

from tests.crash.harness import Trial
from tests.support.mounting import HAVE_FUSE, Workspace, scratch
from tests.support.waiting import wait_for_exit

pytestmark = [pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"), pytest.mark.timeout(0)]

ROUNDS = 12

COMMITS_NOTHING = """
from ckptfs.store.environment import Store
once = Store.commit
def commit(self, made=[]):
    if len(made) < 30:  # until it is mounted and the trial has begun
        made.append(self.dirty)
        once(self)
Store.commit = Store.sync = commit
"""

FORGETS_RESTORES = """
import sys, ckptfs.history
sys.modules["ckptfs.history.restore"].log_restore = lambda *args, **kwargs: None
"""

ENDS_WITHOUT_A_COMMIT = """
from ckptfs.fuse import serving
from ckptfs.store.environment import Store
close, commit, ending = serving.pyfuse3.close, Store.commit, []
def closing(*args, **kwargs):
    ending.append(True)
    return close(*args, **kwargs)
serving.pyfuse3.close = closing
serving.INTERVAL_S = serving.PAUSE_S = 3600
Store.commit = lambda self: None if ending else commit(self)
"""


def _rounds(workspace: Workspace, *, by: signal.Signals) -> None:
    rng = random.Random(1)
    trial = Trial(workspace, 1)

    def end() -> None:
        assert workspace.pid is not None
        pid, workspace.pid = workspace.pid, None
        os.kill(pid, by)
        wait_for_exit(pid)

    for _ in range(ROUNDS):
        trial.load(end, 0.3 + rng.random())
        trial.ask(in_order=by is signal.SIGTERM)
    trial.close()


@pytest.mark.parametrize(
    "sabotage, by",
    [
        (COMMITS_NOTHING, signal.SIGKILL),
        (FORGETS_RESTORES, signal.SIGKILL),
        (ENDS_WITHOUT_A_COMMIT, signal.SIGTERM),
    ],
    ids=["commits nothing", "forgets restores", "ends without a commit"],
)
def test_a_sabotaged_daemon_is_found_out(sabotage: str, by: signal.Signals) -> None:
    with scratch() as base:
        (base / "sabotage").mkdir()
        (base / "sabotage/sitecustomize.py").write_text(sabotage)
        workspace = Workspace(base, "--no-write-back")
        workspace.env["PYTHONPATH"] = str(base / "sabotage")
        workspace.mount()
        try:
            with pytest.raises(AssertionError) as caught:
                _rounds(workspace, by=by)
            # By a question, not by a mount that failed.
            assert caught.traceback[-1].name.startswith("_ask_")
        finally:
            if workspace.pid is not None:
                workspace.kill()
