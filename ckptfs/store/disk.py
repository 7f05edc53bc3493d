"""What Python's own `os` does not offer of files: a way past the page cache, room, and holes."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

KEEP_SIZE = 1
PUNCH_HOLE = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def open_past_cache(path: Path, flags: int) -> int:
    """Open a file so that what is read and written is not kept in memory, where that can be had. A
    link in its place is not followed."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags, 0o600)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """As fallocate(2)."""
    while _libc.fallocate(fd, mode, offset, length):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
