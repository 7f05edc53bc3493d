"""The client's end of the control socket: standard library only, since hooks start it often.

It sends one request and hands on what comes back; it knows nothing about what a verb means. Not
even `socket` is imported: what it adds to `_socket` is not needed here, and takes longer to load
than a daemon to answer.
"""

from __future__ import annotations

import _socket
import errno
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from ckptfs import control_file, unixsocket
from ckptfs.config import Workspace
from ckptfs.control.protocol import Answer, decode_answer, encode_request
from ckptfs.errors import (
    CkptfsError,
    ControlError,
    DaemonGone,
    DaemonSilent,
    Interrupted,
    PeerUntrusted,
    RefusedInSandbox,
)
from ckptfs.service.arguments import JsonObject, OnProgress
from ckptfs.service.verbs import VERBS

#: Seconds without a word from the daemon after which it counts as stuck.
PATIENCE = 600.0
#: The same for questions that a healthy daemon answers in milliseconds.
PATIENCE_SHORT = 10.0
#: The same after an interrupt: by then a daemon that can stop has stopped.
PATIENCE_STOP = 3.0

#: The same for verbs that may rightly take hours; the end of the daemon ends the wait before.
PATIENCE_LONG = 6 * 3600.0


class Session(Protocol):
    """Something that answers operations by name."""

    def call(
        self, op: str, args: JsonObject | None = None, *, on_progress: OnProgress | None = None
    ) -> JsonObject: ...


class Client:
    """A connection to the daemon of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        """Connect. Raises `DaemonGone` if nothing listens there, `PeerUntrusted` if a user does
        that may not speak for the store."""
        self._workspace = workspace
        self._socket: _socket.socket | control_file.Connection
        try:
            self._socket = _connected(workspace)
        except OSError as error:
            self._socket = _through_mount(workspace, error)
        #: What came after the last whole line.
        self._rest = b""
        #: We hung up ourselves.
        self._left = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(
        self,
        op: str,
        args: JsonObject | None = None,
        *,
        on_progress: OnProgress | None = None,
        patience: float = PATIENCE,
    ) -> JsonObject:
        """Ask, and return the result. Raises the error that the daemon answered with.

        An interrupt stops the daemon, too, where the operation can be left; the KeyboardInterrupt
        that goes on says in a sentence what became of it.
        """
        try:
            # An interrupt may come as soon as the daemon has the request, so this is within.
            self.send_request(op, args, progress=on_progress is not None)
            return self.receive_result(on_progress=on_progress, patience=_patience(op, patience))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._stop(op)) from None

    def _stop(self, op: str) -> str:
        """Have the daemon stop what it does for us; what it says about that."""
        try:
            self._socket.shutdown(_socket.SHUT_WR)
            self.receive_result(patience=PATIENCE_STOP)
        except Interrupted as stopped:
            return stopped.message
        except DaemonGone:
            # Or it hung up on half a request.
            return f"Stopped waiting for {op}; the daemon has gone."
        except ControlError:
            return (
                f"Stopped waiting; the daemon has to finish {op} and goes on with it. "
                "`ckptfs status` answers when it is done."
            )
        except (OSError, CkptfsError):
            return "Stopped. Nothing was changed."
        return f"Too late: {op} was done already."

    def send_request(
        self, op: str, args: JsonObject | None = None, *, progress: bool = False
    ) -> None:
        """Send a request; `receive_result` waits for what comes of it."""
        self._socket.settimeout(PATIENCE)
        try:
            # A daemon that will not hear us out has said why before it hung up.
            with suppress(BrokenPipeError, ConnectionResetError):
                line = self._workspace.line
                self._socket.sendall(encode_request(op, args or {}, progress=progress, line=line))
        except OSError as error:
            raise DaemonGone(self._workspace.path) from error

    def receive_result(
        self, *, on_progress: OnProgress | None = None, patience: float = PATIENCE
    ) -> JsonObject:
        """The result of what was asked. Raises the error that the daemon answered with, or
        `DaemonSilent` if nothing came for so many seconds; then it may be called again."""
        self._socket.settimeout(patience)
        try:
            while True:
                answer = self._answer()
                if answer.error is not None:
                    raise answer.error
                if answer.result is not None:
                    return answer.result
                if on_progress is not None and answer.progress is not None:
                    on_progress(answer.progress)
        except TimeoutError as error:
            raise DaemonSilent(self._workspace.path, patience, self._workspace.log) from error
        except OSError as error:
            raise DaemonGone(self._workspace.path) from error

    def watch(self) -> Iterator[JsonObject]:
        """What happens to the workspace from now on, until it is unmounted or `hang_up`.

        Raises `DaemonGone` if the daemon ended without a word or cut us off for falling behind.
        """
        self.call("watch", patience=PATIENCE_SHORT)
        return self._events()

    def _events(self) -> Iterator[JsonObject]:
        self._socket.settimeout(None)
        try:
            while True:
                answer = self._answer()
                if answer.error is not None:
                    raise answer.error
                if answer.result is not None:
                    return  # the last word: it was unmounted
                if answer.event is not None:
                    # A sandbox may have the workspace at another path than the daemon.
                    yield {**answer.event, "workspace": str(self._workspace.path)}
        except (OSError, DaemonGone) as error:
            if self._left:
                return
            raise DaemonGone(self._workspace.path, "it stopped telling") from error
        finally:
            self.close()

    def hang_up(self) -> None:
        """End the connection, also for another thread that waits on it."""
        self._left = True
        with suppress(OSError):
            self._socket.shutdown(_socket.SHUT_RDWR)

    def wait_for_end(self, patience: float = PATIENCE_SHORT) -> None:
        """Wait until the daemon closes the connection, which it does by ending."""
        self._socket.settimeout(patience)
        with suppress(OSError):
            while self._socket.recv(4096):
                pass

    def _answer(self) -> Answer:
        received = [self._rest]
        try:
            while b"\n" not in received[-1]:
                received.append(self._socket.recv(65536))
                if not received[-1]:
                    raise DaemonGone(self._workspace.path)
        finally:
            self._rest = b"".join(received)
        line, _, self._rest = self._rest.partition(b"\n")
        return decode_answer(line)


def _patience(op: str, patience: float) -> float:
    verb = VERBS.get(op)
    return PATIENCE_LONG if verb is not None and verb.takes_long else patience


def _connected(workspace: Workspace) -> _socket.socket:
    path, store = str(workspace.socket), str(workspace.store)
    try:
        return unixsocket.connect_to_daemon(path, store, PATIENCE_SHORT)
    except unixsocket.Untrusted as error:
        raise PeerUntrusted(workspace.path, workspace.socket, error.uid) from None


def _through_mount(workspace: Workspace, refused: OSError) -> control_file.Connection:
    """The way in where the socket cannot be reached, as from a sandbox."""
    reason = f"its socket does not answer ({refused.strerror or refused})"
    if isinstance(refused, BlockingIOError | TimeoutError):
        # The daemon is there and does not get to it: the mount would hang, too.
        raise DaemonGone(workspace.path, reason) from refused
    mount = control_file.mount_at(str(workspace.path))
    if mount is None or not mount.is_of(str(workspace.store)) or mount.line != workspace.line:
        raise DaemonGone(workspace.path, reason) from refused
    try:
        return control_file.Connection(mount)
    except OSError as error:
        if error.errno == errno.EROFS:
            reason = "the workspace cannot be written to there"
            raise RefusedInSandbox("reach the daemon", reason) from error
        reason += f", and neither does the mount ({error.strerror or error})"
        raise DaemonGone(workspace.path, reason) from error
