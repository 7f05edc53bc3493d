"""Letting the store's clock tick between an agreement and the next change.

The ledger knows a change in the store by its ctime. On a machine without a fine clock a change may
come in the very tick of an agreement; it would look like the agreement itself, and would never be
written back.
"""

from __future__ import annotations

import time

from ckptfs.fs import Filesystem

_LOOKS = 100
_BETWEEN_LOOKS_S = 0.000_5


def next_tick(fs: Filesystem) -> None:
    """Return when whatever changes from now on has a later ctime than all that changed before. A
    clock that stands still, as a test may have it, is not waited for."""
    start = fs.clock()
    for _ in range(_LOOKS):
        if fs.clock() > start:
            return
        time.sleep(_BETWEEN_LOOKS_S)
