"""What the store tells a reader of the committed snapshot.

LMDB never changes a page of its last commit until the next one, so the compiled server reads those
pages without a transaction (`fuse/server/snapshot.c`). It has to know which epochs the head saw,
and what has changed since. It also knows the digest of every page of the last commit, and the store
asks it before LMDB walks to one (`fuse/server/guard.c`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ckptfs.model import MAIN_LINE

if TYPE_CHECKING:
    from ckptfs.store.epochs import View


class SnapshotReader(Protocol):
    def refresh(self, path: bytes, seen: set[bytes], first: bytes) -> object:
        """Everything is committed into this data file, and the head sees these suffixes now;
        ``first`` is its own."""

    def guard(
        self,
        tables: tuple[bytes, ...],
        error: type[Exception],
        damaged: Callable[[], object],
    ) -> object:
        """From here on `require` knows these tables by their places. It raises ``error``, and calls
        ``damaged`` before it does so of what was to be changed."""

    def committed(self, path: bytes) -> bool:
        """A commit was made into this data file. False if it was built on a damaged page."""

    def require(self, table: int, key: bytes, prefix: bytes, is_write: bool) -> object:
        """Refuse to go where LMDB would meet a page that is not what was committed: on the way to a
        key, and to those behind it that begin with ``prefix``."""

    def require_some(self, table: int, key: bytes, prefix: bytes) -> bytes | None:
        """The same for a walk, which has to ask again once it comes to the key that is returned.
        None: that was all."""

    def require_before(self, table: int, key: bytes) -> object:
        """The same for a key, and the one before it."""

    def require_all(self, table: int, records: list[tuple[bytes, bytes]]) -> object:
        """The same for many that are to be changed."""

    def free_is_whole(self) -> bool:
        """Whether the lists of free pages are what was committed: LMDB writes to those pages."""

    def prepare(self, path: bytes | None, budget_ns: int) -> bool:
        """Look at the pages of the file that is to take the data file's place, for so long. True if
        all are known; then again after each commit into it. Without a path: it is not to any
        more."""

    def exchange(self, path: bytes) -> object:
        """The file that was prepared is the data file from here on, at this path."""

    def touch(self, entity: bytes) -> object:
        """A record is written since; the first eight bytes say of which inode, or directory."""

    def invalidate(self) -> object:
        """The head shows something else: nothing is known until the next commit."""

    def release(self) -> object:
        """Let go of the memory that the pages take."""

    def detach(self) -> object:
        """The data file is another from here on."""


def untouched(entity: bytes) -> None:
    """Takes changes where there is no reader."""


def _unguarded(table: int, key: bytes, prefix: bytes, is_write: bool) -> None:
    """Where no digests are known."""


def _some_unguarded(table: int, key: bytes, prefix: bytes) -> None:
    """The same for a walk."""


def _before_unguarded(table: int, key: bytes) -> None:
    """The same for a key and the one before it."""


def _all_unguarded(table: int, records: list[tuple[bytes, bytes]]) -> None:
    """The same for many."""


class _NoReader:
    """Where nothing reads the snapshot."""

    touch = staticmethod(untouched)
    require = staticmethod(_unguarded)
    require_some = staticmethod(_some_unguarded)
    require_before = staticmethod(_before_unguarded)
    require_all = staticmethod(_all_unguarded)

    def guard(
        self, tables: tuple[bytes, ...], error: type[Exception], damaged: Callable[[], object]
    ) -> None:
        pass

    def committed(self, path: bytes) -> bool:
        return True

    def free_is_whole(self) -> bool:
        return True

    def prepare(self, path: bytes | None, budget_ns: int) -> bool:
        return True

    def exchange(self, path: bytes) -> None:
        pass

    def refresh(self, path: bytes, seen: set[bytes], first: bytes) -> None:
        pass

    def invalidate(self) -> None:
        pass

    def release(self) -> None:
        pass

    def detach(self) -> None:
        pass


NO_READER: SnapshotReader = _NoReader()


class SnapshotReaders:
    """The readers of a store's lines. That of the main line has the pages verified, too."""

    def __init__(self) -> None:
        #: That of the main line; a line that is not here has none.
        self.main = NO_READER
        self._by_line: dict[int, SnapshotReader] = {}
        #: By line, the suffix of its head as of the last commit.
        self._suffixes: dict[int, bytes] = {}

    def put(self, line: int, reader: SnapshotReader) -> None:
        """Let a reader follow a line in place of the one before; NO_READER ends that."""
        self._by_line.pop(line, NO_READER).detach()
        self._suffixes.pop(line, None)
        if reader is not NO_READER:
            self._by_line[line] = reader
        if line == MAIN_LINE:
            self.main = reader

    def lines(self) -> list[int]:
        """Those that have one."""
        return list(self._by_line)

    def refresh(self, line: int, head: View, path: bytes) -> None:
        """Everything is committed into this data file, and this is the head of a line."""
        head.lead()
        self._suffixes[line] = head.suffix
        self._by_line[line].refresh(path, head.line.suffixes, head.suffix)

    def goes_on(self, line: int, head: View) -> None:
        """A line has another head. What descends from that of the last commit differs from it only
        by what was written since."""
        if self._suffixes.get(line, b"") not in head.seen:
            self.invalidate(line)

    def invalidate(self, line: int) -> None:
        self._by_line.get(line, NO_READER).invalidate()

    def invalidate_all(self) -> None:
        for reader in self._by_line.values():
            reader.invalidate()

    def exchange(self, path: bytes) -> None:
        """The file that was prepared is the data file from here on."""
        self.main.exchange(path)
        for line, reader in self._by_line.items():
            if line != MAIN_LINE:
                reader.detach()

    def release(self) -> None:
        for reader in self._by_line.values():
            reader.release()

    def detach(self) -> None:
        for reader in self._by_line.values():
            reader.detach()

    def touch(self) -> Callable[[bytes], object]:
        """Takes the records that change, for all readers: which of them see the record's epoch,
        they need not know."""
        if len(self._by_line) < 2:
            return next(iter(self._by_line.values()), NO_READER).touch
        touches = [reader.touch for reader in self._by_line.values()]

        def touch(entity: bytes) -> None:
            for each in touches:
                each(entity)

        return touch
