"""The compiled server with a socket in place of the kernel: requests that no kernel sends, and what
goes wrong in one."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from ckptfs.fuse.nodes import CONTROL, CONTROL_STEP, HISTORY_ROOT
from ckptfs.fuse.server.interface import ServerModule
from tests.support.kernel import (
    BATCH_FORGET,
    FORGET,
    HEAD,
    LOOKUP,
    RENAME,
    STATFS,
    UNLINK,
    WRITE,
    Kernel,
)


@pytest.fixture
def kernel(module: ServerModule) -> Iterator[Kernel]:
    found = Kernel(module)
    yield found
    found.close()


def forgotten(kernel: Kernel) -> list[object]:
    return [call[1] for call in kernel.owner.calls if call[0] == "forget"]


@pytest.mark.parametrize("opcode", [LOOKUP, FORGET, UNLINK, RENAME, WRITE, BATCH_FORGET])
def test_a_request_without_its_body_is_an_error(kernel: Kernel, opcode: int) -> None:
    kernel.ask(opcode, b"")
    assert kernel.error() == errno.EIO
    assert kernel.owner.calls == []


def test_a_write_of_more_than_was_sent_is_an_error(kernel: Kernel) -> None:
    kernel.ask(WRITE, struct.pack("=QQIIQII", 0, 0, 1 << 31, 0, 0, 0, 0) + b"data")
    assert kernel.error() == errno.EIO
    assert kernel.owner.calls == []


def write_of(text: bytes, offset: int, flags: int = 0) -> bytes:
    return struct.pack("=QQIIQII", 0, offset, len(text), flags, 0, 0, 0) + text


def test_who_looks_a_control_file_up_has_a_node_of_its_own(kernel: Kernel) -> None:
    entries = []
    for name in (CONTROL, CONTROL, CONTROL | CONTROL_STEP):
        kernel.ask(LOOKUP, b"%d\0" % name, node=HISTORY_ROOT)
        number, body = kernel.answer()
        assert number == 0
        (node, ino) = struct.unpack_from("=Q", body)[0], struct.unpack_from("=Q", body, 40)[0]
        entries.append((node, ino))
    (first, ino), (second, same), step = entries
    assert ino == same == CONTROL and CONTROL < first != second > CONTROL
    assert step == (CONTROL | CONTROL_STEP, CONTROL | CONTROL_STEP)


def test_a_page_of_a_mapping_is_no_message_to_a_control_file(kernel: Kernel) -> None:
    kernel.ask(WRITE, write_of(b"text", 0, flags=1), node=CONTROL)
    assert kernel.error() == errno.EROFS
    assert [call for call in kernel.owner.calls if call[0] == "write"] == []


def test_names_that_do_not_end_are_ended(kernel: Kernel) -> None:
    kernel.ask(UNLINK, b"x" * 5000 + b"\0")
    kernel.ask(RENAME, struct.pack("=Q", 1) + b"name")
    assert kernel.owner.calls[1][:5] == ("rename", 1, b"name", 1, b"")


RENAMING = struct.pack("=Q", 1) + b"old\0new\0"


@pytest.mark.parametrize(
    ("opcode", "name", "body"), [(UNLINK, "unlink", b"name\0"), (RENAME, "rename", RENAMING)]
)
def test_a_change_is_replied_to_once_it_is_sure(
    kernel: Kernel, opcode: int, name: str, body: bytes
) -> None:
    replies: list[int] = []

    def change(*what: object) -> None:
        assert kernel.is_silent()
        kernel.server.acknowledge()
        replies.append(kernel.error())
        kernel.server.acknowledge()

    setattr(kernel.owner, name, change)
    kernel.mount_anew()
    kernel.ask(opcode, body)
    assert replies == [0]
    assert kernel.is_silent()
    kernel.server.acknowledge()
    assert kernel.is_silent(), "no request waits for it"


def test_what_was_acknowledged_and_failed_fails_all(kernel: Kernel) -> None:
    def change(*what: object) -> None:
        kernel.server.acknowledge()
        raise OSError(errno.EIO, "damaged")

    kernel.owner.unlink = change  # type: ignore[attr-defined]
    kernel.mount_anew()
    kernel.ask(UNLINK, b"name\0")
    assert kernel.error() == 0
    assert ("fail",) in kernel.owner.calls
    assert kernel.is_silent()


def test_a_change_that_is_refused_is_an_error(kernel: Kernel) -> None:
    def change(*what: object) -> None:
        raise OSError(errno.ENOENT, "not there")

    kernel.owner.unlink = change  # type: ignore[attr-defined]
    kernel.mount_anew()
    kernel.ask(UNLINK, b"name\0")
    assert kernel.error() == errno.ENOSPC  # as this owner says of all
    assert ("fail",) not in kernel.owner.calls


def test_what_the_kernel_knows_is_counted(kernel: Kernel) -> None:
    for _ in range(2):
        kernel.ask(LOOKUP, b"1000\0")
        assert kernel.error() == 0
    kernel.ask(FORGET, struct.pack("=Q", 1), node=1000)
    assert kernel.server.is_referenced(1000)
    assert forgotten(kernel) == []
    kernel.ask(FORGET, struct.pack("=Q", 1), node=1000)
    assert not kernel.server.is_referenced(1000)
    assert forgotten(kernel) == [1000]


def test_without_a_request_others_are_told_of_what_they_wait_for(kernel: Kernel) -> None:
    serve, soon = kernel.server.serve, time.monotonic_ns() + 30_000_000_000
    read, write = os.pipe()
    os.write(write, b"x")
    assert serve(kernel.theirs, 1, soon, read) == kernel.server.TURN
    os.read(read, 1)
    assert serve(kernel.theirs, 0, soon, read) == kernel.server.TURN, "none is waited for"
    assert time.monotonic_ns() < soon
    os.close(read)
    os.close(write)


def test_an_answer_that_is_not_taken_is_not_counted(kernel: Kernel) -> None:
    size = HEAD.size + 5
    kernel.ours.send(HEAD.pack(size, LOOKUP, 7, 1, 0, 0, 42, 0, 0) + b"1000\0")
    kernel.ours.shutdown(socket.SHUT_RD)
    kernel.server.serve(kernel.theirs, 0, time.monotonic_ns() + 10_000_000, -1)
    assert not kernel.server.is_referenced(1000)


def test_a_forget_that_fails_is_told_and_does_not_keep_the_next(kernel: Kernel) -> None:
    for name in (b"1000\0", b"1001\0"):
        kernel.ask(LOOKUP, name)
        assert kernel.error() == 0
    kernel.owner.failing = {1000}
    # It says three, and has two.
    kernel.ask(BATCH_FORGET, struct.pack("=IIQQQQ", 3, 0, 1000, 1, 1001, 1))
    assert forgotten(kernel) == [1000, 1001]
    assert ("failed", "[Errno 5] damaged") in kernel.owner.calls
    assert kernel.is_silent()


def test_what_raises_is_answered_with_an_errno(kernel: Kernel) -> None:
    kernel.ask(LOOKUP, b"no number\0")
    assert kernel.error() == errno.ENOSPC


def test_what_it_does_not_know_is_left(kernel: Kernel) -> None:
    assert kernel.ask(STATFS, b"") == kernel.server.LEFT
    assert kernel.is_silent()


def test_it_never_waits_in_a_read(kernel: Kernel) -> None:
    kernel.ask(UNLINK, b"name\0")
    assert not os.get_blocking(kernel.theirs)


def test_two_servers_in_one_process_know_nothing_of_each_other(module: ServerModule) -> None:
    first, second = Kernel(module), Kernel(module)
    first.ask(LOOKUP, b"1000\0")
    second.ask(LOOKUP, b"1001\0")
    assert first.server.is_referenced(1000) and not first.server.is_referenced(1001)
    assert second.server.is_referenced(1001) and not second.server.is_referenced(1000)
    assert (first.server.requests(), second.server.requests()) == (1, 1)
    second.close()
    first.ask(FORGET, struct.pack("=Q", 1), 1000)
    assert forgotten(first) == [1000] and forgotten(second) == []
    first.close()


def test_a_closed_server_serves_no_more(kernel: Kernel) -> None:
    kernel.server.close()
    with pytest.raises(ValueError, match="closed"):
        kernel.serve()
    kernel.server.close()


def test_a_large_inode_number_costs_no_memory(kernel: Kernel) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(64):
        ino = (1 << 40) - 1 - (number << 30)
        kernel.ask(LOOKUP, b"%d\0" % ino)
        assert kernel.server.is_referenced(ino)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096, "kilobytes"


def test_bytes_that_python_keeps_beyond_the_call_stay_as_they_are(kernel: Kernel) -> None:
    kept: list[memoryview] = []
    kernel.owner.write = lambda node, offset, data, *_: kept.append(data[:4])  # type: ignore[attr-defined]
    kernel.mount_anew()
    for byte in b"ab":
        head = struct.pack("=QQIIQII", 0, 0, 65_536, 0, 0, 0, 0)
        kernel.ask(WRITE, head + bytes([byte]) * 65_536, 77)
        assert kernel.error() == 0
    assert [bytes(view) for view in kept] == [b"aaaa", b"bbbb"]
    kernel.server.close()
    assert [bytes(view) for view in kept] == [b"aaaa", b"bbbb"]
