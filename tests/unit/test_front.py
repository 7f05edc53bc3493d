"""The compiled front with a socket in place of the kernel: requests that no kernel sends, and what
goes wrong in one."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from types import ModuleType

import pytest

from ckptfs.fuse import front
from ckptfs.model import Inode

LOOKUP, FORGET, UNLINK, RENAME, WRITE, BATCH_FORGET, STATFS = 1, 2, 10, 12, 16, 42, 17
HEAD = struct.Struct("=IIQQIIIHH")
ANSWER = struct.Struct("=IiQ")


class Owner:
    """Takes the place of the requests, and keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.failing: set[int] = set()
        self.generations: dict[int, int] = {}
        self.limbo: dict[int, None] = {}
        self.unlinked = {1000}

    def __getattr__(self, name: str) -> object:
        return lambda *values: self.calls.append((name, *values))

    def lookup(self, parent: int, name: bytes) -> Inode:
        number = int(name)
        return Inode(number, 0o100644, 1, *[0] * 11, 1, b"", b"")  # type: ignore[arg-type, call-arg]

    def forget(self, node: int) -> None:
        self.calls.append(("forget", node))
        if node in self.failing:
            raise OSError(errno.EIO, "damaged")

    def errno_of(self, error: BaseException) -> int:
        self.calls.append(("failed", str(error)))
        return errno.ENOSPC


class Kernel:
    """The other end of the socket."""

    def __init__(self, compiled: ModuleType) -> None:
        self.front = compiled
        self.owner = Owner()
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.theirs = theirs.detach()
        self.ours.setblocking(False)
        compiled.bind(self.owner)

    def ask(self, opcode: int, body: bytes, node: int = 1) -> int:
        """Send a request; return what `serve` does."""
        size = HEAD.size + len(body)
        self.ours.send(HEAD.pack(size, opcode, 7, node, 0, 0, 42, 0, 0) + body)
        outcome: int = self.front.serve(self.theirs, 0, time.monotonic_ns() + 10_000_000)
        return outcome

    def error(self) -> int:
        """The errno that was answered."""
        _, error, unique = ANSWER.unpack_from(self.ours.recv(1 << 16))
        assert unique == 7
        return -int(error)

    def is_silent(self) -> bool:
        try:
            self.ours.recv(1 << 16)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self.ours.close()
        os.close(self.theirs)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    compiled = front.load()
    if compiled is None:
        pytest.skip("the front was not built")
    found = Kernel(compiled)
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


def test_names_that_do_not_end_are_ended(kernel: Kernel) -> None:
    kernel.ask(UNLINK, b"x" * 5000 + b"\0")
    kernel.ask(RENAME, struct.pack("=Q", 1) + b"name")
    assert kernel.owner.calls[1][:5] == ("rename", 1, b"name", 1, b"")


def test_what_the_kernel_knows_is_counted(kernel: Kernel) -> None:
    for _ in range(2):
        kernel.ask(LOOKUP, b"1000\0")
        assert kernel.error() == 0
    kernel.ask(FORGET, struct.pack("=Q", 1), node=1000)
    assert kernel.front.knows(1000)
    assert forgotten(kernel) == []
    kernel.ask(FORGET, struct.pack("=Q", 1), node=1000)
    assert not kernel.front.knows(1000)
    assert forgotten(kernel) == [1000]


def test_an_answer_that_nobody_takes_is_not_counted(kernel: Kernel) -> None:
    size = HEAD.size + 5
    kernel.ours.send(HEAD.pack(size, LOOKUP, 7, 1, 0, 0, 42, 0, 0) + b"1000\0")
    kernel.ours.shutdown(socket.SHUT_RD)
    kernel.front.serve(kernel.theirs, 0, time.monotonic_ns() + 10_000_000)
    assert not kernel.front.knows(1000)


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
    assert kernel.ask(STATFS, b"") == kernel.front.LEFT
    assert kernel.is_silent()


def test_it_never_waits_in_a_read(kernel: Kernel) -> None:
    kernel.ask(UNLINK, b"name\0")
    assert not os.get_blocking(kernel.theirs)
