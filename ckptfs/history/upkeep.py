"""Letting checkpoints expire: the plan of `retention` made from a store, and carried out."""

from __future__ import annotations

from functools import partial
from itertools import islice

from ckptfs.fs import Filesystem
from ckptfs.history import removal
from ckptfs.history.checkpoints import Checkpoint, as_moment, checkpoints, describe, find
from ckptfs.history.held import held_bytes, holds_more
from ckptfs.history.marks import MARK
from ckptfs.history.restore import redoable, undoable
from ckptfs.history.retention import Decision, RetentionPolicy, Verdicts, judge
from ckptfs.store import Store

#: Of what came after a checkpoint so many names are looked at.
_LOOKED_AT = 32


def decide(fs: Filesystem, policy: RetentionPolicy) -> list[Decision]:
    """What becomes of each checkpoint now, newest first."""
    return _judge(fs, policy).all()


def _judge(fs: Filesystem, policy: RetentionPolicy, now_ns: int | None = None) -> Verdicts:
    store = fs.store
    entries = (undoable(store), redoable(store))
    return judge(
        checkpoints(store),
        policy,
        fs.clock() if now_ns is None else now_ns,
        store.size_bytes() - store.reusable_bytes(),
        store.free_bytes(),
        undo=[entry.before for entry in entries if entry is not None and entry.before is not None],
        is_precious=partial(_is_precious, store),
        weigh=partial(held_bytes, store),
        holds_more=partial(holds_more, store),
    )


def _is_precious(store: Store, checkpoint: Checkpoint) -> bool:
    """Whether somebody said that this moment matters, or what came after it suggests so."""
    return checkpoint.kind == MARK or _precedes_a_loss(store, checkpoint)


def _precedes_a_loss(store: Store, checkpoint: Checkpoint) -> bool:
    """Whether names went after a checkpoint, which may be nowhere else: as far as the first of the
    changes tell."""
    for epoch in store.epoch_tree.children(checkpoint.epoch):
        names = store.changes.walk(epoch, store.dirents.kind)
        if any(store.dirents.drops(epoch, name) for name in islice(names, _LOOKED_AT)):
            return True
    return False


def expire(fs: Filesystem, policy: RetentionPolicy, now_ns: int | None = None) -> list[Decision]:
    """Hide what expires and say what that is. A `Reaper` frees what it holds; the caller commits.

    One round: over a limit of bytes the next one, after what was hidden is freed, may hide more.
    """
    return _carry_out(fs, _judge(fs, policy, now_ns))


def _carry_out(fs: Filesystem, verdicts: Verdicts) -> list[Decision]:
    for number in verdicts.demoted:
        describe(fs.store, as_moment(find(fs.store, number)))
    gone = verdicts.expired()
    removal.hide(fs, [find(fs.store, decision.id) for decision in gone])
    return gone


def prune(fs: Filesystem, policy: RetentionPolicy) -> list[Decision]:
    """Expire and free until the limits are kept or nothing is left that may go. Returns what went
    and, at the end, why the rest stays."""
    gone: list[Decision] = []
    while True:
        expired = _carry_out(fs, verdicts := _judge(fs, policy))
        if not expired and not verdicts.demoted:
            break
        gone += expired
        if not removal.reap_if_waited_for(fs):
            break
        fs.commit()
    return sorted([*gone, *verdicts.all()], reverse=True)
