"""Keeping what the C side says: libfuse and fusermount3 give their reasons on stderr only."""

from __future__ import annotations

import os

#: Enough for the last words of a program that failed.
_KEPT_MAX = 4096


class Stderr:
    """File descriptor 2 put into memory, from making this until `release`."""

    def __init__(self) -> None:
        self._kept = os.memfd_create("ckptfs-stderr", os.MFD_CLOEXEC)
        self._before = os.dup(2)
        os.dup2(self._kept, 2)

    def release(self) -> str:
        """Put stderr back; return the last line that was written meanwhile. Once is enough."""
        if self._before < 0:
            return ""
        os.dup2(self._before, 2)
        os.close(self._before)
        self._before = -1
        said = os.pread(self._kept, _KEPT_MAX, 0)
        os.close(self._kept)
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
