"""The budget of a transaction: what was accepted since the last commit, and what may still be.

Everything that is accepted must be possible to commit. So every write is counted, the disk is asked
now and then how much there is (`ckptfs.store.room`), and what does not fit is refused before
anything changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ckptfs.errors import StoreError
from ckptfs.store.room import AHEAD, Room

#: What a commit may need beyond the bytes of the writes in it: copied tree pages and the free list.
RESERVE = 16 << 20
#: A record's share of the tree pages that its commit copies, as counted against the free space.
_RECORD_COST = 512
#: The same at worst: in trees that are large, records that are far apart.
_RECORD_PAGES = 16 << 10
#: What names bytes that are elsewhere: a block, and the place in a file's map.
_PLACED_RECORDS = 2


class Budget:
    """``free_bytes`` tells how many bytes the store could still write, given how many wait, and
    ``sure_bytes`` how many of them in one transaction, whatever becomes of free pages."""

    def __init__(
        self, room: Room, free_bytes: Callable[[int], int], sure_bytes: Callable[[int], int]
    ) -> None:
        self._room = room
        self._free_bytes = free_bytes
        self._sure_bytes = sure_bytes
        #: Why nothing can be written any more, if that is so.
        self.failure: StoreError | None = None
        #: What was accepted up to the last commit, and what had its room already.
        self._total = self._placed = 0
        self.bytes = 0
        self.begin()

    def begin(self) -> None:
        """After a commit."""
        # So that whoever commits by the clock hears of a failure.
        self.dirty = self.failure is not None
        self._total += self.bytes
        self.bytes = 0
        #: Whether a commit should come before the next operation: the disk is nearly full.
        self.pressed = False
        self._records = 0
        self._records_max = RESERVE // 3 // _RECORD_PAGES
        #: Known when it is first asked for: others fill the disk while this workspace is idle.
        self._limit = -1

    def fail(self, failure: StoreError) -> None:
        """From here on everything is refused."""
        self.failure = failure
        self.dirty = True

    @property
    def accepted_bytes(self) -> int:
        """All that was accepted since the store was opened."""
        return self._total + self._placed + self.bytes

    def mark(self) -> None:
        """There is something to commit."""
        self.dirty = True

    def note(self, records: int = 1) -> None:
        """Note records that are written, whatever space is left."""
        if self.failure is not None:
            raise OSError(errno.EIO, str(self.failure))
        self.dirty = True
        self.bytes += records * _RECORD_COST
        self._records += records
        if self._records >= self._records_max:
            self._feel_pressure()

    def _feel_pressure(self) -> None:
        """A commit copies every page of the trees that it touches, and a record may touch several.
        Pages that one commit gave up can be used again by the one after the next. So on a disk that
        is nearly full a commit must stay below a third of what is left."""
        self._records_max = max(self._free_bytes(0), 0) // 3 // _RECORD_PAGES
        self.pressed = self._records >= self._records_max

    def charge(self, size: int = 0) -> None:
        """Before an operation that takes space: note its bytes, or refuse it with ENOSPC.

        The reserve sees to it that what was accepted can be committed, and that operations that
        do not ask (removing, changing attributes) still work on a full disk.
        """
        if self.failure is not None:
            raise OSError(errno.EIO, str(self.failure))
        needed = self.bytes + size + _RECORD_COST
        if needed > self._limit:
            self._look_ahead(needed)
            if needed > self._limit:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.dirty = True
        self.bytes = needed
        self._records += 1
        if self._records >= self._records_max:
            self._feel_pressure()

    def _look_ahead(self, needed: int) -> None:
        """How far to go until the disk is asked again. Where a quota is near, commits stay small:
        a disk that never writes in place needs new room even for pages that are used again."""
        room = self._free_bytes(needed) - RESERVE
        sure = self._sure_bytes(needed)
        stride = min(AHEAD - RESERVE, max(sure // 4, 0))
        if self._room.limited:
            stride = min(stride, RESERVE // 4)
            self.pressed = self.pressed or self.bytes > stride
        self.pressed = self.pressed or self.bytes > sure // 2
        self._limit = min(room, needed + stride, sure)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more could be written in any case."""
        if self.failure is not None or self.pressed:
            return False
        needed = self.bytes + size
        if needed > self._limit:
            self._look_ahead(needed)
        return needed <= self._limit

    def place(self, size: int) -> None:
        """So many of the bytes that were charged are not for the commit to write: they have their
        room already, and the commit only has the records that name them."""
        self.bytes += _PLACED_RECORDS * _RECORD_COST - size
        self._placed += size
        self._records += _PLACED_RECORDS

    def note_room(self, size: int, records: int) -> None:
        """Note bytes and records for which there was room."""
        self.note(records)
        self.bytes += size

    def require(self, records: int) -> None:
        """Refuse, with ENOSPC, an operation for whose records there is no room; each of them is
        noted when it is written."""
        needed = self.bytes + records * _RECORD_COST
        if records and needed > self._free_bytes(needed) - RESERVE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
