"""Writing entries of a view into a directory below: files, links, nodes, and their attributes.

Each function makes or changes one entry relative to a descriptor. Whether, where and under which
name is decided by the caller; the ledger is not known here.
"""

from __future__ import annotations

import os
import stat

from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, Inode
from ckptfs.store import View
from ckptfs.sync import below, content
from ckptfs.sync.leaf import special_digest


def xattrs_of(fs: Filesystem, view: View, inode: Inode) -> dict[bytes, bytes]:
    names = fs.listxattr(view, inode.ino)
    return {name: fs.getxattr(view, inode.ino, name) for name in names}


def lay(fs: Filesystem, view: View, inode: Inode, dir_fd: int, name: bytes) -> tuple[bytes, bytes]:
    """Make a new file, link or node with everything it has; return the digests of its content and
    of its extended attributes."""
    if inode.is_file:
        return _lay_file(fs, view, inode, dir_fd, name)
    if inode.is_link:
        os.symlink(inode.target, name, dir_fd=dir_fd)
    else:
        os.mknod(name, stat.S_IFMT(inode.mode) | 0o600, inode.rdev, dir_fd=dir_fd)
    dress_at(dir_fd, name, inode)
    return special_digest(inode.mode, inode.rdev, inode.target), b""


def _lay_file(
    fs: Filesystem, view: View, inode: Inode, dir_fd: int, name: bytes
) -> tuple[bytes, bytes]:
    fd = below.create(dir_fd, name)
    try:
        return _fill(fs, view, inode, fd), dress(fs, view, inode, fd)
    finally:
        os.close(fd)


def _fill(fs: Filesystem, view: View, inode: Inode, fd: int) -> bytes:
    if inode.size > BLOCK_SIZE or inode.allocated < inode.size:
        return content.copy_out(fs, view, inode, fd)
    data = fs.read(view, inode.ino, 0, BLOCK_SIZE)
    if data:
        content.write_all(fd, data, 0)
    return content.digest_of_one(data)


def dress(fs: Filesystem, view: View, inode: Inode, fd: int) -> bytes:
    """Give an open file or directory its attributes; the times last: the rest changes them."""
    seen = os.fstat(fd)
    below.set_owner(fd, inode.uid, inode.gid, seen)
    # A change of owner takes set-id bits away, so the mode comes behind it.
    os.fchmod(fd, stat.S_IMODE(inode.mode))
    xattrs = xattrs_of(fs, view, inode)
    if xattrs:
        below.set_user_xattrs(fd, xattrs)
    os.utime(fd, ns=(inode.atime_ns, inode.mtime_ns))
    return content.digest_of_xattrs(xattrs)


def dress_at(dir_fd: int, name: bytes, inode: Inode) -> None:
    """`dress` for what cannot be opened, or is not worth it: everything but extended attributes."""
    seen = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    below.set_owner_at(dir_fd, name, inode.uid, inode.gid, seen)
    if not inode.is_link:
        below.set_mode_at(dir_fd, name, inode.mode)
    below.set_times_at(dir_fd, name, inode.atime_ns, inode.mtime_ns)
