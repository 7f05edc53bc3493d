"""What goes wrong in a request, as an errno for whoever asked.

One of the edges that catch everything, for both doors: an error that nobody expected is EIO, and a
traceback in the log.
"""

from __future__ import annotations

import errno
import logging

log = logging.getLogger(__name__)


def errno_of(error: BaseException, what: str = "a request") -> int:
    if isinstance(error, OSError):
        if error.errno == errno.EIO:
            log.error("%s: %s", what, error)
        return error.errno or errno.EIO
    log.error("%s failed", what, exc_info=error)
    return errno.EIO
