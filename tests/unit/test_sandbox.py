"""What may be asked for through the mount, and whose process ids are meant."""

from __future__ import annotations

import os

import pytest

from ckptfs.control import verbs
from ckptfs.control.protocol import Request
from ckptfs.control.server import Peer
from ckptfs.daemon import sandbox
from ckptfs.errors import RefusedInSandbox

#: What the daemon answers beside the table of verbs.
OF_THE_MOUNT = {"status", "harness", "sync", "umount", "watch", "freeze"}
#: What reaches beyond the workspace, or holds the mount itself still.
REFUSED = {"export", "import", "backup", "umount", "freeze"}


def test_every_verb_is_either_allowed_or_refused_through_the_mount() -> None:
    """Who adds a verb decides whether a sandbox may have it."""
    assert set(verbs._VERBS) | OF_THE_MOUNT == sandbox.THROUGH_MOUNT | REFUSED
    assert not sandbox.THROUGH_MOUNT & REFUSED


@pytest.mark.parametrize("op", [*sorted(REFUSED), "nonsense"])
def test_what_reaches_beyond_the_workspace_is_refused(op: str) -> None:
    with pytest.raises(RefusedInSandbox):
        sandbox.admit(Request(op, {}), Peer(os.getpid(), os.getuid(), through_mount=True))


def test_a_client_with_our_own_view_is_served_as_it_asks() -> None:
    request = Request("export", {"dest": "/tmp/x", "pid": 1234})
    assert sandbox.admit(request, Peer(os.getpid(), os.getuid())) == request


def test_a_client_that_has_gone_may_not_name_paths() -> None:
    gone = Peer(2**22 + 1, os.getuid())
    with pytest.raises(RefusedInSandbox):
        sandbox.admit(Request("backup", {"dest": "/tmp/x"}), gone)
    assert sandbox.admit(Request("save", {"pid": 7}), gone).args["pid"] == 0
