"""What the kernel is told about an inode, and for how long it may believe it: for pyfuse3."""

from __future__ import annotations

from pyfuse3 import EntryAttributes

from ckptfs.fs.inodes import without_set_id
from ckptfs.fuse.nodes import HISTORY, LIVE_END
from ckptfs.model import Inode

#: Nobody but this process changes the tree, and it tells the kernel when it does so unasked.
FOREVER = 86_400.0 * 365

#: What stat calls a block, and the size that programs are told to write in.
_STAT_BLOCK = 512
_IO_SIZE = 65_536


def attributes(inode: Inode, base: int = 0) -> EntryAttributes:
    """The answer for an inode; ``base`` makes its number a node id of its view. What stands in
    `.checkpoints` itself has no base, and its names have to be asked for again: checkpoints come
    and go."""
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
    # As `validity_of` in `reply.c`, which says why.
    may_lose_bits = inode.is_file and without_set_id(inode.mode) != inode.mode
    entry.attr_timeout = FOREVER if node < HISTORY and not may_lose_bits else 0
    entry.entry_timeout = FOREVER if base or node < LIVE_END else 0
    return entry


def absent(timeout: float) -> EntryAttributes:
    """The answer to a lookup that tells the kernel to remember that the name is not there."""
    entry = EntryAttributes()
    entry.st_ino = 0
    entry.entry_timeout = timeout
    return entry
