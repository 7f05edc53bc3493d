"""How much each checkpoint changed, counted once and remembered in the store.

A list shows the counts of a hundred checkpoints at once, and a sealed one never changes. What is
remembered names the checkpoint that it was counted against, so that deleting that one makes it
void. Whoever changes history in place calls `forget`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice

from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import Checkpoint
from ckptfs.history.diff import Counts, before, compare, count, counts, origin
from ckptfs.history.excluded import hidden_by_excluded
from ckptfs.model import Epoch
from ckptfs.store import Store
from ckptfs.store.format import NO_EPOCH

#: A fact of the store: JSON, by epoch what it was counted against and its counts.
_FACT = b"counts"
#: So many records are compared for whoever asks only how things are: some hundredths of a second.
_PASSING_MAX = 5_000


def tallies(fs: Filesystem, wanted: Iterable[Checkpoint]) -> list[Counts]:
    """What each checkpoint changed against the one it came from. The caller commits."""
    known = _load(fs.store)
    found = []
    fresh = False
    for checkpoint in wanted:
        came_from = origin(fs.store, checkpoint.epoch)
        against, *figures = known.get(checkpoint.epoch, [-1])
        if against != came_from:
            figures = list(_count(fs, checkpoint.epoch, came_from))
            known[checkpoint.epoch] = [came_from, *figures]
            fresh = True
        found.append(Counts(*figures))
    if fresh:
        _save(fs.store, known)
    return found


def unsaved(fs: Filesystem) -> Counts | None:
    """What changed since the checkpoint that the head stands on; None if that is too much to be
    counted in passing."""
    fs.flush()
    epoch = fs.store.head.epoch
    written = sum(1 for _ in islice(fs.store.changes.walk(epoch), _PASSING_MAX + 1))
    if written > _PASSING_MAX:
        return None
    hidden = hidden_by_excluded(fs)  # it has left history, not the workspace
    changes = compare(fs, before(fs, epoch), fs.head)
    return count(change for change in changes if not hidden(change.path))


def _load(store: Store) -> dict[Epoch, list[int]]:
    record = store.facts.get(_FACT)
    if record is None:
        return {}
    return {Epoch(int(epoch)): figures for epoch, figures in json.loads(record).items()}


def _save(store: Store, known: dict[Epoch, list[int]]) -> None:
    kept = {epoch: figures for epoch, figures in known.items() if epoch in store.epochs}
    store.note()
    store.facts.put(_FACT, json.dumps(kept, separators=(",", ":")).encode())


def _count(fs: Filesystem, epoch: Epoch, came_from: Epoch) -> Counts:
    store = fs.store
    if came_from == NO_EPOCH and store.epochs[epoch].parent == NO_EPOCH:
        # Everything is new, and each name is one entry: the first import may have a million.
        return Counts(added=sum(1 for _ in store.changes.walk(epoch, store.dirents.kind)))
    return counts(fs, epoch)


def forget(store: Store) -> None:
    """Forget all counts, since history itself was changed."""
    store.note()
    store.facts.delete(_FACT)
