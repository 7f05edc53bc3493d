"""The partial-block buffer: blocks of which a part was written, not in the transaction yet.

A program that writes a few bytes here and there writes to the same blocks again and again. Each
block is completed here and goes into the transaction once. A sync until then logs the fragments
that were written (`PartialBlock.unlogged`) to the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.model import BLOCK_SIZE
from ckptfs.store.blocks import Edit

if TYPE_CHECKING:
    from ckptfs.model import Ino, Inode
    from ckptfs.store import View
    from ckptfs.store.blockmap import JournalFragments

#: How many blocks the buffer holds at most.
PARTIAL_MAX = 256

_ZEROS = bytes(BLOCK_SIZE)
#: What begins behind its end.
_NOWHERE = BLOCK_SIZE, 0


class PartialBlock:
    """One block of a file. ``inode`` names the content that it is of, in the view in which it is
    written, and is otherwise as it was."""

    __slots__ = (
        "_key",
        "_length",
        "_start",
        "_stop",
        "data",
        "inode",
        "logged",
        "number",
        "unlogged",
        "view",
    )

    def __init__(self, view: View, inode: Inode, number: int, data: bytearray, key: bytes) -> None:
        self.view = view
        self.inode = inode
        self.number = number
        self.data = data
        #: The block that the data were, and between which places they are others now.
        self._key = key
        self._start, self._stop = _NOWHERE
        self._length = len(data)
        #: Between which places the data are others than at the last sync, and how many pieces
        #: syncs have logged.
        self.unlogged = _NOWHERE
        self.logged = 0

    @property
    def is_changed(self) -> bool:
        return self._stop > 0

    @property
    def growth(self) -> int:
        """How many bytes longer it is than what is stored."""
        return len(self.data) - self._length

    @property
    def edit(self) -> Edit | None:
        return Edit(self._key, self._start, self._stop) if self._key else None

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
        if start < self._start:
            self._start = start
        if stop > self._stop:
            self._stop = stop
        self.unlogged = min(self.unlogged[0], start), max(self.unlogged[1], stop)
        return len(data) - end


class PartialBlocks:
    """All that are being filled, by file and number.

    Invariant: nobody looks at a file's block map without a look here (`content.read`) or
    `content.flush`, and no commit happens before `content.flush_all`.
    """

    def __init__(self, fragments: JournalFragments) -> None:
        self._fragments = fragments
        self._files: dict[Ino, dict[int, PartialBlock]] = {}
        self._count = 0
        #: Those of which the journal does not have everything.
        self._unlogged: dict[PartialBlock, None] = {}

    def __contains__(self, ino: Ino) -> bool:
        return ino in self._files

    def __len__(self) -> int:
        return self._count

    def is_full(self) -> bool:
        return self._count >= PARTIAL_MAX

    def get(self, ino: Ino, number: int) -> PartialBlock | None:
        blocks = self._files.get(ino)
        return blocks.get(number) if blocks else None

    def of(self, ino: Ino) -> list[PartialBlock]:
        """All of a file."""
        return list(self._files.get(ino, {}).values())

    def oldest(self) -> PartialBlock | None:
        """The first block of the file that has been here for longest."""
        for blocks in self._files.values():
            return next(iter(blocks.values()))
        return None

    def unlogged_in(self, view: View) -> list[PartialBlock]:
        """Those of a view of which the journal does not have everything."""
        return [block for block in self._unlogged if block.view is view]

    def add(self, block: PartialBlock) -> None:
        self._files.setdefault(block.inode.ino, {})[block.number] = block
        self._count += 1

    def put(self, block: PartialBlock, start: int, piece: memoryview) -> int:
        """Write a piece; return by how much the block grew."""
        self._unlogged[block] = None
        return block.put(start, piece)

    def drop(self, block: PartialBlock) -> None:
        """It is in the transaction, or nobody wants it any more."""
        inode = block.inode
        blocks = self._files[inode.ino]
        del blocks[block.number]
        if not blocks:
            del self._files[inode.ino]
        self._count -= 1
        self._unlogged.pop(block, None)
        self._fragments.withdraw(inode, block.number, block.logged)

    def log(self) -> None:
        """Have the journal note what was written since the last time."""
        for block in self._unlogged:
            start, stop = block.unlogged
            self._fragments.log(
                block.inode, block.number, block.logged, start, block.data[start:stop]
            )
            block.logged += 1
            block.unlogged = _NOWHERE
        self._unlogged.clear()
