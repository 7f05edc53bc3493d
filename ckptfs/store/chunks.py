"""Chunks: many records, keys in order, compressed together.

Pure functions between records and bytes. A chunk begins with the number of its kind of layout, then
comes a zstd frame with a checksum. In it: how many records there are; of each, how many bytes its
key has in common with the one before, how many more it has, and the length of its value; then
those bytes of all keys, then all values. Like stands beside like, which is most of what makes
it small.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ckptfs.store import codec

Record = tuple[bytes, bytes]

_LAYOUT = b"\x01"
_COUNT = struct.Struct("<I")
_ROW = struct.Struct("<BHI")
_SHARED_MAX = 255
#: No chunk is longer, whatever a damaged one says of itself. One has all versions of each of its
#: entities, so there is no natural limit.
_LENGTH_MAX = 1 << 30


class ChunkError(Exception):
    """Bytes that are no chunk, or a damaged one."""


class Chunk(NamedTuple):
    """The records of a chunk, in the order of their keys."""

    keys: list[bytes]
    values: list[bytes]


def pack_chunk(records: Sequence[Record], *, quick: bool = False) -> bytes:
    rows, tails = [_COUNT.pack(len(records))], []
    last = b""
    for key, value in records:
        shared = _shared(last, key)
        rows.append(_ROW.pack(shared, len(key) - shared, len(value)))
        tails.append(key[shared:])
        last = key
    data = b"".join((*rows, *tails, *(value for _, value in records)))
    return _LAYOUT + codec.compress_chunk(data, quick=quick)


def _shared(last: bytes, key: bytes) -> int:
    """How many bytes two keys have in common at their beginnings."""
    length = min(len(last), len(key), _SHARED_MAX)
    # As numbers: of their difference the leading bytes that are zero. Byte by byte takes long.
    difference = int.from_bytes(last[:length], "big") ^ int.from_bytes(key[:length], "big")
    return length - (difference.bit_length() + 7) // 8


def unpack_chunk(data: bytes) -> Chunk:
    if data[:1] != _LAYOUT:
        raise ChunkError(f"the unknown layout {data[:1].hex()}")
    try:
        return _unpacked(codec.decompress(data[1:], _LENGTH_MAX))
    except (codec.FrameError, struct.error) as error:
        raise ChunkError(str(error)) from error


def _unpacked(data: bytes) -> Chunk:
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _ROW.size
    rows = list(_ROW.iter_unpack(data[_COUNT.size : at]))
    keys, values = [], []
    key = b""
    for shared, more, _ in rows:
        key = key[:shared] + data[at : at + more]
        at += more
        keys.append(key)
    for _, _, length in rows:
        values.append(data[at : at + length])
        at += length
    if at != len(data):
        raise ChunkError("its rows do not fit its length")
    return Chunk(keys, values)
