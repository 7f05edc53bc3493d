"""Parts of files: holes that are made and looked for, room that is asked for, bytes that are copied
without being read.

Works on the block map that `ckptfs.fs.content` owns, block by block; what a caller is to be told of
the attributes is the inode's size and times.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptfs.fs import content, inodes
from ckptfs.fs.exclusion import home_of
from ckptfs.model import BLOCK_SIZE, FILE_SIZE_MAX, NO_CONTENT, Ino, Inode
from ckptfs.store import mapping
from ckptfs.store.format import block_entity, block_number, pack_u64, unpack_mapping

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View
    from ckptfs.store.format import Mapping

#: How much of a file one call copies at most: others wait meanwhile.
COPIED_MAX = 64 << 20


def _load_file(fs: Filesystem, view: View, ino: Ino) -> Inode:
    """The file, all of whose blocks are in the transaction."""
    inode = inodes.load(fs, view, ino)
    if not inode.is_file:
        raise OSError(errno.EISDIR if inode.is_dir else errno.EINVAL, "not a regular file")
    content.settle(fs, ino)
    return inode


def _require_range(offset: int, length: int) -> int:
    """The end of a range that a file can have."""
    if offset < 0 or length <= 0:
        raise OSError(errno.EINVAL, "no range of a file")
    if offset + length > FILE_SIZE_MAX:
        raise OSError(errno.EFBIG, "file too large")
    return offset + length


def _save_changed(fs: Filesystem, home: View, inode: Inode, *, keep_set_id: bool) -> None:
    now = fs.clock()
    mode = inode.mode if keep_set_id else inode.mode & ~inodes.set_id_bits(inode.mode)
    inodes.save(fs, home, inode._replace(mode=mode, mtime_ns=now, ctime_ns=now))


# -- room and holes --------------------------------------------------------------------------------


def allocate(
    fs: Filesystem,
    view: View,
    ino: Ino,
    offset: int,
    length: int,
    *,
    keep_size: bool,
    keep_set_id: bool = True,
) -> None:
    """Ask for room. It is seen that the disk has it now, and the file becomes long enough; nothing
    is set aside: no block is ever written in place, so none could be kept for a later write."""
    view.require_writable()
    end = _require_range(offset, length)
    home = home_of(fs, view, ino)
    inode = _load_file(fs, home, ino)
    if length > fs.store.free_bytes():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fs.store.charge()
    size = inode.size if keep_size else max(inode.size, end)
    _save_changed(fs, home, inode._replace(size=size), keep_set_id=keep_set_id)


def punch(
    fs: Filesystem,
    view: View,
    ino: Ino,
    offset: int,
    length: int,
    *,
    keep_size: bool = True,
    keep_set_id: bool = True,
) -> None:
    """Make a range of a file zeros that take no room."""
    view.require_writable()
    end = _require_range(offset, length)
    home = home_of(fs, view, ino)
    inode = _load_file(fs, home, ino)
    # Of the blocks at both ends a part may stay, and be stored anew.
    for border in (offset, min(end, inode.size)):
        if border % BLOCK_SIZE:
            fs.store.charge(BLOCK_SIZE)
    allocated = inode.allocated
    for number, found in list(_mapped(fs, home, inode, offset, end)):
        allocated += _punch_block(fs, home, inode, number, found, (offset, end))
    size = inode.size if keep_size else max(inode.size, end)
    inode = inode._replace(allocated=allocated, size=size)
    _save_changed(fs, home, inode, keep_set_id=keep_set_id)


def _mapped(
    fs: Filesystem, view: View, inode: Inode, offset: int, end: int
) -> Iterator[tuple[int, Mapping]]:
    """The blocks that there are between two places of a file, in order."""
    if inode.content == NO_CONTENT:
        return
    first = block_entity(inode.content, offset // BLOCK_SIZE)
    for entity, record in fs.store.blockmap.walk(view, pack_u64(inode.content), first):
        number = block_number(entity)
        if number * BLOCK_SIZE >= end:
            return
        yield number, unpack_mapping(record)


def _punch_block(
    fs: Filesystem, view: View, inode: Inode, number: int, found: Mapping, gap: tuple[int, int]
) -> int:
    """Take away what a block has between two places of the file; return by how much the file's
    allocation grew."""
    begin = number * BLOCK_SIZE
    start, stop = max(gap[0] - begin, 0), min(gap[1] - begin, found.length)
    if start >= stop:
        return 0
    if stop - start == found.length:
        mapping.drop(fs.store, view, inode, block_entity(inode.content, number))
        return -found.length
    data = bytearray(mapping.bytes_of(fs.store, found))
    if stop == found.length:
        del data[start:]
    else:
        data[start:stop] = bytes(stop - start)
    return content.put_block(fs, view, inode, number, data)


def seek_data(fs: Filesystem, view: View, ino: Ino, offset: int) -> int:
    """The first place from ``offset`` on that is in no hole."""
    _require_behind(fs, view, ino, offset)
    for start, length in content.extents(fs, view, ino, offset):
        if start + length > offset:
            return max(start, offset)
    raise OSError(errno.ENXIO, "nothing but a hole follows")


def seek_hole(fs: Filesystem, view: View, ino: Ino, offset: int) -> int:
    """The first place from ``offset`` on that is in a hole; there is one behind every file."""
    _require_behind(fs, view, ino, offset)
    for start, length in content.extents(fs, view, ino, offset):
        if start > offset:
            break
        offset = max(offset, start + length)
    return offset


def _require_behind(fs: Filesystem, view: View, ino: Ino, offset: int) -> None:
    """Refuse a place that the file does not reach."""
    if not 0 <= offset < _load_file(fs, view, ino).size:
        raise OSError(errno.ENXIO, "behind the end of the file")


# -- copying ---------------------------------------------------------------------------------------


def copy_range(
    fs: Filesystem,
    source: View,
    ino: Ino,
    offset: int,
    view: View,
    target: Ino,
    target_offset: int,
    length: int,
    *,
    keep_set_id: bool = True,
) -> int:
    """Copy bytes of a file into another, or elsewhere in the same; how many is returned, fewer than
    asked for at the end of the file or of what is done at once. Blocks that come to stand as they
    stood are shared, of others the bytes are written."""
    view.require_writable()
    if offset < 0 or target_offset < 0:
        raise OSError(errno.EINVAL, "negative offset")
    length = min(length, _load_file(fs, source, ino).size - offset, COPIED_MAX)
    if length <= 0:
        return 0
    _require_range(target_offset, length)
    fs.store.require(length // BLOCK_SIZE)
    copied = 0
    while copied < length:
        at, place = offset + copied, target_offset + copied
        step = 0
        if not at % BLOCK_SIZE and not place % BLOCK_SIZE:
            step = _share_blocks(fs, source, ino, at, view, target, place, length - copied)
        if not step:
            step = min(BLOCK_SIZE - place % BLOCK_SIZE, length - copied)
            content.write(fs, view, target, place, content.read(fs, source, ino, at, step))
        copied += step
    if not keep_set_id:
        home = home_of(fs, view, target)
        _save_changed(fs, home, inodes.load(fs, home, target), keep_set_id=False)
    return copied


def share_record(fs: Filesystem, view: View, ino: Ino, length: int) -> bytes | None:
    """The block-map record of all the bytes of a file, if they are so many and stand in one block:
    it is counted once more, for a file that is to come."""
    inode = inodes.load(fs, view, ino)
    if inode.size != length or inode.allocated != length or ino in fs.gathered:
        return None
    record = fs.store.blockmap.get(view, block_entity(inode.content, 0))
    found = unpack_mapping(record) if record else None
    if found is None or found.length != length:
        return None
    if found.key:
        fs.store.blocks.share(found.key)
    return record


def _share_blocks(
    fs: Filesystem,
    source: View,
    ino: Ino,
    offset: int,
    view: View,
    target: Ino,
    place: int,
    length: int,
) -> int:
    """Have blocks of the target be the source's, as long as all that the target has there comes
    from them; return how many bytes that are."""
    home = home_of(fs, view, target)
    original, inode = _load_file(fs, source, ino), _load_file(fs, home, target)
    if inode.content == NO_CONTENT:
        inode = inode._replace(content=fs.store.new_content(), content_epoch=home.epoch)
    shared, allocated = 0, inode.allocated
    while shared < length:
        step = min(BLOCK_SIZE, length - shared)
        record = fs.store.blockmap.get(
            source, block_entity(original.content, (offset + shared) // BLOCK_SIZE)
        )
        if step < BLOCK_SIZE and (
            inode.size > place + length or (record and unpack_mapping(record).length > step)
        ):
            break  # one of the two has more in this block
        allocated += _put_shared(fs, home, inode, (place + shared) // BLOCK_SIZE, record)
        shared += step
    if shared:
        size = max(inode.size, place + shared)
        inode = inode._replace(size=size, allocated=allocated)
        _save_changed(fs, home, inode, keep_set_id=True)
    return shared


def _put_shared(fs: Filesystem, view: View, inode: Inode, number: int, record: bytes | None) -> int:
    """Map a block to what another's record tells of, which may be a hole; return by how much the
    file's allocation grew."""
    if record:
        found = unpack_mapping(record)
        fs.store.charge()
        if found.key:
            fs.store.blocks.share(found.key)
        return mapping.put(fs.store, view, inode, number, record, found.length)
    begin = number * BLOCK_SIZE
    gap = begin, begin + BLOCK_SIZE
    there = list(_mapped(fs, view, inode, *gap))
    return sum(_punch_block(fs, view, inode, each, found, gap) for each, found in there)
