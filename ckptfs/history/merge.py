"""Merging another line's state into the head: three-way, in one step that can be undone.

The base is the newest state that both lines have in common: the one where they parted, or the one
that was merged last. Which states a merge brought is recorded by the epoch that it made, so that a
second merge takes what is new, and one that was undone counts for nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import FORK, Cause, Checkpoint, seal, view_or_empty
from ckptfs.history.diff.changed import Changed
from ckptfs.history.forks import filesystem_of
from ckptfs.history.merge_plan import Decide, Planner
from ckptfs.history.merge_steps import Carrier, MergePlan
from ckptfs.history.restore import log_restore, or_roll_back, token_of
from ckptfs.interrupts import Steps
from ckptfs.model import Epoch
from ckptfs.store import Store, View
from ckptfs.store.format import NO_EPOCH, suffix_of
from ckptfs.textmerge import Labels

#: Facts of the store, by epoch: the epochs whose states were merged there, as JSON.
_MERGED = b"merged:"


class Theirs(NamedTuple):
    """The state to merge: that of a checkpoint, or that of a line as it is, which the merge makes a
    checkpoint. ``beside`` goes behind the name of what is theirs where both stay."""

    epoch: Epoch
    title: str
    beside: bytes
    checkpoint: Checkpoint | None = None
    line: int | None = None

    def heads(self, store: Store) -> list[View]:
        """What may still change in it."""
        return [] if self.line is None else [store.heads[self.line]]


def of_checkpoint(checkpoint: Checkpoint, title: str = "") -> Theirs:
    title = title or f"checkpoint {checkpoint.id}"
    return Theirs(checkpoint.epoch, title, b"%d" % checkpoint.id, checkpoint)


def of_line(store: Store, line: int, name: str) -> Theirs:
    return Theirs(store.heads[line].epoch, name, os.fsencode(name), line=line)


@dataclass(frozen=True)
class Merged:
    """A merge that is done: ``theirs`` is the checkpoint that was merged, ``before`` the one that
    undoes it, ``after`` that of the result."""

    theirs: Checkpoint
    before: Checkpoint
    after: Checkpoint
    plan: MergePlan


# -- the base --------------------------------------------------------------------------------------


def base_of(store: Store, ours: Epoch, theirs: Epoch) -> Epoch:
    """The newest epoch whose state both have in them, or NO_EPOCH. Every epoch is newer than those
    it comes from, by its parent or by a merge: so the newest common one is no ancestor of
    another."""
    return common_origin(store, [ours, theirs])


def common_origin(store: Store, epochs: Sequence[Epoch]) -> Epoch:
    """The newest epoch whose state all of these have in them, or NO_EPOCH."""
    merged = _all_merged(store)
    return max(
        set[Epoch].intersection(*(_origins(store, epoch, merged) for epoch in epochs)),
        default=NO_EPOCH,
    )


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
    there = (each for each in _merged_in(store, epoch) if each in store.epochs)
    found = sorted({*there, *theirs})
    store.metadata.put(_key(epoch), json.dumps(found, separators=(",", ":")).encode())


def hand_over(store: Store, epoch: Epoch, children: Iterable[Epoch]) -> None:
    """Have the children of an epoch that goes know what was merged there."""
    found = _merged_in(store, epoch)
    if found:
        for child in children:
            _note_merged(store, child, found)
        store.metadata.delete(_key(epoch))


def bases(store: Store, others: Iterable[Epoch] = ()) -> set[Epoch]:
    """The merged states that later merges count from: of each two lines, and of ``others``, the
    newest that both have."""
    return interrupts.at_once(finding_bases(store, others))


def finding_bases(store: Store, others: Iterable[Epoch] = ()) -> Steps[set[Epoch]]:
    """`bases` in steps."""
    origins = _MergedOrigins(store)
    if not origins.states:
        return set()
    yield from origins.look()
    lines = Counter[frozenset[Epoch]]()
    for epoch in [*(head.epoch for head in store.heads.values()), *others]:
        lines[origins.of(epoch)] += 1
        if interrupts.is_due():
            yield
    found, distinct = set[Epoch](), list(lines)
    for number, ours in enumerate(distinct):
        # Lines that come from the same states have all of those.
        of_two = [ours & theirs for theirs in distinct[:number]] + [ours] * (lines[ours] > 1)
        found.update(max(common) for common in of_two if common)
        if interrupts.is_due():
            yield
    return found


class _MergedOrigins:
    """Which of the states that were merged, and are there still, an epoch comes from."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._merged = {
            suffix_of(epoch): [each for each in merged if each in store.epochs]
            for epoch, merged in _all_merged(store).items()
            if epoch in store.epochs
        }
        self.states = sorted({each for merged in self._merged.values() for each in merged})
        self._suffixes = [(suffix_of(each), each) for each in self.states]
        self._known: dict[Epoch, frozenset[Epoch]] = {}

    def look(self) -> Steps[None]:
        """At each state itself. One is older than the epochs in which it was merged."""
        for each in self.states:
            self._known[each] = self.of(each)
            if interrupts.is_due():
                yield

    def of(self, epoch: Epoch) -> frozenset[Epoch]:
        seen = self._store.view(epoch).bare.seen
        found = {each for suffix, each in self._suffixes if suffix in seen}
        for suffix, merged in self._merged.items():
            if suffix in seen:
                for each in merged:
                    found.add(each)
                    found |= self._known.get(each, frozenset())
        return frozenset(found)


def _key(epoch: Epoch) -> bytes:
    return _MERGED + b"%010d" % epoch


# -- merging ---------------------------------------------------------------------------------------


def plan_merge(
    fs: Filesystem,
    theirs: Theirs,
    decide: Decide,
    labels: Labels,
    paths: Sequence[bytes] = (),
    contents: Mapping[bytes, bytes] | None = None,
) -> MergePlan:
    """What a merge into the head would do now. ``contents`` are texts that the client merged."""
    fs.flush()
    base = base_of(fs.store, fs.head.epoch, theirs.epoch)
    view = view_or_empty(fs, base)
    there = fs.view_of(theirs.epoch)
    return Planner(fs, view, there, decide, labels, theirs.beside, paths, contents).make()


def token_for(fs: Filesystem, theirs: Theirs, paths: Sequence[bytes] = ()) -> str:
    """A token that changes whenever a plan of the same merge might."""
    here = token_of(fs, theirs.epoch, list(paths), theirs.heads(fs.store))
    base = base_of(fs.store, fs.head.epoch, theirs.epoch)
    return xxhash.xxh3_64_hexdigest(f"{here} {base}".encode())


def merge(
    fs: Filesystem,
    theirs: Theirs,
    plan: MergePlan,
    *,
    whole: bool,
    changed: Changed,
    cause: Cause | None = None,
) -> Merged:
    """Carry out what was planned just before. The caller commits, and tells the kernel of
    ``changed``, also on failure: then the head is what it was. ``whole`` says that it is all of
    what they have, so that the next merge counts from there."""
    cause = cause or Cause()
    before = seal(fs, "restore", f"before merge of {theirs.title}", fs.clock(), cause=cause)
    taken = [before]
    with or_roll_back(fs, taken, changed):
        there = theirs.checkpoint or _saved(fs, theirs, cause)
        if theirs.line is not None:
            taken.append(there)
        Carrier(fs, fs.view_of(there.epoch), changed).carry_out(plan)
        fs.flush()
    merged = fs.head.epoch
    after = seal(fs, "merge", f"merge of {theirs.title}", fs.clock(), cause=cause)
    if whole:
        _note_merged(fs.store, merged, [there.epoch])
    log_restore(fs, "merge", there, before, changed, cause, after=after)
    return Merged(there, before, after, plan)


def _saved(fs: Filesystem, theirs: Theirs, cause: Cause) -> Checkpoint:
    """The checkpoint of another line as it is, which later merges count from."""
    assert theirs.line is not None
    own = filesystem_of(fs, theirs.line)
    return seal(own, FORK, f"{theirs.title} as it was merged", fs.clock(), cause=cause)
