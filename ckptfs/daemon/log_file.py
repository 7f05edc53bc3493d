"""The daemon's log: a file of its own in the store, never one that a link leads to."""

from __future__ import annotations

import errno
import io
import os
import stat
from logging.handlers import RotatingFileHandler

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogFile(RotatingFileHandler):
    """A rotated log that only its owner reads."""

    def _open(self) -> io.TextIOWrapper:
        descriptor = os.open(self.baseFilename, _APPEND, 0o600)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            os.close(descriptor)
            raise OSError(errno.EPERM, "the log is not a file of its own", self.baseFilename)
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")
