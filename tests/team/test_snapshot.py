"""Snapshots of a team: what is in them, of which moment they are, and what is refused."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ckptfs.config import lookup
from ckptfs.connect import open_workspace
from ckptfs.control.client import Client
from ckptfs.errors import (
    CheckpointPinned,
    DaemonGone,
    SnapshotUnknown,
    TeamInvalid,
    TeamUnknown,
)
from ckptfs.team import Meta, Team
from tests.support.mounting import ckptfs, succeed
from tests.support.waiting import wait_until
from tests.team.conftest import Crew


def checkpoints(work: Path) -> list[dict[str, object]]:
    found = json.loads(succeed(ckptfs("list", "-w", work, "--json")).stdout)
    listed: list[dict[str, object]] = found["checkpoints"]
    return listed


def call(work: Path, op: str, args: dict[str, object]) -> dict[str, object]:
    workspace = lookup(work)
    assert workspace is not None
    with open_workspace(workspace) as session:
        return session.call(op, args)


def test_a_snapshot_has_all_workspaces_and_files(crew: Crew) -> None:
    taken = crew.team.snapshot("Release / 1")
    assert taken.tag == "Release / 1" and taken.without_workspace == ["carol"]
    assert taken.counts == dict.fromkeys(
        ("config", "tasks", "events", "sessions", "costs", "inboxes"), 1
    )
    assert [part.members for part in taken.parts] == [["alice"], ["bob"]]
    for part in taken.parts:
        (newest, *_) = checkpoints(Path(part.workspace))
        assert newest["id"] == part.checkpoint and newest["pinned"]
        assert newest["metadata"] == {"team": "red", "team_snapshot": taken.id}
    assert crew.team.snapshots() == [taken]
    assert taken.remarks == {} and taken.held == []


def test_ids_are_unique_and_in_order(crew: Crew) -> None:
    taken = [crew.team.snapshot("same").id for _ in range(4)]
    assert sorted(set(taken)) == taken
    listed = [item.id for item in crew.team.snapshots() if isinstance(item, Meta)]
    assert listed == taken[::-1]
    with pytest.raises(SnapshotUnknown, match="several"):
        crew.team.restore("same", dry_run=True)


WRITER = """
import os, sys
first, second = sys.argv[1:]
held = os.open(first + "/held", os.O_RDWR | os.O_CREAT)
count = 0
while True:
    count += 1
    os.pwrite(held, b"%08d" % count, 0)
    with open(first + "/counter", "w") as file:
        file.write("%08d" % count)
    with open(second + "/new", "w") as file:
        file.write("%08d" % count)
    os.rename(second + "/new", second + "/counter")
"""


def test_no_write_falls_between_the_checkpoints_of_a_snapshot(crew: Crew) -> None:
    """A program writes a number to alice and then to bob, over and over. In a snapshot, bob's can
    be alice's or one less. It cannot be ahead of alice, nor further behind."""
    works = [str(work) for work in crew.works.values()]
    writer = subprocess.Popen([sys.executable, "-c", WRITER, *works])
    try:
        wait_until((crew.works["bob"] / "counter").exists, "the writer writes")
        for _ in range(8):
            taken = crew.team.snapshot()
            values = {}
            for part in taken.parts:
                place = Path(part.workspace) / ".checkpoints" / str(part.checkpoint)
                for name in ("counter", "held"):
                    if (place / name).exists():
                        text = (place / name).read_text()
                        values[f"{part.members[0]} {name}"] = int(text) if text else None
            ahead, behind = values["alice held"], values["bob counter"]
            assert ahead is not None and behind is not None
            assert ahead - 1 <= behind <= ahead, values
            # Between truncating and writing, it is empty.
            assert values["alice counter"] in (None, ahead - 1, ahead), values
    finally:
        writer.kill()
        writer.wait()


def test_a_team_that_is_not_there_is_unknown(base: Path) -> None:
    with pytest.raises(TeamUnknown):
        Team("red", base).snapshot()
    with pytest.raises(TeamUnknown):
        Team("red", base / "absent").snapshots()


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "a b", "x" * 200, "ü"])
def test_names_of_teams_are_checked(base: Path, name: str) -> None:
    with pytest.raises(TeamInvalid):
        Team(name, base)


def test_a_member_that_is_not_mounted_is_named(crew: Crew) -> None:
    succeed(ckptfs("umount", crew.works["bob"]))
    with pytest.raises(TeamInvalid, match="bob"):
        crew.team.snapshot()
    assert crew.team.snapshots() == []


@pytest.mark.parametrize(
    "config",
    [
        "{broken",
        [],
        {"members": "alice"},
        {"members": ["alice"]},
        {"members": [{"name": "../alice"}]},
        {"members": [{"name": 7}]},
        {"members": [{"name": "alice", "workspace": "relative/path"}]},
    ],
)
def test_a_config_without_members_is_refused(crew: Crew, config: object) -> None:
    crew.write("teams/red/config.json", config)
    with pytest.raises(TeamInvalid):
        crew.team.snapshot()


def test_members_work_in_the_work_trees_of_a_registry(crew: Crew) -> None:
    crew.write("teams/red/config.json", {"members": [{"name": "alice"}, {"name": "bob"}]})
    trees = [{"agent_name": name, "worktree_path": str(work)} for name, work in crew.works.items()]
    crew.write("workspaces/red/workspace-registry.json", {"workspaces": trees})
    assert [part.members for part in crew.team.snapshot().parts] == [["alice"], ["bob"]]


def test_members_that_share_a_workspace_share_a_checkpoint(crew: Crew) -> None:
    inner = crew.works["alice"] / "sub"
    inner.mkdir()
    members = [
        {"name": "alice", "workspace": str(crew.works["alice"])},
        {"name": "anna", "cwd": str(inner)},
    ]
    crew.write("teams/red/config.json", {"members": members})
    (part,) = crew.team.snapshot().parts
    assert part.members == ["alice", "anna"]


def test_the_state_may_not_lie_in_a_workspace(crew: Crew) -> None:
    team = Team("red", crew.works["alice"] / "state")
    path = crew.works["alice"] / "state/teams/red"
    path.mkdir(parents=True)
    (path / "config.json").write_text((crew.data / "teams/red/config.json").read_text())
    with pytest.raises(TeamInvalid, match="lies in the workspace of alice"):
        team.snapshot()


def test_broken_files_are_kept_and_reported(crew: Crew) -> None:
    crew.write("tasks/red/task-2.json", "{half")
    (crew.data / "tasks/red/task-3.json").write_bytes(b"\xff\xfe")
    crew.write("tasks/red/with blank.json", {})
    (crew.data / "tasks/red/link.json").symlink_to("/etc/passwd")
    (crew.data / "tasks/red/.tmp-1.json").write_text("{being written")
    taken = crew.team.snapshot()
    assert set(taken.remarks) == {
        f"tasks/red/{name}"
        for name in ("task-2.json", "task-3.json", "with blank.json", "link.json")
    }
    for name in ("task-2.json", "task-3.json"):
        (crew.data / "tasks/red" / name).unlink()
    crew.team.restore(taken.id)
    assert (crew.data / "tasks/red/task-3.json").read_bytes() == b"\xff\xfe"
    assert (crew.data / "tasks/red/task-2.json").read_text() == "{half"
    assert (crew.data / "tasks/red/link.json").is_symlink()


def test_checkpoints_of_a_snapshot_stay_until_it_is_deleted(crew: Crew) -> None:
    taken = crew.team.snapshot("t")
    for part in taken.parts:
        with pytest.raises(CheckpointPinned):
            call(Path(part.workspace), "delete", {"checkpoints": [str(part.checkpoint)]})
    assert crew.team.delete("t") == taken
    for part in taken.parts:
        assert part.checkpoint not in [item["id"] for item in checkpoints(Path(part.workspace))]
    assert crew.team.snapshots() == []
    with pytest.raises(SnapshotUnknown):
        crew.team.delete("t")


def test_a_snapshot_with_a_path_of_its_own_is_refused(crew: Crew) -> None:
    taken = crew.team.snapshot()
    bundle = crew.data / "ckptfs/red" / f"{taken.id}.json"
    for bad in ("../evil.json", "/etc/evil.json", "tasks/blue/task.json", "tasks/red/../x.json"):
        record = json.loads(bundle.read_bytes())
        record["files"].append({"path": bad, "text": "{}"})
        changed = bundle.read_bytes()
        bundle.write_text(json.dumps(record))
        with pytest.raises(TeamInvalid, match="no team has"):
            crew.team.restore(taken.id)
        bundle.write_bytes(changed)
    bundle.write_text("{damaged")
    (damaged,) = crew.team.snapshots()
    assert isinstance(damaged, TeamInvalid)


def test_the_command_line_takes_lists_restores_and_deletes(crew: Crew) -> None:
    def team(*words: str) -> dict[str, object]:
        done = succeed(ckptfs("team", *words, "--data-dir", crew.data, "--json"))
        found: dict[str, object] = json.loads(done.stdout)
        return found

    before = crew.everything()
    taken = team("snapshot", "red", "--tag", "one")
    assert (taken["teamName"], taken["tag"]) == ("red", "one")
    crew.mess_up()
    plan = team("restore", "red", "one", "--dry-run")
    assert plan["dry_run"] and crew.everything() != before
    refused = ckptfs("team", "restore", "red", "one", "--data-dir", crew.data)
    assert refused.returncode == 47
    done = team("restore", "red", str(taken["id"]), "--force")
    assert crew.everything() == before
    listed = team("snapshots", "red")["snapshots"]
    assert isinstance(listed, list)
    assert [item["id"] for item in listed] == [done["before"], taken["id"]]
    team("snapshot-delete", "red", "one")
    assert ckptfs("team", "restore", "red").returncode == 2
    assert ckptfs("team", "snapshots", "../red").returncode == 81


# -- holding still ---------------------------------------------------------------------------------


def test_a_client_that_never_thaws_freezes_a_workspace_for_a_short_time_only(crew: Crew) -> None:
    work = crew.works["alice"]
    workspace = lookup(work)
    assert workspace is not None
    with Client(workspace) as rude:
        assert rude.call("freeze", {"seconds": 0.3}) == {"frozen": True}
        (work / "file").write_text("waits a moment")
        with pytest.raises(DaemonGone):
            rude.call("save", {"message": "too late"})
    assert "too late" not in [item["message"] for item in checkpoints(work)]


def test_a_client_that_hangs_up_thaws_the_workspace(crew: Crew) -> None:
    work = crew.works["alice"]
    workspace = lookup(work)
    assert workspace is not None
    for seconds in (1e9, -1, 2):
        with Client(workspace) as client:
            client.call("freeze", {"seconds": seconds})
    started = time.monotonic()
    (work / "file").write_text("goes on")
    assert time.monotonic() - started < 60
    with Client(workspace) as client:
        client.call("freeze", {})
        with pytest.raises(Exception, match="held still"):
            client.call("restore", {"checkpoint": "0"})
        assert client.call("thaw") == {"frozen": False}


def test_a_message_in_work_is_in_the_snapshot(crew: Crew) -> None:
    inbox = crew.data / "teams/red/inboxes/alice"
    claimed = inbox / "msg-2-bb.consumed"
    claimed.write_text('{"content": "in work"}')
    with claimed.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        taken = crew.team.snapshot()
    assert taken.counts["inboxes"] == 2
    assert taken.held == ["teams/red/inboxes/alice/msg-2-bb.consumed"]
    os.unlink(claimed)
    crew.team.restore(taken.id)
    assert claimed.read_text() == '{"content": "in work"}'
