"""Packing records: what only history sees moves out of the tables into chunks.

Replaced versions, tombstones and what they hide, block maps of deleted files, and the lists of what
each epoch changed go into chunks (`ckptfs.store.packed`), which take a tenth of the space. What the
heads of all lines see stays in the tables, where a request finds it as fast as ever.

The work is done in steps, each of which leaves everything whole, with requests between them: the
records of one chunk and those that belong beside them are written as one or two chunks. Nothing
that a step found is relied on in the next, but for which epochs there are. One such work moves
records at a time: the one that began last.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Generator, Iterator
from itertools import groupby
from operator import itemgetter

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.upkeep import Steps, finish
from ckptfs.model import MAIN_LINE, NO_CONTENT, Epoch, Ino
from ckptfs.store import Store, View
from ckptfs.store.format import (
    NO_EPOCH,
    pack_u32,
    pack_u64,
    suffix_of,
    unpack_inode,
)
from ckptfs.store.packed import Limits, Record, smaller
from ckptfs.store.tables import ByEpoch, Versioned

#: A chunk ends at about this many bytes or records. Chunks of half the size take a tenth more
#: space. A chunk is decoded in 1 ms and written in 4.
CHUNK_BYTES = 512 << 10
_CHUNK_RECORDS = 2_800
#: So many records are packed in a step.
_STEP_RECORDS = 400
#: Records are looked through in parts of this many.
_STRIDE = 32

#: Packing pays when history has so many records in the tables, or as many as this share of the
#: workspace: what is looked through is then a fixed number of times what is gained.
_WORTH = 256
_SHARE = 8


def is_due(store: Store) -> bool:
    """Whether history has enough records in the tables to be worth a look through them."""
    live = sum(_own_inodes(store, line) for line in store.heads)
    live += sum(view.inodes for view in store.excluded_views.values())
    changes = store.by_epoch[0].count()
    history = max(store.inodes.count() - live, changes // 2)
    return history >= max(_WORTH, live // _SHARE)


def _own_inodes(store: Store, line: int) -> int:
    """About how many inodes a line has that no other has."""
    inodes = store.heads[line].inodes
    base = store.epochs.get(store.forks[line].base) if line in store.forks else None
    return inodes if base is None else max(0, inodes - base.inodes)


def head_reads_packed(fs: Filesystem) -> bool:
    """Whether a line has to look for its records among the packed ones, which is slower: after a
    restore, in a fork of an old state, or after the checkpoint that it came from was deleted."""
    return any(True for _ in _reading_packed(fs.store))


def _reading_packed(store: Store) -> Iterator[int]:
    """The lines that look for records among packed ones."""
    packed = store.packed
    for line, head in store.heads.items() if packed.used else ():
        if packed.concerns(head):
            yield line


def pack_records(fs: Filesystem, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Pack all records that no line sees. The caller commits."""
    finish(fs, packing_steps(fs, chunk_bytes))


def unpack_needed(fs: Filesystem) -> None:
    """Bring back all records that a line looks for among packed ones."""
    finish(fs, unpacking_steps(fs))


def packing_steps(fs: Filesystem, chunk_bytes: int = CHUNK_BYTES) -> Steps:
    """Pack all records that no line sees."""
    yield from unpacking_steps(fs)
    store = fs.store
    reading = set(_reading_packed(store))
    parents = {line: store.epochs[head.epoch].parent for line, head in store.heads.items()}
    if parents[MAIN_LINE] == NO_EPOCH or MAIN_LINE in reading:
        return
    for line, head in store.heads.items():
        # What descends from an anchor sees nothing packed, so it may be the anchor. What is not
        # looked at below may not be one.
        is_seen = line not in reading and parents[line] != NO_EPOCH
        store.set_anchor(line, head.epoch if is_seen else NO_EPOCH)
    sight = yield from _look(fs, {parents[line] for line in parents if line not in reading})
    limits = Limits(chunk_bytes, _CHUNK_RECORDS)
    tables: tuple[ByEpoch | Versioned, ...] = (*store.by_epoch, *_versioned(store))
    for table in tables:
        for records in sight.unseen(table):
            if sight.is_over:
                return
            if records:
                store.charge(sum(len(key) + len(value) for key, value in records))
                store.packed.pack(table.kind, records, limits)
            yield None
            if store.packed.is_crowded:
                store.packed.write_one()
                yield None
    while store.packed.write_one():
        yield None
    while (quick := store.packed.pop_quick()) is not None:
        name, chunk = quick
        store.charge(len(chunk))
        found = yield functools.partial(smaller, chunk)
        assert isinstance(found, bytes)
        store.packed.rewrite(name, chunk, found)


def _versioned(store: Store) -> tuple[Versioned, ...]:
    """Inodes last: they tell which contents are looked at no more."""
    return store.dirents, store.blockmap, store.links, store.xattrs, store.inodes


def unpacking_steps(fs: Filesystem) -> Steps:
    """Bring back what lines would look for among packed records: after that they do not look
    there. A disk without space for it leaves things as they are."""
    for line in list(_reading_packed(fs.store)):
        yield from _unpacking(fs, line)


def _unpacking(fs: Filesystem, line: int) -> Steps:
    """The same for one line, if it is still there."""
    store = fs.store
    if line not in store.heads:
        return
    begun, parent = store.heads[line].suffix, store.epochs[store.heads[line].epoch].parent
    if parent == NO_EPOCH:
        return

    def is_over() -> bool:
        return sight.is_over or line not in store.heads or begun not in store.heads[line].seen

    sight = yield from _look(fs, {parent})
    for table in _versioned(store):
        for name in store.packed.names(table.kind):
            for number, entity in enumerate(store.packed.entities(name)):
                if sight.misses(table, entity):
                    store.charge(sum(len(r) for _, r in store.packed.versions(table.kind, entity)))
                    store.packed.unpack(table.kind, entity)
                if not number % _STRIDE:
                    yield None
                    if is_over():
                        return
    if not is_over():
        store.set_anchor(line, store.heads[line].epoch)


def _look(fs: Filesystem, parents: set[Epoch]) -> Generator[None, object, _Sight]:
    fs.flush()
    sight = _Sight(fs.store, parents - {NO_EPOCH})
    yield from sight.find_dead_contents()
    return sight


class _Sight:
    """What heads see of sealed epochs: what their parents do. The work that goes by it ends when
    another begins, perhaps for the head of a restore."""

    def __init__(self, store: Store, parents: Collection[Epoch]) -> None:
        self._store = store
        self._mover = store.packed.mover = object()
        self._parents = parents
        self._views: list[View] = [store.view(parent) for parent in sorted(parents, reverse=True)]
        tree = store.epoch_tree
        sealed = {*store.epochs} - tree.unsealed
        # The lists of hidden ones are read next, and go. But their records are packed: a tombstone
        # must not be without what it hides.
        self._epochs = sorted(sealed - tree.hidden)
        self._suffixes = frozenset(map(suffix_of, sealed))
        #: Contents that some checkpoint has and these views have not.
        self._dead: set[bytes] = set()

    @property
    def is_over(self) -> bool:
        """Whether other work has begun, which may have made another view the anchor's; or an epoch
        went, and with it perhaps what hid others' records."""
        tree = self._store.epoch_tree
        is_gone = any(each not in tree.records or each in tree.hidden for each in self._parents)
        return is_gone or self._store.packed.mover is not self._mover

    def find_dead_contents(self) -> Iterator[None]:
        inodes = groupby(self._store.inodes.versions(b""), key=itemgetter(0))
        for number, (_, versions) in enumerate(inodes):
            interrupts.between()
            rows = [(suffix, record) for _, suffix, record in versions]
            seen = {record for _, record in self._seen(rows)}
            others = {_content(record) for _, record in rows if record and record not in seen}
            if others:
                others -= {_content(record) for record in seen if record}
                self._dead |= others - {pack_u64(NO_CONTENT)}
            if not number % _STRIDE:
                yield

    def _seen(self, rows: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Of the versions of an entity, newest first, the one that each view sees, if any."""
        for view in self._views:
            seen = view.seen
            for row in rows:
                if row[0] in seen:
                    yield row
                    break

    def misses(self, table: Versioned, entity: bytes) -> bool:
        """Whether a view needs something of the entity that is packed."""
        is_dead = table is self._store.blockmap and entity[:8] in self._dead
        return not is_dead and any(table.misses(view, entity) for view in self._views)

    def unseen(self, table: ByEpoch | Versioned) -> Iterator[list[Record]]:
        """The records of sealed epochs that no head sees, in order and as they are at the moment,
        enough for a chunk at a time; nothing now and then."""
        if isinstance(table, ByEpoch):
            yield from self._unseen_by_epoch(table)
            return
        waiting: list[bytes] = []
        size = 0
        for number, (entity, versions) in enumerate(groupby(table.rows(), key=itemgetter(0))):
            interrupts.between()
            rows = list(versions)
            if self._may_be_unseen(table, entity, rows):
                waiting.append(entity)
                size += len(rows)
            if size >= _STEP_RECORDS:
                yield self._unseen_of(table, waiting)
                waiting, size = [], 0
            elif not number % _STRIDE:
                yield []
        yield self._unseen_of(table, waiting)

    def _may_be_unseen(
        self, table: Versioned, entity: bytes, rows: list[tuple[bytes, bytes, bytes]]
    ) -> bool:
        """Only the one record that a view sees is certain to stay."""
        _, suffix, record = rows[0]
        stays = len(rows) == 1 and record and any(suffix in view.seen for view in self._views)
        return not stays or (table is self._store.blockmap and entity[:8] in self._dead)

    def _unseen_of(self, table: Versioned, entities: list[bytes]) -> list[Record]:
        return [record for entity in entities for record in self._unseen(table, entity)]

    def _unseen(self, table: Versioned, entity: bytes) -> Iterator[Record]:
        # A content that no inode has there is not looked at.
        is_dead = table is self._store.blockmap and entity[:8] in self._dead
        rows = list(table.standing(entity))
        stay = set() if is_dead else self._staying(rows)
        for suffix, record in rows:
            if suffix in self._suffixes and suffix not in stay:
                yield entity + suffix, record

    def _staying(self, rows: list[tuple[bytes, bytes]]) -> set[bytes]:
        """The suffixes of what views see of an entity. A tombstone is not needed, unless it hides
        what stays for another view."""
        stay = {suffix for suffix, record in self._seen(rows) if record}
        for view in self._views if stay else ():
            mine = [row for row in rows if row[0] in view.seen]
            if mine and not mine[0][1] and any(suffix in stay for suffix, _ in mine[1:]):
                stay.add(mine[0][0])
        return stay

    def _unseen_by_epoch(self, table: ByEpoch) -> Iterator[list[Record]]:
        found: list[Record] = []
        for epoch in self._epochs:
            for record in table.rows(pack_u32(epoch)):
                interrupts.between()
                found.append(record)
                if len(found) >= _STEP_RECORDS:
                    yield found
                    found = []
        yield found


def _content(record: bytes) -> bytes:
    return pack_u64(unpack_inode(Ino(0), record).content)
