"""Watching a daemon over its socket: every event, in order, and nobody waits for one who sleeps."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from ckptfs.config import Workspace
from ckptfs.control import events, protocol, server
from ckptfs.control.client import Client
from ckptfs.control.events import QUEUE_MAX, Hub
from ckptfs.control.protocol import Request
from ckptfs.control.server import Connection
from ckptfs.errors import DaemonGone, NothingToUndo
from ckptfs.service.arguments import JsonObject


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "w", tmp_path)


def converse(workspace: Workspace, talk: Callable[[], object]) -> None:
    """Run ``talk``, which blocks, in a thread, with a server whose operations only make events."""
    hub = Hub(workspace.path)

    async def answer(request: Request, connection: Connection) -> JsonObject | None:
        if request.op == "watch":
            await hub.follow(connection)
            return None
        if request.op == "fail":
            hub.failed("undo", NothingToUndo("undo"))
            return {}
        hub.happened(request.op, request.args)
        return {}

    async def both() -> None:
        with server.listen(workspace.socket) as listener:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, listener, answer)
                await trio.to_thread.run_sync(talk)
                nursery.cancel_scope.cancel()

    trio.run(both)


def test_what_happens_is_told_in_order(workspace: Workspace) -> None:
    def talk() -> None:
        watching, acting = Client(workspace), Client(workspace)
        with watching, acting:
            told = watching.watch()
            acting.call("save", {"id": 1, "changed": True})
            acting.call("save", {"id": 1, "changed": False})
            acting.call("list", {})
            acting.call("save", {"id": 2, "changed": True, "pruned": [0]})
            acting.call("restore", {"checkpoint": 1})
            acting.call("delete", {"checkpoints": [{"id": 2}]})
            acting.call("fail")
            found = [next(told) for _ in range(6)]
        assert [(item["event"], item["checkpoint"]) for item in found] == [
            ("checkpoint_created", 1),
            ("checkpoint_created", 2),
            ("checkpoints_pruned", None),
            ("checkpoint_restored", 1),
            ("checkpoints_pruned", None),
            ("error", None),
        ]
        assert found[0]["workspace"] == str(workspace.path)
        assert found[2]["data"] == {"ids": ["0"]}
        assert found[5]["data"]["kind"] == "nothing-to-undo"

    converse(workspace, talk)


def test_a_watcher_that_never_reads_is_dropped_and_no_other_waits(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[object] = []
    follow = events.Hub.follow

    async def noted(self: Hub, connection: Connection) -> None:
        await follow(self, connection)
        dropped.append(connection)

    monkeypatch.setattr(events.Hub, "follow", noted)

    def talk() -> None:
        with socket.socket(socket.AF_UNIX) as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(str(workspace.socket))
            lazy.sendall(protocol.encode_request("watch", {}))
            with Client(workspace) as watching, Client(workspace) as acting:
                told = watching.watch()
                padding = "x" * 10_000
                for number in range(2 * QUEUE_MAX):
                    acting.call("save", {"id": number, "padding": padding})
                    assert next(told)["checkpoint"] == number
                assert len(dropped) == 1

    converse(workspace, talk)


def test_one_who_hangs_up_is_forgotten(workspace: Workspace) -> None:
    def talk() -> None:
        for _ in range(3):
            with Client(workspace) as watching:
                watching.watch()
        with Client(workspace) as acting:
            acting.call("save", {"id": 1})

    converse(workspace, talk)


def test_the_end_of_the_daemon_ends_the_watch(workspace: Workspace) -> None:
    watching: list[Client] = []

    def talk() -> None:
        client = Client(workspace)
        watching.append(client)
        told.append(client.watch())

    told: list[object] = []
    converse(workspace, talk)
    assert list(told[0]) == []  # type: ignore[call-overload]


def test_a_daemon_that_dies_is_told_from_one_that_ends(workspace: Workspace) -> None:
    with server.listen(workspace.socket) as listener:
        client = Client(workspace)
        daemon, _ = listener.accept()
        with daemon:
            daemon.sendall(protocol.encode_result({"watching": True}))
            told = client.watch()
        with pytest.raises(DaemonGone):
            next(told)


def test_hanging_up_ends_the_wait(workspace: Workspace) -> None:
    def talk() -> None:
        client = Client(workspace)
        told = client.watch()
        client.hang_up()
        assert list(told) == []

    converse(workspace, talk)
