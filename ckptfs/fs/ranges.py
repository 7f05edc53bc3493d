"""Parts of files: holes that are made and looked for, room that is asked for, bytes that are copied
without being read.

Works on the block map that `ckptfs.fs.content` owns, block by block. Whatever goes wrong half-way,
the inode says what the block map has.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ckptfs.fs import content, inodes
from ckptfs.fs.exclusion import home_of
from ckptfs.model import BLOCK_SIZE, NO_CONTENT, Ino, Inode
from ckptfs.store import blockmap
from ckptfs.store.blocks import LOST
from ckptfs.store.format import block_entity, block_number, pack_u64, unpack_mapping

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View
    from ckptfs.store.format import Mapping

#: How much one call copies at most, since others wait meanwhile: blocks that are shared, and as how
#: many of those one counts whose bytes are read and written.
EFFORT_MAX = 1024
_MOVED_EFFORT = 16
#: Up to so many blocks are looked for one by one; of more, those that there are.
_FEW = 16
#: What the disk must have for certain where room is asked for, however little that is.
_CERTAIN = 1 << 20


class Spot(NamedTuple):
    """A place in a file."""

    view: View
    ino: Ino
    offset: int

    def behind(self, length: int) -> Spot:
        return self._replace(offset=self.offset + length)

    @property
    def begins_block(self) -> bool:
        return not self.offset % BLOCK_SIZE


def _flushed_file(fs: Filesystem, view: View, ino: Ino) -> Inode:
    """The file, once all of its blocks are in the transaction."""
    inode = inodes.load(fs, view, ino)
    inodes.require_file(inode)
    fs.partial.flush_file(ino)
    return inode


def _end_of(offset: int, length: int) -> int:
    if offset < 0 or length <= 0:
        raise OSError(errno.EINVAL, "no range of a file")
    return offset + length


def _save_changed(fs: Filesystem, home: View, inode: Inode, *, keep_set_id: bool) -> None:
    content.sign_late(fs, inode.ino)
    now = fs.clock()
    mode = inode.mode if keep_set_id else inodes.without_set_id(inode.mode)
    inodes.save(fs, home, inode._replace(mode=mode, mtime_ns=now, ctime_ns=now))


def _mapped(
    fs: Filesystem, view: View, inode: Inode, offset: int, end: int
) -> Iterator[tuple[int, Mapping]]:
    """The blocks that there are between two places of a file, in order."""
    if inode.content == NO_CONTENT:
        return
    blockmap = fs.store.blockmap
    numbers = range(offset // BLOCK_SIZE, -(-end // BLOCK_SIZE))
    if len(numbers) <= _FEW:
        for number in numbers:
            if record := blockmap.get(view, block_entity(inode.content, number)):
                yield number, unpack_mapping(record)
        return
    first = block_entity(inode.content, numbers.start)
    for entity, record in blockmap.walk(view, pack_u64(inode.content), first):
        number = block_number(entity)
        if number not in numbers:
            return
        yield number, unpack_mapping(record)


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
    is reserved: no block is ever written in place, so none could be kept for a later write."""
    view.require_writable()
    end = _end_of(offset, length)
    content.require_size(end)
    home = home_of(fs, view, ino)
    inode = _flushed_file(fs, home, ino)
    missing = min(length, max(end, inode.size) - min(inode.allocated, inode.size))
    store = fs.store
    if missing > store.free_bytes() - store.dirty_bytes or not store.has_space(_CERTAIN):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    store.charge()
    size = inode.size if keep_size else max(inode.size, end)
    _save_changed(fs, home, inode._replace(size=size), keep_set_id=keep_set_id)


class _Gap(NamedTuple):
    """What of a block is to become zeros; with the bytes that stay, if any do."""

    number: int
    length: int
    rest: bytearray | None


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
    end = _end_of(offset, length)
    home = home_of(fs, view, ino)
    inode = _flushed_file(fs, home, ino)
    if not keep_size:
        content.require_size(end)
    size = inode.size if keep_size else max(inode.size, end)
    # What stays of the blocks at both ends is read, and given room, before anything goes.
    gaps = list(_gaps(fs, home, inode, offset, min(end, inode.size)))
    for gap in gaps:
        if gap.rest is not None:
            fs.store.charge(len(gap.rest))
    allocated = inode.allocated
    try:
        for gap in gaps:
            allocated += _fill_gap(fs, home, inode, gap)
    finally:
        inode = inode._replace(allocated=allocated, size=size)
        _save_changed(fs, home, inode, keep_set_id=keep_set_id)


def _gaps(fs: Filesystem, view: View, inode: Inode, offset: int, end: int) -> Iterator[_Gap]:
    """What there is of a file between two places, block by block."""
    for number, found in _mapped(fs, view, inode, offset, end):
        begin = number * BLOCK_SIZE
        start, stop = max(offset - begin, 0), min(end - begin, found.length)
        if stop - start == found.length:
            yield _Gap(number, found.length, None)
        elif start < stop:
            rest = bytearray(blockmap.bytes_of(fs.store, found))
            if stop == found.length:
                del rest[start:]
            else:
                rest[start:stop] = bytes(stop - start)
            yield _Gap(number, found.length, rest)


def _fill_gap(fs: Filesystem, view: View, inode: Inode, gap: _Gap) -> int:
    """Return by how much the file's allocation grew."""
    if gap.rest is not None:
        return content.put_block(fs, view, inode, gap.number, gap.rest)
    blockmap.drop(fs.store, view, inode, block_entity(inode.content, gap.number))
    return -gap.length


def seek_data(fs: Filesystem, view: View, ino: Ino, offset: int) -> int:
    """The first place from ``offset`` on that is in no hole."""
    inode = _file_within(fs, view, ino, offset)
    for stop in (offset + _FEW * BLOCK_SIZE, inode.size):
        for number, found in _mapped(fs, view, inode, offset, min(stop, inode.size)):
            begin = number * BLOCK_SIZE
            if begin + found.length > offset:
                return max(begin, offset)
    raise OSError(errno.ENXIO, "nothing but a hole follows")


def seek_hole(fs: Filesystem, view: View, ino: Ino, offset: int) -> int:
    """The first place from ``offset`` on that is in a hole; there is one behind every file."""
    inode = _file_within(fs, view, ino, offset)
    while offset < inode.size:
        found = blockmap.find(fs.store, view, inode, offset // BLOCK_SIZE)
        begin = offset - offset % BLOCK_SIZE
        if found is None or found.length < BLOCK_SIZE:
            return min(max(offset, begin + found.length if found else 0), inode.size)
        offset = begin + BLOCK_SIZE
    return inode.size


def _file_within(fs: Filesystem, view: View, ino: Ino, offset: int) -> Inode:
    """The file, if it has something at a place."""
    inode = _flushed_file(fs, view, ino)
    if not 0 <= offset < inode.size:
        raise OSError(errno.ENXIO, "behind the end of the file")
    return inode


# -- copying ---------------------------------------------------------------------------------------


def copy_range(
    fs: Filesystem, source: Spot, target: Spot, length: int, *, keep_set_id: bool = True
) -> int:
    """Copy bytes of a file into another, or elsewhere in the same; how many is returned, fewer than
    asked for at the end of the file, of what is done at once, and before what cannot be copied.
    Blocks that come to stand as they stood are shared, of others the bytes are written."""
    target.view.require_writable()
    if source.offset < 0 or target.offset < 0:
        raise OSError(errno.EINVAL, "negative offset")
    length = min(length, _flushed_file(fs, source.view, source.ino).size - source.offset)
    if length <= 0:
        return 0
    content.require_size(target.offset + length)
    copied = _copy(fs, source, target, length)
    if not keep_set_id:
        home = home_of(fs, target.view, target.ino)
        _save_changed(fs, home, inodes.load(fs, home, target.ino), keep_set_id=False)
    return copied


def _copy(fs: Filesystem, source: Spot, target: Spot, length: int) -> int:
    copied = effort = 0
    while copied < length and effort < EFFORT_MAX:
        here, there, left = source.behind(copied), target.behind(copied), length - copied
        try:
            step, spent = _share(fs, here, there, left, EFFORT_MAX - effort)
            if not step:
                step, spent = _move(fs, here, there, left), _MOVED_EFFORT
        except OSError:
            if not copied:
                raise
            break  # an error would hide what was copied, from the kernel's pages too
        copied += step
        effort += spent
    return copied


def _move(fs: Filesystem, source: Spot, target: Spot, length: int) -> int:
    """Write what is read, up to the end of a block of the target; return how many bytes."""
    length = min(length, BLOCK_SIZE - target.offset % BLOCK_SIZE)
    data = content.read(fs, source.view, source.ino, source.offset, length)
    return content.write(fs, target.view, target.ino, target.offset, data)


def _share(fs: Filesystem, source: Spot, target: Spot, length: int, most: int) -> tuple[int, int]:
    """Have blocks of the target be the source's, as long as all that the target has there comes
    from them; return how many bytes those are, and how many blocks."""
    if not source.begins_block or not target.begins_block:
        return 0, 0
    home = home_of(fs, target.view, target.ino)
    original = _flushed_file(fs, source.view, source.ino)
    inode = _flushed_file(fs, home, target.ino)
    if inode.content == NO_CONTENT:
        inode = inode._replace(content=fs.store.new_content(), content_epoch=home.epoch)
    shared = blocks = 0
    allocated = inode.allocated
    while shared < length and blocks < most:
        here, place = source.behind(shared), target.offset + shared
        try:
            step, grown = _share_next(fs, here, original, home, inode, place, length - shared)
        except OSError:
            if not shared:
                raise
            break  # the call for the rest meets it
        if not step:
            break
        shared += step
        blocks += 1
        allocated += grown
    if shared:
        size = max(inode.size, target.offset + shared)
        inode = inode._replace(size=size, allocated=allocated)
        _save_changed(fs, home, inode, keep_set_id=True)
    return shared, blocks


def _share_next(
    fs: Filesystem,
    source: Spot,
    original: Inode,
    home: View,
    inode: Inode,
    place: int,
    length: int,
) -> tuple[int, int]:
    """Share the next block, or the hole up to it. Return how many bytes that are, none if one of
    the two files has more in the block than is copied, and by how much the allocation grew."""
    entity = block_entity(original.content, source.offset // BLOCK_SIZE)
    record = fs.store.blockmap.get(source.view, entity)
    step = min(BLOCK_SIZE, length)
    if record is None:
        step = _hole_at(fs, source, original, length)
    if step % BLOCK_SIZE and inode.size > place + step:
        step -= step % BLOCK_SIZE  # the target has more in the last block
    found = unpack_mapping(record) if record else None
    if (found.length if found else 0) < min(BLOCK_SIZE, original.size - source.offset):
        content.require_holes(original)
    if not step or (found and (found.length > step or found.key == LOST)):
        return 0, 0
    if record is None or found is None:
        gaps = list(_gaps(fs, home, inode, place, place + step))
        return step, sum(_fill_gap(fs, home, inode, gap) for gap in gaps)
    fs.store.charge()
    blockmap.share(fs.store, found)
    number = place // BLOCK_SIZE
    return step, blockmap.put(fs.store, home, inode, number, record, found.length)


def _hole_at(fs: Filesystem, source: Spot, original: Inode, length: int) -> int:
    """How long the hole is that begins somewhere."""
    offset = source.offset
    for stop in (min(_FEW * BLOCK_SIZE, length), length):
        for number, _ in _mapped(fs, source.view, original, offset, offset + stop):
            return number * BLOCK_SIZE - offset
    return length


def share_record(fs: Filesystem, view: View, ino: Ino, length: int) -> bytes | None:
    """The block-map record of all the bytes of a file, if they are so many and stand in one block:
    it is counted once more, for a file that is to come."""
    inode = inodes.load(fs, view, ino)
    if inode.size != length or inode.allocated != length or ino in fs.partial:
        return None
    record = fs.store.blockmap.get(view, block_entity(inode.content, 0))
    found = unpack_mapping(record) if record else None
    if found is None or found.length != length or found.key == LOST:
        return None
    blockmap.share(fs.store, found)
    return record
