"""`.checkpoints/.control`: connections to the daemon through the mount.

Where neither the store nor its socket can be seen, as in a sandbox with nothing but the workspace,
the mount is the only way to the daemon. The file carries the same lines as the socket: what is
written are requests, what is read are answers. Each open file is one connection. Behind it stands
one end of a socket pair; the other end is the control server's business.

No request may wait, since the thread that answers it serves everybody. So a read returns at once,
and is filled up with NUL bytes, which no line contains: a read that returned less than was asked
for would make the kernel ask for the rest through its page cache. The offset of a read says how
much of the answers has arrived, so an answer that was lost on the way is given once more; the
offset of a write is its place among the requests. Both are counted modulo `WINDOW`, since the
kernel hands on nothing that is behind the end of the file. A NUL byte ends the requests, as
shutdown(2) does for a socket; two hang up.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from ckptfs.store.blocks import Buffer

#: Makes a connection for a user and process, or raises why there is none.
Connect = Callable[[int, int], socket.socket]

#: Where offsets begin again, as `ckptfs.control_file` has it; and the size that the file seems to
#: have, with room for what begins right before that.
WINDOW = 8 << 20
SIZE = 2 * WINDOW

#: Bytes that may wait for the server, which reads them as soon as it has its turn.
_REQUESTS_MAX = 1 << 20
#: A connection that was neither read nor written for so many seconds is taken for abandoned.
ABANDONED_S = 120.0

_END = b"\0"
_HANG_UP = b"\0\0"


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def refuse(uid: int, pid: int) -> socket.socket:
    """What a mount without a control server does."""
    raise _error(errno.EOPNOTSUPP)


class _Connection:
    """One client."""

    def __init__(self, link: socket.socket, uid: int) -> None:
        link.setblocking(False)
        self._link = link
        self._uid = uid
        self._requests_end = 0
        #: Requests that the socket had no room for.
        self._unsent = bytearray()
        self._requests_ended = False
        #: Answers that have not arrived for sure, and where the first of them stands.
        self._answers = bytearray()
        self._answers_start = 0
        self._ended = False
        self.used_s = time.monotonic()

    def touch(self, uid: int) -> None:
        """A file that was opened by one user may be handed to another one."""
        if uid not in (0, self._uid):
            raise _error(errno.EACCES)
        self.used_s = time.monotonic()

    def send(self, offset: int, data: bytes) -> None:
        if offset != self._requests_end % WINDOW:
            raise _error(errno.ESPIPE)
        if len(self._unsent) + len(data) > _REQUESTS_MAX:
            raise _error(errno.EMSGSIZE)
        self._requests_end += len(data)
        self._unsent += data
        self._flush()

    def end_requests(self) -> None:
        self._requests_ended = True
        self._flush()

    def _flush(self) -> None:
        while self._unsent and not self._ended:
            try:
                del self._unsent[: self._link.send(self._unsent)]
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # the server hung up; what it said before is still there
        if self._requests_ended:
            with suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)

    def receive(self, offset: int, size: int) -> bytes:
        self._flush()
        arrived = (offset - self._answers_start) % WINDOW
        if arrived > len(self._answers):
            raise _error(errno.ESPIPE)
        del self._answers[:arrived]
        self._answers_start = offset
        self._fill(size)
        if self._ended and not self._answers:
            raise _error(errno.ECONNRESET)
        return bytes(self._answers[:size]).ljust(size, b"\0")

    def _fill(self, size: int) -> None:
        while len(self._answers) < size and not self._ended:
            try:
                more = self._link.recv(size - len(self._answers))
            except BlockingIOError:
                return
            except OSError:
                more = b""
            self._answers += more
            self._ended = not more

    def close(self) -> None:
        with suppress(OSError):
            self._link.close()


class Connections:
    """Those of one mount, by the node of the open file."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._open: dict[int, _Connection] = {}

    def write(self, node: int, offset: int, data: Buffer, uid: int, pid: int) -> int:
        """How many bytes were taken: always all."""
        text = bytes(data)
        connection = self._open.get(node)
        if connection is None:
            if text in (_END, _HANG_UP):
                return len(text)
            self._drop_abandoned()
            connection = self._open[node] = _Connection(self._connect(uid, pid), uid)
        connection.touch(uid)
        if text == _HANG_UP:
            self.hang_up(node)
        elif text == _END:
            connection.end_requests()
        else:
            connection.send(offset, text)
        return len(text)

    def read(self, node: int, offset: int, size: int, uid: int) -> bytes:
        connection = self._open.get(node)
        if connection is None:
            raise _error(errno.EINVAL)  # nothing was asked
        connection.touch(uid)
        return connection.receive(offset, size)

    def hang_up(self, node: int) -> None:
        connection = self._open.pop(node, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for node in list(self._open):
            self.hang_up(node)

    def _drop_abandoned(self) -> None:
        """The kernel does not say when a process that was killed has gone: it only forgets the
        node, some time later."""
        oldest = time.monotonic() - ABANDONED_S
        for node, connection in list(self._open.items()):
            if connection.used_s < oldest:
                self.hang_up(node)
