"""What `status` says of a workspace."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from ckptfs.connect import open_store
from ckptfs.errors import StoreMissing
from tests.support.mounting import HAVE_FUSE, Workspace, succeed
from tests.support.trees import fsync

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


def counts(added: int = 0, modified: int = 0, deleted: int = 0) -> dict[str, int]:
    return {"added": added, "modified": modified, "deleted": deleted}


def told(workspace: Workspace) -> str:
    """The line about what is not saved."""
    lines = succeed(workspace.cli("status", "-w", workspace.path)).stdout.splitlines()
    return "".join(line.split(maxsplit=1)[1] for line in lines if line.startswith("unsaved"))


def test_status_counts_what_is_not_saved(workspace: Workspace) -> None:
    (workspace.path / "old").write_text("x")
    workspace.mount("--auto", "off")
    assert workspace.status()["unsaved"] == counts()
    assert told(workspace) == "nothing"
    with (workspace.path / "old").open("a") as old:
        old.write("more")
    (workspace.path / "dir").mkdir()
    (workspace.path / "dir" / "new").write_text("x")
    fsync(workspace.path / "dir" / "new")
    assert workspace.status()["unsaved"] == counts(added=2, modified=1)
    assert told(workspace) == "2 added, 1 modified"
    workspace.kill()
    assert told(workspace) == "2 added, 1 modified"
    workspace.mount("--auto", "off")
    succeed(workspace.cli("save", "-w", workspace.path))
    assert told(workspace) == "nothing"
    workspace.umount()
    assert workspace.status()["unsaved"] is None
    assert told(workspace) == ""


def test_the_reference_names_every_field(workspace: Workspace) -> None:
    reference = (Path(__file__).parents[2] / "docs/CLI.md").read_text()
    section = reference.partition("\n## status\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    workspace.mount("--auto", "off")
    mounted = workspace.status()
    workspace.umount()
    unmounted = workspace.status()
    assert mounted["other_mount"] is None and unmounted["other_mount"] is None
    assert (mounted.keys() | unmounted.keys()) - named == set()


def test_very_much_is_not_counted(workspace: Workspace) -> None:
    workspace.mount("--auto", "off")
    for number in range(3000):
        (workspace.path / str(number)).touch()
    assert workspace.status()["unsaved"] is None
    assert told(workspace).startswith("thousands")


def test_a_store_that_goes_away_while_it_is_asked_is_missing(workspace: Workspace) -> None:
    """Whoever deletes a store may do it between its opening and the question."""
    workspace.mount()
    workspace.umount()

    def ask() -> None:
        with open_store(workspace.store) as session:
            shutil.rmtree(workspace.store)
            session.call("figures")

    with pytest.raises(StoreMissing):
        ask()


def test_a_store_that_another_process_has_open_is_in_use_by_it(workspace: Workspace) -> None:
    workspace.mount()
    workspace.umount()
    with open_store(workspace.store):
        found = workspace.status()
        assert (found["state"], found["pid"], found["mounted"]) == ("in-use", os.getpid(), False)
        said = succeed(workspace.cli("status", "-w", workspace.path)).stdout
        assert f"not mounted; process {os.getpid()} is using its store" in said
    assert (workspace.status()["state"], workspace.status()["pid"]) == ("unmounted", None)
