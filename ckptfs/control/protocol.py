"""The wire: one JSON object per line, each with the protocol's version.

    request     {"v": 1, "op": "save", "args": {"message": "before the refactoring"}}
                with "progress": true if progress is wanted, and "line": N if it is about the fork
                of that number and not about the workspace itself
    answers     {"v": 1, "progress": {...}}            any number of times
                {"v": 1, "result": {...}}              or, once and last,
                {"v": 1, "error": {"kind": ..., "message": ..., "hint": ..., "exit_code": ...}}
    after the result of "watch", for as long as the connection lasts
                {"v": 1, "event": {"event": ..., "workspace": ..., "time_ns": ..., "data": {...}}}

A client that hangs up, or ends its sending, ends what it asked for; in the latter case the answer
is an error of the kind "interrupted", or the result if that was there first.

The same lines run through the pipe from a starting daemon to the command that started it. Paths
are strings with surrogate escapes, which JSON carries as ``\\udcXX``, so every name survives.

Version 1 is that of the first release; until then its fields may change, as those of the format on
disk. From then on fields may be added, and a change of meaning is a new version. Each side refuses
a line of another version: a daemon answers a `ProtocolMismatch` in its own version and hangs up,
and a client raises one for whatever it cannot read, so an older client and a newer daemon, or the
other way round, say that their versions differ, and what to do.

This module turns lines into values and back, and refuses what is not a line of ours; it does no
I/O.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from ckptfs.errors import (
    CkptfsError,
    ControlError,
    ErrorRecord,
    ProtocolMismatch,
    SystemRefused,
    from_record,
)
from ckptfs.service.arguments import JsonObject

VERSION = 1

#: A request longer than this is refused unread: nothing we send comes near it.
REQUEST_MAX = 256 * 1024

_RESULT = b'{"v":%d,"result":' % VERSION


class Request(NamedTuple):
    op: str
    args: JsonObject
    #: Whether anyone looks at progress; counting what lies ahead costs time.
    progress: bool = False
    #: The number of the fork that it is about; 0 for the workspace itself.
    line: int = 0


class Answer(NamedTuple):
    """One line from the daemon: exactly one of the four is set."""

    progress: JsonObject | None = None
    result: JsonObject | None = None
    error: CkptfsError | None = None
    event: JsonObject | None = None


def encode_request(op: str, args: JsonObject, *, progress: bool = False, line: int = 0) -> bytes:
    record: JsonObject = {"v": VERSION, "op": op, "args": args}
    if progress:
        record["progress"] = True
    if line:
        record["line"] = line
    return _line(record)


def encode_progress(progress: JsonObject) -> bytes:
    return _line({"v": VERSION, "progress": progress})


def encode_result(result: JsonObject) -> bytes:
    return _line({"v": VERSION, "result": result})


def encode_event(event: JsonObject) -> bytes:
    return _line({"v": VERSION, "event": event})


def encode_error(error: CkptfsError) -> bytes:
    return _line({"v": VERSION, "error": error.record()})


def encode_failure(op: str, error: Exception, remark: str) -> bytes:
    """The answer to a request that ended with an error, of ours or not; ``remark`` is what is left
    to say of one that is not."""
    if isinstance(error, CkptfsError):
        return encode_error(error)
    if isinstance(error, OSError):
        return encode_error(SystemRefused(op, error))
    hint = "The daemon's log has the details; `ckptfs status` says where it is."
    words = f"Cannot {op}: {str(error) or type(error).__name__}. {remark}"
    return encode_error(CkptfsError(words, hint=hint))


def decode_request(line: bytes) -> Request:
    record = _object(line)
    op, args = record.get("op"), record.get("args", {})
    if not isinstance(op, str) or not isinstance(args, dict):
        raise ControlError("Cannot read the request: it names no operation. Nothing was changed.")
    about = record.get("line", 0)
    if not isinstance(about, int) or isinstance(about, bool):
        raise ControlError("Cannot read the request: its line is no number. Nothing was changed.")
    return Request(op, args, record.get("progress") is True, about)


def decode_answer(line: bytes) -> Answer:
    record = _object(line)
    keys = ("progress", "result", "error", "event")
    progress, result, error, event = (record.get(key) for key in keys)
    if isinstance(progress, dict):
        return Answer(progress=progress)
    if isinstance(result, dict):
        return Answer(result=result)
    if isinstance(event, dict):
        return Answer(event=event)
    if isinstance(error, dict):
        return Answer(error=from_record(_error_record(error)))
    raise ControlError("Cannot read the daemon's answer: it holds neither result nor error.")


def is_result(line: bytes) -> bool:
    """Whether a line of ours is a result, by its beginning: it may be long."""
    return line.startswith(_RESULT)


def _error_record(found: JsonObject) -> ErrorRecord:
    return {
        "kind": str(found.get("kind", "")),
        "message": str(found.get("message", "The daemon reported an error without words.")),
        "hint": str(found.get("hint", "")),
        "exit_code": 1,
    }


def _object(line: bytes) -> JsonObject:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ControlError("Cannot read the message: it is not a JSON object.")
    if record.get("v") != VERSION:
        raise ProtocolMismatch(record.get("v"), VERSION)
    return record


def _line(record: JsonObject) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"
