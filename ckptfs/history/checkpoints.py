"""Checkpoints: taking and listing them.

A checkpoint is a sealed epoch. Its number counts up from 0 and is never used again; what else it
tells stands in the epoch's record.
"""

from __future__ import annotations

from typing import NamedTuple

from ckptfs import errors
from ckptfs.fs import Filesystem
from ckptfs.model import Epoch
from ckptfs.store import Store

_NEXT_ID = b"next_checkpoint"


class Checkpoint(NamedTuple):
    id: int
    epoch: Epoch
    kind: str
    message: str
    time_ns: int


def seal(fs: Filesystem, kind: str, message: str, now_ns: int) -> Checkpoint:
    """Make the head a checkpoint and go on in a new epoch below it. The caller commits."""
    fs.settle()
    store = fs.store
    sealed = store.head
    number = int(store.facts.get(_NEXT_ID) or b"0")
    store.facts.put(_NEXT_ID, str(number + 1).encode())
    info = {"id": number, "kind": kind, "message": message, "time_ns": now_ns}
    store.seal_epoch(sealed, info)
    store.head = store.open_epoch(sealed.epoch, inodes=sealed.inodes)
    return Checkpoint(number, sealed.epoch, kind, message, now_ns)


def checkpoints(store: Store) -> list[Checkpoint]:
    """All checkpoints, oldest first."""
    found = [
        Checkpoint(info["id"], epoch, info["kind"], info["message"], info["time_ns"])
        for epoch, record in store.epochs.items()
        if (info := record.info)
    ]
    return sorted(found)


def find(store: Store, number: int) -> Checkpoint:
    for checkpoint in checkpoints(store):
        if checkpoint.id == number:
            return checkpoint
    raise errors.CheckpointUnknown(str(number))
