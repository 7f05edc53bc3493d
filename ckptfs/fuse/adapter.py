"""pyfuse3's operations, translated.

Translation only: pyfuse3's values to plain ones, inodes to its attributes, ``OSError`` to
``FUSEError``. What a request means is in `requests`.

Only this process changes the tree, so the kernel caches names, absent names, attributes and pages
without limit.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import pyfuse3
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext, SetattrFields

from ckptfs.fs import Filesystem
from ckptfs.fs.inodes import without_set_id
from ckptfs.fuse.control_files import Connect, is_connection, is_control, refuse
from ckptfs.fuse.forks_dir import Points, no_forks
from ckptfs.fuse.hooks import Guard, HistoryHooks, MountOptions, unguarded
from ckptfs.fuse.nodes import HISTORY, HISTORY_ROOT, LIVE_END, base_of
from ckptfs.fuse.requests import Requests, errno_of, errno_of_refusal
from ckptfs.model import NAME_MAX, Attributes, Ino, Inode
from ckptfs.store.blocks import Buffer

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds. Only this process changes the tree; what changes without a request is invalidated.
FOREVER = 86_400.0 * 365
#: The same for the name of a checkpoint, which may expire.
CHECKPOINT_VALID_S = 1.0
#: And for the attributes of `.checkpoints`.
CHECKPOINTS_VALID_S = 0.02

#: What stat calls a block; and st_blksize, the size in which stdio and Python write.
_STAT_BLOCK = 512
_IO_SIZE = 65_536

#: How old the kernel's "now" may be, by its slowest timer and a busy moment.
_TICK_NS = 20_000_000


def is_awaited(record: logging.LogRecord) -> bool:
    """A filter for pyfuse3's log. An answer that the kernel no longer waits for (its caller was
    interrupted, or the mount is ending) comes back with ENOENT, and that is no trouble."""
    return os.strerror(errno.ENOENT) not in record.getMessage()


def handler(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """A pyfuse3 handler from a plain function; the edge where errors become answers."""

    @functools.wraps(function)
    async def handle(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except FUSEError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge
            raise FUSEError(errno_of(error, function.__name__)) from None

    return handle


@contextmanager
def refusals(number: int) -> Iterator[None]:
    """Turn what the history refuses into an answer, and why into the log."""
    try:
        yield
    except FUSEError:
        raise
    except Exception as error:  # noqa: BLE001 - the edge
        raise FUSEError(errno_of_refusal(error, number)) from None


def attributes(inode: Inode, base: int = 0) -> EntryAttributes:
    """The answer for an inode; ``base`` makes its number a node id of its view."""
    node = base | inode.ino
    entry = EntryAttributes()
    entry.st_ino = node
    entry.st_mode = inode.mode
    entry.st_nlink = inode.nlink
    entry.st_uid = inode.uid
    entry.st_gid = inode.gid
    entry.st_rdev = inode.rdev
    entry.st_size = inode.size
    entry.st_blksize = _IO_SIZE
    entry.st_blocks = -(-inode.allocated // _STAT_BLOCK)
    entry.st_atime_ns = inode.atime_ns
    entry.st_mtime_ns = inode.mtime_ns
    entry.st_ctime_ns = inode.ctime_ns
    entry.attr_timeout = _attr_timeout(node, inode)
    entry.entry_timeout = _entry_timeout(node, base)
    return entry


def _attr_timeout(node: int, inode: Inode) -> float:
    """As `validity_of` in `reply.c`, which says why."""
    if node == HISTORY_ROOT:
        return CHECKPOINTS_VALID_S
    may_lose_bits = inode.is_file and without_set_id(inode.mode) != inode.mode
    return FOREVER if node < HISTORY and not may_lose_bits else 0


def _entry_timeout(node: int, base: int) -> float:
    """As `entry_validity` in `reply.c`, which says why."""
    if base or node < LIVE_END or node == HISTORY_ROOT:
        return FOREVER
    return CHECKPOINT_VALID_S if base_of(node) else 0


def absent(timeout: float) -> EntryAttributes:
    """The answer to a lookup by which the kernel caches that a name is absent."""
    entry = EntryAttributes()
    entry.st_ino = 0
    entry.entry_timeout = timeout
    return entry


#: Of a handle of a file that was opened to append. Nodes have 62 bits.
_APPENDS = 1 << 63


def _handle(node: int, uid: int, flags: int = 0) -> int:
    """A file handle. What a write may do to set-id bits depends on who opened the file, and where
    one that appends goes on how."""
    appends = _APPENDS if flags & os.O_APPEND and node < LIVE_END else 0
    return appends | node << 1 | (not uid)


def _node_of(fh: int) -> int:
    return (fh & ~_APPENDS) >> 1


def _is_now(wanted: Attributes) -> bool:
    """Whether both times were asked for as "now". pyfuse3 does not say; it passes on what the
    kernel filled in, its last timer tick, and by that a later change would seem the earlier one.
    Times that a program sets to be kept are hardly ever equal, and of the last tick."""
    if wanted.mtime_ns is None or wanted.atime_ns != wanted.mtime_ns:
        return False
    return 0 <= time.time_ns() - wanted.mtime_ns <= _TICK_NS


class Operations(pyfuse3.Operations):
    """One mounted workspace. A file handle is the node, and how it was opened (`_handle`).

    Without the writeback cache: size, times and bytes of a file are here as soon as write(2) is
    over, but for what is written through a shared mapping (docs/design/fuse.md weighs it).
    """

    enable_writeback_cache = False

    def __init__(
        self,
        fs: Filesystem,
        options: MountOptions,
        history: HistoryHooks | None = None,
        guard: Guard | None = None,
        connect: Connect = refuse,
        forks: Points = no_forks,
    ) -> None:
        super().__init__()
        self._fs = fs
        self._history = history
        self.requests = Requests(fs, options, guard or unguarded(), connect, forks)
        #: Who opened a file as it is for writing, until it is written, and who opened a control
        #: file: pyfuse3 does not say whose a write is.
        self._writers: dict[int, int] = {}
        #: The users who have `.control` open, by the node.
        self._users: dict[int, int] = {}

    def _entry(self, inode: Inode, base: int) -> EntryAttributes:
        """What is said of an inode together with its name: that includes its generation."""
        entry = attributes(inode, base)
        generations = self._fs.generations
        if generations and not base:
            entry.generation = generations.get(inode.ino, 0)
        return entry

    # -- names ------------------------------------------------------------------------------------

    @handler
    def lookup(self, parent: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        inode = self.requests.lookup(parent, name)
        if inode is None:
            return absent(FOREVER if parent < HISTORY else 0)
        return self._entry(inode, base_of(parent))

    @handler
    def getattr(self, node: int, ctx: RequestContext) -> EntryAttributes:
        return attributes(self.requests.getattr(node), base_of(node))

    @handler
    def forget(self, forgotten: Sequence[tuple[int, int]]) -> None:
        unlinked = self._fs.unlinked
        if unlinked:
            for node, _ in forgotten:
                if node in unlinked:
                    self.requests.forget(node)

    @handler
    def readlink(self, node: int, ctx: RequestContext) -> bytes:
        return self.requests.readlink(node)

    @handler
    def mknod(
        self, parent: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        inode = self.requests.mknod(parent, name, mode, rdev, ctx.pid, ctx.uid, ctx.gid)
        return attributes(inode, base_of(parent))

    async def mkdir(
        self, parent: int, name: bytes, mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        if parent == HISTORY_ROOT:
            return await self._save(name)
        return await self._mkdir(parent, name, mode, ctx)

    @handler
    def _mkdir(self, parent: int, name: bytes, mode: int, ctx: RequestContext) -> EntryAttributes:
        inode = self.requests.mkdir(parent, name, mode, ctx.pid, ctx.uid, ctx.gid)
        return attributes(inode, base_of(parent))

    @handler
    def symlink(
        self, parent: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        inode = self.requests.symlink(parent, name, target, ctx.pid, ctx.uid, ctx.gid)
        return attributes(inode, base_of(parent))

    @handler
    def link(self, node: int, parent: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        return self._entry(self.requests.link(node, parent, name, ctx.pid), base_of(parent))

    @handler
    def unlink(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        self.requests.unlink(parent, name, ctx.pid)

    async def rmdir(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        if parent == HISTORY_ROOT:
            if ctx.uid not in (0, os.geteuid()):
                raise pyfuse3.FUSEError(errno.EPERM)
            await self._delete(name, ctx.pid)
        else:
            await self._rmdir(parent, name, ctx)

    @handler
    def _rmdir(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        self.requests.rmdir(parent, name, ctx.pid)

    @handler
    def rename(
        self,
        parent: int,
        name: bytes,
        new_parent: int,
        new_name: bytes,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        self.requests.rename(parent, name, new_parent, new_name, flags, ctx.pid)

    # -- history by mkdir and rmdir ---------------------------------------------------------------

    async def _save(self, name: bytes) -> EntryAttributes:
        with refusals(errno.EINVAL):
            number = await self._hooks().save(os.fsdecode(name))
            # The name becomes a symbolic link; what this call made is the directory behind it.
            entry = attributes(self.requests.directory.checkpoint(number))
            entry.entry_timeout = 0
            return entry

    async def _delete(self, name: bytes, pid: int) -> None:
        with refusals(errno.EPERM):
            await self._hooks().delete(self.requests.directory.find(name), pid)

    def _hooks(self) -> HistoryHooks:
        if self._history is None:
            raise FUSEError(errno.EPERM)
        return self._history

    # -- attributes -------------------------------------------------------------------------------

    @handler
    def setattr(
        self,
        node: int,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: int | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        wanted = Attributes(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            ctime_ns=attr.st_ctime_ns if fields.update_ctime else None,
        )
        if _is_now(wanted):
            now_ns = self._fs.clock()
            wanted = wanted._replace(atime_ns=now_ns, mtime_ns=now_ns, ctime_ns=now_ns)
        inode = self.requests.setattr(node, wanted, ctx.pid, keep_set_id=not ctx.uid)
        return attributes(inode, base_of(node))

    @handler
    def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        disk, files, free = self.requests.statfs()
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = disk.f_frsize
        answer.f_blocks = disk.f_blocks
        answer.f_bfree = disk.f_bfree
        answer.f_bavail = disk.f_bavail
        answer.f_files = files
        answer.f_ffree = answer.f_favail = free
        answer.f_namemax = NAME_MAX
        return answer

    # -- files ------------------------------------------------------------------------------------

    @handler
    def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        inode = self.requests.mknod(parent, name, mode, 0, ctx.pid, ctx.uid, ctx.gid)
        entry = attributes(inode, base_of(parent))
        return self._opened(entry.st_ino, flags, ctx), entry

    @handler
    def open(self, node: int, flags: int, ctx: RequestContext) -> FileInfo:
        if is_control(node):
            return self._opened_control(node, ctx)
        if node >= LIVE_END and flags & (os.O_ACCMODE | os.O_TRUNC):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if flags & os.O_TRUNC:
            self.requests.setattr(node, Attributes(size=0), ctx.pid, keep_set_id=not ctx.uid)
        elif flags & os.O_ACCMODE:
            self._writers[node] = ctx.pid
        # A file that a restore has just removed fails here, where the kernel can still look its
        # name up again; a read could only fail.
        self.requests.getattr(node)
        return self._opened(node, flags, ctx)

    def _opened(self, node: int, flags: int, ctx: RequestContext) -> FileInfo:
        if node < LIVE_END:
            self._fs.hold(Ino(node))
        return FileInfo(fh=_handle(node, ctx.uid, flags), keep_cache=True)

    def _opened_control(self, node: int, ctx: RequestContext) -> FileInfo:
        """Each who opens one has a node of its own, by which it is known whose a write is. Without
        the kernel's pages, which may be mapped."""
        node = self.requests.controls.opened(node)
        self._writers[node] = ctx.pid
        if is_connection(node):
            self._users[node] = ctx.uid
        return FileInfo(fh=_handle(node, ctx.uid), direct_io=True)

    @handler
    def read(self, fh: int, offset: int, size: int) -> Buffer:  # type: ignore[override]
        # pyfuse3 takes any buffer, whatever its annotation says.
        if (node := _node_of(fh)) in self._users:
            return self.requests.connections.read(node, offset, size, self._users[node])
        return self.requests.read(node, offset, size)

    @handler
    def write(self, fh: int, offset: int, data: bytes) -> int:
        node = _node_of(fh)
        if (uid := self._users.get(node)) is not None:
            pid = self._writers[node]
            return self.requests.connections.write(node, offset, data, uid, pid)
        pid = self._writers[node] if is_control(node) else self._writers.pop(node, 0)
        if fh & _APPENDS and node in self._fs.resized:
            offset = self.requests.end_of(node, offset)
        return self.requests.write(node, offset, data, pid, keep_set_id=bool(fh & 1))

    @handler
    def flush(self, fh: int) -> None:
        # Nothing waits for close(2); after ENOSYS the kernel does not ask again.
        raise FUSEError(errno.ENOSYS)

    @handler
    def release(self, fh: int) -> None:
        node = _node_of(fh)
        if node < LIVE_END:
            self._fs.drop(Ino(node))
            if node not in self._fs.held:
                self._writers.pop(node, None)
        elif is_control(node):
            del self._writers[node]
            if self._users.pop(node, None) is not None:
                self.requests.connections.hang_up(node)

    @handler
    def fsync(self, fh: int, datasync: bool) -> None:
        self._fs.sync()

    @handler
    def fsyncdir(self, fh: int, datasync: bool) -> None:
        self._fs.sync()

    # -- directories ------------------------------------------------------------------------------

    @handler
    def opendir(self, node: int, ctx: RequestContext) -> int:
        return node

    @handler
    def releasedir(self, fh: int) -> None:
        """A directory that is being read is known to the kernel; that is enough to keep it."""

    @handler
    def readdir(self, fh: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        base = base_of(fh)
        for name, inode, cookie in self.requests.entries(fh, start):
            assert isinstance(inode, Inode)  # only the server knows what the kernel knows
            if not pyfuse3.readdir_reply(token, name, self._entry(inode, base), cookie):
                return

    # -- extended attributes ----------------------------------------------------------------------

    @handler
    def getxattr(self, node: int, name: bytes, ctx: RequestContext) -> bytes:
        return self.requests.getxattr(node, name)

    @handler
    def listxattr(self, node: int, ctx: RequestContext) -> list[bytes]:
        return self.requests.listxattr(node)

    @handler
    def setxattr(self, node: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        self.requests.setxattr(node, name, value, ctx.pid)

    @handler
    def removexattr(self, node: int, name: bytes, ctx: RequestContext) -> None:
        self.requests.removexattr(node, name, ctx.pid)
