"""Bulk insert: new files, directories and links, each with everything that it has.

Creating a file, writing it and setting its attributes one operation after the other costs five
times as much. `insert_all` takes what the compiled server has acknowledged, `insert`,
`insert_files` and `insert_directory` what an import reads. The caller has made sure of what those
operations would check: the name is free, its directory is there; and sets the directory's times
itself.

The records wait in `NewEntries`: the directory is not searched, and the file not read, before a
flush.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ckptfs.fs import content, inodes, names
from ckptfs.fs.exclusion import home_for, home_of, note_border
from ckptfs.model import BLOCK_SIZE, NAME_MAX, NO_CONTENT, ContentId, Epoch, Ino, Inode
from ckptfs.store import blockmap
from ckptfs.store.format import (
    NO_EPOCH,
    CorruptRecord,
    block_entity,
    dirent_entity,
    pack_u64,
    unpack_mapping,
)

if TYPE_CHECKING:
    from ckptfs.fs.buffers import Record
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View


#: A new inode: number, mode, links, owner, group, device, size, four times, directory, name; and of
#: a file what `content.record_of` made of its bytes, at most one block, of a link its target.
Create = tuple[Ino, int, int, int, int, int, int, int, int, int, int, Ino, bytes, bytes]

#: Changed attributes of an inode: its number, mode, owner, group and three times, how many
#: subdirectories it got, and whether a program changed it, not only what is in a directory.
InodeChange = tuple[Ino, int, int, int, int, int, int, int, int]


def insert_all(fs: Filesystem, view: View, creates: Iterable[Create]) -> None:
    """Put new inodes and their names into the head. The caller has charged for them."""
    _insert(fs, view, creates)
    fs.new_entries.flush()


def insert(
    fs: Filesystem, view: View, parent: Ino, name: bytes, seen: os.stat_result, data: bytes = b""
) -> Inode:
    """A file or node with attributes as ``seen``, under a name that is free. ``data`` is the whole
    content, and fits one block."""
    size = len(data)
    home = _charge(fs, view, parent, name, size)
    record = content.record_of(fs, data) if size else b""
    return _insert_one(fs, home, parent, name, seen, 1, size, record)


def insert_files(
    fs: Filesystem, view: View, parent: Ino, files: Sequence[tuple[bytes, os.stat_result, bytes]]
) -> list[Inode]:
    """`insert` of several files, each with its name and all of its content, into one directory."""
    if view.excluded is not None:  # each name is judged
        return [insert(fs, view, parent, *file) for file in files]
    store = fs.store
    store.charge(sum(len(data) for _, _, data in files))
    store.note(2 * len(files) - 1)
    creates = (_create(fs, parent, *file) for file in files)
    return list(_insert(fs, view, creates).values())


def _create(fs: Filesystem, parent: Ino, name: bytes, seen: os.stat_result, data: bytes) -> Create:
    now, record = fs.clock(), content.record_of(fs, data) if data else b""
    return (
        fs.store.new_ino(),
        seen.st_mode,
        1,
        seen.st_uid,
        seen.st_gid,
        seen.st_rdev,
        len(data),
        seen.st_atime_ns,
        seen.st_mtime_ns,
        now,
        now,
        parent,
        name,
        record,
    )


def insert_directory(
    fs: Filesystem, view: View, parent: Ino, name: bytes, seen: os.stat_result
) -> Inode:
    """An empty directory with attributes as ``seen``."""
    home = _charge(fs, view, parent, name, 0, is_dir=True)
    return _insert_one(fs, home, parent, name, seen, 2, 0, b"")


def apply_attributes(fs: Filesystem, view: View, change: InodeChange) -> None:
    """Give an inode the attributes that it was acknowledged to have: what a program set, and of a
    directory what follows from creates in it."""
    ino, mode, uid, gid, atime_ns, mtime_ns, ctime_ns, subdirs, is_changed = change
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


def _insert(fs: Filesystem, view: View, creates: Iterable[Create]) -> dict[Ino, Inode]:
    """Put the inodes into the buffer of dirty ones, entries and blocks into that of new entries."""
    made: dict[Ino, Inode] = {}
    entries: list[Record] = []
    blocks: list[Record] = []
    for ino, mode, nlink, uid, gid, rdev, size, *times, parent, name, data in creates:
        number, epoch, allocated, target = NO_CONTENT, NO_EPOCH, 0, b""
        if stat.S_ISLNK(mode):
            target = data
        elif data:
            number, epoch, allocated = fs.store.new_content(), view.epoch, size
            blocks.append((block_entity(number, 0), data))
        fields = (ino, mode, nlink, uid, gid, rdev, size, allocated, *times, number, epoch)
        made[ino] = tuple.__new__(Inode, (*fields, parent, name, target))
        entries.append((dirent_entity(parent, name), pack_u64(ino)))
    inodes.save_all(fs, view, made)
    view.inodes += len(entries)
    fs.new_entries.add(view, entries, blocks)
    return made


# -- copies of what another view has ---------------------------------------------------------------


def is_simple(fs: Filesystem, source: View, inode: Inode) -> bool:
    """Whether `insert_copies` may copy what another view has: a link, or a file of one block at
    most, without extended attributes. Of several names of one file only the caller knows."""
    if inode.is_file and not inode.allocated == inode.size <= BLOCK_SIZE:
        return False
    return (inode.is_file or inode.is_link) and not (
        fs.store.xattrs_used and inodes.listxattr(fs, source, inode.ino)
    )


def insert_copies(
    fs: Filesystem, source: View, view: View, parent: Ino, files: Sequence[tuple[Inode, bytes]]
) -> None:
    """`clone` of several that are simple into one directory of a head that excludes nothing, each
    under a name that is free, or else nothing is done; they are as of now. `flush_copies` ends a
    row of calls. An error that is about one of them has its name as its file name."""
    directory = names.open_directory(fs, view, parent)
    read = [(*file, _bytes_for(fs, source, view, parent, *file)) for file in files]
    for _ in files:
        fs.store.charge()
    fs.store.note(len(files))
    _share(fs, [data for inode, _, data in read if inode.is_file])
    _insert(fs, view, [_copy(fs, inode, parent, name, data) for inode, name, data in read])
    names.touch(fs, view, directory, view)


def _bytes_for(
    fs: Filesystem, source: View, view: View, parent: Ino, inode: Inode, name: bytes
) -> bytes:
    """The record of a file's bytes, or a link's target, for a name that must be free."""
    try:
        names.require_valid(name)
        names.require_free(fs, view, parent, name)
        return inode.target if inode.is_link else _record_of(fs, source, inode)
    except OSError as error:
        error.filename = name
        raise


def _copy(fs: Filesystem, inode: Inode, parent: Ino, name: bytes, data: bytes) -> Create:
    now = fs.clock()
    return (
        fs.store.new_ino(),
        inode.mode,
        1,
        inode.uid,
        inode.gid,
        inode.rdev,
        inode.size,
        inode.atime_ns,
        now,
        now,
        inode.btime_ns,
        parent,
        name,
        data,
    )


def _record_of(fs: Filesystem, source: View, inode: Inode) -> bytes:
    """The record of all bytes of a simple file, empty if it has none."""
    if not inode.size:
        return b""
    record = fs.store.blockmap.get(source, block_entity(inode.content, 0))
    found = unpack_mapping(record) if record else None
    if found is None or found.length != inode.size:
        raise CorruptRecord(f"the block map of inode {inode.ino} is damaged")
    return record or b""


def _share(fs: Filesystem, records: Iterable[bytes]) -> None:
    """Count the blocks of these records once more, of all or of none: what no record names would
    be counted for ever."""
    shared: list[bytes] = []
    try:
        for record in filter(None, records):
            blockmap.share(fs.store, unpack_mapping(record))
            shared.append(record)
    except BaseException:
        for record in shared:
            blockmap.release(fs.store, record)
        raise


def overwrite_with(fs: Filesystem, source: View, like: Inode, view: View, ino: Ino) -> None:
    """Give a file of a head that excludes nothing the bytes of a simple one of another view. Until
    `flush_copies` nobody else may look at it; and a caller whom this fails takes all back, since
    the file may have lost some of its own."""
    view.require_writable()
    fs.store.charge()
    fs.partial.flush_file(ino)
    inode = inodes.load(fs, view, ino)
    record = _record_of(fs, source, like)
    _share(fs, [record])  # before the file's own go: they may be the same
    try:
        if inode.content != NO_CONTENT:
            content.discard(fs, view, inode)
    except BaseException:
        blockmap.release(fs.store, record)
        raise
    number, epoch = (fs.store.new_content(), view.epoch) if record else _NOTHING
    if record:
        fs.new_entries.add(view, [], [(block_entity(number, 0), record)])
    now = fs.clock()
    inode = inode._replace(
        size=like.size,
        allocated=like.size,
        mtime_ns=now,
        ctime_ns=now,
        content=number,
        content_epoch=epoch,
    )
    inodes.save(fs, view, inode)


#: The content of an empty file.
_NOTHING: tuple[ContentId, Epoch] = (NO_CONTENT, NO_EPOCH)


def flush_copies(fs: Filesystem) -> None:
    """Put what was copied into the transaction."""
    fs.new_entries.flush()


def _insert_one(
    fs: Filesystem,
    home: View,
    parent: Ino,
    name: bytes,
    seen: os.stat_result,
    nlink: int,
    size: int,
    data: bytes,
) -> Inode:
    now, ino = fs.clock(), fs.store.new_ino()
    owner = (seen.st_uid, seen.st_gid, seen.st_rdev)
    times = (seen.st_atime_ns, seen.st_mtime_ns, now, now)
    return _insert(
        fs, home, ((ino, seen.st_mode, nlink, *owner, size, *times, parent, name, data),)
    )[ino]


def _charge(
    fs: Filesystem, view: View, parent: Ino, name: bytes, size: int, *, is_dir: bool = False
) -> View:
    """Charge for a new entry, and count it in its directory; the view in which to write it."""
    if len(name) > NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    fs.store.charge(size)
    fs.store.note()
    if view.excluded is None:
        home = above = view
    else:
        home = home_for(fs, view, parent, name, is_dir=is_dir)
        if note_border(fs, view, parent, home, subdirs=int(is_dir)):
            return home
        above = home_of(fs, view, parent)
    if is_dir:
        directory = inodes.load(fs, above, parent)
        inodes.keep(fs, above, directory._replace(nlink=directory.nlink + 1))
    return home
