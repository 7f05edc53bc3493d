"""The directory below as system calls see it: one entry at a time, relative to a descriptor.

Owns every call that reads or changes the directory below. A symbolic link is never followed, not
even one that is swapped in while we look: every name is one component, resolved against the
descriptor of a directory that was itself opened that way. Knows nothing of the store.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator

from ckptfs.model import TIME_MAX_NS, TIME_MIN_NS, storable_ns

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO that took a file's place must not make us wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Without leaving a trace in the access time; not everyone may.
_DIRECTORY_QUIETLY, _FILE_QUIETLY = _DIRECTORY | os.O_NOATIME, _FILE | os.O_NOATIME
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_USER = "user."
_NO_XATTRS = (errno.ENOTSUP, errno.ENOSYS, errno.EPERM)


# -- looking ---------------------------------------------------------------------------------------

_TIMES = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")


def tame(seen: os.stat_result) -> os.stat_result:
    """The attributes with times that the store can hold: ext4 keeps times until 2446, nanoseconds
    in 64 bits end in 2262."""
    if (
        TIME_MIN_NS <= seen.st_mtime_ns <= TIME_MAX_NS
        and TIME_MIN_NS <= seen.st_atime_ns <= TIME_MAX_NS
    ):
        return seen
    fields = {name: getattr(seen, name) for name in ("st_blksize", "st_blocks", "st_rdev")}
    fields |= {name: storable_ns(getattr(seen, name)) for name in _TIMES}
    return os.stat_result(tuple(seen)[:10], fields)


def look(dir_fd: int, name: bytes) -> os.stat_result | None:
    """What stands under a name, itself and not what it points to; None if nothing does."""
    try:
        return look_at(dir_fd, name)
    except FileNotFoundError:
        return None


def look_at(dir_fd: int, name: bytes) -> os.stat_result:
    """`look` at something that must be there."""
    return tame(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))


def look_into(fd: int) -> os.stat_result:
    """The attributes of an open file or directory."""
    return tame(os.fstat(fd))


def open_directory(dir_fd: int, name: bytes) -> int:
    try:
        return os.open(name, _DIRECTORY_QUIETLY, dir_fd=dir_fd)
    except PermissionError:
        return os.open(name, _DIRECTORY, dir_fd=dir_fd)


def open_file(dir_fd: int, name: bytes) -> tuple[int, os.stat_result]:
    """A regular file for reading, and its attributes."""
    try:
        fd = os.open(name, _FILE_QUIETLY, dir_fd=dir_fd)
    except PermissionError:
        fd = os.open(name, _FILE, dir_fd=dir_fd)
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode):
        os.close(fd)
        raise OSError(errno.ESTALE, "it changed while it was looked at")
    return fd, tame(seen)


def target_of(dir_fd: int, name: bytes) -> bytes:
    return os.readlink(name, dir_fd=dir_fd)


def names_in(fd: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(fd)]


def entries_in(fd: int) -> Iterator[tuple[bytes, os.DirEntry[str]]]:
    """(name, entry) of an open directory, each name once. A file system may list one twice that
    was deleted and made again meanwhile, as editors do."""
    listed: set[bytes] = set()
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            if name not in listed:
                listed.add(name)
                yield name, entry


def user_xattrs(fd: int) -> dict[bytes, bytes]:
    """The user's extended attributes of an open file or directory; none where there are no such."""
    try:
        names = os.listxattr(fd)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return {}
        raise
    if not names:
        return {}
    return {os.fsencode(name): os.getxattr(fd, name) for name in names if name.startswith(_USER)}


# -- making ----------------------------------------------------------------------------------------


def create(dir_fd: int, name: bytes) -> int:
    return os.open(name, _NEW, 0o600, dir_fd=dir_fd)


def discard(dir_fd: int, name: bytes) -> None:
    """Remove something of our own, if it is there."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=dir_fd)


def set_owner(fd: int, uid: int, gid: int, seen: os.stat_result) -> None:
    """Give an open file or directory to its owner; not being allowed to is no error."""
    if (seen.st_uid, seen.st_gid) != (uid, gid):
        with contextlib.suppress(PermissionError):
            os.fchown(fd, uid, gid)


def set_owner_at(dir_fd: int, name: bytes, uid: int, gid: int, seen: os.stat_result) -> None:
    if (seen.st_uid, seen.st_gid) != (uid, gid):
        with contextlib.suppress(PermissionError):
            os.chown(name, uid, gid, dir_fd=dir_fd, follow_symlinks=False)


def set_mode_at(dir_fd: int, name: bytes, mode: int) -> None:
    """chmod of something that cannot be opened: a FIFO, socket or device of our own making."""
    # There is no chmod that does not follow links before Linux 6.6; /proc gives one.
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode))
    finally:
        os.close(fd)


def set_times_at(dir_fd: int, name: bytes, atime_ns: int, mtime_ns: int) -> None:
    os.utime(name, ns=(atime_ns, mtime_ns), dir_fd=dir_fd, follow_symlinks=False)


def set_user_xattrs(fd: int, wanted: dict[bytes, bytes]) -> bool:
    """Make the user's extended attributes these; say whether the file system below has such."""
    try:
        present = user_xattrs(fd)
        for name in present.keys() - wanted.keys():
            os.removexattr(fd, name)
        for name, value in wanted.items():
            if present.get(name) != value:
                os.setxattr(fd, name, value)
    except OSError as error:
        if error.errno in (*_NO_XATTRS, errno.ENOSPC, errno.E2BIG, errno.ERANGE):
            return False
        raise
    return True


_libc = ctypes.CDLL(None, use_errno=True)


def make_durable(fd: int) -> None:
    """Return when everything written so far to the file system of ``fd`` is on its disk."""
    if _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# -- the way down ----------------------------------------------------------------------------------


class Descent:
    """The open directories from a root down to where we are.

    At most ``limit`` of them are kept open. The way back to one that was closed goes through
    "..", and is taken only if that is the very directory we came from. The root stays open always:
    while the mount covers it, ".." would lead onto the mount.
    """

    def __init__(self, root_fd: int, *, limit: int = 100) -> None:
        self._limit = limit
        self._fds: list[int | None] = [os.open(b".", _DIRECTORY, dir_fd=root_fd)]
        root = os.fstat(self.fd)
        self.device = root.st_dev
        self._identities = [(root.st_dev, root.st_ino)]
        self.names: list[bytes] = []

    @property
    def fd(self) -> int:
        fd = self._fds[-1]
        if fd is None:
            raise AssertionError("the innermost directory is always open")
        return fd

    @property
    def root_fd(self) -> int:
        fd = self._fds[0]
        if fd is None:
            raise AssertionError("the root is always open")
        return fd

    def path(self, *names: bytes) -> bytes:
        return b"/".join((*self.names, *names))

    def enter(self, name: bytes) -> os.stat_result:
        fd = open_directory(self.fd, name)
        seen = look_into(fd)
        if seen.st_dev != self.device:
            os.close(fd)
            raise OSError(errno.EXDEV, "another file system is mounted here")
        self._fds.append(fd)
        self._identities.append((seen.st_dev, seen.st_ino))
        self.names.append(name)
        self._close_one_too_many()
        return seen

    def _close_one_too_many(self) -> None:
        depth = len(self._fds) - self._limit
        if depth > 0:
            fd = self._fds[depth]
            if fd is not None:
                os.close(fd)
                self._fds[depth] = None

    def leave(self) -> None:
        left = self.fd
        try:
            if self._fds[-2] is None:
                self._fds[-2] = self._reopen(left, self._identities[-2])
        finally:
            self._fds.pop()
            self._identities.pop()
            self.names.pop()
            os.close(left)

    def _reopen(self, below: int, identity: tuple[int, int]) -> int:
        fd = os.open(b"..", _DIRECTORY, dir_fd=below)
        seen = os.fstat(fd)
        if (seen.st_dev, seen.st_ino) != identity:
            os.close(fd)
            raise OSError(errno.ESTALE, "a directory was moved while it was looked at")
        return fd

    def close(self) -> None:
        for fd in self._fds:
            if fd is not None:
                os.close(fd)
        self._fds.clear()


@contextlib.contextmanager
def descend(root_fd: int) -> Iterator[Descent]:
    descent = Descent(root_fd)
    try:
        yield descent
    finally:
        descent.close()


@contextlib.contextmanager
def directory_at(root_fd: int, names: tuple[bytes, ...]) -> Iterator[int]:
    """A directory that is not on the way we are on, opened component by component."""
    fd = os.open(b".", _DIRECTORY, dir_fd=root_fd)
    try:
        for name in names:
            inner = open_directory(fd, name)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def count_entries(dir_fd: int) -> int:
    """How many entries there are, for a progress bar; what cannot be read is not counted."""
    count = 0
    with descend(dir_fd) as down:
        waiting = [_directories_in(down)]
        while waiting:
            found, names = waiting[-1]
            count += found
            waiting[-1] = (0, names)
            if names:
                with contextlib.suppress(OSError):
                    down.enter(names.pop())
                    waiting.append(_directories_in(down))
            else:
                waiting.pop()
                if waiting:
                    down.leave()
    return count


def _directories_in(down: Descent) -> tuple[int, list[bytes]]:
    count, names = 0, []
    with contextlib.suppress(OSError), os.scandir(down.fd) as entries:
        for entry in entries:
            count += 1
            if entry.is_dir(follow_symlinks=False):
                names.append(os.fsencode(entry.name))
    return count, names
