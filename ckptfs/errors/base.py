"""The root of the tree, how an error travels, and the errors that belong to no part.

Nothing here knows another module of this package: they all build on this one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import ClassVar, TypedDict

#: A path as any layer has it; decoded only when it goes into a sentence.
AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class ErrorRecord(TypedDict):
    """An error as it travels through the start-up pipe, the socket and ``--json``."""

    kind: str
    message: str
    hint: str
    exit_code: int


class CkptfsError(Exception):
    """The root. ``hint`` may be given for one error or stand on the class for all of its kind."""

    kind: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def record(self) -> ErrorRecord:
        return {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(CkptfsError):
    """The request makes no sense: words of the command line, or arguments of a verb."""

    kind = "usage"
    exit_code = 2
    hint = "See `ckptfs --help`."


def no_paths(verb: str) -> UsageError:
    """For a list of paths that is given and empty: its caller did not mean everything."""
    return UsageError(
        f"Cannot {verb}: the list of paths is empty. Nothing was changed.",
        hint="Leave the list out to mean everything.",
    )


#: What people call the verbs of the protocol that no command has the name of.
_SPOKEN = {
    "scratch": "run a command in a fork",
    "scratch_end": "end the fork of a command",
    "fork_delete": "delete a fork",
    "fork_rename": "rename a fork",
}


def spoken(verb: str) -> str:
    """A verb of the protocol, as it stands behind "Cannot"."""
    return _SPOKEN.get(verb, verb)


class SystemRefused(CkptfsError):
    """An error of the operating system that no caller had better words for."""

    kind = "system-refused"
    exit_code = 4

    def __init__(self, what: str, error: OSError) -> None:
        where = f" ({show(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        super().__init__(
            f"Cannot {spoken(what)}: {reason_of(error)}{where}.",
            hint="Check the path, its permissions and the space on its disk.",
        )


class ExtraMissing(CkptfsError):
    """A part of ckptfs that needs a package which is installed on demand."""

    kind = "extra-missing"
    exit_code = 78

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"Cannot start {what}: the Python package {package} is not installed here.",
            hint=f"Install it with: {_install_command(_wanted_by(extra))}",
        )


def _wanted_by(extra: str) -> str:
    """What an extra asks for. It is named itself: ckptfs may be on no package index."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        wanted = [line.split(";") for line in requires("ckptfs") or [] if ";" in line]
    except PackageNotFoundError:
        return extra
    found = [what.strip() for what, when in wanted if extra in when.replace("'", '"').split('"')]
    return found[0] if found else extra


def _install_command(wanted: str) -> str:
    """The command for the environment that runs this: those that uv makes have no pip."""
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        return f"{sys.executable} -m pip install '{wanted}'"
    return f"uv pip install --python {sys.executable} '{wanted}'"


class Interrupted(CkptfsError):
    """A verb stopped because the client that asked for it has gone. ``left`` says what it left."""

    kind = "interrupted"
    exit_code = 64
    hint = "Ask again if you still want it."

    def __init__(self, left: str = "Nothing was changed.") -> None:
        super().__init__(f"Stopped. {left}")


def from_record(record: ErrorRecord) -> CkptfsError:
    """The error that ``record`` was made from, for raising on the other side of a socket.

    The words are taken as they are; a kind this version does not know becomes a plain
    `CkptfsError`, so an older client still shows what a newer daemon says.
    """
    found = _by_kind().get(record["kind"], CkptfsError)
    error = found.__new__(found)
    CkptfsError.__init__(error, record["message"], hint=record["hint"])
    return error


def every_error() -> Iterator[type[CkptfsError]]:
    """Every class of the tree, the root first."""
    pending: list[type[CkptfsError]] = [CkptfsError]
    while pending:
        cls = pending.pop(0)
        yield cls
        pending.extend(cls.__subclasses__())


def _by_kind() -> dict[str, type[CkptfsError]]:
    return {cls.kind: cls for cls in every_error()}


def reason_of(error: OSError) -> str:
    """What the operating system says, for the middle of a sentence."""
    return (error.strerror or str(error)).lower()


def show(path: AnyPath) -> str:
    """A path for a sentence. Bytes that are no UTF-8 stay in it; the screen escapes them."""
    return os.fsdecode(path)


def shell(path: AnyPath) -> str:
    """A path for a command to copy: quoted only when it must be, since most need no quotes."""
    text = show(path)
    safe = all(char.isalnum() or char in "/._-+:@%,=" for char in text)
    return text if safe and text else "'" + text.replace("'", "'\"'\"'") + "'"
