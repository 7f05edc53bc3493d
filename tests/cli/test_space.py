"""What is kept and what it costs, as a user says and sees it; mounted and not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptfs import errors
from tests.support.mounting import HAVE_FUSE, Workspace, succeed
from tests.support.terminal import asked
from tests.support.waiting import wait_until

SECRET = b"hunter2-hunter2-hunter2"

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


@pytest.fixture
def work(workspace: Workspace, request: pytest.FixtureRequest) -> Workspace:
    """A workspace with three checkpoints besides the first: 0 is the mount's. Not mounted any more,
    unless the test says otherwise."""
    workspace.mount("--auto", "off")
    for number in range(1, 4):
        (workspace.path / "file").write_bytes(b"%d" % number * 5000)
        (workspace.path / f"only-{number}").write_bytes(b"%d" % number * 50)
        succeed(workspace.cli("save", f"state {number}", "-w", workspace.path))
    if "mounted" not in getattr(request, "param", ""):
        workspace.umount()
    return workspace


both = pytest.mark.parametrize("work", ["mounted", "alone"], indirect=True)


def answer(work: Workspace, verb: str, *words: str | Path) -> dict[str, Any]:
    done = succeed(work.cli(verb, *words, "-w", work.path, "--json"))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ids(work: Workspace) -> list[int]:
    return sorted(item["id"] for item in answer(work, "list")["checkpoints"])


def fails(work: Workspace, error: type[errors.CkptfsError], *words: str | Path) -> str:
    done = work.cli(*words, "-w", work.path)
    assert done.returncode == error.exit_code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_tag_is_given_moved_and_taken_away(work: Workspace) -> None:
    tagged = {"id": 1, "tag": "good/one", "pinned": False, "was": "", "reference": "good/one"}
    assert answer(work, "tag", "1", "good/one").items() >= tagged.items()
    fails(work, errors.TagTaken, "tag", "2", "good-one")
    fails(work, errors.TagInvalid, "tag", "2", "a\nb")
    fails(work, errors.CheckpointUnknown, "tag", "77", "x")
    fails(work, errors.UsageError, "tag", "2")
    fails(work, errors.TagTaken, "save", "--allow-empty", "--tag", "good-one")
    said = succeed(work.cli("tag", "good-one", "12", "-w", work.path)).stdout
    assert said == "Checkpoint 1 is tagged 12 (was good/one). Refer to it as tag-12.\n"
    assert answer(work, "show", "tag-12")["to"]["id"] == 1
    answer(work, "tag", "3", "tag-12", "--move")
    listed = {item["id"]: item["tag"] for item in answer(work, "list")["checkpoints"]}
    assert listed == {0: "", 1: "", 2: "", 3: "tag-12"}
    answer(work, "tag", "3", "--delete")
    saved = work.cli("save", "--allow-empty", "--tag", "yesterday", "-w", work.path)
    assert "Refer to it as tag-yesterday." in succeed(saved).stdout
    assert "tagged again" in succeed(work.cli("tag", "3", "again", "-w", work.path)).stdout


@both
def test_delete_takes_unpinned_checkpoints_all_or_none(work: Workspace) -> None:
    answer(work, "pin", "2")
    assert "unpin 2" in fails(work, errors.CheckpointPinned, "delete", "1", "2")
    fails(work, errors.CheckpointUnknown, "delete", "1", "9")
    assert ids(work) == [0, 1, 2, 3]
    succeed(work.cli("unpin", "2", "-w", work.path))
    answer(work, "delete", "1", "2", "1")
    assert ids(work) == [0, 3]
    succeed(work.cli("export", work.path.parent / "o", "--checkpoint", "3", "-w", work.path))
    assert (work.path.parent / "o" / "file").read_bytes() == b"3" * 5000


@both
def test_delete_of_a_tagged_one_wants_force(work: Workspace) -> None:
    answer(work, "tag", "2", "good one")
    said = fails(work, errors.NotConfirmed, "delete", "1", "latest", "2")
    assert "Not deleted: checkpoint 2 is tagged 'good one'. Nothing was changed." in said
    assert "--force" in said and "--dry-run" not in said
    assert ids(work) == [0, 1, 2, 3]
    answer(work, "pin", "2")
    fails(work, errors.CheckpointPinned, "delete", "--force", "2")
    answer(work, "unpin", "2")
    deleted = answer(work, "delete", "--force", "1", "good one")
    assert [item["id"] for item in deleted["checkpoints"]] == [1, 2]
    assert ids(work) == [0, 3]


@both
def test_delete_of_a_tagged_one_asks_on_a_terminal(work: Workspace) -> None:
    answer(work, "tag", "2", "good")
    refused = asked(work, "delete", "1", "2", "good", answer=b"n")
    assert refused.code == errors.NotConfirmed.exit_code
    assert refused.said.count("Checkpoint 2 is tagged good.") == 1
    assert ids(work) == [0, 1, 2, 3]
    assert asked(work, "delete", "1", "2", answer=b"y").code == 0
    assert ids(work) == [0, 3]
    assert "[y/N]" not in asked(work, "delete", "0", answer=b"").said


def test_prune_says_what_goes_and_why(work: Workspace) -> None:
    plan = answer(work, "prune", "--dry-run")
    assert [item["keep"] for item in plan["checkpoints"]] == [True] * 4
    answer(work, "config", "retention.keep_all", "0s")
    answer(work, "config", "retention.hourly", "0s")
    answer(work, "config", "retention.daily", "0s")
    shown = succeed(work.cli("prune", "--dry-run", "-w", work.path)).stdout
    assert "    0  stays     as a moment: older than 0 seconds" in shown
    answer(work, "config", "moments.max", "0")
    shown = succeed(work.cli("prune", "--dry-run", "-w", work.path)).stdout
    assert "    0  would go  older than 0 seconds" in shown
    assert "    3  stays     saved by hand" in shown
    assert ids(work) == [0, 1, 2, 3]
    answer(work, "prune")
    assert ids(work) == [1, 2, 3]


@pytest.mark.parametrize("work", ["mounted"], indirect=True)
def test_a_daemon_lets_them_expire_by_itself(work: Workspace) -> None:
    for name in ("keep_all", "hourly", "daily"):
        answer(work, "config", f"retention.{name}", "0s")
    (work.path / "stir").write_bytes(b"")
    wait_until(lambda: 0 not in ids(work), "checkpoint 0 expires")


@both
def test_the_store_is_broken_down_and_compacted(work: Workspace) -> None:
    space = json.loads(succeed(work.cli("status", "--space", "--json", "-w", work.path)).stdout)
    assert space["live_bytes"] == 5000 + 3 * 50
    assert space["shared_bytes"] == 5000 + 3 * 50
    assert space["history_bytes"] == 2 * 5000
    shown = succeed(work.cli("status", "--space", "-w", work.path)).stdout
    assert "only in checkpoints" in shown
    record = answer(work, "compact")
    assert record["after_bytes"] <= record["before_bytes"]
    assert ids(work) == [0, 1, 2, 3]
    assert (work.path / "file").read_bytes() == b"3" * 5000


def stored(work: Workspace) -> bytes:
    """All that the store has, be it committed or in the journal only."""
    return b"".join(file.read_bytes() for file in work.store.iterdir() if file.is_file())


@both
def test_a_purged_file_is_nowhere_any_more(work: Workspace) -> None:
    was_mounted = work.pid is not None
    if not was_mounted:
        work.mount("--auto", "off")
    secret = work.path / "only-1"
    secret.write_bytes(SECRET * 1000)
    answer(work, "save")
    past = work.path / ".checkpoints" / "4" / "only-1"
    assert past.read_bytes() == SECRET * 1000
    if not was_mounted:
        work.umount()
    assert SECRET in stored(work)
    fails(work, errors.NotConfirmed, "purge", secret)
    fails(work, errors.PathUnknown, "purge", work.path / "never")
    fails(work, errors.PathUnknown, "purge", "/etc/passwd")
    for words in (["--force"], ["--dry-run"]):
        fails(work, errors.PathUnknown, "purge", secret, work.path / "never", *words)
    assert secret.exists()
    plan = answer(work, "purge", secret, "--dry-run")
    assert plan["live_paths"] == plan["past_paths"] == ["only-1"]
    assert SECRET in stored(work)
    assert answer(work, "purge", secret, "--force")["elsewhere"] == []
    assert SECRET not in stored(work)
    if was_mounted:
        assert not secret.exists()
        assert not past.exists()
        work.umount()
        assert not secret.exists()


def test_a_setting_of_the_workspace_precedes_that_of_the_user(work: Workspace) -> None:
    assert answer(work, "config", "retention.max_checkpoints")["settings"][0]["value"] == "100"
    answer(work, "config", "retention.max_checkpoints", "7", "--global")
    answer(work, "config", "retention.max_checkpoints", "8")
    found = answer(work, "config", "retention.max_checkpoints")["settings"][0]
    assert (found["value"], found["file"]) == ("8", str(work.store / "config.toml"))
    answer(work, "config", "retention.max_checkpoints", "--unset")
    words = ("config", "retention.max_checkpoints", "-w", work.path)
    assert succeed(work.cli(*words)).stdout == "7\n"
    assert "retention.daily" in succeed(work.cli("config", "-w", work.path)).stdout
    fails(work, errors.SettingInvalid, "config", "no.such")
    fails(work, errors.SettingInvalid, "config", "retention.daily", "often")
    fails(work, errors.UsageError, "config", "--unset")


def test_purge_says_what_is_left_of_a_secret(workspace: Workspace) -> None:
    workspace.mount("--auto", "off")
    for name in ("key", "copy"):
        (workspace.path / name).write_bytes(SECRET * 1000)
    done = workspace.cli("purge", workspace.path / "none", "-w", workspace.path)
    assert done.stderr.startswith("ckptfs: Cannot purge ")
    done = succeed(workspace.cli("purge", workspace.path / "key", "--force", "-w", workspace.path))
    assert done.stdout == "Purged 1 path from the workspace and every checkpoint.\n"
    assert "still has the same bytes" in done.stderr
    assert "  copy\n" in done.stderr
    assert "until `ckptfs umount`" in done.stderr
    workspace.umount()
    done = succeed(workspace.cli("purge", workspace.path / "copy", "--force", "-w", workspace.path))
    assert "does not have the bytes any more" in done.stdout
    assert done.stderr == ""
