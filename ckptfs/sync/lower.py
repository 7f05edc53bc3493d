"""The lower directory as system calls see it: one entry at a time, relative to a descriptor.

Owns every call that reads or changes the lower directory. It never follows a symbolic link, not
even one that is swapped in meanwhile: every name is one component, resolved against the descriptor
of a directory that was itself opened that way. Knows nothing of the store.

Other users may own the directory, or write to it, and exchange what stands under a name at any
moment. So nothing that exists gets another owner, mode, time or attribute by name: it is pinned
(`pin`), compared with what was accepted, and changed by that descriptor. What is made is a new
inode that is known by its descriptor from the start, or is checked to be new. Names come and go
with the rights of the directory's owner (`acting_for`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from ckptfs import config
from ckptfs.model import TIME_MAX_NS, TIME_MIN_NS, storable_ns

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO that took a file's place must not make us wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Without a trace in the access time; only a file's owner and root may.
_DIRECTORY_QUIETLY, _FILE_QUIETLY = DIRECTORY | os.O_NOATIME, _FILE | os.O_NOATIME
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# The entry itself: not read, not followed, not opened in any way that a device would notice.
_PIN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

#: Set-user-id and set-group-id.
SET_ID = stat.S_ISUID | stat.S_ISGID

_USER = "user."
_NO_XATTRS = (errno.ENOTSUP, errno.ENOSYS, errno.EPERM)


# -- the rights of a directory's owner -------------------------------------------------------------

# Root writes into directories that others own. What it does there by name it does with the owner's
# file-system uid: a name that the owner exchanges meanwhile leads to nothing that the owner could
# not change alone. The kernel keeps this id per thread, and drops the capabilities that override
# permissions with it (credentials(7)); nothing else in the process changes.

_libc = ctypes.CDLL(None, use_errno=True)
_setfsuid = _libc.setfsuid
_setfsuid.argtypes, _setfsuid.restype = (ctypes.c_uint,), ctypes.c_uint
#: No user: the kernel refuses it, and returns the current id.
_NONE = 0xFFFFFFFF


def is_other(directory: os.stat_result) -> bool:
    """Whether a directory is another user's for whom we can act: only root can."""
    return directory.st_uid != 0 and os.geteuid() == 0


def needs_mode(directory: os.stat_result) -> bool:
    """Whether changing entries of a directory needs the owner's write permission."""
    return directory.st_uid != 0 or os.geteuid() != 0


class acting_for:
    """With the rights of a directory's owner (`is_other`), or else with our own.

    They stay our own where the kernel refuses: in a user namespace that does not map the owner, or
    without CAP_SETUID. Then the checks by descriptor are the only protection.
    """

    __slots__ = ("_owner",)

    def __init__(self, directory: os.stat_result) -> None:
        self._owner = directory.st_uid if is_other(directory) else None

    def __enter__(self) -> None:
        if self._owner is not None:
            _setfsuid(self._owner)

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            _setfsuid(0)


def current_uid() -> int:
    """The owner of what this thread creates now."""
    uid: int = _setfsuid(_NONE)
    return uid


# -- attributes and opening ------------------------------------------------------------------------

_TIMES = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")


def clamp_times(seen: os.stat_result) -> os.stat_result:
    """The attributes with times that the store can hold: ext4 has times until 2446, nanoseconds in
    64 bits end in 2262."""
    if (
        TIME_MIN_NS <= seen.st_mtime_ns <= TIME_MAX_NS
        and TIME_MIN_NS <= seen.st_atime_ns <= TIME_MAX_NS
    ):
        return seen
    fields = {name: getattr(seen, name) for name in ("st_blksize", "st_blocks", "st_rdev")}
    fields |= {name: storable_ns(getattr(seen, name)) for name in _TIMES}
    return os.stat_result(tuple(seen)[:10], fields)


def find(dir_fd: int, name: bytes) -> os.stat_result | None:
    """The attributes of the entry under a name, links not followed; None if there is none."""
    try:
        return lstat(dir_fd, name)
    except FileNotFoundError:
        return None


def lstat(dir_fd: int, name: bytes) -> os.stat_result:
    """The attributes of an entry that must be there."""
    return clamp_times(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))


def fstat(fd: int) -> os.stat_result:
    """The attributes of an open file or directory."""
    return clamp_times(os.fstat(fd))


def identity(seen: os.stat_result) -> tuple[int, int]:
    """Device and inode number: the same for all names of an inode, unique while it is open."""
    return seen.st_dev, seen.st_ino


def exchanged() -> OSError:
    """The error if the entry under a name is not the one that we looked at, or made."""
    return OSError(errno.ESTALE, "it changed while it was looked at")


def open_root(path: Path) -> int:
    """A directory by an absolute, resolved path: no component may be a symbolic link by now."""
    above = config.open_directory(path.parent)
    try:
        return os.open(path.name or ".", DIRECTORY, dir_fd=above)
    finally:
        os.close(above)


def open_directory(dir_fd: int, name: bytes) -> int:
    try:
        return os.open(name, _DIRECTORY_QUIETLY, dir_fd=dir_fd)
    except PermissionError:
        return os.open(name, DIRECTORY, dir_fd=dir_fd)


def open_file(dir_fd: int, name: bytes) -> tuple[int, os.stat_result]:
    """A regular file for reading, and its attributes."""
    try:
        fd = os.open(name, _FILE_QUIETLY, dir_fd=dir_fd)
    except PermissionError:
        fd = os.open(name, _FILE, dir_fd=dir_fd)
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode):
        os.close(fd)
        raise exchanged()
    return fd, clamp_times(seen)


def pin(dir_fd: int, name: bytes) -> tuple[int, os.stat_result]:
    """A descriptor of the entry under a name, whatever its type, and its attributes. Act on it
    with `by_descriptor`."""
    fd = os.open(name, _PIN, dir_fd=dir_fd)
    return fd, fstat(fd)


def by_descriptor(fd: int) -> str:
    """A path that leads to what a descriptor holds: chmod(2) and its like take no descriptor that
    was opened with O_PATH."""
    return f"/proc/self/fd/{fd}"


def target_of(dir_fd: int, name: bytes) -> bytes:
    return os.readlink(name, dir_fd=dir_fd)


def names_in(fd: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(fd)]


def entries_in(fd: int) -> Iterator[tuple[bytes, os.DirEntry[str]]]:
    """(name, entry) of an open directory, each name once. A file system may list a name twice that
    was deleted and made again meanwhile, as editors do."""
    listed: set[bytes] = set()
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            if name not in listed:
                listed.add(name)
                yield name, entry


#: Takes the entries of an open directory out of the records that it is given, by name, if these
#: begin with the entry's signature, of that version; returns how many these are, and the names of
#: the others. None where that was not compiled.
pass_unchanged: Callable[[int, dict[bytes, bytes], int], tuple[int, list[bytes]]] | None = None


class Seen(NamedTuple):
    """Of the attributes of an entry those that are asked for, named as in `os.stat_result`."""

    st_mode: int
    st_dev: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_rdev: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int


#: What `content.Entry` finds out of a regular file up to that long that has no holes, other names
#: or extended attributes: its attributes, its content, and when it was opened; None of others, also
#: if its owner or mode changed meanwhile. None where that was not compiled.
read_small: Callable[[int, bytes, int], tuple[tuple[int, ...], bytes, int] | None] | None = None


def user_xattrs(fd: int | str) -> dict[bytes, bytes]:
    """The user's extended attributes of an open file or directory, or of a `by_descriptor` path;
    none where the file system has no such attributes."""
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
    """A new file that no other user can open until it is given away. So it is our own at first,
    also in a directory of another user."""
    return os.open(name, _NEW, 0o600, dir_fd=dir_fd)


def make_directory(dir_fd: int, name: bytes, uid: int) -> None:
    """A new directory that ``uid`` shall own; `Descent.enter_new` enters it."""
    directory = os.fstat(dir_fd)
    if uid == directory.st_uid:
        with acting_for(directory):
            os.mkdir(name, 0o700, dir_fd=dir_fd)
    else:
        os.mkdir(name, 0o700, dir_fd=dir_fd)


def make_special(
    dir_fd: int, name: bytes, mode: int, uid: int, *, rdev: int = 0, target: bytes = b""
) -> int:
    """A new link or node that ``uid`` shall own, pinned."""
    directory = os.fstat(dir_fd)
    if uid == directory.st_uid and not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        with acting_for(directory):
            maker = current_uid()
            _make_special(dir_fd, name, mode, rdev, target)
    else:
        # A device needs a capability of root's; its number alone says what it is.
        maker = os.geteuid()
        _make_special(dir_fd, name, mode, rdev, target)
    fd, made = pin(dir_fd, name)
    is_ours = (
        stat.S_IFMT(made.st_mode) == stat.S_IFMT(mode)
        and made.st_uid in (maker, directory.st_uid)
        and made.st_rdev == rdev
        and made.st_nlink == 1
    )
    if not is_ours:
        os.close(fd)
        raise exchanged()
    return fd


def _make_special(dir_fd: int, name: bytes, mode: int, rdev: int, target: bytes) -> None:
    if stat.S_ISLNK(mode):
        os.symlink(target, name, dir_fd=dir_fd)
    else:
        os.mknod(name, stat.S_IFMT(mode) | 0o600, rdev, dir_fd=dir_fd)


def link(
    source: int, old: bytes, wanted: tuple[int, int], dir_fd: int, new: bytes
) -> os.stat_result:
    """A further name for the very inode that ``wanted`` identifies."""
    fd, seen = pin(source, old)
    try:
        if identity(seen) != wanted:
            raise exchanged()
        os.link(by_descriptor(fd), new, dst_dir_fd=dir_fd, follow_symlinks=True)
        return fstat(fd)
    finally:
        os.close(fd)


# -- renaming and removing -------------------------------------------------------------------------


def rename(dir_fd: int, old: bytes, new: bytes) -> None:
    """Give an entry of our own another name in the same directory."""
    with acting_for(os.fstat(dir_fd)):
        os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def unlink(dir_fd: int, name: bytes) -> None:
    with acting_for(os.fstat(dir_fd)):
        os.unlink(name, dir_fd=dir_fd)


def rmdir(dir_fd: int, name: bytes) -> None:
    with acting_for(os.fstat(dir_fd)):
        os.rmdir(name, dir_fd=dir_fd)


def discard(dir_fd: int, name: bytes) -> None:
    """Remove an entry of our own, if it is there."""
    with contextlib.suppress(OSError):
        unlink(dir_fd, name)


def move_directory(source: int, old: bytes, lower_ino: int, dest: int, new: bytes) -> None:
    """Move the directory with an inode number, and no other. The two places may have two owners, so
    it is done with our own rights, and what was moved is checked."""
    if not _is_directory_at(source, old, lower_ino):
        raise exchanged()
    os.rename(old, new, src_dir_fd=source, dst_dir_fd=dest)
    if not _is_directory_at(dest, new, lower_ino):
        with contextlib.suppress(OSError):
            os.rename(new, old, src_dir_fd=dest, dst_dir_fd=source)
        raise exchanged()


def _is_directory_at(dir_fd: int, name: bytes, lower_ino: int) -> bool:
    seen = find(dir_fd, name)
    return seen is not None and stat.S_ISDIR(seen.st_mode) and seen.st_ino == lower_ino


# -- attributes, by descriptor ---------------------------------------------------------------------


def set_owner(fd: int | str, uid: int, gid: int, seen: os.stat_result) -> None:
    """Give an open file or directory to its owner, if we may."""
    if (seen.st_uid, seen.st_gid) != (uid, gid):
        with contextlib.suppress(PermissionError):
            os.chown(fd, uid, gid)


def permitted_mode(mode: int, uid: int, gid: int, now: os.stat_result) -> int:
    """The permissions to give a file. Set-id bits are meant for one owner: a file that could not be
    given to that owner must not run with the rights of another."""
    permissions = stat.S_IMODE(mode)
    if not stat.S_ISREG(now.st_mode):
        return permissions
    if now.st_uid != uid:
        permissions &= ~stat.S_ISUID
    if now.st_gid != gid:
        permissions &= ~stat.S_ISGID
    return permissions


def set_user_xattrs(fd: int | str, wanted: dict[bytes, bytes]) -> bool:
    """Make the user's extended attributes these; False if the file system cannot hold them."""
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


def make_durable(fd: int) -> None:
    """Return when everything written so far to the file system of ``fd`` is on disk."""
    if _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# -- walking a tree --------------------------------------------------------------------------------


class Descent:
    """The open directories from a root down to the current one.

    At most ``limit`` of them are kept open. A closed one is opened again through "..", and only if
    that is the very directory we came from. The root always stays open: while the mount covers it,
    ".." would lead onto the mount.
    """

    def __init__(self, root_fd: int, *, limit: int = 100) -> None:
        self._limit = limit
        self._fds: list[int | None] = [os.open(b".", DIRECTORY, dir_fd=root_fd)]
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
        seen = fstat(fd)
        if seen.st_dev != self.device:
            os.close(fd)
            raise OSError(errno.EXDEV, "another file system is mounted here")
        self._fds.append(fd)
        self._identities.append((seen.st_dev, seen.st_ino))
        self.names.append(name)
        self._close_one_too_many()
        return seen

    def enter_new(self, name: bytes) -> os.stat_result:
        """`enter` a directory that we just made, not one that took its name meanwhile: that would
        have entries, or an owner who is neither us nor the owner of the directory around it."""
        owner = os.fstat(self.fd).st_uid
        seen = self.enter(name)
        try:
            is_ours = seen.st_uid in (os.geteuid(), owner) and not names_in(self.fd)
        except OSError:
            self.leave()
            raise
        if not is_ours:
            self.leave()
            raise exchanged()
        return seen

    def enter_known(
        self, name: bytes, is_known: Callable[[os.stat_result], bool]
    ) -> os.stat_result:
        """`enter` a directory that we know, and no other that took its name."""
        seen = self.enter(name)
        if not is_known(seen):
            self.leave()
            raise exchanged()
        return seen

    def leave_to(self, depth: int) -> None:
        """`leave` until the current directory is this deep."""
        while len(self.names) > depth:
            self.leave()

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

    def _reopen(self, inner: int, identity: tuple[int, int]) -> int:
        fd = os.open(b"..", DIRECTORY, dir_fd=inner)
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
    """Another directory of the tree, opened component by component."""
    fd = config.open_each(os.open(b".", DIRECTORY, dir_fd=root_fd), names, DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def count_entries(dir_fd: int) -> int:
    """How many entries a tree has, for a progress bar; unreadable ones are not counted."""
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


class Waiting(Protocol):
    """A directory under way; ``waiting`` has the arguments to enter each directory left in it."""

    waiting: list[Any]


F = TypeVar("F", bound=Waiting)


def traverse(
    root: F,
    *,
    visit: Callable[[F], None],
    enter: Callable[..., F | None],
    finish: Callable[[F], None],
    leave: Callable[[], None],
) -> None:
    """Walk a tree without recursion: visit a directory, then those that wait in it, then finish it.
    ``enter`` may decline a directory with None; ``leave`` goes up from a finished one."""
    visit(root)
    frames = [root]
    while frames:
        frame = frames[-1]
        if frame.waiting:
            inner = enter(frame, *frame.waiting.pop())
            if inner is not None:
                frames.append(inner)
                visit(inner)
        else:
            finish(frame)
            frames.pop()
            if frames:
                leave()
