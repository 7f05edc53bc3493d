"""A restore of a plain directory that is killed at any step is finished or undone by the next call.

The process is really killed: a child counts its steps (system calls that change the directory, and
commits) and ends itself by SIGKILL before or after one of them.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from ckptfs import CheckpointConfig, CheckpointService
from ckptfs.fs import Filesystem
from ckptfs.sync import lower
from tests.support.trees import Link, Same, facts, plant
from tests.sync.interruption import _CALLS

OLD = {
    "edit": "one",
    "drop": "two",
    "l": Link("edit"),
    "b": "four",
    "twin": Same("b"),
    "d": {"x": "5", "sub": {"y": "6"}},
    "type": {"in": "10"},
}
NEW = {
    "edit": "changed",
    "new": "new",
    "l": Link("elsewhere"),
    "b": "other",
    "moved": {"y": "6", "z": "more"},
    "type": "a file now",
}


def replant(work: Path, tree: dict[str, object]) -> None:
    for entry in work.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    plant(work, tree)  # type: ignore[arg-type]


def killed_restore(work: Path, target: str, step: int, *, done: bool) -> bool:
    """Restore in a child that dies at a step; whether it came that far."""
    child = os.fork()
    if child == 0:
        try:
            _die_at(step, done=done)
            CheckpointService(work).restore(target)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the child ended with {status}"
    return status != 0


def _die_at(last: int, *, done: bool) -> None:
    count = 0

    def wrapped(call):  # type: ignore[no-untyped-def]
        def step(*args, **options):  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            mine = count
            if mine == last and not done:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*args, **options)
            finally:
                if mine == last:
                    os.kill(os.getpid(), signal.SIGKILL)

        return step

    for name in _CALLS:
        setattr(os, name, wrapped(getattr(os, name)))
    Filesystem.commit = wrapped(Filesystem.commit)  # type: ignore[method-assign]
    lower.create = wrapped(lower.create)


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.deep)])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_restore_killed_at_any_step_is_finished_by_the_next_call(
    work: Path, done: bool, stride: int
) -> None:
    config = CheckpointConfig(mount=False, max_checkpoints=None)
    with CheckpointService(work, config=config) as service:
        plant(work, OLD)  # type: ignore[arg-type]
        old = service.save("old")
        old_facts = facts(work)
        replant(work, NEW)
        new_facts = facts(work)
        outcomes = set()
        step = 1
        while killed_restore(work, old.id, step, done=done):
            step += stride
            service.list()  # any call will do
            found = facts(work)
            assert found in (old_facts, new_facts), f"neither, after step {step - stride}"
            outcomes.add(found == old_facts)
            assert not service.diff("@", None), "the workspace is not what the directory is"
            assert service.check() == []
            if found == old_facts:
                service.undo()
            assert facts(work) == new_facts
        assert step > 10 and outcomes == {True, False}
        assert facts(work) == old_facts
