"""Which records differ between two views, and in which aspects two inodes differ.

The `changes` index leads from two epochs to the entities whose visible record differs;
`ckptfs.history.diff.tree` turns them into changed paths. Nothing here walks a tree: the cost is
what was written on the two ways up to the epochs' common ancestor.

What is kept out of history is seen by nothing here.

Two files are compared by their block-map records, and read only where two records differ.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, NO_CONTENT, ContentId, Epoch, Ino, Inode
from ckptfs.store import Store, View, blockmap
from ckptfs.store.format import (
    block_entity,
    block_number,
    dirent_name,
    inode_entity,
    pack_u64,
    unpack_inode,
    unpack_mapping,
    unpack_u64,
)


class Entities(NamedTuple):
    """Entities of the five versioned tables, as their keys without epoch."""

    inodes: set[bytes]
    dirents: set[bytes]
    links: set[bytes]
    blocks: set[bytes]
    xattrs: set[bytes]


class Changed(NamedTuple):
    """What differs: inodes (attributes, bytes, xattrs) and directory entries."""

    inodes: set[Ino]
    entries: set[tuple[Ino, bytes]]


def epochs_between(store: Store, a: Epoch, b: Epoch) -> list[Epoch]:
    """The epochs on the two ways from ``a`` and ``b`` up to, not with, their common ancestor."""
    return store.epoch_tree.between(a, b)


def names_differ(store: Store, a: View, b: View) -> bool:
    """Whether any directory entry differs; stops at the first that does."""
    a, b = a.bare, b.bare
    for epoch in epochs_between(store, a.epoch, b.epoch):
        for entity in store.changes.walk(epoch, store.dirents.kind):
            if store.dirents.get(a, entity) != store.dirents.get(b, entity):
                return True
    return False


def entities_between(store: Store, a: View, b: View) -> Entities:
    """Every entity that was written between the two views.

    Blocks of a content that one of these epochs allocated are not included; the inode that names
    the content is. The caller has flushed.
    """
    found = Entities(set(), set(), set(), set(), set())
    tables = (store.inodes, store.dirents, store.links, store.blockmap, store.xattrs)
    by_kind = {table.kind: entities for table, entities in zip(tables, found, strict=True)}
    for epoch in epochs_between(store, a.epoch, b.epoch):
        for key in store.changes.walk(epoch):
            by_kind[key[:1]].add(key[1:])
    return found


def inode_in(store: Store, view: View, ino: Ino) -> Inode | None:
    """The inode as the view sees it, nameless or not; None if it is not there."""
    waiting = view.dirty_inodes.get(ino)
    if waiting is not None:
        return waiting
    record = store.inodes.get(view.bare, inode_entity(ino))
    return unpack_inode(ino, record) if record else None


def entry_in(store: Store, view: View, entity: bytes) -> Ino | None:
    record = store.dirents.get(view.bare, entity)
    return Ino(unpack_u64(record)) if record else None


def changed_between(store: Store, a: View, b: View) -> Changed:
    """Every inode and directory entry whose visible record differs between the two views.

    A file whose bytes differ is among the inodes, and so is one whose xattrs do.
    """
    store.pending.flush()
    written = entities_between(store, a, b)
    return changed_of(store, a, b, written, differing_blocks(store, a, b, written.blocks))


def changed_of(
    store: Store, a: View, b: View, written: Entities, blocks: dict[ContentId, list[int]]
) -> Changed:
    """`changed_between`, when the entities and blocks between the views are known already."""
    a, b = a.bare, b.bare
    inodes = set(_inodes(store, a, b, written.inodes, blocks))
    for entity in interrupts.checked(written.xattrs):
        if store.xattrs.get(a, entity) != store.xattrs.get(b, entity):
            inodes.add(Ino(unpack_u64(entity[:8])))
    entries = {
        (Ino(unpack_u64(entity[:8])), dirent_name(entity))
        for entity in interrupts.checked(written.dirents)
        if store.dirents.get(a, entity) != store.dirents.get(b, entity)
    }
    return Changed(inodes, entries)


def _inodes(
    store: Store,
    a: View,
    b: View,
    entities: set[bytes],
    blocks: dict[ContentId, list[int]],
) -> Iterator[Ino]:
    # Every write saves the inode too, so the file of a changed block is among the inodes.
    for entity in interrupts.checked(entities):
        ino = Ino(unpack_u64(entity))
        # Mostly the records tell, and need not be unpacked.
        before, after = store.inodes.get(a, entity), store.inodes.get(b, entity)
        if before != after or (blocks and after and unpack_inode(ino, after).content in blocks):
            yield ino


def differing_blocks(
    store: Store, a: View, b: View, entities: set[bytes]
) -> dict[ContentId, list[int]]:
    """By content, the numbers of the listed blocks whose map records differ."""
    found: dict[ContentId, list[int]] = {}
    a, b = a.bare, b.bare
    for entity in interrupts.checked(entities):
        if store.blockmap.get(a, entity) != store.blockmap.get(b, entity):
            content = ContentId(unpack_u64(entity[:8]))
            found.setdefault(content, []).append(block_number(entity))
    return found


# -- two inodes -----------------------------------------------------------------------------------

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
    if new.size <= BLOCK_SIZE:  # most files: to look one record up is less than to walk
        return _same_block(fs, record(fs, a, old, 0), record(fs, b, new, 0))
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
