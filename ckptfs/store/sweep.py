"""Every view at once, for `check`: in which views something may be wrong.

A look at each record once is a look at every view (`ckptfs.store.regions`): the tables are read in
the order of their keys, where the versions of an entity lie together, and each version is compared
with the one that it hides.

Two kinds of invariants are left. What is about one inode or content (link count, entries only in
directories, blocks and sizes) is seen where the tables meet in the same order. What leads from one
inode to another (entries and the inodes that they lead to, subdirectories) is seen by sums: each
side adds a digest of what it says to the sum of its epoch, and takes away what it hides; over a
view's lineage the two sides must cancel out.

Memory is that of the epochs, of one inode or content, and of a bounded number of claims. A view
that is named here need not be wrong: `check` looks at those, and at no others, one by one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from xxhash import xxh3_128_intdigest

from ckptfs.model import NO_CONTENT, ROOT_INO, Epoch, Ino, Inode
from ckptfs.store import format as fmt
from ckptfs.store.regions import (
    EVERYWHERE,
    Claim,
    EpochOrder,
    Version,
    VisibleBlocks,
    faulty,
    with_before,
)

if TYPE_CHECKING:
    from ckptfs.store.environment import Store
    from ckptfs.store.tables import Versioned

T = TypeVar("T")

#: Contents, and claims of inodes on them, that are kept in memory at once: 150 bytes each. With
#: more, the inodes are read again for the rest.
CLAIMS_MAX = 1 << 20
#: Stands for a record that cannot be understood.
_BROKEN = Inode(*(0,) * 15, b"", b"")  # type: ignore[arg-type]
#: The length of a block whose record cannot be understood.
_NONSENSE = 1 << 62


@dataclass(slots=True)
class Content:
    """What inodes say of a content: whose it is, which epoch allocated it, and claims on it."""

    ino: int
    born: Epoch
    claims: list[Claim] = field(default_factory=list)


class _Linked(NamedTuple):
    """What the views of a region have of one inode: its record, its names besides the first, and
    its entries if it is a directory."""

    inode: Inode | None
    links: int
    entries: int


def _fits(state: _Linked) -> bool:
    inode, links, entries = state
    if inode is None:
        return not links and not entries
    if inode is _BROKEN:
        return False
    if inode.is_dir:
        return not links and (not entries or inode.nlink > 0)
    if entries or (inode.content == NO_CONTENT and inode.is_file and inode.allocated):
        return False
    return links == (inode.nlink - 1 if inode.nlink else 0)


class Sweep:
    """One look at every record of the versioned tables. After `run`, ``suspects`` are the views in
    which something may be wrong, and the rest is what other checks want to know."""

    def __init__(self, store: Store, progress: Callable[[int], None] = lambda done: None) -> None:
        self._store = store
        self._progress = progress
        self._done = 0
        self.order = order = EpochOrder(store.epochs)
        #: Epochs that descend from themselves have no place, and no view.
        self.suspects: set[Epoch] = set(store.epochs) - set(order.epochs)
        count = len(order.epochs)
        self._names, self._subdirs, self._inodes = [0] * count, [0] * count, [0] * count
        #: Directories in younger ones: without any there is no ring of directories.
        self._rising = [0] * count
        #: By suffix, the sum of the digests of what has a record and must be listed in `changes`.
        self.written: dict[bytes, int] = dict.fromkeys(order.place, 0)
        for excluded in store.excluded_views.values():
            self.written[excluded.suffix] = 0
        #: (table, entity, epoch) of each record of an epoch that is not there.
        self.lost: list[tuple[Versioned, bytes, Epoch]] = []
        #: The inodes that share a content, by content.
        self.shared: dict[int, set[int]] = {}
        self.last_ino = self.last_content = 0
        #: The sum of the keys of blocks that block maps name.
        self.named = 0

    def run(self) -> None:
        self._meet()
        self._sum_up()
        if any(self._rising):
            self._look_for_rings()
        low: int | None = 0
        while low is not None:
            contents, high = self._claims(low)
            self._look_at_blocks(contents, low, high)
            low = high

    # -- what is read ------------------------------------------------------------------------------

    def _entities(
        self, table: Versioned, start: bytes = b""
    ) -> Iterator[tuple[bytes, list[tuple[bytes, bytes]]]]:
        """(entity, [(suffix, record) of each version])."""
        last = b""
        versions: list[tuple[bytes, bytes]] = []
        for entity, suffix, record in table.versions(b"", start):
            if entity != last:
                if versions:
                    yield last, versions
                last, versions = entity, []
            versions.append((suffix, record))
        if versions:
            yield last, versions

    def _noted(self, table: Versioned) -> Iterator[tuple[bytes, list[Version[bytes]]]]:
        """(entity, its versions), once all that have a record are noted down."""
        order, place_of = self.order, self.order.place
        for entity, versions in self._entities(table):
            self._note(table, entity, versions)
            found = [
                (place_of[suffix], record or None)
                for suffix, record in versions
                if suffix in place_of
            ]
            if found:
                yield entity, with_before(order, found)

    def _note(
        self,
        table: Versioned,
        entity: bytes,
        versions: list[tuple[bytes, bytes]],
        born: Epoch | None = None,
    ) -> None:
        written = self.written
        digest = xxh3_128_intdigest(table.kind + entity)
        for suffix, _ in versions:
            if suffix not in written:
                self.lost.append((table, entity, fmt.epoch_of(suffix)))
            elif born is None or fmt.epoch_of(suffix) != born:
                written[suffix] += digest
        self._done += len(versions)
        self._progress(self._done)

    # -- inodes, and the tables that are in their order --------------------------------------------

    def _meet(self) -> None:
        """Go through the tables that are keyed by an inode, inode by inode."""
        store = self._store
        inodes = _Stream(self._inodes_by_number())
        links = _Stream(self._counts_by_number(store.links, _link_digest))
        entries = _Stream(self._counts_by_number(store.dirents, _entry_digest))
        attributes = _Stream(self._attributes_by_number())
        while numbers := [
            stream.number for stream in (inodes, links, entries, attributes) if stream.number
        ]:
            number = min(numbers)
            self._look_at_inode(
                number,
                inodes.take(number),
                links.take(number),
                entries.take(number),
                attributes.take(number),
            )

    def _look_at_inode(
        self,
        number: bytes,
        records: dict[int, Inode | None],
        links: dict[int, int],
        entries: dict[int, int],
        attributes: dict[int, bool],
    ) -> None:
        is_root = number == fmt.pack_u64(ROOT_INO)
        if len(records) == 1 and not (links or entries or attributes or is_root):
            ((place, inode),) = records.items()
            if _fits(_Linked(inode, 0, 0)) or not self.order.shown_below(place):
                return

        def following(above: _Linked, place: int) -> _Linked:
            inode = records.get(place, above.inode)
            if inode is None and attributes.get(place) and self.order.shown[place]:
                self.suspects.add(self.order.epochs[place])
            return _Linked(
                inode, above.links + links.get(place, 0), above.entries + entries.get(place, 0)
            )

        def fits(state: _Linked) -> bool:
            if is_root and (state.inode is None or not state.inode.is_dir):
                return False
            return _fits(state)

        events = {*records, *links, *entries, *attributes, *([EVERYWHERE] if is_root else [])}
        self.suspects.update(faulty(self.order, events, following, _Linked(None, 0, 0), fits))

    def _inodes_by_number(self) -> Iterator[tuple[bytes, dict[int, Inode | None]]]:
        for entity, versions in self._noted(self._store.inodes):
            ino = fmt.unpack_u64(entity[:8])
            found = {version.place: _inode(ino, version.now) for version in versions}
            for version in with_before(self.order, list(found.items())):
                self._account(version.place, version.now, 1)
                self._account(version.place, version.before, -1)
            yield entity[:8], found

    def _account(self, place: int, inode: Inode | None, sign: int) -> None:
        """Add what an inode says to the sums of an epoch, or take it away."""
        if inode is None:
            return
        self._inodes[place] += sign
        if not inode.nlink:
            return
        ino = fmt.pack_u64(inode.ino)
        is_root = inode.ino == ROOT_INO
        if not is_root:
            own = ino + fmt.pack_u64(inode.parent) + inode.name + b"\0"
            self._names[place] += sign * xxh3_128_intdigest(own)
        if inode.is_dir:
            self._subdirs[place] += sign * (inode.nlink - 2) * xxh3_128_intdigest(ino)
            if not is_root:
                above = xxh3_128_intdigest(fmt.pack_u64(inode.parent))
                self._subdirs[place] -= sign * above
                self._rising[place] += sign * (inode.parent > inode.ino)

    def _counts_by_number(
        self, table: Versioned, digest: Callable[[bytes, bytes], int]
    ) -> Iterator[tuple[bytes, dict[int, int]]]:
        """(number, how many more entities there are at each place), and their sums."""
        number, counts = b"", Counter[int]()
        for entity, versions in self._noted(table):
            if entity[:8] != number:
                if counts:
                    yield number, counts
                number, counts = entity[:8], Counter()
            for place, before, now in versions:
                counts[place] += (now is not None) - (before is not None)
                if now is not None:
                    self._names[place] += digest(entity, now)
                if before is not None:
                    self._names[place] -= digest(entity, before)
        if counts:
            yield number, counts

    def _attributes_by_number(self) -> Iterator[tuple[bytes, dict[int, bool]]]:
        """(number, the places at which an extended attribute was written)."""
        number: bytes = b""
        written: dict[int, bool] = {}
        for entity, versions in self._noted(self._store.xattrs):
            if entity[:8] != number:
                if written:
                    yield number, written
                number, written = entity[:8], {}
            written.update((version.place, True) for version in versions if version.now)
        if written:
            yield number, written

    # -- sums over lineages ------------------------------------------------------------------------

    def _sum_up(self) -> None:
        """Name the views in which the sides do not cancel out, but only where that begins."""
        order, epochs = self.order, self._store.epochs
        heads = {head.epoch: head.inodes for head in self._store.heads.values()}
        totals = [(0, 0, 0)] * len(order.epochs)
        #: What was wrong in the last view on the way down.
        known = [(0, 0, 0)] * len(order.epochs)
        for place in range(1, len(order.epochs)):
            above, epoch = order.above[place], order.epochs[place]
            names, subdirs, inodes = totals[above]
            inodes += self._inodes[place]
            totals[place] = (names + self._names[place], subdirs + self._subdirs[place], inodes)
            counted = heads[epoch] if epoch in heads else epochs[epoch].inodes
            wrong = (*totals[place][:2], inodes - counted)
            known[place] = wrong if order.shown[place] else known[above]
            if order.shown[place] and any(wrong) and wrong != known[above]:
                self.suspects.add(epoch)

    # -- rings of directories ----------------------------------------------------------------------

    def _look_for_rings(self) -> None:
        """A ring has a directory in a younger one, and one that the epoch has moved or made: from
        those, the way must lead up to the root."""
        order = self.order
        rising = list(self._rising)
        parents, moved = self._parents()
        for place in range(1, len(order.epochs)):
            rising[place] += rising[order.above[place]]
            if rising[place] and not self._leads_up(parents, moved.get(place, ()), place):
                self.suspects.update(self.order.shown_from(place))

    def _parents(self) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[int]]]:
        """Of each directory where it stands, from which places on; and which directories came to
        stand elsewhere at each place."""
        parents: dict[int, list[tuple[int, int]]] = {}
        moved: dict[int, list[int]] = defaultdict(list)
        for ino, versions in self._all_inodes():
            for place, before, now in versions:
                was, here = (0 if item is None else _parent(item) for item in (before, now))
                if was != here:
                    parents.setdefault(ino, []).append((place, here))
                    if here:
                        moved[place].append(ino)
        return parents, moved

    def _all_inodes(self) -> Iterator[tuple[int, list[Version[Inode]]]]:
        place_of = self.order.place
        for entity, versions in self._entities(self._store.inodes):
            ino = fmt.unpack_u64(entity[:8])
            found = [(place_of[s], _inode(ino, record)) for s, record in versions if s in place_of]
            yield ino, with_before(self.order, found)

    def _leads_up(
        self, parents: dict[int, list[tuple[int, int]]], start: Iterable[int], place: int
    ) -> bool:
        good: set[int] = {ROOT_INO}
        for first in start:
            way: set[int] = set()
            ino = first
            while ino not in good:
                if ino in way:
                    return False
                way.add(ino)
                ino = self._parent_at(parents.get(ino, ()), place)
            good |= way
        return True

    def _parent_at(self, found: Iterable[tuple[int, int]], place: int) -> int:
        """Where a directory stands at a place: as the nearest above says, which of those above has
        the highest place. One that is missing is seen elsewhere."""
        above = [item for item in found if item[0] <= place <= self.order.last[item[0]]]
        return max(above)[1] if above else ROOT_INO

    # -- contents and their blocks -----------------------------------------------------------------

    def _claims(self, low: int) -> tuple[dict[int, Content], int | None]:
        """What inodes say of contents from ``low`` on, and from where on there are more."""
        contents: dict[int, Content] = {}
        high: int | None = None
        place_of, count = self.order.place, 0
        for entity, versions in self._entities(self._store.inodes):
            ino = fmt.unpack_u64(entity[:8])
            self.last_ino = max(self.last_ino, ino)
            found = []
            for suffix, record in versions:
                inode = _inode(ino, record)
                if inode is not None and inode.content != NO_CONTENT:
                    self.last_content = max(self.last_content, inode.content)
                    if inode.content >= low and (high is None or inode.content < high):
                        count += inode.content not in contents
                        self._own(contents, inode)
                if suffix in place_of:
                    found.append((place_of[suffix], inode))
            for content, claim in _claims_of(with_before(self.order, found)):
                if content in contents:
                    contents[content].claims.append(claim)
                    count += 1
            if count > CLAIMS_MAX:
                high, count = _cut(contents)
        return contents, high

    def _own(self, contents: dict[int, Content], inode: Inode) -> None:
        known = contents.setdefault(inode.content, Content(inode.ino, inode.content_epoch))
        known.born = inode.content_epoch
        if known.ino != inode.ino:
            self.shared.setdefault(inode.content, {known.ino}).add(inode.ino)

    def _look_at_blocks(self, contents: dict[int, Content], low: int, high: int | None) -> None:
        table, content = self._store.blockmap, -1
        blocks: list[tuple[int, list[Version[bytes]]]] = []
        start = fmt.pack_u64(low) if low else b""
        place_of = self.order.place
        for entity, versions in self._entities(table, start):
            number = fmt.unpack_u64(entity[:8])
            if high is not None and number >= high:
                break
            if number != content:
                self._look_at_content(contents.pop(content, None), blocks)
                content, blocks = number, []
            known = contents.get(number)
            self._note(table, entity, versions, None if known is None else known.born)
            self._note_keys(versions)
            if known is not None and known.claims:
                found = [(place_of[s], record or None) for s, record in versions if s in place_of]
                blocks.append((fmt.block_number(entity), with_before(self.order, found)))
        self._look_at_content(contents.pop(content, None), blocks)
        for known in contents.values():
            self._look_at_content(known, [])

    def _note_keys(self, versions: list[tuple[bytes, bytes]]) -> None:
        """Sum up what records of the block map name; what makes no sense is seen in its views."""
        for suffix, record in versions:
            if record[:1] == fmt.REFERENCE:
                self.named += int.from_bytes(record[-fmt.BLOCK_KEY :])
            if _length(record) == _NONSENSE and suffix in self.order.place:
                self.suspects.update(self.order.shown_from(self.order.place[suffix]))

    def _look_at_content(
        self, content: Content | None, blocks: list[tuple[int, list[Version[bytes]]]]
    ) -> None:
        """A file holds what its blocks are together, and none lies behind its end."""
        if content is None or not content.claims:
            return
        changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, versions in blocks:
            for version in versions:
                changes[version.place].append((number, _length(version.now)))
        claims = {claim.place: claim for claim in content.claims}
        self.suspects.update(VisibleBlocks(self.order, claims, changes).faulty())


def _link_digest(entity: bytes, record: bytes) -> int:
    return xxh3_128_intdigest(entity)


def _entry_digest(entity: bytes, record: bytes) -> int:
    return -xxh3_128_intdigest(record + entity)


def _inode(ino: int, record: bytes | None) -> Inode | None:
    if not record:
        return None
    try:
        return fmt.unpack_inode(Ino(ino), record)
    except fmt.CorruptRecord:
        return _BROKEN


def _parent(inode: Inode) -> int:
    """Where a directory stands; 0 for anything else."""
    return inode.parent if inode.is_dir and inode.nlink and inode.ino != ROOT_INO else 0


def _length(record: bytes | None) -> int:
    """How long a block is; below 0 if there is none, and longer than any if it makes no sense."""
    if not record:
        return -1
    try:
        return fmt.unpack_mapping(record).length
    except fmt.CorruptRecord:
        return _NONSENSE


def _claims_of(versions: Iterable[Version[Inode]]) -> Iterator[tuple[int, Claim]]:
    """What the versions of an inode say of contents, where that changes."""
    for place, before, now in versions:
        was, is_now = _claimed(before), _claimed(now)
        if was == is_now:
            continue
        if was is not None and (is_now is None or is_now[0] != was[0]):
            yield was[0], Claim(place, None, 0)
        if is_now is not None:
            yield is_now[0], Claim(place, *is_now[1:])


def _claimed(inode: Inode | None) -> tuple[int, int, int] | None:
    if inode is None or inode.content == NO_CONTENT or not inode.is_file:
        return None
    return inode.content, inode.allocated, inode.size


def _cut(contents: dict[int, Content]) -> tuple[int, int]:
    """Leave the upper half of the contents for later: where it begins, and what is kept."""
    high = sorted(contents)[len(contents) // 2]
    for content in [content for content in contents if content >= high]:
        del contents[content]
    return high, sum(1 + len(content.claims) for content in contents.values())


class _Stream(Generic[T]):
    """What a table says, inode by inode."""

    def __init__(self, items: Iterator[tuple[bytes, dict[int, T]]]) -> None:
        self._items = items
        self._head = next(items, None)

    @property
    def number(self) -> bytes:
        """The inode that comes next; empty at the end."""
        return b"" if self._head is None else self._head[0]

    def take(self, number: bytes) -> dict[int, T]:
        """What it says of an inode, by place."""
        if self._head is None or self._head[0] != number:
            return {}
        found = self._head[1]
        self._head = next(self._items, None)
        return found
