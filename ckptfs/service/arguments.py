"""The arguments of a verb: which kinds there are, and their way from JSON to the verb's function.
State documents on their way into a checkpoint: their names, their bytes, and the files in the
store's own directory that carry them there.

A request is decoded as a whole before its verb runs, so an argument that is missing or malformed
changes nothing. Names that no parameter has are ignored: a newer client may send more. The standard
library only, since clients import it, too.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ckptfs.errors import PathUnknown, StateInvalid, UsageError, no_paths

#: What a JSON object is to Python.
JsonObject = dict[str, Any]

#: Called with how far a verb is.
OnProgress = Callable[[JsonObject], None]

#: A parameter without a default has to be given.
REQUIRED: Any = object()


class Kind(NamedTuple):
    """What an argument may be. ``decode`` raises TypeError or ValueError for anything else."""

    wanted: str
    decode: Callable[[Any], Any]


class Parameter(NamedTuple):
    """``name`` is that in the request and that of the function's parameter. A null stands for the
    default, where there is one."""

    name: str
    kind: Kind
    default: Any = REQUIRED


def decode(op: str, parameters: Sequence[Parameter], args: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each parameter. Raises UsageError for the first missing or malformed one."""
    found = {}
    for name, kind, default in parameters:
        given = args.get(name)
        if given is None and default is not REQUIRED:
            found[name] = default
            continue
        if name not in args:
            raise malformed(op, f"the argument {name!r} is missing", parameters)
        try:
            found[name] = kind.decode(given)
        except (TypeError, ValueError) as error:
            reason = f"the argument {name!r} has to be {kind.wanted}"
            raise malformed(op, reason, parameters) from error
    return found


def malformed(op: str, reason: str, parameters: Sequence[Parameter] = ()) -> UsageError:
    """The error for a request that no program means; nothing has happened yet."""
    takes = ", ".join(parameter.name for parameter in parameters)
    hint = f"It takes: {takes}." if takes else ""
    return UsageError(f"Cannot {op}: {reason}. Nothing was changed.", hint=hint)


# -- kinds -----------------------------------------------------------------------------------------


def _exactly(value: Any, *types: type) -> Any:
    """The value, if it is of one of these types; True is no number here."""
    if type(value) not in types:
        raise TypeError(type(value).__name__)
    return value


def _flag(value: Any) -> bool:
    return bool(_exactly(value, bool, int))


def _number(value: Any) -> float:
    found = float(_exactly(value, int, float))
    if not math.isfinite(found):
        raise ValueError(found)
    return found


def _path(value: Any) -> bytes:
    return os.fsencode(_exactly(value, str))


def metadata_of(found: Mapping[Any, Any]) -> dict[str, str]:
    """What a checkpoint keeps about itself: text as it is, anything else as JSON says it."""
    try:
        return {
            str(key): value if isinstance(value, str) else json.dumps(value, allow_nan=False)
            for key, value in found.items()
        }
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"Cannot save: a value of its metadata is neither text nor JSON ({error}). "
            "Nothing was saved.",
            hint="What is larger than a few words goes with the state documents.",
        ) from error


def _list_of(kind: Kind, wanted: str) -> Kind:
    def decode_items(value: Any) -> list[Any]:
        return [kind.decode(item) for item in _exactly(value, list, tuple)]

    return Kind(wanted, decode_items)


def objects(wanted: str, *parameters: Parameter) -> Kind:
    """A list of objects that have these fields each."""

    def decode_object(value: Any) -> dict[str, Any]:
        found = _exactly(value, dict)
        try:
            return decode("", parameters, found)
        except UsageError as error:
            raise ValueError(error.message) from error

    return _list_of(Kind("", decode_object), wanted)


TEXT = Kind("text", lambda value: _exactly(value, str))
TEXTS = _list_of(TEXT, "a list of texts")
#: What names a checkpoint: a number, or a text.
REFERENCE = Kind("a checkpoint's name or number", lambda value: str(_exactly(value, str, int)))
REFERENCES = _list_of(REFERENCE, "a list of checkpoints")
INTEGER = Kind("a whole number", lambda value: _exactly(value, int))
NUMBER = Kind("a number", _number)
FLAG = Kind("true or false", _flag)
#: A path in the workspace.
PATH = Kind("a path", _path)
PATHS = _list_of(PATH, "a list of paths")
#: A path outside of it, which means something else in a sandbox.
OUTSIDE = Kind("a path", lambda value: _exactly(value, str))
METADATA = Kind("an object", lambda value: metadata_of(_exactly(value, dict)))


# -- paths that name nothing, and what is in the way -----------------------------------------------


def given(patterns: Sequence[bytes] | None, verb: str) -> Sequence[bytes]:
    """None is everything; a list that came out empty is a mistake of the caller."""
    if patterns is None:
        return ()
    if not patterns:
        raise no_paths(verb)
    return patterns


#: Where the usual hint would not do.
_HINTS = {
    "purge": "If a purge of it was interrupted, `ckptfs compact` removes what is left of its "
    "bytes. `ckptfs log PATH` shows where a file was."
}


@contextmanager
def paths_known(verb: str, reason: str, named: bytes = b"") -> Iterator[None]:
    """Turn a path that names nothing into the error to show; ``named`` is what was asked for."""
    try:
        yield
    except FileNotFoundError as error:
        raise PathUnknown(error.filename, reason, verb=verb, hint=_HINTS.get(verb)) from error
    except ValueError as error:
        raise PathUnknown(named, str(error), verb=verb) from error


@contextmanager
def nothing_in_the_way(verb: str = "restore") -> Iterator[None]:
    """Turn what stands in the way of a restore by paths, or a merge, into the error to show."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        reason = str(error.strerror)
        raise PathUnknown(error.filename or b"", reason, verb=verb) from error


# -- state documents -------------------------------------------------------------------------------

#: How the name of a file with a document begins and ends.
PREFIX, SUFFIX = "state-", ".tmp"
#: A document larger than this is refused.
SIZE_MAX = 256 << 20
NAME_MAX = 200

#: A file that its writer did not take away is removed after so many seconds.
_STALE = 86_400


class Json(bytes):
    """A document that is JSON already and shall come back to the byte."""


def encode(name: str, value: Any) -> tuple[bytes, bool]:
    """The bytes of a document, and whether they are JSON."""
    if isinstance(value, Json):
        return value, True
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), False
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode(), True
    except (TypeError, ValueError, RecursionError) as error:
        raise StateInvalid(name, f"it is neither bytes nor JSON ({error})") from error


def require_name(name: object) -> str:
    """A document's name as it may be: one line of text that could be a file's name."""
    if not isinstance(name, str) or not name:
        raise StateInvalid(str(name), "its name is empty or no text")
    if len(name.encode(errors="surrogatepass")) > NAME_MAX:
        raise StateInvalid(name[:40] + "...", f"its name is longer than {NAME_MAX} bytes")
    if name in (".", "..") or "/" in name or not name.isprintable():
        raise StateInvalid(name, "its name has characters that no file name should have")
    return name


def new_name() -> str:
    """A name for a file with a document."""
    return f"{PREFIX}{os.getpid()}-{os.urandom(8).hex()}{SUFFIX}"


def sweep(store: Path) -> None:
    """Remove what processes that were killed have left."""
    with suppress(OSError):
        for path in store.glob(f"{PREFIX}*{SUFFIX}"):
            if time.time() - path.stat().st_mtime > _STALE:
                path.unlink(missing_ok=True)
