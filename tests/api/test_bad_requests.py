"""Requests that no client of ours sends, to a real daemon: each gets its error, and it goes on."""

from __future__ import annotations

import socket

import pytest

from ckptfs import CheckpointService
from ckptfs.control import protocol
from ckptfs.control.client import Client
from ckptfs.errors import CkptfsError, ControlError, ProtocolMismatch, UsageError

BAD = [
    ("no_such_thing", {}),
    ("save", {"allow_empty": True}),
    ("save", {"message": "x", "metadata": ["a"]}),
    ("save", {"message": "x", "allow_empty": True, "max_checkpoints": 0}),
    ("save", {"message": "x", "allow_empty": True, "max_checkpoints": "few"}),
    ("save", {"message": "x", "state": [{"name": "a", "json": True, "file": "../lock"}]}),
    ("save", {"message": "x", "state": [{"name": "a", "json": True, "file": "/etc/passwd"}]}),
    ("save", {"message": "x", "state": [{"name": "a", "json": True, "file": "state-link.tmp"}]}),
    ("save", {"message": "x", "state": [{"name": "a", "json": True, "file": "state-none.tmp"}]}),
    ("save", {"message": "x", "state": [{"name": "../a", "json": True, "file": "state-ok.tmp"}]}),
    ("save", {"message": "x", "state": "everything"}),
    ("restore", {"checkpoint": {"a": 1}}),
    ("restore", {"checkpoint": "0", "paths": 7}),
    ("restore", {"checkpoint": "0", "paths": []}),
    ("restore", {"checkpoint": "0", "paths": [], "only": "python"}),
    ("plan", {"checkpoint": "0", "paths": []}),
    ("diff", {"paths": []}),
    ("show", {"checkpoint": "0", "paths": []}),
    ("state_read", {"checkpoint": "0", "name": "a", "offset": 0, "length": 1}),
    ("state_read", {"checkpoint": "0", "name": "a", "offset": "x", "length": 1}),
    ("list", {"limit": "many"}),
    ("freeze", {"seconds": "long"}),
    ("delete", {"checkpoints": ["0", "99"]}),
]


def test_each_gets_its_error_and_the_daemon_goes_on(mounted: CheckpointService) -> None:
    store = mounted.workspace.store
    (store / "state-link.tmp").symlink_to("/etc/passwd")
    (store / "state-ok.tmp").write_text("{}")
    before = mounted.list()
    for op, args in BAD:
        with Client(mounted.workspace) as client:
            try:
                answer = client.call(op, args)
            except CkptfsError as error:
                assert error.message
            else:
                pytest.fail(f"{op} {args} was answered with {answer}")
    assert mounted.list() == before


def test_a_request_of_another_version_is_refused(mounted: CheckpointService) -> None:
    for line in (b'{"v": 2, "op": "save", "args": {"message": "x"}}\n', b'{"op": "save"}\n'):
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(20)
            other.connect(str(mounted.workspace.socket))
            other.sendall(line)
            answer = protocol.decode_answer(other.makefile("rb").readline())
            assert isinstance(answer.error, ProtocolMismatch)
    assert mounted.mounted


def test_a_client_that_hangs_up_midway_stops_nothing(mounted: CheckpointService) -> None:
    for line in (b'{"v": 1, "op": "sa', protocol.encode_request("save", {"message": "gone"})):
        with socket.socket(socket.AF_UNIX) as leaving:
            leaving.connect(str(mounted.workspace.socket))
            leaving.sendall(line)
    assert mounted.save("goes on", allow_empty=True).created


def test_a_request_of_fifty_megabytes_is_refused(mounted: CheckpointService) -> None:
    with Client(mounted.workspace) as client, pytest.raises(ControlError, match="too long"):
        client.call("save", {"message": "x" * (50 << 20)})
    assert mounted.save("goes on", allow_empty=True).created


@pytest.mark.parametrize("state", ["text", ["name"], object()])
def test_state_that_is_no_mapping_is_refused(plain: CheckpointService, state: object) -> None:
    before = len(plain.list())
    with pytest.raises(UsageError, match="no mapping"):
        plain.save(state=state)
    assert len(plain.list()) == before
