"""`undo` and `redo` as a user types them: they ask when there is something to lose."""

from __future__ import annotations

import json

import pytest

from ckptfs import errors
from tests.support.mounting import HAVE_FUSE, Workspace, succeed
from tests.support.terminal import asked

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


@pytest.fixture(params=["mounted", "alone"])
def work(workspace: Workspace, request: pytest.FixtureRequest) -> Workspace:
    """A workspace with checkpoints 0 and 1, equal to 1."""
    (workspace.path / "f").write_text("one")
    (workspace.path / "g").write_text("one")
    workspace.mount("--auto", "off")
    (workspace.path / "f").write_text("two")
    (workspace.path / "g").write_text("two")
    succeed(workspace.cli("save", "two", "-w", workspace.path))
    if request.param == "alone":
        workspace.umount()
    return workspace


def test_undo_of_a_restore_of_one_path_leaves_the_others(work: Workspace) -> None:
    f, later = work.path / "f", work.path / "later"
    succeed(work.cli("restore", "0", f, "-w", work.path))
    later.write_text("work")
    refused = work.cli("undo", "-w", work.path)
    assert refused.returncode == errors.NotConfirmed.exit_code
    assert "Not undone: the workspace changed since that restore" in refused.stderr
    plan = json.loads(succeed(work.cli("undo", "--dry-run", "--json", "-w", work.path)).stdout)
    assert (plan["added_paths"], plan["modified_paths"], plan["deleted_paths"]) == ([], ["f"], [])
    succeed(work.cli("undo", "--force", "-w", work.path))
    assert (f.read_text(), later.read_text()) == ("two", "work")
    later.unlink()
    refused = work.cli("redo", "-w", work.path)
    assert refused.returncode == errors.NotConfirmed.exit_code
    succeed(work.cli("redo", "--force", "-w", work.path))
    assert f.read_text() == "one"
    assert (work.path / "g").read_text() == "two"


def test_a_terminal_is_asked_only_if_something_changed(work: Workspace) -> None:
    succeed(work.cli("restore", "0", "--force", "-w", work.path))
    succeed(work.cli("undo", "-w", work.path))
    succeed(work.cli("redo", "-w", work.path))
    later = work.path / "later"
    later.write_text("work")
    assert asked(work, "undo", answer=b"n").code == errors.NotConfirmed.exit_code
    assert later.exists() and (work.path / "f").read_text() == "one"
    assert asked(work, "undo", answer=b"y").code == 0
    assert not later.exists() and (work.path / "f").read_text() == "two"


def test_a_restore_without_a_backup_cannot_be_undone(work: Workspace) -> None:
    succeed(work.cli("restore", "0", work.path / "f", "-w", work.path))
    succeed(work.cli("restore", "1", "--force", "--no-backup", "-w", work.path))
    assert work.cli("undo", "-w", work.path).returncode == errors.NothingToUndo.exit_code


def test_latest_is_what_the_restore_before_made(work: Workspace) -> None:
    for name, begin in (("f", "Restored checkpoint 1"), ("g", "Nothing to restore")):
        (work.path / name).write_text("three")
        if name == "g":
            succeed(work.cli("save", "-w", work.path))
        said = succeed(work.cli("restore", "latest", work.path / name, "-w", work.path)).stdout
        assert said.startswith(begin)
    assert "every restore makes a new one" in said
