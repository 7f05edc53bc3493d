"""Both ends of the control socket, over a real one: answers, and clients that misbehave."""

from __future__ import annotations

import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

from ckptfs.config import Workspace
from ckptfs.control import protocol, server
from ckptfs.control.client import Client
from ckptfs.control.protocol import Request
from ckptfs.control.server import Connection
from ckptfs.errors import CheckpointUnknown, CkptfsError, ControlError, DaemonGone
from ckptfs.service.arguments import JsonObject


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "w", tmp_path)


async def echo(request: Request, connection: Connection) -> JsonObject | None:
    if request.op == "steps":
        for step in range(request.args["count"]):
            connection.send_progress(
                {"files": step, "padding": "x" * request.args.get("padding", 0)}
            )
    elif request.op == "fail":
        raise CheckpointUnknown(12)
    elif request.op == "wait":
        await connection.wait_for_anything()
    elif request.op == "block":
        time.sleep(0.6)  # noqa: ASYNC251 - as a verb does, which keeps the loop
    elif request.op == "bug":
        raise ZeroDivisionError("planted")
    return {"op": request.op, **request.args}


def converse(workspace: Workspace, talk: Callable[[], object]) -> object:
    """Run ``talk``, which blocks, in a thread while a server answers."""

    async def both() -> object:
        listener = server.listen(workspace.socket)
        with listener:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, listener, echo)
                result = await trio.to_thread.run_sync(talk)
                nursery.cancel_scope.cancel()
        return result

    return trio.run(both)


def raw(workspace: Workspace) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(20)
    connected.connect(str(workspace.socket))
    return connected


def everything(connected: socket.socket) -> bytes:
    received = b""
    while more := connected.recv(65536):
        received += more
    return received


def test_a_call_returns_the_result(workspace: Workspace) -> None:
    def talk() -> None:
        with Client(workspace) as client:
            assert client.call("hello", {"name": "wörld"}) == {"op": "hello", "name": "wörld"}
            assert client.call("again") == {"op": "again"}

    converse(workspace, talk)


def test_progress_comes_before_the_result(workspace: Workspace) -> None:
    def talk() -> list[JsonObject]:
        seen: list[JsonObject] = []
        with Client(workspace) as client:
            client.call("steps", {"count": 3}, on_progress=seen.append)
        return seen

    seen = converse(workspace, talk)
    assert isinstance(seen, list)
    assert [step["files"] for step in seen] == [0, 1, 2]


def test_progress_that_is_not_wanted_is_passed_over(workspace: Workspace) -> None:
    def talk() -> None:
        with Client(workspace) as client:
            assert client.call("steps", {"count": 2})["count"] == 2

    converse(workspace, talk)


def test_an_error_is_raised_as_itself(workspace: Workspace) -> None:
    def talk() -> None:
        with Client(workspace) as client:
            with pytest.raises(CheckpointUnknown, match="12"):
                client.call("fail")
            assert client.call("hello")

    converse(workspace, talk)


def test_a_bug_is_logged_and_hurts_no_other_client(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    def talk() -> None:
        with Client(workspace) as client:
            with pytest.raises(CkptfsError, match="planted"):
                client.call("bug")
            assert client.call("hello")

    with caplog.at_level(logging.ERROR):
        converse(workspace, talk)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("garbage", [b"hello\n", b"\n", b"\x00\xff\n", b'{"v":99,"op":"x"}\n'])
def test_garbage_is_answered_and_hung_up_on(workspace: Workspace, garbage: bytes) -> None:
    def talk() -> None:
        with raw(workspace) as connected:
            connected.sendall(garbage)
            answer = protocol.decode_answer(everything(connected))
            assert isinstance(answer.error, ControlError)
        with Client(workspace) as client:
            assert client.call("hello")

    converse(workspace, talk)


def test_a_request_without_end_is_cut_off(workspace: Workspace) -> None:
    def talk() -> None:
        with raw(workspace) as connected:
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                connected.sendall(b"x" * (protocol.REQUEST_MAX * 8))

    converse(workspace, talk)


def test_a_request_of_50_mb_is_told_so(workspace: Workspace) -> None:
    def talk() -> None:
        with Client(workspace) as client, pytest.raises(ControlError, match="too long"):
            client.call("hello", {"name": "x" * (50 << 20)})
        with Client(workspace) as client:
            assert client.call("hello")

    converse(workspace, talk)


def test_a_hundred_clients_are_served_at_once(workspace: Workspace) -> None:
    def ask(number: int) -> JsonObject:
        with Client(workspace) as client:
            return client.call("hello", {"number": number})

    def talk() -> list[int]:
        with ThreadPoolExecutor(100) as threads:
            return [answer["number"] for answer in threads.map(ask, range(100))]

    assert converse(workspace, talk) == list(range(100))


def test_a_silent_client_disturbs_no_other(workspace: Workspace) -> None:
    def talk() -> None:
        with raw(workspace) as silent, raw(workspace) as partial:
            partial.sendall(b'{"v":1,')
            with Client(workspace) as client:
                assert client.call("hello")
            silent.sendall(protocol.encode_request("hello", {}))
            assert protocol.decode_answer(silent.makefile("rb").readline()).result

    converse(workspace, talk)


def test_a_client_that_never_reads_loses_progress_only(workspace: Workspace) -> None:
    wish = protocol.encode_request("steps", {"count": 3000, "padding": 1000})

    def talk() -> bytes:
        with raw(workspace) as lazy:
            lazy.sendall(wish)
            with Client(workspace) as client:
                assert client.call("hello")
            lazy.shutdown(socket.SHUT_WR)
            return everything(lazy)

    received = converse(workspace, talk)
    assert isinstance(received, bytes)
    lines = received.splitlines()
    answers = [protocol.decode_answer(line) for line in lines]  # none of them is cut
    assert answers[-1].result is not None
    assert 0 < len(lines) < 3000


def test_a_client_that_leaves_in_the_middle_is_forgotten(workspace: Workspace) -> None:
    def talk() -> None:
        for _ in range(5):
            with raw(workspace) as leaving:
                leaving.sendall(protocol.encode_request("steps", {"count": 100}))
        with Client(workspace) as client:
            assert client.call("hello")

    converse(workspace, talk)


def admitted(workspace: Workspace) -> Client:
    """A connection in another's place. One that has just been answered is silent a moment later."""
    deadline = time.monotonic() + 20
    while True:
        client = Client(workspace)
        try:
            client.call("hello")
            return client
        except ControlError:
            client.close()
            if time.monotonic() > deadline:
                raise


def test_the_longest_silent_connection_gives_way_to_a_new_one(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for its answer keeps its place; of the others the longest silent gives way."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(server, "KEPT", 0)

    def talk() -> None:
        with Client(workspace) as one, raw(workspace) as two:
            one.call("hello")
            two.sendall(protocol.encode_request("wait", {}))
            with admitted(workspace) as three:
                with pytest.raises(ControlError, match="others needed the connection"):
                    one.call("hello")
                three.send_request("wait")
                with Client(workspace) as four, pytest.raises(ControlError, match="serves 2"):
                    four.call("hello")
            two.shutdown(socket.SHUT_WR)
            assert b'"op":"wait"' in everything(two)

    converse(workspace, talk)


def test_half_a_request_is_not_waited_for(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINE_PATIENCE", 0.2)

    def talk() -> None:
        for words in (b"", b'{"v":1,'):
            with raw(workspace) as slow:
                slow.sendall(words)
                assert b"no whole request" in everything(slow)
        with Client(workspace) as client:
            client.call("hello")
            time.sleep(0.5)  # between two requests there is more time
            assert client.call("hello")

    converse(workspace, talk)


def test_what_came_while_the_loop_was_busy_came_in_time(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINE_PATIENCE", 0.2)

    def talk() -> None:
        with Client(workspace) as busy, raw(workspace) as late, Client(workspace) as known:
            known.call("hello")  # both are accepted now
            busy.send_request("block")
            late.sendall(protocol.encode_request("hello", {}))
            assert b"result" in late.recv(4096)
            assert busy.receive_result()

    converse(workspace, talk)


def test_a_daemon_listens_in_no_directory_that_others_can_change(tmp_path: Path) -> None:
    """Nor makes it its own: it may be /tmp, behind a link."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "link").symlink_to(shared)
    with pytest.raises(ControlError, match="others can write to it"):
        server.listen(shared / "x.sock")
    with pytest.raises(OSError, match="Not a directory"):
        server.listen(tmp_path / "link" / "x.sock")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777 and not list(shared.iterdir())


def test_what_is_no_socket_is_not_taken_away_for_one(workspace: Workspace) -> None:
    workspace.socket.write_text("mine")
    with pytest.raises(ControlError, match="no socket lies there"):
        server.listen(workspace.socket)
    assert workspace.socket.read_text() == "mine"


def test_users_do_not_take_each_others_places() -> None:
    found = server.Slots(users=2)
    most = server.CONNECTIONS_MAX - server.KEPT
    for _ in range(most):
        found.take(server.Slot(1000, lambda: True, None))
    with pytest.raises(ControlError, match=f"serves {most}"):
        found.take(server.Slot(1000, lambda: True, 0.0))
    for _ in range(server.KEPT):
        found.take(server.Slot(0, lambda: True, None))


def test_other_users_are_not_heard(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "allowed", lambda uid: False)

    def talk() -> None:
        with Client(workspace) as client, pytest.raises(DaemonGone):
            client.call("hello")

    converse(workspace, talk)


def test_only_the_own_user_and_root_are_allowed() -> None:
    assert server.allowed(os.geteuid())
    assert server.allowed(0)
    assert not server.allowed(os.geteuid() + 12345)


def test_the_peers_user_is_known() -> None:
    one, two = socket.socketpair()
    with one, two:
        assert server.peer_of(one).uid == os.getuid()


def test_the_socket_is_for_its_owner_only(workspace: Workspace) -> None:
    with server.listen(workspace.socket):
        assert stat.S_IMODE(workspace.socket.stat().st_mode) == 0o600


def test_a_leftover_socket_is_replaced(workspace: Workspace) -> None:
    server.listen(workspace.socket).close()
    with server.listen(workspace.socket), raw(workspace):
        pass


def test_no_daemon_is_an_error_at_once(workspace: Workspace) -> None:
    with pytest.raises(DaemonGone):
        Client(workspace)
    server.listen(workspace.socket).close()
    with pytest.raises(DaemonGone):
        Client(workspace)


def test_an_adopted_connection_outlives_the_loop(workspace: Workspace) -> None:
    adopted = []

    async def adopt(request: Request, connection: Connection) -> JsonObject | None:
        adopted.append(connection.adopt())
        done.set()
        return None

    async def until_adopted(listener: socket.socket) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, listener, adopt)
            await done.wait()
            nursery.cancel_scope.cancel()

    with server.listen(workspace.socket) as listener, raw(workspace) as client:
        client.sendall(protocol.encode_request("umount", {}))
        done = trio.Event()
        trio.run(until_adopted, listener)
        (outlet,) = adopted
        outlet.send_progress({"files": 1})
        outlet.finish(protocol.encode_result({"done": True}))
        outlet.close()
        lines = everything(client).splitlines()
    assert [protocol.decode_answer(line) for line in lines] == [
        protocol.Answer(progress={"files": 1}),
        protocol.Answer(result={"done": True}),
    ]
