"""What a measurement starts from: nothing left to write, no process busy, caches warm or cold."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from bench import process
from bench.contestants import Contestant

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_SETTLE_S = 60.0
_MADV_PAGEOUT = 21
_SYS_PROCESS_MADVISE = 440
# One call takes at most 2 GiB less a page.
_MADVISE_STEP = 1 << 30


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def settle(contestants: Sequence[Contestant]) -> list[str]:
    """Bring everything written so far to the disk and wait for the daemons; notes what failed.

    All contestants, not only the one that runs next: a commit of one would slow the other.
    """
    notes = []
    os.sync()
    for each in contestants:
        _sync_directory(each.root)
        if each.pid is not None and not process.wait_until_quiet(each.pid, _SETTLE_S):
            notes.append(f"{each.name} never came to rest")
    os.sync()
    return notes


def evict(contestants: Sequence[Contestant]) -> list[str]:
    """Drop the kernel's caches: pages, names and inodes of every file system.

    drop_caches passes over pages that a process has mapped, and with them over a whole LMDB
    store: those are paged out first, or a cold row would be warm for ckptfs alone.
    """
    if not os.access(_DROP_CACHES, os.W_OK):
        return ["not cold: dropping caches needs root"]
    notes = []
    for each in contestants:
        if each.pid is not None and not _page_out(each.pid, each.store):
            notes.append(f"the map of {each.name} stayed warm")
    drop_caches()
    return notes


def drop_caches() -> None:
    """Of the kernel alone, if the caller may; what processes have mapped stays."""
    if os.access(_DROP_CACHES, os.W_OK):
        os.sync()
        _DROP_CACHES.write_text("3\n")


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _page_out(pid: int, store: Path) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        for start, length in process.mapped_ranges(pid, store):
            for offset in range(0, length, _MADVISE_STEP):
                part = _IoVec(start + offset, min(_MADVISE_STEP, length - offset))
                arguments = (pidfd, ctypes.byref(part), ctypes.c_size_t(1), _MADV_PAGEOUT, 0)
                if libc.syscall(_SYS_PROCESS_MADVISE, *arguments) < 0:
                    return False
    finally:
        os.close(pidfd)
    return True
