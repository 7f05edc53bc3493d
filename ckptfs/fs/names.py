"""Names: directories and what stands in them.

Owns directory entries, hard links, renames, and the times and link counts that they change. The
bytes of files are not known here.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptfs.fs import crossing, inodes
from ckptfs.fs.exclusion import home_for, home_of, note_border
from ckptfs.model import LINK_MAX, NAME_MAX, ROOT_INO, TARGET_MAX, Ino, Inode
from ckptfs.store.format import (
    PRESENT,
    dirent_entity,
    dirent_name,
    link_entity,
    link_place,
    pack_u64,
    unpack_u64,
)

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _require_valid(name: bytes) -> None:
    """Refuse a name that no directory can hold."""
    if len(name) > NAME_MAX:
        raise _error(errno.ENAMETOOLONG)
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise _error(errno.EINVAL)


# -- looking ---------------------------------------------------------------------------------------


def find(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Ino | None:
    """The inode under a name, or None. The parent is not checked."""
    record = fs.store.dirents.get(view, dirent_entity(parent, name))
    return Ino(unpack_u64(record)) if record else None


def _require(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Ino:
    ino = find(fs, view, parent, name)
    if ino is None:
        raise _error(errno.ENOENT)
    return ino


def seek(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Inode | None:
    """What stands under a name, or None: most lookups are for names that are not there."""
    if len(name) > NAME_MAX:
        raise _error(errno.ENAMETOOLONG)
    ino = find(fs, view, parent, name)
    if ino is None:
        inodes.load_dir(fs, view, parent)
        return None
    return inodes.getattr(fs, view, ino)


def lookup(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Inode:
    inode = seek(fs, view, parent, name)
    if inode is None:
        raise _error(errno.ENOENT)
    return inode


def entries(
    fs: Filesystem, view: View, ino: Ino, after: bytes = b""
) -> Iterator[tuple[bytes, Inode]]:
    """(name, inode) of a directory's entries in name order, from the first behind ``after``.

    The caller may change the directory between two entries: nothing is given twice, and nothing
    that stays is left out.
    """
    prefix = pack_u64(ino)
    # An entity ends in NUL, so the name followed by \x01 lies behind it and before every other.
    start = prefix + after + b"\x01" if after else prefix
    for entity, record in fs.store.dirents.walk(view, prefix, start):
        child = Ino(unpack_u64(record))
        try:
            yield dirent_name(entity), inodes.getattr(fs, view, child)
        except OSError as error:
            # Removed since the walk read ahead.
            if error.errno != errno.ESTALE:
                raise


def readlink(fs: Filesystem, view: View, ino: Ino) -> bytes:
    inode = inodes.load(fs, view, ino)
    if not inode.is_link:
        raise _error(errno.EINVAL)
    return inode.target


def is_empty(fs: Filesystem, view: View, ino: Ino) -> bool:
    return next(fs.store.dirents.walk(view, pack_u64(ino)), None) is None


# -- making ----------------------------------------------------------------------------------------


def mknod(
    fs: Filesystem,
    view: View,
    parent: Ino,
    name: bytes,
    mode: int,
    uid: int,
    gid: int,
    rdev: int = 0,
) -> Inode:
    """A regular file, FIFO, socket or device node."""
    if not stat.S_IFMT(mode):
        mode |= stat.S_IFREG
    return _make(fs, view, parent, name, mode, uid, gid, rdev=rdev)


def mkdir(
    fs: Filesystem, view: View, parent: Ino, name: bytes, mode: int, uid: int, gid: int
) -> Inode:
    return _make(fs, view, parent, name, stat.S_IFDIR | stat.S_IMODE(mode), uid, gid)


def symlink(
    fs: Filesystem, view: View, parent: Ino, name: bytes, target: bytes, uid: int, gid: int
) -> Inode:
    if len(target) > TARGET_MAX:
        raise _error(errno.ENAMETOOLONG)
    if not target or b"\0" in target:
        raise _error(errno.ENOENT)
    return _make(fs, view, parent, name, stat.S_IFLNK | 0o777, uid, gid, target=target)


def _make(
    fs: Filesystem,
    view: View,
    parent: Ino,
    name: bytes,
    mode: int,
    uid: int,
    gid: int,
    *,
    rdev: int = 0,
    target: bytes = b"",
) -> Inode:
    directory = _open_place(fs, view, parent, name)
    if directory.mode & stat.S_ISGID:
        gid = directory.gid
        if stat.S_ISDIR(mode):
            mode |= stat.S_ISGID
    fs.store.charge()
    is_dir = stat.S_ISDIR(mode)
    home = home_for(fs, view, parent, name, is_dir=is_dir)
    inode = inodes.make(
        fs, home, mode, uid, gid, parent=parent, name=name, rdev=rdev, target=target
    )
    inodes.save(fs, home, inode)
    _set(fs, home, parent, name, inode.ino)
    _touch(fs, view, directory, home, subdirs=1 if is_dir else 0)
    return inode


def _open_place(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Inode:
    """The directory, if the name is valid and free in it."""
    view.require_writable()
    _require_valid(name)
    directory = inodes.load_dir(fs, view, parent)
    if not directory.nlink:
        raise _error(errno.ENOENT)
    if find(fs, view, parent, name) is not None:
        raise _error(errno.EEXIST)
    return directory


def _set(fs: Filesystem, view: View, parent: Ino, name: bytes, ino: Ino) -> None:
    fs.store.dirents.put(view, dirent_entity(parent, name), pack_u64(ino))


def _touch(fs: Filesystem, view: View, directory: Inode, home: View, *, subdirs: int = 0) -> None:
    """Save the directory with the times, and the link count, of a changed entry, whose home tells
    whether history is to know of it."""
    if view.aside is not None:
        if note_border(fs, view, directory.ino, home, subdirs=subdirs):
            return
        view = home_of(fs, view, directory.ino)
    now = fs.clock()
    inodes.keep(
        fs,
        view,
        directory._replace(nlink=directory.nlink + subdirs, mtime_ns=now, ctime_ns=now),
    )


def link(fs: Filesystem, view: View, ino: Ino, parent: Ino, name: bytes) -> Inode:
    directory = _open_place(fs, view, parent, name)
    inode = inodes.load(fs, view, ino)
    if inode.is_dir:
        raise _error(errno.EPERM)
    if not inode.nlink:
        raise _error(errno.ENOENT)
    if inode.nlink >= LINK_MAX:
        raise _error(errno.EMLINK)
    home = home_of(fs, view, ino)
    if home is not home_for(fs, view, parent, name, is_dir=False):
        raise _error(errno.EXDEV)  # one of the names would be in history and the other not
    fs.store.charge()
    _set(fs, home, parent, name, ino)
    fs.store.links.put(home, link_entity(ino, parent, name), PRESENT)
    inode = inode._replace(nlink=inode.nlink + 1, ctime_ns=fs.clock())
    inodes.save(fs, home, inode)
    _touch(fs, view, directory, home)
    return inode


# -- the names of one inode ------------------------------------------------------------------------


def _without_name(fs: Filesystem, view: View, inode: Inode, parent: Ino, name: bytes) -> Inode:
    """The inode with one of several names gone from its own record or the `links` table."""
    links = fs.store.links
    if (inode.parent, inode.name) != (parent, name):
        links.drop(view, link_entity(inode.ino, parent, name))
        return inode
    entity, _ = next(links.walk(view, pack_u64(inode.ino)))
    links.drop(view, entity)
    new_parent, new_name = link_place(entity)
    return inode._replace(parent=new_parent, name=new_name)


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


# -- removing --------------------------------------------------------------------------------------


def unlink(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Ino:
    view.require_writable()
    directory = inodes.load_dir(fs, view, parent)
    inode = inodes.load(fs, view, _require(fs, view, parent, name))
    if inode.is_dir:
        raise _error(errno.EISDIR)
    home = home_of(fs, view, inode.ino)
    _remove(fs, home, parent, name, inode)
    _touch(fs, view, directory, home)
    return inode.ino


def rmdir(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Ino:
    view.require_writable()
    directory = inodes.load_dir(fs, view, parent)
    inode = inodes.load_dir(fs, view, _require(fs, view, parent, name))
    if not is_empty(fs, view, inode.ino):
        raise _error(errno.ENOTEMPTY)
    home = home_of(fs, view, inode.ino)
    _remove(fs, home, parent, name, inode)
    _touch(fs, view, directory, home, subdirs=-1)
    return inode.ino


def _remove(fs: Filesystem, view: View, parent: Ino, name: bytes, inode: Inode) -> None:
    """Take a name away, and the inode with it if that was the last."""
    fs.store.note()
    fs.store.dirents.drop(view, dirent_entity(parent, name))
    inode = inode._replace(ctime_ns=fs.clock())
    if inode.is_dir or inode.nlink == 1:
        if inode.ino in fs.exclusion.borders:
            fs.exclusion.drop(inode.ino)
        inodes.lose_last_name(fs, view, inode)
    else:
        inode = _without_name(fs, view, inode, parent, name)
        inodes.save(fs, view, inode._replace(nlink=inode.nlink - 1))


# -- renaming --------------------------------------------------------------------------------------


def rename(
    fs: Filesystem,
    view: View,
    parent: Ino,
    name: bytes,
    new_parent: Ino,
    new_name: bytes,
    flags: int = 0,
) -> Ino | None:
    """Move an entry; return the inode that lost the new name, if there was one."""
    view.require_writable()
    if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
        raise _error(errno.EINVAL)
    _require_valid(new_name)
    source = inodes.load_dir(fs, view, parent)
    target = inodes.load_dir(fs, view, new_parent)
    moved = inodes.load(fs, view, _require(fs, view, parent, name))
    if not target.nlink:
        raise _error(errno.ENOENT)
    if moved.is_dir and new_parent != parent:
        _require_outside(fs, view, moved.ino, new_parent)
    found = find(fs, view, new_parent, new_name)
    replaced = None if found is None else inodes.load(fs, view, found)
    if flags == RENAME_EXCHANGE:
        _exchange(fs, view, source, name, moved, target, new_name, replaced)
        return None
    if replaced is not None and flags == RENAME_NOREPLACE:
        raise _error(errno.EEXIST)
    if replaced is not None and replaced.ino == moved.ino:
        return None
    _move(fs, view, source, name, moved, target, new_name, replaced)
    return replaced.ino if replaced else None


def _require_outside(fs: Filesystem, view: View, ino: Ino, place: Ino) -> None:
    """Refuse to put a directory below itself."""
    while place != ROOT_INO:
        if place == ino:
            raise _error(errno.EINVAL)
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
    if replaced is not None:
        gone_from = home_of(fs, view, replaced.ino)
        _remove(fs, gone_from, target.ino, new_name, replaced)
        _recount(fs, view, target.ino, gone_from, -int(replaced.is_dir))
    fs.store.dirents.drop(home, dirent_entity(source.ino, name))
    _set(fs, home, target.ino, new_name, moved.ino)
    # A hard link of one inode replaced by another name of it was ruled out before, so what
    # `_remove` saved cannot be `moved`.
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
    if view.aside is None:
        return view
    if moved.is_dir:
        fs.exclusion.forget_paths()
    home = home_of(fs, view, moved.ino)
    place = home_for(fs, view, parent, name, is_dir=moved.is_dir)
    if home is not place:
        tree = crossing.tree_of(fs, home, moved.ino)
        crossing.require_whole(fs, home, moved, tree)
        crossing.cross(fs, view, moved, home, place, tree)
    return place


def _recount(fs: Filesystem, view: View, directory: Ino, home: View, subdirs: int) -> None:
    """`_touch` for a directory that something else may have changed since it was looked at."""
    _touch(fs, view, inodes.load_dir(fs, view, directory), home, subdirs=subdirs)


def _require_replaceable(fs: Filesystem, view: View, moved: Inode, replaced: Inode) -> None:
    if replaced.is_dir and not moved.is_dir:
        raise _error(errno.EISDIR)
    if moved.is_dir and not replaced.is_dir:
        raise _error(errno.ENOTDIR)
    if replaced.is_dir and not is_empty(fs, view, replaced.ino):
        raise _error(errno.ENOTEMPTY)


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
        raise _error(errno.ENOENT)
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
    _set(fs, second_home, *old, second.ino)
    _set(fs, first_home, *new, first.ino)
    now = fs.clock()
    for ino, home, was, will in (
        (first.ino, first_home, old, new),
        (second.ino, second_home, new, old),
    ):
        inode = inodes.load(fs, home, ino)
        inodes.save(fs, home, _renamed(fs, home, inode, was, will)._replace(ctime_ns=now))
        _recount(fs, view, was[0], home, -int(inode.is_dir))
        _recount(fs, view, will[0], home, int(inode.is_dir))
