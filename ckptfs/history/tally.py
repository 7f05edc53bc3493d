"""How much each checkpoint changed, counted once and remembered in the store.

A list shows the counts of a hundred checkpoints at once, and a sealed one never changes. What is
remembered names the checkpoint that it was counted against, so that deleting that one makes it
void. Whoever changes history in place calls `forget`.
"""

from __future__ import annotations

import json

from ckptfs.fs import Filesystem
from ckptfs.history.diff import Counts, before, counts
from ckptfs.model import Epoch
from ckptfs.store import Store
from ckptfs.store.format import NO_EPOCH

_KEY = b"counts:%010d"


def tally(fs: Filesystem, epoch: Epoch) -> Counts:
    """What a checkpoint changed against the one it came from. The caller commits."""
    store = fs.store
    origin = before(fs, epoch).epoch
    known = store.facts.get(_KEY % epoch)
    if known is not None:
        against, *figures = json.loads(known)
        if against == origin:
            return Counts(*figures)
    found = _count(fs, epoch, origin)
    store.note()
    store.facts.put(_KEY % epoch, json.dumps([origin, *found]).encode())
    return found


def _count(fs: Filesystem, epoch: Epoch, origin: Epoch) -> Counts:
    store = fs.store
    if origin == NO_EPOCH and store.epochs[epoch].parent == NO_EPOCH:
        # Everything is new, and each name is one entry: the first import may have a million.
        return Counts(added=sum(1 for _ in store.changes.walk(epoch, store.dirents.kind)))
    return counts(fs, epoch)


def forget(store: Store, *, but: frozenset[Epoch] = frozenset()) -> None:
    """Forget the counts of all epochs but some."""
    kept = {_KEY % epoch for epoch in but}
    for key, _ in list(store.facts.walk(b"counts:")):
        if key not in kept:
            store.facts.delete(key)
            store.note()
