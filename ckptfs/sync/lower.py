"""The lower directory as system calls see it: one entry at a time, relative to a descriptor.

Owns every call that reads or changes the lower directory. A symbolic link is never followed, not
even one that is swapped in while we look: every name is one component, resolved against the
descriptor of a directory that was itself opened that way. Knows nothing of the store.

Others may own the directory, or write to it, and exchange what stands under a name at any moment.
So nothing that exists gets another owner, mode, time or attribute by name: it is pinned (`pin`),
compared with what was accepted, and changed by that descriptor. What is made is a new inode that
is known by its descriptor from the start, or is checked to be new. Entries come and go with the
rights of the directory's owner (`credentials`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ckptfs import config
from ckptfs.model import TIME_MAX_NS, TIME_MIN_NS, storable_ns
from ckptfs.sync.credentials import acting_for, current_uid

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO that took a file's place must not make us wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Without leaving a trace in the access time; not everyone may.
_DIRECTORY_QUIETLY, _FILE_QUIETLY = DIRECTORY | os.O_NOATIME, _FILE | os.O_NOATIME
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# A name itself, neither read nor followed nor opened in any way that a device would notice.
_PIN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

#: Set-user-id and set-group-id.
SET_ID = stat.S_ISUID | stat.S_ISGID

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


def identity(seen: os.stat_result) -> tuple[int, int]:
    """The same for all names of one inode, and for no other as long as it is held open."""
    return seen.st_dev, seen.st_ino


def exchanged() -> OSError:
    """What stands under a name is not what we looked at, or made."""
    return OSError(errno.ESTALE, "it changed while it was looked at")


def open_root(path: Path) -> int:
    """A directory by its absolute path, in which no component may be a symbolic link: what was
    resolved before must not lead elsewhere now."""
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
    return fd, tame(seen)


def pin(dir_fd: int, name: bytes) -> tuple[int, os.stat_result]:
    """Hold what stands under a name, whatever it is, and its attributes. `by_descriptor` is how
    to act on it."""
    fd = os.open(name, _PIN, dir_fd=dir_fd)
    return fd, look_into(fd)


def by_descriptor(fd: int) -> str:
    """A path to what a descriptor holds and to nothing else: chmod(2) and its like take no
    descriptor that was opened with O_PATH."""
    return f"/proc/self/fd/{fd}"


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


def user_xattrs(fd: int | str) -> dict[bytes, bytes]:
    """The user's extended attributes of an open file or directory, or of what `by_descriptor`
    leads to; none where there are no such."""
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
    """A new file that nobody else can open until it is given to somebody. So it is our own at
    first, also in a directory of another user."""
    return os.open(name, _NEW, 0o600, dir_fd=dir_fd)


def make_directory(dir_fd: int, name: bytes, uid: int) -> None:
    """A new directory that is to be of ``uid``; `Descent.enter_new` goes into it."""
    directory = os.fstat(dir_fd)
    if uid == directory.st_uid:
        with acting_for(directory):
            os.mkdir(name, 0o700, dir_fd=dir_fd)
    else:
        os.mkdir(name, 0o700, dir_fd=dir_fd)


def make_special(
    dir_fd: int, name: bytes, mode: int, uid: int, *, rdev: int = 0, target: bytes = b""
) -> int:
    """A new link or node that is to be of ``uid``, pinned."""
    directory = os.fstat(dir_fd)
    if uid == directory.st_uid and not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        with acting_for(directory):
            maker = current_uid()
            _make_special(dir_fd, name, mode, rdev, target)
    else:
        # A device needs a capability of root's; it is what its number says, whoever made it.
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
        return look_into(fd)
    finally:
        os.close(fd)


# -- names that come and go ------------------------------------------------------------------------


def rename(dir_fd: int, old: bytes, new: bytes) -> None:
    """Let something of our own take a name, within one directory."""
    with acting_for(os.fstat(dir_fd)):
        os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def unlink(dir_fd: int, name: bytes) -> None:
    with acting_for(os.fstat(dir_fd)):
        os.unlink(name, dir_fd=dir_fd)


def rmdir(dir_fd: int, name: bytes) -> None:
    with acting_for(os.fstat(dir_fd)):
        os.rmdir(name, dir_fd=dir_fd)


def discard(dir_fd: int, name: bytes) -> None:
    """Remove something of our own, if it is there."""
    with contextlib.suppress(OSError):
        unlink(dir_fd, name)


def move_directory(source: int, old: bytes, lower_ino: int, dest: int, new: bytes) -> None:
    """Move the directory of an inode number to another place, and nothing else: not with the
    rights of an owner, since the two places may have two, so what was moved is looked at."""
    if not _is_directory_at(source, old, lower_ino):
        raise exchanged()
    os.rename(old, new, src_dir_fd=source, dst_dir_fd=dest)
    if not _is_directory_at(dest, new, lower_ino):
        with contextlib.suppress(OSError):
            os.rename(new, old, src_dir_fd=dest, dst_dir_fd=source)
        raise exchanged()


def _is_directory_at(dir_fd: int, name: bytes, lower_ino: int) -> bool:
    seen = look(dir_fd, name)
    return seen is not None and stat.S_ISDIR(seen.st_mode) and seen.st_ino == lower_ino


# -- attributes, by descriptor ---------------------------------------------------------------------


def set_owner(fd: int | str, uid: int, gid: int, seen: os.stat_result) -> None:
    """Give an open file or directory to its owner; not being allowed to is no error."""
    if (seen.st_uid, seen.st_gid) != (uid, gid):
        with contextlib.suppress(PermissionError):
            os.chown(fd, uid, gid)


def permitted_mode(mode: int, uid: int, gid: int, now: os.stat_result) -> int:
    """The permissions to give a file. Set-id bits are for the owner they were meant for: a file
    that could not be given to that one must not run with the rights of another."""
    permissions = stat.S_IMODE(mode)
    if not stat.S_ISREG(now.st_mode):
        return permissions
    if now.st_uid != uid:
        permissions &= ~stat.S_ISUID
    if now.st_gid != gid:
        permissions &= ~stat.S_ISGID
    return permissions


def set_user_xattrs(fd: int | str, wanted: dict[bytes, bytes]) -> bool:
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
