"""Laying to rest: which records go into chunks (ckptfs.store.rest), and when they come back.

What the workspace sees stays in the tables, so that a request finds it as fast as ever. All other
records of sealed epochs rest: versions that were replaced, tombstones and what they hide, the block
maps of files that are gone, and the lists of what each epoch changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.room import COMMIT_BYTES, room_permitting
from ckptfs.model import NO_CONTENT, Epoch, Ino
from ckptfs.store import Store, View
from ckptfs.store.chunks import Record
from ckptfs.store.format import NO_EPOCH, pack_u32, pack_u64, suffix_of, unpack_inode
from ckptfs.store.tables import ByEpoch, Versioned

#: A chunk has about so many bytes of records, or so many of them. Half of it takes a tenth more
#: room. A whole one is decoded in 2 ms, and is back in its table in 10.
CHUNK_BYTES = 256 << 10
_CHUNK_RECORDS = 4_000


def lay(fs: Filesystem, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Lay to rest all that the workspace does not see. The caller commits."""
    wake(fs)
    fs.flush()
    store = fs.store
    parent = store.epochs[store.head.epoch].parent
    # What could not be woken stays as it is: chunks do not overlap.
    if parent == NO_EPOCH or store.rest.used:
        return
    store.upgrade()
    store.anchor = store.head.epoch
    with room_permitting():
        _lay_all(fs, _Sight(store, parent), chunk_bytes)


def wake(fs: Filesystem, budget_s: float | None = None) -> bool:
    """Bring records back for about so long; say whether that is all, or all that there is room
    for."""
    deadline = None if budget_s is None else time.monotonic() + budget_s
    store = fs.store
    with room_permitting():
        while store.rest.used:
            interrupts.between()
            store.charge(CHUNK_BYTES)
            store.rest.wake_some()
            if store.dirty_bytes > COMMIT_BYTES or store.pressed:
                fs.commit()
            if deadline is not None and time.monotonic() >= deadline:
                return not store.rest.used
    return True


def is_in_the_way(fs: Filesystem) -> bool:
    """Whether the workspace looks for its records among those at rest, which is slower: after a
    restore, or when the checkpoint that it came from was deleted."""
    rest = fs.store.rest
    return rest.used and rest.concerns(fs.store.head)


def _lay_all(fs: Filesystem, sight: _Sight, chunk_bytes: int) -> None:
    store = fs.store
    versioned = (store.dirents, store.blockmap, store.links, store.xattrs, store.inodes)
    unseen = [(table.kind, sight.unseen(table)) for table in versioned]
    lists = [(table.kind, _of_sealed(table, sight)) for table in store.by_epoch]
    for kind, entities in (*lists, *unseen):
        for chunk in _chunks(entities, chunk_bytes):
            interrupts.between()
            store.charge(chunk_bytes)
            store.rest.lay(kind, chunk)
            if store.dirty_bytes > COMMIT_BYTES:
                fs.commit()


def _chunks(entities: Iterator[list[Record]], chunk_bytes: int) -> Iterator[list[Record]]:
    """Put the records of entities together to chunks; one entity is never parted."""
    chunk: list[Record] = []
    size = 0
    for records in entities:
        chunk += records
        size += sum(len(key) + len(value) for key, value in records)
        if size >= chunk_bytes or len(chunk) >= _CHUNK_RECORDS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _of_sealed(table: ByEpoch, sight: _Sight) -> Iterator[list[Record]]:
    """The records of sealed epochs, each for itself."""
    for epoch in sorted(sight.sealed):
        for record in table.walk(pack_u32(epoch)):
            yield [record]


class _Sight:
    """What the head sees of sealed epochs: what its parent does."""

    def __init__(self, store: Store, parent: Epoch) -> None:
        self._view: View = store.view(parent)
        self.sealed = {epoch for epoch, record in store.epochs.items() if record.sealed}
        self._suffixes = {suffix_of(epoch) for epoch in self.sealed}
        self._blockmap = store.blockmap
        self._contents = set(_contents(store, self._view))

    def unseen(self, table: Versioned) -> Iterator[list[Record]]:
        """Of each entity the records that the head does not see, in order."""
        for entity, versions in groupby(table.versions(b""), key=itemgetter(0)):
            interrupts.between()
            found = list(self._unseen(table, entity, versions))
            if found:
                yield found

    def _unseen(
        self, table: Versioned, entity: bytes, versions: Iterator[tuple[bytes, bytes, bytes]]
    ) -> Iterator[Record]:
        # A content that no inode has there is not looked at.
        hidden = table is self._blockmap and entity[:8] not in self._contents
        for _, suffix, record in versions:
            if not hidden and suffix in self._view.seen:
                hidden = True
                if record:
                    continue
            if suffix in self._suffixes:
                yield entity + suffix, record


def _contents(store: Store, view: View) -> Iterator[bytes]:
    for _, record in store.inodes.walk(view, b""):
        interrupts.between()
        content = unpack_inode(Ino(0), record).content
        if content != NO_CONTENT:
            yield pack_u64(content)
