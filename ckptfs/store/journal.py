"""The journal: what a sync writes where syncs follow each other, instead of a commit.

A commit of LMDB writes every page on the way to a changed record, waits for the disk, writes which
pages are current, and waits again. A program that syncs after each small step waits for that every
time. So from the second sync on, the records that changed since the commit are noted, and a sync
appends them to a file beside the data file, with one wait for the disk; the commit comes later, for
all of them. A store that was not closed is opened with its journal's records in it.

The file holds batches, one behind the other (`ckptfs.store.journal_format`). With the next commit
it begins anew.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from ckptfs.store.aio import open_direct
from ckptfs.store.compaction import sync
from ckptfs.store.journal_format import FILE, RECORD, STEP, Delta, JournalEntry, new_key, pack
from ckptfs.store.transaction import put_all

if TYPE_CHECKING:
    from ckptfs.store.transaction import Cursor, Database, Records

log = logging.getLogger(__name__)

#: The file grows by so much at once, filled with zeros, and up to this length: a batch then changes
#: nothing but bytes, where a longer file makes the disk's file system write down where they are.
_GROWTH = 1 << 20
SIZE_MAX = 32 << 20
#: The longest batch, with the file's next growth. Beyond that, a commit is no slower.
_BATCH_MAX = _GROWTH - (1 << 16)
#: What a delta takes besides its bytes, at most: the key of a record, and where the part begins.
_DELTA_OVERHEAD = 1 << 9


class Recorder:
    """A transaction that notes what is changed in it: the last value of each key."""

    def __init__(self, txn: Records, tables: Sequence[Database]) -> None:
        self._txn = txn
        self._places = {db: place for place, db in enumerate(tables)}
        self._changed: dict[tuple[Database, bytes], bytes | Delta | None] = {}
        self._left = _BATCH_MAX
        self.get = txn.get
        self.stat = txn.stat
        #: For reading, or by `put_all`.
        self.cursor = txn.cursor

    def note(self, db: Database, key: bytes, value: bytes | None) -> None:
        """The next sync is to write down that a key has this value, or none any more."""
        if self._left < 0:
            return
        self._left -= RECORD.size + len(key) + len(value or b"")
        if self._left >= 0:
            self._changed[db, key] = value
        else:
            self._changed.clear()

    def put(self, key: bytes, value: bytes, *, overwrite: bool = True, db: Database) -> bool:
        done = self._txn.put(key, value, overwrite=overwrite, db=db)
        if done:
            self.note(db, key, value)
        return done

    def put_all(self, db: Database, cursor: Cursor, records: Iterable[tuple[bytes, bytes]]) -> None:
        found = list(records)
        put_all(self._txn, db, cursor, found)
        for key, value in found:
            self.note(db, key, value)

    def note_delta(self, db: Database, key: bytes, delta: Delta) -> None:
        """Of a value that was just put, note only what differs from another. The whole value stays
        noted where more differs, or where the other was written since the last sync."""
        changed = self._changed
        value = changed.get((db, key))
        if not isinstance(value, bytes) or (db, delta.other) in changed:
            return
        if delta.makes(value, self._txn.get(delta.other, db=db)):
            changed[db, key] = delta
            self._left += len(value) - len(delta.part) - _DELTA_OVERHEAD

    def replace(self, key: bytes, value: bytes, *, db: Database) -> bytes | None:
        replaced = self._txn.replace(key, value, db=db)
        self.note(db, key, value)
        return replaced

    def pop(self, key: bytes, *, db: Database) -> bytes | None:
        popped = self._txn.pop(key, db=db)
        if popped is not None:
            self.note(db, key, None)
        return popped

    def delete(self, key: bytes, *, db: Database) -> bool:
        found = self._txn.delete(key, db=db)
        if found:
            self.note(db, key, None)
        return found

    def take(self) -> list[JournalEntry] | None:
        """What changed since this was last asked, or None if that was too much to note."""
        if self._left < 0:
            return None
        places = self._places
        deltas: list[JournalEntry] = []
        others: list[JournalEntry] = []
        for (db, key), value in self._changed.items():
            (deltas if isinstance(value, Delta) else others).append((places[db], key, value))
        self._changed.clear()
        self._left = _BATCH_MAX
        # What a delta refers to may be gone, or another, after the batch.
        return deltas + others


class Journal:
    """The journal of one open store."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        #: New with every life, and whenever the file is given up; the store must have it before a
        #: batch is written.
        self.key = new_key()
        self._key_is_kept = False
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

    def want(self) -> bool:
        """A sync came: what changes from the next commit on is noted. Whether that commit has to
        have the key."""
        self.wanted = not self._failed
        due = self.wanted and not self._key_is_kept
        self._key_is_kept = self._key_is_kept or due
        return due

    def begin(self, txn: Records, tables: Sequence[Database], env: lmdb.Environment) -> Records:
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

    @property
    def is_open(self) -> bool:
        """Whether what changes is noted, for a sync to write it down."""
        return self._recorder is not None

    def append(self) -> bool:
        """Make durable what changed since the last time. False if only a commit can do that."""
        if self._recorder is None:
            return False
        changes = self._recorder.take()
        if changes is not None and not changes:
            return True
        added = False
        try:
            added = changes is not None and self._add(changes)
        except OSError as error:
            self._give_up(error)
        if not added:
            self._recorder = None  # it has forgotten what only the commit has now
        return added

    def _give_up(self, error: OSError) -> None:
        log.warning("%s: %s; every sync is a commit from here on", FILE, error)
        self._failed, self.wanted = True, False

    def _add(self, changes: Iterable[JournalEntry]) -> bool:
        if self._fd < 0:
            self._open()
        length = pack(self._buffer, self.key, self._base, self._count, changes)
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
        # Of the disk's cache, where it has to be anyway, no copy is needed.
        self._fd = open_direct(self._path, os.O_RDWR | os.O_CREAT | os.O_DSYNC)
        # Begins with a page, as writing without a copy needs it.
        self._buffer = mmap.mmap(-1, _BATCH_MAX + 2 * STEP)
        self._size = 0
        sync(self._path.parent)

    def discard(self) -> None:
        """After a commit: there is nothing in it that anyone needs. Whatever may be left of it,
        it is not taken for a journal of this store."""
        self._close()
        self.key, self._key_is_kept = new_key(), False
        self.wanted = False
        self._base = -1
        self._path.unlink(missing_ok=True)

    def try_to_discard(self) -> None:
        """The same where no caller waits for the space, or for the bytes to be gone."""
        try:
            self.discard()
        except OSError as error:
            self._give_up(error)

    def close(self, *, committed: bool) -> None:
        if committed:
            self.try_to_discard()
        else:
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._buffer.close()
        self._fd = -1
