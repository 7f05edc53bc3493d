"""Plain tables of the workspace, as opposed to those of its tree: facts, and the ledger of the
directory below. Knows how they are keyed, not what the values mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs import errors
from ckptfs.model import Ino
from ckptfs.store import format as fmt
from ckptfs.store.tables import Plain

if TYPE_CHECKING:
    from ckptfs.store.pending import Read

#: Facts that are numbers, and have a digest: the next checkpoint, the next author, and the last
#: epoch that was compressed.
NEXT_CHECKPOINT = b"next_checkpoint"
NEXT_AUTHOR = b"next_author"
COMPRESSED = b"compressed"
COUNTERS = (NEXT_CHECKPOINT, NEXT_AUTHOR, COMPRESSED)
#: Early stores have them as decimal digits, which are fewer than a number and its digest take.
_DIGITS_MAX = 10


def unpack_number(value: bytes) -> int:
    if value.isdigit() and len(value) <= _DIGITS_MAX:
        return int(value)
    if fmt.is_bare_counter(value):
        raise fmt.CorruptRecord("a counter is damaged")
    return fmt.unpack_counter(value)


class Facts:
    """Small facts about the workspace, by name."""

    def __init__(self, table: Plain, note: Callable[[], None]) -> None:
        self._table = table
        self._note = note

    def get(self, name: bytes) -> bytes | None:
        return self._table.get(name)

    def put(self, name: bytes, value: bytes) -> None:
        self._note()
        self._table.put(name, value)

    def delete(self, name: bytes) -> bool:
        self._note()
        return self._table.delete(name)

    def number(self, name: bytes, default: int) -> int:
        """A counter; `CorruptRecord` if it was damaged on disk."""
        value = self._table.get(name)
        return default if value is None else unpack_number(value)

    def put_number(self, name: bytes, number: int) -> None:
        self.put(name, fmt.pack_counter(number))

    def require_counters(self, store: Path) -> None:
        for name in COUNTERS:
            try:
                self.number(name, 0)
            except fmt.CorruptRecord as error:
                raise errors.StoreCorrupt(
                    store, f"its {name.decode()} record is damaged"
                ) from error

    def walk(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return self._table.walk(prefix)

    def last(self, prefix: bytes) -> bytes | None:
        """The last name that begins with ``prefix``; ASCII follows it."""
        name = self._table.floor(prefix + b"\xff")
        return name if name is not None and name.startswith(prefix) else None


#: How many records of the ledger wait in memory before they go into the transaction.
_WAITING_MAX = 4096


class Below:
    """The ledger's table: what stood under a name in the directory below, by directory and name.

    A first scan writes a record for every file, so they go into the transaction together, in the
    order of their keys; the store sees to it before a commit."""

    def __init__(self, table: Plain, note: Callable[[], None]) -> None:
        self._table = table
        self._note = note
        self._waiting: dict[bytes, bytes] = {}

    def get(self, directory: Ino, name: bytes) -> bytes | None:
        key = fmt.pack_u64(directory) + name
        waiting = self._waiting.get(key)
        return self._table.get(key) if waiting is None else waiting

    def put(self, directory: Ino, name: bytes, value: bytes) -> None:
        self._note()
        self._waiting[fmt.pack_u64(directory) + name] = value
        if len(self._waiting) >= _WAITING_MAX:
            self.flush()

    def delete(self, directory: Ino, name: bytes) -> None:
        self._note()
        key = fmt.pack_u64(directory) + name
        self._waiting.pop(key, None)
        self._table.delete(key)

    def holds(self, read: Read) -> bool:
        return read.table == "below" and any(map(read.asks_for, self._waiting))

    def flush(self) -> None:
        """Put everything that waits into the transaction."""
        if self._waiting:
            self._table.put_all(sorted(self._waiting.items()))
            self._waiting.clear()

    def children(self, directory: Ino) -> Iterator[tuple[bytes, bytes]]:
        self.flush()
        for key, value in self._table.walk(fmt.pack_u64(directory)):
            yield key[8:], value
