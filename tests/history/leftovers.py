"""What may not be left in a store: records that no view has a use for, and tombstones over nothing.

`check` says whether what is seen is right; this says whether what is not seen is gone. It holds
whenever no removal is under way.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckptfs.model import Epoch, Ino
from ckptfs.store import Store, View
from ckptfs.store.format import epoch_of, pack_u64, unpack_inode, unpack_u64
from ckptfs.store.tables import Versioned


def leftovers(store: Store) -> list[str]:
    return [*_needless_tombstones(store), *_unseen(store)]


def _tables(store: Store) -> tuple[Versioned, ...]:
    return (store.inodes, store.dirents, store.links, store.blockmap, store.xattrs)


def _needless_tombstones(store: Store) -> Iterator[str]:
    views = {epoch: store.view(epoch) for epoch in store.epochs}
    for table in _tables(store):
        for entity, suffix, record in table.versions(b""):
            epoch = epoch_of(suffix)
            if not record and table.inherited(views[epoch], entity) is None:
                yield f"epoch {epoch} has a needless tombstone {table.kind!r}:{entity.hex()}"


def _unseen(store: Store) -> Iterator[str]:
    """Each record must be of use in the view of the epoch that has it."""
    uses = {epoch: _Uses(store, store.view(epoch)) for epoch in store.epochs}
    for table in _tables(store):
        for entity, suffix, record in table.versions(b""):
            epoch = epoch_of(suffix)
            if record and not uses[epoch].has(table, entity):
                yield f"epoch {epoch} has {table.kind!r}:{entity.hex()} that nobody needs"


class _Uses:
    def __init__(self, store: Store, view: View) -> None:
        self._store = store
        self.epoch: Epoch = view.epoch
        records = dict(store.inodes.walk(view, b""))
        self.inodes = set(records)
        self.contents = {
            pack_u64(unpack_inode(Ino(unpack_u64(entity)), record).content)
            for entity, record in records.items()
        }

    def has(self, table: Versioned, entity: bytes) -> bool:
        if table is self._store.blockmap:
            return entity[:8] in self.contents
        return entity[:8] in self.inodes
