"""The bytes of a block while short writes fill it, and a little longer.

Knows blocks by their keys; where they belong is others' business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.model import BLOCK_SIZE
from ckptfs.store.blocks import Edit

if TYPE_CHECKING:
    from ckptfs.store import View

#: How many blocks stay at hand after they were stored.
_AT_HAND_MAX = 2

_ZEROS = bytes(BLOCK_SIZE)


class Gathered:
    """The block of one file that short writes are filling; it is not in the transaction yet.

    Invariant: nobody reads the file's block map without `content.settle`, and no commit happens
    before `content.settle_all`.
    """

    __slots__ = ("_key", "_start", "_stop", "data", "number", "view")

    def __init__(self, view: View, number: int, data: bytearray, key: bytes) -> None:
        self.view = view
        self.number = number
        self.data = data
        #: The block that the data were, and between which places they are others now.
        self._key = key
        self._start, self._stop = BLOCK_SIZE, 0

    @property
    def edit(self) -> Edit | None:
        return Edit(self._key, self._start, self._stop) if self._key else None

    def put(self, start: int, piece: memoryview) -> None:
        end = len(self.data)
        if start > end:
            self.data.extend(_ZEROS[: start - end])
        stop = start + len(piece)
        self.data[start:stop] = piece
        self._start = min(self._start, start, end)
        self._stop = max(self._stop, stop)


class AtHand:
    """The bytes of a few blocks that were stored or looked at last: whoever syncs after each short
    write writes on in the same block. A key is a digest of the bytes, so what is here cannot be out
    of date."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, bytearray] = {}

    def keep(self, key: bytes, data: bytearray) -> None:
        """From here on nobody else changes the data."""
        self._blocks[key] = data
        if len(self._blocks) > _AT_HAND_MAX:
            del self._blocks[next(iter(self._blocks))]

    def take(self, key: bytes) -> bytearray | None:
        """The bytes, to be changed."""
        return self._blocks.pop(key, None)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks
