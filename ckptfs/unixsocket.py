"""The control socket as the kernel knows it: names of any length, and who is at the other end.

Client, hooks and daemon share it, so it costs nothing but what they have loaded already. It speaks
no protocol.
"""

from __future__ import annotations

import _socket
import os
import sys
import time

#: Bytes of ``sun_path`` that the kernel takes, without the terminating zero.
PATH_MAX = 107

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = 0
#: Seconds between two tries to connect while the daemon's queue is full.
_CONNECT_AGAIN = 0.01


class Untrusted(Exception):
    """The user ``uid`` listens, who may not speak for the store."""

    def __init__(self, uid: int) -> None:
        super().__init__(f"user {uid} listens")
        self.uid = uid


def connect_to_daemon(path: str, store: str, patience: float) -> _socket.socket:
    """A connection to the daemon of a store. Waits while more clients connect at once than the
    daemon's queue takes. Raises OSError if nothing listens, `Untrusted` for a stranger."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(patience)
        deadline = time.monotonic() + patience
        while True:
            try:
                connect(connection, path)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_CONNECT_AGAIN)
        _, uid = peer(connection)
        if not is_trusted(uid, store):
            raise Untrusted(uid)
    except BaseException:
        connection.close()
        raise
    return connection


def connect(connection: _socket.socket, path: str) -> None:
    """Connect to a socket whose path may be longer than a socket's name."""
    if len(os.fsencode(path)) <= PATH_MAX:
        return connection.connect(path)
    directory, name = os.path.split(path)
    dir_fd = os.open(directory, _DIRECTORY)
    try:
        return connection.connect(_below(dir_fd, name))
    finally:
        os.close(dir_fd)


def bind(listener: _socket.socket, dir_fd: int, name: str) -> None:
    """Bind in an open directory, which cannot be replaced by another one meanwhile."""
    listener.bind(_below(dir_fd, name))


def open_directory(path: str) -> int:
    """A descriptor of a directory; not of what a link in its place leads to."""
    return os.open(path, _DIRECTORY)


def _below(dir_fd: int, name: str) -> str:
    return f"/proc/self/fd/{dir_fd}/{name}"


def peer(connection: _socket.socket) -> tuple[int, int]:
    """Process and user of the other end, from the kernel: of a server, as it began to listen."""
    found = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    pid, uid = (int.from_bytes(found[at : at + 4], sys.byteorder) for at in (0, 4))
    return pid, uid


def is_trusted(uid: int, store: str) -> bool:
    """Whether a client believes what this user's process says about a store.

    Every user believes root and itself. Root also asks the daemons of others:
    the owner of a store may say what is in it, and a client does nothing with that but show it.
    """
    own = os.geteuid()
    return uid in (_ROOT, own) or (own == _ROOT and uid == owner_of(store))


def owner_of(path: str) -> int:
    """The user that a path belongs to; -1, which is no user, if it is not there."""
    try:
        return os.stat(path, follow_symlinks=False).st_uid
    except OSError:
        return -1
