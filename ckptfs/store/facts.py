"""Plain tables of the workspace, as opposed to those of its tree: facts, and the ledger of the
directory below. Knows how they are keyed, not what the values mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ckptfs.model import Ino
from ckptfs.store import format as fmt
from ckptfs.store.tables import Plain


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

    def walk(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return self._table.walk(prefix)


class Below:
    """The ledger's table: what stood under a name in the directory below, by directory and name."""

    def __init__(self, table: Plain, note: Callable[[], None]) -> None:
        self._table = table
        self._note = note

    def get(self, directory: Ino, name: bytes) -> bytes | None:
        return self._table.get(fmt.pack_u64(directory) + name)

    def put(self, directory: Ino, name: bytes, value: bytes) -> None:
        self._note()
        self._table.put(fmt.pack_u64(directory) + name, value)

    def delete(self, directory: Ino, name: bytes) -> None:
        self._note()
        self._table.delete(fmt.pack_u64(directory) + name)

    def children(self, directory: Ino) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._table.walk(fmt.pack_u64(directory)):
            yield key[8:], value
