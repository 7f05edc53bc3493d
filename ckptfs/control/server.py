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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from ckptfs import locating, unixsocket
from ckptfs.control.protocol import (
    REQUEST_MAX,
    Request,
    decode_request,
    encode_error,
    encode_failure,
    encode_progress,
    encode_result,
)
from ckptfs.errors import CkptfsError, ControlError
from ckptfs.service.arguments import JsonObject
from ckptfs.service.verbs import VERBS

log = logging.getLogger(__name__)

#: Seconds that a client may take to accept an answer.
SEND_PATIENCE = 30.0
#: Seconds from the connection to the end of the first request, and from the beginning of any
#: request to its end: no client of ours thinks in between.
LINE_PATIENCE = 10.0
#: Seconds between two requests: a person may be at a question on the screen.
IDLE_PATIENCE = 3600.0

#: Slots at once, of all users together.
CONNECTIONS_MAX = 128
#: So many of them are out of each user's reach, for another: a daemon hears its owner and root.
KEPT = 16
#: Slots of one user that may watch, and so stay for as long as they like.
WATCHERS_MAX = 64
#: Seconds that a workspace stands still at most, whatever a client asks for.
HOLD_MAX = 2.0

#: A connection before anything was said, and who it is.
Accepted = tuple[socket.socket, "Peer"]

#: Answers a request, with a record or with the line as it is to be sent; or returns None when it
#: adopted the connection and will answer later.
Handler = Callable[[Request, "Connection"], Awaitable[JsonObject | bytes | None]]


class Peer(NamedTuple):
    """The process at the other end, from the kernel."""

    pid: int
    uid: int
    #: When it connected, in seconds since boot: a process that began later has only its number.
    since: float
    #: It came through `.checkpoints/.control`, not through the socket.
    through_mount: bool = False
    #: Of such a one, the line whose mount that was.
    line: int = 0


class ReplyStream:
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
        self._replies = ReplyStream(raw)
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
            await self._stream.send_all(self._replies.completed(line))
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
            self._raw.sendall(self._replies.completed(line))

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
        self._replies.send_progress(progress)

    def adopt(self) -> ReplyStream:
        """The client's socket for use after the loop ended; the caller answers."""
        return ReplyStream(self._raw.dup())

    def dismiss(self) -> bool:
        """Hang up on a client, unless it has sent something, and end the wait for its next request.
        Whether it did."""
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


@dataclass(eq=False)
class Slot:
    """One connection. ``idle_since`` is None while it is served or watches."""

    uid: int
    #: Hangs up, unless there is a request to be read; whether it did.
    dismiss: Callable[[], bool]
    idle_since: float | None
    watches: bool = field(default=False)


class Slots:
    """The connections of one server: how many there may be, whose, and who makes room for whom.

    No user can keep others from being heard by connecting and saying nothing: some slots are beyond
    the reach of each user, and when a user has taken all it may, the connection of that user that
    has been silent for longest is closed for the new one. One in the middle of a request, whose
    request is yet to be read, or that watches, is not silent; so there may be only so many that
    watch.
    """

    def __init__(self, users: int) -> None:
        """``users`` is how many may connect at all."""
        self._most = CONNECTIONS_MAX - (KEPT if users > 1 else 0)
        self._taken: set[Slot] = set()

    def take(self, slot: Slot) -> None:
        """Give a slot, if need be that of a silent connection. Raises ControlError if all are
        busy."""
        own = [other for other in self._taken if other.uid == slot.uid]
        if len(own) >= self._most or len(self._taken) >= CONNECTIONS_MAX:
            self._make_room(own)
        self._taken.add(slot)

    def _make_room(self, own: list[Slot]) -> None:
        idle = {other: other.idle_since for other in own if other.idle_since is not None}
        for longest in sorted(idle, key=idle.__getitem__):
            if longest.dismiss():
                self._taken.discard(longest)
                return
        raise ControlError(
            f"The daemon serves {len(own)} connections already. Nothing was changed.",
            hint="Try again in a moment.",
        )

    def leave(self, slot: Slot) -> None:
        self._taken.discard(slot)

    def watch(self, slot: Slot) -> None:
        """Note that a connection stays to watch. Raises ControlError if too many do."""
        own = sum(other.watches for other in self._taken if other.uid == slot.uid)
        if own >= WATCHERS_MAX:
            raise ControlError(
                f"Cannot watch: {own} connections of this user watch already.",
                hint="End some of them, or have one tell the others.",
            )
        slot.watches = True


def listen(path: Path) -> socket.socket:
    """A listening socket that only this user can reach. The store's lock must be held.

    The directory is looked at and used by one descriptor, so it cannot be replaced in between, and
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
    """A descriptor of a directory in which only its owner can put anything."""
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
    slots = Slots(users=len({0, os.geteuid()}))
    async with trio.open_nursery() as nursery:
        admit = partial(_admit, nursery, handler, slots)
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
    nursery: trio.Nursery,
    handler: Handler,
    slots: Slots,
    raw: socket.socket,
    peer: Peer,
) -> None:
    if not allowed(peer.uid):
        raw.close()
        return
    connection = Connection(raw, peer)
    slot = Slot(peer.uid, connection.dismiss, trio.current_time())
    try:
        slots.take(slot)
    except ControlError as error:
        _refuse(raw, error)
    else:
        nursery.start_soon(_converse, connection, handler, slots, slot)


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


async def _converse(connection: Connection, handler: Handler, slots: Slots, slot: Slot) -> None:
    """Serve one client to its end; whatever goes wrong with it ends here."""
    try:
        while (request := await connection.request()) is not None:
            slot.idle_since = None
            verb = VERBS.get(request.op)
            if verb is not None and verb.stays:
                slots.watch(slot)
            answer = await _answer(request, connection, handler)
            if answer is None:
                return
            await connection.send(answer)
            slot.idle_since = trio.current_time()
    except CkptfsError as error:
        with suppress(OSError, trio.BrokenResourceError, trio.TooSlowError):
            await connection.send(encode_error(error))
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        pass  # the client went away
    finally:
        slots.leave(slot)
        await connection.close()


async def _answer(request: Request, connection: Connection, handler: Handler) -> bytes | None:
    try:
        result = await handler(request, connection)
    except Exception as error:
        if not isinstance(error, CkptfsError | OSError):
            log.exception("request %r failed", request.op)
        return encode_failure(request.op, error, "The mount goes on.")
    return result if result is None or isinstance(result, bytes) else encode_result(result)


def hold(
    connection: Connection, seconds: float | None, save: Callable[[JsonObject], JsonObject]
) -> None:
    """Hold the workspace still while one client takes checkpoints of several as one.

    From the first answer on until `thaw` the daemon serves nothing else: no program reads or writes
    in the workspace, no other request is heard. It is one thread, so holding it still is waiting in
    it. After a deadline it goes on by itself and hangs up; so a client that got an answer to a save
    knows that the workspace stood still until then.
    """
    deadline = time.monotonic() + min(HOLD_MAX if seconds is None else seconds, HOLD_MAX)
    connection.send_now(encode_result({"frozen": True}), deadline)
    while (request := connection.request_now(deadline)) is not None:
        if request.op == "thaw":
            connection.send_now(encode_result({"frozen": False}), deadline)
            return
        try:
            if request.op != "save":
                raise ControlError(f"Cannot {request.op} while the workspace is held still.")
            answer = encode_result(save(request.args))
        except CkptfsError as error:
            answer = encode_error(error)
        connection.send_now(answer, deadline)
