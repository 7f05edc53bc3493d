"""A workspace whose directory was moved, and what comes to its old place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ckptfs import errors, locating
from tests.cli.conftest import ScratchHome
from tests.support.mounting import HAVE_FUSE, succeed

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


@pytest.fixture
def moved(place: ScratchHome) -> ScratchHome:
    """`old` was a workspace; it is `new` now."""
    (place / "old").mkdir()
    assert locating.directory_id(str(place / "old")), "the tests need a disk with birth times"
    (place / "old" / "file").write_text("x")
    succeed(place.run("mount", "old"))
    succeed(place.run("umount", "old"))
    (place / "old").rename(place / "new")
    return place


def checkpoints(place: ScratchHome, name: str) -> int:
    listed = succeed(place.run("list", "-w", name, "--json")).stdout
    return len(json.loads(listed)["checkpoints"])


def test_its_history_goes_on(moved: ScratchHome) -> None:
    told = moved.run("list", "-w", "new")
    assert told.returncode == errors.WorkspaceUnknown.exit_code
    assert f"To go on: ckptfs mount {moved / 'new'}" in told.stderr
    done = succeed(moved.run("mount", "new", "--json"))
    assert json.loads(done.stdout)["moved_from"] == str(moved / "old")
    assert "its history goes on" in done.stderr
    (moved / "new" / "more").write_text("y")
    succeed(moved.run("save", "-w", "new"))
    succeed(moved.run("umount", "new"))
    assert checkpoints(moved, "new") == 2
    assert "goes on" not in succeed(moved.run("mount", "new")).stderr
    succeed(moved.run("umount", "new"))


def test_another_in_its_old_place_is_another(moved: ScratchHome) -> None:
    succeed(moved.run("mount", "new"))
    (moved / "old").mkdir()
    assert moved.run("list", "-w", "old").returncode == errors.WorkspaceUnknown.exit_code
    succeed(moved.run("mount", "old"))
    (moved / "old" / "other").write_text("x")
    for name in ("old", "new"):
        succeed(moved.run("umount", name))
    assert [entry.name for entry in (moved / "old").iterdir()] == ["other"]
    assert [entry.name for entry in (moved / "new").iterdir()] == ["file"]
    stores = list(Path(moved / "data" / "ckptfs").glob("old-*"))
    assert len(stores) == 2


def test_a_copy_of_a_workspace_has_its_own_history(moved: ScratchHome) -> None:
    shutil.copytree(moved / "new", moved / "copy")
    done = succeed(moved.run("mount", "copy", "--json"))
    assert json.loads(done.stdout)["moved_from"] is None
    succeed(moved.run("umount", "copy"))
    assert checkpoints(moved, "copy") == 1
