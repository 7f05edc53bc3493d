"""Space: what deleting a checkpoint would free.

It is estimated from the changes of the epochs after the checkpoint. `weigher` is quick: other
checkpoints may hold the same bytes, and the store may have compressed them. `Freed` considers both.
Where all bytes of a store are is counted in `ckptfs.history.account`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ckptfs import interrupts
from ckptfs.history.checkpoints import LOST, Checkpoint, of_epoch
from ckptfs.interrupts import Ended, Steps
from ckptfs.model import BLOCK_SIZE, Epoch, Ino, Inode
from ckptfs.store import Store, View
from ckptfs.store.format import (
    NO_EPOCH,
    has_links,
    pack_u64,
    unpack_inode,
    unpack_mapping,
    unpack_u64,
)

# -- what a checkpoint holds -----------------------------------------------------------------------

#: How many changed inodes of an epoch to look at.
_LOOKED_AT = 20_000
#: How many answers about moments to cache.
_ANSWERS_MAX = 4096
#: What still grows is weighed again after so many times as long as that took.
_REST = 50


class _Weight(NamedTuple):
    """What a checkpoint holds beside these epochs after it, and until when that is believed."""

    children: frozenset[Epoch]
    bytes: int
    until: float


_weights: WeakKeyDictionary[Store, dict[Epoch, _Weight]] = WeakKeyDictionary()


def weigher(store: Store) -> Callable[[Checkpoint], Steps[int]]:
    """For one look at all checkpoints: about how many bytes only this one holds, in steps.

    What is sealed is weighed once. What still grows is weighed again when that takes a small part
    of the time. One look weighs so much only: what is left counts as the last time, or as nothing,
    and the next look goes on.
    """
    known = _weights.setdefault(store, {})
    looked_at = 0

    def weigh(checkpoint: Checkpoint) -> Steps[int]:
        nonlocal looked_at
        if checkpoint.epoch not in store.epochs:
            return 0
        children = frozenset(store.epoch_tree.children(checkpoint.epoch))
        found, began = known.get(checkpoint.epoch), time.monotonic()
        if found is not None and found.children == children and began < found.until:
            return found.bytes
        if looked_at >= _LOOKED_AT:
            return found.bytes if found is not None else 0
        if interrupts.is_due():
            yield
            if checkpoint.epoch not in store.epochs:
                return 0
        view, heaviest, spent = store.view(checkpoint.epoch).bare, 0, _Spent()
        for child in children:
            if child not in store.epochs:
                continue
            entities = list(islice(store.changes.walk(child, store.inodes.kind), _LOOKED_AT))
            looked_at += len(entities)
            taken = yield from spent.of(_taken_away(store, view, child, entities))
            heaviest = max(heaviest, taken)
        if checkpoint.epoch not in store.epochs or not children <= store.epochs.keys():
            return heaviest  # they went meanwhile
        rest = _REST * spent.seconds
        until = math.inf if _are_sealed(store, children) else time.monotonic() + rest
        if len(known) >= _ANSWERS_MAX:
            known.clear()
        known[checkpoint.epoch] = _Weight(children, heaviest, until)
        return heaviest

    return weigh


def holds_more(store: Store, moment: Checkpoint) -> bool:
    """Whether more was deleted or replaced after a moment than the path that it was taken for."""
    known = _answers.setdefault(store, {})
    answer = known.get(moment.epoch)
    if answer is None:
        children = store.epoch_tree.children(moment.epoch)
        answer = any(_takes_more(store, moment, child) for child in children)
        if _are_sealed(store, children):
            if len(known) >= _ANSWERS_MAX:
                known.clear()
            known[moment.epoch] = answer
    return answer


def _are_sealed(store: Store, epochs: Iterable[Epoch]) -> bool:
    return all(store.epochs[epoch].sealed for epoch in epochs)


#: Answers about moments whose following epochs are sealed.
_answers: WeakKeyDictionary[Store, dict[Epoch, bool]] = WeakKeyDictionary()


def _takes_more(store: Store, moment: Checkpoint, child: Epoch) -> bool:
    view, after = store.view(moment.epoch).bare, store.view(child).bare
    name = os.path.basename(os.fsencode(moment.metadata.get(LOST, "")))
    for entity in islice(store.changes.walk(child, store.inodes.kind), _LOOKED_AT):
        record = store.inodes.get(view, entity)
        is_another = record and unpack_inode(Ino(unpack_u64(entity)), record).name != name
        if is_another and _lost_of(store, view, after, entity):
            return True
    return False


class _Spent:
    """How long steps took, without what came between them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def of(self, steps: Steps[int]) -> Steps[int]:
        while True:
            began = time.monotonic()
            ended = interrupts.resume(steps)
            self.seconds += time.monotonic() - began
            if isinstance(ended, Ended):
                return int(ended.result)
            yield ended


#: So many inodes or blocks are looked at before it is asked whether a step is used up.
_STRIDE = 32


def _taken_away(store: Store, view: View, child: Epoch, entities: Iterable[bytes]) -> Steps[int]:
    """The bytes of a view's files that a child of it removed or replaced, of these inodes."""
    after, total = store.view(child).bare, 0
    for number, entity in enumerate(entities):
        if number % _STRIDE == 0 and interrupts.is_due():
            yield
        total += _lost_of(store, view, after, entity)
    return total


def _lost_of(store: Store, view: View, after: View, entity: bytes) -> int:
    record, own = store.inodes.get(view, entity), store.inodes.own(after, entity)
    if not record:
        return 0
    old = unpack_inode(Ino(unpack_u64(entity)), record)
    if not own or not has_links(own) or unpack_inode(old.ino, own).content != old.content:
        return old.allocated
    changed = store.changes.walk(after.epoch, store.blockmap.kind, pack_u64(old.content))
    return min(old.allocated, BLOCK_SIZE * sum(1 for _ in changed))


# -- what the store would get back ----------------------------------------------------------------


class Freed:
    """About how many bytes the store would free if a checkpoint were deleted after others: what
    neither the state after it has nor an older checkpoint that stays.

    One of these serves one plan, in which more and more checkpoints are gone: the way past those is
    walked once for all that come after."""

    def __init__(self, store: Store) -> None:
        store.pending.flush()
        self._store = store
        self._answers = _freed.setdefault(store, {})
        #: By an epoch that is gone, an older one, between which all are gone.
        self._past: dict[Epoch, Epoch] = {}

    def __call__(self, checkpoint: Checkpoint, gone: Container[int] = ()) -> int:
        """``gone`` has the numbers of the others."""
        return interrupts.at_once(self.steps(checkpoint, gone))

    def steps(self, checkpoint: Checkpoint, gone: Container[int] = ()) -> Steps[int]:
        """The same in steps."""
        if interrupts.is_due():
            yield
        store, epoch = self._store, checkpoint.epoch
        children = tuple(store.epoch_tree.children(epoch))  # there may be more after a step
        if epoch not in store.epochs or len(children) > 1:
            return 0  # an epoch with two children is not freed
        key = (epoch, self._older_that_stays(epoch, gone))
        found = self._answers.get(key)
        if found is None:
            found = 0
            for child in children:
                found += yield from _freed_after(store, epoch, child, key[1])
            known = (store.epochs.get(each) for each in (epoch, *children))
            if all(record is not None and record.sealed for record in known):
                if len(self._answers) >= _FREED_MAX:
                    self._answers.clear()
                self._answers[key] = found
        return found

    def _older_that_stays(self, epoch: Epoch, gone: Container[int]) -> Epoch:
        """The nearest ancestor that is a checkpoint, or NO_EPOCH."""
        epochs, passed = self._store.epochs, []
        epoch = epochs[epoch].parent
        while epoch in epochs:
            older = self._past.get(epoch)
            if older is None:
                found = of_epoch(self._store, epoch)
                if found is not None and found.id not in gone:
                    break
                older = epochs[epoch].parent
            passed.append(epoch)
            epoch = older
        self._past.update(dict.fromkeys(passed, epoch))
        return epoch if epoch in epochs else NO_EPOCH


#: The same for checkpoints, by their epoch and the older one that stays.
_freed: WeakKeyDictionary[Store, dict[tuple[Epoch, Epoch], int]] = WeakKeyDictionary()
#: How many of these to cache.
_FREED_MAX = 1 << 16


def _freed_after(store: Store, epoch: Epoch, child: Epoch, keeper: Epoch) -> Steps[int]:
    view, after = store.view(epoch).bare, store.view(child).bare
    kept: Container[bytes] = () if keeper == NO_EPOCH else store.view(keeper).bare.seen
    total = number = 0
    for entity in islice(store.changes.walk(child, store.inodes.kind), _LOOKED_AT):
        record = store.inodes.get(view, entity)
        old = unpack_inode(Ino(unpack_u64(entity)), record) if record else None
        lost = () if old is None else _lost_blocks(store, view, after, kept, old)
        for size in chain((0,), _stored_bytes(store, lost)):
            total += size
            number += 1
            if number % _STRIDE == 0 and interrupts.is_due():
                yield
    return total


def _lost_blocks(
    store: Store, view: View, after: View, kept: Container[bytes], old: Inode
) -> Iterator[bytes]:
    """The block-map records of a file that a view sees, and neither what comes after nor what is
    kept: those of all its blocks, or of the ones that changed."""
    own = store.inodes.own(after, pack_u64(old.ino))
    stays = own and has_links(own) and unpack_inode(old.ino, own).content == old.content
    prefix = pack_u64(old.content)
    versions: Iterator[tuple[bytes, bytes]]
    if own is None or stays:
        changed = store.changes.walk(after.epoch, store.blockmap.kind, prefix)
        listed = islice(changed, _LOOKED_AT)
        versions = map(partial(store.blockmap.version, view), listed)
    else:
        versions = _seen_versions(store, view, prefix)
    for suffix, record in versions:
        if record and suffix not in kept:
            yield record


def _seen_versions(store: Store, view: View, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(suffix, record) of every block of a content that a view sees."""
    last = b""
    for entity, suffix, record in islice(store.blockmap.versions(prefix), _LOOKED_AT):
        if entity != last and suffix in view.seen:
            last = entity
            yield suffix, record


def _stored_bytes(store: Store, records: Iterable[bytes]) -> Iterator[int]:
    """How much space each block takes; its share if other records use it too."""
    for record in records:
        mapping = unpack_mapping(record)
        yield store.blocks.stored_bytes(mapping.key) if mapping.key else mapping.length
