"""File content: digests, comparing, and copying between a descriptor and the store.

A digest describes what a file reads as, not how it is stored: block by block, without blocks of
zeros, so that a hole and written zeros are the same and a sparse terabyte costs nothing. It only
answers "is this still what both sides had?"; what goes into the store is compared byte by byte.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator

from xxhash import xxh3_64_digest, xxh3_128_intdigest

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, Attributes, Inode
from ckptfs.store import View
from ckptfs.sync import lower
from ckptfs.sync.ledger import DIGEST_SIZE

Buffer = bytes | bytearray | memoryview

#: Called after every write, so that a long copy can be committed in parts.
Pause = Callable[[], None]

#: How much of a large file is read at once, always into the same buffer: new memory for every read
#: takes the kernel as long as the reading.
_CHUNK = 16 * BLOCK_SIZE
_ZEROS = bytes(BLOCK_SIZE)


def _is_zero(data: Buffer) -> bool:
    return not data or (not data[0] and _is_same(data, _ZEROS[: len(data)]))


def _is_same(one: Buffer, other: Buffer) -> bool:
    # As bytes: a memoryview is compared element by element, eighty times slower.
    return bytes(one) == bytes(other)


class Digest:
    """A file's digest from its blocks, in any order. Each block's number seeds its hash, so swapped
    blocks change it; the size is part of it, so appended zeros do, too."""

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
    """Eight bytes for a set of extended attributes; none for no attributes."""
    if not xattrs:
        return b""
    pairs = (b"%d:%s%d:%s" % (len(n), n, len(v), v) for n, v in sorted(xattrs.items()))
    return xxh3_64_digest(b"".join(pairs))


# -- files in the lower directory ------------------------------------------------------------------


def read_exactly(fd: int, offset: int, size: int) -> bytes:
    """``size`` bytes from ``offset``; fewer only where the file ends."""
    data = os.pread(fd, size, offset)
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def read_into(fd: int, offset: int, buffer: memoryview) -> int:
    """Fill ``buffer`` from ``offset``; return how much, less than all only where the file ends."""
    filled = 0
    while filled < len(buffer):
        more = os.preadv(fd, [buffer[filled:]], offset + filled)
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


def chunks_lower(fd: int, seen: os.stat_result) -> Iterator[tuple[int, memoryview]]:
    """(offset, bytes) of a lower file, many blocks at a time, without holes. A file that shrinks
    meanwhile just ends. All chunks share one buffer: the next one overwrites the last."""
    buffer = memoryview(bytearray(min(_CHUNK, seen.st_size)))
    for start, end in data_ranges(fd, seen):
        while start < end:
            chunk = buffer[: read_into(fd, start, buffer[: end - start])]
            if not chunk:
                return
            yield start, chunk
            start += len(chunk)


def blocks_of(start: int, chunk: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, bytes) of the blocks in a chunk of a file."""
    for position in range(0, len(chunk), BLOCK_SIZE):
        yield (start + position) // BLOCK_SIZE, chunk[position : position + BLOCK_SIZE]


def blocks_lower(fd: int, seen: os.stat_result) -> Iterator[tuple[int, memoryview]]:
    """(number, bytes) of the blocks of a lower file, as `chunks_lower`."""
    for start, chunk in chunks_lower(fd, seen):
        yield from blocks_of(start, chunk)


def digest_lower(fd: int, seen: os.stat_result) -> bytes:
    if seen.st_size <= BLOCK_SIZE:
        return digest_of_one(read_exactly(fd, 0, seen.st_size))
    digest = Digest(seen.st_size)
    for number, data in blocks_lower(fd, seen):
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
    if not inode.is_file:
        return special_digest(inode.mode, inode.rdev, inode.target)
    if inode.size <= BLOCK_SIZE:
        return digest_of_one(fs.read(view, inode.ino, 0, BLOCK_SIZE))
    digest = Digest(inode.size)
    for number, data in blocks_stored(fs, view, inode):
        digest.add(number, data)
    return digest.value()


def xattrs_stored(fs: Filesystem, view: View, inode: Inode) -> dict[bytes, bytes]:
    names = fs.listxattr(view, inode.ino)
    return {name: fs.getxattr(view, inode.ino, name) for name in names}


def is_equal(fs: Filesystem, view: View, inode: Inode, fd: int, seen: os.stat_result) -> bool:
    """Whether a file of the store and a lower file have the same bytes. Not by digest."""
    if inode.size != seen.st_size:
        return False
    return all(
        _is_same(fs.read(view, inode.ino, number * BLOCK_SIZE, len(data)), data)
        for number, data in blocks_lower(fd, seen)
    ) and all(
        _is_same(read_exactly(fd, number * BLOCK_SIZE, len(data)), data)
        for number, data in blocks_stored(fs, view, inode)
    )


# -- copying ---------------------------------------------------------------------------------------


def copy_in(
    fs: Filesystem, view: View, inode: Inode, fd: int, seen: os.stat_result, pause: Pause
) -> bytes:
    """Fill an empty file of the store from a lower file; return the digest. The size is set only if
    the file ends in a hole."""
    digest = Digest(seen.st_size)
    end = 0
    for start, chunk in chunks_lower(fd, seen):
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
    """Make a file of the store equal to a lower file, writing only the blocks that differ. Return
    whether any did, and the digest."""
    if is_sparse(seen):
        return _replace_sparse(fs, view, inode, fd, seen, pause)
    changed = inode.size != seen.st_size
    if inode.size > seen.st_size:
        fs.setattr(view, inode.ino, Attributes(size=seen.st_size))
    digest = Digest(seen.st_size)
    for number, data in blocks_lower(fd, seen):
        digest.add(number, data)
        if not _is_same(fs.read(view, inode.ino, number * BLOCK_SIZE, len(data)), data):
            fs.write(view, inode.ino, number * BLOCK_SIZE, data)
            changed = True
            pause()
    return changed, digest.value()


def _replace_sparse(
    fs: Filesystem, view: View, inode: Inode, fd: int, seen: os.stat_result, pause: Pause
) -> tuple[bool, bytes]:
    """A stored file cannot get single holes back: a sparse file that differs is written anew. Equal
    blocks are stored once, so that costs reading only."""
    digest = digest_lower(fd, seen)
    if inode.size == seen.st_size and digest_stored(fs, view, inode) == digest:
        return False, digest
    fs.setattr(view, inode.ino, Attributes(size=0))
    return True, copy_in(fs, view, inode, fd, seen, pause)


def copy_out(fs: Filesystem, view: View, inode: Inode, fd: int) -> bytes:
    """Fill an empty lower file from the store, without holes; return the digest."""
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


class Entry:
    """One entry of the lower directory that is not a directory, read as far as needed: most
    questions need the attributes alone. A context manager that closes the file."""

    __slots__ = (
        "_data",
        "_digest",
        "_fd",
        "_xattrs",
        "dir_fd",
        "name",
        "read_ns",
        "seen",
        "target",
    )

    def __init__(self, dir_fd: int, name: bytes, seen: os.stat_result | None = None) -> None:
        """Without ``seen`` it must be a regular file."""
        self.dir_fd = dir_fd
        self.name = name
        self.target = b""
        self._fd = -1
        self._digest = b""
        #: The content of a small file, once it was read.
        self._data: bytes | None = None
        self._xattrs: dict[bytes, bytes] | None = None
        #: Before the entry was opened: its content is at least as new.
        self.read_ns = time.time_ns()
        if seen is None:
            self._fd, self.seen = lower.open_file(dir_fd, name)
        else:
            self.seen = seen
            if stat.S_ISREG(seen.st_mode):
                self._fd, self.seen = lower.open_file(dir_fd, name)
            elif stat.S_ISLNK(seen.st_mode):
                self.target = lower.target_of(dir_fd, name)

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.seen.st_mode)

    @property
    def is_small(self) -> bool:
        """A regular file that fits one block and has no holes to keep."""
        seen = self.seen
        return stat.S_ISREG(seen.st_mode) and seen.st_size <= BLOCK_SIZE and not is_sparse(seen)

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def identity(self) -> tuple[int, int]:
        """The same for all hard links of one file."""
        return self.seen.st_dev, self.seen.st_ino

    def read_small(self) -> bytes:
        """The content of a file that fits one block; the digest is then that of these bytes."""
        self._digest = b""
        self._data = read_exactly(self._fd, 0, self.seen.st_size)
        return self._data

    def closed_since(self) -> os.stat_result | None:
        """The attributes now, if owner or mode changed since the file was opened: the content may
        have been written after a chmod, for fewer readers than the mode that we saw."""
        now = lower.fstat(self._fd)
        then = self.seen
        if (now.st_mode, now.st_uid, now.st_gid) == (then.st_mode, then.st_uid, then.st_gid):
            return None
        return now

    @property
    def digest(self) -> bytes:
        if not self._digest:
            if self._data is not None:
                self._digest = digest_of_one(self._data)
            elif self.is_file:
                self._digest = digest_lower(self._fd, self.seen)
            else:
                self._digest = special_digest(self.seen.st_mode, self.seen.st_rdev, self.target)
        return self._digest

    def found(self, digest: bytes) -> None:
        """Keep a digest that a copy has computed."""
        self._digest = digest

    @property
    def xattrs(self) -> dict[bytes, bytes]:
        if self._xattrs is None:
            self._xattrs = lower.user_xattrs(self._fd) if self.is_file else {}
        return self._xattrs

    @property
    def xattrs_digest(self) -> bytes:
        return digest_of_xattrs(self.xattrs)


def special_digest(mode: int, rdev: int, target: bytes) -> bytes:
    """The digest of a link or node, which has no content."""
    if stat.S_ISLNK(mode):
        return digest_of_one(b"link:" + target)
    return digest_of_one(b"node:%d:%d" % (stat.S_IFMT(mode), rdev))
