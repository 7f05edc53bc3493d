"""Memory that is free, but still this process's.

A commit frees the pages of its transaction between small allocations that stay, and packing frees
what zstd needs. glibc gives the kernel only what is free at the end of its heap, so after one busy
minute a daemon that needs 40 MB would have 200 for as long as it runs. To take such memory again
costs a page fault for each 4 KiB, and much more on a virtual machine that lends it to others
meanwhile. So it is given back where nothing happens, and not after every commit.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

#: As in malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
#: What is as large as this is mapped on its own, and the kernel's as soon as it is free: nearly all
#: that zstd takes. glibc moves this limit up to 32 MiB, and the other to twice that, when something
#: as large is freed; then the heap of a thread keeps it. Requests have nothing larger than 1 MiB.
_MAPPED = 4 << 20
#: So much may be free at the end of the heap: a stream of 1 MiB writes takes and frees it.
_KEPT = 16 << 20
#: A daemon that has less than this gives nothing back: it takes about half of it when it starts.
_SMALL = 64 << 20

#: Other C libraries have neither.
_libc = ctypes.CDLL(None)
_malloc_trim = getattr(_libc, "malloc_trim", None)
_mallopt = getattr(_libc, "mallopt", None)


def set_limits() -> None:
    """For this process: what the C library may keep of what is freed."""
    if _mallopt is not None:
        _mallopt(_M_MMAP_THRESHOLD, _MAPPED)
        _mallopt(_M_TRIM_THRESHOLD, _KEPT)


def own_bytes() -> int:
    """How much memory is this process's own: not what it has mapped of files."""
    _, resident, of_files, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Let the kernel have every page that is free throughout. For 120 MB that takes 20 to 40 ms, in
    which a request would wait; if there is nothing, 1 ms."""
    with suppress(OSError):  # no descriptor to spare for a look: then later
        if _malloc_trim is not None and own_bytes() > _SMALL:
            _malloc_trim(ctypes.c_size_t(0))
