"""After a daemon died: what is told, and how it goes on."""

from __future__ import annotations

import json
import os
import time

import pytest

from ckptfs.errors import DaemonGone
from tests.support.mounting import HAVE_FUSE, Workspace, is_mounted, succeed
from tests.support.trees import fsync, plant, tree

pytestmark = pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")


def test_status_says_what_happened_and_when(workspace: Workspace) -> None:
    pid, began = workspace.pid, time.time_ns()
    plant(workspace.path, {"file": "x"})
    fsync(workspace.path / "file")
    assert "died" not in workspace.status()
    workspace.kill()
    status = workspace.status()
    assert status["state"] == "dead"
    assert (status["died"]["pid"], status["died"]["state"]) == (pid, "serving")
    assert status["died"]["started_ns"] < began
    # The disk's clock ticks every few milliseconds.
    assert began - 10**8 < status["died"]["last_commit_ns"] < time.time_ns()
    words = succeed(workspace.cli("status", "-w", workspace.path)).stdout
    assert f"process {pid}" in words and "last commit" in words
    workspace.mount()


def test_the_next_mount_clears_it_away(workspace: Workspace) -> None:
    plant(workspace.path, {"file": "x"})
    fsync(workspace.path / "file")
    workspace.kill()
    with pytest.raises(OSError, match="not connected"):
        (workspace.path / "file").read_text()
    assert "The last daemon had died." in workspace.mount().stderr
    assert tree(workspace.path) == {"file": "x"}
    (newest, *_) = json.loads(workspace.cli("list", "--json", "-w", workspace.path).stdout)[
        "checkpoints"
    ]
    assert newest["message"] == "as it was left"
    assert "died" not in workspace.status()
    workspace.umount()
    assert workspace.status()["died"] is None


def test_every_verb_about_now_says_so(workspace: Workspace) -> None:
    plant(workspace.path, {"file": "x"})
    fsync(workspace.path / "file")
    assert os.listdir(workspace.path) == ["file"]
    workspace.kill()
    verbs = ["save", "diff", "restore 0", "rewind", "undo", "watch", "task list", "run -- true"]
    for verb in verbs:
        done = workspace.cli("-w", workspace.path, *verb.split())
        assert done.returncode == DaemonGone.exit_code, (verb, done.stdout + done.stderr)
        assert f"ckptfs mount {workspace.path}` or `ckptfs umount" in done.stderr
    succeed(workspace.cli("list", "-w", workspace.path))
    workspace.mount()
    assert tree(workspace.path) == {"file": "x"}


def test_what_needs_only_the_store_still_works(workspace: Workspace) -> None:
    plant(workspace.path, {"file": "x"})
    succeed(workspace.cli("save", "saved", "-w", workspace.path))
    plant(workspace.path, {"late": "x"})
    fsync(workspace.path / "late")
    workspace.kill()
    named = ("-w", workspace.path)
    assert "saved" in succeed(workspace.cli("log", workspace.path / "file", *named)).stdout
    succeed(workspace.cli("backup", workspace.path.parent / "copy", *named))
    known = succeed(workspace.cli("workspaces")).stdout
    assert "dead" in known and "(gone)" not in known
    workspace.mount()
    assert tree(workspace.path) == {"file": "x", "late": "x"}


def test_so_does_umount(workspace: Workspace) -> None:
    plant(workspace.path, {"file": "x"})
    fsync(workspace.path / "file")
    workspace.kill()
    succeed(workspace.cli("umount", workspace.path))
    assert not is_mounted(workspace.path)
    assert tree(workspace.path) == {"file": "x"}
    assert workspace.status()["died"] is None


def test_a_store_that_a_daemon_may_have_died_of_is_doubted(workspace: Workspace) -> None:
    """LMDB would not survive the damage, so it is looked for before LMDB comes near it."""
    plant(workspace.path, {f"file {n}": "x" * 3_000 for n in range(200)})
    fsync(workspace.path / "file 1")
    workspace.kill()
    data = bytearray((workspace.store / "data.mdb").read_bytes())
    for at in range(2 * 4096, len(data), 4096):
        if data[at + 10] == 1:  # a page of branches
            data[at + 16 : at + 24] = b"\xff" * 8
    (workspace.store / "data.mdb").write_bytes(data)
    done = workspace.try_to_mount()
    assert done.returncode == 17 and "damaged" in done.stderr and "--repair" in done.stderr
    succeed(workspace.cli("check", "--repair", "--store", workspace.store))
    workspace.mount()
    workspace.umount()
