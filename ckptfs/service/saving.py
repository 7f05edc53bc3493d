"""Saving: checkpoints, and the state documents that they carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckptfs import history
from ckptfs.history import Cause, Checkpoint, references, state
from ckptfs.service.room import may_compress

if TYPE_CHECKING:
    from ckptfs.service.service import Service


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
