"""Checkpoints: taking, describing and finding them.

A checkpoint is a sealed epoch. Its number counts up from 0 and is never used again; what else it
tells stands in the epoch's record, as JSON.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from ckptfs import errors
from ckptfs.fs import Filesystem
from ckptfs.model import CHECKPOINT_MAX, Epoch
from ckptfs.store import Store
from ckptfs.store.format import EpochRecord

_NEXT_ID = b"next_checkpoint"
#: The name of the current task (`ckptfs.history.tasks`), which checkpoints belong to.
CURRENT_TASK = b"current_task"


@dataclass(frozen=True)
class Cause:
    """Who brought a checkpoint about: a process, its command line, its session."""

    pid: int = 0
    command: str = ""
    session: str = ""


@dataclass(frozen=True)
class Checkpoint:
    id: int
    epoch: Epoch
    kind: str
    message: str
    time_ns: int
    tag: str = ""
    pinned: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    cause: Cause = field(default_factory=Cause)
    #: By name, the documents that it carries (`ckptfs.history.state`): ino, bytes, json.
    state: dict[str, Any] = field(default_factory=dict)


def seal(
    fs: Filesystem,
    kind: str,
    message: str,
    now_ns: int,
    *,
    tag: str = "",
    pinned: bool = False,
    metadata: dict[str, str] | None = None,
    cause: Cause | None = None,
    state: dict[str, Any] | None = None,
) -> Checkpoint:
    """Make the head a checkpoint and go on in a new epoch below it. The caller commits."""
    fs.settle()
    fs.authorship.finish()
    store = fs.store
    sealed = store.head
    if task := store.facts.get(CURRENT_TASK):
        metadata = {"task": task.decode(), **(metadata or {})}
    checkpoint = Checkpoint(
        _next_id(store),
        sealed.epoch,
        kind,
        message,
        now_ns,
        tag,
        pinned,
        metadata or {},
        cause or Cause(),
        state or {},
    )
    store.seal_epoch(sealed, _info(checkpoint))
    store.head = store.open_epoch(sealed.epoch, inodes=sealed.inodes)
    return checkpoint


def _next_id(store: Store) -> int:
    number = int(store.facts.get(_NEXT_ID) or b"0")
    if number > CHECKPOINT_MAX:
        raise OSError(errno.ENOSPC, "the store has no checkpoint numbers left")
    store.facts.put(_NEXT_ID, str(number + 1).encode())
    return number


def _info(checkpoint: Checkpoint) -> dict[str, Any]:
    """The epoch's JSON: only what says something."""
    info = asdict(checkpoint)
    del info["epoch"]
    info["cause"] = {key: value for key, value in info["cause"].items() if value}
    return {key: value for key, value in info.items() if value not in ("", {}, False)} | {
        "id": checkpoint.id
    }


def _checkpoint(epoch: Epoch, info: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        info["id"],
        epoch,
        info["kind"],
        info.get("message", ""),
        info.get("time_ns", 0),
        info.get("tag", ""),
        info.get("pinned", False),
        info.get("metadata", {}),
        Cause(**info.get("cause", {})),
        info.get("state", {}),
    )


class _Told:
    """The checkpoints that the records of a store tell of. Every verb asks for all of them, so they
    are made once, as long as their records stay the same."""

    def __init__(self) -> None:
        self._made: dict[Epoch, tuple[EpochRecord, Checkpoint]] = {}
        self._all: list[Checkpoint] = []
        #: When all were looked for.
        self._tidings = -1

    def one(self, epoch: Epoch, record: EpochRecord) -> Checkpoint:
        found = self._made.get(epoch)
        if found is None or found[0] is not record:
            found = self._made[epoch] = record, _checkpoint(epoch, record.info)
        return found[1]

    def all(self, store: Store) -> list[Checkpoint]:
        """By their numbers."""
        if self._tidings != store.tidings:
            one, records = self.one, store.epochs
            self._all = [one(epoch, record) for epoch, record in records.items() if record.info]
            self._all.sort(key=attrgetter("id"))
            self._tidings = store.tidings
            for epoch in self._made.keys() - records.keys():
                del self._made[epoch]
        return self._all


_told: WeakKeyDictionary[Store, _Told] = WeakKeyDictionary()


def _told_by(store: Store) -> _Told:
    return _told.setdefault(store, _Told())


def describe(store: Store, checkpoint: Checkpoint) -> None:
    """Store a checkpoint's changed description (tag, pin, message, metadata)."""
    store.describe_epoch(checkpoint.epoch, _info(checkpoint))


def checkpoints(store: Store) -> list[Checkpoint]:
    """All checkpoints, oldest first."""
    return list(_told_by(store).all(store))


def find(store: Store, number: int) -> Checkpoint:
    for epoch, record in store.epochs.items():
        if record.info and record.info["id"] == number:
            return _told_by(store).one(epoch, record)
    raise errors.CheckpointUnknown(str(number))


def lineage(store: Store) -> list[Checkpoint]:
    """The checkpoints that the head descends from, newest first: the way back in time, without
    those that a restore left aside."""
    return list(_way_back(store))


def nearest(store: Store) -> Checkpoint | None:
    """The newest checkpoint that the head descends from."""
    return next(_way_back(store), None)


def _way_back(store: Store) -> Iterator[Checkpoint]:
    told = _told_by(store)
    epoch = store.epochs[store.head.epoch].parent
    while epoch in store.epochs:
        record = store.epochs[epoch]
        if record.info:
            yield told.one(epoch, record)
        epoch = record.parent
