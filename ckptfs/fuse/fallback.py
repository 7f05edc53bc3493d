"""What a mount without libfuse is asked for seldom: the answers, in the kernel's form.

The compiled server of such a mount (`connections`) answers nearly everything itself. What it has no
handler for, statfs, extended attributes, and mkdir and rmdir in `.checkpoints`, comes here with the
bytes of the request. What they mean is in `requests`, as for the portable path.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Awaitable, Callable
from typing import Protocol

from ckptfs.fuse.hooks import HistoryHooks
from ckptfs.fuse.nodes import HISTORY, HISTORY_ROOT
from ckptfs.fuse.requests import Requests, errno_of_refusal
from ckptfs.model import NAME_MAX, Inode

#: Opcodes of linux/fuse.h.
_MKDIR, _RMDIR, _STATFS = 9, 11, 17
_SETXATTR, _GETXATTR, _LISTXATTR, _REMOVEXATTR = 21, 22, 23, 24

#: fuse_kstatfs, fuse_getxattr_in and _out, fuse_setxattr_in, fuse_mkdir_in, fuse_entry_out.
_KSTATFS = struct.Struct("=5Q4I24x")
_SIZE = struct.Struct("=I4x")
_SETXATTR_IN = struct.Struct("=II")
_MKDIR_IN = struct.Struct("=II")
_ENTRY = struct.Struct("=4Q2I6Q3I7I")

#: As in linux/xattr.h.
_CREATE, _REPLACE = 1, 2

#: Seconds for which the kernel may believe attributes that never change.
_FOREVER = 86_400 * 365
_STAT_BLOCK = 512
_IO_SIZE = 65_536
_NS = 10**9


class Replies(Protocol):
    def reply(self, unique: int, error: int, body: bytes) -> object: ...


#: Runs something beside the requests.
Start = Callable[[Callable[[], Awaitable[None]]], object]


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _name(body: bytes) -> bytes:
    return body.partition(b"\0")[0]


class Fallback:
    """The rest of the requests of one mount."""

    def __init__(
        self,
        requests: Requests,
        history: HistoryHooks | None,
        start: Start,
    ) -> None:
        self._requests = requests
        self._history = history
        self._start = start
        #: The server, which needs this one first.
        self.replies: Replies

    def other(
        self, opcode: int, unique: int, node: int, uid: int, pid: int, body: bytes
    ) -> bytes | None:
        """The reply to a request; None if it comes later."""
        if opcode == _STATFS:
            return self._statfs()
        if opcode == _GETXATTR:
            return self._getxattr(node, body)
        if opcode == _LISTXATTR:
            return self._listxattr(node, body)
        if opcode == _SETXATTR:
            return self._setxattr(node, body, pid)
        if opcode == _REMOVEXATTR:
            self._requests.removexattr(node, _name(body), pid)
            return b""
        if node == HISTORY_ROOT and opcode == _MKDIR:
            self._later(unique, errno.EINVAL, lambda: self._save(_name(body[_MKDIR_IN.size :])))
            return None
        if node == HISTORY_ROOT and opcode == _RMDIR:
            if uid not in (0, os.geteuid()):
                raise _error(errno.EPERM)
            self._later(unique, errno.EPERM, lambda: self._delete(_name(body), pid))
            return None
        raise _error(errno.ENOSYS)

    # -- at once ----------------------------------------------------------------------------------

    def _statfs(self) -> bytes:
        disk, files, free = self._requests.statfs()
        return _KSTATFS.pack(
            disk.f_blocks,
            disk.f_bfree,
            disk.f_bavail,
            files,
            free,
            disk.f_frsize,
            NAME_MAX,
            disk.f_frsize,
            0,
        )

    def _getxattr(self, node: int, body: bytes) -> bytes:
        value = self._requests.getxattr(node, _name(body[_SIZE.size :]))
        return _sized(value, *_SIZE.unpack_from(body))

    def _listxattr(self, node: int, body: bytes) -> bytes:
        names = self._requests.listxattr(node)
        return _sized(b"".join(name + b"\0" for name in names), *_SIZE.unpack_from(body))

    def _setxattr(self, node: int, body: bytes, pid: int) -> bytes:
        size, flags = _SETXATTR_IN.unpack_from(body)
        name, _, value = body[_SETXATTR_IN.size :].partition(b"\0")
        if flags & (_CREATE | _REPLACE):
            has = name in self._requests.listxattr(node)
            if has and flags & _CREATE:
                raise _error(errno.EEXIST)
            if not has and flags & _REPLACE:
                raise _error(errno.ENODATA)
        self._requests.setxattr(node, name, value[:size], pid)
        return b""

    # -- later ------------------------------------------------------------------------------------

    def _later(self, unique: int, refused: int, answer: Callable[[], Awaitable[bytes]]) -> None:
        """Answer when that is known; ``refused`` is the errno for what the history refuses."""

        async def run() -> None:
            try:
                body = await answer()
            except Exception as error:  # noqa: BLE001 - the edge
                self.replies.reply(unique, errno_of_refusal(error, refused), b"")
            else:
                self.replies.reply(unique, 0, body)

        self._start(run)

    async def _save(self, name: bytes) -> bytes:
        number = await self._hooks().save(os.fsdecode(name))
        # The name becomes a symbolic link; what this call made is the directory behind it.
        return _entry(self._requests.directory.checkpoint(number))

    async def _delete(self, name: bytes, pid: int) -> bytes:
        await self._hooks().delete(self._requests.directory.find(name), pid)
        return b""

    def _hooks(self) -> HistoryHooks:
        if self._history is None:
            raise _error(errno.EPERM)
        return self._history


def _sized(value: bytes, size: int) -> bytes:
    """A value, or its size if that was asked for."""
    if not size:
        return _SIZE.pack(len(value))
    if len(value) > size:
        raise _error(errno.ERANGE)
    return value


def _entry(inode: Inode) -> bytes:
    """The root of a checkpoint under its name, which has to be asked for again."""
    times = (inode.atime_ns, inode.mtime_ns, inode.ctime_ns)
    return _ENTRY.pack(
        inode.ino,
        0,
        0,
        _FOREVER if inode.ino < HISTORY else 0,
        0,
        0,
        inode.ino,
        inode.size,
        -(-inode.allocated // _STAT_BLOCK),
        *(time_ns // _NS & (1 << 64) - 1 for time_ns in times),
        *(time_ns % _NS for time_ns in times),
        inode.mode,
        inode.nlink,
        inode.uid,
        inode.gid,
        inode.rdev,
        _IO_SIZE,
        0,
    )
