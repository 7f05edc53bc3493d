"""`ckptfs hook` and daemons that behave badly: stand-ins that listen where a daemon would."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.config import Workspace
from ckptfs.control import runtime

Conduct = Callable[[socket.socket], None]


@contextmanager
def daemon(base: Path, conduct: Conduct) -> Iterator[dict[str, str]]:
    """Something that says it is the daemon of ``base/work``; yields the environment."""
    env = {"XDG_DATA_HOME": str(base / "data")}
    workspace = Workspace(base / "work", base / "store")
    for path in (workspace.path, workspace.store):
        path.mkdir()
    config.register(workspace, env)
    note = runtime.Daemon(os.getpid(), runtime.own_start_ticks(), "serving", "", 0, "0", {})
    runtime.publish(workspace, note)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(workspace.socket))
        listener.listen(1)

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                conduct(accepted)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield env
        thread.join(30)


def answering(line: bytes) -> Conduct:
    def conduct(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(line)

    return conduct


def mute(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def endless(connection: socket.socket) -> None:
    try:
        while True:
            connection.sendall(b"x" * 65536)
    except OSError:
        pass


CONDUCTS: dict[str, tuple[Conduct, str]] = {
    "hangs up at once": (lambda connection: None, ""),
    "hangs up midway": (answering(b'{"v": 1, "resu'), "ended before it answered"),
    "answers nonsense": (answering(b"nonsense\n"), "makes no sense"),
    "answers a list": (answering(b"[]\n"), "makes no sense"),
    "answers with less": (answering(b'{"v": 1}\n'), "makes no sense"),
    "is of another version": (
        answering(b'{"v": 2, "error": {"kind": "protocol-mismatch", "message": "It speaks 2."}}\n'),
        "It speaks 2.",
    ),
    "refuses": (
        answering(b'{"v": 1, "error": {"message": "The disk is full."}}\n'),
        "disk is full",
    ),
    "never answers": (mute, "timed out"),
    "never ends its answer": (endless, "ended before it answered"),
}


@pytest.mark.parametrize("name", CONDUCTS)
def test_the_agent_goes_on(tmp_path: Path, name: str) -> None:
    conduct, words = CONDUCTS[name]
    given = {
        "hook_event_name": "PreToolUse",
        "cwd": str(tmp_path / "work"),
        "tool_name": "Bash",
        "tool_input": {"command": "make"},
    }
    with daemon(tmp_path, conduct) as env:
        done = subprocess.run(
            [sys.executable, "-m", "ckptfs", "hook"],
            input=json.dumps(given).encode(),
            env={**os.environ, **env},
            capture_output=True,
            timeout=60,
        )
    assert (done.returncode, done.stdout) == (0, b"{}\n")
    said = done.stderr.decode()
    assert said.startswith("ckptfs: no checkpoint was taken: ") and said.count("\n") == 1
    assert words in said


#: By agent: the answer that forbids nothing, also if the daemon hangs.
HELD = {"antigravity": b'{"decision": "ask"}\n', "kiro": b"", "cursor": b"{}\n"}


@pytest.mark.parametrize("name", HELD)
def test_a_daemon_that_hangs_forbids_no_tool(tmp_path: Path, name: str) -> None:
    given = {"cwd": str(tmp_path / "work"), "tool_name": "shell"}
    command = [sys.executable, "-m", "ckptfs", "hook", "--agent", name, "--event", "PreToolUse"]
    with daemon(tmp_path, mute) as env:
        done = subprocess.run(
            command,
            input=json.dumps(given).encode(),
            env={**os.environ, **env},
            capture_output=True,
            timeout=60,
        )
    assert (done.returncode, done.stdout) == (0, HELD[name])
    assert b"timed out" in done.stderr


def test_what_was_not_kept_of_a_tool_that_ended_is_said(tmp_path: Path) -> None:
    given = {"hook_event_name": "PostToolUse", "cwd": str(tmp_path / "work"), "tool_name": "Bash"}
    old = b'{"v": 1, "error": {"message": "There is no operation \'result\'."}}\n'
    with daemon(tmp_path, answering(old)) as env:
        done = subprocess.run(
            [sys.executable, "-m", "ckptfs", "hook"],
            input=json.dumps(given).encode(),
            env={**os.environ, **env},
            capture_output=True,
            timeout=60,
        )
    assert (done.returncode, done.stdout) == (0, b"{}\n")
    assert done.stderr.startswith(b"ckptfs: how the tool ended was not kept: There is no operation")
