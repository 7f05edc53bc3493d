"""Blocks: bytes stored once under their digest, and counted.

A block's key is the xxh3-128 digest of its bytes. The digest only finds a candidate: two blocks are
the same when their bytes are. Where different bytes share a digest the next seed gives the newcomer
a key of its own, so a file can never turn into another.
"""

from __future__ import annotations

import contextlib
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from errno import EIO
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_128_digest

from ckptfs.model import BLOCK_SIZE
from ckptfs.store import codec
from ckptfs.store.format import (
    BLOCK_HEADER,
    BLOCK_KEY,
    CODEC_DELTA,
    CODEC_DELTA_OF_TWO,
    CODEC_HEAP,
    CODEC_RAW,
    CODEC_SLICE,
    CODEC_ZSTD,
    SEEDS,
    CorruptRecord,
    block_header,
    pack_number,
    pack_slice,
    pack_u32,
    unpack_number,
    unpack_slice,
    unpack_u32,
)
from ckptfs.store.pack_usage import PackUsage
from ckptfs.store.tables import Plain

if TYPE_CHECKING:
    from ckptfs.store.heap import Heap

Buffer = bytes | bytearray | memoryview
Digest = Callable[[Buffer, int], bytes]

#: Where the record of a slice has the key of its pack, and that of a difference its (first) base.
_BASE = slice(BLOCK_HEADER, BLOCK_HEADER + BLOCK_KEY)
#: How many other blocks a record names, by its codec.
_BASES = {CODEC_DELTA: 1, CODEC_SLICE: 1, CODEC_DELTA_OF_TWO: 2}
_SLICE = bytes((CODEC_SLICE,))
_DIFFERENCES = (bytes((CODEC_DELTA,)), bytes((CODEC_DELTA_OF_TWO,)))
_HEAP = bytes((CODEC_HEAP,))
#: Kept as they are, here or in the heap.
_PLAIN = (bytes((CODEC_RAW,)), _HEAP)
#: A difference must be so many times smaller than the bytes; compressed for themselves they are
#: about that.
_DELTA_WORTH = 4
#: Differences of differences: so many at most lead to the whole bytes. A step takes 20 to 50 µs.
_CHAIN_MAX = 16
#: Blocks up to this length are put together.
PACKED_MAX = 20_000
#: Readers ask for a block piece by piece, and for the blocks of a pack one after the other: so many
#: bytes that were decoded are kept at hand.
_DECODED_MAX = 16 << 20

_HEADERS = tuple(block_header(CODEC_RAW, seed) for seed in range(SEEDS))


#: The key in a block-map record whose bytes a repair could not save: of no block, so that reading
#: them fails, and writing them anew puts them right.
LOST = bytes(BLOCK_KEY)


class CorruptBlock(OSError):
    """A block that is missing, or whose bytes are not those that it is named by."""


def _bases(record: bytes) -> list[bytes]:
    """The keys of the blocks that a record needs."""
    stop = BLOCK_HEADER + BLOCK_KEY * _BASES.get(record[0], 0)
    return [record[start : start + BLOCK_KEY] for start in range(BLOCK_HEADER, stop, BLOCK_KEY)]


class Edit(NamedTuple):
    """A block from which other bytes differ only between two places."""

    key: bytes
    start: int
    stop: int


class Member(NamedTuple):
    """A block that is to go into a pack: its key, its record, its bytes."""

    key: bytes
    record: bytes
    data: bytes


class Blocks:
    """``refs`` holds only counts above one: a block without an entry there is used once."""

    def __init__(
        self, blocks: Plain, refs: Plain, heap: Heap, expect: Callable[[], None] = lambda: None
    ) -> None:
        self._blocks = blocks
        self._heap = heap
        #: Called before the bytes of blocks are read.
        self._expect = expect
        self._refs = refs
        self.digest: Digest = xxh3_128_digest
        #: By key, which is a digest of the bytes: what is here cannot be out of date.
        self._decoded: dict[bytes, bytes] = {}
        self._decoded_bytes = 0
        #: By key, the lengths of records that no commit has written yet: until then LMDB has them
        #: in this process's memory.
        self._uncommitted: dict[bytes, int] = {}
        self.uncommitted_bytes = 0

    def committed(self) -> None:
        """After a commit."""
        self._uncommitted.clear()
        self.uncommitted_bytes = 0

    def add(self, data: Buffer, edit: Edit | None = None) -> bytes:
        """Store the bytes, or count one more use of them; return the block's key. ``edit``, if it
        is known, says what they were made from."""
        for seed in range(SEEDS):
            key = self.digest(data, seed)
            record = b"".join((_HEADERS[seed], data))
            if self._blocks.add(key, record):
                self._uncommitted[key] = len(record)
                self.uncommitted_bytes += len(record)
                if edit is not None:
                    self._log_delta(edit, key, data)
                return key
            # What was stored a moment ago, as by one who copies a tree, is still as it came.
            if self._blocks.get(key) == record or self._holds(key, data):
                self.share(key)
                return key
        raise CorruptBlock(EIO, f"more than {SEEDS} different blocks share one digest")

    def add_large(self, data: Buffer) -> bytes:
        """The same for a whole block of a large file: it goes to the heap if that has space."""
        key = self.digest(data, 0)
        if not self.has(key) and (slot := self._heap.put(data)) is not None:
            self._blocks.put(key, block_header(CODEC_HEAP, 0) + pack_number(slot))
            return key
        return self.add(data)

    def _log_delta(self, edit: Edit, key: bytes, data: Buffer) -> None:
        piece = bytes(memoryview(data)[edit.start : edit.stop])
        self._blocks.log_delta(edit.key, key, BLOCK_HEADER + edit.start, piece)

    def _holds(self, key: bytes, data: Buffer) -> bool:
        """Whether these are the bytes of the block; a damaged one holds nothing any more."""
        try:
            # As bytes: two memoryviews are compared byte by byte, a hundred times slower.
            return bytes(self.read(key)) == bytes(data)
        except CorruptBlock:
            return False

    def share(self, key: bytes) -> None:
        """Count one more use of a block that is there."""
        if key != LOST:
            self._count(key, self.uses(key) + 1)

    def read(self, key: bytes) -> memoryview:
        """The bytes of a block, which are those it is named by, or an error: of 64 KiB that takes
        two microseconds to see."""
        record = self._record(key)
        if record[:1] in _PLAIN:
            raw = self._as_it_is(key, record)
            if self.digest(raw, record[1]) != key:
                raise CorruptBlock(EIO, f"block {key.hex()} is damaged")
            return raw
        data = self._decoded.get(key)
        if data is None:
            data = self._decode(key, record)
            if self.digest(data, record[1]) != key:
                raise CorruptBlock(EIO, f"block {key.hex()} is damaged")
            if record[0] != CODEC_SLICE:
                self._remember(key, data)
        return memoryview(data)

    def _as_it_is(self, key: bytes, record: bytes) -> memoryview:
        """The bytes of a block that is kept plain, right or wrong."""
        if record[0] == CODEC_RAW:
            return memoryview(record)[BLOCK_HEADER:]
        try:
            return memoryview(self._heap.read(unpack_number(record[BLOCK_HEADER:])))
        except OSError as error:
            raise CorruptBlock(EIO, f"block {key.hex()} cannot be read: {error}") from error

    def _remember(self, key: bytes, data: bytes) -> None:
        self._decoded[key] = data
        self._decoded_bytes += len(data)
        while self._decoded_bytes > _DECODED_MAX:
            self._decoded_bytes -= len(self._decoded.pop(next(iter(self._decoded))))

    def forget_decoded(self) -> None:
        """Keep nothing at hand: what is on disk is read anew."""
        self._decoded.clear()
        self._decoded_bytes = 0

    def _slice(self, record: bytes) -> bytes:
        offset, length = unpack_slice(record[_BASE.stop :])
        # Without a look at the pack's record where its bytes are at hand: that is long.
        pack = self._decoded.get(record[_BASE]) or self.read(record[_BASE])
        return bytes(pack[offset : offset + length])

    def _decode(self, key: bytes, record: bytes) -> bytes:
        codec_number = record[0]
        try:
            if codec_number == CODEC_ZSTD:
                return codec.decompress(record[BLOCK_HEADER:])
            if codec_number == CODEC_SLICE:
                return self._slice(record)
            if record[:1] in _DIFFERENCES:
                bases = _bases(record)
                whole = b"".join(self.read(base) for base in bases)
                return codec.decompress_against(
                    record[BLOCK_HEADER + BLOCK_KEY * len(bases) :], whole
                )
        except (codec.FrameError, struct.error) as error:
            raise CorruptBlock(EIO, f"block {key.hex()} cannot be decoded: {error}") from error
        except RecursionError as error:
            raise CorruptBlock(EIO, f"block {key.hex()} is a delta of itself") from error
        raise CorruptBlock(EIO, f"block {key.hex()} has the unknown codec {codec_number}")

    # -- keeping them in fewer bytes --------------------------------------------------------------

    def encode(self, key: bytes, base: bytes | None = None) -> int:
        """Keep a block in fewer bytes if that saves enough.

        With ``base``, an older version of the same part of a file, mostly only the edits are left.
        The base is then counted as used once more. A small block that has no such base is left
        alone: its length is returned, and `pack` puts it together with others; else 0 is.
        """
        record = self._blocks.get(key)
        if record is None or record[:1] not in _PLAIN:
            return 0
        try:
            data = bytes(self.read(key))
        except CorruptBlock:
            return 0  # what is damaged stays as it is: compressed, it would be beyond all help
        if base is not None and self._encode_difference(key, data, record[1], base):
            return 0
        if len(data) <= PACKED_MAX:
            return len(data)
        self._compress(key, data, record[1], codec.LEVEL_QUICK)
        return 0

    def _encode_difference(self, key: bytes, data: bytes, seed: int, base: bytes) -> bool:
        chain = self.chain(base)
        if not chain or key in chain:
            return False  # damaged, or a ring
        # From the version before: from the first one, a file that goes on changing differs ever
        # more. But each step takes a reader some time, so behind a long chain it is the first.
        base = chain[0] if len(chain) <= _CHAIN_MAX else chain[-1]
        if not self.is_whole(base):
            return False
        delta = codec.compress_against(data, bytes(self.read(base)))
        if len(delta) + BLOCK_KEY > len(data) // _DELTA_WORTH:
            return False
        self.share(base)
        self._rewrite(key, b"".join((block_header(CODEC_DELTA, seed), base, delta)))
        return True

    def relate(self, key: bytes, *bases: bytes) -> bool:
        """Keep a block that is no difference as what differs from one or two others that are none,
        one after the other, if that takes half the space."""
        record, others = self._blocks.get(key), [self._blocks.get(base) for base in bases]
        if record is None or record[:1] in _DIFFERENCES or not self.is_whole(key):
            return False
        if any(other is None or other[:1] in _DIFFERENCES for other in others):
            return False
        if any(self._needs(base, key) or not self.is_whole(base) for base in bases):
            return False
        whole = b"".join(self.read(base) for base in bases)
        delta = codec.compress_against(bytes(self.read(key)), whole)
        if (len(delta) + BLOCK_KEY * len(bases)) * 2 > self._space(record):
            return False
        for base in bases:
            self.share(base)
        codec_number = CODEC_DELTA if len(bases) == 1 else CODEC_DELTA_OF_TWO
        self._put_in_place(key, codec_number, b"".join((*bases, delta)))
        return True

    def _needs(self, key: bytes, other: bytes) -> bool:
        """Whether the bytes of a block are made from the other's, or are the other's."""
        pending = [key]
        for needed in pending:
            if needed == other:
                return True
            pending += [base for base in self.bases_of(needed) if base not in pending]
        return False

    def _space(self, record: bytes) -> int:
        """How many bytes a block takes; of one in a pack, its share."""
        if record[:1] == _HEAP:
            return BLOCK_SIZE
        if record[:1] != _SLICE:
            return len(record)
        pack = self._blocks.get(record[_BASE]) or b""
        length = unpack_slice(record[_BASE.stop :])[1]
        return len(pack) * length // max(codec.length(pack[BLOCK_HEADER:]), 1)

    def _compress(self, key: bytes, data: bytes, seed: int, level: int) -> bool:
        frame = codec.compress(data, level)
        if frame is not None:
            self._rewrite(key, block_header(CODEC_ZSTD, seed) + frame)
        return frame is not None

    def chain(self, key: bytes) -> list[bytes]:
        """The block, what it differs from, what that differs from, to the last; nothing if one is
        missing."""
        chain = [key]
        for needed in chain:
            if not self.has(needed):
                return []
            chain += [base for base in self.differs_from(needed) if base not in chain]
        return chain

    def differs_from(self, key: bytes) -> list[bytes]:
        """The blocks that this one is a difference from."""
        record = self._blocks.get(key)
        return _bases(record) if record and record[:1] in _DIFFERENCES else []

    def pack(self, keys: Iterable[bytes]) -> None:
        """Put blocks, together no longer than a pack, into one that is compressed as a whole: what
        they have in common is kept once, and the borders of pages cost nothing. However they were
        kept before, they need no other block then."""
        members = [member for key in dict.fromkeys(keys) if (member := self.member(key))]
        if len(members) < 2:
            for member in members:
                self._compress_alone(member.key, member.data)
            return
        whole = b"".join(member.data for member in members)
        frame = codec.compress(whole, codec.LEVEL_SMALL)
        if frame is not None:
            self.put_pack(members, whole, frame)

    def member(self, key: bytes) -> Member | None:
        """A block as it is now, to be put into a pack; None if there is none, or a damaged one."""
        if not self.has(key) or not self.is_whole(key):
            return None
        return Member(key, self._record(key), bytes(self.read(key)))

    def put_pack(self, members: Iterable[Member], whole: bytes, frame: bytes) -> None:
        """Keep blocks as parts of a pack, given their bytes one after the other, and those as a
        zstd frame. A block that has changed since it was looked at stays as it is; if one is gone,
        all do: it may have been purged, and the pack has its bytes."""
        placed: list[tuple[bytes, int, int]] = []
        offset = 0
        for key, record, data in members:
            found = self._blocks.get(key)
            if found is None:
                return
            if found == record:
                placed.append((key, offset, len(data)))
            offset += len(data)
        pack = self._add_pack(whole, frame, len(placed)) if placed else None
        if pack is None:
            return
        former = [
            self._replace(key, CODEC_SLICE, pack + pack_slice(start, length))
            for key, start, length in placed
        ]
        # At the end: a block may be there only because another one of these was kept by it.
        for record in former:
            self._release_bases(record)

    def _compress_alone(self, key: bytes, data: bytes) -> None:
        record = self._record(key)
        if record[:1] in _PLAIN:
            self._compress(key, data, record[1], codec.LEVEL_SMALL)

    def _add_pack(self, whole: bytes, frame: bytes, uses: int) -> bytes | None:
        """Store a pack that is used so often; its key."""
        for seed in range(SEEDS):
            key = self.digest(whole, seed)
            if self._blocks.add(key, block_header(CODEC_ZSTD, seed) + frame):
                self._count(key, uses)
                return key
            if self._holds(key, whole):
                # Its base may lead to a member: that would be a ring.
                if _bases(self._record(key)):
                    return None
                self._count(key, self.uses(key) + uses)
                return key
        return None

    def _put_in_place(self, key: bytes, codec_number: int, rest: bytes) -> None:
        """Keep a block in another way, which counts what it needs already."""
        self._release_bases(self._replace(key, codec_number, rest))

    def _replace(self, key: bytes, codec_number: int, rest: bytes) -> bytes:
        """The same, but what it needed before is still counted; return the record that it had."""
        record = self._record(key)
        self._rewrite(key, block_header(codec_number, record[1]) + rest)
        return record

    def detach(self, key: bytes) -> None:
        """Store a block that has a base without it, so that the base can go."""
        if self.is_whole(key):
            self.unpack(key)
            record = self._record(key)
            self._compress(key, record[BLOCK_HEADER:], record[1], codec.LEVEL_SMALL)

    def survey(self, usage: PackUsage) -> Iterator[None]:
        """Find out how much of every pack is in use, block by block."""
        for key, record in self._blocks.walk():
            if record[:1] == _SLICE:
                usage.used[record[_BASE]] += unpack_slice(record[_BASE.stop :])[1]
            elif record[0] == CODEC_ZSTD:
                usage.packs[key] = (codec.length(record[BLOCK_HEADER:]), len(record))
            yield

    def is_difference(self, key: bytes) -> bool:
        record = self._blocks.get(key)
        return record is not None and record[:1] in _DIFFERENCES

    def is_compressed(self, key: bytes) -> bool:
        """Whether a block takes less space than its bytes."""
        record = self._blocks.get(key)
        return record is not None and record[:1] not in _PLAIN

    def is_in_heap(self, key: bytes) -> bool:
        record = self._blocks.get(key)
        return record is not None and record[:1] == _HEAP

    def unpack(self, key: bytes) -> int:
        """Store a block that has a base without it, as it is; return its length."""
        record, data = self._record(key), bytes(self.read(key))
        self._rewrite(key, block_header(CODEC_RAW, record[1]) + data)
        self._release_bases(record)
        return len(data)

    def _release_bases(self, record: bytes) -> None:
        for base in _bases(record):
            self.release(base)

    def bases(self) -> Iterator[tuple[bytes, bytes]]:
        """(key, key of its base) of every block that has one, of one with two for each."""
        return ((key, base) for key, several in self.possible_bases() for base in several)

    def possible_bases(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """(key, keys of its bases) of every block; mostly it has none."""
        for key, record in self._blocks.walk():
            yield key, _bases(record)

    def bases_of(self, key: bytes) -> list[bytes]:
        """The blocks that this one is encoded against or packed in."""
        record = self._blocks.get(key)
        return _bases(record) if record else []

    def pack_of(self, key: bytes) -> bytes | None:
        """The block that this one stands in with others."""
        record = self._blocks.get(key)
        return record[_BASE] if record and record[:1] == _SLICE else None

    def _rewrite(self, key: bytes, record: bytes) -> None:
        # LMDB keeps all pages of a value that is overwritten in the transaction that wrote it.
        self._pop(key)
        self._blocks.put(key, record)

    def _pop(self, key: bytes) -> bytes | None:
        """Delete a record, with the bytes that it has in the heap, and return it."""
        record = self._blocks.pop(key)
        self.uncommitted_bytes -= self._uncommitted.pop(key, 0)
        if record is not None and record[:1] == _HEAP:
            # Where it does not say which slot is its own, that stays taken until a `compact`.
            with contextlib.suppress(CorruptRecord):
                self._heap.free(unpack_number(record[BLOCK_HEADER:]))
        return record

    def _record(self, key: bytes) -> bytes:
        self._expect()
        record = self._blocks.get(key)
        if record is None or len(record) < BLOCK_HEADER:
            raise CorruptBlock(EIO, f"block {key.hex()} is missing")
        return record

    # -- counting ---------------------------------------------------------------------------------

    def release(self, key: bytes) -> None:
        """Take one use away; the last one frees the block."""
        uses = self.uses(key)
        if uses > 1:
            self._count(key, uses - 1)
        else:
            record = self._pop(key)
            if record:
                self._release_bases(record)

    def uses(self, key: bytes) -> int:
        count = self._refs.get(key)
        return 1 if count is None else unpack_u32(count)

    def _count(self, key: bytes, uses: int) -> None:
        if uses == 1:
            self._refs.delete(key)
        else:
            self._refs.put(key, pack_u32(uses))

    def sizes(self) -> Iterator[tuple[bytes, int]]:
        """(key, bytes as stored) of every block; of one in a pack, its share of the pack."""
        packed: Counter[bytes] = Counter()
        slices: list[tuple[bytes, bytes, int]] = []
        found: dict[bytes, int] = {}
        for key, record in self._blocks.walk():
            in_heap = record[:1] == _HEAP
            found[key] = BLOCK_SIZE if in_heap else len(record) - BLOCK_HEADER
            if record[:1] == _SLICE:
                length = unpack_slice(record[_BASE.stop :])[1]
                slices.append((key, record[_BASE], length))
                packed[record[_BASE]] += length
        for key, pack, length in slices:
            found[key] = found[pack] * length // packed[pack]
        yield from found.items()

    def stored_bytes(self, key: bytes) -> int:
        """How much space a block takes, or its share if there are several users of it: about what
        one of them gives back."""
        record = self._blocks.get(key)
        if record is None:
            return 0
        size = BLOCK_SIZE if record[:1] == _HEAP else len(record)
        if record[:1] == _SLICE:
            pack = record[_BASE]
            size += len(self._blocks.get(pack) or b"") // self.uses(pack)
        return size // self.uses(key)

    # -- for `check` and repairs -------------------------------------------------------------------

    def by_pack(self) -> tuple[set[bytes], list[bytes]]:
        """The keys of packs, and of all blocks, those of a pack one after the other: so each pack
        is decoded once."""
        packs = {key: self.pack_of(key) or b"" for key in self.keys()}
        return set(packs.values()) - {b""}, sorted(packs, key=lambda key: (packs[key], key))

    def slots(self) -> Iterator[tuple[bytes, int | None]]:
        """(key, slot) of every block whose bytes are in the heap; None if that is damaged."""
        for key, record in self._blocks.walk():
            if record[:1] == _HEAP:
                try:
                    yield key, unpack_number(record[BLOCK_HEADER:])
                except CorruptRecord:
                    yield key, None

    def keys(self) -> Iterator[bytes]:
        for key, _ in self._blocks.walk():
            yield key

    def count(self) -> int:
        return self._blocks.count()

    def erase(self, key: bytes) -> None:
        """Remove a block whatever names it."""
        self._pop(key)

    def recount(self, used: Counter[bytes]) -> None:
        """Count anew, given how often block maps name each block; what nothing names goes."""
        for key, _ in self._refs.walk():
            self._refs.delete(key)
        used.update(base for _, base in self.bases())
        unused = [key for key in self.keys() if not used[key]]
        for key in unused:
            record = self._pop(key)
            for base in _bases(record) if record else ():
                used[base] -= 1
                if not used[base]:
                    unused.append(base)
        for key in self.keys():
            self._count(key, used[key])

    def counted(self) -> Iterator[bytes]:
        for key, _ in self._refs.walk():
            yield key

    def has(self, key: bytes) -> bool:
        return self._blocks.get(key) is not None

    def is_whole(self, key: bytes) -> bool:
        """Whether the stored bytes still have the digest that names them."""
        try:
            self.read(key)
        except CorruptBlock:
            return False
        return True
