"""pyfuse3's operations, translated to the file system's.

Translation only: node ids to views and inodes, inodes to pyfuse3's attributes, ``OSError`` to
``FUSEError``. What an operation means is decided below. The handlers are plain functions: nothing
in them waits, so no other request can fall into the middle of one.

Nobody but this process changes the tree, so the kernel may cache names, absent names, attributes
and pages for ever.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

import pyfuse3
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext, SetattrFields

from ckptfs.fs import Filesystem
from ckptfs.model import NAME_MAX, Attributes, Ino, Inode
from ckptfs.store.blocks import Buffer

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

#: For how long the kernel may believe what it was told, in seconds.
FOREVER = 86_400.0 * 365

#: How much may wait for a commit; it is held in memory until then.
DIRTY_BYTES_MAX = 64 << 20

#: What stat calls a block, and the size that programs are told to write in.
_STAT_BLOCK = 512
_IO_SIZE = 4096

#: Free inodes that statfs reports: numbers are never used up.
_FREE_INODES = 1 << 40


def handler(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """A pyfuse3 handler from a plain function; the edge where errors become answers."""

    @functools.wraps(function)
    async def handle(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except OSError as error:
            if error.errno == errno.EIO:
                log.error("%s: %s", function.__name__, error)
            raise FUSEError(error.errno or errno.EIO) from None
        except FUSEError:
            raise
        except Exception:
            log.exception("%s failed", function.__name__)
            raise FUSEError(errno.EIO) from None

    return handle


def attributes(inode: Inode) -> EntryAttributes:
    entry = EntryAttributes()
    entry.st_ino = inode.ino
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
    entry.entry_timeout = FOREVER
    entry.attr_timeout = FOREVER
    return entry


def _absent() -> EntryAttributes:
    """The answer to a lookup that tells the kernel to remember that the name is not there."""
    entry = EntryAttributes()
    entry.st_ino = 0
    entry.entry_timeout = FOREVER
    return entry


class Listing:
    """An open directory: the names given out so far, so that a position stays valid while entries
    come and go. Position 1 is behind ".", 2 behind "..", and n + 2 behind the n-th name."""

    __slots__ = ("ino", "names")

    def __init__(self, ino: Ino) -> None:
        self.ino = ino
        self.names: list[bytes] = []


class Operations(pyfuse3.Operations):
    """One mounted workspace. A file handle is the inode and whether root opened it.

    With the writeback cache the kernel gathers writes and keeps size and times of open files; it
    hands over pages and times at close, at fsync and when memory is short.
    """

    enable_writeback_cache = True

    def __init__(self, fs: Filesystem, *, xattrs: bool) -> None:
        super().__init__()
        self._fs = fs
        self._xattrs = xattrs
        self._listings: dict[int, Listing] = {}
        self._next_listing = 1
        self._absent = _absent()

    # -- names ------------------------------------------------------------------------------------

    @handler
    def lookup(self, parent: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        inode = self._fs.seek(self._fs.head, Ino(parent), name)
        return self._absent if inode is None else attributes(inode)

    @handler
    def getattr(self, node: int, ctx: RequestContext) -> EntryAttributes:
        return attributes(self._fs.getattr(self._fs.head, Ino(node)))

    async def forget(self, forgotten: Sequence[tuple[int, int]]) -> None:
        unlinked = self._fs.unlinked
        if unlinked:
            for node, _ in forgotten:
                if node in unlinked:
                    self._fs.forget(Ino(node))

    @handler
    def readlink(self, node: int, ctx: RequestContext) -> bytes:
        return self._fs.readlink(self._fs.head, Ino(node))

    @handler
    def mknod(
        self, parent: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        fs = self._fs
        return attributes(fs.mknod(fs.head, Ino(parent), name, mode, ctx.uid, ctx.gid, rdev))

    @handler
    def mkdir(self, parent: int, name: bytes, mode: int, ctx: RequestContext) -> EntryAttributes:
        fs = self._fs
        return attributes(fs.mkdir(fs.head, Ino(parent), name, mode, ctx.uid, ctx.gid))

    @handler
    def symlink(
        self, parent: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        fs = self._fs
        return attributes(fs.symlink(fs.head, Ino(parent), name, target, ctx.uid, ctx.gid))

    @handler
    def link(self, node: int, parent: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        return attributes(self._fs.link(self._fs.head, Ino(node), Ino(parent), name))

    @handler
    def unlink(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        self._fs.unlink(self._fs.head, Ino(parent), name)

    @handler
    def rmdir(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        self._fs.rmdir(self._fs.head, Ino(parent), name)

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
        self._fs.rename(self._fs.head, Ino(parent), name, Ino(new_parent), new_name, flags)

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
        fs = self._fs
        wanted = Attributes(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            ctime_ns=attr.st_ctime_ns if fields.update_ctime else None,
        )
        return attributes(fs.setattr(fs.head, Ino(node), wanted, keep_set_id=not ctx.uid))

    @handler
    def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        disk = self._fs.store.statvfs()
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = disk.f_frsize
        answer.f_blocks = disk.f_blocks
        answer.f_bfree = disk.f_bfree
        answer.f_bavail = disk.f_bavail
        answer.f_files = self._fs.head.inodes + _FREE_INODES
        answer.f_ffree = answer.f_favail = _FREE_INODES
        answer.f_namemax = NAME_MAX
        return answer

    # -- files ------------------------------------------------------------------------------------

    @handler
    def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        fs = self._fs
        inode = fs.mknod(fs.head, Ino(parent), name, mode, ctx.uid, ctx.gid)
        return self._opened(inode.ino, ctx), attributes(inode)

    @handler
    def open(self, node: int, flags: int, ctx: RequestContext) -> FileInfo:
        fs = self._fs
        ino = Ino(node)
        if flags & os.O_TRUNC:
            fs.setattr(fs.head, ino, Attributes(size=0), keep_set_id=not ctx.uid)
        return self._opened(ino, ctx)

    def _opened(self, ino: Ino, ctx: RequestContext) -> FileInfo:
        self._fs.hold(ino)
        # What a write may do to set-id bits depends on who opened the file.
        return FileInfo(fh=ino << 1 | (not ctx.uid), keep_cache=True)

    @handler
    def read(self, fh: int, offset: int, size: int) -> Buffer:  # type: ignore[override]
        # pyfuse3 takes any buffer, whatever its annotation says.
        return self._fs.read(self._fs.head, Ino(fh >> 1), offset, size)

    @handler
    def write(self, fh: int, offset: int, data: bytes) -> int:
        fs = self._fs
        ino = Ino(fh >> 1)
        if fs.store.dirty_bytes > DIRTY_BYTES_MAX:
            fs.commit()
        return fs.write(fs.head, ino, offset, data, keep_set_id=bool(fh & 1))

    @handler
    def flush(self, fh: int) -> None:
        # Nothing waits for close(2); ENOSYS tells the kernel not to ask again.
        raise FUSEError(errno.ENOSYS)

    @handler
    def release(self, fh: int) -> None:
        self._fs.drop(Ino(fh >> 1))

    @handler
    def fsync(self, fh: int, datasync: bool) -> None:
        self._fs.commit()

    @handler
    def fsyncdir(self, fh: int, datasync: bool) -> None:
        self._fs.commit()

    # -- directories ------------------------------------------------------------------------------

    @handler
    def opendir(self, node: int, ctx: RequestContext) -> int:
        fh = self._next_listing
        self._next_listing += 1
        self._listings[fh] = Listing(Ino(node))
        self._fs.hold(Ino(node))
        return fh

    @handler
    def releasedir(self, fh: int) -> None:
        self._fs.drop(self._listings.pop(fh).ino)

    @handler
    def readdir(self, fh: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._listings[fh]
        if start < 2 and not self._reply_dots(listing, start, token):
            return
        names = listing.names
        position = max(start - 2, 0)
        del names[position:]
        after = names[-1] if names else b""
        reply = pyfuse3.readdir_reply
        for name, inode in self._fs.entries(self._fs.head, listing.ino, after):
            if not reply(token, name, attributes(inode), position + 3):
                return
            names.append(name)
            position += 1

    def _reply_dots(self, listing: Listing, start: int, token: pyfuse3.ReaddirToken) -> bool:
        fs = self._fs
        directory = fs.getattr(fs.head, listing.ino)
        if start == 0 and not pyfuse3.readdir_reply(token, b".", attributes(directory), 1):
            return False
        parent = directory
        if directory.parent:
            parent = fs.getattr(fs.head, directory.parent)
        return pyfuse3.readdir_reply(token, b"..", attributes(parent), 2)

    # -- extended attributes ----------------------------------------------------------------------

    def _require_xattrs(self) -> None:
        if not self._xattrs:
            # The kernel then stops asking, for this mount.
            raise FUSEError(errno.ENOSYS)

    @handler
    def getxattr(self, node: int, name: bytes, ctx: RequestContext) -> bytes:
        self._require_xattrs()
        return self._fs.getxattr(self._fs.head, Ino(node), name)

    @handler
    def listxattr(self, node: int, ctx: RequestContext) -> list[bytes]:
        self._require_xattrs()
        return self._fs.listxattr(self._fs.head, Ino(node))

    @handler
    def setxattr(self, node: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        self._require_xattrs()
        self._fs.setxattr(self._fs.head, Ino(node), name, value)

    @handler
    def removexattr(self, node: int, name: bytes, ctx: RequestContext) -> None:
        self._require_xattrs()
        self._fs.removexattr(self._fs.head, Ino(node), name)
