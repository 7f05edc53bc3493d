"""The bytes of files between a descriptor and the store: digests, comparing, copying either way.

Knows blocks and holes; names, attributes and the ledger are not known here.

A digest describes what a file reads as, not how it is stored: block by block, with blocks of zeros
left out, so that a hole and written zeros are the same and a sparse terabyte costs nothing. It only
ever answers "is this still what both sides had?"; what goes into the store is compared with the
bytes that are there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from xxhash import xxh3_64_digest, xxh3_128_intdigest

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, Attributes, Inode
from ckptfs.store import View
from ckptfs.sync.ledger import DIGEST_SIZE

Buffer = bytes | bytearray | memoryview

#: Called behind every piece that was written, so that a long copy can be committed on the way.
Pause = Callable[[], None]

#: How much of a large file is read at once. Always into the same memory: fresh memory for every
#: piece takes the kernel as long as the reading.
_CHUNK = 16 * BLOCK_SIZE
_ZEROS = bytes(BLOCK_SIZE)


def _is_zero(data: Buffer) -> bool:
    return not data or (not data[0] and _is_same(data, _ZEROS[: len(data)]))


def _is_same(one: Buffer, other: Buffer) -> bool:
    # As bytes: a memoryview is compared element by element, eighty times slower.
    return bytes(one) == bytes(other)


class Digest:
    """Gathers a file's digest from its blocks, in any order. Each block's number seeds its hash,
    so equal blocks in exchanged places tell, and the size is part of it, so added zeros do."""

    def __init__(self, size: int) -> None:
        self._value = size

    def add(self, number: int, data: Buffer) -> None:
        if not _is_zero(data):
            self._value ^= xxh3_128_intdigest(data, number)

    def value(self) -> bytes:
        return self._value.to_bytes(DIGEST_SIZE, "big")


def digest_of_one(data: Buffer) -> bytes:
    """The digest of a file that fits one block."""
    value = len(data)
    if not _is_zero(data):
        value ^= xxh3_128_intdigest(data, 0)
    return value.to_bytes(DIGEST_SIZE, "big")


def digest_of_xattrs(xattrs: dict[bytes, bytes]) -> bytes:
    """Eight bytes that stand for a set of extended attributes; none for no attributes."""
    if not xattrs:
        return b""
    pairs = (b"%d:%s%d:%s" % (len(n), n, len(v), v) for n, v in sorted(xattrs.items()))
    return xxh3_64_digest(b"".join(pairs))


# -- files below -----------------------------------------------------------------------------------


def read_exactly(fd: int, offset: int, size: int) -> bytes:
    """``size`` bytes from ``offset``; fewer only where the file ends."""
    data = os.pread(fd, size, offset)
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def read_into(fd: int, offset: int, room: memoryview) -> int:
    """Fill ``room`` from ``offset``; return how much of it, less than all only where the file
    ends."""
    filled = 0
    while filled < len(room):
        more = os.preadv(fd, [room[filled:]], offset + filled)
        if not more:
            break
        filled += more
    return filled


def is_sparse(seen: os.stat_result) -> bool:
    return seen.st_blocks * 512 < seen.st_size


def data_ranges(fd: int, seen: os.stat_result) -> Iterator[tuple[int, int]]:
    """(start, end) of what is not a hole, widened to whole blocks, in order, without overlaps."""
    size = seen.st_size
    if not is_sparse(seen):
        yield 0, size
        return
    position = 0
    while position < size:
        data = _seek(fd, position, os.SEEK_DATA)
        if data is None or data >= size:
            return
        hole = _seek(fd, data, os.SEEK_HOLE)
        position = size if hole is None else min(size, -(-hole // BLOCK_SIZE) * BLOCK_SIZE)
        yield data - data % BLOCK_SIZE, position


def _seek(fd: int, offset: int, whence: int) -> int | None:
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def chunks_below(fd: int, seen: os.stat_result) -> Iterator[tuple[int, memoryview]]:
    """(offset, bytes) of a file below, many blocks at a time, holes left out. A file that shrinks
    while it is read just ends. All come in the same memory: to ask for the next ends the last."""
    room = memoryview(bytearray(min(_CHUNK, seen.st_size)))
    for start, end in data_ranges(fd, seen):
        while start < end:
            chunk = room[: read_into(fd, start, room[: end - start])]
            if not chunk:
                return
            yield start, chunk
            start += len(chunk)


def blocks_of(start: int, chunk: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, bytes) of the blocks in a chunk of a file."""
    for position in range(0, len(chunk), BLOCK_SIZE):
        yield (start + position) // BLOCK_SIZE, chunk[position : position + BLOCK_SIZE]


def blocks_below(fd: int, seen: os.stat_result) -> Iterator[tuple[int, memoryview]]:
    """(number, bytes) of the blocks of a file below, as `chunks_below`."""
    for start, chunk in chunks_below(fd, seen):
        yield from blocks_of(start, chunk)


def digest_below(fd: int, seen: os.stat_result) -> bytes:
    if seen.st_size <= BLOCK_SIZE:
        return digest_of_one(read_exactly(fd, 0, seen.st_size))
    digest = Digest(seen.st_size)
    for number, data in blocks_below(fd, seen):
        digest.add(number, data)
    return digest.value()


# -- files in the store ----------------------------------------------------------------------------


def blocks_stored(fs: Filesystem, view: View, inode: Inode) -> Iterator[tuple[int, Buffer]]:
    """(number, bytes) of the blocks that a file in the store has."""
    done = -1
    for offset, length in fs.extents(view, inode.ino):
        for number in range(offset // BLOCK_SIZE, -(-(offset + length) // BLOCK_SIZE)):
            if number > done:
                done = number
                yield number, fs.read(view, inode.ino, number * BLOCK_SIZE, BLOCK_SIZE)


def digest_stored(fs: Filesystem, view: View, inode: Inode) -> bytes:
    if inode.size <= BLOCK_SIZE:
        return digest_of_one(fs.read(view, inode.ino, 0, BLOCK_SIZE))
    digest = Digest(inode.size)
    for number, data in blocks_stored(fs, view, inode):
        digest.add(number, data)
    return digest.value()


def is_equal(fs: Filesystem, view: View, inode: Inode, fd: int, seen: os.stat_result) -> bool:
    """Whether a file of the store and one below read the same. Bytes, not digests."""
    if inode.size != seen.st_size:
        return False
    return all(
        _is_same(fs.read(view, inode.ino, number * BLOCK_SIZE, len(data)), data)
        for number, data in blocks_below(fd, seen)
    ) and all(
        _is_same(read_exactly(fd, number * BLOCK_SIZE, len(data)), data)
        for number, data in blocks_stored(fs, view, inode)
    )


# -- copying ---------------------------------------------------------------------------------------


def copy_in(
    fs: Filesystem, view: View, inode: Inode, fd: int, seen: os.stat_result, pause: Pause
) -> bytes:
    """Fill an empty file of the store from a file below; return the digest. The size is set only
    where the file ends in a hole: the last write gives it otherwise."""
    digest = Digest(seen.st_size)
    end = 0
    for start, chunk in chunks_below(fd, seen):
        for number, data in blocks_of(start, chunk):
            digest.add(number, data)
        fs.write(view, inode.ino, start, chunk)
        end = start + len(chunk)
        pause()
    if end != seen.st_size:
        fs.setattr(view, inode.ino, Attributes(size=seen.st_size))
    return digest.value()


def update_in(
    fs: Filesystem, view: View, inode: Inode, fd: int, seen: os.stat_result, pause: Pause
) -> tuple[bool, bytes]:
    """Make a file of the store read like a file below, writing only the blocks that differ. Return
    whether any did, and the digest."""
    if is_sparse(seen):
        return _replace_sparse(fs, view, inode, fd, seen, pause)
    changed = inode.size != seen.st_size
    if inode.size > seen.st_size:
        fs.setattr(view, inode.ino, Attributes(size=seen.st_size))
    digest = Digest(seen.st_size)
    for number, data in blocks_below(fd, seen):
        digest.add(number, data)
        if not _is_same(fs.read(view, inode.ino, number * BLOCK_SIZE, len(data)), data):
            fs.write(view, inode.ino, number * BLOCK_SIZE, data)
            changed = True
            pause()
    return changed, digest.value()


def _replace_sparse(
    fs: Filesystem, view: View, inode: Inode, fd: int, seen: os.stat_result, pause: Pause
) -> tuple[bool, bytes]:
    """Holes cannot be put back into a stored file one by one: a sparse file that differs is written
    anew. Its blocks are stored once whoever refers to them, so that costs reading only."""
    digest = digest_below(fd, seen)
    if inode.size == seen.st_size and digest_stored(fs, view, inode) == digest:
        return False, digest
    fs.setattr(view, inode.ino, Attributes(size=0))
    return True, copy_in(fs, view, inode, fd, seen, pause)


def copy_out(fs: Filesystem, view: View, inode: Inode, fd: int) -> bytes:
    """Fill an empty file below from the store, holes left out; return the digest."""
    digest = Digest(inode.size)
    end = 0
    for number, data in blocks_stored(fs, view, inode):
        interrupts.between()
        digest.add(number, data)
        end = number * BLOCK_SIZE
        write_all(fd, data, end)
        end += len(data)
    if end != inode.size:
        os.ftruncate(fd, inode.size)
    return digest.value()


def write_all(fd: int, data: Buffer, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, memoryview(data)[written:], offset + written)
