"""Checkpoints: taking, describing and finding them.

A checkpoint is a sealed epoch. Numbers count up from 0 and are never used again. The epoch's record
holds everything else about a checkpoint as JSON.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from ckptfs import errors
from ckptfs.fs import Filesystem
from ckptfs.model import CHECKPOINT_MAX, CHECKPOINT_SLOTS, MAIN_LINE, Epoch
from ckptfs.store import Store, View
from ckptfs.store.epochs import alone
from ckptfs.store.format import NO_EPOCH
from ckptfs.store.metadata import NEXT_CHECKPOINT, NEXT_FORK

#: The kind of a checkpoint that keeps what the next change destroys (`ckptfs.history.auto`).
MOMENT = "moment"
#: The kind of the checkpoint that a fork begins at, and of the last state of a deleted one.
FORK = "fork"
#: In the metadata of a moment: the path that the next change took something away from.
LOST = "lost"
#: The name of the current task (`ckptfs.history.tasks`), which checkpoints belong to.
CURRENT_TASK = b"current_task"


@dataclass(frozen=True)
class Cause:
    """What caused a checkpoint or a change: a process, its command line, its session."""

    pid: int = 0
    command: str = ""
    session: str = ""


@dataclass(frozen=True)
class Run:
    """A command that was run on a checkpoint's state, and how it ended."""

    command: str
    exit_code: int
    duration_ms: int
    time_ns: int

    @property
    def passed(self) -> bool:
        return self.exit_code == 0


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
    #: The fork whose head it was; 0 for the main line.
    fork: int = MAIN_LINE
    #: What was run there (`ckptfs.history.runs`), each command once, the last one last.
    runs: tuple[Run, ...] = ()

    @property
    def is_moment(self) -> bool:
        """Whether lists hide it unless they are asked for moments. A named one is never hidden."""
        return self.kind == MOMENT and not self.tag and not self.pinned

    @property
    def protection(self) -> str:
        """Why it does not expire, whatever its age; empty if it may."""
        if self.pinned:
            return "pinned"
        if self.tag:
            return "tagged"
        return _PROTECTED.get(self.kind, "")


#: The kinds that do not expire, and why.
_PROTECTED = {"manual": "saved by hand", "task": "a task begins or ends there"}


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
    """Make the head a checkpoint and open a new head on top of it. The caller commits."""
    fs.flush()
    fs.authorship.finish()
    store = fs.store
    sealed = fs.head
    if task := fs.facts.get(CURRENT_TASK):
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
        fs.line,
    )
    store.seal_epoch(sealed, _info(checkpoint))
    fs.head = store.open_epoch(sealed.epoch, inodes=sealed.inodes)
    return checkpoint


#: By store, the bytes that it had accepted when it was last sealed, and those that do not count.
_accepted: WeakKeyDictionary[Store, int] = WeakKeyDictionary()


def _bytes_since(store: Store) -> int:
    """How many bytes the store accepted since the previous call."""
    before, _accepted[store] = _accepted.get(store, 0), store.accepted_bytes
    return max(0, store.accepted_bytes - before)


@contextmanager
def uncounted(fs: Filesystem) -> Iterator[None]:
    """What is written meanwhile does not count as bytes of the next checkpoint."""
    fs.flush()
    store = fs.store
    before = store.accepted_bytes
    try:
        yield
    finally:
        _accepted[store] = _accepted.get(store, 0) + store.accepted_bytes - before


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
    """Lower numbers that share a slot among FUSE's node ids."""
    return range(number % CHECKPOINT_SLOTS, number, CHECKPOINT_SLOTS)


def _info(checkpoint: Checkpoint) -> dict[str, Any]:
    """The epoch's JSON, without empty fields."""
    info = vars(checkpoint) | {
        "metadata": dict(checkpoint.metadata),
        "cause": {key: value for key, value in vars(checkpoint.cause).items() if value},
        "state": dict(checkpoint.state),
        "runs": [vars(run) for run in checkpoint.runs],
    }
    del info["epoch"]
    return {key: value for key, value in info.items() if value or key == "id"}


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
        info.get("fork", MAIN_LINE),
        tuple(Run(**run) for run in info.get("runs", ())),
    )


class _Cache:
    """The checkpoints of a store. Every verb asks for them, so they are cached; a checkpoint is
    decoded again only if the store reports that its epoch was described anew."""

    def __init__(self) -> None:
        self._by_epoch: dict[Epoch, Checkpoint] = {}
        #: Ordered by number: all of them, those that are no moments, and those that may expire.
        self._by_number: dict[int, Checkpoint] = {}
        self._shown: dict[int, Checkpoint] = {}
        self._expirable: dict[int, Checkpoint] = {}
        #: Grows with every refresh that found something.
        self.revision = 0

    def refresh(self, store: Store) -> None:
        """Decode the epochs that were described since the last time."""
        redescribed = store.epoch_tree.redescribed
        if not redescribed:
            return
        self.revision += 1
        highest = next(reversed(self._by_number), -1)
        in_order = True
        for epoch in sorted(redescribed):
            record = store.epochs.get(epoch)
            if record is None or not record.info:
                self._drop(epoch)
                continue
            checkpoint = _checkpoint(epoch, record.info)
            self._by_epoch[epoch] = self._by_number[checkpoint.id] = checkpoint
            is_last = checkpoint.id > highest
            highest = max(highest, checkpoint.id)
            belongs = (
                (self._shown, not checkpoint.is_moment),
                (
                    self._expirable,
                    not checkpoint.protection,
                ),
            )
            for group, is_in in belongs:
                if is_in:
                    in_order &= is_last or checkpoint.id in group
                    group[checkpoint.id] = checkpoint
                else:
                    group.pop(checkpoint.id, None)
        if not in_order:
            self._by_number = dict(sorted(self._by_number.items()))
            self._shown = dict(sorted(self._shown.items()))
            self._expirable = dict(sorted(self._expirable.items()))
        redescribed.clear()

    def _drop(self, epoch: Epoch) -> None:
        gone = self._by_epoch.pop(epoch, None)
        if gone is not None:
            del self._by_number[gone.id]
            self._shown.pop(gone.id, None)
            self._expirable.pop(gone.id, None)

    def all(self) -> list[Checkpoint]:
        """By their numbers."""
        return list(self._by_number.values())

    def shown(self) -> list[Checkpoint]:
        return list(self._shown.values())

    def expirable(self) -> list[Checkpoint]:
        return list(self._expirable.values())

    def count_moments(self) -> int:
        return len(self._by_number) - len(self._shown)

    def of_epoch(self, epoch: Epoch) -> Checkpoint | None:
        return self._by_epoch.get(epoch)

    def numbered(self, number: int) -> Checkpoint | None:
        return self._by_number.get(number)


_caches: WeakKeyDictionary[Store, _Cache] = WeakKeyDictionary()


def _cached(store: Store) -> _Cache:
    cache = _caches.get(store)
    if cache is None:
        cache = _caches[store] = _Cache()
    cache.refresh(store)
    return cache


def describe(store: Store, checkpoint: Checkpoint) -> None:
    """Store a checkpoint's changed description (tag, pin, message, metadata)."""
    store.describe_epoch(checkpoint.epoch, _info(checkpoint))


def checkpoints(store: Store) -> list[Checkpoint]:
    """All checkpoints, oldest first."""
    return _cached(store).all()


def revision(store: Store) -> int:
    """A number that changes whenever a checkpoint is taken, deleted or described anew."""
    return _cached(store).revision


def numbered(store: Store, number: int) -> Checkpoint | None:
    """The checkpoint with that number, if there is one."""
    return _cached(store).numbered(number)


def of_epoch(store: Store, epoch: Epoch) -> Checkpoint | None:
    """The checkpoint of an epoch, if it is one."""
    return _cached(store).of_epoch(epoch)


def find(store: Store, number: int) -> Checkpoint:
    found = numbered(store, number)
    if found is None:
        raise errors.CheckpointUnknown(str(number))
    return found


def as_moment(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint turned into a moment, which remembers its former kind."""
    return replace(
        checkpoint, kind=MOMENT, metadata={**checkpoint.metadata, "kind": checkpoint.kind}
    )


def without_moments(store: Store) -> list[Checkpoint]:
    """The checkpoints that lists show, oldest first."""
    return _cached(store).shown()


def expirable(store: Store) -> list[Checkpoint]:
    """The checkpoints and moments that may expire, oldest first: few among very many that were
    saved by hand."""
    return _cached(store).expirable()


def count_moments(store: Store) -> int:
    return _cached(store).count_moments()


def of_line(fs: Filesystem, *, moments: bool = False) -> list[Checkpoint]:
    """The checkpoints that a line took and those that it descends from, oldest first. The main
    line has those that a restore went back past, too."""
    store, line = fs.store, fs.line
    every = checkpoints(store) if moments else without_moments(store)
    if line == MAIN_LINE and not store.metadata.number(NEXT_FORK, 0):
        return every
    above = {item.epoch for item in _way_back(fs)}
    return [item for item in every if item.fork == line or item.epoch in above]


def lineage(fs: Filesystem) -> list[Checkpoint]:
    """The checkpoints that the head descends from, newest first: without moments, and without those
    that a restore went back past."""
    return list(way_back(fs))


def way_back(fs: Filesystem) -> Iterator[Checkpoint]:
    """The same one by one."""
    return (item for item in _way_back(fs) if not item.is_moment)


def nearest(fs: Filesystem) -> Checkpoint | None:
    """The newest checkpoint that the head descends from, without moments."""
    return next(way_back(fs), None)


def newest_state(fs: Filesystem) -> Checkpoint | None:
    """The newest checkpoint or moment that the head descends from."""
    return next(_way_back(fs), None)


def _way_back(fs: Filesystem) -> Iterator[Checkpoint]:
    store = fs.store
    cache = _cached(store)
    epoch = store.epochs[fs.head.epoch].parent
    while epoch in store.epochs:
        found = cache.of_epoch(epoch)
        if found is not None:
            yield found
        epoch = store.epochs[epoch].parent


def empty_view() -> View:
    """The view before the first epoch, which has no files."""
    return alone(NO_EPOCH, writable=False)


def state_before(store: Store, epoch: Epoch) -> Epoch:
    """The epoch of the nearest checkpoint or moment above an epoch, or NO_EPOCH. Deleted ones are
    passed over."""
    parent = store.epochs[epoch].parent
    while parent != NO_EPOCH and not store.epochs[parent].info:
        parent = store.epochs[parent].parent
    return parent


def origin(store: Store, epoch: Epoch) -> Epoch:
    """The epoch of the checkpoint that an epoch came from, or NO_EPOCH. Only a moment may come from
    another moment: a checkpoint reports its whole step."""
    found = state_before(store, epoch)
    own = of_epoch(store, epoch)
    if own is not None and own.is_moment:
        return found
    while (state := of_epoch(store, found)) is not None and state.is_moment:
        found = state_before(store, found)
    return found


def view_before(fs: Filesystem, epoch: Epoch) -> View:
    """The view of the checkpoint that an epoch came from; an empty one if there is none."""
    return view_or_empty(fs, origin(fs.store, epoch))


def view_or_empty(fs: Filesystem, epoch: Epoch) -> View:
    return empty_view() if epoch == NO_EPOCH else fs.view_of(epoch)
