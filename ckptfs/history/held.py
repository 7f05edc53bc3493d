"""What a checkpoint holds that the state after it has no more: about what deleting it would free.

An estimate from the changes of the epochs behind it, which costs as much as they are many. Other
checkpoints may hold the same bytes.
"""

from __future__ import annotations

import os
from itertools import islice
from weakref import WeakKeyDictionary

from ckptfs.history.checkpoints import LOST, Checkpoint
from ckptfs.model import BLOCK_SIZE, Epoch, Ino
from ckptfs.store import Store, View
from ckptfs.store.format import has_links, pack_u64, unpack_inode, unpack_u64

#: Of an epoch so many changed inodes are looked at.
_LOOKED_AT = 20_000
#: Of so many moments it is remembered what they hold.
_ANSWERS_MAX = 4096


def held_bytes(store: Store, checkpoint: Checkpoint) -> int:
    """About how many bytes go with the checkpoint."""
    if checkpoint.epoch not in store.epochs:
        return 0
    view = store.view(checkpoint.epoch).bare
    children = store.epoch_tree.children(checkpoint.epoch)
    return max((_taken_away(store, view, child) for child in children), default=0)


def holds_more(store: Store, moment: Checkpoint) -> bool:
    """Whether what came after a moment took away more than the path that it was taken for."""
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


#: What is known of moments behind which nothing changes any more.
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
