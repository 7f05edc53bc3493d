"""`workspaces` lists what there is, `forget` deletes a store and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptfs import errors
from ckptfs.store import Store
from tests.cli.conftest import ScratchHome
from tests.support.mounting import HAVE_FUSE, succeed

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


@pytest.fixture
def place(place: ScratchHome) -> ScratchHome:
    """With a workspace `proj` that is not mounted."""
    (place / "proj").mkdir()
    (place / "proj" / "file").write_text("x")
    succeed(place.run("save", "-w", "proj", "--no-mount"))
    return place


def listed(place: ScratchHome) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(succeed(place.run("workspaces", "--json")).stdout)[
        "workspaces"
    ]
    return found


def fails(place: ScratchHome, error: type[errors.CkptfsError], *words: str | Path) -> str:
    done = place.run(*words)
    assert done.returncode == error.exit_code, done.stdout + done.stderr
    return done.stderr


def test_all_are_listed(place: ScratchHome) -> None:
    (place / "more").mkdir()
    succeed(place.run("mount", "more", "--store", "elsewhere"))
    more, proj = listed(place)
    assert (more["workspace"], more["store"]) == (str(place / "more"), str(place / "elsewhere"))
    assert (more["mounted"], more["state"]) == (True, "serving")
    assert (proj["mounted"], proj["state"], proj["directory_exists"]) == (False, "unmounted", True)
    assert proj["store_bytes"] > 0
    assert str(place / "elsewhere") in succeed(place.run("workspaces")).stdout
    succeed(place.run("umount", "more"))


def test_a_store_without_a_workspace_is_listed(place: ScratchHome) -> None:
    for entry in (place / "data" / "ckptfs" / "workspaces").iterdir():
        entry.unlink()
    (stray,) = listed(place)
    assert stray["workspace"] is None
    succeed(place.run("forget", "--store", stray["store"], "--force"))
    assert listed(place) == []


def test_a_forgotten_workspace_loses_its_store_and_keeps_its_directory(place: ScratchHome) -> None:
    (store,) = [Path(item["store"]) for item in listed(place)]
    assert "1 checkpoint" in succeed(place.run("forget", "proj", "--dry-run")).stdout
    assert "--force" in fails(place, errors.NotConfirmed, "forget", "proj")
    assert store.exists() and len(listed(place)) == 1
    succeed(place.run("forget", "proj", "--force"))
    assert not store.exists() and listed(place) == []
    assert (place / "proj" / "file").read_text() == "x"
    fails(place, errors.WorkspaceUnknown, "forget", "proj", "--force")


def test_a_store_from_before_the_first_release_can_be_forgotten(place: ScratchHome) -> None:
    (store,) = [Path(item["store"]) for item in listed(place)]
    opened = Store.open(store)
    opened.charge()
    opened._meta.put(b"format", (3).to_bytes(4, "big"))
    opened.close()
    said = fails(place, errors.StoreVersionUnknown, "save", "-w", "proj")
    assert "ckptfs forget DIR" in said
    succeed(place.run("forget", "proj", "--force"))
    succeed(place.run("save", "-w", "proj", "--no-mount"))
    assert (place / "proj" / "file").read_text() == "x"


def test_a_mounted_workspace_is_not_forgotten(place: ScratchHome) -> None:
    succeed(place.run("mount", "proj"))
    fails(place, errors.StoreInUse, "forget", "proj", "--force")
    (place / "proj" / "new").write_text("x")
    succeed(place.run("umount", "proj", "--no-write-back"))
    assert "never written back" in succeed(place.run("forget", "proj", "--dry-run")).stdout
    assert len(listed(place)) == 1


def test_only_a_store_is_deleted(place: ScratchHome) -> None:
    fails(place, errors.NotAStore, "forget", "--store", "proj", "--force")
    (place / "proj" / "data.mdb").write_text("a name is not enough")
    fails(place, errors.NotAStore, "forget", "--store", "proj", "--force")
    assert sorted(entry.name for entry in (place / "proj").iterdir()) == ["data.mdb", "file"]
    fails(place, errors.StoreMissing, "forget", "--store", "nowhere", "--force")
    fails(place, errors.UsageError, "forget", "--force")
    (store,) = [Path(item["store"]) for item in listed(place)]
    (store / "mine").write_text("x")
    assert "mine" in succeed(place.run("forget", "proj", "--force")).stderr
    assert [entry.name for entry in store.iterdir()] == ["mine"]
