"""The block map of a content: which bytes stand in which of its blocks.

Short bytes stand in the map's own record, longer ones in a block that it names. Owns both, and what
follows for the blocks when a record comes or goes. What an inode says of its content is the
caller's to keep.
"""

from __future__ import annotations

import errno
import logging
import struct
from itertools import groupby
from typing import TYPE_CHECKING

from ckptfs.model import BLOCK_SIZE, Ino
from ckptfs.store.blocks import Buffer, CorruptBlock, Edit
from ckptfs.store.format import (
    INLINE_MAX,
    CorruptRecord,
    Mapping,
    block_entity,
    inode_entity,
    pack_inline,
    pack_reference,
    unpack_inode,
    unpack_mapping,
)

if TYPE_CHECKING:
    from ckptfs.model import Inode
    from ckptfs.store.environment import Store
    from ckptfs.store.epochs import View
    from ckptfs.store.tables import Plain

log = logging.getLogger(__name__)

#: So many blocks at the beginning of a file are stored beside those of others. Most files are not
#: longer, and are read together.
_SMALL = 4


def find(store: Store, view: View, inode: Inode, number: int) -> Mapping | None:
    record = store.blockmap.get(view, block_entity(inode.content, number))
    return unpack_mapping(record) if record else None


def bytes_of(store: Store, mapping: Mapping) -> Buffer:
    """The bytes of a record, which are those that were stored, or an error."""
    if mapping.key:
        data = store.blocks.read(mapping.key)
        if len(data) != mapping.length:
            raise CorruptBlock(errno.EIO, "a record of the block map is damaged")
        return data
    if not mapping.is_whole:
        raise CorruptBlock(errno.EIO, "bytes in the block map are damaged")
    return mapping.inline


def record_of(store: Store, data: Buffer, edit: Edit | None = None, number: int = 0) -> bytes:
    """The record of these bytes, of which the file has ``number`` blocks before. What is too long
    for one is stored as a block. With ``edit`` they are known to differ little from those of
    another."""
    length = len(data)
    if length <= INLINE_MAX:
        return pack_inline(data)
    # What is edited is edited again: there LMDB is the better place, whose pages are used again.
    if number >= _SMALL and length == BLOCK_SIZE and edit is None:
        return pack_reference(length, store.blocks.add_large(data))
    return pack_reference(length, store.blocks.add(data, edit))


def put(store: Store, view: View, inode: Inode, number: int, record: bytes, length: int) -> int:
    """Map a block to a record; return by how much the file's allocation grew."""
    entity = block_entity(inode.content, number)
    if inode.content_epoch == view.epoch:
        replaced = store.blockmap.put_unlisted(view, entity, record)
        inherited = None
    else:
        replaced = store.blockmap.put(view, entity, record)
        inherited = None if replaced is not None else store.blockmap.inherited(view, entity)
    try:
        return length - release(store, replaced) - _length(inherited)
    except CorruptRecord:
        # What it mapped is not known, so it cannot be counted out: it stays, for a repair.
        if replaced is not None:
            store.blockmap.put_unlisted(view, entity, replaced)
            release(store, record)
        raise


def drop(store: Store, view: View, inode: Inode, entity: bytes) -> None:
    """Make a block a hole."""
    if inode.content_epoch == view.epoch:
        release(store, store.blockmap.forget_unlisted(view, entity))
    else:
        release(store, store.blockmap.drop(view, entity))


def share(store: Store, found: Mapping) -> None:
    """Count one more use of the block that a record names: another is about to name it, too."""
    if found.key:
        store.blocks.share(found.key)


def release(store: Store, record: bytes | None) -> int:
    """Let go of what a dropped record held; return how many bytes it mapped."""
    if not record:
        return 0
    mapping = unpack_mapping(record)
    if mapping.key:
        store.blocks.release(mapping.key)
    return mapping.length


def _length(record: bytes | None) -> int:
    return unpack_mapping(record).length if record else 0


# -- journal fragments: bytes that were synced and are in no block yet -----------------------------

# Where a program syncs after each short write, its block would be stored anew every time. Instead
# the journal notes the fragment that was written, as a record of the table `pieces`, and that it is
# gone when the block is stored or its content is. The table itself stays empty but for the time
# between the replay of a journal and the commit that follows.

#: Inode, content, number of the block, place among the pieces of that block.
_KEY = struct.Struct(">QQQI")
_BLOCK = slice(0, 24)
#: Where in the block the bytes behind it begin.
_START = struct.Struct("<I")


class JournalFragments:
    """What the journal notes of them."""

    def __init__(self, table: Plain) -> None:
        self._table = table

    def log(self, inode: Inode, number: int, place: int, start: int, data: bytearray) -> None:
        key = _KEY.pack(inode.ino, inode.content, number, place)
        self._table.log(key, _START.pack(start) + data)

    def withdraw(self, inode: Inode, number: int, count: int) -> None:
        """The first pieces of a block are wanted no more."""
        for place in range(count):
            self._table.log(_KEY.pack(inode.ino, inode.content, number, place), None)

    def left(self) -> list[tuple[bytes, bytes]]:
        """The records that a journal has left here."""
        return list(self._table.walk())

    def forget(self, key: bytes) -> None:
        self._table.delete(key)


def replay_fragments(store: Store) -> None:
    """Put the pieces that a journal has left into their blocks."""
    left = store.fragments.left()
    for block, records in groupby(left, key=lambda record: record[0][_BLOCK]):
        try:
            _complete(store, list(records))
        except (CorruptBlock, CorruptRecord, struct.error) as error:
            # What is damaged stays as it is, for `check` to name and a repair to put right.
            log.error("what was synced of block %s is lost: %s", block.hex(), error)
    for key, _ in left:
        store.dirty = True
        store.fragments.forget(key)


def _complete(store: Store, records: list[tuple[bytes, bytes]]) -> None:
    """Put the pieces of one block into it, unless its content is gone."""
    ino, content, number, _ = _KEY.unpack(records[0][0])
    view = store.head.bare
    found = store.inodes.get(view, inode_entity(Ino(ino)))
    if found is None or (inode := unpack_inode(Ino(ino), found)).content != content:
        return
    store.note()
    before = find(store, view, inode, number)
    data = bytearray(bytes_of(store, before)) if before else bytearray()
    for _, value in records:
        (start,) = _START.unpack_from(value)
        end = start + len(value) - _START.size
        if end > BLOCK_SIZE:
            raise CorruptRecord(f"a piece for inode {ino} ends behind its block")
        data.extend(bytes(max(0, start - len(data))))
        data[start:end] = value[_START.size :]
    put(store, view, inode, number, record_of(store, data), len(data))
