"""The journal: what a sync writes where syncs follow each other, instead of a commit.

A commit of LMDB writes every page on the way to a changed record, waits for the disk, writes which
pages are current, and waits again. A program that syncs after each small step waits for that every
time. So from the second sync on, the records that changed since the commit are noted, and a sync
appends them to a file beside the data file, with one wait for the disk; the commit comes later, for
all of them. A store that was not closed is opened with its journal's records in it.

The file holds batches, one behind the other, each the records of one sync. A batch names the commit
that it follows, by LMDB's number of it, and its place among those of that commit, and ends in a
digest; so what is left of earlier ones, or was not written whole, is known for what it is. With the
next commit the file begins anew. docs/FORMAT.md has the layout.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
from xxhash import xxh3_64_intdigest

from ckptfs.store.compaction import sync

if TYPE_CHECKING:
    from ckptfs.store.plain_lmdb import Cursor, Database, Transaction

log = logging.getLogger(__name__)

FILE = "journal"

#: The file grows by so much at once, filled with zeros, and up to this length: a batch then changes
#: nothing but bytes, where a longer file makes the disk's file system write down where they are.
_GROWTH = 1 << 20
SIZE_MAX = 32 << 20
#: What a disk writes at once; batches begin at multiples of it.
_STEP = 4096
#: The longest batch, with the file's next growth. Beyond that, a commit is no slower.
_BATCH_MAX = _GROWTH - (1 << 16)

_MAGIC = b"ckptfs-j"
#: Magic, the commit that it follows, its place among those of that commit, length of what follows.
_HEAD = struct.Struct("<8sQII")
_DIGEST = struct.Struct("<Q")
_BEGIN = _HEAD.size + _DIGEST.size
#: Table, whether the record is there or gone, lengths of key and value.
_RECORD = struct.Struct("<BBHI")
_GONE, _THERE = 0, 1

#: A table's place among all, a key, and its value or None where the record is gone.
Change = tuple[int, bytes, bytes | None]


class JournalDamaged(Exception):
    """A batch that was written whole is not any more."""


class Recorder:
    """A transaction that notes what is changed in it: the last value of each key."""

    def __init__(self, txn: Transaction, tables: Sequence[Database]) -> None:
        self._txn = txn
        self._changed: dict[Database, dict[bytes, bytes | None]] = {db: {} for db in tables}
        self._left = _BATCH_MAX
        self.get = txn.get
        self.stat = txn.stat
        self.commit = txn.commit
        self.abort = txn.abort
        #: For reading, or by `put_all`.
        self.cursor = txn.cursor

    def _note(self, db: Database, key: bytes, value: bytes | None) -> None:
        self._left -= _RECORD.size + len(key) + len(value or b"")
        if self._left >= 0:
            self._changed[db][key] = value
        else:
            self._forget()

    def _forget(self) -> None:
        for changed in self._changed.values():
            changed.clear()

    def put(self, key: bytes, value: bytes, *, overwrite: bool = True, db: Database) -> bool:
        done = self._txn.put(key, value, overwrite=overwrite, db=db)
        if done:
            self._note(db, key, value)
        return done

    def put_all(self, db: Database, cursor: Cursor, records: Iterable[tuple[bytes, bytes]]) -> None:
        found = list(records)
        cursor.putmulti(found)
        for key, value in found:
            self._note(db, key, value)

    def replace(self, key: bytes, value: bytes, *, db: Database) -> bytes | None:
        replaced = self._txn.replace(key, value, db=db)
        self._note(db, key, value)
        return replaced

    def pop(self, key: bytes, *, db: Database) -> bytes | None:
        popped = self._txn.pop(key, db=db)
        if popped is not None:
            self._note(db, key, None)
        return popped

    def delete(self, key: bytes, *, db: Database) -> bool:
        found = self._txn.delete(key, db=db)
        if found:
            self._note(db, key, None)
        return found

    def take(self) -> list[Change] | None:
        """What changed since this was last asked, or None if that was too much to note."""
        if self._left < 0:
            return None
        changes = [
            (number, key, value)
            for number, changed in enumerate(self._changed.values())
            for key, value in changed.items()
        ]
        self._forget()
        self._left = _BATCH_MAX
        return changes


class Journal:
    """The journal of one open store."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._fd = -1
        self._buffer: mmap.mmap
        #: Set when a batch could not be written: from then on there are commits alone.
        self._failed = False
        self._recorder: Recorder | None = None
        #: Whether a sync came since the last commit: another one may follow.
        self.wanted = False
        self._base = -1
        #: Batches since the commit, where they end, and how far the file was filled.
        self._count = self._end = self._size = 0

    def want(self) -> None:
        """A sync came: what changes from the next commit on is noted."""
        self.wanted = not self._failed

    def begin(
        self, txn: Transaction, tables: Sequence[Database], env: lmdb.Environment
    ) -> Transaction:
        """The transaction, which follows a commit, to write by from here on."""
        self._recorder = None
        if self.wanted:
            self.wanted = False
            self._recorder = Recorder(txn, tables)
            self._follow(int(env.info()["last_txnid"]))
        return self._recorder or txn

    def _follow(self, base: int) -> None:
        if base != self._base:
            self._base, self._count, self._end = base, 0, 0

    def append(self) -> bool:
        """Make durable what changed since the last time. False if only a commit can do that."""
        changes = self._recorder.take() if self._recorder is not None else None
        if changes is None:
            return False
        if not changes:
            return True
        try:
            return self._add(changes)
        except OSError as error:
            log.warning("%s: %s; every sync is a commit from here on", self._path, error)
            self._failed = True
            return False

    def _add(self, changes: Iterable[Change]) -> bool:
        if self._fd < 0:
            self._open()
        length = _pack(self._buffer, self._base, self._count, changes)
        end = self._end + length
        if end > SIZE_MAX:
            return False
        if end > self._size:
            self._grow()
        self._write(self._buffer, length, self._end)
        self.wanted = True
        self._count += 1
        self._end = end
        return True

    def _write(self, source: mmap.mmap, length: int, offset: int) -> None:
        with memoryview(source) as whole, whole[:length] as part:
            if os.pwrite(self._fd, part, offset) != length:
                raise OSError(errno.EIO, "only a part was written")

    def _grow(self) -> None:
        with mmap.mmap(-1, _GROWTH) as zeros:
            self._write(zeros, _GROWTH, self._size)
        self._size += _GROWTH

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DSYNC
        # Of the disk's cache, where it has to be anyway, no copy is needed.
        try:
            self._fd = os.open(self._path, flags | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._fd = os.open(self._path, flags, 0o600)
        # Begins with a page, as writing without a copy needs it.
        self._buffer = mmap.mmap(-1, _BATCH_MAX + 2 * _STEP)
        self._size = 0
        sync(self._path.parent)

    def discard(self) -> None:
        """After a commit: there is nothing in it that anyone needs."""
        self._close()
        self._path.unlink(missing_ok=True)
        self.wanted = False
        self._base = -1

    def close(self, *, committed: bool) -> None:
        if committed:
            self.discard()
        else:
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._buffer.close()
        self._fd = -1


# -- batches ---------------------------------------------------------------------------------------


def _pack(buffer: mmap.mmap, base: int, count: int, changes: Iterable[Change]) -> int:
    """Write a batch to the beginning of a buffer; return how long it is, in whole steps."""
    end = _BEGIN
    for table, key, value in changes:
        kind = _GONE if value is None else _THERE
        value = value or b""
        record = _RECORD.pack(table, kind, len(key), len(value)) + key
        buffer[end : end + len(record)] = record
        end += len(record)
        buffer[end : end + len(value)] = value
        end += len(value)
    head = _HEAD.pack(_MAGIC, base, count, end - _BEGIN)
    with memoryview(buffer) as whole, whole[_BEGIN:end] as body:
        digest = _digest(head, body)
    buffer[:_BEGIN] = head + _DIGEST.pack(digest)
    padding = -end % _STEP
    buffer[end : end + padding] = bytes(padding)
    return end + padding


def _digest(head: bytes, body: bytes | memoryview) -> int:
    return xxh3_64_intdigest(body, seed=xxh3_64_intdigest(head))


def _batch_at(data: bytes, at: int, base: int) -> tuple[int, bytes] | None:
    """Place and body of the whole batch of that commit that stands there, if one does."""
    if at + _BEGIN > len(data):
        return None
    magic, follows, count, length = _HEAD.unpack_from(data, at)
    body = data[at + _BEGIN : at + _BEGIN + length]
    if magic != _MAGIC or follows != base or len(body) != length:
        return None
    (digest,) = _DIGEST.unpack_from(data, at + _HEAD.size)
    if _digest(data[at : at + _HEAD.size], body) != digest:
        return None
    return count, body


def _batches(data: bytes, base: int) -> tuple[list[bytes], int]:
    """The bodies of the batches that follow a commit, and where the last one ends."""
    found: list[bytes] = []
    at = 0
    while (batch := _batch_at(data, at, base)) is not None and batch[0] == len(found):
        found.append(batch[1])
        at += -(-(_BEGIN + len(batch[1])) // _STEP) * _STEP
    return found, at


def _require_end(data: bytes, base: int, count: int, end: int) -> None:
    """Behind the last batch nothing follows the same commit. The one that was being written when
    the power went may be missing, but a later one says that it was there once."""
    for at in range(end, len(data), _STEP):
        batch = _batch_at(data, at, base)
        if batch is not None and batch[0] >= count:
            raise JournalDamaged(f"its journal lacks a part before batch {batch[0]}")


def _changes(body: bytes) -> Iterator[Change]:
    at = 0
    while at < len(body):
        table, kind, key_length, length = _RECORD.unpack_from(body, at)
        at += _RECORD.size
        key = body[at : at + key_length]
        at += key_length
        yield table, key, body[at : at + length] if kind == _THERE else None
        at += length


# -- opening ---------------------------------------------------------------------------------------


def replay(
    directory: Path,
    env: lmdb.Environment,
    names: Sequence[bytes],
    *,
    base: int | None = None,
    partly: bool = False,
) -> int:
    """Bring what a store's journal has into the store, and commit it; return how many syncs that
    were. ``base`` is the commit to follow, if that is not the last one of the environment. With
    ``partly``, of a damaged one what comes before the damage."""
    try:
        data = (directory / FILE).read_bytes()
    except FileNotFoundError:
        return 0
    base = int(env.info()["last_txnid"]) if base is None else base
    bodies, end = _batches(data, base)
    if not partly:
        _require_end(data, base, len(bodies), end)
    if not bodies:
        return 0
    tables = [env.open_db(name) for name in names]
    try:
        with env.begin(write=True) as txn:
            for table, key, value in chain.from_iterable(map(_changes, bodies)):
                if value is None:
                    txn.delete(key, db=tables[table])
                else:
                    txn.put(key, value, db=tables[table])
    except (struct.error, LookupError) as error:
        raise JournalDamaged("its journal has records that make no sense") from error
    log.info("%s: %d syncs were in the journal alone", directory, len(bodies))
    return len(bodies)
