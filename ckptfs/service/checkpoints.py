"""Taking checkpoints, and the state documents that they carry."""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs import history
from ckptfs.errors import ControlError
from ckptfs.history import Cause, Checkpoint, references, state
from ckptfs.service import wire
from ckptfs.service.arguments import JsonObject
from ckptfs.service.documents import PREFIX, SIZE_MAX, SUFFIX, new_name, require_name, sweep
from ckptfs.service.retention import reference
from ckptfs.service.storage import may_compress

if TYPE_CHECKING:
    from ckptfs.service.service import Call, Service

_STAGED = re.compile(re.escape(PREFIX) + r"[0-9a-z-]{1,60}" + re.escape(SUFFIX), re.ASCII)
#: How much of a document one answer carries at most.
_PIECE_MAX = 4 << 20


def save(
    service: Service,
    message: str,
    kind: str = "manual",
    *,
    tag: str = "",
    pinned: bool = False,
    metadata: dict[str, str] | None = None,
    cause: Cause | None = None,
    documents: Sequence[state.Draft] = (),
) -> Checkpoint:
    """Take a checkpoint of the workspace as it is, with an agent's documents if it has any."""
    if tag:
        tag = references.clean_tag(tag)
        references.require_free_tag(service.fs.store, tag)
    described = {}
    if documents:
        described = state.keep(service.fs, documents, compress=may_compress(service))
    else:
        state.tidy(service.fs)
    checkpoint = history.seal(
        service.fs,
        kind,
        message,
        service.fs.clock(),
        tag=tag,
        pinned=pinned,
        metadata=metadata,
        cause=cause,
        state=described,
    )
    service.fs.sync()
    return checkpoint


def documents(service: Service, checkpoint: str) -> tuple[Checkpoint, list[state.Document]]:
    """The state documents that a checkpoint carries."""
    found = service.find(checkpoint)
    return found, state.documents(found)


def read_document(service: Service, checkpoint: str, name: str, offset: int, length: int) -> bytes:
    return state.read(service.fs, service.find(checkpoint), name, offset, length)


def unchanged_since(service: Service) -> Checkpoint | None:
    """The checkpoint that the workspace still equals, if there is one."""
    service.fs.flush()
    if service.has_unsaved():
        return None
    same = history.newest_state(service.fs.store)
    return None if same is None or same.is_moment else same


def has_unsaved(service: Service) -> bool:
    """Whether anything changed since the checkpoint that the head stands on."""
    store = service.fs.store
    if store.head.dirty_inodes:
        return True
    return any(True for _ in store.changes.walk(store.head.epoch))


# -- verbs -----------------------------------------------------------------------------------------


def do_save(
    call: Call,
    message: str,
    tag: str,
    pin: bool,
    metadata: dict[str, str],
    state: list[JsonObject],
    allow_empty: bool,
    max_checkpoints: int | None,
) -> JsonObject:
    service = call.service
    if max_checkpoints is not None and max_checkpoints < 1:
        raise ControlError(
            f"Cannot save: {max_checkpoints} checkpoints cannot be kept. Nothing was changed."
        )
    wanted = allow_empty or tag or pin or metadata or state
    if not wanted and (same := service.unchanged_since()) is not None:
        return {**wire.checkpoint(same), "changed": False}
    with _opened(service, state) as documents:
        saved = service.save(
            message,
            tag=tag,
            pinned=pin,
            metadata=metadata,
            cause=call.cause,
            documents=documents,
        )
    record = {**wire.checkpoint(saved), "changed": True}
    if saved.tag:
        record["reference"] = reference(saved)
    if max_checkpoints is not None:
        record["pruned"] = service.keep_newest(max_checkpoints)
    return record


@contextmanager
def _opened(service: Service, staged: list[JsonObject]) -> Iterator[list[state.Draft]]:
    """The documents that a save is to keep."""
    with ExitStack() as open_files:
        found = []
        for item in staged:
            path = _staged(service, item["file"])
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            data = open_files.enter_context(open(descriptor, "rb"))
            found.append(state.Draft(require_name(item["name"]), item["json"], data))
        yield found


def _staged(service: Service, name: str) -> Path:
    if not _STAGED.fullmatch(name):
        raise ControlError(f"Cannot save: {name!r} is no staged document. Nothing was changed.")
    return service.fs.store.path / name


def do_state_stage(call: Call, data: str, file: str) -> JsonObject:
    """Add a piece to a document for a client that cannot write to the store, or begin one."""
    store = call.service.fs.store.path
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    if not file:
        sweep(store)
        flags |= os.O_CREAT | os.O_EXCL
    path = _staged(call.service, file or new_name())
    try:
        piece = b64decode(data, validate=True)
    except ValueError as error:
        raise ControlError(f"Cannot save: a document is no base64 ({error}).") from error
    with open(os.open(path, flags, 0o600), "ab", buffering=0) as staged:
        if os.fstat(staged.fileno()).st_size + len(piece) > SIZE_MAX:
            raise ControlError("Cannot save: a document is too large. Nothing was changed.")
        staged.write(piece)
    return {"file": path.name}


def do_state_unstage(call: Call, file: str) -> JsonObject:
    _staged(call.service, file).unlink(missing_ok=True)
    return {}


def do_state(call: Call, checkpoint: str) -> JsonObject:
    found, carried = call.service.documents(checkpoint)
    described = [{"name": item.name, "json": item.is_json, "bytes": item.size} for item in carried]
    return {"checkpoint": found.id, "documents": described}


def do_state_read(call: Call, checkpoint: str, name: str, offset: int, length: int) -> JsonObject:
    wanted = min(max(0, length), _PIECE_MAX)
    data = call.service.read_document(checkpoint, name, max(0, offset), wanted)
    return {"base64": b64encode(data).decode()}
