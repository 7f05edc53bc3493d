"""Whom a client believes, where the daemon listens, and who keeps others from being heard."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from ckptfs import config
from ckptfs.control import runtime, server
from ckptfs.control.client import Client
from ckptfs.control.protocol import Request
from ckptfs.control.transfer import fetch_bytes
from ckptfs.errors import ControlError, PeerUntrusted, StateInvalid
from ckptfs.service.arguments import JsonObject
from tests.support.mounting import HAVE_FUSE, Workspace, ckptfs, scratch, succeed, workspace
from tests.support.peer import NOBODY, STRANGER, peer
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user"),
]

Answers = list[dict[str, object]]


def impersonate(directory: str, answers: Answers) -> None:
    """Listen where a daemon would, and answer one connection, a line for each request."""
    os.chdir(directory)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(5)
        listener.bind("control.sock")
        os.chmod("control.sock", 0o777)
        listener.listen()
        Path("listening").touch()
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as lines:
            for answer in answers:
                lines.readline()
                lines.write(json.dumps({"v": 1, "result": answer}).encode() + b"\n")
                lines.flush()


@pytest.fixture
def store() -> Iterator[config.Workspace]:
    """A workspace with a store, of which a process that lives says that it serves it."""
    with scratch() as base:
        made = config.Workspace(base / "work", base / "store")
        made.path.mkdir()
        made.store.mkdir(mode=0o700)
        (made.store / "data.mdb").touch()
        note = runtime.Daemon(
            pid=os.getpid(),
            start_ticks=runtime.own_start_ticks(),
            state=runtime.SERVING,
            workspace=str(made.path),
            started_ns=0,
            version="",
            options={},
        )
        runtime.publish(made, note)
        yield made


def _wait_for_listener(made: config.Workspace) -> None:
    wait_until((made.store / "listening").exists, "somebody listens")


def _planted(made: config.Workspace) -> None:
    """Where an attacker has got to, however it did."""
    made.store.chmod(0o777)


def test_a_client_talks_to_no_other_user(store: config.Workspace) -> None:
    _planted(store)
    with peer(NOBODY) as nobody:
        nobody.begin(impersonate, str(store.store), [{"answer": 1}])
        _wait_for_listener(store)
        store.store.chmod(0o700)
        with pytest.raises(PeerUntrusted, match="user 65534"), Client(store) as client:
            client.call("status")


def test_a_hook_talks_to_no_other_user(store: config.Workspace) -> None:
    env = {"XDG_DATA_HOME": str(store.path.parent / "data")}
    config.register(store, env)
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "1", "cwd": str(store.path)}
    _planted(store)
    with peer(NOBODY) as nobody:
        nobody.begin(impersonate, str(store.store), [{}] * 3)
        _wait_for_listener(store)
        store.store.chmod(0o700)
        done = subprocess.run(
            [sys.executable, "-m", "ckptfs", "hook"],
            input=json.dumps(event),
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
    assert "user 65534" in done.stdout + done.stderr


def test_root_talks_to_the_daemon_of_the_stores_owner(store: config.Workspace) -> None:
    """What another user's daemon says about that user's own store is that user's to say."""
    os.chown(store.store, NOBODY, NOBODY)
    with peer(NOBODY) as nobody:
        nobody.begin(impersonate, str(store.store), [{"answer": 1}])
        _wait_for_listener(store)
        with Client(store) as client:
            assert client.call("status") == {"answer": 1}


def test_root_talks_to_no_other_user_about_it(store: config.Workspace) -> None:
    os.chown(store.store, NOBODY, NOBODY)
    _planted(store)
    with peer(STRANGER) as stranger:
        stranger.begin(impersonate, str(store.store), [{"answer": 1}])
        _wait_for_listener(store)
        with pytest.raises(PeerUntrusted, match="user 65533"):
            Client(store)


def test_a_command_in_an_answer_is_not_run(store: config.Workspace) -> None:
    """Whoever answers: commands come from the settings of the user who runs them."""
    ran = store.path / "ran"
    counts = {"entries": 1, "inodes": 1}
    told = {"checkpoint": 1, "changed": True, "before": 2, **counts, "state_names": []}
    with peer() as daemon:
        answer: dict[str, object] = {**told, "on_restore": f"touch {ran}"}
        daemon.begin(impersonate, str(store.store), [answer])
        _wait_for_listener(store)
        words = ("restore", "1", "--force", "-w", store.path)
        env = {"XDG_DATA_HOME": str(store.path.parent / "data")}
        config.register(store, env)
        succeed(ckptfs(*words, env=env))
        daemon.finish(20)
    assert not ran.exists()


def test_a_document_of_an_answer_stays_where_documents_go(store: config.Workspace) -> None:
    listed: dict[str, object] = {
        "checkpoint": 1,
        "documents": [{"name": "../../../planted", "json": False, "bytes": 0}],
    }
    with peer() as daemon:
        daemon.begin(impersonate, str(store.store), [listed])
        _wait_for_listener(store)
        with Client(store) as client, pytest.raises(StateInvalid):
            fetch_bytes(client, "1")


def test_another_users_settings_run_nothing() -> None:
    with workspace("--no-write-back") as made:
        ran = made.path.parent / "ran"
        (made.path / "file").write_text("1")
        succeed(made.cli("save", "one", "-w", made.path))
        succeed(made.cli("config", "hooks.on_restore", f"touch {ran}", "-w", made.path))
        os.chown(made.store / "config.toml", NOBODY, NOBODY)
        (made.path / "file").write_text("2")
        done = succeed(made.cli("restore", "1", "--force", "-w", made.path))
        assert not ran.exists()
        assert "config.toml belongs to nobody" in done.stderr
        os.chown(made.store / "config.toml", 0, 0)
        (made.path / "file").write_text("3")
        succeed(made.cli("restore", "1", "--force", "-w", made.path))
        assert ran.exists()


# -- where the socket is ---------------------------------------------------------------------------


def _deep(base: Path) -> Path:
    """A directory whose path is too long for a socket's name."""
    deep = base / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    return deep


def test_a_long_path_keeps_its_socket_in_the_store() -> None:
    """So client and daemon agree, whatever XDG_RUNTIME_DIR is to each, and nothing is in /tmp."""
    with scratch() as base:
        made = Workspace(base, "--no-write-back")
        made.store = _deep(base) / "store"
        made.mount()
        try:
            assert stat.S_ISSOCK((made.store / "control.sock").lstat().st_mode)
            made.env["XDG_RUNTIME_DIR"] = str(base / "other")
            assert made.status()["state"] == "serving"
            assert not list((base / "run").iterdir()) and not (base / "other").exists()
        finally:
            made.finish()
        assert not (made.store / "control.sock").exists()


def test_a_link_in_tmp_leads_root_nowhere() -> None:
    """A planted /tmp/ckptfs-UID once made root change the mode of what it led to."""
    with scratch() as base:
        trap = base / "trap"
        trap.mkdir(mode=0o777)
        trap.chmod(0o1777)
        (base / "run").mkdir(mode=0o700)
        (base / "run" / "ckptfs").symlink_to(trap)
        made = Workspace(base, "--no-write-back")
        made.store = _deep(base) / "store"
        made.mount()
        try:
            assert stat.S_IMODE(trap.stat().st_mode) == 0o1777 and not list(trap.iterdir())
        finally:
            made.finish()


# -- who is heard ----------------------------------------------------------------------------------


def _connect(path: str, count: int, line: bytes = b"") -> int:
    """Take that many places and keep them; how many were given."""
    for _ in range(count):
        held = socket.socket(socket.AF_UNIX)
        held.connect(path)
        held.sendall(line)
        _HELD.append(held)
    return len(_HELD)


_HELD: list[socket.socket] = []


@pytest.mark.parametrize(
    "line",
    [b"", b'{"v":1,', b'{"v":1,"op":"figures","args":{}}\n', b'{"v":1,"op":"watch","args":{}}\n'],
    ids=["nothing", "part of a line", "one request", "watch"],
)
def test_silent_connections_shut_no_client_out(line: bytes) -> None:
    with workspace("--no-write-back") as made, peer() as silent:
        address = str(made.store / "control.sock")
        assert silent(_connect, address, 200, line) == 200
        place = config.Workspace(made.path, made.store)
        for _ in range(3):
            with Client(place) as client:
                assert client.call("figures")["inodes"]


async def _serve(path: Path) -> None:
    async def handle(request: Request, connection: server.Connection) -> JsonObject:
        if request.op == "wait":
            await connection.wait_for_anything()
        if request.op == "end":
            nursery.cancel_scope.cancel()
        return {}

    with server.listen(path) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, listener, handle)


def serve(path: Path) -> None:
    """Be a daemon, as far as the socket goes, until somebody says that it is enough."""
    trio.run(_serve, path)


def test_one_user_leaves_room_for_root(store: config.Workspace) -> None:
    """Also if all of its connections are in the middle of something and none can be closed."""
    os.chown(store.store, NOBODY, NOBODY)
    with peer(NOBODY) as daemon, peer(NOBODY) as owner:
        daemon.begin(serve, store.socket)
        wait_until(partial(_listens, store.socket), "it listens")
        line = b'{"v":1,"op":"wait","args":{}}\n'
        assert owner(_connect, str(store.socket), 200, line) == 200
        assert "serves 112 connections" in owner(_ask, str(store.socket))
        with Client(store) as root:
            root.call("hello")
            root.send_request("end")
        daemon.finish(20)


def _listens(path: Path) -> bool:
    """A socket has its name before it listens."""
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(str(path)) == 0


def _ask(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        return asking.recv(4096).decode()


def test_one_who_watches_is_not_hung_up_on() -> None:
    with workspace("--no-write-back") as made, peer() as silent:
        place = config.Workspace(made.path, made.store)
        with Client(place) as watching:
            events = watching.watch()
            silent(_connect, str(made.store / "control.sock"), 200)
            (made.path / "file").write_text("new")
            with Client(place) as acting:
                acting.call("save", {"message": "heard"})
            assert next(events)["event"] == "checkpoint_created"


def test_too_many_watchers_are_refused_with_words() -> None:
    with workspace("--no-write-back") as made, peer() as silent:
        place = config.Workspace(made.path, made.store)
        line = b'{"v":1,"op":"watch","args":{}}\n'
        silent(_connect, str(made.store / "control.sock"), 100, line)
        with Client(place) as client, pytest.raises(ControlError, match="watch"):
            client.watch()
