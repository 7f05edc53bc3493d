"""The bytes of files: reading, writing, cutting, and what they take.

Owns the block map of a file's content; short writes wait in the partial-block buffer
(`ckptfs.fs.buffers`).
Names and attributes other than size and times are not known here.

A stored block may be shorter than BLOCK_SIZE; what it lacks reads as zeros. A content that was
allocated in the writing epoch keeps no `changes` entries for its blocks: they are all found under
the content id, and go with it (docs/FORMAT.md, "content").
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckptfs.fs import inodes
from ckptfs.fs.buffers import PartialBlock, Piece
from ckptfs.fs.exclusion import home_of
from ckptfs.model import BLOCK_SIZE, FILE_SIZE_MAX, NO_CONTENT, Ino, Inode
from ckptfs.store import blockmap
from ckptfs.store.blocks import Buffer, CorruptBlock
from ckptfs.store.format import (
    NO_EPOCH,
    CorruptRecord,
    block_entity,
    block_number,
    pack_u64,
    unpack_mapping,
)

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View

_ZEROS = bytes(BLOCK_SIZE)
#: What a partial block takes of a nearly full disk, beside the bytes that are written to
#: it, in records: it is stored anew, whole.
_BLOCK_RECORDS = 4


# -- writing ---------------------------------------------------------------------------------------


def write(
    fs: Filesystem, view: View, ino: Ino, offset: int, data: Buffer, *, keep_set_id: bool = True
) -> int:
    """Write at ``offset``. Unless the writer may keep them, the file loses its set-id bits."""
    write_pieces(fs, view, ino, ((offset, data),), keep_set_id=keep_set_id)
    return len(data)


def write_pieces(
    fs: Filesystem,
    view: View,
    ino: Ino,
    pieces: Sequence[Piece],
    *,
    keep_set_id: bool = True,
    now_ns: int | None = None,
) -> None:
    """Several writes to a file, one after the other. ``now_ns`` is for those that were acknowledged
    before."""
    view.require_writable()
    end = max([offset + len(data) for offset, data in pieces])
    if min([offset for offset, _ in pieces]) < 0:
        raise OSError(errno.EINVAL, "negative offset")
    require_size(end)
    if view.excluded is not None:
        view = home_of(fs, view, ino)
    inode = inodes.load(fs, view, ino)
    inodes.require_file(inode)
    if not any(data for _, data in pieces):
        return
    fs.store.charge()
    sign_late(fs, ino)
    is_new = inode.content == NO_CONTENT
    if is_new:
        inode = inode._replace(content=fs.store.new_content(), content_epoch=view.epoch)
    now = fs.clock() if now_ns is None else now_ns
    size, allocated = inode.size, inode.allocated
    # What waits already is overwritten in memory, and stored once.
    begun = fs.partial.overwrite(ino, pieces)
    try:
        while begun < len(pieces):
            offset, data = pieces[begun]
            if not fs.partial.has_dirty(ino, offset, data):
                fs.store.charge(len(data))
            if not is_new:
                _require_whole(fs, view, inode, offset, data)
            begun += 1
            for stop, growth in _scatter(fs, view, inode, offset, memoryview(data)):
                size, allocated = max(size, stop), allocated + growth
            begun += fs.partial.overwrite(ino, pieces[begun:])
    finally:
        # Also if one of the blocks could not be written: those before it are.
        if begun:
            inode = inode._replace(
                size=size,
                allocated=allocated,
                mode=inode.mode if keep_set_id else inodes.without_set_id(inode.mode),
                mtime_ns=now,
                ctime_ns=now,
            )
            inodes.save(fs, view, inode)


def _require_whole(fs: Filesystem, view: View, inode: Inode, offset: int, data: Buffer) -> None:
    """A write to a part of a block whose rest is damaged is refused before anything changes. A new
    content has no such block; nor may one be opened for it before the inode names it."""
    for place in (offset, offset + len(data)):
        if place % BLOCK_SIZE:
            _partial_block(fs, view, inode, place // BLOCK_SIZE)


def require_size(size: int) -> None:
    """Refuse to make a file longer than any can be."""
    if size > FILE_SIZE_MAX:
        raise OSError(errno.EFBIG, "file too large")


def sign_late(fs: Filesystem, ino: Ino) -> None:
    """Before bytes change whose writer is unknown."""
    if fs.signing is fs.authorship.late and ino not in fs.held:
        # It is not known to be open, so its last author need not be the writer of these bytes.
        fs.signing = fs.authorship.unsigned


def _scatter(
    fs: Filesystem, view: View, inode: Inode, offset: int, data: memoryview
) -> Iterator[tuple[int, int]]:
    """Cut the data at block borders: whole blocks are stored, parts are buffered. Gives up to where
    the file has the data then, and by how much that made its allocation grow."""
    position = 0
    length = len(data)
    while position < length:
        number, start = divmod(offset + position, BLOCK_SIZE)
        size = min(BLOCK_SIZE - start, length - position)
        piece = data[position : position + size]
        if size == BLOCK_SIZE:
            partial = fs.partial.get(inode.ino, number)
            slot = fs.store.ids.slot
            growth = put_block(fs, view, inode, number, piece)
            if partial is not None:  # after that: it is all there is if the block cannot be put
                growth -= partial.growth
                fs.partial.drop(partial)
            yield offset + position + size, growth
            if fs.store.ids.slot != slot:
                fs.store.place(BLOCK_SIZE)
        else:
            block = _partial_block(fs, view, inode, number)
            is_in_order = block.stopped_at == start
            yield offset + position + size, fs.partial.put(block, start, piece)
            # Who fills one block after the other is done with it. Who syncs in between may not be,
            # and then the journal has its pieces; nor is who writes here and there.
            if start + size == BLOCK_SIZE and is_in_order and not block.logged:
                fs.partial.flush_block(block)
        position += size


def _partial_block(fs: Filesystem, view: View, inode: Inode, number: int) -> PartialBlock:
    """The block of the file, to be written to. Refused if what there is of it is damaged."""
    block = fs.partial.get(inode.ino, number)
    if block is not None:
        return block
    found = blockmap.find(fs.store, view, inode, number)
    data = bytearray(blockmap.bytes_of(fs.store, found)) if found else bytearray()
    fs.store.note(_BLOCK_RECORDS)
    block = PartialBlock(view, inode, number, data, found.key if found else b"")
    fs.partial.add(block)
    return block


def put_block(fs: Filesystem, view: View, inode: Inode, number: int, data: Buffer) -> int:
    """Map a block to these bytes; return by how much the file's allocation grew."""
    record = blockmap.record_of(fs.store, data, number=number)
    return blockmap.put(fs.store, view, inode, number, record, len(data))


def record_of(fs: Filesystem, data: Buffer) -> bytes:
    """The block-map record of these bytes, at most one block, for a file that is to come."""
    return blockmap.record_of(fs.store, data)


# -- cutting ---------------------------------------------------------------------------------------


def truncate(fs: Filesystem, view: View, inode: Inode, size: int) -> Inode:
    """The inode with its content cut or grown to ``size``; the caller saves it."""
    if size < 0:
        raise OSError(errno.EINVAL, "negative size")
    require_size(size)
    if size == 0 and inode.content != NO_CONTENT:
        discard(fs, view, inode)
        inode = inode._replace(content=NO_CONTENT, content_epoch=NO_EPOCH, allocated=0)
    elif size < inode.size:
        inode = _cut(fs, view, inode, size)
    return inode._replace(size=size)


def _cut(fs: Filesystem, view: View, inode: Inode, size: int) -> Inode:
    first, keep = divmod(size, BLOCK_SIZE)
    allocated = inode.allocated
    prefix = pack_u64(inode.content)
    for entity, record in fs.store.blockmap.walk(view, prefix, block_entity(inode.content, first)):
        found = unpack_mapping(record)
        if keep and block_number(entity) == first:
            if found.length > keep:
                data = blockmap.bytes_of(fs.store, found)[:keep]
                allocated += put_block(fs, view, inode, first, data)
        else:
            blockmap.drop(fs.store, view, inode, entity)
            allocated -= found.length
    return inode._replace(allocated=allocated)


def discard(fs: Filesystem, view: View, inode: Inode) -> None:
    """Let go of what the view's epoch wrote into the content; what it inherited stays."""
    table = fs.store.blockmap
    prefix = pack_u64(inode.content)
    if inode.content_epoch == view.epoch:
        for entity, _ in table.walk(view, prefix):
            blockmap.release(fs.store, table.forget_unlisted(view, entity))
        return
    for entity in fs.store.changes.walk(view.epoch, table.kind, prefix):
        blockmap.release(fs.store, table.forget(view, entity))


def carry(fs: Filesystem, inode: Inode, home: View, place: View) -> Inode:
    """The inode with its bytes in another epoch's records; the caller saves it there."""
    store = fs.store
    if inode.content == NO_CONTENT:
        return inode
    content = inode.content
    if inode.content_epoch != home.epoch:
        content = store.new_content()
    for entity, record in list(store.blockmap.walk(home, pack_u64(inode.content))):
        if content == inode.content:
            store.blockmap.forget_unlisted(home, entity)
        else:
            blockmap.share(store, unpack_mapping(record))
        store.blockmap.put_unlisted(place, block_entity(content, block_number(entity)), record)
    if content != inode.content:
        discard(fs, home, inode)
    return inode._replace(content=content, content_epoch=place.epoch)


# -- reading ---------------------------------------------------------------------------------------


def read(fs: Filesystem, view: View, ino: Ino, offset: int, size: int) -> Buffer:
    """Up to ``size`` bytes at ``offset``; fewer only at the end of the file."""
    pieces = read_pieces(fs, view, ino, offset, size)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_pieces(fs: Filesystem, view: View, ino: Ino, offset: int, size: int) -> list[Buffer]:
    """The same as they stand, block by block."""
    inode = inodes.load(fs, view, ino)
    inodes.require_file(inode)
    end = min(offset + size, inode.size)
    if offset >= end:
        return []
    fs.store.expect_blocks()
    try:
        return list(_pieces(fs, view, inode, offset, end))
    except (CorruptBlock, CorruptRecord) as error:
        raise CorruptBlock(errno.EIO, _whereabouts(fs, view, inode, error)) from error


def _whereabouts(fs: Filesystem, view: View, inode: Inode, error: OSError) -> str:
    """What is damaged, in words for the log: a reader hears no more than EIO."""
    parts = []
    with contextlib.suppress(OSError):
        here = inode
        while here.name:
            parts.append(here.name)
            here = inodes.load(fs, view, here.parent)
    record = fs.store.epochs.get(view.epoch)
    number = record.info.get("id") if record else None
    where = "the workspace" if number is None else f"checkpoint {number}"
    return (
        f"{error.strerror}: {os.fsdecode(b'/'.join(reversed(parts)))!r} in {where}; "
        "`ckptfs check --deep` names all that is affected"
    )


def _pieces(fs: Filesystem, view: View, inode: Inode, offset: int, end: int) -> Iterator[Buffer]:
    while offset < end:
        number, start = divmod(offset, BLOCK_SIZE)
        stop = min(BLOCK_SIZE, start + end - offset)
        yield _piece(fs, view, inode, number, start, stop)
        offset += stop - start


def _piece(fs: Filesystem, view: View, inode: Inode, number: int, start: int, stop: int) -> Buffer:
    """Bytes ``start`` to ``stop`` of a block; a hole and what a short block lacks are zeros."""
    piece = _bytes_at(fs, view, inode, number)[start:stop]
    missing = stop - start - len(piece)
    if not missing:
        return piece
    require_holes(inode)
    return b"".join((piece, _ZEROS[:missing]))


def require_holes(inode: Inode) -> None:
    """Before a hole is believed in: a file without any has lost a record there."""
    if inode.allocated >= inode.size:
        raise CorruptBlock(errno.EIO, "a file without holes has one: its block map is damaged")


def _bytes_at(fs: Filesystem, view: View, inode: Inode, number: int) -> Buffer:
    """What there is of a block, as the partial-block buffer has it or as it is stored."""
    block = fs.partial.get(inode.ino, number)
    if block is not None:
        if block.view.epoch == view.epoch or block.view is view.excluded:
            return block.data
        # A checkpoint may have the same file as it was.
        fs.partial.flush_block(block)
    found = blockmap.find(fs.store, view, inode, number)
    return blockmap.bytes_of(fs.store, found) if found else b""


def extents(fs: Filesystem, view: View, ino: Ino) -> Iterator[tuple[int, int]]:
    """(offset, length) of each stored range of the file, in order."""
    fs.partial.flush_file(ino)
    inode = inodes.load(fs, view, ino)
    if inode.content == NO_CONTENT:
        return
    for entity, record in fs.store.blockmap.walk(view, pack_u64(inode.content)):
        offset = block_number(entity) * BLOCK_SIZE
        length = min(unpack_mapping(record).length, inode.size - offset)
        if length > 0:
            yield offset, length
