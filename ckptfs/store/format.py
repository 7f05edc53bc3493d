"""The bytes of the store: pure codecs between values and LMDB keys and records.

Owns every layout that docs/FORMAT.md promises. Knows nothing of LMDB, views or POSIX.

A versioned key is the *entity* (what the record is about) followed by the epoch's *suffix*: the
complement of the epoch number, big-endian, so that the versions of an entity lie together with the
newest first.
"""

from __future__ import annotations

import json
import struct
from errno import EIO
from typing import Any, NamedTuple

from xxhash import xxh3_64_digest, xxh32_digest

from ckptfs.model import ContentId, Epoch, Ino, Inode

#: The format of new stores. One of another number than these is refused by name.
FORMAT_VERSION = 5
READABLE_FORMATS = frozenset({4, 5})
#: From this format on a block may be a difference from two others.
FORMAT_TWO_BASES = 5
#: Formats of before the first release. Their numbers are never used again.
UNRELEASED_FORMATS = frozenset({1, 2, 3})

SUFFIX_SIZE = 4
_EPOCH_MASK = 0xFFFF_FFFF
#: Epoch numbers fill four bytes; 0 never names an epoch and stands for "no parent".
#: The numbers above EPOCH_MAX are excluded epochs, one for each line.
LINES_MAX = 1 << 24
EPOCH_MAX = _EPOCH_MASK - LINES_MAX
NO_EPOCH = Epoch(0)
#: The epoch of what the main line keeps out of history; forks have those below it. Their suffixes
#: lie in front of all others.
EXCLUDED_EPOCH = Epoch(_EPOCH_MASK)


def excluded_epoch(line: int) -> Epoch:
    return Epoch(EXCLUDED_EPOCH - line)


def is_excluded(epoch: Epoch) -> bool:
    return epoch > EPOCH_MAX


_U32_BE = struct.Struct(">I")
_U64_BE = struct.Struct(">Q")
_TWO_U64_BE = struct.Struct(">QQ")

pack_u32 = _U32_BE.pack
pack_u64 = _U64_BE.pack


class CorruptRecord(OSError, ValueError):
    """A record that is not what was stored: reading it is EIO."""

    def __init__(self, words: str) -> None:
        super().__init__(EIO, words)


def unpack_u32(data: bytes) -> int:
    try:
        return int(_U32_BE.unpack(data)[0])
    except struct.error as error:
        raise CorruptRecord("a number of the store is damaged") from error


def unpack_u64(data: bytes) -> int:
    try:
        return int(_U64_BE.unpack(data)[0])
    except struct.error as error:
        raise CorruptRecord("a number of the store is damaged") from error


# Inodes, epochs and numbers end in a digest of what is before it, so that a bit that flipped on
# disk is not taken for a size or a mode.
_SUM = 4


def _summed(record: bytes) -> bytes:
    return record + xxh32_digest(record)


def _is_whole(record: bytes) -> bool:
    return xxh32_digest(record[:-_SUM]) == record[-_SUM:]


def bit_corrected(record: bytes) -> bytes | None:
    """What a record was before one bit of it flipped, by its digest. None if more is wrong, or
    it never had a digest."""
    tried = bytearray(record)
    for bit in range(8 * len(record)):
        tried[bit // 8] ^= 1 << bit % 8
        if _is_whole(bytes(tried)):
            return bytes(tried)
        tried[bit // 8] ^= 1 << bit % 8
    return None


def intact(record: bytes) -> bytes | None:
    """A record that has a digest as it was stored, also if one bit of it flipped; else None."""
    return record if _is_whole(record) else bit_corrected(record)


def suffix_of(epoch: Epoch) -> bytes:
    return pack_u32(epoch ^ _EPOCH_MASK)


def epoch_of(suffix: bytes) -> Epoch:
    return Epoch(unpack_u32(suffix) ^ _EPOCH_MASK)


# -- tables ----------------------------------------------------------------------------------------
#
# Numbers in keys are big-endian, in records little-endian where nothing else is said; times are
# signed nanoseconds since 1970. A digest is the xxh32 of all before it, big-endian. The names of
# tables, and their order, are part of the format: the journal names a table by its place. New ones
# come at the end. docs/FORMAT.md says the same for other implementations.
#
# The first five are versioned: their keys are an entity and a suffix. An empty record (GONE) is a
# tombstone: the entity is absent from its epoch on. A tombstone is written only where a view of the
# epoch would see an older record. Every record is listed in `changes`, but for block-map records of
# a content that the same epoch allocated.

#: The versioned tables by the letters that stand for them in keys.
VERSIONED = {
    # inodes: an inode as an epoch changed it.
    #   key      ino u64 (from 1, the root; never reused), suffix
    #   record   mode u32 (bit 31 is always set: there is a digest), nlink u32, uid u32, gid u32,
    #            rdev u64, size u64, allocated u64 (bytes in blocks; size where there are no holes),
    #            atime, mtime, ctime, btime i64, content u64 (0: none), content epoch u32 (the epoch
    #            that allocated the content; it may be removed by now), parent u64, length of the
    #            name u8, name (where the inode stands; of a file with several names one of them; 0
    #            and empty for the root and for an orphan), target of a symbolic link, digest
    #   nlink    number of names; of a directory 2 and its subdirectories. 0 with an empty name: an
    #            orphan, listed in `orphans`. 0 with a name: a state document, in no directory
    b"i": b"inodes",
    # dirents: an entry of a directory.
    #   key      parent ino u64, name, NUL, suffix
    #   record   ino u64, big-endian
    b"d": b"dirents",
    # links: a name of a file besides the one in its inode.
    #   key      ino u64, parent ino u64, name, NUL, suffix
    #   record   01
    b"l": b"links",
    # blockmap: what a block of a content holds.
    #   key      content u64 (from 1; of one inode for ever; never reused), block number u64, suffix
    #   record   "J", xxh3_64 of the bytes, up to INLINE_MAX bytes; or "B", length u32, key of a
    #            block (all zeros, LOST: the bytes were lost, and reading them is an error). GONE is
    #            a hole. What a block lacks up to the file's size reads as zeros
    b"b": b"blockmap",
    # xattrs: an extended attribute.
    #   key      ino u64, name, NUL, suffix
    #   record   01, value
    b"x": b"xattrs",
}

# meta: what must be right before anything else can be read. A name that is not in META_NAMES is
# damage.
#   key      name
#   record   `format`: version u32, big-endian, without a digest. `journal`: key of the journal, 16
#            random bytes, digest. The others are counters: number u64, big-endian, digest
META = b"meta"
# epochs: the tree of epochs.
#   key      epoch u32 (from 1; never reused; EXCLUDED_EPOCH is what is kept out of history)
#   record   parent u32 (0: none; else sealed, and a smaller number), flags u8 (bit 0: sealed; bit 7
#            is always set: there is a digest), inodes in the view u64 (of the head as of the last
#            commit), JSON about the checkpoint, digest
#   JSON     empty: a head, or, sealed, a hidden epoch: its checkpoint was deleted, its records are
#            on their way to its only child or out of the store, and its view may be half removed
EPOCHS = b"epochs"

#: The others, which have no versions.
UNVERSIONED = (
    META,
    EPOCHS,
    # changes: which entities an epoch wrote; what a removal and a diff walk over.
    #   key      epoch u32, kind (a letter of VERSIONED), entity
    #   record   empty
    b"changes",
    # blocks: bytes of files, stored once.
    #   key      xxh3_128 of the bytes with the seed
    #   record   codec u8, seed u8, then by codec: 0 the bytes; 1 a zstd frame; 2 key of a base,
    #            zstd frame with the base's bytes as raw dictionary; 3 key of a pack, offset u32,
    #            length u32; 4 slot of the heap u64, big-endian, digest
    #   rule     bases form no ring. A block has up to BLOCK_SIZE bytes, a pack PACK_MAX; block maps
    #            do not name packs
    b"blocks",
    # refs: how often a block is named, by block maps and by blocks of codec 2 and 3.
    #   key      key of a block
    #   record   count u32, big-endian, above 1. No record: once
    b"refs",
    # orphans: inodes of a head that lost their last name while in use. The next start erases
    # them.
    #   key      ino u64; of a fork, its number u32 behind it
    #   record   empty
    b"orphans",
    # facts: metadata of the workspace by name. What the layers above keep, the forks, and counters:
    # `next_checkpoint`, `next_author`, `next_fork`, and `compressed`, the last epoch that was.
    #   key      name
    #   record   of a counter: number u64, big-endian, digest; else its owner's
    b"facts",
    # below: the ledger, what stood under a name in the lower directory (`ckptfs.sync.ledger`).
    #   key      directory ino u64, name
    #   record   its owner's
    b"below",
    # borders: what a directory of history shows because of its excluded entries.
    #   key      directory ino u64, of a fork its number u32 behind it; every directory of a head
    #            that has such entries, and no other
    #   record   excluded subdirectories u32, mtime i64, ctime i64 (shown if later than its own)
    b"borders",
    # authors: who changed what in an epoch.
    #   key      epoch u32, author u32 (from 1; never reused), number u32
    #   record   number 0: JSON about the author, without which there are no others; else inodes
    #            that it changed, u64 each, little-endian
    b"authors",
    # rest: packed records of sealed epochs (`ckptfs.store.packed`).
    #   key      kind (a letter of PACKABLE), the first key in the chunk, or one before it
    #   record   01, zstd frame with a checksum: count u32; of each record shared u8, more u16,
    #            length u32; the further bytes of all keys; all values
    #   rule     chunks do not overlap; all packed versions of an entity are in one; a packed record
    #            is not in its table; what the view of the anchor sees is not packed
    b"rest",
    # pieces: journal fragments, bytes that were synced and are in no block yet. Only the journal
    # has them; the table is empty but between a replay and the commit that follows.
    #   key      ino u64, content u64, block number u64, place u32 (their order in a block)
    #   record   start in the block u32, bytes
    b"pieces",
    # freed: slots of the heap that become holes after the next commit.
    #   key      slot u64
    #   record   slot u64, big-endian, digest; no block names it
    b"freed",
)
#: All tables, by their places.
TABLES = (*VERSIONED.values(), *UNVERSIONED)
#: The tables whose records may be packed, by their letters.
PACKABLE = {**VERSIONED, b"c": b"changes", b"a": b"authors"}

#: Names in `meta`: the version of the format, the key of the journal, and the counters. `head` and
#: `anchor` are epochs (no anchor: 0); the others are the next number that was never given out.
META_FORMAT = b"format"
META_JOURNAL = b"journal"
NEXT_INO = b"next_ino"
NEXT_CONTENT = b"next_content"
NEXT_EPOCH = b"next_epoch"
NEXT_SLOT = b"next_slot"
HEAD = b"head"
ANCHOR = b"anchor"
#: How many forks there are; absent without any. A release that knows only one head refuses the
#: name, since it would take the heads of forks for leftovers and remove them.
FORKS = b"forks"
META_NAMES = frozenset(
    {META_FORMAT, META_JOURNAL, NEXT_INO, NEXT_CONTENT, NEXT_EPOCH, NEXT_SLOT, HEAD, ANCHOR, FORKS}
)


# -- keys ------------------------------------------------------------------------------------------

#: In `facts`: of a fork, what is known of it, and before the names of its own facts.
FORK = b"fork:"
FORK_FACTS = b"fork/"


def fork_key(number: int) -> bytes:
    return FORK + b"%010d" % number


def line_facts(line: int) -> bytes:
    """What the names of a line's facts begin with."""
    return FORK_FACTS + b"%010d/" % line if line else b""


def line_key(ino: Ino, line: int) -> bytes:
    return pack_u64(ino) + (pack_u32(line) if line else b"")


def line_key_of(key: bytes) -> tuple[Ino, int]:
    """The inode, and the line whose head has it."""
    return Ino(unpack_u64(key[:8])), unpack_u32(key[8:]) if len(key) > 8 else 0


# A name never contains NUL, so the NUL behind it keeps "a" and "ab" apart and in name order.


def inode_entity(ino: Ino) -> bytes:
    return pack_u64(ino)


def dirent_entity(parent: Ino, name: bytes) -> bytes:
    return pack_u64(parent) + name + b"\0"


def dirent_name(entity: bytes) -> bytes:
    if entity[-1]:
        raise CorruptRecord("a name is damaged")
    return entity[8:-1]


def link_entity(ino: Ino, parent: Ino, name: bytes) -> bytes:
    return _TWO_U64_BE.pack(ino, parent) + name + b"\0"


def link_place(entity: bytes) -> tuple[Ino, bytes]:
    """The directory and name that a `links` entity stands for."""
    return Ino(unpack_u64(entity[8:16])), entity[16:-1]


def xattr_entity(ino: Ino, name: bytes) -> bytes:
    return pack_u64(ino) + name + b"\0"


def xattr_name(entity: bytes) -> bytes:
    return entity[8:-1]


def block_entity(content: ContentId, number: int) -> bytes:
    return _TWO_U64_BE.pack(content, number)


def block_number(entity: bytes) -> int:
    return unpack_u64(entity[8:16])


# -- records ---------------------------------------------------------------------------------------

# mode, nlink, uid, gid | rdev, size, allocated | atime, mtime, ctime, btime |
# content, content_epoch, parent: the fields of `Inode` between its number and its name, in order.
# Then the length of the name, the name, a link's target, and the digest.
_INODE = struct.Struct("<4I3Q4qQIQB")
_NAME = Inode._fields.index("name")
_NAME_START = _INODE.size
_unpack_fields = _INODE.unpack_from
_new_tuple = tuple.__new__
#: In the mode of every record: it says that there is a digest.
_INODE_SUMMED = 1 << 31


def pack_inode(inode: Inode) -> bytes:
    name = inode.name
    mode = inode.mode | _INODE_SUMMED
    return _summed(_INODE.pack(mode, *inode[2:_NAME], len(name)) + name + inode.target)


_NO_LINKS = bytes(4)


def has_links(data: bytes) -> bool:
    """Whether the inode in a record has a name, without unpacking it."""
    return data[4:8] != _NO_LINKS


def unpack_inode(ino: Ino, data: bytes) -> Inode:
    # For every lookup: no list between the two tuples, no call for what stands here in two lines.
    try:
        fields = _unpack_fields(data)
    except struct.error as error:
        raise CorruptRecord(f"the record of inode {ino} is too short") from error
    mode = fields[0]
    end = _NAME_START + fields[-1]
    name = data[_NAME_START:end]
    if mode < _INODE_SUMMED or xxh32_digest(data[:-_SUM]) != data[-_SUM:]:
        raise CorruptRecord(f"the record of inode {ino} is damaged")
    return _new_tuple(Inode, (ino, mode ^ _INODE_SUMMED, *fields[1:-1], name, data[end:-_SUM]))


#: A tombstone: the entity is absent from this epoch on (a hole, in the block map).
GONE = b""

#: What a record says that carries nothing but its own presence.
PRESENT = b"\x01"

# A block-map record is GONE (a hole), the bytes themselves, or a reference to a stored block.
# Bytes up to INLINE_MAX still fit an LMDB leaf node; anything longer would take whole pages.
INLINE_MAX = 1_920
# The bytes come with their digest: nothing else would notice when they change on disk.
INLINE = b"J"
_INLINE_TAG = INLINE[0]
_DIGEST = 8
_REFERENCE = struct.Struct("<cI16s")
REFERENCE = b"B"


class Mapping(NamedTuple):
    """A block-map record: ``inline`` holds the bytes, else ``key`` names a stored block."""

    length: int
    key: bytes
    inline: bytes
    #: Of the inline bytes; empty where there is none.
    digest: bytes = b""

    @property
    def is_whole(self) -> bool:
        """Whether the inline bytes, if there are any, are still those that were stored."""
        return not self.digest or xxh3_64_digest(self.inline) == self.digest


def pack_inline(data: bytes | bytearray | memoryview) -> bytes:
    return b"".join((INLINE, xxh3_64_digest(data), data))


def pack_reference(length: int, key: bytes) -> bytes:
    return _REFERENCE.pack(REFERENCE, length, key)


def unpack_mapping(record: bytes) -> Mapping:
    if record[0] == _INLINE_TAG:
        start = 1 + _DIGEST
        return Mapping(len(record) - start, b"", record[start:], record[1:start])
    if record[0] != REFERENCE[0] or len(record) != _REFERENCE.size:
        raise CorruptRecord("a record of the block map is damaged")
    _, length, key = _REFERENCE.unpack(record)
    return Mapping(length, key, b"")


# A stored block: codec, seed of the digest that is its key, then the (encoded) bytes.
BLOCK_HEADER = 2
BLOCK_KEY = 16
CODEC_RAW = 0
#: A zstd frame.
CODEC_ZSTD = 1
#: The key of another block, then a zstd frame that has that block's bytes as its dictionary.
CODEC_DELTA = 2
#: The key of another block, then where in it the bytes stand: offset and length.
CODEC_SLICE = 3
#: Where in the heap the bytes stand, as they are: the number of a slot.
CODEC_HEAP = 4
#: The keys of two other blocks, then a zstd frame that has the bytes of both, one after the other,
#: as its dictionary.
CODEC_DELTA_OF_TWO = 5
SEEDS = 256
#: A pack, of which codec 3 has slices, is no longer than this. It is decoded as a whole, in 0.6 ms.
PACK_MAX = 2 << 20


_SLICE = struct.Struct("<II")


def pack_slice(offset: int, length: int) -> bytes:
    return _SLICE.pack(offset, length)


def unpack_slice(data: bytes) -> tuple[int, int]:
    offset, length = _SLICE.unpack(data)
    return offset, length


def pack_number(number: int) -> bytes:
    """A counter, or a slot of the heap, with a digest: a counter that is too low would give out a
    number again, and a slot that is named wrongly has the bytes of others."""
    return _summed(pack_u64(number))


def unpack_number(data: bytes) -> int:
    if not _is_whole(data):
        raise CorruptRecord("a number of the store is damaged")
    return unpack_u64(data[:-_SUM])


def pack_fork(record: dict[str, Any]) -> bytes:
    return _summed(json.dumps(record, separators=(",", ":")).encode())


def unpack_fork(data: bytes) -> dict[str, Any]:
    if not _is_whole(data):
        raise CorruptRecord("the record of a fork is damaged")
    found: dict[str, Any] = json.loads(data[:-_SUM])
    return found


JOURNAL_KEY = 16


def pack_journal_key(key: bytes) -> bytes:
    """With a digest: with another key nothing in the journal would be taken for a part of it."""
    return _summed(key)


def unpack_journal_key(data: bytes) -> bytes:
    if len(data) != JOURNAL_KEY + _SUM or not _is_whole(data):
        raise CorruptRecord("the key of its journal is damaged")
    return data[:-_SUM]


def block_header(codec: int, seed: int) -> bytes:
    return bytes((codec, seed))


_AUTHOR = struct.Struct(">III")


def author_entity(epoch: Epoch, author: int, number: int) -> bytes:
    """Number 0 describes the author, the others list what it changed."""
    return _AUTHOR.pack(epoch, author, number)


def author_number(entity: bytes) -> tuple[int, int]:
    """The author and the number of a key of `authors`."""
    _, author, number = _AUTHOR.unpack(entity)
    return author, number


class Border(NamedTuple):
    """What a directory of history shows besides its own record because of the entries in it that
    are kept out of history: so many further subdirectories, and times if these are later."""

    subdirs: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0


_BORDER = struct.Struct("<Iqq")


def pack_border(border: Border) -> bytes:
    return _BORDER.pack(*border)


def unpack_border(data: bytes) -> Border:
    return Border(*_BORDER.unpack(data))


class EpochRecord(NamedTuple):
    """An epoch: its parent, whether it is sealed, how many inodes its view has, and what the
    checkpoint that sealed it says (empty while it is a head)."""

    parent: Epoch
    sealed: bool
    inodes: int
    info: dict[str, Any]


_EPOCH = struct.Struct("<IBQ")
#: Beside `sealed`, in every record: it says that there is a digest.
_EPOCH_SUMMED = 0x80


def pack_epoch(record: EpochRecord) -> bytes:
    info = json.dumps(record.info, separators=(",", ":")).encode() if record.info else b""
    return _summed(_EPOCH.pack(record.parent, record.sealed | _EPOCH_SUMMED, record.inodes) + info)


def unpack_epoch(data: bytes) -> EpochRecord:
    parent, flags, inodes = _EPOCH.unpack_from(data)
    if not flags & _EPOCH_SUMMED or not _is_whole(data):
        raise CorruptRecord("the record of an epoch is damaged")
    tail = data[_EPOCH.size : -_SUM]
    info = json.loads(tail) if tail else {}
    if not isinstance(info, dict):
        raise CorruptRecord("the record of an epoch is damaged")
    return EpochRecord(Epoch(parent), bool(flags & 1), inodes, info)
