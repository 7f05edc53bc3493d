"""The file system driven directly, without a kernel.

What the kernel does above a FUSE file system is done here for tests that call `Filesystem`
themselves: walking paths component by component, following links on the way. Paths are bytes
relative to the root of a view; the root is b"". `shown` tells all that a view shows.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, ROOT_INO, Ino, Inode
from ckptfs.store import Store, View, check

#: How many links the kernel follows in one path.
_HOPS_MAX = 40
#: Files above this size are compared by their stored ranges, the others byte for byte.
WHOLE_MAX = 1 << 20

_ZEROS = bytes(BLOCK_SIZE)


class Ticks:
    """A clock whose every reading is later than the one before."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


# -- stores ----------------------------------------------------------------------------------------


def assert_clean(fs: Filesystem) -> None:
    """The end of every test that touched a store."""
    fs.commit()
    assert check(fs.store) == []


@contextmanager
def new_filesystem(path: Path, **options: int) -> Iterator[Filesystem]:
    """A file system in a new store; at the end `check` must find nothing."""
    store = Store.create(path, **options)
    try:
        fs = Filesystem(store, Ticks())
        yield fs
        assert_clean(fs)
    finally:
        store.close(commit=False)


def reopened(fs: Filesystem) -> Filesystem:
    """The same store after an orderly end and a new start."""
    fs.commit()
    fs.store.close()
    return Filesystem(Store.open(fs.store.path), fs.clock)


def crashed(fs: Filesystem) -> Filesystem:
    """The same store after an end without a last commit and a new start."""
    fs.store.close(commit=False)
    return Filesystem(Store.open(fs.store.path), fs.clock)


class Life:
    """A store through several openings; ``fs`` is the file system of the present one."""

    def __init__(self, path: Path, **options: int) -> None:
        self.fs = Filesystem(Store.create(path, **options), Ticks())

    def reopen(self) -> Filesystem:
        self.fs = reopened(self.fs)
        return self.fs

    def crash(self) -> Filesystem:
        self.fs = crashed(self.fs)
        return self.fs

    def end(self) -> None:
        try:
            assert_clean(self.fs)
        finally:
            self.fs.store.close(commit=False)


# -- paths -----------------------------------------------------------------------------------------


def join(parent: bytes, name: bytes) -> bytes:
    return parent + b"/" + name if parent else name


def find(fs: Filesystem, view: View, path: bytes, *, follow: bool = False) -> Inode:
    """The inode at a path. Links on the way are followed, one at its end only if asked."""
    here = fs.getattr(view, ROOT_INO)
    pending = _components(path)
    hops = 0
    while pending:
        if not here.is_dir:
            raise error(errno.ENOTDIR)
        inode = fs.lookup(view, here.ino, pending.pop(0))
        if inode.is_link and (pending or follow):
            hops += 1
            if hops > _HOPS_MAX:
                raise error(errno.ELOOP)
            pending = _components(fs.readlink(view, inode.ino)) + pending
        else:
            here = inode
    return here


def _components(path: bytes) -> list[bytes]:
    return path.split(b"/") if path else []


def place(fs: Filesystem, view: View, path: bytes) -> tuple[Ino, bytes]:
    """The directory that a path's last name stands in, or would, and that name."""
    parent, _, name = path.rpartition(b"/")
    directory = find(fs, view, parent, follow=True)
    if not directory.is_dir:
        raise error(errno.ENOTDIR)
    return directory.ino, name


def put(fs: Filesystem, path: bytes, data: bytes = b"", mode: int = 0o644) -> Ino:
    """Make a file in the head, or replace what it holds; return its inode number."""
    parent, name = place(fs, fs.head, path)
    try:
        ino = fs.lookup(fs.head, parent, name).ino
    except FileNotFoundError:
        ino = fs.mknod(fs.head, parent, name, stat.S_IFREG | mode, 0, 0).ino
    fs.write(fs.head, ino, 0, data)
    return ino


def get(fs: Filesystem, path: bytes, view: View | None = None) -> bytes:
    view = fs.head if view is None else view
    inode = find(fs, view, path)
    return bytes(fs.read(view, inode.ino, 0, inode.size + 1))


def mkdir(fs: Filesystem, path: bytes, mode: int = 0o755) -> Ino:
    return fs.mkdir(fs.head, *place(fs, fs.head, path), mode, 0, 0).ino


# -- trees -----------------------------------------------------------------------------------------


class Content(NamedTuple):
    """The bytes of a file; of a large one, the blocks that are not all zeros by their number."""

    whole: bytes
    blocks: dict[int, bytes]


class Node(NamedTuple):
    """All that tells one path from another. ``size`` of a directory is nobody's business."""

    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    content: Content
    target: bytes
    xattrs: dict[bytes, bytes]


class Times(NamedTuple):
    mtime_ns: int
    ctime_ns: int


class Shown(NamedTuple):
    """A tree: what is at each path, which inode that is, and each inode's times."""

    nodes: dict[bytes, Node]
    inos: dict[bytes, int]
    times: dict[int, Times]


NO_BYTES = Content(b"", {})


def shown(fs: Filesystem, view: View) -> Shown:
    """Everything in a view, the root included."""
    tree = Shown({}, {}, {})
    pending = [(b"", fs.getattr(view, ROOT_INO))]
    while pending:
        path, inode = pending.pop()
        tree.nodes[path] = node_of(fs, view, inode)
        tree.inos[path] = inode.ino
        tree.times[inode.ino] = Times(inode.mtime_ns, inode.ctime_ns)
        if inode.is_dir:
            pending += [(join(path, name), i) for name, i in list(fs.entries(view, inode.ino))]
    return tree


def node_of(fs: Filesystem, view: View, inode: Inode) -> Node:
    names = fs.listxattr(view, inode.ino)
    return Node(
        mode=inode.mode,
        nlink=inode.nlink,
        uid=inode.uid,
        gid=inode.gid,
        rdev=inode.rdev,
        size=0 if inode.is_dir else inode.size,
        content=_content(fs, view, inode) if inode.is_file else NO_BYTES,
        target=inode.target,
        xattrs={name: bytes(fs.getxattr(view, inode.ino, name)) for name in names},
    )


def _content(fs: Filesystem, view: View, inode: Inode) -> Content:
    if inode.size <= WHOLE_MAX:
        return Content(bytes(fs.read(view, inode.ino, 0, inode.size + 1)), {})
    pieces = (
        (offset, bytes(fs.read(view, inode.ino, offset, length)))
        for offset, length in list(fs.extents(view, inode.ino))
    )
    return Content(b"", in_blocks(pieces))


def in_blocks(pieces: Iterator[tuple[int, bytes]]) -> dict[int, bytes]:
    """(offset, bytes) of a file as its blocks, padded with zeros, without those of zeros only."""
    blocks: dict[int, bytearray] = {}
    for offset, data in pieces:
        for position in range(offset - offset % BLOCK_SIZE, offset + len(data), BLOCK_SIZE):
            block = blocks.setdefault(position // BLOCK_SIZE, bytearray(BLOCK_SIZE))
            start, stop = max(offset, position), min(offset + len(data), position + BLOCK_SIZE)
            block[start - position : stop - position] = data[start - offset : stop - offset]
    return {number: bytes(block) for number, block in blocks.items() if block != _ZEROS}


def inodes_held(fs: Filesystem) -> int:
    """How many inodes the head's names lead to."""
    return len(set(shown(fs, fs.head).inos.values()))
