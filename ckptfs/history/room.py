"""How work that makes things smaller gets along with a disk that is nearly full."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

#: What was written anew is committed after so many bytes: until then its old pages are not free.
COMMIT_BYTES = 16 << 20


@contextmanager
def room_permitting() -> Iterator[None]:
    """It takes room before it gives room: where there is none, things stay as they are."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
