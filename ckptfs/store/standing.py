"""What stands: whoever reads the last commit without the store is told what it needs to know.

A commit of LMDB stays as it is until the next, so its pages can be read without a transaction, by
code that is compiled (`_standing.c`). That one has to know which epochs the head saw, and what has
changed since.
"""

from __future__ import annotations

from typing import Protocol


class Standing(Protocol):
    def stand(self, path: bytes, seen: set[bytes], first: bytes) -> object:
        """Everything is committed into this data file, and the head sees these suffixes now;
        ``first`` is its own."""

    def touch(self, entity: bytes) -> object:
        """A record is written since; the first eight bytes say of which inode, or directory."""

    def fall(self) -> object:
        """The head shows something else: nothing is known until the next commit."""

    def release(self) -> object:
        """Let go of the memory that the pages take."""

    def leave(self) -> object:
        """The data file is another from here on."""


def untouched(entity: bytes) -> None:
    """Hears of changes where nobody else wants to."""


class _Nobody:
    """Where nobody reads it."""

    touch = staticmethod(untouched)

    def stand(self, path: bytes, seen: set[bytes], first: bytes) -> None:
        pass

    def fall(self) -> None:
        pass

    def release(self) -> None:
        pass

    def leave(self) -> None:
        pass


NOBODY: Standing = _Nobody()
