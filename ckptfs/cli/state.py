"""The state documents of a checkpoint on the command line: files in, files out, and the hook."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from ckptfs.cli.screen import Record
from ckptfs.config import Workspace, write_atomically
from ckptfs.connect import Session
from ckptfs.control.documents import Json, fetch_bytes, require_name, staged
from ckptfs.errors import StateInvalid, StateNotWritten, UsageError

__all__ = ["Documents", "fetched", "run_hook", "staged", "to_keep", "write_out"]

#: Bytes by name, and whether they are JSON.
Documents = dict[str, tuple[bytes, bool]]

#: What a document is called if nobody gives it a name.
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


def fetched(session: Session, record: Record) -> Documents:
    return fetch_bytes(session, str(record["checkpoint"])) if record["state"] else {}


def write_out(words: list[str], documents: Documents, record: Record) -> None:
    """Write documents where ``--state-out`` says."""
    for word in words:
        _, path = _named(word)
        if word == path and (os.path.isdir(path) or path.endswith("/")):
            _write_all(Path(path), documents)
        else:
            _write(Path(path), _chosen(word, documents, record))


def _chosen(word: str, documents: Documents, record: Record) -> bytes:
    """Which document is meant: the named one, or the only one there is."""
    name, path = _named(word)
    if word == path and len(documents) == 1:
        name = next(iter(documents))
    if name not in documents:
        known = ", ".join(documents) or "none"
        reason = f"checkpoint {record['checkpoint']} carries no {name!r}; it carries: {known}"
        raise StateNotWritten(path, reason)
    return documents[name][0]


def _write_all(directory: Path, documents: Documents) -> None:
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
    for name, (data, _) in documents.items():
        _write(directory / name, data)


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StateNotWritten(path, reason) from error


def run_hook(record: Record, documents: Documents, workspace: Workspace) -> str:
    """Run the command that the settings want after a restore; why it failed, if it did."""
    command = record.pop("on_restore", "")
    if not command:
        return ""
    import shlex

    from ckptfs.api import after

    found = {
        name: json.loads(data) if is_json else data for name, (data, is_json) in documents.items()
    }
    told = {**record, "workspace": str(workspace.path), "state": found}
    record["hook"] = after.run(shlex.split(command), told, workspace.path)
    return "" if record["hook"] == after.DONE else str(record["hook"])
