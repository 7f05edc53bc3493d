"""The state documents of a checkpoint on the command line: files in, files out, and the hook."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs.cli.output import JsonObject
from ckptfs.config import Workspace, write_atomically
from ckptfs.connect import Session
from ckptfs.control.transfer import fetch_bytes, staged
from ckptfs.errors import StateInvalid, StateNotWritten, UsageError, reason_of
from ckptfs.service.documents import Json, require_name

if TYPE_CHECKING:
    from ckptfs.api.restore import Command

__all__ = ["Documents", "fetched", "hook", "require", "run_hook", "staged", "to_keep", "write_out"]

#: Bytes by name, and whether they are JSON.
Documents = dict[str, tuple[bytes, bool]]

#: The name of a document that is given without one.
_UNNAMED = "state"


def to_keep(args: Namespace) -> dict[str, bytes]:
    """What ``--state`` and ``--state-blob`` name."""
    found: dict[str, bytes] = {}
    words = [(word, True) for word in args.state] + [(word, False) for word in args.state_blob]
    for word, is_json in words:
        name, path = _named(word)
        if name in found:
            raise UsageError(
                f"Cannot save: two state documents are called {name!r}. Nothing was saved.",
                hint="Give each a name of its own: --state NAME=FILE",
            )
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        found[require_name(name)] = _checked(path, data) if is_json else data
    return found


def _named(word: str) -> tuple[str, str]:
    """NAME=FILE, or a file alone."""
    name, equals, path = word.partition("=")
    return (name, path) if equals and "/" not in name else (_UNNAMED, word)


def _checked(path: str, data: bytes) -> Json:
    try:
        json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = f"{path} is not JSON ({error}); --state-blob takes any bytes"
        raise StateInvalid(_UNNAMED, reason) from error
    return Json(data)


def fetched(session: Session, record: JsonObject) -> Documents:
    return fetch_bytes(session, str(record["checkpoint"])) if record["state_names"] else {}


def require(words: list[str], record: JsonObject) -> None:
    """Refuse what ``--state-out`` wants of a checkpoint that does not carry it, before anything is
    restored."""
    known = list(record["state_names"])
    for word in words:
        name = _chosen(word, known)
        if name is not None and name not in known:
            number = record["checkpoint"]
            hint = f"`ckptfs show {number}` tells about it."
            raise StateInvalid(name, _not_there(number, known), hint=hint)


def write_out(
    words: list[str], documents: Documents, record: JsonObject, *, restored: bool = True
) -> None:
    """Write documents where ``--state-out`` says."""
    for word in words:
        path, name = Path(_named(word)[1]), _chosen(word, list(documents))
        if name is not None and name not in documents:
            reason = _not_there(record["checkpoint"], list(documents))
            raise StateNotWritten(path, reason, restored=restored)
        wanted = documents if name is None else {name: documents[name]}
        try:
            _write(path, wanted, into=name is None)
        except OSError as error:
            reason = reason_of(error)
            raise StateNotWritten(path, reason, restored=restored) from error


def _chosen(word: str, known: list[str]) -> str | None:
    """Which document is meant: the named one, or the only one there is; None for all of them."""
    name, path = _named(word)
    if word != path:
        return name
    if os.path.isdir(path) or path.endswith("/"):
        return None
    return known[0] if len(known) == 1 else name


def _not_there(number: int, known: list[str]) -> str:
    return f"checkpoint {number} does not carry it; it carries: {', '.join(known) or 'none'}"


def _write(path: Path, documents: Documents, *, into: bool) -> None:
    if into:
        with suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
    for name, (data, _) in documents.items():
        write_atomically(path / name if into else path, data)


def run_hook(
    command: Command, record: JsonObject, documents: Documents, workspace: Workspace
) -> str:
    """Run the command that the settings want after a restore; why it failed, if it did."""
    from ckptfs.api import restore as after

    if not (command and after.is_news(record, documents)):
        return ""
    found = {
        name: json.loads(data) if is_json else data for name, (data, is_json) in documents.items()
    }
    restored = {**record, "workspace": str(workspace.path), "state": found}
    record["hook"] = after.run(command, restored, workspace.path)
    return "" if record["hook"] == after.DONE else str(record["hook"])


def hook(workspace: Workspace) -> Command:
    """The command that the user's settings want to be run after a restore."""
    from ckptfs.api import restore as after

    return after.command_of(workspace.store)
