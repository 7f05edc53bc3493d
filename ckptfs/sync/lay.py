"""Writing entries of a view into a lower directory: files, links, nodes, and their attributes.

Each function makes or changes one entry relative to a descriptor. Whether, where and under which
name is decided by the caller; the ledger is not known here.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, Inode
from ckptfs.store import View
from ckptfs.sync import content, lower
from ckptfs.sync.leaf import special_digest

#: Said of a file whose set-id bits had to stay away; see `lower.permitted_mode`.
NO_SET_ID = "written without its set-id bits, since it could not be given to its owner"


class Laid(NamedTuple):
    """A new entry: the digests of its content and its extended attributes, its identity below, and
    whether it has the mode it should have."""

    digest: bytes
    xattrs: bytes
    identity: tuple[int, int]
    whole: bool


def xattrs_of(fs: Filesystem, view: View, inode: Inode) -> dict[bytes, bytes]:
    names = fs.listxattr(view, inode.ino)
    return {name: fs.getxattr(view, inode.ino, name) for name in names}


def lay(fs: Filesystem, view: View, inode: Inode, dir_fd: int, name: bytes) -> Laid:
    """Make a new file, link or node with everything it has."""
    if inode.is_file:
        return _lay_file(fs, view, inode, dir_fd, name)
    fd = lower.make_special(
        dir_fd, name, inode.mode, inode.uid, rdev=inode.rdev, target=inode.target
    )
    try:
        now = dress_pinned(fd, inode)
        digest = special_digest(inode.mode, inode.rdev, inode.target)
        return Laid(digest, b"", lower.identity(now), whole=True)
    finally:
        os.close(fd)


def _lay_file(fs: Filesystem, view: View, inode: Inode, dir_fd: int, name: bytes) -> Laid:
    fd = lower.create(dir_fd, name)
    try:
        digest = _fill(fs, view, inode, fd)
        dressed = dress(fs, view, inode, fd)
        return Laid(digest, dressed.xattrs, lower.identity(dressed.now), dressed.whole)
    finally:
        os.close(fd)


def _fill(fs: Filesystem, view: View, inode: Inode, fd: int) -> bytes:
    if inode.size > BLOCK_SIZE or inode.allocated < inode.size:
        return content.copy_out(fs, view, inode, fd)
    data = fs.read(view, inode.ino, 0, BLOCK_SIZE)
    if data:
        content.write_all(fd, data, 0)
    return content.digest_of_one(data)


class Dressed(NamedTuple):
    """What an open file or directory got."""

    xattrs: bytes
    #: As it was before the mode and the times.
    now: os.stat_result
    whole: bool


def dress(fs: Filesystem, view: View, inode: Inode, fd: int) -> Dressed:
    """Give an open file or directory its attributes; the times last: the rest changes them."""
    now = _give(fd, inode)
    xattrs = xattrs_of(fs, view, inode)
    if xattrs:
        # Before the mode, which may take the right to do so from the owner, too.
        lower.set_user_xattrs(fd, xattrs)
    mode = lower.permitted_mode(inode.mode, inode.uid, inode.gid, now)
    # A change of owner takes set-id bits away, so the mode comes behind it.
    os.fchmod(fd, mode)
    os.utime(fd, ns=(inode.atime_ns, inode.mtime_ns))
    return Dressed(content.digest_of_xattrs(xattrs), now, mode == stat.S_IMODE(inode.mode))


def dress_pinned(fd: int, inode: Inode) -> os.stat_result:
    """`dress` for what is pinned, not open: everything but extended attributes."""
    path = lower.by_descriptor(fd)
    now = _give(fd, inode, path)
    mode = lower.permitted_mode(inode.mode, inode.uid, inode.gid, now)
    # Not for its own sake: chmod(2) takes the set-group-id bit from a file whose group the owner
    # for whom we act is not in.
    if not stat.S_ISLNK(now.st_mode) and mode != stat.S_IMODE(now.st_mode):
        os.chmod(path, mode)
    os.utime(path, ns=(inode.atime_ns, inode.mtime_ns))
    return now


def _give(fd: int, inode: Inode, path: str | None = None) -> os.stat_result:
    """Give it to its owner, as far as we may; return what it then is."""
    seen = os.fstat(fd)
    if (seen.st_uid, seen.st_gid) == (inode.uid, inode.gid):
        return seen
    lower.set_owner(fd if path is None else path, inode.uid, inode.gid, seen)
    return os.fstat(fd)
