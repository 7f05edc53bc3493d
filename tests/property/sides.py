"""The same operations twice: on `Filesystem` directly, and with os.* on a tmpfs directory.

Both sides take paths relative to their root and raise `OSError`. `Direct` does what the kernel does
before it asks a FUSE file system, and no more: it looks names up, and refuses a rename whose order
of checks is the kernel's business.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.fs.ranges import Spot
from ckptfs.model import ROOT_INO, Attributes, Ino, Inode
from tests.direct import (
    NO_BYTES,
    WHOLE_MAX,
    Content,
    Node,
    Shown,
    Times,
    error,
    find,
    in_blocks,
    join,
    node_of,
    place,
    shown,
)
from tests.support.syscalls import (
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    fallocate,
    renameat2,
)

ROOT_USER = os.geteuid() == 0


class Direct:
    """Ours, without a kernel. A handle is the inode number."""

    def __init__(self, fs: Filesystem) -> None:
        self.fs = fs

    @property
    def _head(self):  # type: ignore[no-untyped-def]
        return self.fs.head

    def _find(self, path: bytes) -> Ino:
        return find(self.fs, self._head, path).ino

    def _place(self, path: bytes) -> tuple[Ino, bytes]:
        return place(self.fs, self._head, path)

    def _looked_up(self, path: bytes) -> tuple[Ino, bytes]:
        parent, name = self._place(path)
        self.fs.lookup(self._head, parent, name)
        return parent, name

    # -- names --

    def mkdir(self, path: bytes, mode: int) -> None:
        self.fs.mkdir(self._head, *self._place(path), mode, os.getuid(), os.getgid())

    def mknod(self, path: bytes, mode: int, rdev: int) -> None:
        self.fs.mknod(self._head, *self._place(path), mode, os.getuid(), os.getgid(), rdev)

    def symlink(self, path: bytes, target: bytes) -> None:
        self.fs.symlink(self._head, *self._place(path), target, os.getuid(), os.getgid())

    def link(self, path: bytes, new_path: bytes) -> None:
        ino = self._find(path)
        self.fs.link(self._head, ino, *self._place(new_path))

    def unlink(self, path: bytes) -> None:
        self.fs.unlink(self._head, *self._looked_up(path))

    def rmdir(self, path: bytes) -> None:
        self.fs.rmdir(self._head, *self._looked_up(path))

    def rename(self, path: bytes, new_path: bytes, flags: int) -> None:
        parent, name = self._place(path)
        new_parent, new_name = self._place(new_path)
        try:
            self._refuse_rename(parent, name, new_parent, new_name, flags)
        except OSError as refused:
            # The file system must not lean on the kernel: it fails too, if for another reason.
            self._must_refuse(parent, name, new_parent, new_name, flags)
            raise refused from None
        self.fs.rename(self._head, parent, name, new_parent, new_name, flags)

    def _must_refuse(
        self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int
    ) -> None:
        try:
            self.fs.rename(self._head, parent, name, new_parent, new_name, flags)
        except OSError:
            return
        raise AssertionError("the file system did what the kernel refuses")

    def _refuse_rename(
        self, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, flags: int
    ) -> None:
        """The kernel's own checks, in its order (do_renameat2)."""
        moved = self.fs.lookup(self._head, parent, name)
        replaced = self._seek(new_parent, new_name)
        if replaced is not None and flags == RENAME_NOREPLACE:
            raise error(errno.EEXIST)
        if replaced is None and flags == RENAME_EXCHANGE:
            raise error(errno.ENOENT)
        if moved.ino in self._upward(new_parent):
            raise error(errno.EINVAL)
        if replaced is not None and replaced.ino in self._upward(parent):
            raise error(errno.EINVAL if flags == RENAME_EXCHANGE else errno.ENOTEMPTY)

    def _seek(self, parent: Ino, name: bytes) -> Inode | None:
        try:
            return self.fs.lookup(self._head, parent, name)
        except FileNotFoundError:
            return None

    def _upward(self, ino: Ino) -> set[Ino]:
        """The directory and all above it but the root, which no name leads to."""
        found = set()
        while ino != ROOT_INO:
            found.add(ino)
            ino = self.fs.getattr(self._head, ino).parent
        return found

    def readlink(self, path: bytes) -> bytes:
        return self.fs.readlink(self._head, self._find(path))

    def names(self, path: bytes, page: int) -> list[bytes]:
        """The names in a directory, read in pages as the kernel's readdir does."""
        inode = find(self.fs, self._head, path)
        if not inode.is_dir:
            raise error(errno.ENOTDIR)
        found: list[bytes] = []
        while True:
            after = found[-1] if found else b""
            listing = self.fs.entries(self._head, inode.ino, after)
            news = [name for (name, _), _ in zip(listing, range(page), strict=False)]
            if not news:
                return found
            found += news

    # -- attributes --

    def _set(self, path: bytes, wanted: Attributes) -> None:
        self.fs.setattr(self._head, self._find(path), wanted)

    def chmod(self, path: bytes, mode: int) -> None:
        self._set(path, Attributes(mode=mode))

    def chown(self, path: bytes, uid: int, gid: int) -> None:
        self._set(path, Attributes(uid=None if uid < 0 else uid, gid=None if gid < 0 else gid))

    def utime(self, path: bytes, atime_ns: int, mtime_ns: int) -> tuple[int, int]:
        self._set(path, Attributes(atime_ns=atime_ns, mtime_ns=mtime_ns))
        inode = self.fs.getattr(self._head, self._find(path))
        return inode.atime_ns, inode.mtime_ns

    def setxattr(self, path: bytes, name: bytes, value: bytes, flags: int) -> None:
        self.fs.setxattr(self._head, self._find(path), name, value, flags)

    def getxattr(self, path: bytes, name: bytes) -> bytes:
        return bytes(self.fs.getxattr(self._head, self._find(path), name))

    def removexattr(self, path: bytes, name: bytes) -> None:
        self.fs.removexattr(self._head, self._find(path), name)

    # -- content --

    def write(self, path: bytes, offset: int, data: bytes) -> int:
        return self.write_to(self._find(path), offset, data)

    def read(self, path: bytes, offset: int, size: int) -> bytes:
        return self.read_from(self._find(path), offset, size)

    def truncate(self, path: bytes, size: int) -> None:
        self.truncate_to(self._find(path), size)

    def copy(self, path: bytes, offset: int, target: bytes, target_offset: int, size: int) -> int:
        source, ino = find(self.fs, self._head, path), self._find(target)
        size = min(size, max(source.size - offset, 0))
        if source.ino == ino and abs(offset - target_offset) < size:
            raise error(errno.EINVAL)
        spot = Spot(self._head, ino, target_offset)
        return self.fs.copy_range(Spot(self._head, source.ino, offset), spot, size)

    # -- handles --

    def open(self, path: bytes) -> Ino:
        ino = self._find(path)
        self.fs.hold(ino)
        return ino

    def close(self, handle: Ino) -> None:
        self.fs.drop(handle)

    def write_to(self, handle: Ino, offset: int, data: bytes) -> int:
        return self.fs.write(self._head, handle, offset, data, keep_set_id=ROOT_USER)

    def read_from(self, handle: Ino, offset: int, size: int) -> bytes:
        return bytes(self.fs.read(self._head, handle, offset, size))

    def truncate_to(self, handle: Ino, size: int) -> None:
        self.fs.setattr(self._head, handle, Attributes(size=size), keep_set_id=ROOT_USER)

    def punch_in(self, handle: Ino, offset: int, size: int) -> None:
        self.fs.punch(self._head, handle, offset, size)

    def allocate_for(self, handle: Ino, offset: int, size: int) -> None:
        self.fs.allocate(self._head, handle, offset, size, keep_size=False)

    def tree(self) -> Shown:
        return shown(self.fs, self._head)

    def handle_node(self, handle: Ino) -> tuple[Node, int, Times]:
        inode = self.fs.getattr(self._head, handle)
        times = Times(inode.mtime_ns, inode.ctime_ns)
        return node_of(self.fs, self._head, inode), inode.ino, times


class Kernel:
    """Theirs: the kernel and tmpfs. A handle is a file descriptor."""

    def __init__(self, root: str) -> None:
        self._root = os.fsencode(root)

    def at(self, path: bytes) -> bytes:
        return join(self._root, path) if path else self._root

    def kind(self, path: bytes) -> int:
        """The type of what is at a path, 0 if nothing can be found there."""
        try:
            return stat.S_IFMT(os.lstat(self.at(path)).st_mode)
        except OSError:
            return 0

    def kinds(self) -> dict[bytes, int]:
        """The type of everything there is, by path; the root first."""
        found = {b"": stat.S_IFDIR}
        pending = [b""]
        while pending:
            parent = pending.pop()
            for name in sorted(os.listdir(self.at(parent))):
                path = join(parent, name)
                found[path] = self.kind(path)
                if found[path] == stat.S_IFDIR:
                    pending.append(path)
        return found

    def paths_of(self, handle: int) -> list[bytes]:
        ino = os.fstat(handle).st_ino
        return [path for path in self.kinds() if os.lstat(self.at(path)).st_ino == ino]

    # -- names --

    def mkdir(self, path: bytes, mode: int) -> None:
        os.mkdir(self.at(path), mode)

    def mknod(self, path: bytes, mode: int, rdev: int) -> None:
        os.mknod(self.at(path), mode, rdev)

    def symlink(self, path: bytes, target: bytes) -> None:
        os.symlink(target, self.at(path))

    def link(self, path: bytes, new_path: bytes) -> None:
        os.link(self.at(path), self.at(new_path), follow_symlinks=False)

    def unlink(self, path: bytes) -> None:
        os.unlink(self.at(path))

    def rmdir(self, path: bytes) -> None:
        os.rmdir(self.at(path))

    def rename(self, path: bytes, new_path: bytes, flags: int) -> None:
        renameat2(self.at(path), self.at(new_path), flags)

    def readlink(self, path: bytes) -> bytes:
        return os.readlink(self.at(path))

    def names(self, path: bytes, page: int) -> list[bytes]:
        return sorted(os.listdir(self.at(path)))

    # -- attributes --

    def chmod(self, path: bytes, mode: int) -> None:
        os.chmod(self.at(path), mode)

    def chown(self, path: bytes, uid: int, gid: int) -> None:
        os.chown(self.at(path), uid, gid, follow_symlinks=False)

    def utime(self, path: bytes, atime_ns: int, mtime_ns: int) -> tuple[int, int]:
        os.utime(self.at(path), ns=(atime_ns, mtime_ns), follow_symlinks=False)
        info = os.lstat(self.at(path))
        return info.st_atime_ns, info.st_mtime_ns

    def setxattr(self, path: bytes, name: bytes, value: bytes, flags: int) -> None:
        os.setxattr(self.at(path), name, value, flags, follow_symlinks=False)

    def getxattr(self, path: bytes, name: bytes) -> bytes:
        return os.getxattr(self.at(path), name, follow_symlinks=False)

    def removexattr(self, path: bytes, name: bytes) -> None:
        os.removexattr(self.at(path), name, follow_symlinks=False)

    # -- content --

    def write(self, path: bytes, offset: int, data: bytes) -> int:
        fd = os.open(self.at(path), os.O_WRONLY | os.O_NOFOLLOW)
        try:
            return os.pwrite(fd, data, offset)
        finally:
            os.close(fd)

    def read(self, path: bytes, offset: int, size: int) -> bytes:
        fd = os.open(self.at(path), os.O_RDONLY | os.O_NOFOLLOW)
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    def truncate(self, path: bytes, size: int) -> None:
        """By descriptor, since truncate(2) by path leaves the times alone if the size stays."""
        fd = os.open(self.at(path), os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def copy(self, path: bytes, offset: int, target: bytes, target_offset: int, size: int) -> int:
        source = os.open(self.at(path), os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fd = os.open(self.at(target), os.O_WRONLY | os.O_NOFOLLOW)
            try:
                return os.copy_file_range(source, fd, size, offset, target_offset)
            finally:
                os.close(fd)
        finally:
            os.close(source)

    # -- handles --

    def open(self, path: bytes) -> int:
        return os.open(self.at(path), os.O_RDWR | os.O_NOFOLLOW)

    def close(self, handle: int) -> None:
        os.close(handle)

    def write_to(self, handle: int, offset: int, data: bytes) -> int:
        return os.pwrite(handle, data, offset)

    def read_from(self, handle: int, offset: int, size: int) -> bytes:
        return os.pread(handle, size, offset)

    def truncate_to(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def punch_in(self, handle: int, offset: int, size: int) -> None:
        fallocate(handle, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size)

    def allocate_for(self, handle: int, offset: int, size: int) -> None:
        fallocate(handle, 0, offset, size)

    def tree(self) -> Shown:
        tree = Shown({}, {}, {})
        pending = [b""]
        while pending:
            path = pending.pop()
            info = os.lstat(self.at(path))
            tree.nodes[path] = _node(self.at(path), info)
            tree.inos[path] = info.st_ino
            tree.times[info.st_ino] = Times(info.st_mtime_ns, info.st_ctime_ns)
            if stat.S_ISDIR(info.st_mode):
                pending += [join(path, name) for name in os.listdir(self.at(path))]
        return tree

    def handle_node(self, handle: int) -> tuple[Node, int, Times]:
        info = os.fstat(handle)
        times = Times(info.st_mtime_ns, info.st_ctime_ns)
        return _node(handle, info), info.st_ino, times


def _node(path: bytes | int, info: os.stat_result) -> Node:
    kind = stat.S_IFMT(info.st_mode)
    return Node(
        mode=info.st_mode,
        nlink=info.st_nlink,
        uid=info.st_uid,
        gid=info.st_gid,
        rdev=info.st_rdev,
        size=0 if kind == stat.S_IFDIR else info.st_size,
        content=_content(path, info.st_size) if kind == stat.S_IFREG else NO_BYTES,
        target=os.readlink(path) if kind == stat.S_IFLNK else b"",
        xattrs=_xattrs(path) if kind in (stat.S_IFREG, stat.S_IFDIR) else {},
    )


def _xattrs(path: bytes | int) -> dict[bytes, bytes]:
    names = [os.fsencode(name) for name in os.listxattr(path)]
    return {name: os.getxattr(path, name) for name in names if name.startswith(b"user.")}


def _content(path: bytes | int, size: int) -> Content:
    fd = os.dup(path) if isinstance(path, int) else os.open(path, os.O_RDONLY)
    try:
        if size <= WHOLE_MAX:
            return Content(os.pread(fd, size + 1, 0), {})
        return Content(b"", in_blocks(iter([(r.start, _range(fd, r)) for r in _data(fd)])))
    finally:
        os.close(fd)


class _Range(NamedTuple):
    start: int
    stop: int


def _range(fd: int, found: _Range) -> bytes:
    return os.pread(fd, found.stop - found.start, found.start)


def _data(fd: int) -> list[_Range]:
    """The ranges of a file that are no holes."""
    found: list[_Range] = []
    stop = 0
    while True:
        try:
            start = os.lseek(fd, stop, os.SEEK_DATA)
        except OSError as end:
            if end.errno != errno.ENXIO:
                raise
            return found
        stop = os.lseek(fd, start, os.SEEK_HOLE)
        found.append(_Range(start, stop))


def has_user_xattrs(path: str) -> bool:
    """tmpfs has them since Linux 6.6, if it was built so."""
    try:
        os.setxattr(path, b"user.probe", b"")
    except OSError:
        return False
    os.removexattr(path, b"user.probe")
    return True


def every_change_shows(path: str) -> bool:
    """Whether two changes never leave the same ctime (Linux 6.13, if looked at in between)."""
    seen = set()
    for _ in range(20):
        os.chmod(path, 0o755)
        seen.add(os.stat(path).st_ctime_ns)
    return len(seen) == 20
