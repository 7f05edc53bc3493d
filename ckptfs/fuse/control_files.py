"""The control files in `.checkpoints`, by which a program says what it does with one write(2).

`.mark` takes a checkpoint with what is written as its message; reading it gives the number of the
newest one. `.step` names what the writing process does next, and takes none. `.control` carries
whole conversations with the daemon (`Connections`). All are found by name and stand in no
listing, so that nothing which walks through `.checkpoints` comes upon them.

The kernel keeps the pages of a file, and writes what a program writes into those that it has. So
the compiled server gives `.mark` and `.control` another node with every lookup: who opens one has
pages of its own.

**Connections.** Where neither the store nor its socket can be seen, as in a sandbox with nothing
but the workspace, the mount is the only way to the daemon. The file carries the same lines as the
socket: what is written are requests, what is read are answers. Each open file is one connection.
Behind it stands one end of a socket pair; the other end is the control server's business.

No request may wait, since one thread answers all. So a read returns at once,
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
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from mmap import PAGESIZE
from time import monotonic_ns
from typing import NamedTuple

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fuse.hooks import Guard
from ckptfs.fuse.nodes import CONTROL, CONTROL_CONNECTION, CONTROL_NUMBERS, CONTROL_STEP
from ckptfs.model import ROOT_INO, Attributes, Ino, Inode
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

#: Longer messages are refused; a longer name of a step is cut.
TEXT_MAX = 4096

#: How soon the rest of a write(2) follows.
_AT_ONCE_NS = 1_000_000_000

_NODES = {
    b".mark": CONTROL,
    b".step": CONTROL | CONTROL_STEP,
    b".control": CONTROL | CONTROL_CONNECTION,
}
#: Users who may make a directory in `.checkpoints` may write to them. `.step` has nothing to read.
_MARK_MODE, _STEP_MODE = stat.S_IFREG | 0o644, stat.S_IFREG | 0o200
#: As the socket, `.control` is for the daemon's user and for root.
_CONNECTION_MODE = stat.S_IFREG | 0o600


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def is_control(node: int) -> bool:
    return node >= CONTROL


def is_connection(node: int) -> bool:
    return is_control(node) and bool(node & CONTROL_CONNECTION)


def _is_step(node: int) -> bool:
    return bool(node & CONTROL_STEP)


class ControlFiles:
    """Those of one workspace; what is written goes to ``guard``."""

    def __init__(self, fs: Filesystem, guard: Guard) -> None:
        self._fs = fs
        self._guard = guard
        #: The last number that was given to one who opens a file.
        self._number = 0
        #: What may be the beginning of a message.
        self._begun: _Begun | None = None

    # -- what the kernel sees ---------------------------------------------------------------------

    def lookup(self, name: bytes) -> Inode | None:
        node = _NODES.get(name)
        return None if node is None else self.getattr(node)

    def opened(self, node: int) -> int:
        """Another node of the same file, for one open file alone."""
        self._number += 1
        return node & ~CONTROL_NUMBERS | self._number & CONTROL_NUMBERS

    def getattr(self, node: int) -> Inode:
        root = self._fs.getattr(self._fs.head, ROOT_INO)
        if is_connection(node):
            root = root._replace(uid=os.geteuid(), gid=os.getegid())
            ino = Ino(node & ~CONTROL_NUMBERS)
            return root._replace(ino=ino, mode=_CONNECTION_MODE, nlink=1, size=SIZE, allocated=0)
        return root._replace(
            ino=Ino(node & ~CONTROL_NUMBERS),
            mode=_STEP_MODE if _is_step(node) else _MARK_MODE,
            nlink=1,
            size=len(self.read(node)),
            allocated=0,
        )

    def setattr(self, node: int, wanted: Attributes) -> Inode:
        """To be emptied, as by ``>`` of a shell, changes nothing. Nothing else can be set."""
        if wanted.size is None or (wanted.mode, wanted.uid, wanted.gid) != (None, None, None):
            raise _error(errno.EROFS)
        if wanted.size:
            raise _error(errno.EINVAL)
        return self.getattr(node)

    def read(self, node: int, offset: int = 0, size: int = TEXT_MAX) -> bytes:
        return b"" if _is_step(node) else self._newest()[offset : offset + size]

    def _newest(self) -> bytes:
        found = history.checkpoints(self._fs.store)
        return b"%d\n" % found[-1].id if found else b""

    # -- what programs write ----------------------------------------------------------------------

    def write(self, node: int, offset: int, data: Buffer, pid: int) -> int:
        """How many bytes were taken: always all. What was marked is durable then."""
        if not _is_step(node):
            self._take_piece(_Piece(node, pid, offset, bytes(data[: TEXT_MAX + 2])))
        elif not offset:
            self._guard.name_step(pid, _name(data))
        # Behind its beginning a step has only further lines of the same text: a shell writes a
        # command line of several one by one.
        return len(data)

    def _take_piece(self, piece: _Piece) -> None:
        """Take a mark with a message, or with the whole of one that began with the last piece."""
        begun, self._begun = self._begun, None
        if begun is None or not begun.goes_on_with(piece):
            self._take_mark(piece)
            return
        whole = begun.piece._replace(text=begun.piece.text + piece.text)
        try:
            self._take_mark(whole)
        except OSError:
            # The writer's write(2) returns the size of the first piece; it writes the second again.
            self._begun = _Begun(begun.piece, monotonic_ns(), None)
            raise
        finally:
            if begun.number is not None:
                self._guard.take_back(begun.number)

    def _take_mark(self, piece: _Piece) -> None:
        number = None
        if not piece.may_go_on or piece.text.strip():
            number = self._guard.mark(piece.pid, _message(piece.text))
        if piece.may_go_on:
            self._begun = _Begun(piece, monotonic_ns(), number)


class _Piece(NamedTuple):
    """A write(2), or a part of one: where there is a page that it does not fill, the kernel writes
    up to the end of that, and then the rest."""

    node: int
    pid: int
    offset: int
    text: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.text)

    @property
    def may_go_on(self) -> bool:
        at_end = self.offset % PAGESIZE and self.end % PAGESIZE == 0
        return bool(at_end) and not self.text.endswith(b"\n")


class _Begun(NamedTuple):
    """A piece that may go on, when it came, and the mark that was taken for it."""

    piece: _Piece
    time_ns: int
    number: int | None

    def goes_on_with(self, piece: _Piece) -> bool:
        """The rest of a write(2) follows at once."""
        here, there = (self.piece.node, self.piece.pid), (piece.node, piece.pid)
        is_next = here == there and piece.offset == self.piece.end
        return is_next and monotonic_ns() - self.time_ns < _AT_ONCE_NS


def _message(text: bytes) -> str:
    if len(text.removesuffix(b"\n")) > TEXT_MAX:
        raise _error(errno.EMSGSIZE)
    message = one_line(text)
    if not message:
        raise _error(errno.EINVAL)
    return message


def _name(data: Buffer) -> str:
    """The first line; an empty one takes the name of the last step away."""
    return one_line(bytes(data[:TEXT_MAX]).partition(b"\n")[0])


def one_line(text: bytes) -> str:
    """Text on one line, of which everything can be seen: bytes that are not UTF-8, and characters
    that act on a terminal, as escapes. A message is never refused for its encoding."""
    line = " ".join(text.decode("utf-8", "backslashreplace").split())
    return "".join(map(_visible, line))


def _visible(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


# -- connections -----------------------------------------------------------------------------------


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
