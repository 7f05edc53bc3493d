"""Pending state: what was acknowledged and is not in the write transaction yet.

A change is answered before all of its records are in the tables, since most records change again a
moment later. Whatever waits, waits in a buffer that is registered here. `Pending.flush` puts all of
it into the transaction; no commit happens without it. Where syncs follow each other, `Pending.log`
has the journal write down what a buffer holds, and the buffer keeps it.

Invariant: a table is read after a look into the buffer that may hold a newer record, or after a
flush. In tests every read is checked for that (`check_reads`); production pays nothing for it.

docs/ARCHITECTURE.md, "Where state waits", has the way of a write through all buffers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptfs.model import MAIN_LINE
from ckptfs.store.format import VERSIONED, suffix_of
from ckptfs.store.tables import Versioned

if TYPE_CHECKING:
    from ckptfs.model import Epoch
    from ckptfs.store.epochs import View
    from ckptfs.store.tables import ByEpoch, Changes, Plain

PARTIAL_BLOCKS = "partial blocks"
NEW_ENTRIES = "new entries"
DIRTY_INODES = "dirty inodes"
BORDERS = "borders"
AUTHORS = "authors"
ORPHANS = "orphans"
COUNTERS = "counters"
PACKED_RECORDS = "packed records"
LEDGER = "ledger"
FREED_SLOTS = "freed slots"

#: The order of a flush. Partial blocks come first: their bytes may take slots of the heap, which
#: the counters count. The others write to tables of their own.
ORDER = (
    PARTIAL_BLOCKS,
    NEW_ENTRIES,
    DIRTY_INODES,
    BORDERS,
    AUTHORS,
    ORPHANS,
    COUNTERS,
    PACKED_RECORDS,
    LEDGER,
    FREED_SLOTS,
)

#: Set in the environment of the tests.
CHECK_READS = "CKPTFS_CHECK_PENDING"


class Read(NamedTuple):
    """What is read from a table: one key, or all that begin with a prefix, from ``start`` on. In a
    versioned table the key is the entity, of the epochs with these suffixes; None: of any."""

    table: str
    prefix: bytes = b""
    exact: bool = False
    suffixes: Container[bytes] | None = None
    start: bytes = b""

    def asks_for(self, key: bytes, suffix: bytes = b"") -> bool:
        if self.suffixes is not None and suffix not in self.suffixes:
            return False
        if self.exact:
            return key == self.prefix
        return key >= self.start and key.startswith(self.prefix)


class Buffer(NamedTuple):
    #: Puts everything that waits into the transaction.
    flush: Callable[[], None]
    #: Has the journal note what waits, or flushes it.
    log: Callable[[], None]
    #: Whether a record that a read asks for waits here. Asked in tests only.
    holds: Callable[[Read], bool]
    #: How much memory what waits takes, where that may be much.
    size_bytes: Callable[[], int] | None


class ReadPastBuffer(AssertionError):
    """A table was read while a buffer held a newer answer."""


class Pending:
    """The buffers of an open store, each filled by its owner and flushed here."""

    def __init__(self) -> None:
        #: By name, the buffers of each line; the store's own are of the main line.
        self._buffers: dict[str, dict[int, Buffer]] = {name: {} for name in ORDER}
        #: What a flush and a log call, in order.
        self._flushes: tuple[Callable[[], None], ...] = ()
        self._logs: tuple[Callable[[], None], ...] = ()
        self._table_flushes: tuple[Callable[[], None], ...] = ()
        self._sizes: tuple[Callable[[], int], ...] = ()

    def register(
        self,
        name: str,
        flush: Callable[[], None],
        *,
        log: Callable[[], None] | None = None,
        holds: Callable[[Read], bool] = lambda read: False,
        size_bytes: Callable[[], int] | None = None,
        line: int = MAIN_LINE,
    ) -> None:
        """Own a line's buffer from here on, in place of an earlier one of that name."""
        if name not in self._buffers:
            raise ValueError(f"the buffer {name!r} has no place in the order")
        self._buffers[name][line] = Buffer(flush, log or flush, holds, size_bytes)
        self._order()

    def forget(self, line: int) -> None:
        """A line is no more; its buffers are empty."""
        for buffers in self._buffers.values():
            buffers.pop(line, None)
        self._order()

    def _order(self) -> None:
        every = [buffer for buffers in self._buffers.values() for buffer in buffers.values()]
        self._flushes = tuple(buffer.flush for buffer in every)
        self._logs = tuple(buffer.log for buffer in every)
        self._sizes = tuple(buffer.size_bytes for buffer in every if buffer.size_bytes)
        packed = self._buffers[PACKED_RECORDS].values()
        self._table_flushes = tuple(buffer.flush for buffer in every if buffer not in packed)

    def size_bytes(self) -> int:
        """How much memory what waits takes, in all lines."""
        return sum([size_bytes() for size_bytes in self._sizes])

    def flush(self) -> None:
        """Put every acknowledged change into the transaction."""
        for flush in self._flushes:
            flush()

    def flush_tables(self) -> None:
        """The same but for packed records, which the tables find where they wait: to compress them
        takes long, and only a commit needs it."""
        for flush in self._table_flushes:
            flush()

    def log(self) -> None:
        """Have the journal note what waits, so that it can go on waiting; flush the rest."""
        for log in self._logs:
            log()

    def require_clean(self, read: Read) -> None:
        """Refuse to read a table past a buffer that holds the answer."""
        for name, buffers in self._buffers.items():
            if any(buffer.holds(read) for buffer in buffers.values()):
                raise ReadPastBuffer(f"{read} was read past the buffer {name!r}")


# -- checking reads --------------------------------------------------------------------------------


def is_checked() -> bool:
    return bool(os.environ.get(CHECK_READS))


def check_reads(
    pending: Pending,
    tables: Mapping[bytes, Plain | Versioned],
    authors: ByEpoch,
    changes: Changes,
) -> None:
    """Have every read of these tables checked. `has_row` may always be asked."""
    for name, table in tables.items():
        if isinstance(table, Versioned):
            _check_versioned(pending, name.decode(), table)
        else:
            _check_plain(pending, name.decode(), table)
    _check_plain(pending, "authors", authors)

    def of_changes(epoch: Epoch, kind: bytes = b"", prefix: bytes = b"") -> list[Read]:
        kinds = [kind] if kind else list(VERSIONED)
        suffixes = {suffix_of(epoch)}
        return [Read(VERSIONED[k].decode(), prefix, suffixes=suffixes) for k in kinds]

    _check(pending, changes, "walk", of_changes)


def _check_versioned(pending: Pending, name: str, table: Versioned) -> None:
    def get(view: View, entity: bytes) -> list[Read]:
        return [Read(name, entity, True, view.seen)]

    def version(view: View, entity: bytes) -> list[Read]:
        return get(view, entity)

    def own(view: View, entity: bytes) -> list[Read]:
        return [Read(name, entity, True, {view.suffix})]

    def inherited(view: View, entity: bytes) -> list[Read]:
        return [Read(name, entity, True, view.inherited)]

    def drops(epoch: Epoch, entity: bytes) -> list[Read]:
        return [Read(name, entity, True, {suffix_of(epoch)})]

    def walk(view: View, prefix: bytes, start: bytes = b"") -> list[Read]:
        return [Read(name, prefix, suffixes=view.seen, start=start)]

    def versions(prefix: bytes, start: bytes = b"") -> list[Read]:
        return [Read(name, prefix, start=start)]

    for read in (get, version, own, inherited, drops, walk, versions):
        _check(pending, table, read.__name__, read)


def _check_plain(pending: Pending, name: str, table: Plain | ByEpoch) -> None:
    def get(key: bytes) -> list[Read]:
        return [Read(name, key, True)]

    def walk(prefix: bytes = b"", after: bytes = b"") -> list[Read]:
        return [Read(name, prefix, start=after)]

    for read in (get, walk):
        if hasattr(table, read.__name__):
            _check(pending, table, read.__name__, read)


def _check(pending: Pending, table: object, name: str, reads: Callable[..., list[Read]]) -> None:
    """Put a check in front of a method of one table."""
    method = getattr(table, name)

    def checked(*args: Any, **kwargs: Any) -> Any:
        for read in reads(*args, **kwargs):
            pending.require_clean(read)
        return method(*args, **kwargs)

    setattr(table, name, checked)
