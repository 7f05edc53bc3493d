"""What a checkpoint holds that the state after it has no more: about what deleting it would free.

An estimate from the changes of the epochs behind it, which costs as much as they are many. Other
checkpoints may hold the same bytes.
"""

from __future__ import annotations

from itertools import islice

from ckptfs.history.checkpoints import Checkpoint
from ckptfs.model import BLOCK_SIZE, Epoch, Ino
from ckptfs.store import Store, View
from ckptfs.store.format import has_links, pack_u64, unpack_inode, unpack_u64

#: Of an epoch so many changed inodes are looked at.
_LOOKED_AT = 20_000


def held_bytes(store: Store, checkpoint: Checkpoint) -> int:
    """About how many bytes go with the checkpoint."""
    if checkpoint.epoch not in store.epochs:
        return 0
    view = store.view(checkpoint.epoch).bare
    children = store.epoch_tree.children(checkpoint.epoch)
    return max((_taken_away(store, view, child) for child in children), default=0)


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
