"""Batches: the records of one sync each, in the file of the journal; and what is read from it.

A batch names the commit that it follows, by LMDB's number of it, and its place among those of that
commit, and has a digest. The digest is keyed with random bytes that stand in the store itself and
are new with every opening: what is left in the file of earlier batches, in which anybody who writes
files could have written what looks like one, is known for what it is. docs/FORMAT.md has the
layout.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import lmdb
from xxhash import xxh3_64_intdigest

from ckptfs.store import format as fmt

if TYPE_CHECKING:
    from ckptfs.store.transaction import Database, Records

log = logging.getLogger(__name__)

FILE = "journal"
#: What a disk writes at once; batches begin at multiples of it.
STEP = 4096

_MAGIC = b"ckptfs-j"
#: Magic, the commit that it follows, its place among those of that commit, length of what follows.
_HEAD = struct.Struct("<8sQII")
_DIGEST = struct.Struct("<Q")
_ZEROS = bytes(STEP)
_BEGIN = _HEAD.size + _DIGEST.size
#: Table, whether the record is there or gone, lengths of key and value.
RECORD = struct.Struct("<BBHI")
_GONE, _THERE, _LIKE = 0, 1, 2
#: Of a value that is told by another: where the part begins, and how long the other's key is.
_PART = struct.Struct("<IH")


class Part(NamedTuple):
    """A value that is another's of the same table, but for a part. The other is the one that stood
    there before the batch."""

    other: bytes
    start: int
    piece: bytes

    @property
    def stop(self) -> int:
        return self.start + len(self.piece)

    def put_into(self, value: bytes) -> bytes:
        return b"".join((value[: self.start], self.piece, value[self.stop :]))

    def makes(self, value: bytes, other: bytes | None) -> bool:
        """Whether a value is the other but for the part."""
        return other is not None and self.put_into(other) == value


#: A table's place among all, a key, and its value or None where the record is gone. Those with a
#: part come first in a batch.
JournalEntry = tuple[int, bytes, bytes | Part | None]

_NO_SENSE = "its journal has records that make no sense"


class JournalDamaged(Exception):
    """A batch that was written whole is not any more."""


class Batch(NamedTuple):
    follows: int
    place: int
    body: memoryview

    @property
    def length(self) -> int:
        """In the file, in whole steps."""
        return -(-(_BEGIN + len(self.body)) // STEP) * STEP


def new_key() -> bytes:
    return os.urandom(fmt.JOURNAL_KEY)


def pack(
    buffer: mmap.mmap, key: bytes, follows: int, place: int, changes: Iterable[JournalEntry]
) -> int:
    """Write a batch to the beginning of a buffer; return how long it is, in whole steps."""
    told: list[bytes] = []
    for table, name, value in changes:
        if value is None:
            told += RECORD.pack(table, _GONE, len(name), 0), name
        elif isinstance(value, Part):
            other, start, piece = value
            length = _PART.size + len(other) + len(piece)
            told += RECORD.pack(table, _LIKE, len(name), length), name
            told += _PART.pack(start, len(other)), other, piece
        else:
            told += RECORD.pack(table, _THERE, len(name), len(value)), name, value
    body = b"".join(told)
    head = _HEAD.pack(_MAGIC, follows, place, len(body))
    digest = _DIGEST.pack(_digest(key, head, body))
    end = _BEGIN + len(body)
    padding = -end % STEP
    buffer[: end + padding] = b"".join((head, digest, body, _ZEROS[:padding]))
    return end + padding


def _digest(key: bytes, head: bytes, body: bytes | memoryview) -> int:
    return xxh3_64_intdigest(body, seed=xxh3_64_intdigest(key + head))


# -- reading ---------------------------------------------------------------------------------------


def _batch_at(data: memoryview, at: int, key: bytes) -> Batch | None:
    """The whole batch that stands there, if one does."""
    if at + _BEGIN > len(data):
        return None
    magic, follows, place, length = _HEAD.unpack_from(data, at)
    body = data[at + _BEGIN : at + _BEGIN + length]
    if magic != _MAGIC or len(body) != length:
        return None
    (digest,) = _DIGEST.unpack_from(data, at + _HEAD.size)
    if _digest(key, bytes(data[at : at + _HEAD.size]), body) != digest:
        return None
    return Batch(follows, place, body)


def _batches(data: memoryview, key: bytes, follows: int) -> tuple[list[Batch], str]:
    """The batches that follow a commit, and what is wrong behind them, if anything is.

    The one that was being written when the power went may not be whole. But a later one says that
    it was there once; and one that follows a later commit, that the commit was."""
    found: list[Batch] = []
    at = 0
    while (batch := _batch_at(data, at, key)) and batch[:2] == (follows, len(found)):
        found.append(batch)
        at += batch.length
    if batch is not None and not found and batch.follows > follows:
        return found, "its data file is older than its journal"
    for further in range(at, len(data), STEP):
        batch = _batch_at(data, further, key)
        if batch is not None and batch.follows == follows and batch.place >= len(found):
            return found, f"its journal lacks a part before batch {batch.place}"
    return found, ""


def _changes(body: memoryview, tables: int) -> Iterator[JournalEntry]:
    at = 0
    while at < len(body):
        table, kind, name_length, length = RECORD.unpack_from(body, at)
        at += RECORD.size
        name, value = body[at : at + name_length], body[at + name_length :][:length]
        if table >= tables or len(value) != length or not name:
            raise JournalDamaged(_NO_SENSE)
        yield table, bytes(name), _value(kind, bytes(value))
        at += name_length + length


def _value(kind: int, told: bytes) -> bytes | Part | None:
    if kind == _LIKE:
        start, length = _PART.unpack_from(told)
        other = told[_PART.size :][:length]
        return Part(other, start, told[_PART.size + length :])
    if kind not in (_GONE, _THERE):
        raise JournalDamaged(_NO_SENSE)
    return told if kind == _THERE else None


def _read(
    data: memoryview, key: bytes, follows: int, tables: int
) -> tuple[list[JournalEntry], str]:
    """The changes of all batches that follow a commit, and what is wrong behind them."""
    batches, fault = _batches(data, key, follows)
    changes: list[JournalEntry] = []
    try:
        for batch in batches:
            changes += list(_changes(batch.body, tables))
    except (struct.error, JournalDamaged) as error:
        return changes, str(error)
    if batches:
        log.info("%d syncs are in the journal alone", len(batches))
    return changes, fault


def replay(
    directory: Path,
    env: lmdb.Environment,
    names: Sequence[bytes],
    *,
    follows: int | None = None,
    partly: bool = False,
) -> str:
    """Bring what a store's journal has into the store, in one commit. ``follows`` is the commit
    that it must follow, if that is not the last one of the environment.

    A damaged journal is refused; with ``partly`` what comes before the damage is taken, and the
    damage is told."""
    try:
        data = (directory / FILE).read_bytes()
    except FileNotFoundError:
        return ""
    follows = int(env.info()["last_txnid"]) if follows is None else follows
    with env.begin(write=True) as txn:
        tables = [env.open_db(name, txn=txn) for name in names]
        record = txn.get(fmt.META_JOURNAL, db=tables[names.index(fmt.META)])
        if record is None:
            return ""
        try:
            key = _key(bytes(record), partly=partly)
        except fmt.CorruptRecord as error:
            if partly:
                return error.strerror or ""
            raise JournalDamaged(error.strerror) from error
        changes, fault = _read(memoryview(data), key, follows, len(tables))
        if fault and not partly:
            raise JournalDamaged(fault)
        for table, name, value in changes:
            fault = _make(cast("Records", txn), tables[table], name, value) or fault
            if fault and not partly:
                raise JournalDamaged(fault)
    return fault


def _key(record: bytes, *, partly: bool) -> bytes:
    """The key in a record; with ``partly`` also if one bit of it flipped."""
    try:
        return fmt.unpack_journal_key(record)
    except fmt.CorruptRecord:
        whole = fmt.bit_corrected(record) if partly else None
        if whole is None:
            raise
        return fmt.unpack_journal_key(whole)


def _make(txn: Records, db: Database, name: bytes, value: bytes | Part | None) -> str:
    """Make one change; what is wrong with it, if anything is."""
    if isinstance(value, Part):
        other = txn.get(value.other, db=db)
        if other is None or len(other) < value.start:
            return "its journal tells of a record by another that is not there"
        value = value.put_into(other)
    if value is None:
        txn.delete(name, db=db)
    else:
        txn.put(name, value, db=db)
    return ""
