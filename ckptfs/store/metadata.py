"""What the store knows besides its tree: counters, small facts by name, the ledger of the lower
directory, and the ids that come next. Knows how they are keyed, not what the values mean.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckptfs import errors
from ckptfs.model import INO_MAX, ContentId, Epoch, Ino
from ckptfs.store import format as fmt
from ckptfs.store.tables import Plain

if TYPE_CHECKING:
    from ckptfs.store.pending import Read

# -- id allocation ---------------------------------------------------------------------------------


class IdAllocator:
    """The ones that come next."""

    def __init__(self) -> None:
        self.ino = 1
        self.content = 1
        self.epoch = 1
        self.slot = 0

    def next_ids(self) -> tuple[Ino, ContentId, Epoch]:
        """The inode, the content and the epoch that come next."""
        return Ino(self.ino), ContentId(self.content), Epoch(self.epoch)

    def skip(self, ino: int, content: int) -> None:
        """Give out no number up to these."""
        self.ino = max(self.ino, ino + 1)
        self.content = max(self.content, content + 1)

    def new_ino(self) -> Ino:
        ino = self.ino
        if ino > INO_MAX:
            raise OSError(errno.ENOSPC, "the store has no inode numbers left")
        self.ino = ino + 1
        return Ino(ino)

    def new_content(self) -> ContentId:
        content = self.content
        self.content = content + 1
        return ContentId(content)

    def new_epoch(self) -> Epoch:
        self.require_epoch()
        epoch = self.epoch
        self.epoch = epoch + 1
        return Epoch(epoch)

    def require_epoch(self) -> None:
        """Refuse what could not go on in another epoch."""
        if self.epoch > fmt.EPOCH_MAX:
            raise OSError(errno.ENOSPC, "the store has no epoch numbers left")


# -- the table `meta` ------------------------------------------------------------------------------


class Counters:
    """The counters of `meta`. One that was damaged on disk is refused by name."""

    def __init__(self, table: Plain, path: Path) -> None:
        self._table = table
        self._path = path
        #: As they are in the table.
        self._saved: dict[bytes, int] = {}

    def get(self, name: bytes) -> int:
        value = self._table.get(name)
        if value is None:
            raise self._refusal(f"its {name.decode()} record is missing")
        try:
            return fmt.unpack_number(value)
        except fmt.CorruptRecord as error:
            raise self._refusal(f"its {name.decode()} record is damaged") from error

    def require_known_names(self) -> None:
        """A name in which a bit flipped hides a counter, or the key of the journal."""
        for name, _ in self._table.walk():
            if name not in fmt.META_NAMES:
                raise self._refusal(f"its meta table has the unknown record {name!r}")

    def require_above(self, name: bytes, used: int) -> None:
        """Refuse a counter whose number was given out already."""
        following = self.get(name)
        if following <= used:
            raise self._refusal(
                f"its numbers make no sense: {name.decode()} is {following}, and {used} is in use"
            )

    def is_dirty(self, name: bytes, number: int) -> bool:
        """Whether another number was put into the table."""
        return self._saved.get(name, number) != number

    def find(self, name: bytes) -> int:
        """One that may be absent: then it is 0."""
        return 0 if self._table.get(name) is None else self.get(name)

    def drop(self, name: bytes) -> None:
        self._table.delete(name)
        self._saved.pop(name, None)

    def put(self, name: bytes, number: int) -> None:
        """Nothing is written for a counter that stands there already."""
        if self._saved.get(name) != number:
            self._table.put(name, fmt.pack_number(number))
            self._saved[name] = number

    def _refusal(self, reason: str) -> errors.StoreCorrupt:
        return errors.StoreCorrupt(self._path, reason)


# -- the table `facts` -----------------------------------------------------------------------------

#: Metadata that are numbers, and have a digest: the next checkpoint, author and fork, and the last
#: epoch that was compressed.
NEXT_CHECKPOINT = b"next_checkpoint"
NEXT_AUTHOR = b"next_author"
COMPRESSED = b"compressed"
REPACKED = b"repacked"
NEXT_FORK = b"next_fork"
COUNTERS = (NEXT_CHECKPOINT, NEXT_AUTHOR, COMPRESSED, REPACKED, NEXT_FORK)


AGREED = b"sync/agreed"


class Agreed(NamedTuple):
    """The epoch that agreed with the lower directory (ckptfs.sync.agreed), whole or only up to some
    moment in it (``within``); and the next inode number at that time."""

    epoch: Epoch
    within: bool
    next_ino: Ino


class Metadata:
    """Small facts about the workspace, by name. Those of a fork have its ``prefix`` before them,
    which callers do not see."""

    def __init__(self, table: Plain, note: Callable[[], None], prefix: bytes = b"") -> None:
        self._table = table
        self._note = note
        self._prefix = prefix

    def of_line(self, line: int) -> Metadata:
        """The facts that belong to one line of work."""
        return Metadata(self._table, self._note, fmt.line_facts(line)) if line else self

    def get(self, name: bytes) -> bytes | None:
        return self._table.get(self._prefix + name)

    def put(self, name: bytes, value: bytes) -> None:
        self._note()
        self._table.put(self._prefix + name, value)

    def delete(self, name: bytes) -> bool:
        self._note()
        return self._table.delete(self._prefix + name)

    def clear(self) -> None:
        """Forget the facts of a fork."""
        if self._prefix:
            for name, _ in list(self.walk()):
                self.delete(name)

    def number(self, name: bytes, default: int) -> int:
        """A counter; `CorruptRecord` if it was damaged on disk."""
        value = self.get(name)
        return default if value is None else fmt.unpack_number(value)

    def put_number(self, name: bytes, number: int) -> None:
        self.put(name, fmt.pack_number(number))

    def agreed(self) -> Agreed | None:
        """None also if the record is damaged: then nothing is known."""
        value = self._table.get(AGREED)
        if value is None:
            return None
        half = len(value) // 2
        try:
            epoch, next_ino = fmt.unpack_number(value[:half]), fmt.unpack_number(value[half:])
        except fmt.CorruptRecord:
            return None
        return Agreed(Epoch(epoch >> 1), bool(epoch & 1), Ino(next_ino))

    def put_agreed(self, agreed: Agreed | None) -> None:
        if agreed is None:
            self.delete(AGREED)
        else:
            epoch = agreed.epoch << 1 | agreed.within
            self.put(AGREED, fmt.pack_number(epoch) + fmt.pack_number(agreed.next_ino))

    def require_counters(self, store: Path) -> None:
        for name in COUNTERS:
            try:
                self.number(name, 0)
            except fmt.CorruptRecord as error:
                raise errors.StoreCorrupt(
                    store, f"its {name.decode()} record is damaged"
                ) from error

    def walk(self, prefix: bytes = b"", after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Those whose name begins with ``prefix``, in order, from the first behind ``after``."""
        length = len(self._prefix)
        found = self._table.walk(self._prefix + prefix, self._prefix + after if after else b"")
        return found if not length else ((name[length:], value) for name, value in found)

    def last(self, prefix: bytes) -> bytes | None:
        """The last name that begins with ``prefix``; ASCII follows it."""
        wanted = self._prefix + prefix
        name = self._table.floor(wanted + b"\xff")
        found = name is not None and name.startswith(wanted)
        return name[len(self._prefix) :] if found and name is not None else None


# -- the table `below` -----------------------------------------------------------------------------

#: How many records of the ledger wait in memory before they go into the transaction.
_WAITING_MAX = 4096


class LedgerTable:
    """The ledger's table: what stood under a name in the lower directory, by directory and name.

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
