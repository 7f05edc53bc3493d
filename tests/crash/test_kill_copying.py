"""The daemon is killed at each stage of giving free pages back, beside programs that write: what
was acknowledged is there afterwards, whichever file is the data file then.

A stage ends with a call that changes names in the store, opens or syncs one of its data files, or
starts the copier. The daemon's Python counts them from the moment that the test says so, those
before the copy takes the data file's name and those after it each on their own, and dies before the
one that is due.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.control.client import Client
from ckptfs.errors import DaemonGone
from tests.crash.harness import Trial
from tests.support.mounting import HAVE_FUSE, Workspace, scratch
from tests.support.waiting import wait_for_exit

pytestmark = [pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"), pytest.mark.timeout(0)]

#: More than a compaction has.
_STAGES_MAX = 60

_KILLER = """
import os, signal, subprocess

due, names = os.environ["CKPTFS_TEST_STAGE"], ("data.mdb", "journal")
count = {"before": 0, "after": 0}
half = "before"


def end_if_due():
    try:
        with open(due) as file:
            wanted, stage = file.read().split()
    except FileNotFoundError:
        return
    count[half] += 1
    if half == wanted and count[half] == int(stage):
        os.kill(os.getpid(), signal.SIGKILL)


def concerns(target):
    if isinstance(target, int):
        path = os.readlink(f"/proc/self/fd/{target}")
        return os.path.exists(f"{path}/data.mdb") or os.path.basename(path).startswith(names)
    return os.path.basename(os.fsdecode(target)).startswith(names)


def wrapped(call):
    def stage(target, *args, **options):
        global half
        if is_stage := concerns(target):
            end_if_due()
        result = call(target, *args, **options)
        if is_stage and call is replace:
            half = "after"
        return result

    return stage


replace = os.replace
for name in ("open", "unlink", "rename", "replace", "fsync", "ftruncate"):
    setattr(os, name, wrapped(getattr(os, name)))


class Popen(subprocess.Popen):
    def __init__(self, words, *args, **options):
        if any("copier" in str(word) for word in words):
            end_if_due()
        super().__init__(words, *args, **options)


subprocess.Popen = Popen
"""


class Stages(Workspace):
    """A workspace whose daemon can be told at which stage to die."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, "--no-write-back", "--auto", "off")
        self._due = base / "due"
        (base / "python").mkdir()
        (base / "python/sitecustomize.py").write_text(_KILLER)
        self.env["CKPTFS_TEST_STAGE"] = str(self._due)
        ways = [str(base / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env["PYTHONPATH"] = ":".join(ways)

    def mount(self, *options: str) -> subprocess.CompletedProcess[str]:
        self._due.unlink(missing_ok=True)
        return super().mount(*options)

    def compact(self, half: str, stage: int) -> bool:
        """Let the daemon compact, and die at this stage, counted from the exchange of the files if
        the half is "after"; False if there are not so many."""
        assert self.pid is not None
        self._due.write_text(f"{half} {stage}")
        done = self.cli("compact", "-w", self.path)
        if done.returncode == 0:
            return False
        assert done.returncode == DaemonGone.exit_code, done.stderr
        wait_for_exit(self.pid)
        self.pid = None
        return True


class Writing(Trial):
    """The load without compactions of its own."""

    def _compact(self, client: Client) -> None:
        pass


@pytest.fixture
def stages() -> Iterator[Stages]:
    with scratch() as base:
        made = Stages(base)
        made.mount()
        try:
            yield made
        finally:
            made.finish()


def _waste(made: Stages) -> None:
    """Leave free pages behind."""
    for number in range(40):
        (made.path / f"gone {number}").write_bytes(os.urandom(20_000))
    for number in range(40):
        (made.path / f"gone {number}").unlink()


def _die_at(trial: Trial, stages: Stages, half: str, stage: int) -> tuple[bool, bool]:
    """Whether the daemon died at the stage, and whether the data file was another one then."""
    _waste(stages)
    before = (stages.store / "data.mdb").stat().st_ino
    killed = False

    def end() -> None:
        nonlocal killed
        killed = stages.compact(half, stage)
        if not killed:
            stages.kill()

    trial.load(end, 0.2)
    return killed, (stages.store / "data.mdb").stat().st_ino != before


@pytest.mark.parametrize("half", ["before", "after"])
@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.deep)])
def test_what_was_synced_is_there_whichever_stage_of_a_copy_is_the_last(
    stages: Stages, half: str, stride: int
) -> None:
    trial = Writing(stages, stride)
    ends: list[tuple[bool, bool]] = []
    for stage in range(1, _STAGES_MAX, stride):
        ends.append(_die_at(trial, stages, half, stage))
        trial.ask()
        assert not list(stages.store.glob("*.compact"))
        if not ends[-1][0]:
            break
    trial.close()
    # Killed in this half; and at last the copy came to its end.
    assert set(ends) == {(True, half == "after"), (False, True)}, ends
