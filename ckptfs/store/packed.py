"""Packed records: what only history sees, in compressed chunks beside the tables.

A record that the head has no use for moves from its table into a chunk with its neighbours, which
takes a tenth of the space. Views of history find it there, and it moves back before history is
changed. Two rules make that sound and keep it from costing the head anything:

- Nothing that the view of the *anchor* sees is packed; the anchor is the epoch that was the head
  when the records were packed, or the one that took its place. So a view that descends from it
  finds everything in the tables and never looks here.
- All packed versions of an entity are in one chunk; they move back together, and they do before
  anything is written about that entity to a sealed epoch. So a tombstone never stays behind while
  what it hides comes back, and what is taken out of an epoch uncovers nothing that is packed.

`ckptfs.history.compression` decides which records are packed. What they mean is not known here.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from errno import EIO
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ckptfs.store import codec
from ckptfs.store.epochs import View
from ckptfs.store.format import EXCLUDED_EPOCH, SUFFIX_SIZE
from ckptfs.store.tables import Plain

if TYPE_CHECKING:
    from ckptfs.store.pending import Read

Record = tuple[bytes, bytes]

# -- chunks: many records, compressed together -----------------------------------------------------

# A chunk is a number that names its layout, and a zstd frame with a checksum. In it: the number of
# records; of each, how many bytes its key shares with the one before, how many more it has, and the
# length of its value; then those bytes of all keys, then all values. Like stands beside like, which
# is most of what makes it small.

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


# -- the table of chunks ---------------------------------------------------------------------------

#: Decoded chunks that are kept at hand.
_DECODED_MAX = 16
#: Chunks that something was taken out of, and that wait to be written.
_UNWRITTEN_MAX = 4
#: Behind all versions of an entity.
_LAST = b"\xff" * SUFFIX_SIZE


class Table(Protocol):
    """A table whose records may be packed, by their whole keys."""

    def rewrite(self, key: bytes, value: bytes) -> None: ...
    def erase(self, key: bytes) -> None: ...
    def has_row(self, key: bytes) -> bool: ...


class PackedRecords:
    """``used`` says whether there are any; ``anchor`` is the suffix of the anchor, empty if there
    is none, and then every view looks here."""

    def __init__(self, table: Plain, note: Callable[[], None]) -> None:
        self._table = table
        self._note = note
        self._tables: dict[bytes, Table] = {}
        self._decoded: dict[bytes, Chunk] = {}
        #: Chunks as they are in this transaction, where that is not yet in their table.
        self._unwritten: dict[bytes, Chunk] = {}
        self.used = False
        self.anchor = b""

    def register(self, kind: bytes, table: Table) -> None:
        """Name the table that the records of a kind are packed from."""
        self._tables[kind] = table

    def look(self) -> None:
        """Find out whether anything is packed."""
        self.used = self._table.count() > 0

    def concerns(self, view: View) -> bool:
        """Whether something that the view sees may be packed: not if it is that of the anchor, or
        descends from it."""
        return self.anchor not in view.seen and view.epoch != EXCLUDED_EPOCH

    # -- reading ----------------------------------------------------------------------------------

    def versions(self, kind: bytes, entity: bytes) -> list[Record]:
        """(suffix, record) of each packed version of an entity."""
        keys, values = self._chunk_of(kind, entity + _LAST)
        length = len(entity)
        found: list[Record] = []
        for index in range(bisect_left(keys, entity), len(keys)):
            key = keys[index]
            if key[:length] != entity or len(key) != length + SUFFIX_SIZE:
                break
            found.append((key[length:], values[index]))
        return found

    def get(self, kind: bytes, key: bytes) -> bytes | None:
        keys, values = self._chunk_of(kind, key)
        index = bisect_left(keys, key)
        return values[index] if index < len(keys) and keys[index] == key else None

    def batch(self, kind: bytes, prefix: bytes, start: bytes, limit: int) -> list[Record]:
        """Up to so many records whose keys begin with ``prefix``, from ``start`` on."""
        found: list[Record] = []
        name = self._name_of(kind, start) or self._table.ceiling(kind)
        while name is not None and name[:1] == kind:
            keys, values = self._chunk(name)
            for index in range(bisect_left(keys, start), len(keys)):
                if not keys[index].startswith(prefix) or len(found) == limit:
                    return found
                found.append((keys[index], values[index]))
            name = self._table.ceiling(name + b"\0")
        return found

    def last(self, kind: bytes) -> bytes:
        """The first key of the last chunk of a kind; eight zeros if there is none."""
        return (self._name_of(kind, b"\xff" * 9) or bytes(9))[1:]

    def _chunk_of(self, kind: bytes, key: bytes) -> Chunk:
        """The only chunk that can have the key."""
        name = self._name_of(kind, key)
        return Chunk([], []) if name is None else self._chunk(name)

    def _name_of(self, kind: bytes, key: bytes) -> bytes | None:
        """The key of the last chunk that begins at or before this one."""
        name = self._table.floor(kind + key)
        return name if name is not None and name[:1] == kind else None

    def _chunk(self, name: bytes) -> Chunk:
        if name in self._unwritten:
            return self._unwritten[name]
        chunk = self._decoded.pop(name, None)
        if chunk is None:
            chunk = self._decode(name)
            if len(self._decoded) == _DECODED_MAX:
                del self._decoded[next(iter(self._decoded))]
        self._decoded[name] = chunk
        return chunk

    def _decode(self, name: bytes) -> Chunk:
        try:
            return unpack_chunk(self._table.get(name) or b"")
        except ChunkError as error:
            raise OSError(EIO, f"packed records cannot be read: {error}") from error

    # -- moving -----------------------------------------------------------------------------------

    def pack(self, kind: bytes, records: Sequence[Record]) -> None:
        """Move records from their table into a chunk: all that are packed between two keys."""
        table = self._tables[kind]
        for key, _ in records:
            self._note()
            table.erase(key)
        self._table.put(kind + records[0][0], pack_chunk(records))
        self.used = True

    def unpack(self, kind: bytes, entity: bytes) -> None:
        """Move all versions of an entity back to their table."""
        count = len(self.versions(kind, entity))
        if count:
            name = self._name_of(kind, entity + _LAST) or b""
            start = bisect_left(self._chunk(name).keys, entity)
            self._take_out(name, slice(start, start + count))

    def unpack_key(self, kind: bytes, key: bytes) -> bool:
        """The same for one key of a table without versions; say whether it was packed."""
        if self.get(kind, key) is None:
            return False
        name = self._name_of(kind, key) or b""
        start = bisect_left(self._chunk(name).keys, key)
        self._take_out(name, slice(start, start + 1))
        return True

    def unpack_some(self) -> bool:
        """Move the first chunk back; say whether there is none left."""
        name = self._table.ceiling(b"")
        if name is not None:
            self._take_out(name, slice(None))
        return not self.used

    def _take_out(self, name: bytes, part: slice) -> None:
        """Move some records of a chunk back to their table. What is left of it is written when
        others have their turn, or before the commit: mostly, neighbours are unpacked one by one."""
        keys, values = self._chunk(name)
        table = self._tables[name[:1]]
        for key, value in zip(keys[part], values[part], strict=True):
            self._note()
            table.rewrite(key, value)
        left = Chunk(list(keys), list(values))
        del left.keys[part], left.values[part]
        self._decoded.pop(name, None)
        self._unwritten.pop(name, None)
        if left.keys:
            self._unwritten[name] = left
            if len(self._unwritten) > _UNWRITTEN_MAX:
                self._write(next(iter(self._unwritten)))
        else:
            self._table.delete(name)
            self.look()

    def _write(self, name: bytes) -> None:
        keys, values = self._unwritten.pop(name)
        self._note()
        self._table.put(name, pack_chunk(list(zip(keys, values, strict=True)), quick=True))

    def holds(self, read: Read) -> bool:
        return read.table == "rest" and read.exact and read.prefix in self._unwritten

    def flush(self) -> None:
        """Write what is left of chunks that something was taken out of: before every commit."""
        while self._unwritten:
            self._write(next(iter(self._unwritten)))

    # -- for `check` ------------------------------------------------------------------------------

    def chunks(self) -> Iterator[tuple[bytes, bytes, Chunk]]:
        """(kind, first key by its name, records) of every chunk."""
        for name, _ in self._table.walk():
            yield name[:1], name[1:], self._chunk(name)

    def duplicates(self) -> Iterator[bytes]:
        """Keys that are packed and in their tables."""
        for kind, _, chunk in self.chunks():
            yield from filter(self._tables[kind].has_row, chunk.keys)
