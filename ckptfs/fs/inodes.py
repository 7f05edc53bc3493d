"""Inodes of a view: loading and saving them, and the life of one that has lost its last name.

Every other module of the file system reaches inodes through here.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from ckptfs.fs import content
from ckptfs.fs.buffers import DIRTY_MAX
from ckptfs.fs.exclusion import home_of, shown
from ckptfs.model import NAME_MAX, NO_CONTENT, ROOT_INO, Attributes, Ino, Inode, storable_ns
from ckptfs.store.format import (
    NO_EPOCH,
    PRESENT,
    inode_entity,
    line_key,
    line_key_of,
    pack_u64,
    unpack_inode,
    xattr_entity,
    xattr_name,
)

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View
    from ckptfs.store.pending import Read

#: Name spaces of extended attributes that are stored. In `system` live access lists, which would
#: have to be obeyed.
_STORED = (b"user.", b"trusted.", b"security.")
XATTR_CREATE = 1
XATTR_REPLACE = 2
VALUE_MAX = 65_536


def load(fs: Filesystem, view: View, ino: Ino) -> Inode:
    inode = view.dirty_inodes.get(ino)
    if inode is not None:
        return inode
    if view.excluded is not None and (inode := view.excluded.dirty_inodes.get(ino)) is not None:
        return inode
    record = fs.store.inodes.get(view, inode_entity(ino))
    if record is None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return unpack_inode(ino, record)


def load_dir(fs: Filesystem, view: View, ino: Ino) -> Inode:
    inode = load(fs, view, ino)
    if not inode.is_dir:
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return inode


def require_file(inode: Inode) -> None:
    """Refuse what has no bytes to read or write."""
    if not inode.is_file:
        raise OSError(errno.EISDIR if inode.is_dir else errno.EINVAL, "not a regular file")


def save(fs: Filesystem, view: View, inode: Inode) -> None:
    """Keep a changed inode. One file's making is half a dozen changes to its inode and its
    directory's; they meet in memory, and the last one goes into the transaction."""
    if view is not fs.head.excluded:
        fs.signing.add(inode.ino)
    keep(fs, view, inode)


def save_all(fs: Filesystem, view: View, found: dict[Ino, Inode]) -> None:
    """`save` of many new ones, which the caller has noted: no cache knows of them yet."""
    if view is not fs.head.excluded:
        fs.signing.update(found)
    if len(view.dirty_inodes) >= DIRTY_MAX:
        fs.dirty_inodes.flush_view(view)
    view.dirty_inodes.update(found)


def keep(fs: Filesystem, view: View, inode: Inode) -> None:
    """`save` for a change without an author: a directory's time when an entry changes."""
    fs.store.note()
    if len(view.dirty_inodes) >= DIRTY_MAX:
        fs.dirty_inodes.flush_view(view)
    # Of what a restore parted from the head, or is kept out of history, others know how it looks.
    if view is fs.head and view.excluded is None and not fs.limbo:
        fs.changed(inode)
    else:
        fs.changing(inode.ino)
    view.dirty_inodes[inode.ino] = inode


def make(
    fs: Filesystem,
    view: View,
    mode: int,
    uid: int,
    gid: int,
    *,
    parent: Ino = Ino(0),
    name: bytes = b"",
    rdev: int = 0,
    target: bytes = b"",
) -> Inode:
    """A new inode, not saved yet."""
    now, ino = fs.clock(), fs.store.new_ino()
    view.inodes += 1
    return Inode(
        ino=ino,
        mode=mode,
        nlink=2 if stat.S_ISDIR(mode) else 1,
        uid=uid,
        gid=gid,
        rdev=rdev,
        size=len(target),
        allocated=0,
        atime_ns=now,
        mtime_ns=now,
        ctime_ns=now,
        btime_ns=now,
        content=NO_CONTENT,
        content_epoch=NO_EPOCH,
        parent=parent,
        name=name,
        target=target,
    )


# -- attributes ------------------------------------------------------------------------------------


def getattr(fs: Filesystem, view: View, ino: Ino) -> Inode:
    """The inode as a user sees it."""
    inode = load(fs, view, ino)
    return shown(fs, view, inode) if view.excluded is not None else inode


def setattr(
    fs: Filesystem, view: View, ino: Ino, wanted: Attributes, *, keep_set_id: bool = True
) -> Inode:
    """Change attributes. A change of size by one who may not keep them takes set-id bits away."""
    view.require_writable()
    home = home_of(fs, view, ino)
    inode = load(fs, home, ino)
    now = fs.clock()
    if wanted.size is not None:
        fs.partial.flush_file(ino)
        require_file(inode)
        mode = inode.mode if keep_set_id else without_set_id(inode.mode)
        inode = content.truncate(fs, home, inode, wanted.size)
        inode = inode._replace(mtime_ns=now, mode=mode)
    inode = inode._replace(
        mode=_new_mode(inode, wanted),
        uid=inode.uid if wanted.uid is None else wanted.uid,
        gid=inode.gid if wanted.gid is None else wanted.gid,
        atime_ns=inode.atime_ns if wanted.atime_ns is None else storable_ns(wanted.atime_ns),
        mtime_ns=inode.mtime_ns if wanted.mtime_ns is None else storable_ns(wanted.mtime_ns),
        ctime_ns=now if wanted.ctime_ns is None else storable_ns(wanted.ctime_ns),
    )
    save(fs, home, inode)
    if view.excluded is None:
        return inode
    if wanted.mtime_ns is not None:
        fs.exclusion.clear_times(ino)
    return shown(fs, view, inode)


def _new_mode(inode: Inode, wanted: Attributes) -> int:
    mode = inode.mode
    if wanted.mode is not None:
        mode = stat.S_IFMT(mode) | stat.S_IMODE(wanted.mode)
    elif (wanted.uid is not None or wanted.gid is not None) and not inode.is_dir:
        mode = without_set_id(mode)
    return mode


def without_set_id(mode: int) -> int:
    """The mode that a write or a change of owner leaves a file with. Without the group's execute
    bit S_ISGID is no set-id bit but marks mandatory locking, and stays."""
    if mode & stat.S_IXGRP:
        mode &= ~stat.S_ISGID
    return mode & ~stat.S_ISUID


# -- extended attributes ---------------------------------------------------------------------------


def _require_stored(name: bytes) -> None:
    if not name.startswith(_STORED):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def getxattr(fs: Filesystem, view: View, ino: Ino, name: bytes) -> bytes:
    _require_stored(name)
    record = fs.store.xattrs.get(view, xattr_entity(ino, name))
    if record is None:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
    return record[len(PRESENT) :]


def listxattr(fs: Filesystem, view: View, ino: Ino) -> list[bytes]:
    return [xattr_name(entity) for entity, _ in fs.store.xattrs.walk(view, pack_u64(ino))]


def setxattr(
    fs: Filesystem, view: View, ino: Ino, name: bytes, value: bytes, flags: int = 0
) -> None:
    view.require_writable()
    _require_stored(name)
    if len(name) > NAME_MAX:
        raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
    if len(value) > VALUE_MAX:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    view = home_of(fs, view, ino)
    inode = load(fs, view, ino)
    entity = xattr_entity(ino, name)
    present = fs.store.xattrs.get(view, entity) is not None
    if flags & XATTR_CREATE and present:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    if flags & XATTR_REPLACE and not present:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
    fs.store.charge(len(value))
    fs.store.xattrs_used = True
    fs.store.xattrs.put(view, entity, PRESENT + value)
    _save_changed(fs, view, inode)


def removexattr(fs: Filesystem, view: View, ino: Ino, name: bytes) -> None:
    view.require_writable()
    view = home_of(fs, view, ino)
    inode = load(fs, view, ino)
    getxattr(fs, view, ino, name)
    fs.store.xattrs.drop(view, xattr_entity(ino, name))
    _save_changed(fs, view, inode)


def _save_changed(fs: Filesystem, view: View, inode: Inode) -> None:
    save(fs, view, inode._replace(ctime_ns=fs.clock()))


# -- the end of an inode ---------------------------------------------------------------------------


def hold(fs: Filesystem, ino: Ino) -> None:
    """An open handle keeps an inode alive after its last name is gone."""
    fs.held[ino] = fs.held.get(ino, 0) + 1


def drop(fs: Filesystem, ino: Ino) -> None:
    count = fs.held[ino] - 1
    if count:
        fs.held[ino] = count
        return
    del fs.held[ino]
    if _leave_limbo(fs, ino) or ino not in fs.unlinked:
        return
    if ino in fs.forgotten or not fs.keep_unlinked:
        destroy(fs, fs.head, ino)


def _leave_limbo(fs: Filesystem, ino: Ino) -> bool:
    """The last user of a file closed it: remove it from limbo, if it is there."""
    limbo = fs.limbo.pop(ino, None)
    if limbo is None:
        return False
    # What the epoch holds is found through its inode records when it is removed.
    fs.changing(ino)  # the number may mean another file now
    fs.partial.flush_file(ino)
    fs.dirty_inodes.flush_view(limbo)
    return True


def forget(fs: Filesystem, ino: Ino) -> None:
    """The kernel no longer knows the inode: if it has no name and no handle either, it ends."""
    if ino in fs.held:
        # The kernel may send this ahead of the release of the last handle.
        if ino in fs.unlinked:
            fs.forgotten.add(ino)
    elif not _leave_limbo(fs, ino) and ino in fs.unlinked:
        destroy(fs, fs.head, ino)


def lose_last_name(fs: Filesystem, view: View, inode: Inode) -> None:
    """What follows when the last name goes: the end, unless a program may still be using it."""
    fs.signing.add(inode.ino)
    # Of what the kernel does not know it will never say that it forgot it.
    is_known = fs.is_used(inode.ino) if fs.can_ask else fs.keep_unlinked
    if is_known or inode.ino in fs.held:
        fs.unlinked.add(inode.ino)
        save(fs, view, inode._replace(nlink=0, parent=Ino(0), name=b""))
    else:
        erase(fs, view, inode)


def leave_orphans(fs: Filesystem, ino: Ino) -> None:
    """An inode is no longer one without a name."""
    fs.unlinked.discard(ino)
    fs.nameless.discard(ino)
    fs.forgotten.discard(ino)
    fs.store.orphans.delete(line_key(ino, fs.line))


def destroy(fs: Filesystem, view: View, ino: Ino) -> None:
    leave_orphans(fs, ino)
    home = home_of(fs, view, ino)
    try:
        inode = load(fs, home, ino)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    else:
        erase(fs, home, inode)


def erase(fs: Filesystem, view: View, inode: Inode) -> None:
    store = fs.store
    store.note()
    fs.partial.drop_file(inode.ino)
    if inode.content != NO_CONTENT:
        content.discard(fs, view, inode)
    if store.xattrs_used:
        _erase_xattrs(fs, view, inode.ino)
    remove(fs, view, inode.ino)
    view.inodes -= 1


def remove(fs: Filesystem, view: View, ino: Ino) -> None:
    """Take the inode itself out of the view."""
    fs.changing(ino)
    fs.dirty_inodes.drop(view, ino)
    fs.store.inodes.drop(view, inode_entity(ino))


def _erase_xattrs(fs: Filesystem, view: View, ino: Ino) -> None:
    """Take back the epoch's own xattr records; those of an inode that is gone are not read."""
    xattrs = fs.store.xattrs
    for entity in fs.store.changes.walk(view.epoch, xattrs.kind, pack_u64(ino)):
        xattrs.forget(view, entity)


def record_orphans(fs: Filesystem) -> None:
    """Before a commit: note the nameless inodes in use, so that a crash does not leak them."""
    for ino in fs.unlinked:
        fs.store.orphans.add(line_key(ino, fs.line), b"")


def holds_orphan(fs: Filesystem, read: Read) -> bool:
    """Whether a nameless inode is not noted yet."""
    orphans = fs.store.orphans
    keys = (line_key(ino, fs.line) for ino in fs.unlinked)
    return read.table == "orphans" and any(
        read.asks_for(key) and not orphans.has_row(key) for key in keys
    )


def reap_orphans(fs: Filesystem) -> None:
    """At start: what an earlier mount kept open is not in use any more."""
    for key, _ in list(fs.store.orphans.walk()):
        ino, line = line_key_of(key)
        if line == fs.line:
            destroy(fs, fs.head, ino)


def make_root(fs: Filesystem, mode: int, uid: int, gid: int) -> Inode:
    root = make(fs, fs.head, stat.S_IFDIR | mode, uid, gid)
    if root.ino != ROOT_INO:
        raise AssertionError(f"the root must be inode {ROOT_INO}, not {root.ino}")
    save(fs, fs.head, root)
    return root
