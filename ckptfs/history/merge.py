"""Merging another line's state into the head: three-way, in one step that can be undone.

The base is the newest state that both lines have in common: the one where they parted, or the one
that was merged last. Which states a merge brought is recorded by the epoch that it made, so that a
second merge takes what is new, and one that was undone counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import Cause, Checkpoint, seal, view_or_empty
from ckptfs.history.diff.changed import Changed
from ckptfs.history.merge_plan import Decide, Planner
from ckptfs.history.merge_steps import Carrier, MergePlan
from ckptfs.history.restore import log_restore, or_roll_back, token_of
from ckptfs.model import Epoch
from ckptfs.store import Store
from ckptfs.store.format import NO_EPOCH
from ckptfs.textmerge import Labels

if TYPE_CHECKING:
    pass

#: Facts of the store, by epoch: the epochs whose states were merged there, as JSON.
_MERGED = b"merged:"


@dataclass(frozen=True)
class Merged:
    """A merge that is done: ``before`` is the checkpoint that undoes it, ``after`` that of the
    result."""

    before: Checkpoint
    after: Checkpoint
    plan: MergePlan


# -- the base --------------------------------------------------------------------------------------


def base_of(store: Store, ours: Epoch, theirs: Epoch) -> Epoch:
    """The newest epoch whose state both have in them, or NO_EPOCH. Every epoch is newer than those
    it comes from, by its parent or by a merge: so the newest common one is no ancestor of
    another."""
    merged = _all_merged(store)
    return max(_origins(store, ours, merged) & _origins(store, theirs, merged), default=NO_EPOCH)


def _origins(store: Store, epoch: Epoch, merged: dict[Epoch, list[Epoch]]) -> set[Epoch]:
    """An epoch and all that it comes from."""
    found: set[Epoch] = set()
    pending = [epoch]
    while pending:
        epoch = pending.pop()
        if epoch in found or epoch not in store.epochs:
            continue
        found.add(epoch)
        pending += [store.epochs[epoch].parent, *merged.get(epoch, ())]
    return found


def _all_merged(store: Store) -> dict[Epoch, list[Epoch]]:
    found = {}
    for key, value in store.metadata.walk(_MERGED):
        found[Epoch(int(key.removeprefix(_MERGED)))] = [Epoch(each) for each in json.loads(value)]
    return found


def _merged_in(store: Store, epoch: Epoch) -> list[int]:
    value = store.metadata.get(_key(epoch))
    return [] if value is None else list(json.loads(value))


def _note_merged(store: Store, epoch: Epoch, theirs: Iterable[int]) -> None:
    found = sorted({*_merged_in(store, epoch), *theirs})
    store.metadata.put(_key(epoch), json.dumps(found, separators=(",", ":")).encode())


def hand_over(store: Store, epoch: Epoch, children: Iterable[Epoch]) -> None:
    """Have the children of an epoch that goes know what was merged there."""
    found = _merged_in(store, epoch)
    if found:
        for child in children:
            _note_merged(store, child, found)
        store.metadata.delete(_key(epoch))


def bases(store: Store) -> set[Epoch]:
    """The epochs that later merges count from."""
    return {epoch for found in _all_merged(store).values() for epoch in found}


def _key(epoch: Epoch) -> bytes:
    return _MERGED + b"%010d" % epoch


# -- merging ---------------------------------------------------------------------------------------


def plan_merge(
    fs: Filesystem,
    theirs: Checkpoint,
    decide: Decide,
    labels: Labels,
    paths: Sequence[bytes] = (),
) -> MergePlan:
    """What a merge of a checkpoint into the head would do now."""
    fs.flush()
    base = base_of(fs.store, fs.head.epoch, theirs.epoch)
    view = view_or_empty(fs, base)
    beside = b"%d" % theirs.id
    return Planner(fs, view, fs.view_of(theirs.epoch), decide, labels, beside, paths).make()


def token_for(fs: Filesystem, theirs: Checkpoint, paths: Sequence[bytes] = ()) -> str:
    """A token that changes whenever a plan of the same merge might."""
    here = token_of(fs, theirs, list(paths))
    base = base_of(fs.store, fs.head.epoch, theirs.epoch)
    return xxhash.xxh3_64_hexdigest(f"{here} {base}".encode())


def merge(
    fs: Filesystem,
    theirs: Checkpoint,
    plan: MergePlan,
    *,
    title: str,
    whole: bool,
    changed: Changed,
    cause: Cause | None = None,
) -> Merged:
    """Carry out what was planned just before. The caller commits, and tells the kernel of
    ``changed``, also on failure: then the head is what it was. ``whole`` says that it is all of
    what they have, so that the next merge counts from there."""
    cause = cause or Cause()
    before = seal(fs, "restore", f"before merge of {title}", fs.clock(), cause=cause)
    with or_roll_back(fs, before, changed, cause, on=BaseException):
        Carrier(fs, fs.view_of(theirs.epoch), changed).carry_out(plan)
        fs.flush()
    merged = fs.head.epoch
    after = seal(fs, "merge", f"merge of {title}", fs.clock(), cause=cause)
    if whole:
        _note_merged(fs.store, merged, [theirs.epoch])
    log_restore(fs, "merge", theirs, before, changed, cause, after=after)
    return Merged(before, after, plan)
