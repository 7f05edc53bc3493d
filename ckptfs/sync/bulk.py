"""Bulk entry: one new file, link or node of the store with everything it has, in one step.

Making, filling and dressing a file one operation after the other costs three times as much, and
that is what an import spends its time on. Leaves out what only matters to someone watching: the
directory's own times and a name that might be taken. So it is for directories that the pass made or
found empty, and dresses itself when they are full.
"""

from __future__ import annotations

import os

from ckptfs.fs import Filesystem, content, inodes
from ckptfs.fs.exclusion import home_for, note_border
from ckptfs.model import NO_CONTENT, Ino, Inode
from ckptfs.store import View
from ckptfs.store.format import NO_EPOCH, dirent_entity, pack_u64


def place(
    fs: Filesystem,
    view: View,
    parent: Ino,
    name: bytes,
    seen: os.stat_result,
    data: bytes = b"",
    target: bytes = b"",
) -> Inode:
    """A new entry under a name that is known to be free. ``data`` is the whole content, and fits
    one block."""
    store = fs.store
    size = len(data)
    store.charge(size)
    if view.aside is not None:
        home = home_for(fs, view, parent, name, is_dir=False)
        note_border(fs, view, parent, home)
        view = home
    now = fs.clock()
    inode = Inode(
        ino=store.new_ino(),
        mode=seen.st_mode,
        nlink=1,
        uid=seen.st_uid,
        gid=seen.st_gid,
        rdev=seen.st_rdev,
        size=size or len(target),
        allocated=size,
        atime_ns=seen.st_atime_ns,
        mtime_ns=seen.st_mtime_ns,
        ctime_ns=now,
        btime_ns=now,
        content=store.new_content() if size else NO_CONTENT,
        content_epoch=view.epoch if size else NO_EPOCH,
        parent=parent,
        name=name,
        target=target,
    )
    if size:
        content.put_block(fs, view, inode, 0, data)
    view.inodes += 1
    inodes.save(fs, view, inode)
    store.dirents.put(view, dirent_entity(parent, name), pack_u64(inode.ino))
    return inode
