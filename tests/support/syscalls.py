"""System calls that Python's `os` does not offer, through ctypes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_SYMLINK_FOLLOW = 0x400
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4
FALLOC_FL_KEEP_SIZE = 0x01
FALLOC_FL_PUNCH_HOLE = 0x02
FALLOC_FL_COLLAPSE_RANGE = 0x08
FALLOC_FL_ZERO_RANGE = 0x10
UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2


def _check(result: int, *paths: os.PathLike[str] | str | bytes) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), *[os.fsdecode(path) for path in paths])
    return result


def renameat2(
    old: os.PathLike[str] | str | bytes, new: os.PathLike[str] | str | bytes, flags: int
) -> None:
    result = _libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags)
    _check(result, old, new)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    _check(_libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def link_following(old: os.PathLike[str] | str, new: os.PathLike[str] | str) -> None:
    """Hard link to what the symbolic link `old` leads to. `os.link` links the link itself."""
    result = _libc.linkat(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), AT_SYMLINK_FOLLOW)
    _check(result, old, new)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Time(NamedTuple):
    """A timespec: `Time(0, UTIME_NOW)` and `Time(0, UTIME_OMIT)` are the special ones."""

    seconds: int
    nanoseconds: int


NOW = Time(0, UTIME_NOW)
OMIT = Time(0, UTIME_OMIT)


def utimensat(path: os.PathLike[str] | str | bytes, atime: Time, mtime: Time) -> None:
    """Set both times of `path` itself, without following a symbolic link."""
    times = (_Timespec * 2)(_Timespec(*atime), _Timespec(*mtime))
    _check(_libc.utimensat(AT_FDCWD, os.fsencode(path), times, AT_SYMLINK_NOFOLLOW), path)


class Dirent(NamedTuple):
    name: bytes
    ino: int
    kind: int
    #: Position after this entry: what seekdir takes.
    after: int


def getdents(fd: int, size: int = 512) -> list[Dirent]:
    """The next entries of an open directory, as many as fit into `size` bytes."""
    buffer = ctypes.create_string_buffer(size)
    length = _check(_libc.getdents64(fd, buffer, ctypes.c_size_t(size)))
    return list(_dirents(buffer.raw[:length]))


def _dirents(raw: bytes) -> Iterator[Dirent]:
    position = 0
    while position < len(raw):
        record = raw[position:]
        length = int.from_bytes(record[16:18], "little")
        yield Dirent(
            name=record[19:length].split(b"\0", 1)[0],
            ino=int.from_bytes(record[0:8], "little"),
            kind=record[18],
            after=int.from_bytes(record[8:16], "little", signed=True),
        )
        position += length
