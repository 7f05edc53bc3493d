"""The part of py-lmdb that the tables use, as it behaves here.

Its own types allow for memoryviews into the map; transactions are opened without them, so that no
LMDB memory ever leaves the store.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from lmdb import _Database as Database
else:
    Database = object

__all__ = [
    "ChangedKeys",
    "Cursor",
    "Database",
    "Failed",
    "Noting",
    "Records",
    "Transaction",
    "put_all",
]


class Cursor(Protocol):
    def first(self) -> bool: ...
    def last(self) -> bool: ...
    def set_range(self, key: bytes) -> bool: ...
    def next(self) -> bool: ...
    def prev(self) -> bool: ...
    def key(self) -> bytes: ...
    def item(self) -> tuple[bytes, bytes]: ...
    def putmulti(self, items: Iterable[tuple[bytes, bytes]]) -> tuple[int, int]: ...
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...


class Records(Protocol):
    """What the tables need of a transaction."""

    def get(self, key: bytes, *, db: Database) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, *, overwrite: bool = True, db: Database) -> bool: ...
    def replace(self, key: bytes, value: bytes, *, db: Database) -> bytes | None: ...
    def pop(self, key: bytes, *, db: Database) -> bytes | None: ...
    def delete(self, key: bytes, *, db: Database) -> bool: ...
    def stat(self, db: Database) -> dict[str, int]: ...
    def cursor(self, db: Database) -> Cursor: ...


class Transaction(Records, Protocol):
    def commit(self) -> None: ...
    def abort(self) -> None: ...


class Failed:
    """A transaction, and a cursor, of a store that can no longer be used: every call is EIO."""

    def __init__(self, failure: Exception) -> None:
        self._reason = str(failure)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, self._reason)

    get = put = replace = pop = delete = stat = _refuse
    first = last = set_range = next = prev = key = item = putmulti = __iter__ = _refuse

    def cursor(self, db: Database) -> Failed:
        return self

    def close(self) -> None: ...


# -- which keys change -----------------------------------------------------------------------------

#: Of a key in a bundle: its table, and how long it is.
_KEY = struct.Struct("<BH")
#: So many keys are noted each once; then they become a bundle, which takes a quarter of the memory.
_BUNDLE = 4096


class ChangedKeys:
    """The keys that were written since this was last asked for them, in all tables."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._recent: set[tuple[int, bytes]] = set()
        self._bundles: list[bytes] = []
        self._size = 0
        #: How many are in bundles; a key that is written again and again may count twice.
        self._count = 0
        self.is_wanted = True

    def note(self, table: int, key: bytes) -> None:
        if not self.is_wanted:
            return
        self._recent.add((table, key))
        if len(self._recent) >= _BUNDLE:
            self._bundle()

    def _bundle(self) -> None:
        parts = (_KEY.pack(table, len(key)) + key for table, key in self._recent)
        bundle = b"".join(parts)
        self._count += len(self._recent)
        self._recent.clear()
        self._size += len(bundle)
        if not self.are_too_many:
            self._bundles.append(bundle)
        else:
            self._bundles.clear()

    @property
    def are_too_many(self) -> bool:
        """Whether more changed than could be noted: they are not all known."""
        return self._size > self._most_bytes

    def __len__(self) -> int:
        return self._count + len(self._recent)

    def stop(self) -> None:
        """Note nothing any more."""
        self.is_wanted = False
        self._recent.clear()
        self._bundles.clear()

    def take(self) -> list[tuple[int, bytes]]:
        """Some of them, in order; none if there are no more."""
        if not self._bundles:
            taken = sorted(self._recent)
            self._recent.clear()
            return taken
        bundle = self._bundles.pop()
        self._size -= len(bundle)
        taken = sorted(_unbundled(bundle))
        self._count -= len(taken)
        return taken


def _unbundled(bundle: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(bundle):
        table, length = _KEY.unpack_from(bundle, at)
        at += _KEY.size + length
        yield table, bundle[at - length : at]


class Noting:
    """A transaction in which every key that is written is noted."""

    def __init__(self, txn: Records, tables: Sequence[Database], changed: ChangedKeys) -> None:
        self._txn = txn
        self._places = {db: place for place, db in enumerate(tables)}
        self._changed = changed
        self.get = txn.get
        self.stat = txn.stat
        #: For reading, or by `put_all`.
        self.cursor = txn.cursor

    def put(self, key: bytes, value: bytes, *, overwrite: bool = True, db: Database) -> bool:
        self._changed.note(self._places[db], key)
        return self._txn.put(key, value, overwrite=overwrite, db=db)

    def put_all(self, db: Database, cursor: Cursor, records: Iterable[tuple[bytes, bytes]]) -> None:
        found = list(records)
        for key, _ in found:
            self._changed.note(self._places[db], key)
        cursor.putmulti(found)

    def replace(self, key: bytes, value: bytes, *, db: Database) -> bytes | None:
        self._changed.note(self._places[db], key)
        return self._txn.replace(key, value, db=db)

    def pop(self, key: bytes, *, db: Database) -> bytes | None:
        self._changed.note(self._places[db], key)
        return self._txn.pop(key, db=db)

    def delete(self, key: bytes, *, db: Database) -> bool:
        self._changed.note(self._places[db], key)
        return self._txn.delete(key, db=db)


def put_all(
    txn: Records, db: Database, cursor: Cursor, records: Iterable[tuple[bytes, bytes]]
) -> None:
    """Put records through a cursor of the transaction."""
    if isinstance(txn, Noting):
        txn.put_all(db, cursor, records)
    else:
        cursor.putmulti(records)
