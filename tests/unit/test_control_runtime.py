"""The daemon's note, and whether its writer lives."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.control.runtime import Daemon


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "w", tmp_path)


def note(pid: int, ticks: int) -> Daemon:
    return Daemon(pid, ticks, runtime.SERVING, "/w", 5, "0", {"xattrs": True})


def test_our_own_note_is_alive(workspace: Workspace) -> None:
    mine = note(os.getpid(), runtime.own_start_ticks())
    assert runtime.living(workspace) is None
    runtime.publish(workspace, mine)
    assert runtime.living(workspace) == mine
    runtime.withdraw(workspace)
    assert runtime.living(workspace) is None


def test_withdrawing_twice_is_fine(workspace: Workspace) -> None:
    runtime.withdraw(workspace)
    runtime.withdraw(workspace)


def test_a_reused_pid_is_somebody_else(workspace: Workspace) -> None:
    runtime.publish(workspace, note(os.getpid(), runtime.own_start_ticks() - 1))
    assert runtime.living(workspace) is None


def test_a_process_that_ended_is_not_alive(workspace: Workspace) -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    ticks = runtime.start_ticks(child.pid)
    assert ticks is not None
    theirs = note(child.pid, ticks)
    runtime.publish(workspace, theirs)
    assert runtime.living(workspace) == theirs
    assert not runtime.wait_for_end(theirs, 0)
    child.kill()
    assert runtime.wait_for_end(theirs, 20)
    # A zombie until we wait for it, and that is dead too.
    assert runtime.living(workspace) is None
    child.communicate()
    assert runtime.living(workspace) is None
    assert runtime.wait_for_end(theirs, 0)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"pid": 1}', b"\xff"])
def test_a_damaged_note_is_none(content: bytes, workspace: Workspace) -> None:
    workspace.daemon.write_bytes(content)
    assert runtime.living(workspace) is None


def test_a_note_with_more_fields_is_read(workspace: Workspace) -> None:
    runtime.publish(workspace, note(os.getpid(), runtime.own_start_ticks()))
    text = workspace.daemon.read_text().replace("{", '{"new": 1, ', 1)
    workspace.daemon.write_text(text)
    assert runtime.living(workspace) is not None
