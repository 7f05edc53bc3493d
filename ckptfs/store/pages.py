"""The pages of an LMDB file, read without LMDB: is its structure whole, and what can be read of it.

LMDB trusts its file: a page that was damaged, or lies behind the end of a file that was cut short,
can end the process. So `check`, and the opening of a file that is shorter than it says, look here
first, where every number is doubted before it is used; `repair` reads here what LMDB would not
give out. Knows LMDB 0.9 on a 64-bit machine; what the records mean is others' business.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC = 0xBEEFC0DE
_VERSIONS = (1, 999)  # 999 is what development builds write
_PAGE_SIZES = frozenset(1 << n for n in range(9, 17))

#: Number, padding, flags, then either the ends of the free space or the count of overflow pages.
_HEADER = struct.Struct("=QHHHH")
_BRANCH, _LEAF, _OVERFLOW, _META, _DIRTY = 1, 2, 4, 8, 16
#: Magic, version, address, size of the map; then two trees, the last page, the transaction.
_META_HEAD = struct.Struct("=IIQQ")
_TREE = struct.Struct("=IHHQQQQQ")
_META_TAIL = struct.Struct("=QQ")
_NODE = struct.Struct("=HHHH")
_BIG, _SUBTREE = 1, 2
_NO_PAGE = 2**64 - 1
#: LMDB's cursors go no deeper.
_DEPTH_MAX = 32


class Meta(NamedTuple):
    """One of the two pages that say what is current."""

    page_size: int
    free_root: int
    main_root: int
    last_page: int
    transaction: int


class BrokenPage(ValueError):
    """A page that cannot be what the page above says it is."""


class Pages:
    """An LMDB data file, read from the outside. It must not change while it is read."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.metas = [meta for n in (0, 1) if (meta := self._meta(n)) is not None]
        self.metas.sort(key=lambda meta: -meta.transaction)  # LMDB goes by the later one
        #: What was found to be wrong.
        self.broken: list[str] = []
        self._seen: set[int] = set()
        #: Whether large values are left unread: they are most of the file, and have no structure.
        self._blank = False

    def close(self) -> None:
        self._data.close()

    def _meta(self, number: int) -> Meta | None:
        """The second one stands behind the first, whose size it shares."""
        size = self._page_size() if number else 0
        try:
            at = size + _HEADER.size
            magic, version, _, _ = _META_HEAD.unpack_from(self._data, at)
            free = _TREE.unpack_from(self._data, at + _META_HEAD.size)
            main = _TREE.unpack_from(self._data, at + _META_HEAD.size + _TREE.size)
            last, transaction = _META_TAIL.unpack_from(
                self._data, at + _META_HEAD.size + 2 * _TREE.size
            )
        except struct.error:
            return None
        if magic != _MAGIC or version not in _VERSIONS or free[0] not in _PAGE_SIZES:
            return None
        return Meta(free[0], free[7], main[7], last, transaction)

    def _page_size(self) -> int:
        first = self._meta(0)
        return first.page_size if first else mmap.PAGESIZE

    def is_short(self) -> bool:
        """Whether the file ends before its last page. That alone is no damage: pages that were
        taken and given back within one transaction were never written."""
        return not self.metas or self.claimed_bytes() > len(self._data)

    def claimed_bytes(self) -> int:
        """How long the file says it is."""
        return (self.metas[0].last_page + 1) * self.metas[0].page_size

    # -- the whole structure ----------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Everything that is wrong with the current state's structure; empty when nothing is."""
        if not self.metas:
            return ["neither of the pages that say what is current can be read"]
        meta = self.metas[0]
        for _ in self.tables(meta, deep=True):
            pass
        free = list(self._records(meta, meta.free_root, self.broken))
        used = set(self._seen)
        for key, value in free:
            self._free_list(meta, key, value, used)
        return self.broken

    def _free_list(self, meta: Meta, key: bytes, value: bytes, used: set[int]) -> None:
        """A page that is free must not be in use: LMDB would write over it."""
        count, rest = divmod(len(value), 8)
        numbers = struct.unpack(f"={count}Q", value[: 8 * count])
        if rest or not numbers or numbers[0] + 1 > count or len(key) != 8:
            self.broken.append("a list of free pages makes no sense")
            return
        for number in numbers[1 : numbers[0] + 1]:
            if number in used or not 2 <= number <= meta.last_page:
                self.broken.append(f"page {number} is listed as free and is not")
            used.add(number)

    def tables(
        self, meta: Meta, *, deep: bool = False
    ) -> Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]]]]:
        """(name, its records) of each table, as far as they can be read."""
        self._seen = {0, 1}
        for name, value in self._records(meta, meta.main_root, self.broken):
            if len(value) != _TREE.size:
                self.broken.append(f"the root of table {name!r} makes no sense")
                continue
            root = _TREE.unpack(value)[7]
            records = self._records(meta, root, self.broken)
            if deep:
                self._blank = True
                for _ in records:
                    pass
                self._blank = False
            yield name, records

    def _records(self, meta: Meta, root: int, broken: list[str]) -> Iterator[tuple[bytes, bytes]]:
        """The records of a tree in order; what cannot be read is left out and told."""
        if root == _NO_PAGE:
            return
        pending = [(root, 1)]
        last: bytes | None = None
        leaves = 0
        while pending:
            number, depth = pending.pop()
            try:
                flags, nodes = self._nodes(meta, number)
                if flags & _BRANCH:
                    if depth >= _DEPTH_MAX:
                        raise BrokenPage(f"page {number} lies too deep")
                    below = [_child(self._data, at) for at, _ in nodes]
                    pending += [(child, depth + 1) for child in reversed(below)]
                    continue
                if leaves not in (0, depth):
                    raise BrokenPage(f"page {number} lies {depth} deep, others {leaves}")
                leaves = depth
            except BrokenPage as error:
                broken.append(str(error))
                continue
            for at, end in nodes:
                try:
                    key, value = self._record(meta, number, at, end)
                except BrokenPage as error:
                    broken.append(str(error))
                    continue
                if last is not None and key <= last and root != meta.free_root:
                    broken.append(f"page {number} has its keys out of order")
                    continue
                last = key
                yield key, value

    def _nodes(self, meta: Meta, number: int) -> tuple[int, list[tuple[int, int]]]:
        """The flags of a page and where each of its nodes is, with the page's end."""
        at, flags, lower, upper = self._page(meta, number)
        kind = flags & ~_DIRTY
        if kind not in (_BRANCH, _LEAF):
            raise BrokenPage(f"page {number} is of no kind that belongs into a tree")
        size = meta.page_size
        if not _HEADER.size <= lower <= upper <= size or lower % 2:
            raise BrokenPage(f"page {number} has no order")
        count = (lower - _HEADER.size) // 2
        if count < (2 if kind == _BRANCH else 1):
            raise BrokenPage(f"page {number} is too empty")
        offsets = struct.unpack_from(f"={count}H", self._data, at + _HEADER.size)
        if min(offsets) < upper or max(offsets) > size - _NODE.size:
            raise BrokenPage(f"page {number} has a node outside of itself")
        return kind, [(at + offset, at + size) for offset in offsets]

    def _page(self, meta: Meta, number: int) -> tuple[int, int, int, int]:
        at = number * meta.page_size
        if not 2 <= number <= meta.last_page or at + meta.page_size > len(self._data):
            raise BrokenPage(f"page {number} is behind the end of the file")
        found, _, flags, lower, upper = _HEADER.unpack_from(self._data, at)
        if found != number:
            raise BrokenPage(f"page {number} says that it is page {found}")
        if number in self._seen:
            raise BrokenPage(f"page {number} is used twice")
        self._seen.add(number)
        return at, flags, lower, upper

    def _record(self, meta: Meta, number: int, at: int, end: int) -> tuple[bytes, bytes]:
        low, high, flags, key_length = _NODE.unpack_from(self._data, at)
        size = low | high << 16
        start = at + _NODE.size
        value_at = start + key_length
        big = flags & _BIG
        if value_at + (8 if big else size) > end or flags & ~(_BIG | _SUBTREE) or not key_length:
            raise BrokenPage(f"page {number} has a record that makes no sense")
        key = self._data[start:value_at]
        if not big:
            return key, self._data[value_at : value_at + size]
        (first,) = struct.unpack_from("=Q", self._data, value_at)
        return key, self._overflow(meta, first, size)

    def _overflow(self, meta: Meta, number: int, size: int) -> bytes:
        at, flags, low, high = self._page(meta, number)
        count = low | high << 16
        if flags & ~_DIRTY != _OVERFLOW or count * meta.page_size < _HEADER.size + size:
            raise BrokenPage(f"page {number} does not hold the record it is to hold")
        if (number + count) * meta.page_size > len(self._data):
            raise BrokenPage(f"page {number} is behind the end of the file")
        others = set(range(number + 1, number + count))
        if self._seen & others:
            raise BrokenPage(f"page {number} is used twice")
        self._seen |= others
        if self._blank:
            return b""
        return self._data[at + _HEADER.size : at + _HEADER.size + size]


def _child(data: mmap.mmap, at: int) -> int:
    """The page that a node of a branch leads to."""
    low, high, flags, _ = _NODE.unpack_from(data, at)
    return int(low | high << 16 | flags << 32)
