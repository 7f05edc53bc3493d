"""Space: how much the workspace and its history take, and what deleting a checkpoint would free.

`measure` counts the bytes of files as they are stored: inline, or in blocks, which count once
however many files share them. Records and page borders are not counted; the store's file is larger.

What a deletion frees is estimated from the changes of the epochs after the checkpoint. `held_bytes`
is quick: other checkpoints may hold the same bytes, and the store may have compressed them.
`freed_bytes` considers both.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import LOST, Checkpoint
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


class Space(NamedTuple):
    """``live_bytes`` are what the workspace holds now, ``shared_bytes`` those of them that
    checkpoints hold too; ``history_bytes`` would go with all checkpoints. ``store_bytes`` is the
    file, of which ``reclaimable_bytes`` are free and go back to the disk with `compact`."""

    live_bytes: int
    shared_bytes: int
    history_bytes: int
    store_bytes: int
    reclaimable_bytes: int


def measure(fs: Filesystem) -> Space:
    """Reads the whole block map: a second for a million blocks."""
    fs.flush()
    store = fs.store
    live: dict[bytes, int] = {}
    past: dict[bytes, int] = {}
    for piece, size, is_live, is_past in _pieces(store):
        if is_live:
            live[piece] = size
        if is_past:
            past[piece] = size
    sizes = dict(store.blocks.sizes())
    shared = live.keys() & past.keys()
    return Space(
        live_bytes=_total(live, live, sizes),
        shared_bytes=_total(shared, live, sizes),
        history_bytes=_total(past.keys() - shared, past, sizes),
        store_bytes=store.size_bytes(),
        reclaimable_bytes=store.reusable_bytes(),
    )


def _total(pieces: Iterable[bytes], inline: dict[bytes, int], stored: dict[bytes, int]) -> int:
    return sum(stored.get(piece, inline[piece]) for piece in pieces)


def _pieces(store: Store) -> Iterator[tuple[bytes, int, bool, bool]]:
    """(name, bytes, in the workspace, in a checkpoint) of what each block-map record holds. A block
    is named by its key; inline bytes, which are never shared by two files, by where they are."""
    head = store.head
    live = {head.suffix} if store.excluded is None else {head.suffix, store.excluded.suffix}
    named = _contents(store)
    last = b""
    for entity, suffix, record in store.blockmap.versions(b""):
        visible = entity != last and suffix in head.seen
        if visible:
            last = entity
        if not record:
            continue
        mapping = unpack_mapping(record)
        name = mapping.key or entity + suffix
        yield name, mapping.length, visible and entity[:8] in named, suffix not in live


def _contents(store: Store) -> set[bytes]:
    """The contents of the files in the workspace, packed."""
    return {
        pack_u64(unpack_inode(Ino(unpack_u64(entity)), record).content)
        for entity, record in store.inodes.walk(store.head, b"")
    }


# -- what a checkpoint holds -----------------------------------------------------------------------

#: How many changed inodes of an epoch to look at.
_LOOKED_AT = 20_000
#: How many answers about moments to cache.
_ANSWERS_MAX = 4096


def held_bytes(store: Store, checkpoint: Checkpoint) -> int:
    """About how many bytes only this checkpoint holds."""
    if checkpoint.epoch not in store.epochs:
        return 0
    view = store.view(checkpoint.epoch).bare
    children = store.epoch_tree.children(checkpoint.epoch)
    return max((_taken_away(store, view, child) for child in children), default=0)


def holds_more(store: Store, moment: Checkpoint) -> bool:
    """Whether more was deleted or replaced after a moment than the path that it was taken for."""
    known = _answers.setdefault(store, {})
    answer = known.get(moment.epoch)
    if answer is None:
        children = store.epoch_tree.children(moment.epoch)
        answer = any(_takes_more(store, moment, child) for child in children)
        if all(store.epochs[child].sealed for child in children):
            if len(known) >= _ANSWERS_MAX:
                known.clear()
            known[moment.epoch] = answer
    return answer


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


def _taken_away(store: Store, view: View, child: Epoch) -> int:
    """The bytes of a view's files that a child of it removed or replaced."""
    after = store.view(child).bare
    entities = islice(store.changes.walk(child, store.inodes.kind), _LOOKED_AT)
    return sum(_lost_of(store, view, after, entity) for entity in entities)


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


def freed_bytes(store: Store, checkpoint: Checkpoint, gone: Collection[Epoch] = ()) -> int:
    """About how many bytes the store would free if the checkpoint were deleted after those of the
    epochs ``gone``: what neither the state after it has nor an older checkpoint that stays."""
    store.pending.flush()
    children = store.epoch_tree.children(checkpoint.epoch)
    if checkpoint.epoch not in store.epochs or len(children) > 1:
        return 0  # an epoch with two children is not freed
    keeper = _older_that_stays(store, checkpoint.epoch, gone)
    known = _freed.setdefault(store, {})
    key = (checkpoint.epoch, keeper)
    found = known.get(key)
    if found is None:
        found = sum(_freed_after(store, checkpoint.epoch, child, keeper) for child in children)
        if all(store.epochs[child].sealed for child in children):
            if len(known) >= _ANSWERS_MAX:
                known.clear()
            known[key] = found
    return found


#: The same for checkpoints, by their epoch and the older one that stays.
_freed: WeakKeyDictionary[Store, dict[tuple[Epoch, Epoch], int]] = WeakKeyDictionary()


def _older_that_stays(store: Store, epoch: Epoch, gone: Collection[Epoch]) -> Epoch:
    """The nearest ancestor that is a checkpoint, or NO_EPOCH."""
    epoch = store.epochs[epoch].parent
    while epoch in store.epochs and (epoch in gone or not store.epochs[epoch].info):
        epoch = store.epochs[epoch].parent
    return epoch if epoch in store.epochs else NO_EPOCH


def _freed_after(store: Store, epoch: Epoch, child: Epoch, keeper: Epoch) -> int:
    view, after = store.view(epoch).bare, store.view(child).bare
    kept = store.view(keeper).bare.seen if keeper != NO_EPOCH else frozenset()
    total = 0
    for entity in islice(store.changes.walk(child, store.inodes.kind), _LOOKED_AT):
        if record := store.inodes.get(view, entity):
            old = unpack_inode(Ino(unpack_u64(entity)), record)
            total += sum(_stored_bytes(store, _lost_blocks(store, view, after, kept, old)))
    return total


def _lost_blocks(
    store: Store, view: View, after: View, kept: Collection[bytes], old: Inode
) -> Iterator[bytes]:
    """The block-map records of a file that a view sees, and neither what comes after nor what is
    kept: those of all its blocks, or of the ones that changed."""
    own = store.inodes.own(after, pack_u64(old.ino))
    stays = own and has_links(own) and unpack_inode(old.ino, own).content == old.content
    changed = None
    if own is None or stays:
        entities = store.changes.walk(after.epoch, store.blockmap.kind, pack_u64(old.content))
        changed = set(islice(entities, _LOOKED_AT))
        if not changed:
            return
    last = b""
    versions = store.blockmap.versions(pack_u64(old.content))
    for entity, suffix, record in islice(versions, _LOOKED_AT):
        if entity == last or suffix not in view.seen:
            continue
        last = entity
        if record and suffix not in kept and (changed is None or entity in changed):
            yield record


def _stored_bytes(store: Store, records: Iterable[bytes]) -> Iterator[int]:
    """How much space each block takes; its share if other records use it too."""
    for record in records:
        mapping = unpack_mapping(record)
        yield store.blocks.stored_bytes(mapping.key) if mapping.key else mapping.length
