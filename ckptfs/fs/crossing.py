"""Crossing the border between what is in history and what is kept out of it.

What crosses keeps its inode number and its open handles; its records go from one epoch to the
other, a directory's with everything below it. The bytes stay where they are: blocks are shared.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptfs.fs import content, copies, inodes
from ckptfs.fs.exclusion import is_own
from ckptfs.model import Ino, Inode, Place
from ckptfs.store.format import dirent_entity, pack_u64, unpack_u64

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View


def tree_of(fs: Filesystem, home: View, top: Ino) -> list[Ino]:
    """An inode and all that is below it, as far as it has the same home."""
    found: list[Ino] = []
    pending = [top]
    while pending:
        ino = pending.pop()
        found.append(ino)
        if inodes.load(fs, home, ino).is_dir:
            entries = fs.store.dirents.walk(home, pack_u64(ino))
            pending += [Ino(unpack_u64(record)) for _, record in entries]
    return list(dict.fromkeys(found))


def torn(
    fs: Filesystem, home: View, top: Inode, tree: list[Ino]
) -> Iterator[tuple[Ino, list[Place]]]:
    """The files of a tree that have names outside of it, too, and their names in it."""
    inside = set(tree) if top.is_dir else set()
    for ino in tree:
        inode = inodes.load(fs, home, ino)
        if not inode.is_dir and inode.nlink > 1:
            places = copies.places_of(fs, home, inode)
            mine = [
                place for place in places if place[0] in inside or place == (top.parent, top.name)
            ]
            if len(mine) != len(places):
                yield ino, mine


def require_whole(fs: Filesystem, home: View, top: Inode, tree: list[Ino]) -> None:
    """Refuse to let a file cross with some of its names only: as from one device to another."""
    if (top.nlink > 1 and not top.is_dir) or next(torn(fs, home, top, tree), None) is not None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def cross(fs: Filesystem, view: View, top: Inode, home: View, place: View, tree: list[Ino]) -> None:
    """Carry an entry with all that is below it to its other home, under the name that it has."""
    for ino in tree:
        _carry(fs, ino, home, place)
    excluded = view.excluded
    if excluded is None or is_own(fs, excluded, top.parent):
        return
    subdirs = int(top.is_dir)
    directory = inodes.load(fs, view.bare, top.parent)
    now = fs.clock()
    step = -subdirs if place is excluded else subdirs
    directory = directory._replace(nlink=directory.nlink + step, mtime_ns=now, ctime_ns=now)
    inodes.save(fs, view.bare, directory)
    fs.exclusion.touch(top.parent, now, subdirs=-step)


def _carry(fs: Filesystem, ino: Ino, home: View, place: View) -> None:
    fs.partial.flush_file(ino)
    fs.signing.add(ino)
    store = fs.store
    inode = inodes.load(fs, home, ino)
    number = pack_u64(ino)
    for where in copies.places_of(fs, home, inode):
        store.dirents.drop(home, dirent_entity(*where))
        store.dirents.put(place, dirent_entity(*where), number)
    for table in (store.links, store.xattrs):
        for entity, record in list(table.walk(home, number)):
            table.drop(home, entity)
            table.put(place, entity, record)
    carried = content.carry(fs, inode, home, place)
    inodes.remove(fs, home, ino)
    home.inodes -= 1
    place.inodes += 1
    if ino in fs.exclusion.borders:
        border = fs.exclusion.drop(ino)
        carried = carried._replace(
            nlink=carried.nlink + border.subdirs,
            mtime_ns=max(carried.mtime_ns, border.mtime_ns or carried.mtime_ns),
        )
    inodes.save(fs, place, carried)
