"""Renaming: one entry moves, or two are exchanged, perhaps across the border of history.

What crosses the border between history and what is excluded from it keeps its inode number and its
open handles. Its records go from one epoch to the other, a directory's with everything below it.
The bytes stay where they are: blocks are shared.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptfs.fs import clones, content, inodes, names
from ckptfs.fs.exclusion import home_for, home_of, is_own
from ckptfs.model import ROOT_INO, Ino, Inode, Place
from ckptfs.store.format import PRESENT, dirent_entity, link_entity, pack_u64, unpack_u64

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


def rename(
    fs: Filesystem,
    view: View,
    parent: Ino,
    name: bytes,
    new_parent: Ino,
    new_name: bytes,
    flags: int = 0,
) -> Ino:
    """Move an entry; return the inode that has the new name."""
    view.require_writable()
    if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
        raise names.error(errno.EINVAL)
    names.require_valid(new_name)
    source = inodes.load_dir(fs, view, parent)
    target = inodes.load_dir(fs, view, new_parent)
    moved = inodes.load(fs, view, names.require(fs, view, parent, name))
    if not target.nlink:
        raise names.error(errno.ENOENT)
    if moved.is_dir and new_parent != parent:
        _require_outside(fs, view, moved.ino, new_parent)
    found = names.find(fs, view, new_parent, new_name)
    replaced = None if found is None else inodes.load(fs, view, found)
    if flags == RENAME_EXCHANGE:
        _exchange(fs, view, source, name, moved, target, new_name, replaced)
        return moved.ino
    if replaced is not None and flags == RENAME_NOREPLACE:
        raise names.error(errno.EEXIST)
    if replaced is None or replaced.ino != moved.ino:
        _move(fs, view, source, name, moved, target, new_name, replaced)
    return moved.ino


def _require_outside(fs: Filesystem, view: View, ino: Ino, place: Ino) -> None:
    """Refuse to put a directory below itself."""
    while place != ROOT_INO:
        if place == ino:
            raise names.error(errno.EINVAL)
        place = inodes.load(fs, view, place).parent
        if not place:
            return


def _move(
    fs: Filesystem,
    view: View,
    source: Inode,
    name: bytes,
    moved: Inode,
    target: Inode,
    new_name: bytes,
    replaced: Inode | None,
) -> None:
    fs.store.charge()
    if replaced is not None:
        _require_replaceable(fs, view, moved, replaced)
    home = _bring_home(fs, view, moved, target.ino, new_name)
    if replaced is None or names.is_last(replaced):
        fs.acknowledge()
    if replaced is not None:
        gone_from = home_of(fs, view, replaced.ino)
        names.remove(fs, gone_from, target.ino, new_name, replaced)
        _recount(fs, view, target.ino, gone_from, -int(replaced.is_dir))
    fs.store.dirents.drop(home, dirent_entity(source.ino, name))
    names.set_entry(fs, home, target.ino, new_name, moved.ino)
    # A hard link of one inode replaced by another name of it was ruled out before, so what
    # `names.remove` saved cannot be `moved`.
    moved = inodes.load(fs, home, moved.ino)
    renamed = _renamed(fs, home, moved, (source.ino, name), (target.ino, new_name))
    inodes.save(fs, home, renamed._replace(ctime_ns=fs.clock()))
    if source.ino == target.ino:
        _recount(fs, view, source.ino, home, 0)
    else:
        _recount(fs, view, source.ino, home, -int(moved.is_dir))
        _recount(fs, view, target.ino, home, int(moved.is_dir))


def _bring_home(fs: Filesystem, view: View, moved: Inode, parent: Ino, name: bytes) -> View:
    """Let what is to be called another cross the border if its new name lies on the other side.
    Returns its home from then on; refused with EXDEV where it would be torn."""
    if view.excluded is None:
        return view
    if moved.is_dir:
        fs.exclusion.forget_paths()
    home = home_of(fs, view, moved.ino)
    place = home_for(fs, view, parent, name, is_dir=moved.is_dir)
    if home is not place:
        tree = tree_of(fs, home, moved.ino)
        require_whole(fs, home, moved, tree)
        cross(fs, view, moved, home, place, tree)
    return place


def _recount(fs: Filesystem, view: View, directory: Ino, home: View, subdirs: int) -> None:
    """`names.touch` for a directory that something else may have changed since it was looked at."""
    names.touch(fs, view, inodes.load_dir(fs, view, directory), home, subdirs=subdirs)


def _require_replaceable(fs: Filesystem, view: View, moved: Inode, replaced: Inode) -> None:
    if replaced.is_dir and not moved.is_dir:
        raise names.error(errno.EISDIR)
    if moved.is_dir and not replaced.is_dir:
        raise names.error(errno.ENOTDIR)
    if replaced.is_dir and not names.is_empty(fs, view, replaced.ino):
        raise names.error(errno.ENOTEMPTY)


def _exchange(
    fs: Filesystem,
    view: View,
    source: Inode,
    name: bytes,
    first: Inode,
    target: Inode,
    new_name: bytes,
    second: Inode | None,
) -> None:
    if second is None:
        raise names.error(errno.ENOENT)
    if first.ino == second.ino:
        return
    if second.is_dir and source.ino != target.ino:
        _require_outside(fs, view, second.ino, source.ino)
    fs.store.charge()
    old, new = (source.ino, name), (target.ino, new_name)
    first_home = _bring_home(fs, view, first, *new)
    second_home = _bring_home(fs, view, second, *old)
    if first_home is not second_home:
        fs.store.dirents.drop(first_home, dirent_entity(*old))
        fs.store.dirents.drop(second_home, dirent_entity(*new))
    names.set_entry(fs, second_home, *old, second.ino)
    names.set_entry(fs, first_home, *new, first.ino)
    now = fs.clock()
    for ino, home, was, will in (
        (first.ino, first_home, old, new),
        (second.ino, second_home, new, old),
    ):
        inode = inodes.load(fs, home, ino)
        inodes.save(fs, home, _renamed(fs, home, inode, was, will)._replace(ctime_ns=now))
        _recount(fs, view, was[0], home, -int(inode.is_dir))
        _recount(fs, view, will[0], home, int(inode.is_dir))


def _renamed(
    fs: Filesystem,
    view: View,
    inode: Inode,
    old: tuple[Ino, bytes],
    new: tuple[Ino, bytes],
) -> Inode:
    if (inode.parent, inode.name) == old:
        return inode._replace(parent=new[0], name=new[1])
    fs.store.links.drop(view, link_entity(inode.ino, *old))
    fs.store.links.put(view, link_entity(inode.ino, *new), PRESENT)
    return inode


# -- crossing the border of history ----------------------------------------------------------------


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
            places = clones.places_of(fs, home, inode)
            mine = [
                place for place in places if place[0] in inside or place == (top.parent, top.name)
            ]
            if len(mine) != len(places):
                yield ino, mine


def require_whole(fs: Filesystem, home: View, top: Inode, tree: list[Ino]) -> None:
    """Refuse to let a file cross with some of its names only: as from one device to another."""
    if (top.nlink > 1 and not top.is_dir) or next(torn(fs, home, top, tree), None) is not None:
        raise names.error(errno.EXDEV)


def cross(fs: Filesystem, view: View, top: Inode, home: View, place: View, tree: list[Ino]) -> None:
    """Carry an entry with all that is below it to its other home, under the name that it has."""
    for ino in tree:
        _carry(fs, ino, home, place)
    excluded = view.excluded
    if top.is_dir and home is excluded:
        # What went from it before left no trace: the next write-back has to look at everything.
        fs.store.metadata.put_agreed(None)
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
    for where in clones.places_of(fs, home, inode):
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
