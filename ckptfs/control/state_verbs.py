"""The verbs about what a checkpoint carries and what a restore tells, from JSON to records."""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs.control.diff_verbs import described
from ckptfs.control.documents import PREFIX, SIZE_MAX, SUFFIX, new_name, require_name, sweep
from ckptfs.control.protocol import JsonObject, OnProgress
from ckptfs.errors import ControlError

if TYPE_CHECKING:
    from ckptfs.history.diff.tree import Change
    from ckptfs.history.state import Draft
    from ckptfs.service import Service

_STAGED = re.compile(re.escape(PREFIX) + r"[0-9a-z-]{1,60}" + re.escape(SUFFIX), re.ASCII)
#: How much of a document one answer carries at most.
_PIECE_MAX = 4 << 20
#: A restore may change a great many paths; so many of each kind are named.
NAMED_MAX = 10_000


@contextmanager
def drafts(service: Service, args: JsonObject) -> Iterator[list[Draft]]:
    """The documents that a save is to keep, opened."""
    from ckptfs.history.state import Draft

    with ExitStack() as open_files:
        found = []
        for item in args.get("state", ()):
            path = _staged(service, str(item["file"]))
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            data = open_files.enter_context(open(descriptor, "rb"))
            found.append(Draft(require_name(item["name"]), bool(item["json"]), data))
        yield found


def _staged(service: Service, name: str) -> Path:
    if not _STAGED.fullmatch(name):
        raise ControlError(f"Cannot save: {name!r} is no staged document. Nothing was changed.")
    return service.fs.store.path / name


def _stage(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    """Add a piece to a document for a client that cannot write to the store, or begin one."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    if not args.get("file"):
        sweep(service.fs.store.path)
        flags |= os.O_CREAT | os.O_EXCL
    path = _staged(service, str(args.get("file") or new_name()))
    try:
        data = b64decode(str(args["data"]), validate=True)
    except ValueError as error:
        raise ControlError(f"Cannot save: a document is no base64 ({error}).") from error
    with open(os.open(path, flags, 0o600), "ab", buffering=0) as file:
        if os.fstat(file.fileno()).st_size + len(data) > SIZE_MAX:
            raise ControlError("Cannot save: a document is too large. Nothing was changed.")
        file.write(data)
    return {"file": path.name}


def _unstage(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    _staged(service, str(args["file"])).unlink(missing_ok=True)
    return {}


def _get(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    return described(service.find(str(args["checkpoint"])))


def _state(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    checkpoint, found = service.documents(str(args["checkpoint"]))
    return {
        "checkpoint": checkpoint.id,
        "documents": [
            {"name": item.name, "json": item.is_json, "bytes": item.size} for item in found
        ],
    }


def _state_read(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    offset, length = max(0, int(args["offset"])), min(max(0, int(args["length"])), _PIECE_MAX)
    data = service.read_document(str(args["checkpoint"]), str(args["name"]), offset, length)
    return {"data": b64encode(data).decode()}


def after_restore(service: Service, args: JsonObject, record: JsonObject) -> JsonObject:
    """A restore's record with what its checkpoint carries and, if asked for, the paths that
    changed. Which command to run after it, the client reads in its own user's settings: nobody
    runs what an answer names."""
    target = service.find(str(record["checkpoint"]))
    told = {**record, "state": list(target.state)}
    return told | _names(service, record) if args.get("names") else told


def _names(service: Service, record: JsonObject) -> JsonObject:
    before = record["before"]
    if before is None:
        return {"added": [], "modified": [], "deleted": []}
    return named(service.diff(str(before), "").changes)


def named(changes: list[Change]) -> JsonObject:
    """Paths by what became of them; a renamed one is deleted there and added here."""
    added, modified, deleted = [], [], []
    for change in changes:
        if change.old is None or change.old_path is not None:
            added.append(change.path)
        if change.new is None or change.old_path is not None:
            deleted.append(change.old_path or change.path)
        if change.old is not None and change.new is not None and change.old_path is None:
            modified.append(change.path)
    lists = {"added": added, "modified": modified, "deleted": deleted}
    return {
        kind: [os.fsdecode(path) for path in paths[:NAMED_MAX]] for kind, paths in lists.items()
    }


VERBS: dict[str, Callable[[Service, JsonObject, OnProgress | None], JsonObject]] = {
    "get": _get,
    "state": _state,
    "state_read": _state_read,
    "state_stage": _stage,
    "state_unstage": _unstage,
}
