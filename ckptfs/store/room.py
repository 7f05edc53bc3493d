"""Room: how much the disk would really give this store.

What a disk has free is not always what one may have of it: a quota of the user, of a project or of
a subvolume is met first, and no call tells of all kinds. So the disk is asked: for a moment a
nameless file is given the room that is wanted. That happens seldom, and never for all that is left.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from pathlib import Path

from ckptfs.store.disk import fallocate

#: What is asked for, beyond what was accepted and is not on disk yet.
AHEAD = 64 << 20
#: How exactly is found out what there is, when that is too much.
_STEP = 2 << 20
#: How long an answer holds.
_FRESH_S = 1.0
#: Of a tmpfs: it has to take real memory for an answer, and what it says is free is all there is.
_TMPFS = 0x01021994
_FULL = (errno.ENOSPC, errno.EDQUOT)

_libc = ctypes.CDLL(None, use_errno=True)


class Room:
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
