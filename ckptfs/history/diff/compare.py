"""Comparing checkpoints: what differs between two references, or from a checkpoint's parent.

Turns references into views and views into changes. How changes are shown or sent is not known here.

Counts of changes are cached in the store: a list shows those of a hundred checkpoints at once, and
a sealed one never changes. A cached count names the checkpoint that it was counted against, so that
deleting that one invalidates it. Code that changes history in place calls `forget_counts`. A daemon
counts when it is idle (`counting_steps`): what lists all checkpoints then has only to read. What
another process counted, which cannot write to the store, it keeps (`keep_counts`)."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ckptfs import interrupts
from ckptfs.errors import CheckpointUnknown
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import (
    Checkpoint,
    checkpoints,
    empty_view,
    nearest,
    of_epoch,
    origin,
    view_before,
)
from ckptfs.history.diff import patch
from ckptfs.history.diff.patch import Pair
from ckptfs.history.diff.tree import ADDED, DELETED, Change, compare_views, unordered_changes
from ckptfs.history.excluded import hidden_by_excluded
from ckptfs.history.paths import ROOT_PATH, is_within, seek, select
from ckptfs.history.references import resolve
from ckptfs.history.upkeep import Steps
from ckptfs.model import Epoch
from ckptfs.store import Store, View
from ckptfs.store.format import NO_EPOCH


class Counts(NamedTuple):
    """How many paths, directories among them, were added, changed in any way, and deleted."""

    added: int = 0
    modified: int = 0
    deleted: int = 0


def count_changes(changes: Iterable[Change]) -> Counts:
    """A change of nothing but times is not counted."""
    added = modified = deleted = 0
    for change in changes:
        if ADDED in change.kinds:
            added += 1
        elif DELETED in change.kinds:
            deleted += 1
        elif not change.only_times:
            modified += 1
    return Counts(added, modified, deleted)


def count_checkpoint(fs: Filesystem, epoch: Epoch) -> Counts:
    """What a checkpoint changed against the one it came from. The caller has flushed."""
    return count_changes(unordered_changes(fs, view_before(fs, epoch), fs.view_of(epoch)))


class End(NamedTuple):
    """One end of a comparison. Without a checkpoint it is the workspace as it is, or the empty
    view."""

    view: View
    checkpoint: Checkpoint | None


class Difference(NamedTuple):
    older: End
    newer: End
    changes: list[Change]
    #: The paths that it is limited to; none if it is not.
    paths: list[bytes]

    def without_times(self) -> Difference:
        """Without what got nothing but other times."""
        return self._replace(changes=[item for item in self.changes if not item.only_times])

    def file_pairs(self, fs: Filesystem) -> list[Pair]:
        """The files to show, one by one."""
        a, b = self.older.view, self.newer.view
        found = patch.file_pairs(fs, a, b, self.changes)
        return [pair for pair in found if not self.paths or self._wants(pair)]

    def _wants(self, pair: Pair) -> bool:
        return any(found and is_within(found.path, self.paths) for found in (pair.old, pair.new))


def between(
    fs: Filesystem, older: str = "", newer: str = "", patterns: Sequence[bytes] = ()
) -> Difference:
    """What differs between two references.

    Without ``older`` it is the checkpoint that the workspace goes on from, without ``newer`` the
    workspace as it is. Raises CheckpointUnknown, and FileNotFoundError for a pattern that names
    nothing at either end.
    """
    fs.flush()
    return _difference(fs, _older(fs, older), _newer(fs, newer), patterns)


def of_checkpoint(
    fs: Filesystem, checkpoint: Checkpoint, patterns: Sequence[bytes] = ()
) -> Difference:
    """What a checkpoint changed against the one it came from."""
    fs.flush()
    origin = view_before(fs, checkpoint.epoch)
    older = End(origin, of_epoch(fs.store, origin.epoch))
    newer = End(fs.view_of(checkpoint.epoch), checkpoint)
    return _difference(fs, older, newer, patterns)


def _older(fs: Filesystem, text: str) -> End:
    if text:
        return _newer(fs, text)
    found = nearest(fs)
    return End(fs.view_of(found.epoch), found) if found else End(empty_view(), None)


def _newer(fs: Filesystem, text: str) -> End:
    if not text:
        return End(fs.head, None)
    found = resolve(fs, text, fs.clock())
    return End(fs.view_of(found.epoch(fs)), found.checkpoint)


def _difference(fs: Filesystem, older: End, newer: End, patterns: Sequence[bytes]) -> Difference:
    paths = _selected(fs, (older.view, newer.view), patterns)
    changes = compare_views(fs, older.view, newer.view)
    if fs.head.epoch in (older.view.epoch, newer.view.epoch):
        # What was excluded since has left history, not the workspace.
        hidden = hidden_by_excluded(fs)
        changes = [change for change in changes if not hidden(change.path)]
    if paths:
        changes = [change for change in changes if _concerns(change, paths)]
    return Difference(older, newer, changes, paths)


def _selected(fs: Filesystem, views: Iterable[View], patterns: Sequence[bytes]) -> list[bytes]:
    real = tuple(view for view in views if view.epoch != NO_EPOCH)
    if any(pattern in (b"", ROOT_PATH) for pattern in patterns):
        return []
    return select(fs, real, patterns)


def _concerns(change: Change, paths: list[bytes]) -> bool:
    """Whether a change is at or below one of the paths, or moved what is."""
    own = [path for path in (change.path, change.source) if path is not None]
    if any(is_within(path, paths) for path in own):
        return True
    moved = change.source not in (None, change.path)
    return moved and any(is_within(path, own) for path in paths)


def contents(
    fs: Filesystem, epoch: Epoch, paths: Sequence[bytes], limit: int
) -> list[bytes | None]:
    """The bytes of the files at some paths; None for what is no file, gone, or larger.

    Raises CheckpointUnknown if the epoch can no longer be looked at.
    """
    fs.flush()
    record = fs.store.epochs.get(epoch)
    if record is None or (record.sealed and not record.info):
        raise CheckpointUnknown(str(epoch), reason="The checkpoint was deleted meanwhile")
    view = fs.view_of(epoch)
    # No check: a client asks for so few at once that a process of its own would take longer.
    return [_content(fs, view, path, limit) for path in paths]


def _content(fs: Filesystem, view: View, path: bytes, limit: int) -> bytes | None:
    try:
        inode = seek(fs, view, path)
    except OSError as error:
        if error.errno not in (errno.ESTALE, errno.ENAMETOOLONG):
            raise
        return None
    if inode is None or not inode.is_file or inode.size > limit:
        return None
    return bytes(fs.read(view, inode.ino, 0, inode.size))


#: Facts of the store, each for so many epochs: JSON, by epoch what it was counted against and its
#: counts. So a list of the newest costs the same however many there are.
_COUNTS = b"counts"
_SPAN = 256
#: By epoch what it was counted against, and its counts, as JSON has them.
NewCounts = dict[str, list[int]]
#: How often a store that is open had its counts forgotten.
_forgotten: WeakKeyDictionary[Store, int] = WeakKeyDictionary()
#: How many checkpoints are counted in a step, and for how long one of them may take.
_BATCH = 16
_COUNTING_S = 0.005
#: How many records `unsaved_counts` compares at most: some hundredths of a second.
_PASSING_MAX = 5_000


def counts_of(
    fs: Filesystem, wanted: Iterable[Checkpoint], new: NewCounts | None = None
) -> list[Counts]:
    """What each checkpoint changed against the one it came from. The caller commits. What was not
    cached is added to ``new``, for a store that cannot be written to."""
    fs.flush()
    known = _KnownCounts(fs)
    found = []
    for checkpoint in interrupts.checked(wanted):
        epoch = checkpoint.epoch
        came_from = origin(fs.store, epoch)
        against, *figures = known.get(epoch)
        if against != came_from:
            figures = list(_count_epoch(fs, epoch, came_from))
            known.put(epoch, [came_from, *figures])
            if new is not None:
                new[str(epoch)] = [came_from, *figures]
        found.append(Counts(*figures))
    known.save()
    return found


def keep_counts(fs: Filesystem, new: NewCounts, forgotten: int) -> None:
    """Cache what was counted elsewhere, unless counts were forgotten since: ``forgotten`` is how
    often that had happened before."""
    if forgotten != times_forgotten(fs.store):
        return
    fs.flush()
    known = _KnownCounts(fs)
    for epoch, counted in new.items():
        known.put(Epoch(int(epoch)), counted)
    known.save()


def counting_steps(fs: Filesystem, too_large: set[Epoch]) -> Steps:
    """Count what was not counted yet, a few checkpoints in a step. What would take longer than a
    step may is added to ``too_large``, and left to those who ask for it."""
    store = fs.store
    for some in _batched(checkpoints(store)):
        store.pending.flush()
        known = _KnownCounts(fs)  # the last step's may have been forgotten since
        for checkpoint in some:
            epoch = checkpoint.epoch
            if of_epoch(store, epoch) is None or epoch in too_large:
                continue
            came_from = origin(store, epoch)
            if known.get(epoch)[0] != came_from:
                try:
                    figures = _count_quickly(fs, epoch, came_from)
                except interrupts.OverBudget:
                    too_large.add(epoch)
                else:
                    known.put(epoch, [came_from, *figures])
        known.save()
        yield None


def _batched(items: list[Checkpoint]) -> Iterator[list[Checkpoint]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def _count_quickly(fs: Filesystem, epoch: Epoch, came_from: Epoch) -> Counts:
    """Raises `OverBudget` if it takes long."""
    with (
        interrupts.watching(lambda: False),
        interrupts.limited(_COUNTING_S),
        interrupts.stoppable(),
    ):
        return _count_epoch(fs, epoch, came_from)


def unsaved_counts(fs: Filesystem) -> Counts | None:
    """What changed since the checkpoint that the head came from; None if that is too much to count
    quickly."""
    fs.flush()
    epoch = fs.head.epoch
    written = sum(1 for _ in islice(fs.store.changes.walk(epoch), _PASSING_MAX + 1))
    if written > _PASSING_MAX:
        return None
    hidden = hidden_by_excluded(fs)  # it has left history, not the workspace
    changes = compare_views(fs, view_before(fs, epoch), fs.head)
    return count_changes(change for change in changes if not hidden(change.path))


class _KnownCounts:
    """The cached counts, as far as they are asked for."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._store = fs.store
        self._spans: dict[int, dict[str, list[int]]] = {}
        self._changed: set[int] = set()

    def get(self, epoch: Epoch) -> list[int]:
        """What an epoch was counted against, and its counts; [-1] if it was not."""
        return self._span(epoch // _SPAN).get(str(epoch), [-1])

    def put(self, epoch: Epoch, counted: list[int]) -> None:
        self._span(epoch // _SPAN)[str(epoch)] = counted
        self._changed.add(epoch // _SPAN)

    def _span(self, number: int) -> dict[str, list[int]]:
        found = self._spans.get(number)
        if found is None:
            record = self._store.metadata.get(_name(number))
            found = self._spans[number] = {} if record is None else json.loads(record)
        return found

    def save(self) -> None:
        """Write what is new, without what is gone. One more span is looked through each time, so
        that those of which nothing is asked any more go, too."""
        if not self._changed or self._store.read_only:
            return
        metadata, newest = self._store.metadata, self._fs.head.epoch
        metadata.delete(_COUNTS)  # earlier releases had one record for all
        for number in {*self._changed, newest % (newest // _SPAN + 1)}:
            span = self._span(number)
            kept = {epoch: each for epoch, each in span.items() if int(epoch) in self._store.epochs}
            if kept:
                metadata.put(_name(number), json.dumps(kept, separators=(",", ":")).encode())
            elif span:
                metadata.delete(_name(number))


def _name(span: int) -> bytes:
    return _COUNTS + b":%08d" % span


def _count_epoch(fs: Filesystem, epoch: Epoch, came_from: Epoch) -> Counts:
    store = fs.store
    if came_from == NO_EPOCH and store.epochs[epoch].parent == NO_EPOCH:
        # Everything is new, and each name is one entry: the first import may have a million.
        return Counts(added=sum(1 for _ in store.changes.walk(epoch, store.dirents.kind)))
    return count_checkpoint(fs, epoch)


def forget_counts(store: Store) -> None:
    """Drop all cached counts, because history itself was changed."""
    _forgotten[store] = times_forgotten(store) + 1
    for name, _ in list(store.metadata.walk(_COUNTS)):
        store.metadata.delete(name)


def times_forgotten(store: Store) -> int:
    return _forgotten.get(store, 0)
