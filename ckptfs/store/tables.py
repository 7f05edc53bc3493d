"""Typed access to the store's tables, all within the one open write transaction.

`Versioned` is the idea that carries the project: records keyed by entity and epoch, read through a
view. `Plain` tables are ordinary keys and values. Neither knows what an entity means.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ckptfs import interrupts
from ckptfs.model import Epoch
from ckptfs.store.format import GONE, SUFFIX_SIZE, pack_u32, suffix_of, unpack_u32
from ckptfs.store.journal import Recorder
from ckptfs.store.journal_format import Delta
from ckptfs.store.snapshot import NO_READER, SnapshotReader, untouched
from ckptfs.store.transaction import put_all

if TYPE_CHECKING:
    from collections.abc import Container

    from ckptfs.store.epochs import View
    from ckptfs.store.packed import PackedRecords
    from ckptfs.store.transaction import Cursor, Database, Records

#: Walks read this many records ahead, so that a caller may write between two of them.
_BATCH = 256
#: From so many records on it pays to put them together.
_MANY = 4


class Plain:
    """Keys and values without versions."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._txn: Records
        self.guard(0, NO_READER)

    def guard(self, place: int, reader: SnapshotReader) -> None:
        """Have a reader verify pages before LMDB is led to them."""
        self._place = place
        self._require, self._require_some = reader.require, reader.require_some
        self._require_before, self._require_all = reader.require_before, reader.require_all

    def bind(self, txn: Records) -> None:
        self._txn = txn

    def get(self, key: bytes) -> bytes | None:
        self._require(self._place, key, key, False)
        return self._txn.get(key, db=self._db)

    def has_row(self, key: bytes) -> bool:
        """Whether a record is in the table itself, whatever waits for it in a buffer."""
        self._require(self._place, key, key, False)
        return self._txn.get(key, db=self._db) is not None

    def put(self, key: bytes, value: bytes) -> None:
        self._require(self._place, key, key, True)
        self._txn.put(key, value, db=self._db)

    def put_all(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Put many records. In the order of their keys each costs a third of a `put`."""
        records = list(records)
        self._require_all(self._place, records)
        _put_all(self._txn, self._db, records)

    def add(self, key: bytes, value: bytes) -> bool:
        """Store the value unless the key is there already; say whether it was stored."""
        self._require(self._place, key, key, True)
        return self._txn.put(key, value, overwrite=False, db=self._db)

    def log(self, key: bytes, value: bytes | None) -> None:
        """Have the journal note a record, or that it is gone, and leave the table as it is."""
        if isinstance(self._txn, Recorder):
            self._txn.note(self._db, key, value)

    def log_delta(self, other: bytes, key: bytes, start: int, part: bytes) -> None:
        """The value that was just put under a key has these bytes from ``start`` on, and is
        another's value for the rest: the journal notes only what differs, if that is so."""
        if isinstance(self._txn, Recorder):
            self._txn.note_delta(self._db, key, Delta(other, start, part))

    def delete(self, key: bytes) -> bool:
        self._require(self._place, key, key, True)
        return self._txn.delete(key, db=self._db)

    def pop(self, key: bytes) -> bytes | None:
        """Delete a record and return it."""
        self._require(self._place, key, key, True)
        return self._txn.pop(key, db=self._db)

    def count(self) -> int:
        return self._txn.stat(self._db)["entries"]

    def floor(self, key: bytes) -> bytes | None:
        """The last key up to this one."""
        self._require_before(self._place, key)
        with contextlib.closing(self._txn.cursor(self._db)) as cursor:
            if cursor.set_range(key):
                return cursor.key() if cursor.key() == key or cursor.prev() else None
            return cursor.key() if cursor.last() else None

    def ceiling(self, key: bytes) -> bytes | None:
        """The first key from this one on."""
        self._require(self._place, key, key, False)
        with contextlib.closing(self._txn.cursor(self._db)) as cursor:
            found = cursor.set_range(key) if key else cursor.first()
            return cursor.key() if found else None

    def walk(self, prefix: bytes = b"", after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Records whose key begins with ``prefix``, in order, from the first behind ``after``.

        The caller may write, and commit, between two of them."""
        return _walk(self, prefix, after)


# -- what both kinds of tables have in common ------------------------------------------------------


def use(table: Plain | Versioned, db: Database) -> None:
    """Go on in another environment, from the next `bind` on."""
    table._db = db


def record(table: Plain | Versioned, key: bytes) -> bytes | None:
    """What the table itself has under a whole key."""
    table._require(table._place, key, key, False)
    return table._txn.get(key, db=table._db)


def verified(table: Plain | Versioned) -> Iterator[None]:
    """Refuse a table of which any page is damaged, a few pages at a time."""
    key: bytes | None = b""
    while key is not None:
        key = table._require_some(table._place, key, b"")
        yield


def require_whole(table: Plain | Versioned) -> None:
    """The same at once. A backup asks in a thread of its own, and requests go on meanwhile."""
    for _ in verified(table):
        interrupts.between()


def _put_all(txn: Records, db: Database, records: Iterable[tuple[bytes, bytes]]) -> None:
    with contextlib.closing(txn.cursor(db)) as cursor:
        if isinstance(txn, Recorder):
            txn.put_all(db, cursor, records)
        else:
            put_all(txn, db, cursor, records)


def _walk(
    table: Plain | Versioned,
    prefix: bytes,
    after: bytes = b"",
    packed: PackedKind | None = None,
) -> Iterator[tuple[bytes, bytes]]:
    """With ``packed`` also the packed records of that kind."""
    start = after + b"\0" if after else prefix
    while True:
        # The transaction of now: a commit may have come between.
        batch = _batch(table, prefix, start)
        if packed is not None and packed.records.used:
            # Looked for anew each time: between two batches records may go from one to the other.
            more = packed.records.batch(packed.kind, prefix, start, _BATCH)
            batch = sorted({*batch, *more})[:_BATCH]
        yield from batch
        if len(batch) < _BATCH:
            return
        interrupts.check()
        start = batch[-1][0] + b"\0"


def _batch(table: Plain | Versioned, prefix: bytes, start: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    whole_to = table._require_some(table._place, start, prefix)
    with contextlib.closing(table._txn.cursor(table._db)) as cursor:
        if not (cursor.set_range(start) if start else cursor.first()):
            return found
        for key, value in cursor:
            if not key.startswith(prefix):
                break
            found.append((key, value))
            if len(found) == _BATCH:
                break
            if whole_to is not None and key >= whole_to:
                whole_to = table._require_some(table._place, key, prefix)
    return found


class PackedKind(NamedTuple):
    """Where a table's packed records are, and of which kind they are there."""

    records: PackedRecords
    kind: bytes


class ByEpoch:
    """Keys that begin with an epoch, and values; those of sealed epochs may be packed."""

    def __init__(self, table: Plain, kind: bytes, packed: PackedRecords) -> None:
        self._table = table
        self.kind = kind
        self._packed = packed
        self._packed_kind = PackedKind(packed, kind)
        packed.register(kind, self)

    def add(self, key: bytes, value: bytes = b"") -> None:
        """Put a record that is not there yet."""
        self._table.put(key, value)

    def add_all(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """The same for many."""
        self._table.put_all(records)

    def put(self, key: bytes, value: bytes) -> None:
        if self._packed.used:
            self._packed.unpack_key(self.kind, key)
        self._table.put(key, value)

    def delete(self, key: bytes) -> None:
        found = self._table.delete(key)
        if not found and self._packed.used and self._packed.unpack_key(self.kind, key):
            self._table.delete(key)

    def walk(self, prefix: bytes = b"", after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Records whose key begins with ``prefix``, in order, from the first behind ``after``."""
        return _walk(self._table, prefix, after, self._packed_kind)

    def rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The same of those that are not packed."""
        return self._table.walk(prefix)

    def count(self) -> int:
        """How many records are not packed."""
        return self._table.count()

    # -- by their whole keys, without a look at packed records ------------------------------------

    def rewrite(self, key: bytes, value: bytes) -> None:
        self._table.put(key, value)

    def erase(self, key: bytes) -> None:
        self._table.delete(key)

    def has_row(self, key: bytes) -> bool:
        return self._table.has_row(key)


class Changes:
    """Which entities each epoch wrote: (epoch, kind, entity) -> nothing."""

    def __init__(self, table: ByEpoch) -> None:
        self._table = table

    def add(self, epoch: Epoch, kind: bytes, entity: bytes) -> None:
        self._table.add(pack_u32(epoch) + kind + entity)

    def add_all(self, epoch: Epoch, kind: bytes, entities: Iterable[bytes]) -> None:
        prefix = pack_u32(epoch) + kind
        self._table.add_all((prefix + entity, b"") for entity in entities)

    def discard(self, epoch: Epoch, kind: bytes, entity: bytes) -> None:
        self._table.delete(pack_u32(epoch) + kind + entity)

    def clear(self) -> None:
        """Forget everything, to have it listed anew."""
        for key, _ in self._table.walk():
            self._table.delete(key)

    def walk(self, epoch: Epoch, kind: bytes = b"", prefix: bytes = b"") -> Iterator[bytes]:
        """Entities the epoch wrote, without their kind when ``kind`` is given."""
        cut = SUFFIX_SIZE + len(kind)
        for key, _ in self._table.walk(pack_u32(epoch) + kind + prefix):
            yield key[cut:]

    def all(self) -> Iterator[tuple[Epoch, bytes]]:
        """(epoch, kind and entity) of every change."""
        for key, _ in self._table.walk():
            yield Epoch(unpack_u32(key[:SUFFIX_SIZE])), key[SUFFIX_SIZE:]


class Versioned:
    """Records keyed by entity and epoch. Every entity of one table ends in a fixed-size field or a
    NUL, so no entity is the beginning of another's key."""

    def __init__(self, db: Database, kind: bytes, changes: Changes, packed: PackedRecords) -> None:
        self._db = db
        self.kind = kind
        self._changes = changes
        self._packed = packed
        self._packed_kind = PackedKind(packed, kind)
        packed.register(kind, self)
        #: Grows with every change, but for those that no view can see.
        self.changed = 0
        #: Called with every entity that changes.
        self.touch: Callable[[bytes], object] = untouched
        self._mark: Callable[[bytes], object] = untouched
        self._followers: list[Callable[[bytes], object]] = []
        self._txn: Records
        self._cursor: Cursor
        self.guard(0, NO_READER)

    def guard(self, place: int, reader: SnapshotReader) -> None:
        """Have a reader verify pages before LMDB is led to them."""
        self._place = place
        self._require, self._require_some = reader.require, reader.require_some
        self._require_before, self._require_all = reader.require_before, reader.require_all

    def bind(self, txn: Records) -> None:
        self._txn = txn
        self._cursor = txn.cursor(self._db)

    def mark_changes(self, mark: Callable[[bytes], object]) -> None:
        """Have this called with every entity that changes, besides those who follow."""
        self._mark = mark
        self._touch_all()

    def follow(self, note: Callable[[bytes], object]) -> Callable[[], bool]:
        """Have every entity that changes noted, too. What is returned ends that, and says whether
        it was noted until then."""
        self._followers.append(note)
        self._touch_all()

        def end() -> bool:
            is_followed = note in self._followers
            if is_followed:
                self._followers.remove(note)
                self._touch_all()
            return is_followed

        return end

    def _touch_all(self) -> None:
        if not self._followers:
            self.touch = self._mark
            return
        every = (*self._followers, self._mark)

        def touch(entity: bytes) -> None:
            for each in every:
                each(entity)

        self.touch = touch

    def get(self, view: View, entity: bytes) -> bytes | None:
        """The record that the view sees, or None if there is none or it is gone."""
        packed = self._packed
        # The head's answer comes first: this is asked for every request.
        if packed.used and packed.anchor not in view.seen and packed.concerns(view):
            return self._newest(entity, view.seen)
        cursor = self._cursor
        key = entity + view.first
        self._require(self._place, key, entity, False)
        if not cursor.set_range(key):
            return None
        seen = view.seen
        while True:
            key, value = cursor.item()
            if key[:-SUFFIX_SIZE] != entity:
                return None
            if key[-SUFFIX_SIZE:] in seen:
                return value or None
            if not cursor.next():
                return None

    def drops(self, epoch: Epoch, entity: bytes) -> bool:
        """Whether an epoch wrote that the entity is gone; not of a packed record."""
        key = entity + suffix_of(epoch)
        self._require(self._place, key, key, False)
        return self._txn.get(key, db=self._db) == GONE

    def own(self, view: View, entity: bytes) -> bytes | None:
        """The record that the view's own epoch wrote (GONE if it says so), or None."""
        key = entity + view.suffix
        self._require(self._place, key, key, False)
        own = self._txn.get(key, db=self._db)
        if own is None and self._packed.used and not view.writable:
            return self._packed.get(self.kind, entity + view.suffix)
        return own

    def version(self, view: View, entity: bytes) -> tuple[bytes, bytes]:
        """The suffix and the record of the version that the view sees; GONE if the entity is."""
        seen = view.seen
        if self._packed.used and self._packed.concerns(view):
            return self._newest_version(entity, seen)
        self._require(self._place, entity + view.first, entity, False)
        more = self._cursor.set_range(entity + view.first)
        while more:
            key, value = self._cursor.item()
            if key[:-SUFFIX_SIZE] != entity:
                break
            if key[-SUFFIX_SIZE:] in seen:
                return key[-SUFFIX_SIZE:], value
            more = self._cursor.next()
        return b"", GONE

    def _newest(self, entity: bytes, seen: Container[bytes]) -> bytes | None:
        """The newest of those versions, wherever it is."""
        return self._newest_version(entity, seen)[1] or None

    def _newest_version(self, entity: bytes, seen: Container[bytes]) -> tuple[bytes, bytes]:
        found = [*self.standing(entity), *self._packed.versions(self.kind, entity)]
        return min((version for version in found if version[0] in seen), default=(b"", GONE))

    def standing(self, entity: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(suffix, record) of each version of an entity that is not packed."""
        self._require(self._place, entity, entity, False)
        more = self._cursor.set_range(entity)
        while more:
            key, value = self._cursor.item()
            if key[:-SUFFIX_SIZE] != entity:
                return
            yield key[-SUFFIX_SIZE:], value
            more = self._cursor.next()

    def misses(self, view: View, entity: bytes) -> bool:
        """Whether the view would see something else of the entity without packed records."""
        seen = view.seen
        packed = [v for v in self._packed.versions(self.kind, entity) if v[0] in seen]
        standing = [v for v in self.standing(entity) if v[0] in seen]
        newest = min((*packed, *standing), default=(b"", GONE))
        return newest in packed and (newest[1] != GONE or bool(standing))

    def inherited(self, view: View, entity: bytes) -> bytes | None:
        """The record that the view would see had its own epoch not written one."""
        if view.is_first:
            return None
        if self._packed.used and self._packed.concerns(view):
            return self._newest(entity, view.inherited)
        cursor = self._cursor
        key = entity + view.suffix
        self._require(self._place, key, entity, False)
        if not cursor.set_range(key):
            return None
        seen, own = view.seen, view.suffix
        while True:
            key, value = cursor.item()
            if key[:-SUFFIX_SIZE] != entity:
                return None
            suffix = key[-SUFFIX_SIZE:]
            if suffix != own and suffix in seen:
                return value or None
            if not cursor.next():
                return None

    def put(self, view: View, entity: bytes, value: bytes) -> bytes | None:
        """Write a record at the view's epoch; return the one of that epoch it replaces."""
        replaced = self.put_unlisted(view, entity, value)
        if replaced is None:
            self._changes.add(view.epoch, self.kind, entity)
        return replaced

    def put_unlisted(self, view: View, entity: bytes, value: bytes) -> bytes | None:
        """`put` for records that are found without `changes` (docs/FORMAT.md says which)."""
        if self._packed.used and not view.writable:
            self._packed.unpack(self.kind, entity)
        self.changed += 1
        self.touch(entity)
        key = entity + view.suffix
        self._require(self._place, key, key, True)
        return self._txn.replace(key, value, db=self._db)

    def log(self, view: View, entity: bytes, value: bytes) -> None:
        """Have the journal note what the view's epoch, which has a record of the entity, is to put
        there later."""
        if isinstance(self._txn, Recorder):
            self._txn.note(self._db, entity + view.suffix, value)

    def put_all(self, view: View, records: Sequence[tuple[bytes, bytes]]) -> None:
        """`put` of many records, by entity; quick in the order of the entities."""
        if len(records) < _MANY:
            for entity, value in records:
                self.put(view, entity, value)
            return
        self.put_all_unlisted(view, records)
        self._changes.add_all(view.epoch, self.kind, (entity for entity, _ in records))

    def put_all_unlisted(self, view: View, records: Iterable[tuple[bytes, bytes]]) -> None:
        suffix = view.suffix
        self.changed += 1
        if self.touch is not untouched:
            records = list(records)
            for entity, _ in records:
                self.touch(entity)
        keyed = [(entity + suffix, value) for entity, value in records]
        self._require_all(self._place, keyed)
        _put_all(self._txn, self._db, keyed)

    def drop(self, view: View, entity: bytes) -> bytes | None:
        """Make the entity absent in the view; return the record its own epoch had written."""
        if self.inherited(view, entity) is not None:
            return self.put(view, entity, GONE)
        return self.forget(view, entity)

    def forget(self, view: View, entity: bytes) -> bytes | None:
        """Take back what the view's own epoch wrote about the entity, as if it never had."""
        own = self.forget_unlisted(view, entity)
        if own is not None:
            self._changes.discard(view.epoch, self.kind, entity)
        return own

    def forget_unlisted(self, view: View, entity: bytes) -> bytes | None:
        """`forget` for a record that `put_unlisted` wrote."""
        if self._packed.used and not view.writable:
            self._packed.unpack(self.kind, entity)
        self.changed += 1
        self.touch(entity)
        key = entity + view.suffix
        self._require(self._place, key, key, True)
        return self._txn.pop(key, db=self._db)

    def walk(self, view: View, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """(entity, record) of everything the view sees under ``prefix``, in order.

        ``start`` is the first entity wanted. The caller may write between two records.
        """
        start = start or prefix
        if self._packed.used and self._packed.concerns(view):
            yield from self._walk_deeper(view, prefix, start)
            return
        while True:
            batch, start = self._batch(view, prefix, start)
            yield from batch
            if not start:
                return
            interrupts.check()

    def _walk_deeper(
        self, view: View, prefix: bytes, start: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        last = b""
        for entity, suffix, record in self.versions(prefix, start):
            if entity != last and suffix in view.seen:
                last = entity
                if record:
                    yield entity, record

    def _batch(
        self, view: View, prefix: bytes, start: bytes
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Up to a batch of records, and where to go on (empty when all was read)."""
        found: list[tuple[bytes, bytes]] = []
        cursor = self._cursor
        seen = view.seen
        length = len(prefix)
        last = b""
        whole_to = self._require_some(self._place, start, prefix)
        more = cursor.set_range(start)
        while more:
            key, value = cursor.item()
            if key[:length] != prefix:
                break
            entity = key[:-SUFFIX_SIZE]
            if entity != last and key[-SUFFIX_SIZE:] in seen:
                last = entity
                if value:
                    if len(found) == _BATCH:
                        return found, entity
                    found.append((entity, value))
            if whole_to is not None and key >= whole_to:
                whole_to = self._require_some(self._place, key, prefix)
            more = cursor.next()
        return found, b""

    def rewrite(self, key: bytes, value: bytes) -> None:
        """Put a record behind the back of `changes`, by its whole key: for repairs, and for
        records that are unpacked."""
        self._require(self._place, key, key, True)
        self._txn.put(key, value, db=self._db)

    def erase(self, key: bytes) -> None:
        """Remove a record behind the back of `changes`, by its whole key: for repairs, and for
        records that are packed."""
        self._require(self._place, key, key, True)
        self._txn.delete(key, db=self._db)

    def has_row(self, key: bytes) -> bool:
        """Whether a record is in the table itself, whatever waits for it in a buffer, by its whole
        key."""
        self._require(self._place, key, key, False)
        return self._txn.get(key, db=self._db) is not None

    def rows(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """(entity, suffix, record) of every version that is not packed."""
        for key, value in _walk(self, b""):
            yield key[:-SUFFIX_SIZE], key[-SUFFIX_SIZE:], value

    def count(self) -> int:
        """How many records are in the table, without those that are packed."""
        return self._txn.stat(self._db)["entries"]

    def versions(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
        """(entity, suffix, record) of every version under ``prefix``, seen by a view or not, packed
        or not; from the entity ``start`` on."""
        for key, value in _walk(self, prefix, start, self._packed_kind):
            yield key[:-SUFFIX_SIZE], key[-SUFFIX_SIZE:], value
