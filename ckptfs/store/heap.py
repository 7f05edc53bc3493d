"""The heap: whole blocks of large files, in a file of their own beside the data file.

LMDB copies what it is given into pages, writes those through the page cache, and keeps a page that
became free for itself. For a large file that is a copy too many, twice the memory, and a store that
never shrinks. Here a block goes to the disk past the page cache while the next one comes, and its
space is the disk's again when it goes.

The file is a row of *slots*, each as long as a block. Which block is in which slot stands in the
table `blocks`. A slot is given out once and never again: when its block goes, it becomes a hole.

Two things hold at any moment. The bytes of a slot are on the disk before a commit, or a batch of
the journal, that names it (`flush`). And a slot becomes a hole after the commit that follows the
one that lets go of it: until then it stands in the table `freed` (`free`, `flush_freed`,
`committed`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from ckptfs import interrupts
from ckptfs.model import BLOCK_SIZE
from ckptfs.store.aio import Reader, Writer, open_direct
from ckptfs.store.compaction import sync
from ckptfs.store.disk_space import KEEP_SIZE, PUNCH_HOLE, fallocate
from ckptfs.store.format import CorruptRecord, pack_number, pack_u64, unpack_number

if TYPE_CHECKING:
    from ckptfs.store.blocks import Buffer
    from ckptfs.store.metadata import IdAllocator
    from ckptfs.store.tables import Plain

log = logging.getLogger(__name__)

FILE = "heap"

#: How much space is reserved at once: as much again as was written, between these.
_CHUNK_MIN = 1 << 20
_CHUNK_MAX = 64 << 20
#: How long a disk that could not spare any is not asked again.
_PATIENCE_S = 1.0
#: What is copied at once.
_COPY = 8 << 20
#: Slots that `reclaim` looks at in one step.
_RECLAIMED = 4096
#: So many become a hole by one call.
_PUNCHED = 256

_HOLE = PUNCH_HOLE | KEEP_SIZE


class HeapFailed(OSError):
    """What was accepted could not be written."""


class Heap:
    """``freed`` is the table of that name. ``spare`` says whether the disk can spare so much, which
    is then taken."""

    def __init__(
        self,
        directory: Path,
        ids: IdAllocator,
        freed: Plain,
        spare: Callable[[int], bool],
    ) -> None:
        self._path = directory / FILE
        self._ids = ids
        self._table = freed
        self._spare = spare
        self._fd = -1
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        #: Whether more can be put into it: known when that is first wanted.
        self._usable: bool | None = None
        #: Up to where the file has space, what was put there since the last pause, and until when
        #: (monotonic clock) the disk need not be asked for more.
        self._reserved = 0
        self._written = 0
        self._patient_until = 0.0
        #: Whether anything was put since the last `flush`.
        self._unsynced = False
        #: Slots that the transaction let go of, those that the last commit did, and those that are
        #: holes. All of them stand in the table.
        self._freed: list[int] = []
        self._waiting: list[int] = []
        self._punched: list[int] = []
        #: Whether the last holes could not be made.
        self._stuck = False
        #: How many seconds holes may take after a commit; those that are left come after the next.
        #: A disk that is busy takes a tenth of a second for some.
        self.punching_s = inf
        #: Copies of the last commit under way: its slots stay as they are.
        self._holders = 0

    # -- opening and closing ----------------------------------------------------------------------

    def look(self, *, read_only: bool = False) -> None:
        """After opening a store: see what there is, and undo what was not committed, unless it is
        another process's."""
        if read_only:
            if self._path.exists():
                self._open(os.O_RDONLY)
            return
        if not self._ids.slot:
            self._path.unlink(missing_ok=True)
            return
        self._waiting = [slot for slot in self.freed() if slot is not None]
        if self._path.exists():
            self._open(os.O_RDWR)
            self._cut()

    def _open(self, flags: int) -> None:
        self._fd = open_direct(self._path, flags)
        self._reserved = os.fstat(self._fd).st_size

    def _cut(self) -> None:
        """What is behind the last slot was reserved, or is of no commit."""
        end = self._ids.slot * BLOCK_SIZE
        if self._reserved > end:
            os.ftruncate(self._fd, end)
            self._reserved = end

    def trim(self) -> None:
        """While nothing is written: give back what was reserved."""
        if self._fd >= 0:
            self._cut()
            self._written = 0

    def close(self, *, committed: bool) -> None:
        fd, writer, reader = self._fd, self._writer, self._reader
        with contextlib.ExitStack() as ends:
            if fd >= 0:
                ends.callback(os.close, fd)
            if reader is not None:
                ends.callback(reader.close)
            if writer is not None:
                writer.close()
            if fd >= 0 and committed:
                with contextlib.suppress(OSError):  # the next opening does it, too
                    self._cut()
            self._fd, self._writer, self._reader = -1, None, None

    # -- putting and reading ----------------------------------------------------------------------

    def put(self, data: Buffer) -> int | None:
        """Take a whole block; the slot that it is in. None if there is no space here."""
        slot = self._ids.slot
        end = (slot + 1) * BLOCK_SIZE
        if end > self._reserved and not self._reserve(end):
            return None
        self._writer = self._writer or Writer(self._fd)
        self._writer.put(data, end - BLOCK_SIZE)
        self._ids.slot = slot + 1
        self._unsynced = True
        self._written += BLOCK_SIZE
        return slot

    def _reserve(self, end: int) -> bool:
        """See that the file has space up to there. So nothing that is accepted can lack it later,
        and the disk's file system need not find a place for each piece."""
        if self._usable is False or monotonic() < self._patient_until:
            return False
        chunks = (min(max(self._written, _CHUNK_MIN), _CHUNK_MAX), _CHUNK_MIN)
        chunk = next(filter(self._spare, chunks), None)
        if chunk is None:
            self._patient_until = monotonic() + _PATIENCE_S
            return False
        start = end - BLOCK_SIZE
        try:
            if self._usable is None:
                self._make()
            fallocate(self._fd, 0, start, chunk)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                log.info("%s: not used from here on: %s", FILE, error)
                self._usable = False
            return False
        self._reserved = start + chunk
        return True

    def _make(self) -> None:
        """Before the first block is put: a heap is of use only where holes can be made."""
        if self._fd < 0:
            self._open(os.O_RDWR | os.O_CREAT)
            sync(self._path.parent)
        fallocate(self._fd, _HOLE, self._reserved, BLOCK_SIZE)
        self._usable = True

    def read(self, slot: int) -> bytes:
        """The bytes in a slot, whatever they are: fewer than a block if the file ends there."""
        end = self._ids.slot
        if self._fd < 0 or slot >= end:
            return b""
        if self._writer is not None and (landed := self._writer.landed()) is not None:
            if slot >= landed // BLOCK_SIZE:
                coming = self._writer.peek(slot * BLOCK_SIZE, BLOCK_SIZE)
                return coming if coming is not None else self._read_alone(slot)
            end = landed // BLOCK_SIZE
        self._reader = self._reader or Reader(self._fd)
        return self._reader.read(slot, end)

    def _read_alone(self, slot: int) -> bytes:
        """Beside others that are on their way: what lies around it may not be there yet."""
        self._reader = self._reader or Reader(self._fd)
        return self._reader.read(slot, slot + 1)

    def flush(self) -> None:
        """See that everything that was put is on the disk, and every hole is one."""
        if self._unsynced:
            try:
                if self._writer is not None:
                    self._writer.drain()
                os.fdatasync(self._fd)
            except OSError as error:
                raise HeapFailed(error.errno, f"{FILE}: {error.strerror}") from error
            self._unsynced = False

    # -- letting go -------------------------------------------------------------------------------

    def free(self, slot: int) -> None:
        """Nothing in the transaction names the slot any more."""
        self._table.put(pack_u64(slot), pack_number(slot))
        self._freed.append(slot)

    def freed(self) -> Iterator[int | None]:
        """The slots in the table; None for one that is damaged."""
        for key, value in self._table.walk():
            with contextlib.suppress(CorruptRecord):
                if pack_u64(slot := unpack_number(value)) == key:
                    yield slot
                    continue
            yield None

    def flush_freed(self) -> None:
        """Before a commit: what is a hole by now need not be remembered."""
        for slot in self._punched:
            self._table.delete(pack_u64(slot))
        self._punched.clear()
        if self.is_waiting:
            # So that there is something to commit: LMDB leaves out a commit of nothing.
            self._table.put(pack_u64(self._waiting[0]), pack_number(self._waiting[0]))

    @property
    def is_waiting(self) -> bool:
        """Whether another commit would make holes."""
        return bool(self._waiting) and not self._holders and not self._stuck and self._fd >= 0

    def committed(self, *, at_once: bool = False) -> None:
        """After a commit: make holes of the slots that the one before let go of; of all of them if
        the space is needed ``at_once``. Not of its own: should its pages be damaged, a repair goes
        back to the one before."""
        if not self._holders and self._fd >= 0:
            self._punch(inf if at_once else self.punching_s)
        self._waiting += self._freed
        self._freed = []

    def _punch(self, seconds: float) -> None:
        until = monotonic() + seconds
        slots, done = sorted(self._waiting), 0
        try:
            for start, count in _runs(slots, _PUNCHED):
                self._make_hole(start, count)
                done += count
                if monotonic() >= until:
                    break
        except OSError as error:
            # They stay in the table, and are tried again with every commit.
            if not self._stuck:
                log.warning("%s: what was deleted still takes its space: %s", FILE, error)
            self._stuck = True
        else:
            self._stuck = False
        self._punched += slots[:done]
        self._waiting = slots[done:]

    def _make_hole(self, slot: int, count: int) -> None:
        fallocate(self._fd, _HOLE, slot * BLOCK_SIZE, count * BLOCK_SIZE)
        self._unsynced = True

    def keep(self) -> None:
        """Make no holes: another block may have what was let go of."""
        for slot in (*self._freed, *self._waiting, *self._punched):
            self._table.delete(pack_u64(slot))
        self._freed, self._waiting, self._punched = [], [], []

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing that the last commit names becomes a hole meanwhile."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1

    def reclaim(self, used: bytearray) -> Iterator[None]:
        """Make a hole of every slot that is not used, whatever the table says, but for those that
        become one anyway, in steps. ``used`` has a byte for each."""
        if self._fd < 0:
            return
        try:
            for start, end in _data_ranges(self._fd, len(used) * BLOCK_SIZE):
                for first in range(start // BLOCK_SIZE, -(-end // BLOCK_SIZE), _RECLAIMED):
                    if self._holders:
                        return
                    last = min(first + _RECLAIMED, -(-end // BLOCK_SIZE))
                    later = {*self._freed, *self._waiting}
                    slots = (slot for slot in range(first, last) if not used[slot])
                    for run in _runs(slot for slot in slots if slot not in later):
                        self._make_hole(*run)
                    yield
        except OSError as error:
            log.warning("%s: not all of its free space is the disk's: %s", FILE, error)

    # -- the file as a whole ----------------------------------------------------------------------

    def size_bytes(self) -> int:
        """How much disk it takes."""
        return os.fstat(self._fd).st_blocks * 512 if self._fd >= 0 else 0

    def length(self) -> int:
        """How many slots the file has space for."""
        return os.fstat(self._fd).st_size // BLOCK_SIZE if self._fd >= 0 else 0


def copy(directory: Path, dest: Path) -> None:
    """A durable copy of a store's heap in another directory, holes as holes. Slots that become
    holes meanwhile must be held."""
    try:
        source = os.open(directory / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        target = os.open(dest / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(source).st_size
            os.ftruncate(target, size)
            for start, end in _data_ranges(source, size):
                _copy_range(source, target, start, end)
            os.fsync(target)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        interrupts.between()
        data = os.pread(source, min(_COPY, end - start), start)
        if not data:
            return  # it was cut meanwhile, behind what is committed
        start += os.pwrite(target, data, start)


def _data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where in the file something may be that is no hole."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        yield start, end


def _runs(slots: Iterable[int], most: float = inf) -> Iterator[tuple[int, int]]:
    """(first, how many) of each row of slots that follow each other, or of parts of it that have no
    more than ``most``; they come in order."""
    first = count = 0
    for slot in slots:
        if count and slot == first + count and count < most:
            count += 1
            continue
        if count:
            yield first, count
        first, count = slot, 1
    if count:
        yield first, count
