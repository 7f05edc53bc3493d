"""The other end of the compiled server: a socket in place of the kernel, and somebody in place of
the requests."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

from xxhash import xxh3_64_digest, xxh3_128_digest

from ckptfs.fuse.server.interface import CompiledServer, ServerModule
from ckptfs.model import Inode

LOOKUP, FORGET, GETATTR, SETATTR, SYMLINK, MKNOD, MKDIR = 1, 2, 3, 4, 6, 8, 9
UNLINK, RENAME, LINK, READ, WRITE, STATFS, FSYNC, BATCH_FORGET = 10, 12, 13, 15, 16, 17, 20, 42
RENAME2 = 45
HEAD = struct.Struct("=IIQQIIIHH")
ANSWER = struct.Struct("=IiQ")
#: Longer than a busy machine keeps a test from running: a turn ends when no request is left.
_TURN_NS = 5_000_000_000


class Owner:
    """Takes the place of the requests, and keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.failing: set[int] = set()
        self.generations: dict[int, int] = {}
        self.limbo: dict[int, None] = {}
        self.partial: dict[int, dict[int, None]] = {}
        self.resized: set[int] = set()
        self.uncompared: dict[int, object] = {}
        self.unlinked = {1000}
        self.block_digest, self.inline_digest = xxh3_128_digest, xxh3_64_digest

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

    def __init__(self, module: ServerModule, owner: Owner | None = None) -> None:
        self.owner = owner or Owner()
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.theirs = theirs.detach()
        self.ours.setblocking(False)
        self._module = module
        self.server: CompiledServer = module.Server(self.owner)  # type: ignore[arg-type]

    def mount_anew(self) -> None:
        """Another server, which looks at the owner's methods as they are now."""
        self.server.close()
        self.server = self._module.Server(self.owner)  # type: ignore[arg-type]

    def send(self, opcode: int, body: bytes, node: int = 1, pid: int = 42) -> None:
        """Ask for something that `serve` has not been told of yet."""
        size = HEAD.size + len(body)
        self.ours.send(HEAD.pack(size, opcode, 7, node, 0, 0, pid, 0, 0) + body)

    def ask(self, opcode: int, body: bytes, node: int = 1) -> int:
        """Send a request; return what `serve` does."""
        self.send(opcode, body, node)
        return self.serve()

    def serve(self) -> int:
        outcome: int = self.server.serve(self.theirs, 0, time.monotonic_ns() + _TURN_NS, -1)
        return outcome

    def error(self) -> int:
        """The errno that was answered."""
        return self.answer()[0]

    def answer(self) -> tuple[int, bytes]:
        """The errno that was answered, and what came with it."""
        data = self.ours.recv(1 << 16)
        _, error, unique = ANSWER.unpack_from(data)
        assert unique == 7
        return -int(error), data[ANSWER.size :]

    def is_silent(self) -> bool:
        try:
            self.ours.recv(1 << 16)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self.server.close()
        self.ours.close()
        os.close(self.theirs)
