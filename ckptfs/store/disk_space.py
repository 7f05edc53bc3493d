"""Disk space: how much the disk would really give this store, and what may still be accepted.

What a disk has free is not always what one may have of it: a quota of the user, of a project or of
a subvolume is met first, and no call knows all kinds. So the disk is asked: for a moment a
nameless file gets the space that is wanted. That happens seldom, and never for all that is left.

Everything that is accepted must be possible to commit. So every write is counted against a budget,
the disk is asked now and then, and what does not fit is refused before anything changed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs.errors import StoreError
from ckptfs.store.pages import Pages

if TYPE_CHECKING:
    import lmdb

    from ckptfs.store.transaction import Database, Records

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
            # The caller must not take ENOENT for the answer to its own request: `rm -f` would go
            # on as if all were well.
            self.is_missing = True
            raise OSError(errno.EIO, f"the store {self._path} is gone") from error

    def size(self) -> int:
        """The size of the disk."""
        disk = self.statvfs()
        return disk.f_blocks * disk.f_frsize

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
    """The number of the kind of file system, as statfs(2) gives it."""
    answer = (ctypes.c_long * 32)()
    return int(answer[0]) if _libc.statfs(os.fsencode(path), answer) == 0 else 0


def allocated_bytes(directory: Path) -> dict[str, int]:
    """How much disk each file in a directory and below it takes, by its path."""
    found: dict[str, int] = {}
    # Through the slash also where the directory is named by a descriptor's link.
    for place, _, names in os.walk(f"{directory}/"):
        for name in names:
            path = os.path.join(place, name)
            with suppress(FileNotFoundError):
                found[os.path.relpath(path, directory)] = os.lstat(path).st_blocks * 512
    return found


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """As fallocate(2)."""
    while _libc.fallocate(fd, mode, offset, length):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


# -- the budget of a transaction -------------------------------------------------------------------

#: What a commit may need beyond the bytes of the writes in it: copied tree pages and the free list.
RESERVE = 16 << 20
#: What a copy of the data file leaves for the writes of others.
BESIDE_COPY = 2 * RESERVE
#: A record's share of the tree pages that its commit copies, as counted against the free space.
_RECORD_COST = 512
#: The same at worst: in trees that are large, records that are far apart.
_RECORD_PAGES = 16 << 10
#: What names bytes that are elsewhere: a block, and the place in a file's map.
_PLACED_RECORDS = 2


class Budget:
    """``free_bytes`` says how many bytes the store could still write, given how many wait, and
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
        # So that the commit by the clock meets the failure.
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


# -- a store's space -------------------------------------------------------------------------------

#: Below this much free disk there is no journal.
_PLENTY = 256 << 20
#: Below this much free disk the pages that LMDB can reuse are counted too.
_SCARCE = 4 << 30
#: What a commit leaves at least.
_COMMIT_LEAVES = 4 << 20
#: Below this much free disk, another commit makes free pages reclaimable, from so many bytes on.
_NEARLY_FULL = 512 << 20
_WORTH_A_COMMIT = 4 << 20
#: The kernel asks for no more than this in one request.
_WRITE_MAX = 1 << 20


class StoreSpace:
    """What a store can still take: of its disk, and of the free pages of its data file. LMDB keeps
    for itself the pages that a commit gives up, and uses them from the commit after the next on."""

    def __init__(self, path: Path, data_file: Path) -> None:
        self.disk = DiskSpace(path)
        self.budget = Budget(self.disk, self._free_bytes, self._sure_bytes)
        #: Backups under way, in other threads.
        self.copies = 0
        self._data_file = data_file
        self._env: lmdb.Environment
        self._txn: Records
        self._dbs: Collection[Database]

    def begin(self, env: lmdb.Environment, txn: Records, dbs: Collection[Database]) -> None:
        """After a commit: the transaction that follows."""
        self._env, self._txn, self._dbs = env, txn, dbs
        self.budget.begin()
        #: Known when it is first asked for.
        self._reclaimable = -1
        self.is_nearly_full = self.disk.holds_less_than(_NEARLY_FULL)

    # -- of the disk ------------------------------------------------------------------------------

    def spare(self, size: int) -> bool:
        """Whether the disk can spare so much for the heap, which then counts as written: beside it
        there must be space for all that was accepted and is not committed."""
        try:
            plenty = self.disk.free(size + AHEAD) > size + AHEAD and not self.disk.limited
        except OSError:
            return False
        if plenty:
            self.disk.written(size)
        return plenty

    def has_plenty(self, size: int) -> bool:
        """Whether the disk can spare so much for the journal."""
        try:
            return self.disk.free(size) > _PLENTY and not self.disk.limited
        except OSError:
            return False

    def free_bytes(self) -> int:
        """How much the disk has left for this store, with what its own file can reuse."""
        return self.disk.free() + self.reusable_bytes()

    def spare_bytes(self) -> int:
        """How much could still be written: without the reserve that deleting and committing need,
        and of the free pages the half that is sure to be of use."""
        return self.disk.free() + self.reusable_bytes() // 2 - RESERVE

    @property
    def is_full(self) -> bool:
        """Whether a write of the largest size would be refused."""
        return self._free_bytes(0) - RESERVE < _WRITE_MAX

    def _free_bytes(self, waiting: int) -> int:
        left = int(self._env.info()["map_size"]) - self._used_pages() * self._page_size
        free = min(self.disk.free(waiting), left)
        # Half of them may lie apart, where a large record finds no space.
        return free if free > _SCARCE else free + self._reclaimable_bytes() // 2

    def _sure_bytes(self, waiting: int) -> int:
        """How much can be committed also if free pages lie apart, where a large record finds no
        space: what the disk has, or a little where there are many."""
        free = self.disk.free(waiting)
        if free >= 2 * _COMMIT_LEAVES:  # free pages need not be looked for
            return free - _COMMIT_LEAVES
        return max(free - _COMMIT_LEAVES, min(free // 2, self._reclaimable_bytes() // 8))

    # -- of the data file -------------------------------------------------------------------------

    def reusable_bytes(self) -> int:
        """How much of the data file is free: for new data, or for `compact` to give back."""
        return max(0, self._used_pages() * self._page_size - self.live_bytes())

    def live_bytes(self) -> int:
        """How much of the data file has records."""
        stats = [self._txn.stat(db) for db in self._dbs]
        pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
        return pages * self._page_size

    def wants_another_commit(self) -> bool:
        """Whether another commit would give space that is wanted: on a disk that is nearly full, of
        what was deleted."""
        if not self.is_nearly_full or self.copies or self.budget.failure is not None:
            return False
        return self.reusable_bytes() - self._reclaimable_bytes() > _WORTH_A_COMMIT

    def _reclaimable_bytes(self) -> int:
        """How much of the data file's free pages the open transaction may use: none while an older
        state is being read."""
        if self.copies:
            return 0
        if self._reclaimable < 0:
            with closing(Pages(self._data_file)) as pages:
                self._reclaimable = pages.reclaimable_pages() * self._page_size
        return self._reclaimable

    def _used_pages(self) -> int:
        return int(self._env.info()["last_pgno"]) + 1

    @property
    def _page_size(self) -> int:
        return int(self._env.stat()["psize"])
