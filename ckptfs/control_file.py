"""The client's way to a daemon through its mount: `.checkpoints/.control`.

A sandbox may have the workspace and nothing else of ckptfs: no registry, no store, no socket. The
mount table tells which workspace a path is in, and the control file carries the lines of the
control socket. `ckptfs.fuse.control_files` is the other end and says what reads and writes mean.

Hooks import it, where the socket cannot be reached, so it and what it imports stay with
`os` and `time`.
"""

from __future__ import annotations

import os
import time

from ckptfs import mountinfo

NAME = ".checkpoints/.control"
FSTYPE = "fuse.ckptfs"

#: Where the offsets of reads and writes begin again.
WINDOW = 8 << 20
#: How much of an answer is asked for at once, and how much of a request one write carries.
_READ_SIZE = 32 << 10
_WRITE_SIZE = 64 << 10
#: The shortest and the longest time between two looks for an answer, in seconds. The longer it has
#: been waited for, the less often it is looked for.
_LOOK_MIN = 0.0003
_LOOK_MAX = 0.25
_LOOK_PART = 8

#: As in sys/socket.h.
_SHUT_WR = 1


class Mount:
    """A mounted workspace as the mount table of this process has it."""

    def __init__(self, path: str, top: str, device: str, source: str, owner: int | None) -> None:
        self.path = path
        #: Which directory of the workspace is seen here: "/" is all of it.
        self.top = top
        self.device = device
        #: 0 for the workspace itself, else the number of a fork.
        source, self.line = mountinfo.split_source(source)
        #: The store, by its path where the daemon is. A path that is too long is not in the mount
        #: table; then it is one that leads nowhere.
        self.store = source if os.path.isabs(source) else "/dev/null/store"
        #: The user who mounted it.
        self.owner = owner

    @property
    def known_store(self) -> str:
        """The store, or nothing if the mount table does not have it."""
        return "" if self.store == "/dev/null/store" else self.store

    @property
    def is_whole(self) -> bool:
        return self.top == "/"

    def is_of(self, store: str) -> bool:
        """Whether it may be of this store."""
        return self.store in (store, "/dev/null/store")


def mount_around(path: str) -> Mount | None:
    """The mounted workspace of this user that a resolved path lies in, if it does."""
    found = _own_mounts()
    while path not in found:
        if path == (above := os.path.dirname(path)):
            return None
        path = above
    return found[path]


def mount_at(path: str) -> Mount | None:
    """The workspace of this user that is mounted at exactly this resolved path."""
    return _own_mounts().get(path)


def foreign_mount(path: str, store: str) -> Mount | None:
    """The workspace that is mounted at exactly this resolved path, if it is another user's or has
    another store."""
    mount = _all_mounts().get(path)
    if mount is None or (mount.is_of(store) and is_own(mount)):
        return None
    return mount


def is_own(mount: Mount) -> bool:
    """Whether this user mounted it, or one whom this user trusts."""
    return mount.owner in _own_ids() | _trusted_ids()


def _own_mounts() -> dict[str, Mount]:
    """The mounted workspaces of this user, and of those whom this user trusts, by path."""
    found = _all_mounts()
    own = _own_ids() | _trusted_ids() if found else set()
    return {path: mount for path, mount in found.items() if mount.owner in own}


def _all_mounts() -> dict[str, Mount]:
    """The mounted workspaces of every user, by path."""
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            return parse(table.read())
    except OSError:
        return {}  # a sandbox without /proc


def parse(table: bytes) -> dict[str, Mount]:
    """The workspaces in a table of mounts, by path."""
    found: dict[str, Mount] = {}
    for entry in mountinfo.entries(table):
        found.pop(entry.path, None)  # the last one covers the others
        if entry.fstype == FSTYPE:
            owners = [word[8:] for word in entry.options if word.startswith("user_id=")]
            owner = int(owners[0]) if owners else None
            found[entry.path] = Mount(entry.path, entry.root, entry.device, entry.source, owner)
    return found


def _own_ids() -> set[int]:
    """This user as the mount table may call it: a user namespace gives it another number."""
    own = os.geteuid()
    found = {own}
    try:
        with open("/proc/self/uid_map", "rb") as table:
            for line in table:
                inside, outside, count = map(int, line.split())
                if inside <= own < inside + count:
                    found.add(outside + own - inside)
    except (OSError, ValueError):
        pass
    return found


def _trusted_ids() -> frozenset[int]:
    from ckptfs import locating  # late: no other place here needs it

    return locating.trusted_owners()


def is_alive(mount: Mount) -> bool:
    """Whether a daemon serves it."""
    try:
        # Not stat: the kernel may answer that from its cache long after the server died.
        os.statvfs(mount.path)
    except OSError:
        return False
    return True


class Connection:
    """A connection through the control file, with the few methods of a socket that clients use."""

    def __init__(self, mount: Mount) -> None:
        """Raises OSError if there is no way in."""
        # O_DIRECT: what is read must come from the daemon each time, never from the page cache.
        flags = os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(os.path.join(mount.path, NAME), flags)
        self._sent = self._received = 0
        self._timeout: float | None = None
        self._left = False

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        for start in range(0, len(data), _WRITE_SIZE):
            piece = data[start : start + _WRITE_SIZE]
            self._sent = (self._sent + os.pwrite(self._fd, piece, self._sent)) % WINDOW

    def recv(self, size: int) -> bytes:
        """What came of the answers; empty if the other end hung up."""
        start = time.monotonic()
        while not self._left:
            try:
                found = os.pread(self._fd, min(size, _READ_SIZE), self._received).rstrip(b"\0")
            except ConnectionResetError:
                return b""
            if found:
                self._received = (self._received + len(found)) % WINDOW
                return found
            waited = time.monotonic() - start
            if self._timeout is not None and waited >= self._timeout:
                raise TimeoutError("timed out")
            time.sleep(min(max(waited / _LOOK_PART, _LOOK_MIN), _LOOK_MAX))
        return b""

    def shutdown(self, how: int) -> None:
        """End the requests (``SHUT_WR``), or hang up, also for another thread in `recv`."""
        if how == _SHUT_WR:
            os.pwrite(self._fd, b"\0", self._sent)
        else:
            self._left = True

    def close(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:  # noqa: SIM105 - hooks have no time for contextlib
            os.pwrite(fd, b"\0\0", self._sent)  # the kernel does not tell the daemon of a close
        except OSError:
            pass  # it has gone
        os.close(fd)
