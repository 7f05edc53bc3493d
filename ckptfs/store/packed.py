"""Packed records: what only history sees, in compressed chunks beside the tables.

A record that no head has a use for moves from its table into a chunk with its neighbours, which
takes a tenth of the space. Views of history find it there, and it moves back before history is
changed. Two rules make that sound and keep it from costing a head anything:

- Nothing that the view of an *anchor* sees is packed; every line has one: the epoch that was its
  head when the records were packed, or the one that took its place. So a view that descends from it
  finds everything in the tables and never looks here.
- All packed versions of an entity are in one chunk; they move back together, and they do before
  anything is written about that entity to a sealed epoch. So a tombstone never stays behind while
  what it hides comes back, and what is taken out of an epoch uncovers nothing that is packed.

`ckptfs.history.packing` decides which records are packed. What they mean is not known here.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from errno import EIO
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ckptfs.store import codec
from ckptfs.store.epochs import View
from ckptfs.store.format import SUFFIX_SIZE, VERSIONED, is_excluded
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


def smaller(chunk: bytes) -> bytes:
    """A chunk with the same records, compressed as well as can be: that takes some 40 ms, without
    the interpreter's lock."""
    try:
        return _LAYOUT + codec.compress_chunk_again(chunk[1:])
    except codec.FrameError:
        return chunk  # what is damaged stays as it is


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


class Limits(NamedTuple):
    """A chunk that is longer is written as several."""

    bytes: int
    records: int


def _parted(kind: bytes, chunk: Chunk, limits: Limits) -> Iterator[Chunk]:
    """The records in parts of about the same length, none above the limits by much; an entity is
    never parted."""
    keys, values = chunk
    count = len(keys)
    parts = max(-(-_size(values) // limits.bytes), -(-count // limits.records))
    start = 0
    for part in range(1, parts):
        stop = max(count * part // parts, start + 1)
        while stop < count and _entity(kind, keys[stop - 1]) == _entity(kind, keys[stop]):
            stop += 1
        if start < stop < count:
            yield Chunk(keys[start:stop], values[start:stop])
            start = stop
    yield Chunk(keys[start:], values[start:])


def _entity(kind: bytes, key: bytes) -> bytes:
    return key[:-SUFFIX_SIZE] if kind in VERSIONED else key


def _size(values: list[bytes]) -> int:
    return sum(map(len, values))


# -- the table of chunks ---------------------------------------------------------------------------

#: Decoded chunks that are kept at hand.
_DECODED_MAX = 16
#: Chunks that something was taken out of, and that wait to be written.
_UNWRITTEN_MAX = 4
#: How often a chunk is written because something was taken out of it, until it is packed again; the
#: next time all of it moves back. What goes entity by entity would have it written each time.
_TAKEN_OUT_MAX = 1
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
        #: Those of them that something was taken out of.
        self._taken_out: set[bytes] = set()
        #: By chunk, how often it was written for that.
        self._worn: Counter[bytes] = Counter()
        #: Chunks that could be written in fewer bytes.
        self._quick: dict[bytes, None] = {}
        self.used = False
        self.anchor = b""
        #: Those of forks.
        self.fork_anchors: tuple[bytes, ...] = ()
        #: The work that packs or unpacks: another one goes by what another view sees.
        self.mover: object = None

    def register(self, kind: bytes, table: Table) -> None:
        """Name the table that the records of a kind are packed from."""
        self._tables[kind] = table

    def look(self) -> None:
        """Find out whether anything is packed."""
        self.used = self._table.count() > 0

    def concerns(self, view: View) -> bool:
        """Whether something that the view sees may be packed: not if it is that of an anchor, or
        descends from one."""
        seen = view.seen
        if self.anchor in seen or is_excluded(view.epoch):
            return False
        return not any(anchor in seen for anchor in self.fork_anchors)

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

    def pack(self, kind: bytes, records: Sequence[Record], limits: Limits) -> None:
        """Move records, in the order of their keys, from their table into the chunks that have what
        lies beside them. Of an entity either all that is to be packed comes, or nothing."""
        table = self._tables[kind]
        for key, _ in records:
            self._note()
            table.erase(key)
        homes = groupby(records, key=lambda record: self._home(kind, record[0]))
        for home, group in [(home, list(group)) for home, group in homes]:
            self._merge(kind, home, group, limits)
        self.used = True

    def _home(self, kind: bytes, key: bytes) -> bytes | None:
        """The name of the chunk that has, or gets, the other versions of the entity."""
        return self._name_of(kind, key[:-SUFFIX_SIZE] + _LAST if kind in VERSIONED else key)

    def _merge(
        self, kind: bytes, home: bytes | None, records: list[Record], limits: Limits
    ) -> None:
        old = Chunk([], []) if home is None else self._chunk(home)
        # What comes behind a chunk and does not fit into it begins the next one.
        size = _size(old.values) + sum(len(value) for _, value in records)
        full = len(old.keys) + len(records) > limits.records or size > limits.bytes
        if full and old.keys and _entity(kind, old.keys[-1]) < _entity(kind, records[0][0]):
            home = None
        keys, values = [*old.keys], [*old.values]
        if home is None:
            keys, values = [], []
        is_behind = not keys or keys[-1] < records[0][0]
        keys += (key for key, _ in records)
        values += (value for _, value in records)
        if not is_behind:
            both = sorted(zip(keys, values, strict=True))
            keys, values = [key for key, _ in both], [value for _, value in both]
        if home is not None and home != kind + keys[0]:
            self._drop(home)
        for part in _parted(kind, Chunk(keys, values), limits):
            self._is_whole(kind + part.keys[0])
            self._put(kind + part.keys[0], part)

    def _drop(self, name: bytes) -> None:
        self._is_whole(name)
        self._decoded.pop(name, None)
        self._unwritten.pop(name, None)
        self._table.delete(name)

    def _put(self, name: bytes, chunk: Chunk) -> None:
        """Have a chunk written when others have their turn, or before the commit: mostly,
        neighbours come and go one by one. Its name is found at once."""
        if not self._table.has_row(name):
            self._table.put(name, _LAYOUT)
        self._decoded.pop(name, None)
        self._unwritten.pop(name, None)
        self._unwritten[name] = chunk
        if len(self._unwritten) > _UNWRITTEN_MAX:
            self._write(next(iter(self._unwritten)))

    def pop_quick(self) -> tuple[bytes, bytes] | None:
        """The name and the bytes of a chunk that was written quickly, and not as small as it might
        be."""
        while self._quick:
            name = self._quick.popitem()[0]
            self._is_whole(name)
            chunk = None if name in self._unwritten else self._table.get(name)
            if chunk is not None:
                return name, chunk
        return None

    def rewrite(self, name: bytes, before: bytes, after: bytes) -> None:
        """Write a chunk with the same records in fewer bytes, if it is still what it was."""
        is_same = name not in self._unwritten and self._table.get(name) == before
        if is_same and len(after) < len(before):
            self._note()
            self._table.put(name, after)

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

    def _take_out(self, name: bytes, part: slice) -> None:
        """Move some records of a chunk back to their table, or all of a chunk that is worn."""
        keys, values = self._chunk(name)
        if self._worn[name] >= _TAKEN_OUT_MAX:
            part = slice(None)
        table = self._tables[name[:1]]
        for key, value in zip(keys[part], values[part], strict=True):
            self._note()
            table.rewrite(key, value)
        left = Chunk(list(keys), list(values))
        del left.keys[part], left.values[part]
        if left.keys:
            self._taken_out.add(name)
            self._put(name, left)
        else:
            self._drop(name)
            self.look()

    def _is_whole(self, name: bytes) -> None:
        """A chunk is gone, or what it was made to be: count from here on."""
        self._taken_out.discard(name)
        del self._worn[name]

    def _write(self, name: bytes) -> None:
        keys, values = self._unwritten.pop(name)
        if name in self._taken_out:
            self._taken_out.discard(name)
            self._worn[name] += 1
        self._note()
        self._table.put(name, pack_chunk(list(zip(keys, values, strict=True)), quick=True))
        self._quick[name] = None

    def holds(self, read: Read) -> bool:
        return read.table == "rest" and read.exact and read.prefix in self._unwritten

    def flush(self) -> None:
        """Write what is left of chunks that something was taken out of: before every commit. The
        tables find it without."""
        while self.write_one():
            pass

    @property
    def is_crowded(self) -> bool:
        """Whether the next chunk that changes has another one written."""
        return len(self._unwritten) >= _UNWRITTEN_MAX

    def write_one(self) -> bool:
        """Write one of them; False if there is none."""
        if self._unwritten:
            self._write(next(iter(self._unwritten)))
        return bool(self._unwritten)

    # -- all of them -------------------------------------------------------------------------------

    def names(self, kind: bytes) -> Iterator[bytes]:
        """The name of every chunk of a kind; the caller may write between two of them."""
        name = self._table.ceiling(kind)
        while name is not None and name[:1] == kind:
            yield name
            name = self._table.ceiling(name + b"\0")

    def entities(self, name: bytes) -> list[bytes]:
        """What a chunk of a versioned table has records of; nothing if there is no such chunk."""
        if name not in self._unwritten and not self._table.has_row(name):
            return []
        return list(dict.fromkeys(key[:-SUFFIX_SIZE] for key in self._chunk(name).keys))

    # -- for `check` ------------------------------------------------------------------------------

    def chunks(self) -> Iterator[tuple[bytes, bytes, Chunk]]:
        """(kind, first key by its name, records) of every chunk."""
        for name, _ in self._table.walk():
            yield name[:1], name[1:], self._chunk(name)

    def duplicates(self) -> Iterator[bytes]:
        """Keys that are packed and in their tables."""
        for kind, _, chunk in self.chunks():
            yield from filter(self._tables[kind].has_row, chunk.keys)
