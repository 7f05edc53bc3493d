"""Purging: removing files from the workspace and from every checkpoint, as if they never existed.

For a secret that must not be kept. Nothing else changes checkpoints. The inodes at a path in any
view go, with all their other names; `compact` then leaves nothing of them in the store's file.
Other files with the same bytes stay and are reported. The lower directory is not searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history import removal
from ckptfs.history.diff import compare
from ckptfs.history.diff.changed import Changed
from ckptfs.history.paths import path_of, select
from ckptfs.model import NO_CONTENT, ROOT_INO, Epoch, Ino, Inode, Place
from ckptfs.store import Store, View
from ckptfs.store.format import (
    GONE,
    dirent_entity,
    epoch_of,
    link_place,
    pack_inode,
    pack_u64,
    unpack_inode,
    unpack_mapping,
    unpack_u64,
)


class Doomed(NamedTuple):
    """What a purge would remove: inodes, and their paths in the workspace and in checkpoints."""

    inodes: set[Ino]
    live_paths: list[bytes]
    past_paths: list[bytes]


class Purged(NamedTuple):
    """A purge that is done. ``elsewhere`` are paths of other files that hold some of the bytes."""

    doomed: Doomed
    elsewhere: list[bytes]
    changed: Changed


def meant(fs: Filesystem, patterns: Sequence[bytes]) -> list[bytes]:
    """The paths that the patterns name in the workspace, excluded files too, or in any checkpoint.
    Raises as `select` does if one of them names nothing."""
    fs.flush()
    store = fs.store
    return select(fs, [store.view(epoch) for epoch in store.epochs], patterns, excluded=True)


def find(fs: Filesystem, paths: Sequence[bytes]) -> Doomed:
    """What is or was at these paths, with all below it."""
    with interrupts.unstoppable():
        fs.flush()
        removal.reap(fs)
    store = fs.store
    inodes: set[Ino] = set()
    for epoch in store.epochs:
        for path in paths:
            inodes.update(_at(store, store.view(epoch), path))
    _add_below(store, inodes)
    inodes.discard(ROOT_INO)
    past: set[bytes] = set()
    for epoch in store.epochs:
        if epoch != store.head.epoch:
            past.update(_paths(store, store.view(epoch), inodes))
    return Doomed(inodes, sorted(_paths(store, store.head, inodes)), sorted(past))


def purge(fs: Filesystem, paths: Sequence[bytes]) -> Purged:
    """Remove it from every view. The caller commits, compacts, and notifies the kernel. It is not
    interruptible once it has begun: a secret must not be left half removed."""
    with interrupts.stoppable():
        doomed = find(fs, paths)
    store = fs.store
    views = {epoch: store.view(epoch).bare for epoch in sorted(store.epochs)}
    if store.excluded is not None:
        views[store.excluded.epoch] = store.excluded
    changed = Changed(set(doomed.inodes), set())
    _uncount(fs, views, doomed.inodes)
    pieces: set[bytes] = set()
    packs: set[bytes] = set()
    for ino in doomed.inodes:
        versions = list(_inodes(store, views, ino))
        places = {(inode.parent, inode.name) for _, inode in versions if inode.name}
        places |= {link_place(entity) for entity, _, _ in store.links.versions(pack_u64(ino))}
        for content in {inode.content for _, inode in versions} - {NO_CONTENT}:
            pieces.update(_drop_blocks(store, views, pack_u64(content), packs))
        for table in (store.links, store.xattrs, store.inodes):
            for entity, suffix, _ in list(table.versions(pack_u64(ino))):
                store.note()
                table.forget(views[epoch_of(suffix)], entity)
        for place in places:
            _drop_entry(store, views, place, ino)
        changed.entries.update(places)
        _forget(fs, ino)
    # Blocks that are encoded against a purged one, or packed with it, must not keep it.
    store.blocks.detach(pieces | packs)
    compare.forget_counts(store)
    return Purged(doomed, _elsewhere(store, views, pieces), changed)


# -- finding ---------------------------------------------------------------------------------------


def _at(store: Store, view: View, path: bytes) -> Iterator[Ino]:
    """The inode at a path of the view, if there is one."""
    ino = ROOT_INO
    for name in path.split(b"/"):
        record = store.dirents.get(view, dirent_entity(ino, name))
        if record is None:
            return
        ino = Ino(unpack_u64(record))
    yield ino


def _add_below(store: Store, inodes: set[Ino]) -> None:
    """Add everything that was ever in one of the inodes: no view may keep an entry of a directory
    that is gone."""
    pending = list(inodes)
    while pending:
        interrupts.check()
        for _, _, record in store.dirents.versions(pack_u64(pending.pop())):
            ino = Ino(unpack_u64(record)) if record else ROOT_INO
            if ino not in inodes and ino != ROOT_INO:
                inodes.add(ino)
                pending.append(ino)


def _paths(store: Store, view: View, inodes: Iterable[Ino]) -> Iterator[bytes]:
    for ino in interrupts.checked(inodes):
        record = store.inodes.get(view, pack_u64(ino))
        if record is None:
            continue
        inode = unpack_inode(ino, record)
        others = (link_place(entity) for entity, _ in store.links.walk(view, pack_u64(ino)))
        for place in ((inode.parent, inode.name), *others):
            if place[1]:
                yield path_of(store, view, place)


def _inodes(store: Store, views: dict[Epoch, View], ino: Ino) -> Iterator[tuple[View, Inode]]:
    """Every version of an inode, with the view that has it."""
    for _, suffix, record in store.inodes.versions(pack_u64(ino)):
        if record:
            yield views[epoch_of(suffix)], unpack_inode(ino, record)


# -- removing --------------------------------------------------------------------------------------


def _uncount(fs: Filesystem, views: dict[Epoch, View], doomed: set[Ino]) -> None:
    """Correct the counts that include doomed inodes: of each view, and of directories."""
    store = fs.store
    parents: set[Ino] = set()
    for epoch, view in views.items():
        seen = [ino for ino in doomed if store.inodes.get(view, pack_u64(ino)) is not None]
        if view is store.excluded:
            view.inodes -= len(seen)
            _uncount_in_borders(fs, view, doomed)
        elif seen:
            store.recount_epoch(epoch, view.inodes - len(seen))
    for ino in doomed:
        parents.update(inode.parent for _, inode in _inodes(store, views, ino) if inode.is_dir)
    for parent in parents - doomed - {Ino(0)}:
        for view, directory in list(_inodes(store, views, parent)):
            lost = sum(_stands_in(store, view, ino, parent) for ino in doomed)
            if lost:
                record = pack_inode(directory._replace(nlink=directory.nlink - lost))
                fs.changing(parent)
                store.inodes.put(view, pack_u64(parent), record)


def _uncount_in_borders(fs: Filesystem, excluded: View, doomed: set[Ino]) -> None:
    """Correct the counts of directories in history that contain excluded doomed ones."""
    for border in list(fs.exclusion.borders):
        if border in doomed:
            fs.exclusion.drop(border)
        elif lost := sum(_stands_in(fs.store, excluded, ino, border) for ino in doomed):
            fs.exclusion.touch(border, fs.clock(), subdirs=-lost)


def _stands_in(store: Store, view: View, ino: Ino, parent: Ino) -> bool:
    record = store.inodes.get(view, pack_u64(ino))
    if record is None:
        return False
    inode = unpack_inode(ino, record)
    return inode.is_dir and inode.parent == parent


def _drop_blocks(
    store: Store, views: dict[Epoch, View], content: bytes, packs: set[bytes]
) -> Iterator[bytes]:
    """Drop every block of a content; yield the key of the bytes of each. Packs that held them are
    added to ``packs``."""
    for entity, suffix, record in store.blockmap.versions(content):
        store.note()
        store.blockmap.forget(views[epoch_of(suffix)], entity)
        if record:
            yield _name(store, record)
            if key := unpack_mapping(record).key:
                if (pack := store.blocks.pack_of(key)) is not None:
                    packs.add(pack)
                store.blocks.release(key)


def _name(store: Store, record: bytes) -> bytes:
    """The key that the bytes of a block have, or would have if they were not inline."""
    mapping = unpack_mapping(record)
    return mapping.key or store.blocks.digest(mapping.inline, 0)


def _drop_entry(store: Store, views: dict[Epoch, View], place: Place, ino: Ino) -> None:
    """Remove a name of the inode in every view that has it.

    The oldest version comes first, so that what the next would inherit is already right: a name
    that meant another file before must not mean that file again.
    """
    entity = dirent_entity(*place)
    dirents = store.dirents
    for _, suffix, record in reversed(list(dirents.versions(entity))):
        if record in (GONE, pack_u64(ino)):
            view = views[epoch_of(suffix)]
            if dirents.inherited(view, entity) is None:
                dirents.forget(view, entity)
            else:
                dirents.put(view, entity, GONE)


def _forget(fs: Filesystem, ino: Ino) -> None:
    """Forget the inode; a program that has it open finds it stale."""
    fs.partial.drop_file(ino)
    fs.changing(ino)
    fs.unlinked.discard(ino)
    fs.forgotten.discard(ino)
    fs.store.orphans.delete(pack_u64(ino))


def _elsewhere(store: Store, views: dict[Epoch, View], pieces: set[bytes]) -> list[bytes]:
    """Paths of files that still hold one of the pieces: the same block or the same inline bytes."""
    contents = {
        entity[:8]
        for entity, _, record in store.blockmap.versions(b"")
        if record and _name(store, record) in pieces
    }
    found: set[bytes] = set()
    if contents:
        for entity, suffix, record in list(store.inodes.versions(b"")):
            ino = Ino(unpack_u64(entity))
            if record and pack_u64(unpack_inode(ino, record).content) in contents:
                found.update(_paths(store, views[epoch_of(suffix)], [ino]))
    return sorted(found)
