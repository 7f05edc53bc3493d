"""The arguments of a verb: which kinds there are, and their way from JSON to the verb's function.

A request is decoded as a whole before its verb runs, so an argument that is missing or malformed
changes nothing. Names that no parameter has are ignored: a newer client may send more. The standard
library only, since clients look at the declarations, too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ckptfs.errors import ControlError, PathUnknown, UsageError, no_paths

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
    """The values of all parameters. Raises ControlError for the first that is missing or
    malformed."""
    found = {}
    for name, kind, default in parameters:
        given = args.get(name)
        if given is None and default is not REQUIRED:
            found[name] = default
        elif name not in args:
            raise ControlError(
                f"Cannot {op}: the argument {name!r} is missing. Nothing was changed."
            )
        else:
            found[name] = _decode(op, name, kind, given)
    return found


def _decode(op: str, name: str, kind: Kind, given: object) -> Any:
    try:
        return kind.decode(given)
    except (TypeError, ValueError) as error:
        raise ControlError(
            f"Cannot {op}: the argument {name!r} has to be {kind.wanted}. Nothing was changed."
        ) from error


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
        except ControlError as error:
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
def nothing_in_the_way() -> Iterator[None]:
    """Turn what stands in the way of a restore by paths into the error to show."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        reason = str(error.strerror)
        raise PathUnknown(error.filename or b"", reason, verb="restore") from error
