"""The daemon's end of the control socket, on trio.

It accepts connections of the same user and of root only, reads requests of bounded size, and
sends back what the daemon's handler returns. A client that sends garbage gets an error and is
hung up on; one that never reads loses its progress messages and then its connection; neither
delays anyone else. What a verb does is the handler's business.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import trio

from ckptfs.control.protocol import (
    REQUEST_MAX,
    Record,
    Request,
    decode_request,
    encode_error,
    encode_progress,
    encode_result,
)
from ckptfs.errors import CkptfsError, ControlError, SystemRefused

log = logging.getLogger(__name__)

#: More connections than this at once are refused.
CONNECTIONS_MAX = 128
#: Seconds that a client may take to accept an answer.
SEND_PATIENCE = 30.0

#: A connection before anything was said, and who it is.
Accepted = tuple[socket.socket, "Peer"]

#: Answers a request, or returns None when it adopted the connection and will answer later.
Handler = Callable[[Request, "Connection"], Awaitable[Record | None]]


class Peer(NamedTuple):
    """The process at the other end, from the kernel."""

    pid: int
    uid: int
    #: When it connected, in seconds since boot: a process that began later has only its number.
    since: float
    #: It came through `.checkpoints/.control`, not through the socket.
    through_mount: bool = False


class Outlet:
    """A client's socket as synchronous code uses it: in the middle of a verb, or without a loop."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        self._raw = raw
        #: The rest of a line that was cut; it has to go out before anything else.
        self._cut = b""

    def tell(self, progress: Record) -> None:
        """Send progress now if the client has room for it, else drop it: never wait."""
        line = self._cut or encode_progress(progress)
        try:
            sent = self._raw.send(line)
        except OSError:
            return  # full, or gone: what was cut before stays cut
        self._cut = line[sent:]

    def completed(self, line: bytes) -> bytes:
        """The line, after what is still owed of an earlier one."""
        cut, self._cut = self._cut, b""
        return cut + line

    def finish(self, line: bytes) -> None:
        """Send the last line, with some patience. The end of the process closes the socket."""
        self._raw.settimeout(SEND_PATIENCE)
        with suppress(OSError):
            self._raw.sendall(self.completed(line))

    def close(self) -> None:
        self._raw.close()


class Connection:
    """One client of the running loop."""

    def __init__(self, raw: socket.socket, peer: Peer | None = None) -> None:
        """``peer`` is who it is if the socket itself does not tell."""
        self.peer = peer_of(raw) if peer is None else peer
        self._outlet = Outlet(raw)
        self._raw = raw
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(raw))
        self._rest = b""
        #: A line is on its way, or only a part of it went out.
        self._sending = False

    async def request(self) -> Request | None:
        """The next request, or None when the client hung up."""
        received = self._rest
        while b"\n" not in received:
            if len(received) > REQUEST_MAX:
                raise ControlError("Cannot read the request: it is too long. Nothing was changed.")
            more = await self._stream.receive_some(65536)
            if not more:
                return None
            received += more
        line, _, self._rest = received.partition(b"\n")
        return decode_request(line)

    async def send(self, line: bytes) -> None:
        """Send one line. Raises `trio.TooSlowError` if the client does not take it."""
        self._sending = True
        with trio.fail_after(SEND_PATIENCE):
            await self._stream.send_all(self._outlet.completed(line))
        self._sending = False

    async def wait_for_anything(self) -> None:
        """Wait until the client says something, or hangs up."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._stream.receive_some(1)

    def last_word(self, line: bytes) -> None:
        """Send a line without waiting, if there is room and no other was cut off by it."""
        if not self._sending:
            with suppress(OSError):
                self._raw.send(line)

    def send_now(self, line: bytes, deadline: float) -> None:
        """Send one line and let nothing else happen meanwhile. Raises OSError at the deadline."""
        with self._blocking(deadline):
            self._raw.sendall(self._outlet.completed(line))

    def request_now(self, deadline: float) -> Request | None:
        """The next request, or None when the client hung up or the deadline passed; nothing else
        happens meanwhile."""
        with self._blocking(deadline), suppress(OSError):
            while b"\n" not in self._rest and len(self._rest) <= REQUEST_MAX:
                more = self._raw.recv(65536)
                if not more:
                    return None
                self._rest += more
        line, end, self._rest = self._rest.partition(b"\n")
        return decode_request(line) if end else None

    @contextmanager
    def _blocking(self, deadline: float) -> Iterator[None]:
        # Not 0, which would mean not to block at all.
        self._raw.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            yield
        finally:
            self._raw.setblocking(False)

    @property
    def peer_pid(self) -> int:
        return self.peer.pid

    def tell(self, progress: Record) -> None:
        """Send progress from synchronous code; dropped if the client does not read."""
        self._outlet.tell(progress)

    def adopt(self) -> Outlet:
        """The client's socket for use after the loop ended; whoever adopts it answers."""
        return Outlet(self._raw.dup())

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


def listen(path: Path) -> socket.socket:
    """A listening socket that only this user can reach. The store's lock must be held.

    What lies at the path is the leftover of a daemon that died, since we have the lock.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _keep_others_out(path.parent)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Without the mask the socket would be open to all between bind and chmod.
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(2 * CONNECTIONS_MAX)
    except BaseException:
        listener.close()
        raise
    return listener


async def serve(
    listener: socket.socket,
    handler: Handler,
    handed: trio.MemoryReceiveChannel[Accepted] | None = None,
) -> None:
    """Answer requests until cancelled. ``handed`` brings connections that came another way."""
    listener.setblocking(False)
    accepting = trio.socket.from_stdlib_socket(listener)
    async with trio.open_nursery() as nursery, trio.open_nursery() as other_way:
        if handed is not None:
            other_way.start_soon(_take_over, nursery, handed, handler)
        while True:
            accepted, _ = await accepting.accept()
            raw = socket.socket(fileno=accepted.detach())
            _admit(nursery, raw, peer_of(raw), handler)


async def _take_over(
    nursery: trio.Nursery, handed: trio.MemoryReceiveChannel[Accepted], handler: Handler
) -> None:
    async for raw, peer in handed:
        _admit(nursery, raw, peer, handler)


def _admit(nursery: trio.Nursery, raw: socket.socket, peer: Peer, handler: Handler) -> None:
    if not allowed(peer.uid):
        raw.close()
    elif len(nursery.child_tasks) >= CONNECTIONS_MAX:
        _refuse(raw)
    else:
        nursery.start_soon(_converse, Connection(raw, peer), handler)


def _refuse(raw: socket.socket) -> None:
    """Tell a client that there are too many already; its request is not read."""
    error = ControlError(
        f"The daemon serves {CONNECTIONS_MAX} connections already. Nothing was changed.",
        hint="Try again in a moment.",
    )
    with raw, suppress(OSError):
        raw.setblocking(False)
        raw.send(encode_error(error))


def peer_uid(raw: socket.socket) -> int:
    """The user at the other end, from the kernel."""
    return _credentials(raw)[1]


def peer_of(raw: socket.socket) -> Peer:
    pid, uid, _ = _credentials(raw)
    return Peer(pid, uid, time.clock_gettime(time.CLOCK_BOOTTIME))


def _credentials(raw: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of the other end."""
    layout = struct.Struct("3i")
    found: tuple[int, int, int] = layout.unpack(
        raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    )
    return found


def allowed(uid: int) -> bool:
    return uid in (0, os.geteuid())


async def _converse(connection: Connection, handler: Handler) -> None:
    """Serve one client to its end; whatever goes wrong with it ends here."""
    try:
        while (request := await connection.request()) is not None:
            answer = await _answer(request, connection, handler)
            if answer is None:
                return
            await connection.send(answer)
    except CkptfsError as error:
        with suppress(OSError, trio.BrokenResourceError, trio.TooSlowError):
            await connection.send(encode_error(error))
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        pass  # the client went away
    finally:
        await connection.close()


async def _answer(request: Request, connection: Connection, handler: Handler) -> bytes | None:
    try:
        result = await handler(request, connection)
    except CkptfsError as error:
        return encode_error(error)
    except OSError as error:
        return encode_error(SystemRefused(request.op, error))
    except Exception as error:
        log.exception("request %r failed", request.op)
        return encode_error(
            CkptfsError(
                f"Cannot {request.op}: {str(error) or type(error).__name__}. The mount goes on.",
                hint="The daemon's log has the details; `ckptfs status` says where it is.",
            )
        )
    return None if result is None else encode_result(result)


def _keep_others_out(directory: Path) -> None:
    """A directory below /tmp may have been made by someone else to catch our socket."""
    found = directory.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise ControlError(
            f"Cannot put the control socket into {directory}: it belongs to another user.",
            hint="Set XDG_RUNTIME_DIR to a directory of your own.",
        )
    if found.st_mode & 0o022:
        directory.chmod(0o700)
