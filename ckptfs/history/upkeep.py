"""Letting checkpoints expire: the plan of `retention` made from a store, and carried out."""

from __future__ import annotations

from ckptfs.fs import Filesystem
from ckptfs.history import removal
from ckptfs.history.checkpoints import checkpoints
from ckptfs.history.restore import redoable, undoable
from ckptfs.history.retention import Decision, RetentionPolicy, plan


def decide(fs: Filesystem, policy: RetentionPolicy) -> list[Decision]:
    """What becomes of each checkpoint now, newest first."""
    store = fs.store
    entries = (undoable(store), redoable(store))
    return plan(
        checkpoints(store),
        policy,
        fs.clock(),
        store.size_bytes() - store.reusable_bytes(),
        store.free_bytes(),
        undo=[entry.before for entry in entries if entry is not None and entry.before is not None],
    )


def expire(fs: Filesystem, policy: RetentionPolicy) -> list[Decision]:
    """Hide what expires and say what that is. A `Reaper` frees what it holds; the caller commits.

    One round: over a limit of bytes the next one, after what was hidden is freed, may hide more.
    """
    gone = [decision for decision in decide(fs, policy) if not decision.keep]
    numbers = {decision.id for decision in gone}
    removal.hide(fs, [item for item in checkpoints(fs.store) if item.id in numbers])
    return gone


def prune(fs: Filesystem, policy: RetentionPolicy) -> list[Decision]:
    """Expire and free until the limits are kept or nothing is left that may go. Returns what went
    and, at the end, why the rest stays."""
    gone: list[Decision] = []
    while expired := expire(fs, policy):
        gone += expired
        removal.reap(fs)
        fs.commit()
    return sorted([*gone, *decide(fs, policy)], reverse=True)
