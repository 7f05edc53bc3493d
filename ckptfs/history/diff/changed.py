"""Which records differ between two views, found through the `changes` index.

Goes from two epochs to the entities whose visible record differs; `ckptfs.history.diff.tree` turns
them into changed paths. Nothing here walks a tree: the cost is what was written on the two ways up
to the epochs' common ancestor.

What is kept out of history is seen by nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.model import ContentId, Epoch, Ino, Inode
from ckptfs.store import Store, View
from ckptfs.store.format import block_number, dirent_name, inode_entity, unpack_inode, unpack_u64


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
    way_a: list[Epoch] = []
    way_b: list[Epoch] = []
    while a != b:
        # The younger of two is no ancestor of the other: numbers count up.
        if a > b:
            way_a.append(a)
            a = store.epochs[a].parent
        else:
            way_b.append(b)
            b = store.epochs[b].parent
    return way_a + way_b


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
    the content is."""
    store.pending.flush()
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
