"""The daemon's end of the control socket, on trio.

It accepts connections of the same user and of root only, reads requests of bounded size, and
sends back what the daemon's handler returns. A client that sends garbage, or takes too long over a
line, gets an error and is hung up on; one that never reads loses its progress messages and then its
connection; neither delays anyone else. What a verb does is the handler's business.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from ckptfs import locating, unixsocket
from ckptfs.control.places import CONNECTIONS_MAX, Slot, Slots
from ckptfs.control.protocol import (
    REQUEST_MAX,
    JsonObject,
    Request,
    decode_request,
    encode_error,
    encode_progress,
    encode_result,
)
from ckptfs.errors import CkptfsError, ControlError, SystemRefused

log = logging.getLogger(__name__)

#: Seconds that a client may take to accept an answer.
SEND_PATIENCE = 30.0
#: Seconds from the connection to the end of the first request, and from the beginning of any
#: request to its end: no client of ours thinks in between.
LINE_PATIENCE = 10.0
#: Seconds between two requests: somebody may be at a question on the screen.
IDLE_PATIENCE = 3600.0

#: Requests after which a client stays to listen.
_STAYING = frozenset({"watch"})

#: A connection before anything was said, and who it is.
Accepted = tuple[socket.socket, "Peer"]

#: Answers a request, or returns None when it adopted the connection and will answer later.
Handler = Callable[[Request, "Connection"], Awaitable[JsonObject | None]]


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

    def send_progress(self, progress: JsonObject) -> None:
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
        self._patience = LINE_PATIENCE

    async def request(self) -> Request | None:
        """The next request, or None when the client hung up."""
        received = self._rest
        deadline = trio.current_time() + (LINE_PATIENCE if received else self._patience)
        while b"\n" not in received:
            if len(received) > REQUEST_MAX:
                raise ControlError("Cannot read the request: it is too long. Nothing was changed.")
            more = await self._receive(deadline)
            if not more:
                return None
            if not received:
                deadline = min(deadline, trio.current_time() + LINE_PATIENCE)
            received += more
        self._patience = IDLE_PATIENCE
        line, _, self._rest = received.partition(b"\n")
        return decode_request(line)

    async def _receive(self, deadline: float) -> bytes:
        """What the client sends next. From there on until the request is known nothing else runs:
        what was read is no longer seen to be waiting (`dismiss`)."""
        while True:
            with trio.move_on_at(deadline):
                await trio.lowlevel.wait_readable(self._raw)
            # A verb may have kept the loop beyond the deadline; what came meanwhile came in time.
            with suppress(BlockingIOError):
                return self._raw.recv(65536)
            if trio.current_time() >= deadline:
                raise ControlError(
                    "Hung up: no whole request came for too long. Nothing was changed.",
                    hint="Connect again.",
                )

    def has_gone(self) -> bool:
        """Whether the client hung up, or ended its sending, which it does to stop a verb. Without
        the loop: a verb asks this in the middle of its work, perhaps in a thread."""
        return self._poll(select.POLLRDHUP)

    def _poll(self, wanted: int) -> bool:
        poll = select.poll()
        poll.register(self._raw, wanted)
        return bool(poll.poll(0))

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

    def send_progress(self, progress: JsonObject) -> None:
        """Send progress from synchronous code; dropped if the client does not read."""
        self._outlet.send_progress(progress)

    def adopt(self) -> Outlet:
        """The client's socket for use after the loop ended; whoever adopts it answers."""
        return Outlet(self._raw.dup())

    def dismiss(self) -> bool:
        """Hang up on a client, unless it has sent something; whoever waits for its next request is
        told. Whether it did."""
        if self._poll(select.POLLIN):
            return False
        error = ControlError(
            "Hung up after a long silence: others needed the connection. Nothing was changed.",
            hint="Try again.",
        )
        self.last_word(encode_error(error))
        with suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
        return True

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


def listen(path: Path) -> socket.socket:
    """A listening socket that only this user can reach. The store's lock must be held.

    The directory is looked at and used by one descriptor, so nobody can replace it in between, and
    nothing but the socket of a daemon that died, since we have the lock, is taken away for it.
    """
    dir_fd = _open_own_directory(path.parent)
    try:
        _remove_leftover(path, dir_fd)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Without the mask the socket would be open to all between bind and chmod.
            mask = os.umask(0o177)
            try:
                unixsocket.bind(listener, dir_fd, path.name)
            finally:
                os.umask(mask)
            listener.listen(2 * CONNECTIONS_MAX)
        except BaseException:
            listener.close()
            raise
    finally:
        os.close(dir_fd)
    return listener


def _open_own_directory(path: Path) -> int:
    """A descriptor of a directory in which nobody but its owner can put anything."""
    dir_fd = unixsocket.open_directory(str(path))
    found = os.fstat(dir_fd)
    known = {0, os.geteuid(), *locating.trusted_owners()}
    if found.st_uid not in known and os.geteuid() != 0:
        reason = "it belongs to another user"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = "others can write to it"
    else:
        return dir_fd
    os.close(dir_fd)
    raise ControlError(
        f"Cannot put the control socket into {path}: {reason}. Nothing was changed.",
        hint="Choose a store in a directory that is yours alone: --store DIR",
    )


def _remove_leftover(path: Path, dir_fd: int) -> None:
    try:
        found = os.stat(path.name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ControlError(
            f"Cannot listen at {path}: something that is no socket lies there. It was left alone.",
            hint="Move it away, then try again.",
        )
    os.unlink(path.name, dir_fd=dir_fd)


async def serve(
    listener: socket.socket,
    handler: Handler,
    handed: trio.MemoryReceiveChannel[Accepted] | None = None,
) -> None:
    """Answer requests until cancelled. ``handed`` brings connections that came another way."""
    listener.setblocking(False)
    accepting = trio.socket.from_stdlib_socket(listener)
    places = Slots(users=len({0, os.geteuid()}))
    async with trio.open_nursery() as nursery:
        admit = partial(_admit, nursery, handler, places)
        if handed is not None:
            nursery.start_soon(_take_over, handed, admit)
        while True:
            accepted, _ = await accepting.accept()
            raw = socket.socket(fileno=accepted.detach())
            admit(raw, peer_of(raw))


async def _take_over(
    handed: trio.MemoryReceiveChannel[Accepted], admit: Callable[[socket.socket, Peer], None]
) -> None:
    async for raw, peer in handed:
        admit(raw, peer)


def _admit(
    nursery: trio.Nursery, handler: Handler, places: Slots, raw: socket.socket, peer: Peer
) -> None:
    if not allowed(peer.uid):
        raw.close()
        return
    connection = Connection(raw, peer)
    place = Slot(peer.uid, connection.dismiss, trio.current_time())
    try:
        places.take(place)
    except ControlError as error:
        _refuse(raw, error)
    else:
        nursery.start_soon(_converse, connection, handler, places, place)


def _refuse(raw: socket.socket, error: ControlError) -> None:
    """Tell a client that there are too many already; its request is not read."""
    with raw, suppress(OSError):
        raw.send(encode_error(error))


def peer_of(raw: socket.socket) -> Peer:
    """Who is at the other end, from the kernel."""
    pid, uid = unixsocket.peer(raw)
    return Peer(pid, uid, time.clock_gettime(time.CLOCK_BOOTTIME))


def allowed(uid: int) -> bool:
    return uid in (0, os.geteuid())


async def _converse(connection: Connection, handler: Handler, places: Slots, place: Slot) -> None:
    """Serve one client to its end; whatever goes wrong with it ends here."""
    try:
        while (request := await connection.request()) is not None:
            place.idle_since = None
            if request.op in _STAYING:
                places.watch(place)
            answer = await _answer(request, connection, handler)
            if answer is None:
                return
            await connection.send(answer)
            place.idle_since = trio.current_time()
    except CkptfsError as error:
        with suppress(OSError, trio.BrokenResourceError, trio.TooSlowError):
            await connection.send(encode_error(error))
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        pass  # the client went away
    finally:
        places.leave(place)
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
