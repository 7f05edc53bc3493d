"""The counters of a store, as the table `meta` has them, each with its digest.

Reads them with doubt: a number that was damaged on disk is refused by name. What the numbers mean
is known by `ckptfs.store.numbers` and by the store.
"""

from __future__ import annotations

from pathlib import Path

from ckptfs import errors
from ckptfs.store import format as fmt
from ckptfs.store.batches import KEY
from ckptfs.store.opening import FORMAT
from ckptfs.store.tables import Plain

NEXT_INO = b"next_ino"
NEXT_CONTENT = b"next_content"
NEXT_EPOCH = b"next_epoch"
HEAD = b"head"
ANCHOR = b"anchor"
NEXT_SLOT = b"next_slot"
#: Everything that `meta` has: another name was one of these once.
NAMES = frozenset({FORMAT, KEY, NEXT_INO, NEXT_CONTENT, NEXT_EPOCH, HEAD, ANCHOR, NEXT_SLOT})

#: How far a counter may be ahead of all numbers in use. Asked of those without a digest only: the
#: inodes in between were made and removed again, which nothing bounds.
AHEAD_MAX = 1 << 32

_FORMAT_NOW = fmt.pack_u32(fmt.FORMAT_VERSION)
_WITHOUT_HEAP = frozenset({fmt.pack_u32(1), fmt.pack_u32(2)})


class Counters:
    def __init__(self, table: Plain, path: Path) -> None:
        self._table = table
        self._path = path
        #: As they are in the table, with their digests.
        self._saved: dict[bytes, int] = {}

    def get(self, name: bytes) -> int:
        value = self._table.get(name)
        if value is None:
            raise self._refusal(f"its {name.decode()} record is missing")
        try:
            return fmt.unpack_counter(value)
        except fmt.CorruptRecord as error:
            raise self._refusal(f"its {name.decode()} record is damaged") from error

    def anchor(self) -> int:
        """0 where there is none."""
        return 0 if self._table.get(ANCHOR) is None else self.get(ANCHOR)

    def next_slot(self) -> int:
        """Everything behind it is cut off, so it must be right. Earlier formats have none."""
        value = self._table.get(NEXT_SLOT)
        if value is None and self._table.get(FORMAT) in _WITHOUT_HEAP:
            return 0
        try:
            return fmt.unpack_slot(value or b"")
        except fmt.CorruptRecord as error:
            raise self._refusal("its next_slot record is damaged") from error

    def require_known_names(self) -> None:
        """A name in which a bit flipped hides a counter, or the key of the journal."""
        for name, _ in self._table.walk():
            if name not in NAMES:
                raise self._refusal(f"its meta table has the unknown record {name!r}")

    def require_above(self, name: bytes, used: int) -> None:
        """Refuse a counter whose number was given out already, or cannot have been reached."""
        following = self.get(name)
        if following <= used:
            raise self._refusal(
                f"its numbers make no sense: {name.decode()} is {following}, and {used} is in use"
            )
        if fmt.is_bare_counter(self._table.get(name) or b"") and following > used + AHEAD_MAX:
            raise self._refusal(f"its numbers make no sense: {name.decode()} is {following}")

    def is_dirty(self, name: bytes, number: int) -> bool:
        """Whether the table has another number, by what was put there."""
        return self._saved.get(name, number) != number

    def put(self, name: bytes, number: int) -> None:
        """Nothing is written for a counter that stands there already. With the first digest the
        store is of this format: an earlier release would take it for damaged."""
        if self._saved.get(name) != number:
            if not self._saved and (self._table.get(FORMAT) or b"") < _FORMAT_NOW:
                self._table.put(FORMAT, _FORMAT_NOW)
            self._table.put(name, fmt.pack_counter(number))
            self._saved[name] = number

    def _refusal(self, reason: str) -> errors.StoreCorrupt:
        return errors.StoreCorrupt(self._path, reason)
