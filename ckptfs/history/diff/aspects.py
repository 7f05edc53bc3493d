"""What differs between two inodes, each in its view, and whether two files hold the same bytes.

Bytes are compared by their block-map records, and read only where two records differ.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator

from ckptfs.fs import Filesystem
from ckptfs.model import NO_CONTENT, ContentId, Ino, Inode
from ckptfs.store import View, blockmap
from ckptfs.store.format import block_entity, block_number, pack_u64, unpack_mapping

MODIFIED = "modified"
TYPE = "type"
TARGET = "target"
MODE = "mode"
OWNER = "owner"
XATTR = "xattr"
TIMES = "times"

#: By content, the numbers of its blocks whose records differ between the two views.
Blocks = dict[ContentId, list[int]]


def differences(
    fs: Filesystem, a: View, old: Inode, b: View, new: Inode, blocks: Blocks | None = None
) -> frozenset[str]:
    """The aspects in which ``old`` in ``a`` and ``new`` in ``b`` differ.

    ``blocks`` spares looking at blocks that are the same; without it all are looked at. The times
    of a directory, and those of a file whose bytes changed, say nothing new and are left
    out, and so are the times that only the system sets.
    """
    if stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        return frozenset({TYPE})
    return frozenset(_aspects(fs, a, old, b, new, blocks))


def _aspects(
    fs: Filesystem, a: View, old: Inode, b: View, new: Inode, blocks: Blocks | None = None
) -> Iterator[str]:
    modified = not _same_matter(fs, a, old, b, new, blocks)
    if modified:
        yield MODIFIED
    if old.target != new.target:
        yield TARGET
    if old.mode != new.mode:
        yield MODE
    if (old.uid, old.gid) != (new.uid, new.gid):
        yield OWNER
    if fs.store.xattrs_used and _xattrs(fs, a, old.ino) != _xattrs(fs, b, new.ino):
        yield XATTR
    if not (modified or new.is_dir) and old.mtime_ns != new.mtime_ns:
        yield TIMES


def _same_matter(
    fs: Filesystem, a: View, old: Inode, b: View, new: Inode, blocks: Blocks | None = None
) -> bool:
    if new.is_file:
        return same_bytes(fs, a, old, b, new, blocks)
    return old.rdev == new.rdev


def _xattrs(fs: Filesystem, view: View, ino: Ino) -> dict[bytes, bytes]:
    return {entity[8:]: value for entity, value in fs.store.xattrs.walk(view, pack_u64(ino))}


def same_bytes(
    fs: Filesystem, a: View, old: Inode, b: View, new: Inode, blocks: Blocks | None = None
) -> bool:
    if old.size != new.size:
        return False
    if old.content == new.content and blocks is not None:
        return all(
            _same_block(fs, record(fs, a, old, number), record(fs, b, new, number))
            for number in blocks.get(new.content, ())
        )
    mine, theirs = block_records(fs, a, old), block_records(fs, b, new)
    return all(
        _same_block(fs, mine.get(number), theirs.get(number))
        for number in mine.keys() | theirs.keys()
    )


def record(fs: Filesystem, view: View, inode: Inode, number: int) -> bytes | None:
    return fs.store.blockmap.get(view, block_entity(inode.content, number))


def block_records(fs: Filesystem, view: View, inode: Inode) -> dict[int, bytes]:
    """The block map of a file: number and record of each stored block."""
    if inode.content == NO_CONTENT:
        return {}
    walked = fs.store.blockmap.walk(view, pack_u64(inode.content))
    return {block_number(entity): value for entity, value in walked}


def _same_block(fs: Filesystem, mine: bytes | None, theirs: bytes | None) -> bool:
    """Whether two records read the same: a hole and what a short block lacks are zeros."""
    return mine == theirs or _stripped(fs, mine) == _stripped(fs, theirs)


def _stripped(fs: Filesystem, value: bytes | None) -> bytes:
    return bytes(blockmap.bytes_of(fs.store, unpack_mapping(value))).rstrip(b"\0") if value else b""
