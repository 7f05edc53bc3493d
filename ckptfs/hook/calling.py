"""One hook call: from the bytes on standard input to the answer, whatever goes wrong on the way.

The daemon is asked over its socket and nothing in the workspace is touched, so that a mount which
hangs cannot hold an agent up. It speaks the protocol of `ckptfs.control` without importing that: a
call takes a few dozen milliseconds in all, and most of them are imports.
"""

from __future__ import annotations

import _socket
import json
import os
import time

from ckptfs import locating
from ckptfs.hook import events, reading

#: How long the daemon may take, in seconds. A hook must never hold an agent up for long.
PATIENCE = 4.0

#: `ckptfs.control.protocol.VERSION`
PROTOCOL = 1
_ANSWER_MAX = 1 << 20

#: At these a person is there to read what is wrong.
_TOLD = frozenset({"SessionStart"})


class NoAnswer(Exception):
    """The daemon did not do what it was asked for; the words say why."""


def answer(read: reading.Read) -> tuple[bytes, str]:
    """Do what one call asks for. Returns the JSON for the agent and a warning, or "".

    Raises nothing that is to be expected: an agent goes on whatever happens.
    """
    try:
        record = reading.read_object(read)
    except (ValueError, OSError) as error:
        reason = events.clean(str(error))
        return b"{}", f"cannot read the hook's input: {reason}. No checkpoint was taken."
    warning = _perform(record)
    if warning and record.get("hook_event_name") in _TOLD:
        return json.dumps({"systemMessage": f"ckptfs: {warning}"}).encode(), warning
    return b"{}", warning


def _perform(record: reading.Record) -> str:
    """Take the checkpoint; return what is to be said if there is none."""
    try:
        if not events.matters(record):
            return ""
        where = _directory(record)
        found = _find(where)
        if found is None:
            return f"{events.clean(where)} is in no workspace, so no checkpoint was taken."
        path, store = found
        if locating.note_of(store) is None:
            shown = events.clean(path)
            return (
                f"{shown} is not mounted, so no checkpoint was taken. "
                f"Mount it with: ckptfs mount {shown}"
            )
        _ask(locating.socket_of(store), events.mark_for(record, path))
    except events.Unknown as error:
        return f"there is no hook event {error}, as far as it knows. No checkpoint was taken."
    except NoAnswer as error:
        return f"no checkpoint was taken: {events.clean(str(error))}"
    except OSError as error:
        reason = (error.strerror or str(error) or "it does not answer").lower()
        return f"no checkpoint was taken: the daemon cannot be reached ({reason})."
    return ""


def _directory(record: reading.Record) -> str:
    """The agent's directory, from its input; else our own, which it started us in."""
    named = record.get("cwd")
    return named if isinstance(named, str) and os.path.isabs(named) else os.getcwd()


def _find(where: str) -> tuple[str, str] | None:
    """The workspace around a directory, and its store; only if the name leads nowhere are links
    followed. The registry alone is asked: to try default places costs more than the whole call."""
    if "\0" in where:
        return None
    path = os.path.normpath(where)
    return _registered(path) or _registered(os.path.realpath(path))


def _registered(path: str) -> tuple[str, str] | None:
    while True:
        if (store := locating.store_of(path)) is not None:
            return path, store
        if path == (above := os.path.dirname(path)):
            return None
        path = above


def _ask(address: str, mark: events.Mark) -> None:
    asked = {
        "kind": "hook",
        "message": mark.message,
        "ran": mark.ran,
        "metadata": mark.metadata,
        "weak": mark.weak,
        "pid": os.getppid(),
    }
    request = json.dumps({"v": PROTOCOL, "op": "mark", "args": asked})
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(PATIENCE)
        _connect(connection, address)
        connection.sendall(request.encode() + b"\n")
        _require_result(_line(connection))
    finally:
        connection.close()


def _connect(connection: _socket.socket, address: str) -> None:
    """Connect, waiting while more do it at once than the daemon's queue takes."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return connection.connect(address)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


def _line(connection: _socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        more = connection.recv(65536)
        if not more or len(received) > _ANSWER_MAX:
            raise NoAnswer("the daemon ended before it answered.")
        received += more
    return received


def _require_result(line: bytes) -> None:
    try:
        found = json.loads(line)
        if "result" in found:
            return
        reason = str(found["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = "the daemon's answer makes no sense."
    raise NoAnswer(reason)
