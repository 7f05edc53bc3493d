"""Extended attributes of an inode."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ckptfs.fs import inodes
from ckptfs.fs.exclusion import home_of
from ckptfs.model import NAME_MAX, Ino, Inode
from ckptfs.store.format import PRESENT, pack_u64, xattr_entity, xattr_name

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View

#: Name spaces that can be stored. In `system` live access lists, which would have to be obeyed.
_STORED = (b"user.", b"trusted.", b"security.")

XATTR_CREATE = 1
XATTR_REPLACE = 2
VALUE_MAX = 65_536


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
    inode = inodes.load(fs, view, ino)
    entity = xattr_entity(ino, name)
    present = fs.store.xattrs.get(view, entity) is not None
    if flags & XATTR_CREATE and present:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    if flags & XATTR_REPLACE and not present:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
    fs.store.charge(len(value))
    fs.store.xattrs_used = True
    fs.store.xattrs.put(view, entity, PRESENT + value)
    _touch(fs, view, inode)


def removexattr(fs: Filesystem, view: View, ino: Ino, name: bytes) -> None:
    view.require_writable()
    view = home_of(fs, view, ino)
    inode = inodes.load(fs, view, ino)
    getxattr(fs, view, ino, name)
    fs.store.xattrs.drop(view, xattr_entity(ino, name))
    _touch(fs, view, inode)


def _touch(fs: Filesystem, view: View, inode: Inode) -> None:
    inodes.save(fs, view, inode._replace(ctime_ns=fs.clock()))
