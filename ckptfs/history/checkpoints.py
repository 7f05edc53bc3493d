"""Checkpoints: taking, describing and finding them.

A checkpoint is a sealed epoch. Its number counts up from 0 and is never used again; what else it
tells stands in the epoch's record, as JSON.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from ckptfs import errors
from ckptfs.fs import Filesystem
from ckptfs.model import CHECKPOINT_MAX, CHECKPOINT_SLOTS, Epoch
from ckptfs.store import Store, View
from ckptfs.store.format import NO_EPOCH
from ckptfs.store.metadata import NEXT_CHECKPOINT

#: The kind of a checkpoint that keeps what the next change destroys (`ckptfs.history.auto`).
MOMENT = "moment"
#: In the metadata of a moment: the path that the next change took something away from.
LOST = "lost"
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
    #: How many bytes were accepted since the checkpoint before it.
    bytes: int = 0

    @property
    def is_moment(self) -> bool:
        """Whether only those look at it who ask for moments. One that was named is like others."""
        return self.kind == MOMENT and not self.tag and not self.pinned


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
    fs.flush()
    fs.authorship.finish()
    store = fs.store
    sealed = store.head
    if task := store.metadata.get(CURRENT_TASK):
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
        _bytes_since(store),
    )
    store.seal_epoch(sealed, _info(checkpoint))
    store.head = store.open_epoch(sealed.epoch, inodes=sealed.inodes)
    return checkpoint


#: What a store had accepted when it was last sealed.
_accepted: WeakKeyDictionary[Store, int] = WeakKeyDictionary()


def _bytes_since(store: Store) -> int:
    """How many bytes were accepted since the last time that this was asked for."""
    before, _accepted[store] = _accepted.get(store, 0), store.accepted_bytes
    return max(0, store.accepted_bytes - before)


def next_number(store: Store) -> int:
    """No checkpoint has this number or a higher one."""
    return store.metadata.number(NEXT_CHECKPOINT, 0)


def _next_id(store: Store) -> int:
    number = next_number(store)
    while any(numbered(store, older) for older in sharing_slot(number)):
        number += 1
    if number > CHECKPOINT_MAX:
        raise OSError(errno.ENOSPC, "the store has no checkpoint numbers left")
    store.metadata.put_number(NEXT_CHECKPOINT, number + 1)
    return number


def sharing_slot(number: int) -> range:
    """Lower numbers that have the same place among FUSE's node ids."""
    return range(number % CHECKPOINT_SLOTS, number, CHECKPOINT_SLOTS)


def _info(checkpoint: Checkpoint) -> dict[str, Any]:
    """The epoch's JSON: only what says something."""
    info = asdict(checkpoint)
    del info["epoch"]
    info["cause"] = {key: value for key, value in info["cause"].items() if value}
    return {key: value for key, value in info.items() if value not in ("", {}, 0)} | {
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
        info.get("bytes", 0),
    )


class _Told:
    """The checkpoints that the records of a store tell of. Every verb asks for them, so they are
    kept, and made anew only from records that the store says were told anew."""

    def __init__(self) -> None:
        self._by_epoch: dict[Epoch, Checkpoint] = {}
        #: In the order of their numbers, all of them and those that are no moments.
        self._by_number: dict[int, Checkpoint] = {}
        self._shown: dict[int, Checkpoint] = {}
        #: How often there was something new.
        self.revision = 0

    def listen(self, store: Store) -> None:
        """Take note of what was told since the last time."""
        retold = store.epoch_tree.redescribed
        if not retold:
            return
        self.revision += 1
        highest = next(reversed(self._by_number), -1)
        in_order = True
        for epoch in sorted(retold):
            record = store.epochs.get(epoch)
            if record is None or not record.info:
                self._drop(epoch)
                continue
            checkpoint = _checkpoint(epoch, record.info)
            in_order &= checkpoint.id in self._shown or checkpoint.id > highest
            highest = max(highest, checkpoint.id)
            self._by_epoch[epoch] = self._by_number[checkpoint.id] = checkpoint
            if checkpoint.is_moment:
                self._shown.pop(checkpoint.id, None)
            else:
                self._shown[checkpoint.id] = checkpoint
        if not in_order:
            self._by_number = dict(sorted(self._by_number.items()))
            self._shown = dict(sorted(self._shown.items()))
        retold.clear()

    def _drop(self, epoch: Epoch) -> None:
        gone = self._by_epoch.pop(epoch, None)
        if gone is not None:
            del self._by_number[gone.id]
            self._shown.pop(gone.id, None)

    def all(self) -> list[Checkpoint]:
        """By their numbers."""
        return list(self._by_number.values())

    def shown(self) -> list[Checkpoint]:
        return list(self._shown.values())

    def count_moments(self) -> int:
        return len(self._by_number) - len(self._shown)

    def of_epoch(self, epoch: Epoch) -> Checkpoint | None:
        return self._by_epoch.get(epoch)

    def numbered(self, number: int) -> Checkpoint | None:
        return self._by_number.get(number)


_told: WeakKeyDictionary[Store, _Told] = WeakKeyDictionary()


def _told_by(store: Store) -> _Told:
    told = _told.setdefault(store, _Told())
    told.listen(store)
    return told


def describe(store: Store, checkpoint: Checkpoint) -> None:
    """Store a checkpoint's changed description (tag, pin, message, metadata)."""
    store.describe_epoch(checkpoint.epoch, _info(checkpoint))


def checkpoints(store: Store) -> list[Checkpoint]:
    """All checkpoints, oldest first."""
    return _told_by(store).all()


def revision(store: Store) -> int:
    """Another number whenever a checkpoint has come, gone or been described anew."""
    return _told_by(store).revision


def numbered(store: Store, number: int) -> Checkpoint | None:
    """The checkpoint with that number, if there is one."""
    return _told_by(store).numbered(number)


def of_epoch(store: Store, epoch: Epoch) -> Checkpoint | None:
    """The checkpoint that an epoch is, if it is one."""
    return _told_by(store).of_epoch(epoch)


def find(store: Store, number: int) -> Checkpoint:
    found = numbered(store, number)
    if found is None:
        raise errors.CheckpointUnknown(str(number))
    return found


def as_moment(checkpoint: Checkpoint) -> Checkpoint:
    """The same as a moment, which remembers what it was."""
    return replace(
        checkpoint, kind=MOMENT, metadata={**checkpoint.metadata, "kind": checkpoint.kind}
    )


def without_moments(store: Store) -> list[Checkpoint]:
    """The checkpoints that people look at, oldest first."""
    return _told_by(store).shown()


def count_moments(store: Store) -> int:
    return _told_by(store).count_moments()


def lineage(store: Store) -> list[Checkpoint]:
    """The checkpoints that the head descends from, newest first: the way back in time, without
    moments and those that a restore left aside."""
    return [item for item in _way_back(store) if not item.is_moment]


def nearest(store: Store) -> Checkpoint | None:
    """The newest checkpoint that the head descends from, moments left out."""
    return next((item for item in _way_back(store) if not item.is_moment), None)


def newest_state(store: Store) -> Checkpoint | None:
    """The same with moments: the last state that is kept."""
    return next(_way_back(store), None)


def _way_back(store: Store) -> Iterator[Checkpoint]:
    told = _told_by(store)
    epoch = store.epochs[store.head.epoch].parent
    while epoch in store.epochs:
        found = told.of_epoch(epoch)
        if found is not None:
            yield found
        epoch = store.epochs[epoch].parent


def empty_view() -> View:
    """The view before the first epoch: it has no file at all."""
    return View(NO_EPOCH, set(), writable=False, inodes=0)


def state_before(store: Store, epoch: Epoch) -> Epoch:
    """The epoch of the checkpoint or moment that one came from, or none. One that was deleted is
    passed over: nobody can look at it any more."""
    parent = store.epochs[epoch].parent
    while parent != NO_EPOCH and not store.epochs[parent].info:
        parent = store.epochs[parent].parent
    return parent


def origin(store: Store, epoch: Epoch) -> Epoch:
    """The epoch of the checkpoint that one came from, or none: that of a moment may be another
    moment, a step is told as a whole."""
    found = state_before(store, epoch)
    own = of_epoch(store, epoch)
    if own is not None and own.is_moment:
        return found
    while (state := of_epoch(store, found)) is not None and state.is_moment:
        found = state_before(store, found)
    return found


def view_before(fs: Filesystem, epoch: Epoch) -> View:
    """The view of the checkpoint that an epoch came from, or nothing."""
    return view_or_empty(fs, origin(fs.store, epoch))


def view_or_empty(fs: Filesystem, epoch: Epoch) -> View:
    return empty_view() if epoch == NO_EPOCH else fs.view_of(epoch)
