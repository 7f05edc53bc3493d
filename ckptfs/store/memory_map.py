"""The store's file as this process has it in memory: how much counts, and what is read ahead.

LMDB maps its file, so every page ever read counts as resident until the kernel is short of memory:
a daemon that served a large tree would look as large as the tree. Dropping the pages from the
process leaves them in the kernel's page cache, from where the next access maps them again.

A page that is not there is read from disk, and the kernel reads what lies around it, too: as much
as the disk's read-ahead says, 128 KiB or 8 MiB. Blocks that were written one after the other are
read that way, too. But an inode's record has hardly another that will be asked for around it, and
to look at a tree would bring in most of the store.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_MADV_NORMAL = 0
_MADV_RANDOM = 1
_MADV_DONTNEED = 4
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def resident_file_bytes() -> int:
    """Bytes of mapped files that count as this process's memory."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[2]) * _PAGE_SIZE


class MemoryMap:
    """Where the file is mapped. The mapping is shared and never written through, so dropping pages
    of it loses nothing. Dropping pages of anything else would."""

    def __init__(self, data_file: Path) -> None:
        self._data_file = os.fspath(data_file.resolve())
        self.moved()

    def moved(self) -> None:
        """The file was mapped anew."""
        #: Found when it is first asked for: to look for it takes longer than what is done with it.
        self._spans: list[tuple[int, int]] = []
        #: Whether what lies around a page is read with it, as the kernel does by default.
        self._around = True

    def expect_blocks(self) -> None:
        """Bytes of files are going to be read."""
        if not self._around:
            self._hint(_MADV_NORMAL)
            self._around = True

    def expect_records(self) -> None:
        """Records are going to be read, here and there."""
        if self._around:
            self._hint(_MADV_RANDOM)
            self._around = False

    def release(self) -> None:
        """Drop the pages from this process. Where they are is looked up anew: others map the file,
        too, for a while, and where such a map was something else may lie by now, which would be
        lost."""
        for span in _spans_of(self._data_file):
            _advise(span, _MADV_DONTNEED)

    def _hint(self, advice: int) -> None:
        """Say how pages are read. Where the file is not mapped any more that does no harm."""
        self._spans = self._spans or list(_spans_of(self._data_file))
        for span in self._spans:
            _advise(span, advice)


def _advise(span: tuple[int, int], advice: int) -> None:
    if _madvise(*span, advice):
        number = ctypes.get_errno()
        if number != errno.ENOMEM:  # not all of it is mapped any more
            raise OSError(number, os.strerror(number))


def _spans_of(data_file: str) -> Iterator[tuple[int, int]]:
    """Where a file is mapped for reading, and how long that is."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *rest = line.split(None, 5)
        if permissions.startswith("r--s") and rest[-1] == data_file:
            start, end = (int(part, 16) for part in span.split("-"))
            yield start, end - start
