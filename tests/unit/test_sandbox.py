"""What may be asked for through the mount, and whose process ids are meant."""

from __future__ import annotations

import os
import time

import pytest

from ckptfs.control.protocol import Request
from ckptfs.control.server import Peer
from ckptfs.daemon import sandbox
from ckptfs.errors import RefusedInSandbox
from ckptfs.service.arguments import OUTSIDE
from ckptfs.service.verbs import SAME_PATHS, SANDBOX, VERBS

#: What reaches beyond the workspace, or holds the mount itself still.
REFUSED = {"export", "import", "backup", "umount", "freeze", "thaw", "scratch", "scratch_end"} | {
    "fork",
    "fork_delete",
    "fork_rename",
}


def us(*, through_mount: bool = False) -> Peer:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return Peer(os.getpid(), os.getuid(), now, through_mount)


def test_only_verbs_that_reach_beyond_the_workspace_are_refused_through_the_mount() -> None:
    assert {name for name, verb in VERBS.items() if verb.clients != SANDBOX} == REFUSED


def test_a_verb_that_takes_outside_paths_wants_a_client_that_has_the_same() -> None:
    for verb in VERBS.values():
        if any(parameter.kind is OUTSIDE for parameter in verb.parameters):
            assert verb.clients == SAME_PATHS


@pytest.mark.parametrize("op", [*sorted(REFUSED), "nonsense"])
def test_what_reaches_beyond_the_workspace_is_refused(op: str) -> None:
    with pytest.raises(RefusedInSandbox):
        sandbox.admit(Request(op, {}), us(through_mount=True))


def test_a_client_with_our_own_view_is_served_as_it_asks() -> None:
    request = Request("export", {"dest": "/tmp/x", "pid": 1234})
    assert sandbox.admit(request, us()) == request


def test_a_client_that_has_gone_may_not_name_paths() -> None:
    gone = us()._replace(pid=2**22 + 1)
    with pytest.raises(RefusedInSandbox):
        sandbox.admit(Request("backup", {"dest": "/tmp/x"}), gone)
    assert sandbox.admit(Request("save", {"pid": 7}), gone).args["pid"] == 0


def test_a_process_that_got_the_number_of_another_may_not_name_paths() -> None:
    """Whoever is in a sandbox could end and wait until the machine uses the number again."""
    earlier = us()._replace(since=1.0)
    with pytest.raises(RefusedInSandbox):
        sandbox.admit(Request("backup", {"dest": "/tmp/x"}), earlier)
