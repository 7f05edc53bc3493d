"""Blocks: bytes stored once under their digest, and counted.

A block's key is the xxh3-128 digest of its bytes. The digest only finds a candidate: two blocks are
the same when their bytes are. Where different bytes share a digest the next seed gives the newcomer
a key of its own, so a file can never turn into another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from xxhash import xxh3_128_digest

from ckptfs.store import codec
from ckptfs.store.format import (
    BLOCK_HEADER,
    BLOCK_KEY,
    CODEC_DELTA,
    CODEC_RAW,
    CODEC_ZSTD,
    SEEDS,
    block_header,
    pack_u32,
    unpack_u32,
)
from ckptfs.store.tables import Plain

Buffer = bytes | bytearray | memoryview
Digest = Callable[[Buffer, int], bytes]

#: Where the record of a difference has the key of its base.
_BASE = slice(BLOCK_HEADER, BLOCK_HEADER + BLOCK_KEY)
_DELTA_MARK = bytes((CODEC_DELTA,))
#: A difference must be so many times smaller than the block compressed for itself.
_DELTA_WORTH = 2
#: Readers ask for a block piece by piece: so many that were decoded are kept at hand.
_DECODED_MAX = 16

_HEADERS = tuple(block_header(CODEC_RAW, seed) for seed in range(SEEDS))


class CorruptBlock(OSError):
    """A block that is missing or whose codec is unknown."""


class Blocks:
    """``refs`` holds only counts above one: a block without an entry there is used once."""

    def __init__(self, blocks: Plain, refs: Plain) -> None:
        self._blocks = blocks
        self._refs = refs
        self.digest: Digest = xxh3_128_digest
        #: By key, which is a digest of the bytes: what is here cannot be out of date.
        self._decoded: dict[bytes, bytes] = {}

    def add(self, data: Buffer) -> bytes:
        """Store the bytes, or count one more use of them; return the block's key."""
        for seed in range(SEEDS):
            key = self.digest(data, seed)
            if self._blocks.add(key, b"".join((_HEADERS[seed], data))):
                return key
            if self.read(key) == data:
                self.share(key)
                return key
        raise CorruptBlock(5, f"more than {SEEDS} different blocks share one digest")

    def share(self, key: bytes) -> None:
        """Count one more use of a block that is there."""
        self._count(key, self.uses(key) + 1)

    def read(self, key: bytes) -> memoryview:
        record = self._record(key)
        if record[0] == CODEC_RAW:
            return memoryview(record)[BLOCK_HEADER:]
        data = self._decoded.get(key)
        if data is None:
            data = self._decode(key, record)
            if self.digest(data, record[1]) != key:
                raise CorruptBlock(5, f"block {key.hex()} is damaged")
            if len(self._decoded) == _DECODED_MAX:
                del self._decoded[next(iter(self._decoded))]
            self._decoded[key] = data
        return memoryview(data)

    def _decode(self, key: bytes, record: bytes) -> bytes:
        codec_number = record[0]
        try:
            if codec_number == CODEC_ZSTD:
                return codec.decompress(record[BLOCK_HEADER:])
            if codec_number == CODEC_DELTA:
                base = bytes(self.read(record[_BASE]))
                return codec.decompress_against(record[_BASE.stop :], base)
        except codec.FrameError as error:
            raise CorruptBlock(5, f"block {key.hex()} cannot be decoded: {error}") from error
        raise CorruptBlock(5, f"block {key.hex()} has the unknown codec {codec_number}")

    # -- keeping them in fewer bytes --------------------------------------------------------------

    def encode(self, key: bytes, base: bytes | None = None) -> bool:
        """Keep a block in fewer bytes if that saves enough; say whether it was done.

        With ``base``, an older version of the same part of a file, mostly only the edits are left.
        The base is then counted as used once more.
        """
        record = self._blocks.get(key)
        if record is None or record[0] != CODEC_RAW:
            return False
        data = record[BLOCK_HEADER:]
        frame = codec.compress(data)
        root = None if base is None else self._root(base)
        if root is not None and root != key:
            delta = codec.compress_against(data, bytes(self.read(root)))
            if len(delta) + len(root) <= len(frame or data) // _DELTA_WORTH:
                self.share(root)
                self._blocks.put(key, b"".join((block_header(CODEC_DELTA, record[1]), root, delta)))
                return True
        if frame is not None:
            self._blocks.put(key, block_header(CODEC_ZSTD, record[1]) + frame)
        return frame is not None

    def _root(self, key: bytes) -> bytes | None:
        """The block at the end of the way over bases: so ways stay short and never go in a ring."""
        while (record := self._blocks.get(key)) is not None and record[0] == CODEC_DELTA:
            key = record[_BASE]
        return None if record is None else key

    def detach(self, bases: Collection[bytes]) -> None:
        """Keep every block that is told by one of these in full, so that they can go."""
        for key, base in [item for item in self.deltas() if item[1] in bases]:
            seed = self._record(key)[1]
            self._blocks.put(key, block_header(CODEC_RAW, seed) + bytes(self.read(key)))
            self.encode(key)
            self.release(base)

    def deltas(self) -> Iterator[tuple[bytes, bytes]]:
        """(key, key of its base) of every block that is kept as a difference."""
        for key, record in self._blocks.walk():
            if record.startswith(_DELTA_MARK):
                yield key, record[_BASE]

    def _record(self, key: bytes) -> bytes:
        record = self._blocks.get(key)
        if record is None:
            raise CorruptBlock(5, f"block {key.hex()} is missing")
        return record

    # -- counting ---------------------------------------------------------------------------------

    def release(self, key: bytes) -> None:
        """Take one use away; the last one frees the block."""
        uses = self.uses(key)
        if uses == 1:
            record = self._blocks.pop(key)
            if record is not None and record[0] == CODEC_DELTA:
                self.release(record[_BASE])
        else:
            self._count(key, uses - 1)

    def uses(self, key: bytes) -> int:
        count = self._refs.get(key)
        return 1 if count is None else unpack_u32(count)

    def _count(self, key: bytes, uses: int) -> None:
        if uses == 1:
            self._refs.delete(key)
        else:
            self._refs.put(key, pack_u32(uses))

    def sizes(self) -> Iterator[tuple[bytes, int]]:
        """(key, bytes as stored) of every block."""
        for key, record in self._blocks.walk():
            yield key, len(record) - BLOCK_HEADER

    # -- for `check` ------------------------------------------------------------------------------

    def keys(self) -> Iterator[bytes]:
        for key, _ in self._blocks.walk():
            yield key

    def counted(self) -> Iterator[bytes]:
        for key, _ in self._refs.walk():
            yield key

    def has(self, key: bytes) -> bool:
        return self._blocks.get(key) is not None

    def is_whole(self, key: bytes) -> bool:
        """Whether the stored bytes still have the digest that names them."""
        record = self._blocks.get(key)
        if record is None or len(record) < BLOCK_HEADER:
            return False
        try:
            return self.digest(self.read(key), record[1]) == key
        except CorruptBlock:
            return False
