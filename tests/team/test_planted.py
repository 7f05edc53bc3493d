"""What others put into the data directory of a team is not obeyed; a listing changes nothing."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ckptfs import config, locating
from ckptfs.config import lookup
from ckptfs.connect import open_workspace, prepare_directory
from ckptfs.errors import TeamInvalid
from ckptfs.team import Meta, Team
from tests.support.mounting import ckptfs
from tests.support.peer import NOBODY
from tests.support.trees import stats
from tests.team.conftest import Crew

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user plants it")


@pytest.fixture
def other(crew: Crew) -> Path:
    """A workspace of the caller's own that is in no team, changed since its last checkpoint."""
    path = crew.base / "other"
    path.mkdir(exist_ok=True)
    (path / "file").write_text("as it was")
    workspace = lookup(path)
    if workspace is None:
        workspace = config.Workspace(path, config.default_store(path))
        prepare_directory(workspace)
    with open_workspace(workspace) as session:
        session.call("save", {"message": "planted on"})
    (path / "file").write_text("as it is")
    return path


def newest(path: Path) -> int:
    workspace = lookup(path)
    assert workspace is not None
    with open_workspace(workspace) as session:
        number: int = session.call("list", {"files": False})["checkpoints"][0]["id"]
        return number


def planted_journal(crew: Crew, other: Path) -> dict[str, object]:
    workspace = lookup(other)
    assert workspace is not None
    command = "ckptfs team restore red x"
    with open_workspace(workspace) as session:
        session.call("save", {"message": "now"})
        (old, *_, now) = sorted(item["id"] for item in session.call("list")["checkpoints"])
        session.call("restore", {"checkpoint": str(old), "command": command})
        session.call("restore", {"checkpoint": str(now), "command": "back again"})
    assert (other / "file").read_text() == "as it is"
    step = {
        "workspace": str(workspace.path),
        "store": str(workspace.store),
        "checkpoint": old,
        "before": old,
        "restores": 0,
    }
    return {"snapshot": "x", "before": "x", "command": command, "phase": "members", "steps": [step]}


def plant(crew: Crew, name: str, record: object, owner: int = 0) -> Path:
    place = crew.data / "ckptfs/red"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(json.dumps(record))
    os.chown(place / name, owner, owner)
    return place / name


def test_a_planted_journal_is_not_obeyed(crew: Crew, other: Path) -> None:
    """Neither by a listing nor by anything else: the caller's journals are not there."""
    plant(crew, "journal.json", planted_journal(crew, other))
    crew.team.snapshots()
    assert (other / "file").read_text() == "as it is"
    crew.team.snapshot()
    assert (other / "file").read_text() == "as it is"


def test_a_listing_changes_nothing(crew: Crew) -> None:
    crew.team.snapshot("one")
    before, private = stats(crew.data), stats(crew.base / "local-state")
    assert [item.tag for item in crew.team.snapshots() if isinstance(item, Meta)] == ["one"]
    done = ckptfs("team", "snapshots", "red", "--data-dir", crew.data, "--json")
    assert json.loads(done.stdout)["half_done"] is False
    assert stats(crew.data) == before
    assert stats(crew.base / "local-state") == private


def test_a_listing_makes_no_directory(crew: Crew) -> None:
    Team("red", crew.data).snapshots()
    assert not (crew.data / "ckptfs").exists()


@as_root
def test_a_snapshot_of_another_user_is_refused(crew: Crew) -> None:
    taken = crew.team.snapshot("theirs")
    bundle = crew.data / f"ckptfs/red/{taken.id}.json"
    os.chown(bundle, NOBODY, NOBODY)
    (listed,) = crew.team.snapshots()
    assert isinstance(listed, TeamInvalid) and "owns it" in str(listed)
    for deed in (crew.team.restore, crew.team.delete):
        with pytest.raises(TeamInvalid, match="owns it"):
            deed(taken.id)  # type: ignore[operator]
    assert bundle.exists()


@as_root
@pytest.mark.parametrize("place", ["", "ckptfs/red", "ckptfs", "tasks/red", "teams/red/inboxes"])
def test_directories_of_another_user_are_refused_unless_trusted(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    crew.team.snapshot()
    os.chown(crew.data / place, NOBODY, NOBODY)
    with pytest.raises(TeamInvalid, match="owns it"):
        crew.team.snapshot()
    monkeypatch.setenv(locating.TRUST_OWNER, str(NOBODY))
    crew.team.snapshot()


@as_root
def test_members_named_by_another_user_are_refused(crew: Crew) -> None:
    os.chown(crew.data / "teams/red/config.json", NOBODY, NOBODY)
    with pytest.raises(TeamInvalid, match=r"config\.json.*owns it"):
        crew.team.snapshot()


def test_a_workspace_that_only_a_snapshot_names_loses_no_checkpoint(
    crew: Crew, other: Path
) -> None:
    taken = crew.team.snapshot()
    number = newest(other)
    bundle = crew.data / f"ckptfs/red/{taken.id}.json"
    record = json.loads(bundle.read_bytes())
    workspace = lookup(other)
    assert workspace is not None
    # The registry knows neither this pair of directory and store nor the directory at all.
    for path, store in ((crew.works["alice"], workspace.store), (crew.base, workspace.store)):
        record["meta"]["parts"] = [
            {"members": ["x"], "workspace": str(path), "store": str(store), "checkpoint": number}
        ]
        bundle.write_text(json.dumps(record))
        crew.team.delete(taken.id)
        assert newest(other) == number
        bundle.write_text(json.dumps(record))


def test_files_of_a_team_are_not_written_through_what_was_planted(crew: Crew) -> None:
    taken = crew.team.snapshot()
    victim = crew.base / "victim"
    victim.write_text("precious")
    crew.write("tasks/red/task-1.json", {"id": 1, "subject": "changed"})
    for planted in (".ckptfs-task-1.json", ".task-1.json"):
        os.link(victim, crew.data / "tasks/red" / planted)
    os.symlink(victim, crew.data / "ckptfs/red/.journal.json")
    crew.team.restore(taken.id)
    assert victim.read_text() == "precious"
    assert json.loads((crew.data / "tasks/red/task-1.json").read_text())["subject"] == "build"


def test_the_journal_is_the_callers_alone(crew: Crew) -> None:
    crew.team.snapshot()
    (place,) = (crew.base / "local-state/ckptfs/teams").iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    place.chmod(0o777)
    try:
        with pytest.raises(TeamInvalid, match="can write to it"):
            crew.team.snapshot()
    finally:
        place.chmod(0o700)
