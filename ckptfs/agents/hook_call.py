"""One hook call: from the bytes on standard input to the answer; a failure becomes a warning.

The daemon is asked over its socket and nothing in the workspace is touched, so that a mount which
hangs cannot hold an agent up. Only where the socket cannot be reached, as in a sandbox, the mount
is the way. It speaks the protocol of `ckptfs.control` without importing that: a
call takes a few dozen milliseconds in all, and most of them are imports.
"""

from __future__ import annotations

import _socket
import json
import os

from ckptfs import locating, unixsocket
from ckptfs.agents import events, hook_input

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ckptfs import control_file

    _Connection = _socket.socket | control_file.Connection

#: How long the daemon may take, in seconds. A hook must never hold an agent up for long.
PATIENCE = 4.0

#: `ckptfs.control.protocol.VERSION`
PROTOCOL = 1
_ANSWER_MAX = 1 << 20

#: At these events a person reads what is wrong; these agents do not pass it to the model.
_TOLD_AT = frozenset({"sessionstart"})
_TELL_PEOPLE = frozenset({"claude", "codex", "gemini", "qwen", "droid", "copilot", "opencode"})

#: What is said where there is nothing to say. Kiro and Droid hand everything else to the model.
#: Antigravity's tools wait for a decision, and `{}` forbids; to ask means to go by its settings.
_NOTHING = {"kiro": b"", "droid": b""}
_NOTHING_BEFORE_TOOL = {"antigravity": b'{"decision": "ask"}'}


class NoAnswer(Exception):
    """The daemon did not do what it was asked for; the words say why."""


def nothing(agent: str, event: str) -> bytes:
    """What an agent takes for no opinion."""
    if events.EVENTS.get(events.key_of(event)) == "before" and agent in _NOTHING_BEFORE_TOOL:
        return _NOTHING_BEFORE_TOOL[agent]
    return _NOTHING.get(agent, b"{}")


def answer(read: hook_input.Read, agent: str = "", event: str = "") -> tuple[bytes, str]:
    """Do what one call asks for. Returns what the agent is answered and a warning, or "".

    ``agent`` and ``event`` are what the hook's command says, for input that does not. Raises
    nothing that is to be expected: an agent goes on whatever happens.
    """
    try:
        record = hook_input.read_object(read, optional=bool(event))
    except (ValueError, OSError) as error:
        reason = hook_input.clean(str(error))
        warning = f"cannot read the hook's input: {reason}. No checkpoint was taken."
        return nothing(agent, event), warning
    found = events.Event(record, agent, event)
    _note_call(found.agent)
    if found.key in ("worktreecreate", "worktreeremove"):
        from ckptfs.agents import worktrees  # late: it is hardly ever asked for

        return worktrees.answer(found)
    warning, collided = _perform(found)
    if collided is not None:
        from ckptfs.agents import collisions  # late: there is hardly ever one

        output = collisions.answer(found.agent, found.name, collided) or nothing(
            found.agent, found.name
        )
        return output, collisions.words(collided)
    if warning and found.key in _TOLD_AT and found.agent in _TELL_PEOPLE:
        return json.dumps({"systemMessage": f"ckptfs: {warning}"}).encode(), warning
    return nothing(found.agent, found.name), warning


def _note_call(agent: str) -> None:
    """Leave a note that this agent called, for `ckptfs hook status`: the time of an empty file."""
    if agent not in hook_input.NAMES:
        return
    path = locating.hook_note(agent)
    try:
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(path, flags, 0o600))
        except OSError:
            pass
    except OSError:
        pass  # a sandbox without our directory: a call does not fail for a note


def _perform(event: events.Event) -> tuple[str, hook_input.JsonObject | None]:
    """Ask the daemon for what the event is worth. Returns what is to be said if that fails, and
    the answer that tells of a collision, if one does."""
    warning, answers = _asked(event)
    return warning, next((found for found in answers if found.get("collisions")), None)


def _asked(event: events.Event) -> tuple[str, list[hook_input.JsonObject]]:
    deed = "no checkpoint was taken"
    try:
        kind = event.kind
        if not kind:
            return "", []
        deed = events.FAILED.get(kind, deed)
        found = _workspace(event)
        if isinstance(found, str):
            return f"{found}, so {deed}." if kind not in events.FAILED else "", []
        path, store = found
        connection = _reach(path, store)
        if connection is None:
            shown = hook_input.clean(path)
            failed = hook_input.clean(locating.failure_of(store)) if store else ""
            why = f" (its daemon failed: {failed.rstrip('.')})" if failed else ""
            mount = f"{shown} is not mounted{why}, so {deed}. Mount it with: ckptfs mount {shown}"
            return mount if kind not in events.FAILED or failed else "", []
        return "", _ask(connection, events.requests_for(event, path))
    except events.Unknown as error:
        return f"the hook event {error} is unknown. No checkpoint was taken.", []
    except NoAnswer as error:
        return f"{deed}: {hook_input.clean(str(error))}", []
    except OSError as error:
        reason = (error.strerror or str(error) or "it does not answer").lower()
        return f"{deed}: the daemon cannot be reached ({reason}).", []


def _workspace(event: events.Event) -> tuple[str, str] | str:
    """The workspace that the event is about, and its store, which is empty if only the mount is
    seen; or why there is none."""
    where = hook_input.directory(event.record)
    found = _find(where)
    if found is None and (file := events.file_of(event.record)):
        found = _find(os.path.dirname(file))
    return found or _mounted(where) or f"{hook_input.clean(where)} is in no workspace"


def _mounted(where: str) -> tuple[str, str] | None:
    from ckptfs import control_file  # late: the registry mostly knows

    mount = None if "\0" in where else control_file.mount_around(os.path.realpath(where))
    return (mount.path, "") if mount is not None and mount.is_whole else None


def _reach(path: str, store: str) -> _Connection | None:
    """A connection to the daemon: by its socket, else through the mount. None if there is none."""
    refused = None
    if store and locating.note_of(store) is not None:
        try:
            return _connected(store)
        except (BlockingIOError, TimeoutError):
            raise  # the daemon is there and does not get to it: the mount would hang, too
        except OSError as error:
            refused = error
    from ckptfs import control_file  # late: the socket mostly answers

    mount = control_file.mount_at(path)
    if mount is not None and (not store or mount.is_of(store)) and control_file.is_alive(mount):
        connection = control_file.Connection(mount)
        connection.settimeout(PATIENCE)
        return connection
    if refused is not None:
        raise refused
    return None


def find_workspace(where: str) -> tuple[str, str] | None:
    """The workspace around a directory, and its store; None if there is none."""
    return _find(where) or _mounted(where)


def ask(
    path: str, store: str, op: str, args: hook_input.JsonObject, line: int = 0
) -> hook_input.JsonObject:
    """Ask the daemon of a workspace, or of that fork of it, for one thing. Raises `NoAnswer` and
    OSError."""
    connection = _reach(path, store)
    if connection is None:
        raise NoAnswer(f"{hook_input.clean(path)} is not mounted.")
    return _ask(connection, [(op, args)], line)[0]


def _find(where: str) -> tuple[str, str] | None:
    """The workspace around a directory, and its store; only if the name leads nowhere are links
    followed. The registry alone is asked: to try default places costs more than the whole call."""
    if "\0" in where:
        return None
    path = os.path.normpath(where)
    if "/.forks/" in f"{path}/":  # by that name a fork would be taken for the workspace
        return _registered(os.path.realpath(path))
    return _registered(path) or _registered(os.path.realpath(path))


def _registered(path: str) -> tuple[str, str] | None:
    while True:
        if (store := locating.store_of(path)) is not None:
            return path, store
        if path == (above := os.path.dirname(path)):
            return None
        path = above


def _ask(
    connection: _Connection, requests: list[events.Request], line: int = 0
) -> list[hook_input.JsonObject]:
    answers = []
    try:
        for op, args in requests:
            asked = {"v": PROTOCOL, "op": op, "args": {**args, "pid": os.getppid()}, "line": line}
            connection.sendall(json.dumps(asked).encode() + b"\n")
            answers.append(_result(_line(connection)))
    finally:
        connection.close()
    return answers


def _connected(store: str) -> _socket.socket:
    """Only the store's own daemon may hear what an agent is about to do."""
    try:
        return unixsocket.connect_to_daemon(locating.socket_of(store), store, PATIENCE)
    except unixsocket.Untrusted as error:
        reason = f"user {error.uid} listens at its socket, who may not speak for this store."
        raise NoAnswer(reason) from None


def _line(connection: _Connection) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        more = connection.recv(65536)
        if not more or len(received) > _ANSWER_MAX:
            raise NoAnswer("the daemon ended before it answered.")
        received += more
    return received


def _result(line: bytes) -> hook_input.JsonObject:
    try:
        found = json.loads(line)
        if "result" in found:
            return found["result"] if isinstance(found["result"], dict) else {}
        reason = str(found["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = "the daemon's answer makes no sense."
    raise NoAnswer(reason)
