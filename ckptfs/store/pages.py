"""The pages of an LMDB file, read without LMDB: is its structure whole, and what can be read of it.

LMDB trusts its file: a page that was damaged, or lies behind the end of a file that was cut short,
can end the process. So `check`, and the opening of a file that is shorter than it says, look here
first, where every number is verified before it is used; `repair` reads here what LMDB would not
give out. Knows LMDB 0.9 on a 64-bit machine; what the records mean is others' business.
"""

from __future__ import annotations

import mmap
import random
import struct
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain, groupby, pairwise, repeat
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from ckptfs import interrupts

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
#: What a record may be whose table is no table of tables.
_PLAIN_KINDS = (0, _BIG)
#: The flags of the tree of free pages: its keys are numbers of transactions; and, of a file that
#: was made by a compaction, that it was made without a directory of its own.
_FREE_FLAGS = (0x8, 0x4008)
_NO_PAGE = 2**64 - 1
#: Of a tree: so many leaves are looked at, of which a copy fills about this much; and what comes on
#: top of all trees.
_SAMPLE = 64
_FULL = 0.96
_FEW_PAGES = 8
#: LMDB's cursors go no deeper.
_DEPTH_MAX = 32

#: So many pages are looked at before they are let go of.
_MAPPED_MAX = (64 << 20) // mmap.PAGESIZE

#: Is given a table and how its keys end, and goes through all of them. What several keys in a row
#: end with may come once.
Look = Callable[[bytes, Iterator[bytes]], None]

#: Of a leaf: how many keys it has, the first, the last, and how they end.
Ends = tuple[int, bytes, bytes, list[bytes]]


def _pass_by(table: bytes, ends: Iterator[bytes]) -> None:
    deque(ends, maxlen=0)


class Tree(NamedTuple):
    """The record that names a tree: its kind, its size, its first page."""

    #: Of the tree of free pages: the size of a page. Otherwise of no meaning here.
    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflow: int
    entries: int
    root: int

    @property
    def pages(self) -> int:
        return self.branches + self.leaves + self.overflow

    @property
    def measure(self) -> Measure:
        return (self.depth, self.branches, self.leaves, self.overflow, self.entries)


#: Depth, branch pages, leaf pages, overflow pages, records.
Measure = tuple[int, int, int, int, int]


class Meta(NamedTuple):
    """One of the two pages that say what is current."""

    number: int
    page_size: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


class Usage(NamedTuple):
    """How many pages of a data file are in use: by each table, and for the rest: the two that say
    what is current, the list of tables, the list of free pages."""

    page_size: int
    tables: dict[bytes, int]
    others: int

    def table_bytes(self, name: bytes) -> int:
        return self.tables.get(name, 0) * self.page_size

    def used_bytes(self) -> int:
        return (sum(self.tables.values()) + self.others) * self.page_size


class _Way(NamedTuple):
    """A page on the way to records, how deep it lies, and the keys between which it leads: from
    ``low`` on, and before ``high``. None where there is no such border."""

    page: int
    depth: int
    low: bytes | None
    high: bytes | None

    def leads_past(self, key: bytes) -> bool:
        low, high = self.low, self.high
        return (low is not None and key < low) or (high is not None and key >= high)


class _Below(NamedTuple):
    """Where a branch leads to, each page between two of the borders."""

    pages: list[int]
    borders: list[bytes | None]

    def ways(self, depth: int) -> list[_Way]:
        """The first last."""
        pairs = zip(self.pages, pairwise(self.borders), strict=True)
        return [_Way(page, depth, *pair) for page, pair in pairs][::-1]


class BrokenPage(ValueError):
    """A page that cannot be what the page above says it is."""


#: `_sound_ends`, compiled, where that was lent. It looks at the places of the nodes itself.
sound_ends: Callable[[bytes, bool, int], Ends | None] | None = None
#: All leaves below a branch at once, likewise: how many records they have, and how their keys end.
sound_leaves: (
    Callable[[mmap.mmap, list[int], list[bytes | None], int], tuple[int, list[bytes]] | None] | None
) = None
#: The size of a page that the compiled ones know.
_COMPILED_SIZE = 4096


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
        #: Whether values are left unread: they are most of the file, and have no structure. Then so
        #: many bytes are read of the end of each key.
        self._blank = False
        self._end = 0

    def close(self) -> None:
        self._data.close()

    def _meta(self, number: int) -> Meta | None:
        """The second one stands behind the first, whose size it shares."""
        size = self._page_size() if number else 0
        try:
            at = size + _HEADER.size
            magic, version, _, _ = _META_HEAD.unpack_from(self._data, at)
            free = Tree(*_TREE.unpack_from(self._data, at + _META_HEAD.size))
            main = Tree(*_TREE.unpack_from(self._data, at + _META_HEAD.size + _TREE.size))
            last, transaction = _META_TAIL.unpack_from(
                self._data, at + _META_HEAD.size + 2 * _TREE.size
            )
        except struct.error:
            return None
        if magic != _MAGIC or version not in _VERSIONS or free.pad not in _PAGE_SIZES:
            return None
        return Meta(number, free.pad, free, main, last, transaction)

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

    def reclaimable_pages(self) -> int:
        """How many free pages the next transaction may use: those that the last one gave up have to
        wait for the one after it."""
        self._seen = {0, 1}
        meta = self.metas[0]
        return sum(
            struct.unpack_from("=Q", value)[0]
            for key, value in self._records(meta, meta.free, self.broken)
            if len(value) >= 8 and struct.unpack("=Q", key)[0] < meta.transaction
        )

    def copied_bytes(self) -> int:
        """About how long a copy of the current state would be whose pages are full."""
        meta, total = self.metas[0], 0
        self._seen = {0, 1}
        for _, value in list(self._records(meta, meta.main, [], kinds=(_SUBTREE,))):
            tree = Tree(*_TREE.unpack(value))
            total += tree.overflow
            if tree.root != _NO_PAGE:
                total += round((tree.branches + tree.leaves) * min(1, self._fill(meta, tree)))
        return (total + _FEW_PAGES) * meta.page_size

    def _fill(self, meta: Meta, tree: Tree) -> float:
        """How much of the leaves of a tree is in use, by some of them; as a share of what a page
        holds at best."""
        leaves = [self._some_leaf(meta, tree.root) for _ in range(min(_SAMPLE, tree.leaves))]
        return sum(leaves) / len(leaves) / (_FULL * meta.page_size)

    def _some_leaf(self, meta: Meta, number: int) -> int:
        """The bytes in use of a leaf below a page."""
        for _ in range(_DEPTH_MAX):
            self._seen = {0, 1}
            kind, page, nodes = self._nodes(meta, number)
            if kind == _LEAF:
                return _HEADER.size + 2 * len(nodes) + meta.page_size - min(nodes)
            low, high, flags, _ = _NODE.unpack_from(page, random.choice(nodes))
            number = low | high << 16 | flags << 32
        raise BrokenPage(f"page {number} lies too deep")

    def usage(self) -> Usage:
        """What the pages of the current state are used for. Only the list of tables is read."""
        self._seen = {0, 1}
        meta = self.metas[0]
        listed = self._records(meta, meta.main, self.broken, kinds=(_SUBTREE,))
        trees = {name: Tree(*_TREE.unpack(value)) for name, value in listed}
        tables = {name: tree.pages for name, tree in trees.items()}
        return Usage(meta.page_size, tables, 2 + meta.main.pages + meta.free.pages)

    # -- the whole structure ----------------------------------------------------------------------

    def faults(
        self, look: Look = _pass_by, tables: Container[bytes] = (), end: int = 0
    ) -> list[str]:
        """Everything that is wrong with the current state's structure; empty when nothing is.
        ``look`` is given the last bytes of each key of these tables, ``end`` of them or more."""
        if len(self.metas) < 2:
            return ["one of the two pages that say what is current cannot be read"]
        meta = self.metas[0]
        self.broken += self._meta_faults()
        for table, records in self.tables(meta):
            self._blank = True
            self._end = end if table in tables else 0
            (look if self._end else _pass_by)(table, map(itemgetter(0), records))
            self._blank = False
        free = list(self._records(meta, meta.free, self.broken))
        used = set(self._seen)
        for key, value in free:
            self._free_list(meta, key, value, used)
        if not self.broken and len(used) != meta.last_page + 1:
            lost = meta.last_page + 1 - len(used)
            self.broken.append(f"{lost} pages are neither in use nor free")
        return self.broken

    def _meta_faults(self) -> Iterator[str]:
        """Commits take turns in writing the two pages, and number themselves."""
        newer, older = self.metas
        turns = all(meta.transaction % 2 == meta.number for meta in self.metas)
        if newer.transaction and not (turns and newer.transaction == older.transaction + 1):
            yield "the two pages that say what is current do not follow each other"
        if newer.free.flags not in _FREE_FLAGS or newer.main.flags:
            yield "the page that says what is current makes no sense"

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

    def tables(self, meta: Meta) -> Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]]]]:
        """(name, its records) of each table, as far as they can be read."""
        self._seen = {0, 1}
        for name, value in self._records(meta, meta.main, self.broken, kinds=(_SUBTREE,)):
            if len(value) != _TREE.size or (tree := Tree(*_TREE.unpack(value))).flags:
                self.broken.append(f"the root of table {name!r} makes no sense")
                continue
            yield name, self._records(meta, tree, self.broken)

    def _records(
        self, meta: Meta, tree: Tree, broken: list[str], kinds: tuple[int, ...] = _PLAIN_KINDS
    ) -> Iterator[tuple[bytes, bytes]]:
        """The records of a tree in order; what cannot be read is left out and noted in `broken`."""
        return chain.from_iterable(self._leaves(meta, tree, broken, kinds))

    def _leaves(
        self, meta: Meta, tree: Tree, broken: list[str], kinds: tuple[int, ...]
    ) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        """The same leaf by leaf."""
        # Numbers of transactions, the keys of the free pages, are not in the order of their bytes.
        first = _Way(tree.root, 1, None if tree is meta.free else b"", None)
        pending = [] if tree.root == _NO_PAGE else [first]
        deepest = branches = leaves = entries = overflow = 0
        while pending:
            interrupts.check()
            way = pending.pop()
            try:
                kind, page, lower, upper = self._tree_page(meta, way.page)
                if kind == _BRANCH:
                    below = self._below(way, page, _places(way.page, page, lower, upper))
                    branches += 1
                    is_blank = self._blank and kinds is _PLAIN_KINDS
                    is_lowest = is_blank and way.depth + 1 == (deepest or tree.depth)
                    sound = self._sound_leaves(meta, below) if is_lowest else None
                    if sound is None:
                        pending += below.ways(way.depth + 1)
                        continue
                    deepest = way.depth + 1
                    leaves += len(below.pages)
                    entries += sound[0]
                    yield zip(sound[1], repeat(b""), strict=False)
                    continue
                if deepest not in (0, way.depth):
                    raise BrokenPage(f"page {way.page} lies {way.depth} deep, others {deepest}")
                is_read = not self._blank or kinds is not _PLAIN_KINDS
                ends = None if is_read else self._ends_within(way, page, lower, upper)
                nodes = () if ends else _places(way.page, page, lower, upper)
            except BrokenPage as error:
                broken.append(str(error))
                continue
            deepest = way.depth
            leaves += 1
            if ends is not None:
                entries += ends[0]
                yield zip(ends[3], repeat(b""), strict=False)
                continue
            found = list(self._leaf(meta, way, page, nodes, kinds, broken))
            entries += len(found)
            overflow += sum(more for _, _, more in found)
            yield [(key, value) for key, value, _ in found]
        if not broken and tree.measure != (deepest, branches, leaves, overflow, entries):
            broken.append("a tree is not of the size that the record which names it says")

    def _sound_leaves(self, meta: Meta, below: _Below) -> tuple[int, list[bytes]] | None:
        """How many records the leaves of a branch have, and how their keys end. None unless all of
        them are sound: then they are worth a look one by one."""
        numbers = below.pages
        if sound_leaves is None or meta.page_size != _COMPILED_SIZE:
            return None
        if max(numbers) > meta.last_page or min(numbers) < 2:
            return None
        if len(set(numbers)) != len(numbers) or not self._seen.isdisjoint(numbers):
            return None
        found = sound_leaves(self._data, numbers, below.borders, self._end)
        if found is not None:
            before = len(self._seen)
            self._seen.update(numbers)
            self._let_go(before)
        return found

    def _below(self, way: _Way, page: bytes, nodes: tuple[int, ...]) -> _Below:
        """Where a branch leads to."""
        if way.depth >= _DEPTH_MAX:
            raise BrokenPage(f"page {way.page} lies too deep")
        children: list[int] = []
        borders: list[bytes | None] = []
        filled = 0
        for at in nodes:
            low, high, flags, key_length = _NODE.unpack_from(page, at)
            children.append(low | high << 16 | flags << 32)
            borders.append(page[at + _NODE.size : at + _NODE.size + key_length])
            filled += _NODE.size + key_length + key_length % 2
        _require_filled(way.page, page, nodes, filled)
        if way.low is None:
            borders = [None] * len(nodes)
        borders[0] = way.low  # the first key of a branch has no meaning
        borders.append(way.high)
        if any(a is not None and b is not None and a >= b for a, b in pairwise(borders)):
            raise BrokenPage(f"page {way.page} has its keys out of order")
        return _Below(children, borders)

    def _leaf(
        self,
        meta: Meta,
        way: _Way,
        page: bytes,
        nodes: tuple[int, ...],
        kinds: tuple[int, ...],
        broken: list[str],
    ) -> Iterator[tuple[bytes, bytes, int]]:
        """Key, value and pages of each record of a leaf. One that lies outside of the borders is
        whole: it is the page above that is not."""
        ordered = way.low is not None
        first: bytes | None = None
        last, filled = b"", 0
        for at in nodes:
            try:
                key, value, more, length = self._record(meta, way.page, page, at, kinds)
                filled += length + (length & 1)
                if ordered and key <= last:
                    raise BrokenPage(f"page {way.page} has its keys out of order")
            except BrokenPage as error:
                broken.append(str(error))
                continue
            last = key
            if first is None:
                first = key
            yield key, value, more
        if first is not None and (way.leads_past(first) or way.leads_past(last)):
            broken.append(f"page {way.page} has a key that belongs elsewhere")
        try:
            _require_filled(way.page, page, nodes, filled)
        except BrokenPage as error:
            broken.append(str(error))

    def _nodes(self, meta: Meta, number: int) -> tuple[int, bytes, tuple[int, ...]]:
        """The kind of a page, the page, and where in it each of its nodes is."""
        kind, page, lower, upper = self._tree_page(meta, number)
        return kind, page, _places(number, page, lower, upper)

    def _tree_page(self, meta: Meta, number: int) -> tuple[int, bytes, int, int]:
        """The kind of a page, the page, and the ends of its free space."""
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
        return kind, self._data[at : at + size], lower, upper

    def _ends_within(self, way: _Way, page: bytes, lower: int, upper: int) -> Ends | None:
        """The keys of a sound leaf that belong there. None for others, which are worth a closer
        look."""
        is_ordered = way.low is not None
        if sound_ends is not None:
            found = sound_ends(page, is_ordered, self._end)
        else:
            found = _sound_ends(page, _places(way.page, page, lower, upper), is_ordered, self._end)
        if found is None or way.leads_past(found[1]) or way.leads_past(found[2]):
            return None
        return found

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
        self._let_go(len(self._seen) - 1)
        return at, flags, lower, upper

    def _let_go(self, before: int) -> None:
        """What was looked at would count as this process's memory to the end; ``before`` says how
        many pages that were when it was last asked."""
        if before // _MAPPED_MAX != len(self._seen) // _MAPPED_MAX:
            self._data.madvise(mmap.MADV_DONTNEED)

    def _record(
        self, meta: Meta, number: int, page: bytes, at: int, kinds: tuple[int, ...]
    ) -> tuple[bytes, bytes, int, int]:
        """The key and the value of a node, how many pages of its own the value has, and how long
        the node is."""
        low, high, flags, key_length = _NODE.unpack_from(page, at)
        size = low | high << 16
        start = at + _NODE.size
        value_at = start + key_length
        big = flags & _BIG
        stop = value_at + (8 if big else size)
        if stop > len(page) or flags not in kinds or not key_length:
            raise BrokenPage(f"page {number} has a record that makes no sense")
        key = page[start:value_at]
        if not big:
            return key, b"" if self._blank else page[value_at:stop], 0, stop - at
        (first,) = struct.unpack_from("=Q", page, value_at)
        value, count = self._overflow(meta, first, size)
        return key, value, count, stop - at

    def _overflow(self, meta: Meta, number: int, size: int) -> tuple[bytes, int]:
        at, flags, low, high = self._page(meta, number)
        count = low | high << 16
        # More than it needs if it became shorter in the transaction that wrote it.
        wanted = -(-(_HEADER.size + size) // meta.page_size)
        if flags & ~_DIRTY != _OVERFLOW or count < wanted:
            raise BrokenPage(f"page {number} does not hold the record it is to hold")
        if (number + count) * meta.page_size > len(self._data):
            raise BrokenPage(f"page {number} is behind the end of the file")
        others = set(range(number + 1, number + count))
        if self._seen & others:
            raise BrokenPage(f"page {number} is used twice")
        self._seen |= others
        if self._blank:
            return b"", count
        return self._data[at + _HEADER.size : at + _HEADER.size + size], count


def _places(number: int, page: bytes, lower: int, upper: int) -> tuple[int, ...]:
    """Where in a page each of its nodes is."""
    count = (lower - _HEADER.size) // 2
    places = struct.unpack_from(f"={count}H", page, _HEADER.size)
    if min(places) != upper or max(places) > len(page) - _NODE.size:
        raise BrokenPage(f"page {number} has a node outside of itself")
    return places


def _sound_ends(page: bytes, nodes: tuple[int, ...], is_ordered: bool, end: int) -> Ends | None:
    """The keys of a leaf that has nothing wrong and no large records, which most are: in half the
    time."""
    size, filled = len(page), min(nodes)
    keys: list[bytes] = []
    for at in nodes:
        length, high, flags, key_length = _NODE.unpack_from(page, at)
        start = at + _NODE.size
        stop = start + key_length
        if flags or high or not key_length or stop + length > size:
            return None
        keys.append(page[start:stop])
        filled += stop + length - at + (key_length + length) % 2
    in_order = not is_ordered or (sorted(keys) == keys and len(set(keys)) == len(keys))
    if filled != size or not in_order:
        return None
    ends = [each for each, _ in groupby(key[max(len(key) - end, 0) :] for key in keys)]
    return len(keys), keys[0], keys[-1], ends


def _require_filled(number: int, page: bytes, nodes: tuple[int, ...], filled: int) -> None:
    """Nodes lie one beside the other up to the end of their page."""
    if min(nodes) + filled != len(page):
        raise BrokenPage(f"page {number} has nodes of the wrong size")
