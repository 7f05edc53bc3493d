"""The write buffers of the file system: what waits for the transaction, registered in `Pending`.

- `PartialBlocks`: blocks of which a part was written. A program that writes a few bytes here and
  there writes to the same blocks again and again; each goes into the transaction once.
- `NewEntries`: directory entries and block maps of new files, which go in together, in key order.
- `DirtyInodes`: changed inodes, by view. One file's making changes its inode half a dozen times.

They are emptied by `ckptfs.store.pending`, when they are full, and for a reader of their tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.model import BLOCK_SIZE, Ino
from ckptfs.store import blockmap
from ckptfs.store.blocks import Buffer, Edit
from ckptfs.store.format import block_entity, inode_entity, pack_inode, unpack_u64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ckptfs.model import Inode
    from ckptfs.store import Store, View
    from ckptfs.store.pending import Read

#: How many partial blocks, new entries, and dirty inodes of a view wait at most.
PARTIAL_MAX = 1024
_ENTRIES_MAX = 4096
DIRTY_MAX = 4096
#: With more dirty inodes it is not worth the while to look which of them the journal has.
_LOGGED_MAX = 64

_ZEROS = bytes(BLOCK_SIZE)
#: An empty range: it begins behind its end.
_NOWHERE = BLOCK_SIZE, 0

#: An entity and its record.
Record = tuple[bytes, bytes]
#: An offset in a file, and the bytes that are written there.
Piece = tuple[int, Buffer]


# -- partial blocks --------------------------------------------------------------------------------


class PartialBlock:
    """One block of a file. ``inode`` names the content that it is of, in the view in which it is
    written, and is otherwise as it was."""

    __slots__ = (
        "_key",
        "_length",
        "data",
        "inode",
        "logged",
        "number",
        "start",
        "stop",
        "stopped_at",
        "unlogged",
        "view",
    )

    def __init__(self, view: View, inode: Inode, number: int, data: bytearray, key: bytes) -> None:
        self.view = view
        self.inode = inode
        self.number = number
        self.data = data
        #: The block that the data were, and the range in which they differ from it.
        self._key = key
        self.start, self.stop = _NOWHERE
        self._length = len(data)
        #: Where the last piece ended.
        self.stopped_at = 0
        #: The range that was written since the last sync, and how many fragments syncs have logged.
        self.unlogged = _NOWHERE
        self.logged = 0

    @property
    def is_dirty(self) -> bool:
        return self.stop > 0

    @property
    def growth(self) -> int:
        """How many bytes longer it is than what is stored."""
        return len(self.data) - self._length

    @property
    def edit(self) -> Edit | None:
        return Edit(self._key, self.start, self.stop) if self._key else None

    def has_dirty(self, start: int, stop: int) -> bool:
        """Whether all of a range differs from what is stored, or lies between what does."""
        return self.start <= start and stop <= self.stop

    def put(self, start: int, piece: memoryview) -> int:
        """Write a piece; return by how much the data grew."""
        data = self.data
        end = len(data)
        if start > end:
            data.extend(_ZEROS[: start - end])
        stop = start + len(piece)
        data[start:stop] = piece
        if start > end:
            start = end
        if start < self.start:
            self.start = start
        if stop > self.stop:
            self.stop = stop
        self.unlogged = min(self.unlogged[0], start), max(self.unlogged[1], stop)
        self.stopped_at = stop
        return len(data) - end

    def overwrite(self, start: int, piece: Buffer) -> bool:
        """Write a piece that replaces bytes which differ already from what is stored; but not the
        end of a block that is filled in order, which is to be stored then."""
        stop = start + len(piece)
        if start < self.start or stop > self.stop:
            return False
        if stop == BLOCK_SIZE and start == self.stopped_at:
            return False
        self.data[start:stop] = piece
        first, last = self.unlogged
        if start < first or stop > last:
            self.unlogged = min(first, start), max(last, stop)
        self.stopped_at = stop
        return True


def _overwrite(
    blocks: dict[int, PartialBlock],
    pieces: Sequence[Piece],
    unlogged: dict[PartialBlock, None],
) -> int:
    for count, (offset, piece) in enumerate(pieces):
        number, start = divmod(offset, BLOCK_SIZE)
        block = blocks.get(number)
        if block is None or not block.overwrite(start, piece):
            return count
        unlogged[block] = None
    return len(pieces)


#: Overwrites blocks of a file as `PartialBlocks.overwrite` says; compiled, where that was lent.
overwrite: Callable[[dict[int, PartialBlock], Sequence[Piece], dict[PartialBlock, None]], int] = (
    _overwrite
)


class PartialBlocks:
    """By file and number. Until a block is stored, syncs log the fragments of it that were written
    to the journal."""

    def __init__(self, store: Store, head: Callable[[], View]) -> None:
        self._store = store
        self._head = head
        #: The compiled server looks here, too.
        self.files: dict[Ino, dict[int, PartialBlock]] = {}
        self._count = 0
        #: Those of which the journal does not have everything.
        self._unlogged: dict[PartialBlock, None] = {}

    def __contains__(self, ino: Ino) -> bool:
        return ino in self.files

    def __len__(self) -> int:
        return self._count

    def size_bytes(self) -> int:
        """How much memory they take, as if all were whole blocks."""
        return self._count * BLOCK_SIZE

    def _all(self) -> Iterator[PartialBlock]:
        """File by file, the one that has been here for longest first."""
        return (block for blocks in self.files.values() for block in blocks.values())

    def get(self, ino: Ino, number: int) -> PartialBlock | None:
        blocks = self.files.get(ino)
        return blocks.get(number) if blocks else None

    def has_dirty(self, ino: Ino, offset: int, data: Buffer) -> bool:
        """Whether these bytes replace some that wait here."""
        number, start = divmod(offset, BLOCK_SIZE)
        block = self.get(ino, number)
        return block is not None and block.has_dirty(start, start + len(data))

    def add(self, block: PartialBlock) -> None:
        if self._count >= PARTIAL_MAX:
            self.flush_block(next(self._all()))
        self.files.setdefault(block.inode.ino, {})[block.number] = block
        self._count += 1

    def put(self, block: PartialBlock, start: int, piece: memoryview) -> int:
        """Write a piece; return by how much the block grew."""
        self._unlogged[block] = None
        return block.put(start, piece)

    def overwrite(self, ino: Ino, pieces: Sequence[Piece]) -> int:
        """Write the first of these pieces, as long as they replace bytes that wait here: neither
        the file nor what waits grows. Return how many that were."""
        blocks = self.files.get(ino)
        return overwrite(blocks, pieces, self._unlogged) if blocks else 0

    def drop(self, block: PartialBlock) -> None:
        """Forget a block that is in the transaction, or that a whole one replaces."""
        inode = block.inode
        blocks = self.files[inode.ino]
        del blocks[block.number]
        if not blocks:
            del self.files[inode.ino]
        self._count -= 1
        self._unlogged.pop(block, None)
        self._store.fragments.withdraw(inode, block.number, block.logged)

    def drop_file(self, ino: Ino) -> None:
        """Forget the blocks of a file that goes."""
        for block in list(self.files.get(ino, {}).values()):
            self.drop(block)

    def flush(self) -> None:
        self._flush_all(list(self._all()))

    def _flush_all(self, blocks: list[PartialBlock]) -> None:
        """Empties the list as it goes: each block's memory is free for the pages of the next. Were
        they kept to the end, a commit would have all of them twice."""
        blocks.reverse()
        while blocks:
            self.flush_block(blocks.pop())

    def flush_file(self, ino: Ino) -> None:
        """Flush the blocks of one file, for a reader of its block map."""
        self._flush_all(list(self.files.get(ino, {}).values()))

    def flush_block(self, block: PartialBlock) -> None:
        if block.is_dirty:  # it may have been opened for a write that was refused
            data = block.data
            record = blockmap.record_of(self._store, data, block.edit, block.number)
            # The inode counts the growth already (`ckptfs.fs.content.write`).
            blockmap.put(self._store, block.view, block.inode, block.number, record, len(data))
        self.drop(block)

    def log(self) -> None:
        """Log what was written since the last sync. A replay knows the head alone, so blocks of
        other views (of excluded files, of files in limbo) are flushed."""
        fragments, head = self._store.fragments, self._head().epoch
        for block in list(self._unlogged):
            if block.view.epoch != head:
                self.flush_block(block)
                continue
            start, stop = block.unlogged
            fragments.log(block.inode, block.number, block.logged, start, block.data[start:stop])
            block.logged += 1
            block.unlogged = _NOWHERE
        self._unlogged.clear()

    def holds(self, read: Read) -> bool:
        return read.table == "blockmap" and any(
            block.is_dirty
            and read.asks_for(block_entity(block.inode.content, block.number), block.view.suffix)
            for block in self._all()
        )


# -- new entries -----------------------------------------------------------------------------------


class NewEntries:
    """Records of `dirents` and `blockmap` for new inodes, by the view in which they are written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._entries: dict[View, list[Record]] = {}
        self._blocks: dict[View, list[Record]] = {}
        self._count = 0

    def add(self, view: View, entries: list[Record], blocks: list[Record]) -> None:
        self._entries.setdefault(view, []).extend(entries)
        self._blocks.setdefault(view, []).extend(blocks)
        self._count += len(entries) or len(blocks)
        if self._count >= _ENTRIES_MAX:
            self.flush()

    def flush(self) -> None:
        if not self._count:
            return
        for view, entries in self._entries.items():
            entries.sort()
            self._store.dirents.put_all(view, entries)
        for view, blocks in self._blocks.items():
            self._store.blockmap.put_all_unlisted(view, blocks)
        self._entries.clear()
        self._blocks.clear()
        self._count = 0

    def holds(self, read: Read) -> bool:
        waiting = {"dirents": self._entries, "blockmap": self._blocks}.get(read.table, {})
        return any(
            read.asks_for(entity, view.suffix)
            for view, records in waiting.items()
            for entity, _ in records
        )


# -- dirty inodes ----------------------------------------------------------------------------------


class DirtyInodes:
    """The changed inodes of all views that are written (`View.dirty_inodes`)."""

    def __init__(
        self, store: Store, head: Callable[[], View], others: Callable[[], Iterable[View]]
    ) -> None:
        self._store = store
        self._head = head
        #: The views besides the head.
        self._others = others
        #: Inodes of the head as the journal has them, where the transaction has older ones.
        self._logged: dict[Ino, Inode] = {}

    def drop(self, view: View, ino: Ino) -> None:
        """Forget an inode that goes."""
        self._logged.pop(ino, None)
        view.dirty_inodes.pop(ino, None)

    def flush(self) -> None:
        for view in (self._head(), *self._others()):
            self.flush_view(view)

    def flush_view(self, view: View) -> None:
        dirty = view.dirty_inodes
        if not dirty:
            return
        records = [(inode_entity(ino), pack_inode(inode)) for ino, inode in dirty.items()]
        records.sort()
        self._store.inodes.put_all(view, records)
        dirty.clear()
        if view.epoch == self._head().epoch:
            self._logged.clear()

    def log(self) -> None:
        """Log the changed inodes of the head, and flush those of other views. Where the head's
        epoch has no record of one yet, all are flushed: `changes` must list it."""
        head = self._head()
        for view in self._others():
            self.flush_view(view)
        if len(head.dirty_inodes) > _LOGGED_MAX or not self._log_all_of(head):
            self.flush_view(head)

    def _log_all_of(self, head: View) -> bool:
        table, logged = self._store.inodes, self._logged
        for ino, inode in head.dirty_inodes.items():
            before = logged.get(ino)
            if before is inode:
                continue
            entity = inode_entity(ino)
            if before is None and not table.has_row(entity + head.suffix):
                return False
            table.log(head, entity, pack_inode(inode))
            logged[ino] = inode
        return True

    def holds(self, read: Read) -> bool:
        if read.table != "inodes":
            return False
        asked = [Ino(unpack_u64(read.prefix))] if read.exact else None
        return any(
            ino in view.dirty_inodes and read.asks_for(inode_entity(ino), view.suffix)
            for view in (self._head(), *self._others())
            for ino in asked or view.dirty_inodes
        )
