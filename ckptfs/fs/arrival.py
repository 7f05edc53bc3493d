"""Arrival: files, directories and links that come whole, several at once.

For whoever has gathered what a series of small operations would have done one after the other, and
has made sure of what they would have checked: that the names are free, that their directories are
there, and that there is room.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptfs.fs import inodes
from ckptfs.model import NO_CONTENT, Ino, Inode
from ckptfs.store.format import NO_EPOCH, block_entity, dirent_entity, pack_u64

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View


#: Number, mode, links, owner, group, device, size, four times, directory, name; and of a file what
#: `content.record_of` made of its bytes, at most one block, of a link its target.
Arrival = tuple[Ino, int, int, int, int, int, int, int, int, int, int, Ino, bytes, bytes]

#: What became of a directory meanwhile: its number, mode, owner, group and three times as they are
#: now, how many subdirectories arrived in it, and whether somebody changed more than its entries.
Changed = tuple[Ino, int, int, int, int, int, int, int, int]

#: An entity and its record.
Record = tuple[bytes, bytes]


def arrive(fs: Filesystem, view: View, arrivals: Iterable[Arrival]) -> None:
    """Put them into the workspace. To note what they take is the caller's business, and so are
    their directories' times."""
    found: dict[Ino, Inode] = {}
    entries: list[Record] = []
    blocks: list[Record] = []
    for ino, mode, nlink, uid, gid, rdev, size, *times, parent, name, data in arrivals:
        number, epoch, allocated, target = NO_CONTENT, NO_EPOCH, 0, b""
        if stat.S_ISLNK(mode):
            target = data
        elif data:
            number, epoch, allocated = fs.store.new_content(), view.epoch, size
            blocks.append((block_entity(number, 0), data))
        fields = (ino, mode, nlink, uid, gid, rdev, size, allocated, *times, number, epoch)
        found[ino] = tuple.__new__(Inode, (*fields, parent, name, target))
        entries.append((dirent_entity(parent, name), pack_u64(ino)))
    inodes.save_all(fs, view, found)
    view.inodes += len(entries)
    entries.sort()
    fs.store.dirents.put_all(view, entries)
    fs.store.blockmap.put_all_unlisted(view, blocks)


def apply_attributes(fs: Filesystem, view: View, directory: Changed) -> None:
    """Give a directory the attributes that it got while entries arrived in it."""
    ino, mode, uid, gid, atime_ns, mtime_ns, ctime_ns, subdirs, is_changed = directory
    inode = inodes.load(fs, view, ino)
    inode = inode._replace(
        mode=mode,
        nlink=inode.nlink + subdirs,
        uid=uid,
        gid=gid,
        atime_ns=atime_ns,
        mtime_ns=mtime_ns,
        ctime_ns=ctime_ns,
    )
    (inodes.save if is_changed else inodes.keep)(fs, view, inode)
