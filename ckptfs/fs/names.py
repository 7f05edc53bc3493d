"""Names: directories and what stands in them.

Owns directory entries, hard links, and the times and link counts that they change; `renames` has
what moves one. The bytes of files are not known here.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptfs.fs import inodes
from ckptfs.fs.exclusion import home_for, home_of, note_border
from ckptfs.model import LINK_MAX, NAME_MAX, TARGET_MAX, Ino, Inode
from ckptfs.store.format import (
    PRESENT,
    CorruptRecord,
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


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def require_valid(name: bytes) -> None:
    """Refuse a name that no directory can hold."""
    if len(name) > NAME_MAX:
        raise error(errno.ENAMETOOLONG)
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise error(errno.EINVAL)


# -- looking ---------------------------------------------------------------------------------------


def find(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Ino | None:
    """The inode under a name, or None. The parent is not checked."""
    record = fs.store.dirents.get(view, dirent_entity(parent, name))
    return Ino(unpack_u64(record)) if record else None


def require(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Ino:
    ino = find(fs, view, parent, name)
    if ino is None:
        raise error(errno.ENOENT)
    return ino


def seek(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Inode | None:
    """What stands under a name, or None: most lookups are for names that are not there."""
    if len(name) > NAME_MAX:
        raise error(errno.ENAMETOOLONG)
    ino = find(fs, view, parent, name)
    if ino is None:
        inodes.load_dir(fs, view, parent)
        return None
    inode = inodes.getattr(fs, view, ino)
    if inode.name != name or inode.parent != parent:
        _require_link(fs, view, inode, parent, name)
    return inode


def _require_link(fs: Filesystem, view: View, inode: Inode, parent: Ino, name: bytes) -> None:
    """An entry and its inode tell of each other. Where the inode names another place, this one must
    be listed as a further link; or what the entry leads to is not what was stored under it."""
    if fs.store.links.get(view, link_entity(inode.ino, parent, name)) is None:
        raise CorruptRecord(f"the entry {os.fsdecode(name)!r} leads to inode {inode.ino}")


def lookup(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Inode:
    inode = seek(fs, view, parent, name)
    if inode is None:
        raise error(errno.ENOENT)
    return inode


def entries(
    fs: Filesystem, view: View, ino: Ino, after: bytes = b""
) -> Iterator[tuple[bytes, Inode]]:
    """(name, inode) of a directory's entries in name order, from the first behind ``after``.

    The caller may change the directory between two entries: nothing is given twice, and nothing
    that stays is left out.
    """
    for name, child in numbers(fs, view, ino, after):
        inode = seek_number(fs, view, ino, name, child)
        if inode is not None:
            yield name, inode


def numbers(
    fs: Filesystem, view: View, ino: Ino, after: bytes = b""
) -> Iterator[tuple[bytes, Ino]]:
    """The same with the numbers of the inodes; what was removed since the first was given may be
    among them."""
    prefix = pack_u64(ino)
    # An entity ends in NUL, so the name followed by \x01 lies behind it and before every other.
    start = prefix + after + b"\x01" if after else prefix
    for entity, record in fs.store.dirents.walk(view, prefix, start):
        yield dirent_name(entity), Ino(unpack_u64(record))


def seek_number(fs: Filesystem, view: View, parent: Ino, name: bytes, ino: Ino) -> Inode | None:
    """The inode that a walk found under a name, unless it stands there no more."""
    try:
        inode = inodes.getattr(fs, view, ino)
    except OSError as error:
        # Removed since the walk read ahead, or it never led there.
        if error.errno != errno.ESTALE or find(fs, view, parent, name) == ino:
            raise
        return None
    if inode.name != name or inode.parent != parent:
        if find(fs, view, parent, name) != ino:
            return None
        _require_link(fs, view, inode, parent, name)
    return inode


def readlink(fs: Filesystem, view: View, ino: Ino) -> bytes:
    inode = inodes.load(fs, view, ino)
    if not inode.is_link:
        raise error(errno.EINVAL)
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
        raise error(errno.ENAMETOOLONG)
    if not target or b"\0" in target:
        raise error(errno.ENOENT)
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
    set_entry(fs, home, parent, name, inode.ino)
    touch(fs, view, directory, home, subdirs=1 if is_dir else 0)
    return inode


def make_nameless(fs: Filesystem, view: View, parent: Ino, mode: int, uid: int, gid: int) -> Inode:
    """A regular file as O_TMPFILE makes it in a directory: it has no name until it is given one by
    `link`, and may never get one."""
    directory = open_directory(fs, view, parent)
    if directory.mode & stat.S_ISGID:
        gid = directory.gid
    fs.store.charge()
    home = home_of(fs, view, parent)
    inode = inodes.make(fs, home, stat.S_IFREG | stat.S_IMODE(mode), uid, gid)._replace(nlink=0)
    fs.unlinked.add(inode.ino)
    fs.nameless.add(inode.ino)
    inodes.save(fs, home, inode)
    return inode


def _open_place(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Inode:
    """The directory, if the name is valid and free in it."""
    view.require_writable()
    require_valid(name)
    directory = open_directory(fs, view, parent)
    require_free(fs, view, parent, name)
    return directory


def open_directory(fs: Filesystem, view: View, ino: Ino) -> Inode:
    """A directory in which something may be made."""
    view.require_writable()
    directory = inodes.load_dir(fs, view, ino)
    if not directory.nlink:
        raise error(errno.ENOENT)
    return directory


def require_free(fs: Filesystem, view: View, parent: Ino, name: bytes) -> None:
    if find(fs, view, parent, name) is not None:
        raise error(errno.EEXIST)


def set_entry(fs: Filesystem, view: View, parent: Ino, name: bytes, ino: Ino) -> None:
    fs.store.dirents.put(view, dirent_entity(parent, name), pack_u64(ino))


def touch(
    fs: Filesystem,
    view: View,
    directory: Inode,
    home: View,
    *,
    subdirs: int = 0,
    now_ns: int | None = None,
) -> None:
    """Save the directory with the times, and the link count, of a changed entry, whose home tells
    whether history is to know of it."""
    if view.excluded is not None:
        if note_border(fs, view, directory.ino, home, subdirs=subdirs):
            return
        view = home_of(fs, view, directory.ino)
    now = fs.clock() if now_ns is None else now_ns
    inodes.keep(
        fs,
        view,
        directory._replace(nlink=directory.nlink + subdirs, mtime_ns=now, ctime_ns=now),
    )


def link(
    fs: Filesystem, view: View, ino: Ino, parent: Ino, name: bytes, now_ns: int | None = None
) -> Inode:
    """Give a file another name, now unless it is said when."""
    directory = _open_place(fs, view, parent, name)
    inode = inodes.load(fs, view, ino)
    if inode.is_dir:
        raise error(errno.EPERM)
    if not inode.nlink and ino not in fs.nameless:
        raise error(errno.ENOENT)
    if inode.nlink >= LINK_MAX:
        raise error(errno.EMLINK)
    home = home_of(fs, view, ino)
    if home is not home_for(fs, view, parent, name, is_dir=False):
        raise error(errno.EXDEV)  # one of the names would be in history and the other not
    fs.store.charge()
    set_entry(fs, home, parent, name, ino)
    if inode.nlink:
        fs.store.links.put(home, link_entity(ino, parent, name), PRESENT)
    else:
        inodes.leave_orphans(fs, ino)
        inode = inode._replace(parent=parent, name=name)
    now_ns = fs.clock() if now_ns is None else now_ns
    inode = inode._replace(nlink=inode.nlink + 1, ctime_ns=now_ns)
    inodes.save(fs, home, inode)
    touch(fs, view, directory, home, now_ns=now_ns)
    return inode


# -- the names of one inode ------------------------------------------------------------------------


def _without_name(fs: Filesystem, view: View, inode: Inode, parent: Ino, name: bytes) -> Inode:
    """The inode with one of several names gone from its own record or the `links` table."""
    links = fs.store.links
    if (inode.parent, inode.name) != (parent, name):
        links.drop(view, link_entity(inode.ino, parent, name))
        return inode
    entity = _another_name(fs, view, inode)
    links.drop(view, entity)
    new_parent, new_name = link_place(entity)
    return inode._replace(parent=new_parent, name=new_name)


def _another_name(fs: Filesystem, view: View, inode: Inode) -> bytes:
    """One of the names that the inode's own record has not. Rather one behind that: who removes
    thousands of them in order leaves as many records before it that say so."""
    prefix, own = pack_u64(inode.ino), link_entity(inode.ino, inode.parent, inode.name)
    for start in (own, prefix):
        for entity, _ in fs.store.links.walk(view, prefix, start):
            return entity
    raise CorruptRecord("an inode has fewer names than it counts")


# -- removing --------------------------------------------------------------------------------------


def unlink(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Ino:
    view.require_writable()
    directory = inodes.load_dir(fs, view, parent)
    inode = inodes.load(fs, view, require(fs, view, parent, name))
    if inode.is_dir:
        raise error(errno.EISDIR)
    home = home_of(fs, view, inode.ino)
    remove(fs, home, parent, name, inode)
    touch(fs, view, directory, home)
    return inode.ino


def rmdir(fs: Filesystem, view: View, parent: Ino, name: bytes) -> Ino:
    view.require_writable()
    directory = inodes.load_dir(fs, view, parent)
    inode = inodes.load_dir(fs, view, require(fs, view, parent, name))
    if not is_empty(fs, view, inode.ino):
        raise error(errno.ENOTEMPTY)
    home = home_of(fs, view, inode.ino)
    remove(fs, home, parent, name, inode)
    touch(fs, view, directory, home, subdirs=-1)
    return inode.ino


def is_last(inode: Inode) -> bool:
    """Whether an inode has no name but one. Of several the records may contradict each other."""
    return inode.is_dir or inode.nlink == 1


def remove(fs: Filesystem, view: View, parent: Ino, name: bytes, inode: Inode) -> None:
    """Take a name away, and the inode with it if that was the last."""
    fs.store.note()
    if is_last(inode):
        fs.acknowledge()
    fs.store.dirents.drop(view, dirent_entity(parent, name))
    inode = inode._replace(ctime_ns=fs.clock())
    if is_last(inode):
        if inode.ino in fs.exclusion.borders:
            fs.exclusion.drop(inode.ino)
        inodes.lose_last_name(fs, view, inode)
    else:
        inode = _without_name(fs, view, inode, parent, name)
        inodes.save(fs, view, inode._replace(nlink=inode.nlink - 1))
