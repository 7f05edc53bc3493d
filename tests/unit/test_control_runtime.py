"""The daemon's note, and whether its writer lives."""

from __future__ import annotations

import fcntl
import json
import os
import socket
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


def test_a_note_that_is_gone_can_be_withdrawn_again(workspace: Workspace) -> None:
    runtime.publish(workspace, note(os.getpid(), runtime.own_start_ticks()))
    runtime.withdraw(workspace)
    runtime.withdraw(workspace)
    assert runtime.living(workspace) is None


def test_a_reused_pid_is_another_process(workspace: Workspace) -> None:
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


# -- from another pid namespace --------------------------------------------------------------------


def hide(workspace: Workspace, pid: int = 7_000_000) -> Daemon:
    """Leave the note of a daemon whose process cannot be seen from here."""
    hidden = note(pid, 1)
    runtime.publish(workspace, hidden)
    found = json.loads(workspace.daemon.read_bytes())
    workspace.daemon.write_text(json.dumps(found | {"pid_namespace": "pid:[1]"}))
    return hidden


def test_a_daemon_that_cannot_be_seen_is_alive_while_it_listens(workspace: Workspace) -> None:
    hidden = hide(workspace)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(workspace.socket))
        assert runtime.living(workspace) is None
        listener.listen()
        assert runtime.living(workspace) == hidden
    assert runtime.living(workspace) is None
    assert runtime.left_behind(workspace) is not None


def test_a_daemon_that_cannot_be_seen_is_alive_while_it_holds_the_lock(
    workspace: Workspace,
) -> None:
    """As it does before it listens, and while it writes back."""
    hidden = hide(workspace)
    lock = workspace.store / "lock"
    lock.write_text(f"{hidden.pid}\n")
    assert runtime.living(workspace) is None
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert runtime.living(workspace) == hidden
        lock.write_text("1\n")
        assert runtime.living(workspace) is None, "somebody else has the store"


def test_a_daemon_of_our_own_namespace_is_judged_by_its_process(workspace: Workspace) -> None:
    runtime.publish(workspace, note(7_000_000, 1))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(workspace.socket))
        listener.listen()
        assert runtime.living(workspace) is None


@pytest.mark.parametrize("exchanged", ["store", "above/store", "note"])
def test_nothing_is_written_where_a_link_leads_that_came_later(
    exchanged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may rename in the path of a store could else have root replace any daemon.json."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    victim, store = tmp_path / "victim" / "store", tmp_path / "above" / "store"
    for place in (victim, store):
        place.mkdir(parents=True)
    (victim / "daemon.json").write_text("precious")
    if exchanged == "note":
        (store / "daemon.json").symlink_to(victim / "daemon.json")
    else:
        moved = store if exchanged == "store" else store.parent
        moved.rename(tmp_path / "aside")
        moved.symlink_to(victim if exchanged == "store" else victim.parent)
    place, mine = Workspace(tmp_path / "w", store), note(os.getpid(), 1)
    runtime.update(place, mine)
    runtime.record_failure(place, mine, "it failed")
    runtime.withdraw(place)
    assert (victim / "daemon.json").read_text() == "precious"


def test_a_pipe_in_place_of_the_lock_holds_no_command_up(workspace: Workspace) -> None:
    hide(workspace)
    os.mkfifo(workspace.store / "lock")
    assert runtime.living(workspace) is None
