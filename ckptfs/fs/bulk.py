"""Bulk entry: new files, nodes and directories by the thousand, each with everything it has.

Making, filling and dressing a file one operation after the other costs five times as much, and
that is what an import spends its time on. Leaves out what only matters to someone watching: the
directory's own times and a name that might be taken. So it is for directories that the caller made
or found empty, in which it gives no name twice, and whose times it sets itself.

Entries and block maps wait here and go into the transaction together, in the order of their keys.
Invariant: nobody looks for a name in such a directory or reads such a file without `flush`, and no
commit happens before it.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ckptfs.fs import content, inodes
from ckptfs.fs.exclusion import home_for, home_of, note_border
from ckptfs.model import NAME_MAX, NO_CONTENT, ContentId, Ino, Inode
from ckptfs.store.format import NO_EPOCH, block_entity, dirent_entity, pack_u64

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View

#: How many entries wait at most.
_WAITING_MAX = 4096


class Bulk:
    """The new entries of a file system that are not in the transaction yet."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        #: By the view in which they are to be written, records of `dirents` and of `blockmap`.
        self._entries: dict[View, list[tuple[bytes, bytes]]] = {}
        self._blocks: dict[View, list[tuple[bytes, bytes]]] = {}
        self._waiting = 0

    def place(
        self, view: View, parent: Ino, name: bytes, seen: os.stat_result, data: bytes = b""
    ) -> Inode:
        """A file or node with attributes as ``seen``, under a name that is free. ``data`` is the
        whole content, and fits one block."""
        fs = self._fs
        size = len(data)
        home = self._begin(view, parent, name, size)
        number = NO_CONTENT
        if size:
            number = fs.store.new_content()
            record = content.record_of(fs, data)
            self._blocks.setdefault(home, []).append((block_entity(number, 0), record))
        inode = _inode(fs, home, parent, name, seen, 1, size, number)
        self._enter(home, inode)
        return inode

    def place_directory(self, view: View, parent: Ino, name: bytes, seen: os.stat_result) -> Inode:
        """An empty directory with attributes as ``seen``."""
        home = self._begin(view, parent, name, 0, is_dir=True)
        inode = _inode(self._fs, home, parent, name, seen, 2)
        self._enter(home, inode)
        return inode

    def _begin(
        self, view: View, parent: Ino, name: bytes, size: int, *, is_dir: bool = False
    ) -> View:
        """Charge for an entry; the view in which it is to be written."""
        fs = self._fs
        if len(name) > NAME_MAX:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        fs.store.charge(size)
        subdirs = 1 if is_dir else 0
        if view.excluded is None:
            home = above = view
        else:
            home = home_for(fs, view, parent, name, is_dir=is_dir)
            if note_border(fs, view, parent, home, subdirs=subdirs):
                return home
            above = home_of(fs, view, parent)
        if is_dir:
            directory = inodes.load(fs, above, parent)
            inodes.keep(fs, above, directory._replace(nlink=directory.nlink + 1))
        return home

    def _enter(self, home: View, inode: Inode) -> None:
        home.inodes += 1
        inodes.save(self._fs, home, inode)
        entry = (dirent_entity(inode.parent, inode.name), pack_u64(inode.ino))
        self._entries.setdefault(home, []).append(entry)
        self._waiting += 1
        if self._waiting >= _WAITING_MAX:
            self.flush()

    def flush(self) -> None:
        """Put everything that waits into the transaction."""
        if not self._waiting:
            return
        store = self._fs.store
        for view, entries in self._entries.items():
            store.dirents.put_all(view, sorted(entries))
        for view, blocks in self._blocks.items():
            store.blockmap.put_all_unlisted(view, blocks)
        self._entries.clear()
        self._blocks.clear()
        self._waiting = 0


def _inode(
    fs: Filesystem,
    home: View,
    parent: Ino,
    name: bytes,
    seen: os.stat_result,
    nlink: int,
    size: int = 0,
    number: ContentId = NO_CONTENT,
) -> Inode:
    """A new inode, positional as it is in `Inode`: that is quicker, and this is often called."""
    now = fs.clock()
    return Inode(
        fs.store.new_ino(),
        seen.st_mode,
        nlink,
        seen.st_uid,
        seen.st_gid,
        seen.st_rdev,
        size,
        size,  # allocated
        seen.st_atime_ns,
        seen.st_mtime_ns,
        now,
        now,
        number,
        home.epoch if size else NO_EPOCH,
        parent,
        name,
        b"",  # target
    )
