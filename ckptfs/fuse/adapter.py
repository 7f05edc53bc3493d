"""pyfuse3's operations, translated to the file system's.

Translation only: node ids to views and inodes, inodes to pyfuse3's attributes, ``OSError`` to
``FUSEError``. What an operation means is decided below. The handlers are plain functions: nothing
in them waits, so no other request can fall into the middle of one.

Nobody but this process changes the tree, so the kernel may cache names, absent names, attributes
and pages for ever.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence

import pyfuse3
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext, SetattrFields

from ckptfs.fs import Filesystem
from ckptfs.fuse import history_dir
from ckptfs.fuse.answers import handler, refusals
from ckptfs.fuse.entries import FOREVER, absent, attributes
from ckptfs.fuse.history_dir import HistoryDirectory
from ckptfs.fuse.hooks import Guard, HistoryHooks, unguarded
from ckptfs.fuse.nodes import HISTORY, HISTORY_ROOT, LIVE_END, Nodes, Place
from ckptfs.fuse.options import MountOptions
from ckptfs.history.references import safe_tag
from ckptfs.model import NAME_MAX, ROOT_INO, Attributes, Ino, Inode, KernelClock
from ckptfs.store.blocks import Buffer

#: How much may wait for a commit; it is held in memory until then.
DIRTY_BYTES_MAX = 64 << 20

#: The kernel tells the time of a write itself, after the data, unless it told the same time (its
#: clock ticks in milliseconds) before. Times as fresh as this are its own.
_KERNEL_TIMES_NS = 1_000_000_000

#: Free inodes that statfs reports: numbers are never used up.
_FREE_INODES = 1 << 40


def _tag_name(tag: str) -> bytes:
    return os.fsencode(safe_tag(tag))


class Listing:
    """An open directory: the names given out so far, so that a position stays valid while entries
    come and go. Position 1 is behind ".", 2 behind "..", and n + 2 behind the n-th name."""

    __slots__ = ("names", "node")

    def __init__(self, node: int) -> None:
        self.node = node
        self.names: list[bytes] = []


class Operations(pyfuse3.Operations):
    """One mounted workspace. A file handle is the node and whether root opened it.

    With the writeback cache the kernel gathers writes and keeps size and times of open files; it
    hands over pages and times at close, at fsync and when memory is short.
    """

    enable_writeback_cache = True

    def __init__(
        self,
        fs: Filesystem,
        options: MountOptions,
        clock: KernelClock,
        history: HistoryHooks | None = None,
        guard: Guard = unguarded,
    ) -> None:
        super().__init__()
        self._fs = fs
        self._clock = clock
        self._guard = guard
        #: Who opened a file as it is for writing, until it is written: a write does not say whose
        #: it is. The first one counts; a checkpoint between two writes would hold half a file.
        self._writers: dict[int, int] = {}
        self._xattrs = options.xattrs
        self._show_history = options.show_checkpoints
        self._history = history
        self.nodes = Nodes(fs)
        self._directory = HistoryDirectory(fs, self.nodes, _tag_name)
        self._listings: dict[int, Listing] = {}
        self._next_listing = 1
        self._absent = absent(FOREVER)

    def _at(self, node: int) -> Place:
        if node >= HISTORY:
            # Nothing in `.checkpoints` itself can be changed but by mkdir and rmdir.
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return self.nodes.place(node)

    def _entry_place(self, parent: int, name: bytes) -> Place:
        """Where a name is to be made or removed."""
        if name == history_dir.NAME and parent == ROOT_INO:
            raise OSError(errno.EPERM, f"{name.decode()} is the history")
        return self._at(parent)

    def _entry(self, inode: Inode, base: int) -> EntryAttributes:
        """What is said of an inode together with its name: that includes its generation."""
        entry = attributes(inode, base)
        generations = self._fs.generations
        if generations and not base:
            entry.generation = generations.get(inode.ino, 0)
        return entry

    def _loses_entry(self, parent: int, name: bytes) -> bool:
        """Whether what stands under a name is in no checkpoint."""
        view, ino, _ = self._at(parent)
        victim = self._fs.seek(view, ino, name)
        return victim is not None and self._fs.is_own(view, victim.ino)

    def _loses_bytes(self, node: int, size: int) -> bool:
        """Whether cutting the file to ``size`` takes away what is in no checkpoint."""
        view, ino, _ = self._at(node)
        return size < self._fs.getattr(view, ino).size and self._fs.is_own(view, ino)

    # -- names ------------------------------------------------------------------------------------

    @handler
    def lookup(self, parent: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        if parent < LIVE_END:
            if name == history_dir.NAME and parent == ROOT_INO:
                return self._directory.itself()
        elif parent == HISTORY_ROOT:
            return self._directory.lookup(name)
        view, ino, base = self.nodes.place(parent)
        inode = self._fs.seek(view, ino, name)
        return self._absent if inode is None else self._entry(inode, base)

    @handler
    def getattr(self, node: int, ctx: RequestContext) -> EntryAttributes:
        if node >= HISTORY:
            return self._directory.getattr(node)
        view, ino, base = self.nodes.place(node)
        return attributes(self._fs.getattr(view, ino), base)

    @handler
    def forget(self, forgotten: Sequence[tuple[int, int]]) -> None:
        unlinked = self._fs.unlinked
        if unlinked:
            for node, _ in forgotten:
                if node in unlinked:
                    self._fs.forget(Ino(node))

    @handler
    def readlink(self, node: int, ctx: RequestContext) -> bytes:
        if node >= HISTORY:
            return self._directory.readlink(node)
        view, ino, _ = self.nodes.place(node)
        return self._fs.readlink(view, ino)

    @handler
    def mknod(
        self, parent: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        self._guard(ctx.pid, None)
        view, ino, base = self._entry_place(parent, name)
        return attributes(self._fs.mknod(view, ino, name, mode, ctx.uid, ctx.gid, rdev), base)

    async def mkdir(
        self, parent: int, name: bytes, mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        if parent == HISTORY_ROOT:
            return await self._save(name)
        return await self._mkdir(parent, name, mode, ctx)

    @handler
    def _mkdir(self, parent: int, name: bytes, mode: int, ctx: RequestContext) -> EntryAttributes:
        self._guard(ctx.pid, None)
        view, ino, base = self._entry_place(parent, name)
        return attributes(self._fs.mkdir(view, ino, name, mode, ctx.uid, ctx.gid), base)

    @handler
    def symlink(
        self, parent: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        self._guard(ctx.pid, None)
        view, ino, base = self._entry_place(parent, name)
        return attributes(self._fs.symlink(view, ino, name, target, ctx.uid, ctx.gid), base)

    @handler
    def link(self, node: int, parent: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        self._guard(ctx.pid, None)
        view, directory, base = self._entry_place(parent, name)
        source, ino, _ = self._at(node)
        if source is not view:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return self._entry(self._fs.link(view, ino, directory, name), base)

    @handler
    def unlink(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        self._guard(ctx.pid, lambda: self._loses_entry(parent, name))
        view, ino, _ = self._entry_place(parent, name)
        self._fs.unlink(view, ino, name)

    async def rmdir(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        if parent == HISTORY_ROOT:
            await self._delete(name)
        else:
            await self._rmdir(parent, name, ctx)

    @handler
    def _rmdir(self, parent: int, name: bytes, ctx: RequestContext) -> None:
        self._guard(ctx.pid, lambda: self._loses_entry(parent, name))
        view, ino, _ = self._entry_place(parent, name)
        self._fs.rmdir(view, ino, name)

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
        self._guard(ctx.pid, lambda: self._loses_entry(new_parent, new_name))
        view, ino, _ = self._entry_place(parent, name)
        new_view, new_ino, _ = self._entry_place(new_parent, new_name)
        if new_view is not view:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        self._fs.rename(view, ino, name, new_ino, new_name, flags)

    # -- history by mkdir and rmdir ---------------------------------------------------------------

    async def _save(self, name: bytes) -> EntryAttributes:
        with refusals(errno.EINVAL):
            number = await self._hooks().save(os.fsdecode(name))
            entry = self._directory.checkpoint(number)
        # The name becomes a symbolic link; what this call made is the directory behind it.
        entry.entry_timeout = 0
        return entry

    async def _delete(self, name: bytes) -> None:
        with refusals(errno.EPERM):
            await self._hooks().delete(self._directory.find(name))

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
        if fields.update_size:
            self._guard(ctx.pid, lambda: self._loses_bytes(node, attr.st_size))
        elif fields.update_mode or fields.update_uid or fields.update_gid:
            self._guard(ctx.pid, None)
        view, ino, base = self._at(node)
        wanted = Attributes(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            ctime_ns=attr.st_ctime_ns if fields.update_ctime else None,
        )
        if wanted.ctime_ns is not None:
            self._clock.saw(wanted.ctime_ns)
        elif self._is_now(wanted.mtime_ns):
            wanted = wanted._replace(mtime_ns=self._clock())
        return attributes(self._fs.setattr(view, ino, wanted, keep_set_id=not ctx.uid), base)

    def _is_now(self, time_ns: int | None) -> bool:
        """Whether a time that was asked for must be "now". For files the kernel asks for that with
        its own stamp and tells the time of change, too; for anything else pyfuse3 fills in a finer
        now, which would seem to lie behind the next change."""
        return time_ns is not None and self._clock() < time_ns <= time.time_ns()

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
        self._guard(ctx.pid, None)
        view, ino, base = self._entry_place(parent, name)
        inode = self._fs.mknod(view, ino, name, mode, ctx.uid, ctx.gid)
        return self._opened(base | inode.ino, ctx), attributes(inode, base)

    @handler
    def open(self, node: int, flags: int, ctx: RequestContext) -> FileInfo:
        if node >= LIVE_END and flags & (os.O_ACCMODE | os.O_TRUNC):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if flags & os.O_TRUNC:
            self._guard(ctx.pid, lambda: self._loses_bytes(node, 0))
            view, ino, _ = self._at(node)
            self._fs.setattr(view, ino, Attributes(size=0), keep_set_id=not ctx.uid)
        elif flags & os.O_ACCMODE:
            self._writers[node] = ctx.pid
        return self._opened(node, ctx)

    def _opened(self, node: int, ctx: RequestContext) -> FileInfo:
        if node < LIVE_END:
            self._fs.hold(Ino(node))
        # What a write may do to set-id bits depends on who opened the file.
        return FileInfo(fh=node << 1 | (not ctx.uid), keep_cache=True)

    @handler
    def read(self, fh: int, offset: int, size: int) -> Buffer:  # type: ignore[override]
        # pyfuse3 takes any buffer, whatever its annotation says.
        view, ino, _ = self.nodes.place(fh >> 1)
        return self._fs.read(view, ino, offset, size)

    @handler
    def write(self, fh: int, offset: int, data: bytes) -> int:
        fs = self._fs
        if fs.store.dirty_bytes > DIRTY_BYTES_MAX:
            fs.commit()
        node = fh >> 1
        self._guard(self._writers.pop(node, 0), None)
        view, ino, _ = self.nodes.place(node)
        return fs.write(
            view, ino, offset, data, keep_set_id=bool(fh & 1), slack_ns=_KERNEL_TIMES_NS
        )

    @handler
    def flush(self, fh: int) -> None:
        # Nothing waits for close(2); ENOSYS tells the kernel not to ask again.
        raise FUSEError(errno.ENOSYS)

    @handler
    def release(self, fh: int) -> None:
        node = fh >> 1
        if node < LIVE_END:
            self._fs.drop(Ino(node))
            if node not in self._fs.held:
                self._writers.pop(node, None)

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
        self._listings[fh] = Listing(node)
        if node < LIVE_END:
            self._fs.hold(Ino(node))
        return fh

    @handler
    def releasedir(self, fh: int) -> None:
        node = self._listings.pop(fh).node
        if node < LIVE_END:
            self._fs.drop(Ino(node))

    @handler
    def readdir(self, fh: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._listings[fh]
        if start < 2 and not self._reply_dots(listing.node, start, token):
            return
        names = listing.names
        position = max(start - 2, 0)
        del names[position:]
        reply = pyfuse3.readdir_reply
        for name, entry in self._entries(listing, position):
            if not reply(token, name, entry, position + 3):
                return
            names.append(name)
            position += 1

    def _entries(self, listing: Listing, position: int) -> Iterator[tuple[bytes, EntryAttributes]]:
        node, names = listing.node, listing.names
        if node == HISTORY_ROOT:
            yield from self._directory.entries(position)
            return
        view, ino, base = self.nodes.place(node)
        after = names[-1] if names else b""
        if node == ROOT_INO and self._show_history and not names:
            yield history_dir.NAME, self._directory.itself()
        elif after == history_dir.NAME and node == ROOT_INO:
            after = b""
        for name, inode in self._fs.entries(view, ino, after):
            yield name, self._entry(inode, base)

    def _reply_dots(self, node: int, start: int, token: pyfuse3.ReaddirToken) -> bool:
        here, above = self._itself_and_parent(node)
        if start == 0 and not pyfuse3.readdir_reply(token, b".", here, 1):
            return False
        return pyfuse3.readdir_reply(token, b"..", above, 2)

    def _itself_and_parent(self, node: int) -> tuple[EntryAttributes, EntryAttributes]:
        fs = self._fs
        if node == HISTORY_ROOT:
            return self._directory.itself(), attributes(fs.getattr(fs.head, ROOT_INO))
        view, ino, base = self.nodes.place(node)
        inode = fs.getattr(view, ino)
        here = attributes(inode, base)
        if inode.parent:
            return here, attributes(fs.getattr(view, inode.parent), base)
        return here, self._directory.itself() if base else here

    # -- extended attributes ----------------------------------------------------------------------

    def _require_xattrs(self) -> None:
        if not self._xattrs:
            # The kernel then stops asking, for this mount.
            raise FUSEError(errno.ENOSYS)

    @handler
    def getxattr(self, node: int, name: bytes, ctx: RequestContext) -> bytes:
        self._require_xattrs()
        if node >= HISTORY:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        view, ino, _ = self.nodes.place(node)
        return self._fs.getxattr(view, ino, name)

    @handler
    def listxattr(self, node: int, ctx: RequestContext) -> list[bytes]:
        self._require_xattrs()
        if node >= HISTORY:
            return []
        view, ino, _ = self.nodes.place(node)
        return self._fs.listxattr(view, ino)

    @handler
    def setxattr(self, node: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        self._require_xattrs()
        self._guard(ctx.pid, None)
        view, ino, _ = self._at(node)
        self._fs.setxattr(view, ino, name, value)

    @handler
    def removexattr(self, node: int, name: bytes, ctx: RequestContext) -> None:
        self._require_xattrs()
        self._guard(ctx.pid, None)
        view, ino, _ = self._at(node)
        self._fs.removexattr(view, ino, name)
