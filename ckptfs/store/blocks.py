"""Blocks: bytes stored once under their digest, and counted.

A block's key is the xxh3-128 digest of its bytes. The digest only finds a candidate: two blocks are
the same when their bytes are. Where different bytes share a digest the next seed gives the newcomer
a key of its own, so a file can never turn into another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xxhash import xxh3_128_digest

from ckptfs.store.format import (
    BLOCK_HEADER,
    CODEC_RAW,
    SEEDS,
    block_header,
    pack_u32,
    unpack_u32,
)
from ckptfs.store.tables import Plain

Buffer = bytes | bytearray | memoryview
Digest = Callable[[Buffer, int], bytes]

_HEADERS = tuple(block_header(CODEC_RAW, seed) for seed in range(SEEDS))


class CorruptBlock(OSError):
    """A block that is missing or whose codec is unknown."""


class Blocks:
    """``refs`` holds only counts above one: a block without an entry there is used once."""

    def __init__(self, blocks: Plain, refs: Plain) -> None:
        self._blocks = blocks
        self._refs = refs
        self.digest: Digest = xxh3_128_digest

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
        record = self._blocks.get(key)
        if record is None:
            raise CorruptBlock(5, f"block {key.hex()} is missing")
        if record[0] != CODEC_RAW:
            raise CorruptBlock(5, f"block {key.hex()} has the unknown codec {record[0]}")
        return memoryview(record)[BLOCK_HEADER:]

    def release(self, key: bytes) -> None:
        """Take one use away; the last one frees the block."""
        uses = self.uses(key)
        if uses == 1:
            self._blocks.delete(key)
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
        if record is None or len(record) < BLOCK_HEADER or record[0] != CODEC_RAW:
            return False
        return self.digest(memoryview(record)[BLOCK_HEADER:], record[1]) == key
