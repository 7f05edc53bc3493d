"""Restoring a team: all or none, undoable, killed at any step, no message lost or doubled."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path

import pytest

from ckptfs.config import lookup
from ckptfs.connect import open_workspace
from ckptfs.errors import (
    CheckpointUnknown,
    DaemonGone,
    SnapshotUnknown,
    TeamInvalid,
    TeamRestoreFailed,
    TreeMoved,
)
from ckptfs.team import Team, files, restore
from tests.support.mounting import ckptfs, succeed
from tests.team.conftest import Crew


def test_a_restore_and_its_undo_bring_everything_back(crew: Crew) -> None:
    first = crew.everything()
    taken = crew.team.snapshot()
    crew.mess_up()
    second = crew.everything()
    done = crew.team.restore(taken.id)
    assert crew.everything() == first
    crew.team.restore(done["before"])
    assert crew.everything() == second
    crew.team.restore("before")
    assert crew.everything() == first
    crew.team.restore("latest")
    assert crew.everything() == first


def test_a_dry_run_names_what_would_change(crew: Crew) -> None:
    taken = crew.team.snapshot()
    crew.mess_up()
    before = crew.everything()
    plan = crew.team.restore(taken.id, dry_run=True)
    alice, bob = plan["members"]
    assert (alice["members"], alice["modified_paths"]) == (["alice"], ["file"])
    assert (bob["members"], bob["added_paths"], bob["deleted_paths"]) == (
        ["bob"],
        ["file"],
        ["new"],
    )
    assert plan["team_files"]["added_paths"] == [
        "tasks/red/task-1.json",
        "teams/red/inboxes/alice/msg-1-aa.json",
    ]
    assert plan["team_files"]["modified_paths"] == ["costs/red/cost-1.json"]
    assert plan["team_files"]["deleted_paths"] == [
        "teams/red/events/evt-2.json",
        "teams/red/inboxes/alice/msg-1-aa.consumed",
    ]
    assert crew.everything() == before


def test_a_restore_does_what_was_confirmed_or_nothing(crew: Crew) -> None:
    taken = crew.team.snapshot()
    crew.mess_up()

    def confirm(plan: dict[str, object]) -> None:
        (crew.works["bob"] / "since").write_text("written while the question was open")

    with pytest.raises(TreeMoved):
        crew.team.restore(taken.id, confirm=confirm)
    assert (crew.works["alice"] / "file").read_text() == "changed"
    crew.team.restore(taken.id, confirm=lambda plan: None)
    assert (crew.works["alice"] / "file").read_text() == "alice at first"


def test_a_workspace_that_cannot_be_restored_keeps_all_as_they_are(crew: Crew) -> None:
    taken = crew.team.snapshot()
    crew.mess_up()
    before = crew.everything()
    bob = lookup(crew.works["bob"])
    assert bob is not None
    with open_workspace(bob) as session:
        number = str(taken.parts[1].checkpoint)
        session.call("unpin", {"checkpoints": [number]})
        session.call("delete", {"checkpoints": [number]})
    with pytest.raises(CheckpointUnknown):
        crew.team.restore(taken.id)
    assert crew.everything() == before


def test_a_restore_that_fails_takes_the_others_back(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = crew.team.snapshot()
    crew.mess_up()
    before = crew.everything()
    real = restore._call

    def call(workspace, op, args=None):  # type: ignore[no-untyped-def]
        if op == "restore" and workspace.path == crew.works["bob"] and alice_is_back():
            raise DaemonGone(workspace.path)
        return real(workspace, op, args)

    def alice_is_back() -> bool:
        return (crew.works["alice"] / "file").read_text() == "alice at first"

    with monkeypatch.context() as broken:
        broken.setattr(restore, "_call", call)
        with pytest.raises(TeamRestoreFailed, match="as it was"):
            crew.team.restore(taken.id)
    assert crew.everything() == before
    assert not crew.team.is_half_done()
    assert len(crew.team.snapshots()) == 2


def killed_restore(crew: Crew, snapshot: str, step: int) -> bool:
    """Restore in a child that kills itself before a step; whether it came that far."""
    child = os.fork()
    if child == 0:
        try:
            _die_before(step)
            Team("red", crew.data).restore(snapshot)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the child ended with {status}"
    return status != 0


def _die_before(last: int) -> None:
    """Steps: every question to a workspace, every change of the journal and of the team's files."""
    count = 0

    def wrapped(call):  # type: ignore[no-untyped-def]
        def step(*args, **options):  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return step

    restore._call = wrapped(restore._call)
    steps = {
        restore: ("_write_journal", "_remove_journal"),
        files: ("restore",),
        os: ("rename", "unlink", "replace"),
    }
    for module, names in steps.items():
        for name in names:
            setattr(module, name, wrapped(getattr(module, name)))


def test_a_restore_may_be_killed_at_any_step(crew: Crew) -> None:
    first = crew.everything()
    taken = crew.team.snapshot("first")
    crew.mess_up()
    second = crew.everything()
    outcomes = []
    step = 1
    while killed_restore(crew, taken.id, step):
        step += 1
        left = crew.everything()
        crew.team.snapshots()
        assert crew.everything() == left, f"a listing changed something after step {step - 1}"
        with pytest.raises(SnapshotUnknown):
            crew.team.delete("none")  # any command that may change something
        assert not crew.team.is_half_done()
        found = crew.everything()
        assert found in (first, second), f"neither, after step {step - 1}"
        outcomes.append(found == first)
        if found == first:
            crew.team.restore("before")
        assert crew.everything() == second
    assert crew.everything() == first
    assert step > 10 and outcomes == sorted(outcomes) and set(outcomes) == {False, True}


def test_an_unmounted_member_is_restored_too(crew: Crew) -> None:
    taken = crew.team.snapshot()
    first = crew.everything()
    crew.mess_up()
    succeed(ckptfs("umount", crew.works["bob"]))
    done = crew.team.restore(taken.id)
    assert crew.everything() == first
    crew.team.restore(done["before"])
    assert (crew.works["bob"] / "new").read_text() == "new"


def test_a_workspace_with_another_store_is_refused(crew: Crew) -> None:
    taken = crew.team.snapshot()
    bundle = crew.data / "ckptfs/red" / f"{taken.id}.json"
    record = json.loads(bundle.read_bytes())
    record["meta"]["parts"][0]["store"] = "/somewhere/else"
    bundle.write_text(json.dumps(record))
    with pytest.raises(TeamInvalid, match="another store"):
        crew.team.restore(taken.id)


def test_only_the_last_states_before_restores_are_kept(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptfs.team.team._KEPT", 2)
    taken = crew.team.snapshot()
    for _ in range(4):
        crew.team.restore(taken.id)
    assert len(crew.team.snapshots()) == 3


# -- messages --------------------------------------------------------------------------------------


@pytest.fixture
def inbox(crew: Crew) -> Path:
    return crew.data / "teams/red/inboxes/alice"


def test_a_message_in_work_is_not_doubled(crew: Crew, inbox: Path) -> None:
    taken = crew.team.snapshot()
    claimed = (inbox / "msg-1-aa.json").rename(inbox / "msg-1-aa.consumed")
    with claimed.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = crew.team.restore(taken.id)
        assert sorted(os.listdir(inbox)) == ["msg-1-aa.consumed"]
        assert done["held"] == ["teams/red/inboxes/alice/msg-1-aa.consumed"]
        assert os.fstat(file.fileno()).st_nlink == 1


def test_a_newer_message_in_work_is_not_lost(crew: Crew, inbox: Path) -> None:
    taken = crew.team.snapshot()
    newer = inbox / "msg-2-bb.consumed"
    newer.write_text("{}")
    with newer.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        crew.team.restore(taken.id)
        assert sorted(os.listdir(inbox)) == ["msg-1-aa.json", "msg-2-bb.consumed"]
    crew.team.restore(taken.id)
    assert sorted(os.listdir(inbox)) == ["msg-1-aa.json"]


def test_an_answered_message_comes_back_once(crew: Crew, inbox: Path) -> None:
    taken = crew.team.snapshot()
    (inbox / "msg-1-aa.json").unlink()
    for _ in range(2):
        crew.team.restore(taken.id)
        assert sorted(os.listdir(inbox)) == ["msg-1-aa.json"]
