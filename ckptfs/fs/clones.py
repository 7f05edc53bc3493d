"""Clones: copies of files in the same or another view, made of references to the same blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs.fs import inodes
from ckptfs.fs.exclusion import home_of
from ckptfs.model import BLOCK_SIZE, NO_CONTENT, Ino, Inode
from ckptfs.store import blockmap
from ckptfs.store.format import (
    PRESENT,
    block_entity,
    block_number,
    dirent_entity,
    dirent_name,
    link_entity,
    link_place,
    pack_u64,
    unpack_mapping,
    unpack_u64,
    xattr_entity,
    xattr_name,
)

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View


def clone(fs: Filesystem, source: View, ino: Ino, view: View, parent: Ino, name: bytes) -> Inode:
    """Put a copy of what ``ino`` is in the view ``source`` under a free name of ``view``: all its
    attributes, times and bytes, none of its other names. Not for directories."""
    original = fs.getattr(source, ino)
    # Before anything changes: a record for each block, however many there are.
    fs.store.require(original.allocated // BLOCK_SIZE)
    made = fs.mknod(view, parent, name, original.mode, original.uid, original.gid, original.rdev)
    view = home_of(fs, view, made.ino)
    copy = _like(fs, source, original, view, made)
    inodes.save(fs, view, copy)
    return copy


def part(fs: Filesystem, view: View, ino: Ino, apart: list[tuple[Ino, bytes]]) -> None:
    """Make some of the names of a file names of a copy of it: then it is two files."""
    store = fs.store
    original = fs.getattr(view, ino)
    places = places_of(fs, view, original)
    rest = [place for place in places if place not in apart]
    made = original._replace(ino=store.new_ino(), parent=apart[0][0], name=apart[0][1])
    copy = _like(fs, view, original, view, made)._replace(nlink=len(apart))
    for parent, name in places[1:]:
        store.links.drop(view, link_entity(ino, parent, name))
    for number, names in ((ino, rest), (copy.ino, apart)):
        for parent, name in names:
            store.dirents.put(view, dirent_entity(parent, name), pack_u64(number))
        for parent, name in names[1:]:
            store.links.put(view, link_entity(number, parent, name), PRESENT)
    view.inodes += 1
    inodes.save(fs, view, copy)
    parent, name = rest[0]
    inodes.save(fs, view, original._replace(parent=parent, name=name, nlink=len(rest)))


def renumber_directory(fs: Filesystem, view: View, ino: Ino) -> list[tuple[Ino, bytes]]:
    """Give a directory of the view a new inode number; return its name, and those in it."""
    store = fs.store
    original = fs.getattr(view, ino)
    copy = original._replace(ino=store.new_ino())
    names = [(original.parent, original.name)]
    for entity, record in list(store.dirents.walk(view, pack_u64(ino))):
        name = dirent_name(entity)
        store.dirents.drop(view, entity)
        store.dirents.put(view, dirent_entity(copy.ino, name), record)
        moved_along(fs, view, Ino(unpack_u64(record)), (ino, name), (copy.ino, name))
        names.append((copy.ino, name))
    copy_xattrs(fs, view, ino, view, copy.ino)
    _drop_xattrs(fs, view, ino)
    store.dirents.put(view, dirent_entity(copy.parent, copy.name), pack_u64(copy.ino))
    inodes.save(fs, view, copy)
    inodes.remove(fs, view, ino)
    # It counts this one from here on: what takes the old number out of history must not take it
    # from an inherited count.
    inodes.keep(fs, view, inodes.load(fs, view, copy.parent))
    return names


def moved_along(
    fs: Filesystem, view: View, ino: Ino, old: tuple[Ino, bytes], new: tuple[Ino, bytes]
) -> None:
    """Note in an inode, or among its further names, that one of its places is called another."""
    inode = inodes.load(fs, view, ino)
    if (inode.parent, inode.name) == old:
        inodes.save(fs, view, inode._replace(parent=new[0], name=new[1]))
    else:
        fs.store.links.drop(view, link_entity(ino, *old))
        fs.store.links.put(view, link_entity(ino, *new), PRESENT)


def lose_name(
    fs: Filesystem,
    view: View,
    inode: Inode,
    place: tuple[Ino, bytes],
    others: list[tuple[Ino, bytes]],
) -> None:
    """Take one of several names from an inode; ``others`` are those that its record has not."""
    gone = place
    if (inode.parent, inode.name) == place:
        gone = others[0]
        inode = inode._replace(parent=gone[0], name=gone[1])
    fs.store.links.drop(view, link_entity(inode.ino, *gone))
    inodes.save(fs, view, inode._replace(nlink=inode.nlink - 1))


def renumber(fs: Filesystem, view: View, ino: Ino) -> list[tuple[Ino, bytes]]:
    """Give a file of the view a new inode number; return its names, as directory and name.

    Handles that are open on the old number do not lead to the file any more.
    """
    store = fs.store
    original = fs.getattr(view, ino)
    places = places_of(fs, view, original)
    for parent, name in places[1:]:
        store.links.drop(view, link_entity(ino, parent, name))
    made = original._replace(ino=store.new_ino())
    copy = _like(fs, view, original, view, made)._replace(nlink=original.nlink)
    _drop_xattrs(fs, view, ino)
    for parent, name in places:
        store.dirents.put(view, dirent_entity(parent, name), pack_u64(copy.ino))
    for parent, name in places[1:]:
        store.links.put(view, link_entity(copy.ino, parent, name), PRESENT)
    inodes.save(fs, view, copy)
    inodes.remove(fs, view, ino)
    return places


def places_of(fs: Filesystem, view: View, inode: Inode) -> list[tuple[Ino, bytes]]:
    """Every name of an inode, as directory and name; the one in its own record first."""
    others = fs.store.links.walk(view, pack_u64(inode.ino))
    return [(inode.parent, inode.name), *(link_place(entity) for entity, _ in others)]


def _like(fs: Filesystem, source: View, original: Inode, view: View, made: Inode) -> Inode:
    """The new inode ``made`` with the attributes, the bytes and the xattrs of the original."""
    copy = original._replace(
        ino=made.ino,
        nlink=1,
        parent=made.parent,
        name=made.name,
        ctime_ns=fs.clock(),
    )
    if original.content != NO_CONTENT:
        fs.partial.flush_file(original.ino)
        copy = copy._replace(content=fs.store.new_content(), content_epoch=view.epoch)
        _share_blocks(fs, source, original, view, copy)
    copy_xattrs(fs, source, original.ino, view, copy.ino)
    return copy


def _share_blocks(fs: Filesystem, source: View, original: Inode, view: View, copy: Inode) -> None:
    store = fs.store
    for entity, record in store.blockmap.walk(source, pack_u64(original.content)):
        store.note()
        blockmap.share(store, unpack_mapping(record))
        place = block_entity(copy.content, block_number(entity))
        store.blockmap.put_unlisted(view, place, record)


def copy_xattrs(fs: Filesystem, source: View, ino: Ino, view: View, new_ino: Ino) -> None:
    if not fs.store.xattrs_used:
        return
    for entity, record in fs.store.xattrs.walk(source, pack_u64(ino)):
        fs.store.xattrs.put(view, xattr_entity(new_ino, xattr_name(entity)), record)


def _drop_xattrs(fs: Filesystem, view: View, ino: Ino) -> None:
    """Take the xattrs from a number that is given up: where something excluded has it, that would
    show those of history beside its own."""
    if not fs.store.xattrs_used:
        return
    for entity, _ in list(fs.store.xattrs.walk(view, pack_u64(ino))):
        fs.store.xattrs.drop(view, entity)
