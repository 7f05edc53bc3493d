"""`list`: which checkpoints it shows, and what it says about them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ckptfs import errors
from tests.support.mounting import HAVE_FUSE, Workspace, succeed

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


def lines(work: Workspace, *words: str | Path) -> list[str]:
    return succeed(work.cli("list", *words, "-w", work.path)).stdout.splitlines()


def listed(work: Workspace, *words: str | Path) -> dict[str, Any]:
    done = succeed(work.cli("list", *words, "--json", "-w", work.path))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ids(work: Workspace, *words: str | Path) -> list[int]:
    return [item["id"] for item in listed(work, *words)["checkpoints"]]


@pytest.fixture
def work(workspace: Workspace) -> Workspace:
    """Checkpoints 0 (the mount), 1 to 3 with one change each; not mounted any more."""
    workspace.mount("--auto", "off")
    (workspace.path / "src").mkdir()
    for number, name in enumerate(("src/a", "b", "src/c"), 1):
        (workspace.path / name).write_text("x")
        succeed(workspace.cli("save", f"state {number}", "-w", workspace.path))
    workspace.umount()
    return workspace


def test_a_list_is_as_long_as_asked(work: Workspace) -> None:
    assert ids(work, "-n", "2") == [3, 2]
    assert listed(work, "-n", "1")["more"] == 3
    assert lines(work, "-n", "0") == []
    assert ids(work, "--all") == ids(work) == [3, 2, 1, 0]
    for wrong in ("-1", "two", "1.5"):
        assert work.cli("list", "-n", wrong, "-w", work.path).returncode == 2
    assert work.cli("list", "-n", "1", "--all", "-w", work.path).returncode == 2


def test_people_see_twenty_and_hear_of_the_rest(work: Workspace) -> None:
    work.mount("--auto", "off")
    for number in range(20):
        (work.path / ".checkpoints" / f"more-{number}").mkdir()
    done = succeed(work.cli("list", "-w", work.path))
    assert len(done.stdout.splitlines()) == 20
    assert "4 more" in done.stderr
    assert len(lines(work, "--all")) == 24
    assert len(ids(work)) == 24


def test_a_list_begins_at_a_time_or_a_checkpoint(work: Workspace) -> None:
    assert ids(work, "--since", "2") == [3, 2]
    assert ids(work, "--since", "1 hour ago") == [3, 2, 1, 0]
    assert ids(work, "--since", "2099-01-01") == []
    shown = lines(work)[1].split()
    assert 2 in ids(work, "--since", " ".join(shown[1:3]))
    done = work.cli("list", "--since", "never", "-w", work.path)
    assert done.returncode == errors.CheckpointUnknown.exit_code
    assert "neither a time nor a checkpoint" in done.stderr


def test_a_list_is_of_one_path_if_asked(work: Workspace) -> None:
    assert ids(work, "--path", work.path / "b") == [2]
    assert ids(work, "--path", work.path / "src") == [3, 1]
    assert ids(work, "--path", work.path / "src", "-n", "1") == [3]
    assert ids(work, "--path", work.path) == [3, 2, 1, 0]
    done = work.cli("list", "--path", work.path / "nothing", "-w", work.path)
    assert done.returncode == errors.PathUnknown.exit_code
    done = work.cli("list", "--path", "/", "-w", work.path)
    assert done.returncode == errors.PathUnknown.exit_code


def test_a_list_shows_tags_pins_and_who_saved(work: Workspace) -> None:
    succeed(work.cli("tag", "2", "v1", "-w", work.path))
    succeed(work.cli("pin", "2", "-w", work.path))
    newest, tagged, *_ = lines(work)
    assert "(pinned) [v1] state 2" in tagged
    assert "+1 ~0 -0" in newest
    cause = listed(work)["checkpoints"][0]["cause"]
    assert cause["pid"] == os.getpid()
    assert "python" in cause["command"]
    assert " by " in newest


def test_a_list_without_a_match_says_so(work: Workspace) -> None:
    done = succeed(work.cli("list", "--since", "2099-01-01", "-w", work.path))
    assert (done.stdout, done.stderr) == ("", "No such checkpoint.\n")
