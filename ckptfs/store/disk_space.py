"""Disk space: how much the disk would really give this store, and what may still be accepted.

What a disk has free is not always what one may have of it: a quota of the user, of a project or of
a subvolume is met first, and no call tells of all kinds. So the disk is asked: for a moment a
nameless file gets the space that is wanted. That happens seldom, and never for all that is left.

Everything that is accepted must be possible to commit. So every write is counted against a budget,
the disk is asked now and then, and what does not fit is refused before anything changed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from ckptfs.errors import StoreError

#: What is asked for, beyond what was accepted and is not on disk yet.
AHEAD = 64 << 20
#: How exactly is found out what there is, when that is too much.
_STEP = 2 << 20
#: How long an answer holds.
_FRESH_S = 1.0
#: Of a tmpfs: it has to take real memory for an answer, and what it says is free is all there is.
_TMPFS = 0x01021994
_FULL = (errno.ENOSPC, errno.EDQUOT)

KEEP_SIZE = 1
PUNCH_HOLE = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class DiskSpace:
    """What there is for files in one directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asks = _kind_of(path) != _TMPFS
        #: Whether the last answer was less than was asked for.
        self.limited = False
        #: What is left of it, and when it was given.
        self._left = 0
        self._asked = -_FRESH_S
        self._abandoned = False
        #: The directory was looked for in vain.
        self.is_missing = False

    def free(self, waiting: int = 0) -> int:
        """How many bytes can be written, ``waiting`` of them accepted already."""
        disk = self.disk()
        if not self._asks:
            return disk
        fresh = time.monotonic() - self._asked < _FRESH_S
        if not fresh or (not self.limited and self._left < waiting + AHEAD // 2):
            self._ask(min(waiting + AHEAD, disk // 2))
        return min(disk, self._left) if self.limited else disk

    def disk(self) -> int:
        """How much the disk says that it has."""
        if self._abandoned:
            return 1 << 62
        disk = self.statvfs()
        return disk.f_bavail * disk.f_frsize

    def statvfs(self) -> os.statvfs_result:
        """What the disk says of itself."""
        try:
            return os.statvfs(self._path)
        except FileNotFoundError as error:
            # Whoever asked for something else must not take this for its answer: `rm -f` would go
            # on as if all were well.
            self.is_missing = True
            raise OSError(errno.EIO, f"the store {self._path} is gone") from error

    def abandon(self) -> None:
        """The directory is gone: there is nothing to ask any more, and nothing is refused."""
        self._asks, self._abandoned = False, True
        self.limited = False

    def holds_less_than(self, size: int) -> bool:
        """Whether the disk says that it has less; not where it says nothing."""
        try:
            return self.disk() < size
        except OSError:
            return False

    def written(self, size: int) -> None:
        """Note what went to the disk since."""
        self._left -= size

    def _ask(self, wanted: int) -> None:
        granted, over = 0, wanted
        if self._grants(wanted):
            granted = wanted
        while over - granted > _STEP:
            middle = (granted + over) // 2
            if self._grants(middle):
                granted = middle
            else:
                over = middle
        self._left, self.limited = granted, granted < wanted
        self._asked = time.monotonic()

    def _grants(self, size: int) -> bool:
        """Whether the disk gives so much; where it cannot be asked, it does."""
        if size <= 0:
            return True
        try:
            fd = os.open(self._path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            return error.errno not in _FULL
        try:
            fallocate(fd, 0, 0, size)
        except OSError as error:
            return error.errno not in _FULL
        else:
            return True
        finally:
            os.close(fd)


def _kind_of(path: Path) -> int:
    """The number of the kind of file system, as statfs(2) tells it."""
    answer = (ctypes.c_long * 32)()
    return int(answer[0]) if _libc.statfs(os.fsencode(path), answer) == 0 else 0


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """As fallocate(2)."""
    while _libc.fallocate(fd, mode, offset, length):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


# -- the budget of a transaction -------------------------------------------------------------------

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
        self, space: DiskSpace, free_bytes: Callable[[int], int], sure_bytes: Callable[[int], int]
    ) -> None:
        self._space = space
        self._free_bytes = free_bytes
        self._sure_bytes = sure_bytes
        #: Why nothing can be written any more, if that is so.
        self.failure: StoreError | None = None
        #: What was accepted up to the last commit, and what had its space already.
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
        a disk that never writes in place needs new space even for pages that are used again."""
        space = self._free_bytes(needed) - RESERVE
        sure = self._sure_bytes(needed)
        stride = min(AHEAD - RESERVE, max(sure // 4, 0))
        if self._space.limited:
            stride = min(stride, RESERVE // 4)
            self.pressed = self.pressed or self.bytes > stride
        self.pressed = self.pressed or self.bytes > sure // 2
        self._limit = min(space, needed + stride, sure)

    def has_space(self, size: int) -> bool:
        """Whether so many bytes more could be written in any case."""
        if self.failure is not None or self.pressed:
            return False
        needed = self.bytes + size
        if needed > self._limit:
            self._look_ahead(needed)
        return needed <= self._limit

    def place(self, size: int) -> None:
        """So many of the bytes that were charged are not for the commit to write: they have their
        space already, and the commit only has the records that name them."""
        self.bytes += _PLACED_RECORDS * _RECORD_COST - size
        self._placed += size
        self._records += _PLACED_RECORDS

    def note_space(self, size: int, records: int) -> None:
        """Note bytes and records for which there was space."""
        self.note(records)
        self.bytes += size

    def require(self, records: int) -> None:
        """Refuse, with ENOSPC, an operation for whose records there is no space; each of them is
        noted when it is written."""
        needed = self.bytes + records * _RECORD_COST
        if records and needed > self._free_bytes(needed) - RESERVE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
