"""The bytes of files: reading, writing, cutting, and what they take.

Owns the block map of a file's content and the small buffers that gather short writes into blocks.
Names and attributes other than size and times are not known here.

A stored block may be shorter than BLOCK_SIZE; what it lacks reads as zeros. A content that was
allocated in the writing epoch keeps no `changes` entries for its blocks: they are all found under
the content id, and go with it (docs/FORMAT.md, "content").
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptfs.fs import inodes
from ckptfs.fs.exclusion import home_of
from ckptfs.fs.gathering import Gathered
from ckptfs.model import BLOCK_SIZE, FILE_SIZE_MAX, NO_CONTENT, Ino, Inode
from ckptfs.store.blocks import Buffer, CorruptBlock, Edit
from ckptfs.store.format import (
    INLINE_MAX,
    NO_EPOCH,
    CorruptRecord,
    Mapping,
    block_entity,
    block_number,
    pack_inline,
    pack_reference,
    pack_u64,
    unpack_mapping,
)

if TYPE_CHECKING:
    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import View

#: How many files may have a gathered block waiting at once.
_GATHERED_MAX = 64

_ZEROS = bytes(BLOCK_SIZE)


# -- settling --------------------------------------------------------------------------------------


def settle(fs: Filesystem, ino: Ino) -> None:
    """Put the block that is being gathered for the file into the transaction."""
    gathered = fs.gathered.get(ino)
    if gathered is not None:
        view = gathered.view
        inode = inodes.load(fs, view, ino)
        data = gathered.data
        record, key = _stored(fs, data, gathered.edit)
        grown = _put_record(fs, view, inode, gathered.number, record, len(data))
        del fs.gathered[ino]
        if key:
            fs.at_hand.keep(key, data)
        # Whoever wrote it has signed it; now it may be another's turn.
        inodes.keep(fs, view, inode._replace(allocated=inode.allocated + grown))


def settle_all(fs: Filesystem) -> None:
    while fs.gathered:
        settle(fs, next(iter(fs.gathered)))


def drop_gathered(fs: Filesystem, ino: Ino) -> None:
    """The file is going: what was gathered for it goes too."""
    fs.gathered.pop(ino, None)


# -- writing ---------------------------------------------------------------------------------------


def write(
    fs: Filesystem,
    view: View,
    ino: Ino,
    offset: int,
    data: Buffer,
    *,
    keep_set_id: bool = True,
) -> int:
    """Write at ``offset``. Unless the writer may keep them, the file loses its set-id bits."""
    view.require_writable()
    end = offset + len(data)
    if offset < 0:
        raise OSError(errno.EINVAL, "negative offset")
    if end > FILE_SIZE_MAX:
        raise OSError(errno.EFBIG, "file too large")
    if view.aside is not None:
        view = home_of(fs, view, ino)
    inode = inodes.load(fs, view, ino)
    if not inode.is_file:
        raise OSError(errno.EISDIR if inode.is_dir else errno.EINVAL, "not a regular file")
    if not data:
        return 0
    fs.store.charge(len(data))
    if fs.signing is fs.authorship.late and ino not in fs.held:
        # Nobody is known to have it open, so whoever changed it last need not be who wrote this.
        fs.signing = fs.authorship.unsigned
    if inode.content == NO_CONTENT:
        inode = inode._replace(content=fs.store.new_content(), content_epoch=view.epoch)
    elif offset // BLOCK_SIZE == end // BLOCK_SIZE:
        _gathering(fs, view, inode, offset // BLOCK_SIZE)
        inode = view.unsettled.get(ino, inode)  # as settling another block may have left it
    else:
        _require_parts(fs, view, inode, offset, end)
    # Before the blocks: settling a block that is already gathered adds to what is saved here.
    now = fs.clock()
    inode = inode._replace(
        size=max(inode.size, end),
        mode=inode.mode if keep_set_id else inode.mode & ~inodes.set_id_bits(inode.mode),
        mtime_ns=now,
        ctime_ns=now,
    )
    inodes.save(fs, view, inode)
    grown = _scatter(fs, view, inode, offset, memoryview(data))
    if grown:
        inode = inodes.load(fs, view, ino)
        inodes.save(fs, view, inode._replace(allocated=inode.allocated + grown))
    return len(data)


def _require_parts(fs: Filesystem, view: View, inode: Inode, offset: int, end: int) -> None:
    """Refuse a write to parts of blocks whose rest is damaged, before anything changes."""
    gathered = fs.gathered.get(inode.ino)
    for number, part in ((offset // BLOCK_SIZE, offset), (end // BLOCK_SIZE, end)):
        if part % BLOCK_SIZE and (gathered is None or gathered.number != number):
            mapping = find_block(fs, view, inode, number)
            if mapping is not None and mapping.key not in fs.at_hand:
                data = block_bytes(fs, mapping)
                if mapping.key:  # it is about to be written to
                    fs.at_hand.keep(mapping.key, bytearray(data))


def _scatter(fs: Filesystem, view: View, inode: Inode, offset: int, data: memoryview) -> int:
    """Cut the data at block borders: whole blocks are stored, parts are gathered. Returns by how
    much the stored ones made the file's allocation grow."""
    position = grown = 0
    length = len(data)
    while position < length:
        number, start = divmod(offset + position, BLOCK_SIZE)
        size = min(BLOCK_SIZE - start, length - position)
        piece = data[position : position + size]
        if size == BLOCK_SIZE:
            gathered = fs.gathered.get(inode.ino)
            if gathered is not None and gathered.number == number:
                del fs.gathered[inode.ino]
            grown += put_block(fs, view, inode, number, piece)
        else:
            _gather(fs, view, inode, number, start, piece)
        position += size
    return grown


def _gather(
    fs: Filesystem, view: View, inode: Inode, number: int, start: int, piece: memoryview
) -> None:
    _gathering(fs, view, inode, number).put(start, piece)
    if start + len(piece) == BLOCK_SIZE:
        settle(fs, inode.ino)


def _gathering(fs: Filesystem, view: View, inode: Inode, number: int) -> Gathered:
    """The block of the file, to be written to. Refused if what there is of it is damaged."""
    gathered = fs.gathered.get(inode.ino)
    if gathered is not None and gathered.number == number:
        return gathered
    settle(fs, inode.ino)
    if len(fs.gathered) >= _GATHERED_MAX:
        settle(fs, next(iter(fs.gathered)))
    mapping = find_block(fs, view, inode, number)
    if mapping is None:
        data, key = bytearray(), b""
    else:
        key = mapping.key
        data = fs.at_hand.take(key) or bytearray(block_bytes(fs, mapping))
    gathered = fs.gathered[inode.ino] = Gathered(view, number, data, key)
    return gathered


# -- the block map ---------------------------------------------------------------------------------


def find_block(fs: Filesystem, view: View, inode: Inode, number: int) -> Mapping | None:
    record = fs.store.blockmap.get(view, block_entity(inode.content, number))
    return unpack_mapping(record) if record else None


def block_bytes(fs: Filesystem, mapping: Mapping) -> Buffer:
    if mapping.key:
        data = fs.store.blocks.read(mapping.key)
        if len(data) != mapping.length:
            raise CorruptBlock(errno.EIO, "a record of the block map is damaged")
        return data
    if not mapping.is_whole:
        raise CorruptBlock(errno.EIO, "bytes in the block map are damaged")
    return mapping.inline


def put_block(fs: Filesystem, view: View, inode: Inode, number: int, data: Buffer) -> int:
    """Map a block to these bytes; return by how much the file's allocation grew."""
    return _put_record(fs, view, inode, number, record_of(fs, data), len(data))


def _put_record(
    fs: Filesystem, view: View, inode: Inode, number: int, record: bytes, length: int
) -> int:
    """Map a block to what the record tells of; return by how much the file's allocation grew."""
    store = fs.store
    entity = block_entity(inode.content, number)
    if inode.content_epoch == view.epoch:
        replaced = store.blockmap.put_unlisted(view, entity, record)
        inherited = None
    else:
        replaced = store.blockmap.put(view, entity, record)
        inherited = None if replaced is not None else store.blockmap.inherited(view, entity)
    return length - _release(fs, replaced) - _length(inherited)


def record_of(fs: Filesystem, data: Buffer) -> bytes:
    """The block-map record of these bytes. What is too long for one is stored as a block."""
    return _stored(fs, data)[0]


def _stored(fs: Filesystem, data: Buffer, edit: Edit | None = None) -> tuple[bytes, bytes]:
    """The same, and the key of the block, if they are one. With ``edit`` they are known to differ
    little from those of another."""
    length = len(data)
    if length <= INLINE_MAX:
        return pack_inline(data), b""
    key = fs.store.blocks.add(data, edit)
    return pack_reference(length, key), key


def _length(record: bytes | None) -> int:
    return unpack_mapping(record).length if record else 0


def _release(fs: Filesystem, record: bytes | None) -> int:
    """Let go of what a dropped block-map record held; return how many bytes it mapped."""
    if not record:
        return 0
    mapping = unpack_mapping(record)
    if mapping.key:
        fs.store.blocks.release(mapping.key)
    return mapping.length


def _drop_block(fs: Filesystem, view: View, inode: Inode, entity: bytes) -> None:
    if inode.content_epoch == view.epoch:
        _release(fs, fs.store.blockmap.forget_unlisted(view, entity))
    else:
        _release(fs, fs.store.blockmap.drop(view, entity))


# -- cutting ---------------------------------------------------------------------------------------


def truncate(fs: Filesystem, view: View, inode: Inode, size: int) -> Inode:
    """The inode with its content cut or grown to ``size``; the caller saves it."""
    if size < 0:
        raise OSError(errno.EINVAL, "negative size")
    if size > FILE_SIZE_MAX:
        raise OSError(errno.EFBIG, "file too large")
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
        mapping = unpack_mapping(record)
        if keep and block_number(entity) == first:
            if mapping.length > keep:
                data = block_bytes(fs, mapping)[:keep]
                allocated += put_block(fs, view, inode, first, data)
        else:
            _drop_block(fs, view, inode, entity)
            allocated -= mapping.length
    return inode._replace(allocated=allocated)


def discard(fs: Filesystem, view: View, inode: Inode) -> None:
    """Let go of what the view's epoch wrote into the content; what it inherited stays."""
    blockmap = fs.store.blockmap
    prefix = pack_u64(inode.content)
    if inode.content_epoch == view.epoch:
        for entity, _ in blockmap.walk(view, prefix):
            _release(fs, blockmap.forget_unlisted(view, entity))
        return
    for entity in fs.store.changes.walk(view.epoch, blockmap.kind, prefix):
        _release(fs, blockmap.forget(view, entity))


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
        elif key := unpack_mapping(record).key:
            store.blocks.share(key)
        store.blockmap.put_unlisted(place, block_entity(content, block_number(entity)), record)
    if content != inode.content:
        discard(fs, home, inode)
    return inode._replace(content=content, content_epoch=place.epoch)


# -- reading ---------------------------------------------------------------------------------------


def read(fs: Filesystem, view: View, ino: Ino, offset: int, size: int) -> Buffer:
    """Up to ``size`` bytes at ``offset``; fewer only at the end of the file."""
    settle(fs, ino)
    inode = inodes.load(fs, view, ino)
    if not inode.is_file:
        raise OSError(errno.EISDIR if inode.is_dir else errno.EINVAL, "not a regular file")
    end = min(offset + size, inode.size)
    if offset >= end:
        return b""
    first, last = offset // BLOCK_SIZE, (end - 1) // BLOCK_SIZE
    fs.store.expect_blocks()
    try:
        if first == last:
            start = first * BLOCK_SIZE
            return _piece(fs, view, inode, first, offset - start, end - start)
        return b"".join(_pieces(fs, view, inode, offset, end))
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
    mapping = find_block(fs, view, inode, number)
    piece = block_bytes(fs, mapping)[start:stop] if mapping else b""
    missing = stop - start - len(piece)
    if not missing:
        return piece
    if inode.allocated >= inode.size:
        raise CorruptBlock(errno.EIO, "a file without holes has one: its block map is damaged")
    return b"".join((piece, _ZEROS[:missing]))


def extents(fs: Filesystem, view: View, ino: Ino) -> Iterator[tuple[int, int]]:
    """(offset, length) of each stored range of the file, in order."""
    settle(fs, ino)
    inode = inodes.load(fs, view, ino)
    if inode.content == NO_CONTENT:
        return
    for entity, record in fs.store.blockmap.walk(view, pack_u64(inode.content)):
        offset = block_number(entity) * BLOCK_SIZE
        length = min(unpack_mapping(record).length, inode.size - offset)
        if length > 0:
            yield offset, length
