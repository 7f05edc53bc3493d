"""A daemon whose store was deleted or moved away: waiting until it has ended.

Its note and its socket went with the store, so only the mount is left to tell of it, and the files
of the store that it still has open. Whoever asks the mount anything makes it notice; then it brings
the directory up to date and uncovers it.
"""

from __future__ import annotations

import time

from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.daemon import mounts
from ckptfs.daemon.holders import holders

_LOOK_AGAIN = 0.05
#: Seconds for which a dead mount may belong to a daemon that cannot be seen: where the store was
#: moved, the files that it has open have other names now. It says why it failed last of all.
_GRACE = 2.0


def let_end(workspace: Workspace, seconds: float) -> bool:
    """Wait for the daemon of a mount whose store is gone; whether it has uncovered the directory.
    A mount whose daemon has died stays."""
    began = time.monotonic()
    while mounts.is_covered(workspace.path):
        waited = time.monotonic() - began
        if waited > seconds or (waited > _GRACE and not _is_at_work(workspace)):
            return False
        time.sleep(_LOOK_AGAIN)
    # After that it must not write anything into a store that is made anew.
    runtime.wait_for_failure(workspace, _GRACE)
    return True


def _is_at_work(workspace: Workspace) -> bool:
    return not mounts.is_dead(workspace.path) or bool(holders(workspace.store))
