"""What the store tells a reader of the committed snapshot.

LMDB never changes a page of its last commit until the next one, so the compiled server reads those
pages without a transaction (`fuse/server/snapshot.c`). It has to know which epochs the head saw,
and what has changed since. It also knows the digest of every page of the last commit, and the store
asks it before LMDB walks to one (`fuse/server/guard.c`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


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
