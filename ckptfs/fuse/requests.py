"""What the kernel's requests mean here: node ids to views and inodes, plain values in and out.

Both paths from the kernel call these: pyfuse3's handlers (`adapter`) and the compiled server
(`server`). A request is a plain function: nothing in it waits, so no other can fall into the middle
of one. What an operation does to the tree is decided below.

An answer is an inode. If its number is that of a node outside the live workspace (`.checkpoints`,
what stands in it), it is the node id already.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

from ckptfs.errors import CkptfsError
from ckptfs.fs import Filesystem, names
from ckptfs.fs.ranges import Spot
from ckptfs.fuse import forks_dir, history_dir
from ckptfs.fuse.control_files import Connect, Connections, ControlFiles, is_control, refuse
from ckptfs.fuse.forks_dir import ForksDirectory, Points, no_forks
from ckptfs.fuse.history_dir import HistoryDirectory
from ckptfs.fuse.hooks import Guard, LossOf, MountOptions, bytes_lost, touching
from ckptfs.fuse.listings import Item, Listings
from ckptfs.fuse.nodes import (
    FORKS_ROOT,
    HISTORY,
    HISTORY_ROOT,
    LIVE_END,
    Node,
    Nodes,
    is_of_forks,
)
from ckptfs.fuse.server.write_behind import WriteBehind
from ckptfs.history.auto import Loss
from ckptfs.history.references import safe_tag
from ckptfs.model import FILE_SIZE_MAX, ROOT_INO, Attributes, Ino, Inode
from ckptfs.store.blocks import Buffer

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

#: Free inodes that statfs reports: numbers are never used up.
_FREE_INODES = 1 << 40

_FULL = (errno.ENOSPC, errno.EDQUOT)
#: How often moments may make room for one request.
_TRIES = 4

#: As in linux/falloc.h.
_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_ZERO_RANGE = 0x10
#: As in linux/fs.h.
_RENAME_EXCHANGE = 2


def _tag_name(tag: str) -> bytes:
    return os.fsencode(safe_tag(tag))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def errno_of(error: BaseException, what: str = "a request") -> int:
    """The reply to a request that failed: an edge that catches everything, for both paths. What was
    not expected is EIO, with a traceback in the log."""
    if isinstance(error, OSError):
        if error.errno == errno.EIO:
            log.error("%s: %s", what, error)
        return error.errno or errno.EIO
    log.error("%s failed", what, exc_info=error)
    return errno.EIO


def errno_of_refusal(error: BaseException, number: int) -> int:
    """The same for what the history was asked for: what it refuses is ``number``, and why is in the
    log."""
    if isinstance(error, CkptfsError):
        log.info("refused: %s", error)
        return number
    return errno_of(error, "history")


def _place_behind(name: bytes, entries: list[tuple[bytes, Inode]]) -> int:
    """Where a list goes on behind a name: at its end if the name is not in it."""
    names = [entry[0] for entry in entries]
    return names.index(name) + 1 if name in names else len(names) if name else 0


def unfamiliar(ino: int) -> bool:
    """Lookups are not counted: what the kernel caches is not known."""
    return False


def _making_room(
    method: Callable[Concatenate[Requests, int, P], R],
) -> Callable[Concatenate[Requests, int, P], R]:
    """A request about a node that takes some space: on a full disk moments go before it fails."""

    @wraps(method)
    def request(self: Requests, node: int, /, *args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(_TRIES):
            try:
                return method(self, node, *args, **kwargs)
            except OSError as error:
                if error.errno not in _FULL or not self.guard.make_room(node):
                    raise
        return method(self, node, *args, **kwargs)

    return request


class Requests:
    """One mounted workspace."""

    def __init__(
        self,
        fs: Filesystem,
        options: MountOptions,
        guard: Guard,
        connect: Connect = refuse,
        forks: Points = no_forks,
    ) -> None:
        self._fs = fs
        self.guard = guard
        self._show_history = options.show_checkpoints
        self._xattrs = options.xattrs
        self.nodes = Nodes(fs)
        self.directory = HistoryDirectory(fs, self.nodes, _tag_name)
        self.forks = ForksDirectory(fs, forks)
        self.controls = ControlFiles(fs, guard)
        self.connections = Connections(connect)
        #: Called with a file in a checkpoint that a program tried to write to: the kernel may have
        #: the bytes in its pages.
        self.spoiled: Callable[[int], None] = lambda node: None
        #: Whether the kernel caches all that a listing could say of an inode.
        self.familiar: Callable[[int], bool] = unfamiliar
        self._listings = Listings(self._dots, self._walk)

    # -- where ------------------------------------------------------------------------------------

    def at(self, node: int) -> Node:
        """Where something may be changed. Nothing in `.checkpoints` itself can, but by mkdir and
        rmdir."""
        if node >= HISTORY:
            raise _error(errno.EROFS)
        return self.nodes.place(node)

    def entry_place(self, parent: int, name: bytes) -> Node:
        """Where a name is to be made or removed."""
        if name == history_dir.NAME and parent == ROOT_INO:
            raise OSError(errno.EPERM, f"{name.decode()} is the history")
        if self.forks.stands_in(parent, name):
            raise OSError(errno.EPERM, f"{name.decode()} has the forks")
        return self.at(parent)

    def before(
        self,
        pid: int,
        loss: LossOf | None,
        node: int,
        name: bytes = b"",
        *,
        is_dir: bool = False,
        begins: bool = True,
    ) -> None:
        """Call the guard before a change to a node, or to a name in it, unless it is excluded."""
        fs = self._fs
        if fs.store.pressed:
            fs.commit()
        if node >= LIVE_END:
            return  # it will be refused
        excluded = fs.head.excluded is not None
        if not (excluded and fs.excludes(Ino(node), name, is_dir=is_dir)):
            self.guard(pid, loss, begins=begins)

    def _entry_lost(
        self, parent: int, name: bytes, *, unlinked: bytes = b"", is_dir: bool = False
    ) -> Loss | None:
        """What stands under a name that is to be removed or replaced."""
        view, ino, _ = self.at(parent)
        victim = names.find(self._fs, view, ino, name)
        return None if victim is None else Loss(victim, unlinked=unlinked, is_dir=is_dir)

    def _names_lost(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> Loss | None:
        """What a rename replaces; else what it moves, of which another step may not know."""
        replaced = None if flags & _RENAME_EXCHANGE else self._entry_lost(new_parent, new_name)
        if replaced is not None:
            return replaced
        moved = self._entry_lost(parent, name)
        return None if moved is None else moved._replace(renamed=True)

    def _leaving_history(self, parent: int, name: bytes) -> Loss | None:
        """What is to be moved to where no checkpoint sees it."""
        found = self._entry_lost(parent, name)
        if found is None:
            return None
        view, _, _ = self.at(parent)
        return found._replace(is_tree=self._fs.getattr(view, Ino(found.ino)).is_dir)

    def _bytes_lost(self, node: int, start: int, *, in_place: bool) -> Loss | None:
        view, ino, _ = self.at(node)
        return bytes_lost(self._fs, view, ino, start, in_place=in_place)

    # -- names ------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> Inode | None:
        fs = self._fs
        if parent < LIVE_END:
            if parent == ROOT_INO and name == history_dir.NAME:
                return self.directory.itself()
            if self.forks.stands_in(parent, name):
                return self.forks.itself()
            return fs.seek(fs.limbo.get(Ino(parent)) or fs.head, Ino(parent), name)
        if parent == HISTORY_ROOT:
            return self.controls.lookup(name) or self.directory.lookup(name)
        if is_of_forks(parent):
            return self.forks.lookup(name) if parent == FORKS_ROOT else None
        view, ino, _ = self.nodes.place(parent)
        return fs.seek(view, ino, name)

    def getattr(self, node: int) -> Inode:
        if is_of_forks(node):
            return self.forks.getattr(node)
        if node >= HISTORY:
            return (self.controls if is_control(node) else self.directory).getattr(node)
        view, ino, _ = self.nodes.place(node)
        return self._fs.getattr(view, ino)

    def forget(self, node: int) -> None:
        """The kernel no longer knows a node."""
        self._fs.forget(Ino(node))

    def readlink(self, node: int) -> bytes:
        if is_of_forks(node):
            return self.forks.readlink(node)
        if node >= HISTORY:
            return self.directory.readlink(node)
        view, ino, _ = self.nodes.place(node)
        return self._fs.readlink(view, ino)

    @_making_room
    def mknod(
        self, parent: int, name: bytes, mode: int, rdev: int, pid: int, uid: int, gid: int
    ) -> Inode:
        self.before(pid, None, parent, name)
        view, ino, _ = self.entry_place(parent, name)
        return self._made(self._fs.mknod(view, ino, name, mode, uid, gid, rdev), new=True)

    @_making_room
    def make_nameless(self, parent: int, mode: int, pid: int, uid: int, gid: int) -> Inode:
        """As open(2) with O_TMPFILE."""
        self.before(pid, None, parent)
        view, ino, _ = self.at(parent)
        return self._made(self._fs.make_nameless(view, ino, mode, uid, gid), new=True)

    @_making_room
    def mkdir(self, parent: int, name: bytes, mode: int, pid: int, uid: int, gid: int) -> Inode:
        self.before(pid, None, parent, name, is_dir=True)
        view, ino, _ = self.entry_place(parent, name)
        return self._made(self._fs.mkdir(view, ino, name, mode, uid, gid), new=True)

    @_making_room
    def symlink(
        self, parent: int, name: bytes, target: bytes, pid: int, uid: int, gid: int
    ) -> Inode:
        self.before(pid, None, parent, name)
        view, ino, _ = self.entry_place(parent, name)
        return self._made(self._fs.symlink(view, ino, name, target, uid, gid), new=True)

    @_making_room
    def link(self, node: int, parent: int, name: bytes, pid: int) -> Inode:
        self.before(pid, None, parent, name)
        view, directory, _ = self.entry_place(parent, name)
        source, ino, _ = self.at(node)
        if source is not view:
            raise _error(errno.EXDEV)
        return self._made(self._fs.link(view, ino, directory, name), content=False)

    def unlink(self, parent: int, name: bytes, pid: int) -> None:
        self.before(pid, lambda: self._entry_lost(parent, name, unlinked=name), parent, name)
        view, ino, _ = self.entry_place(parent, name)
        self._fs.unlink(view, ino, name)

    def rmdir(self, parent: int, name: bytes, pid: int) -> None:
        self.before(pid, lambda: self._entry_lost(parent, name, is_dir=True), parent, name)
        view, ino, _ = self.entry_place(parent, name)
        self._fs.rmdir(view, ino, name)

    @_making_room
    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, pid: int
    ) -> None:
        here = (parent, name)
        lost: LossOf = partial(self._names_lost, parent, name, new_parent, new_name, flags)
        if self._fs.head.excluded is not None:
            if self._fs.excludes(Ino(parent), name):
                here = (new_parent, new_name)
            elif self._fs.excludes(Ino(new_parent), new_name):
                lost = partial(self._leaving_history, parent, name)
        self.before(pid, lost, *here)
        view, ino, _ = self.entry_place(parent, name)
        new_view, new_ino, _ = self.entry_place(new_parent, new_name)
        if new_view is not view:
            raise _error(errno.EXDEV)
        moved = self._fs.rename(view, ino, name, new_ino, new_name, flags)
        self.guard.made(moved, content=False)

    # -- attributes -------------------------------------------------------------------------------

    @_making_room
    def setattr(self, node: int, wanted: Attributes, pid: int, keep_set_id: bool) -> Inode:
        if pid in touching:
            return self.getattr(node)
        if is_control(node):
            return self.controls.setattr(node, wanted)
        cut = None
        if wanted.size is not None:
            cut = partial(self._bytes_lost, node, wanted.size, in_place=False)
        self.before(pid, cut, node)
        view, ino, _ = self.at(node)
        inode = self._fs.setattr(view, ino, wanted, keep_set_id=keep_set_id)
        return self._made(inode, content=wanted.size is not None)

    def statfs(self) -> tuple[os.statvfs_result, int, int]:
        """The disk, and how many inodes there are and how many more there may be."""
        return (
            self._fs.store.statvfs(),
            self._fs.head.inodes + _FREE_INODES,
            _FREE_INODES,
        )

    # -- extended attributes ----------------------------------------------------------------------

    def _require_xattrs(self) -> None:
        if not self._xattrs:
            raise _error(errno.ENOSYS)  # the kernel then stops asking, for this mount

    def getxattr(self, node: int, name: bytes) -> bytes:
        self._require_xattrs()
        if node >= HISTORY:
            raise _error(errno.ENODATA)
        view, ino, _ = self.nodes.place(node)
        return self._fs.getxattr(view, ino, name)

    def listxattr(self, node: int) -> list[bytes]:
        self._require_xattrs()
        if node >= HISTORY:
            return []
        view, ino, _ = self.nodes.place(node)
        return self._fs.listxattr(view, ino)

    def setxattr(self, node: int, name: bytes, value: bytes, pid: int) -> None:
        self._require_xattrs()
        self.before(pid, None, node)
        view, ino, _ = self.at(node)
        self._fs.setxattr(view, ino, name, value)
        self.guard.made(ino, content=False)

    def removexattr(self, node: int, name: bytes, pid: int) -> None:
        self._require_xattrs()
        self.before(pid, None, node)
        view, ino, _ = self.at(node)
        self._fs.removexattr(view, ino, name)
        self.guard.made(ino, content=False)

    def _made(self, inode: Inode, *, content: bool = True, new: bool = False) -> Inode:
        self.guard.made(inode.ino, content=content, new=new)
        return inode

    # -- files ------------------------------------------------------------------------------------

    def read(self, node: int, offset: int, size: int) -> Buffer:
        if is_control(node):
            return self.controls.read(node, offset, size)
        view, ino, _ = self.nodes.place(node)
        return self._fs.read(view, ino, offset, size)

    def read_pieces(self, node: int, offset: int, size: int) -> list[Buffer]:
        """The same, for one who need not have them in a row."""
        if is_control(node):
            return [self.controls.read(node, offset, size)]
        view, ino, _ = self.nodes.place(node)
        return self._fs.read_pieces(view, ino, offset, size)

    @_making_room
    def write(self, node: int, offset: int, data: Buffer, pid: int, keep_set_id: bool) -> int:
        """``pid`` is 0 where the writer is not known: a mapping's pages come late."""
        if is_control(node):
            self.before(pid, None, node)
            return self.controls.write(node, offset, data, pid)
        view, ino, _ = self._to_write(node, pid, offset)
        written = self._fs.write(view, ino, offset, data, keep_set_id=keep_set_id)
        self.guard.made(ino)
        return written

    def end_of(self, node: int, offset: int) -> int:
        """Where a file ends whose size changed without a request, for a write that appends. The
        kernel took ``offset`` for the end; if that is wrong, its pages have the bytes there."""
        view, ino, _ = self.at(node)
        end = self._fs.getattr(view, ino).size
        if end == offset:
            self._fs.resized.discard(ino)
        else:
            self.spoiled(node)
        return end

    def _to_write(self, node: int, pid: int, offset: int) -> Node:
        """Where bytes are to be written, or taken away, after the guard was called."""
        fs = self._fs
        if node >= LIVE_END:
            self.at(node)
            self.spoiled(node)
            raise _error(errno.EROFS)
        if fs.store.is_due:
            fs.commit()
        overwritten = partial(self._bytes_lost, node, offset, in_place=True)
        begins = bool(pid) and not self.guard.is_writing(node, pid)
        self.before(pid, overwritten, node, begins=begins)
        return self.at(node)

    def allocate(
        self, node: int, offset: int, length: int, mode: int, pid: int, keep_set_id: bool
    ) -> None:
        """As fallocate(2)."""
        if mode & ~(_KEEP_SIZE | _PUNCH_HOLE | _ZERO_RANGE):
            raise _error(errno.EOPNOTSUPP)
        fs = self._fs
        keep_size = bool(mode & _KEEP_SIZE)
        if mode & (_PUNCH_HOLE | _ZERO_RANGE):
            view, ino, _ = self._to_write(node, pid, offset)
            fs.punch(view, ino, offset, length, keep_size=keep_size, keep_set_id=keep_set_id)
        else:
            view, ino, _ = self._to_write(node, pid, FILE_SIZE_MAX)
            fs.allocate(view, ino, offset, length, keep_size=keep_size, keep_set_id=keep_set_id)
        self.guard.made(ino)

    def seek(self, node: int, offset: int, whence: int) -> int:
        """The next place with data, or without: SEEK_DATA or SEEK_HOLE. In the live tree all is
        data: what a shared mapping has in a hole the kernel may not have handed over yet, and it
        does not before it asks this."""
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise _error(errno.EINVAL)
        fs = self._fs
        if is_control(node):
            raise _error(errno.ESPIPE)
        view, ino, _ = self.nodes.place(node)
        if node >= LIVE_END:
            return (fs.seek_data if whence == os.SEEK_DATA else fs.seek_hole)(view, ino, offset)
        size = fs.getattr(view, ino).size
        if not 0 <= offset < size:
            raise _error(errno.ENXIO)
        return offset if whence == os.SEEK_DATA else size

    def copy_range(
        self,
        node: int,
        offset: int,
        target: int,
        target_offset: int,
        length: int,
        pid: int,
        keep_set_id: bool,
    ) -> int:
        """As copy_file_range(2): how many bytes were copied."""
        if is_control(node) or is_control(target):
            raise _error(errno.EXDEV)  # then the kernel reads and writes them
        view, ino, _ = self._to_write(target, pid, target_offset)
        source, original, _ = self.nodes.place(node)
        copied = self._fs.copy_range(
            Spot(source, original, offset),
            Spot(view, ino, target_offset),
            length,
            keep_set_id=keep_set_id,
        )
        self.guard.made(ino)
        return copied

    def share_record(self, node: int, length: int) -> bytes | None:
        """What `WriteBehind.flush` needs to know of a copy of a file of at most one block."""
        view, ino, _ = self.nodes.place(node)
        return self._fs.share_record(view, ino, length)

    def write_behind(self) -> WriteBehind:
        """What may be answered before it is in the store."""
        return WriteBehind(self._fs, self.guard)

    # -- directories ------------------------------------------------------------------------------

    def entries(self, node: int, cookie: int) -> Iterator[tuple[bytes, Item, int]]:
        """(name, inode, cookie) of a directory's entries behind a cookie; 0 is the start. Of what
        is ``familiar`` it is the number of the inode."""
        return self._listings.entries(node, cookie)

    def adopt(self, node: int, stream: int, given: list[bytes]) -> None:
        """Go on with a listing that the server began: these are the names that it gave."""
        self._listings.adopt(node, stream, given)

    def _dots(self, node: int) -> tuple[Item, Item]:
        """A directory, and the one above it."""
        fs = self._fs
        if node in (HISTORY_ROOT, FORKS_ROOT):
            return self.getattr(node), fs.getattr(fs.head, ROOT_INO)
        view, ino, base = self.nodes.place(node)
        here = fs.getattr(view, ino)
        if here.parent:
            if node < LIVE_END and self.familiar(here.parent):
                return here, here.parent
            return here, fs.getattr(view, here.parent)
        return here, self.directory.itself() if base else here

    def _shown(self) -> list[tuple[bytes, Inode]]:
        """What is listed first in the workspace's root, and is no entry of it."""
        found = [(history_dir.NAME, self.directory.itself())]
        if self.forks.is_there():
            found.append((forks_dir.NAME, self.forks.itself()))
        return found

    def _walk(self, node: int, after: bytes) -> Iterator[tuple[bytes, Item]]:
        """What stands in a directory behind a name."""
        if node == HISTORY_ROOT:
            yield from self.directory.entries(after)
            return
        if node == FORKS_ROOT:
            yield from self.forks.entries(after)
            return
        view, ino, _ = self.nodes.place(node)
        if node == ROOT_INO and self._show_history:
            shown = self._shown()
            yield from shown[_place_behind(after, shown) :]
            after = b"" if after in dict(shown) else after
        familiar = self.familiar
        for name, child in self._fs.numbers(view, ino, after):
            if node < LIVE_END and familiar(child):
                yield name, child
            elif (inode := self._fs.seek_number(view, ino, name, child)) is not None:
                yield name, inode
