"""How a block's bytes are kept: as they are, compressed, or as what differs from another block.

Pure functions between bytes. Blocks are written as they are, which costs a writer nothing; later
`ckptfs.history.compression` has them encoded. zstd is imported when needed.
"""

from __future__ import annotations

from _thread import _local
from typing import TYPE_CHECKING

from ckptfs import interrupts
from ckptfs.model import BLOCK_SIZE
from ckptfs.store.format import PACK_MAX

if TYPE_CHECKING:
    import zstandard

#: Of 64 KiB of source level 3 makes 19 KiB in 0.5 ms, level 6 makes 17.5 in 1 ms, 19 makes 16.5 in
#: 35. One that is written for good may take the time.
LEVEL_QUICK = 3
LEVEL_SMALL = 6
#: Packs: 35 MB/s of source. Level 19 makes them another 9 % smaller at a tenth of the speed; only
#: of versions of the same files, where there is little to search for, it is nearly as fast.
_LEVEL_PACK = 12
_LEVEL_VERSIONS = 19
#: What shrinks so many times at the level of packs is versions of the same.
_VERSIONS = 8
#: Long ones are compressed in pieces of this many bytes, of some 4 ms each, or 35 at the highest
#: level; others may run in between.
_PIECE = 128 << 10
#: What compression must save, of the bytes as they are, to be worth the time of every reader.
_WORTH = 8


class FrameError(Exception):
    """A frame that is damaged, or is not one."""


class _Objects(_local):
    """Of each thread its own: two that use one at the same time end the process."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor: zstandard.ZstdDecompressor | None = None


_objects = _Objects()


def _compressor(level: int) -> zstandard.ZstdCompressor:
    found = _objects.compressors.get(level)
    if found is None:
        import zstandard

        found = _objects.compressors[level] = zstandard.ZstdCompressor(level=level)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found = _objects.decompressor
    if found is None:
        import zstandard

        found = _objects.decompressor = zstandard.ZstdDecompressor()
    return found


def compress(data: bytes, level: int = LEVEL_QUICK) -> bytes | None:
    """The bytes as a zstd frame, or None if that does not save enough."""
    frame = _compressor(level).compress(data)
    return frame if len(frame) <= len(data) - len(data) // _WORTH else None


def compress_pack(data: bytes) -> bytes:
    """Many blocks together as a zstd frame, which is written once and for long. For any thread."""
    import zstandard

    frame = _in_pieces(zstandard.ZstdCompressor(level=_LEVEL_PACK), data)
    if len(frame) * _VERSIONS < len(data):
        return _in_pieces(zstandard.ZstdCompressor(level=_LEVEL_VERSIONS), data)
    return frame


def _in_pieces(compressor: zstandard.ZstdCompressor, data: bytes) -> bytes:
    """One frame, which the compressor makes of all the bytes."""
    stream = compressor.compressobj(size=len(data))
    frame = []
    for start in range(0, len(data), _PIECE):
        interrupts.rest()
        frame.append(stream.compress(memoryview(data)[start : start + _PIECE]))
    frame.append(stream.flush())
    return b"".join(frame)


def compress_chunk(data: bytes, *, quick: bool = False) -> bytes:
    """Records as a zstd frame that knows whether it is whole."""
    import zstandard

    level = LEVEL_SMALL if quick else _LEVEL_VERSIONS
    return _in_pieces(zstandard.ZstdCompressor(level=level, write_checksum=True), data)


def compress_chunk_again(frame: bytes) -> bytes:
    """The frame of a chunk that was made quickly, as small as can be. For any thread."""
    import zstandard

    try:
        return compress_chunk(zstandard.ZstdDecompressor().decompress(frame))
    except zstandard.ZstdError as error:
        raise FrameError(str(error)) from error


def decompress(frame: bytes, length_max: int = PACK_MAX) -> bytes:
    return _unpacked(_decompressor(), frame, length_max)


def length(frame: bytes) -> int:
    """How many bytes a frame says that it has."""
    import zstandard

    try:
        return zstandard.frame_content_size(frame)
    except zstandard.ZstdError:
        return 0


def compress_against(data: bytes, base: bytes) -> bytes:
    """The bytes as a zstd frame for a reader who has the base: of an edited file, the edits."""
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL_SMALL, dict_data=_as_dictionary(base)).compress(
        data
    )


def decompress_against(frame: bytes, base: bytes) -> bytes:
    import zstandard

    reader = zstandard.ZstdDecompressor(dict_data=_as_dictionary(base))
    return _unpacked(reader, frame, BLOCK_SIZE)


def _unpacked(reader: zstandard.ZstdDecompressor, frame: bytes, length_max: int) -> bytes:
    import zstandard

    try:
        # Asked before memory is allocated, whatever a damaged frame says of itself.
        if not 0 <= zstandard.frame_content_size(frame) <= length_max:
            raise FrameError("it is longer than it may be, or no frame")
        return reader.decompress(frame)
    except zstandard.ZstdError as error:
        raise FrameError(str(error)) from error


def _as_dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    import zstandard

    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
