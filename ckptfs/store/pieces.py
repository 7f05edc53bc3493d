"""Pieces: bytes that were written to a file and synced, and are in no block of it yet.

Where a program syncs after each short write, its block would be stored anew every time. Instead the
journal notes the piece that was written, as a record of a table of its own, and that it is gone
when the block is stored or nobody wants it any more. The table itself stays empty: only when a
store is opened that was not closed the journal's records are put there, and the pieces into their
blocks.
"""

from __future__ import annotations

import logging
import struct
from itertools import groupby
from typing import TYPE_CHECKING

from ckptfs.model import BLOCK_SIZE, Ino
from ckptfs.store import mapping
from ckptfs.store.blocks import CorruptBlock
from ckptfs.store.format import CorruptRecord, inode_entity, unpack_inode

if TYPE_CHECKING:
    from ckptfs.model import Inode
    from ckptfs.store.environment import Store
    from ckptfs.store.tables import Plain

log = logging.getLogger(__name__)

#: Inode, content, number of the block, place among the pieces of that block.
_KEY = struct.Struct(">QQQI")
_BLOCK = slice(0, 24)
#: Where in the block the bytes behind it begin.
_START = struct.Struct("<I")


class Pieces:
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


def take_up(store: Store) -> None:
    """Put the pieces that a journal has left into their blocks."""
    left = store.pieces.left()
    for block, records in groupby(left, key=lambda record: record[0][_BLOCK]):
        try:
            _complete(store, list(records))
        except (CorruptBlock, CorruptRecord, struct.error) as error:
            # What is damaged stays as it is, for `check` to name it and a repair to mend it.
            log.error("what was synced of block %s is lost: %s", block.hex(), error)
    for key, _ in left:
        store.dirty = True
        store.pieces.forget(key)


def _complete(store: Store, records: list[tuple[bytes, bytes]]) -> None:
    """Put the pieces of one block into it, unless its content is gone."""
    ino, content, number, _ = _KEY.unpack(records[0][0])
    view = store.head.bare
    found = store.inodes.get(view, inode_entity(Ino(ino)))
    if found is None or (inode := unpack_inode(Ino(ino), found)).content != content:
        return
    store.note()
    before = mapping.find(store, view, inode, number)
    data = bytearray(mapping.bytes_of(store, before)) if before else bytearray()
    for _, value in records:
        (start,) = _START.unpack_from(value)
        end = start + len(value) - _START.size
        if end > BLOCK_SIZE:
            raise CorruptRecord(f"a piece for inode {ino} ends behind its block")
        data.extend(bytes(max(0, start - len(data))))
        data[start:end] = value[_START.size :]
    mapping.put(store, view, inode, number, mapping.record_of(store, data), len(data))
