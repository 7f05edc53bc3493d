"""How much of the store's map counts as this process's memory.

LMDB maps its file, so every page ever read counts as resident until the kernel is short of memory:
a daemon that served a large tree would look as large as the tree. Dropping the pages from the
process leaves them in the kernel's page cache, from where the next access maps them again.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_MADV_DONTNEED = 4
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def resident_file_bytes() -> int:
    """Bytes of mapped files that count as this process's memory."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[2]) * _PAGE_SIZE


def release_map(data_file: Path) -> None:
    """Drop the pages of the mapped file from this process. The mapping is shared and never written
    through, so nothing is lost."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *rest = line.split(None, 5)
        if permissions.startswith("r--s") and rest[-1] == os.fspath(data_file):
            start, end = (int(part, 16) for part in span.split("-"))
            if _madvise(start, end - start, _MADV_DONTNEED):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
