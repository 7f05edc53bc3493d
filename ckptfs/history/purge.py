"""Purging: removing files from the workspace and from every checkpoint, as if they never existed.

For a secret that must not be kept. Nothing else changes checkpoints. The inodes at a path in any
view go, with all their other names; `compact` then leaves nothing of them in the store's file.
Other files with the same bytes stay and are reported. The lower directory is not searched.

It runs in steps. First it looks, and nothing is changed. Then blocks that depend on doomed ones
are stored on their own. Then inode after inode goes, those in a directory before the directory,
each from every epoch at once and with all that counts it: so everything is whole between any two,
whatever programs do meanwhile. What is to be purged is noted in the store until it is done.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.errors import Interrupted
from ckptfs.fs import Filesystem, filesystems
from ckptfs.history import removal
from ckptfs.history.diff import compare
from ckptfs.history.diff.changed import Changed
from ckptfs.history.paths import path_of
from ckptfs.history.purge_plan import Doomed, ever_in, finding, inode_versions, pause
from ckptfs.interrupts import Steps
from ckptfs.model import NO_CONTENT, ROOT_INO, Epoch, Ino, Inode, Place
from ckptfs.store import Store, View
from ckptfs.store.epochs import alone
from ckptfs.store.format import (
    EXCLUDED_EPOCH,
    GONE,
    NO_EPOCH,
    dirent_entity,
    epoch_of,
    is_excluded,
    line_key,
    link_place,
    pack_inode,
    pack_u64,
    unpack_inode,
    unpack_mapping,
    unpack_u64,
)

#: Under which name the store notes what is being purged.
_NOTE = b"purge"

#: Blocks of a file are dropped together up to so many bytes: that takes about 3 ms.
_STEP_BYTES = 16 << 20

#: Called with how many files are gone, and of how many.
OnFiles = Callable[[int, int], None]
#: Called with what the kernel has to hear.
OnChanged = Callable[[Changed], None]


class Purged(NamedTuple):
    """A purge that is done. ``elsewhere`` are paths of other files that hold some of the bytes."""

    doomed: Doomed
    elsewhere: list[bytes]


def owed(store: Store) -> list[bytes] | None:
    """The paths whose purge was begun and not ended, by the end of the process; None if there is
    no such purge. It is empty if only their bytes are still in the store's file."""
    noted = store.metadata.get(_NOTE)
    return None if noted is None else [os.fsencode(path) for path in json.loads(noted)]


def settle(store: Store) -> None:
    """Nothing is owed any more."""
    store.metadata.delete(_NOTE)


def _owe(store: Store, paths: Iterable[bytes]) -> None:
    store.metadata.put(_NOTE, json.dumps([os.fsdecode(path) for path in paths]).encode())


def copies(fs: Filesystem, doomed: Doomed) -> Steps[list[bytes]]:
    """Paths of other files that hold some of the bytes: a purge leaves them."""
    fs.flush()
    store, pieces = fs.store, set[bytes]()
    for ino in doomed.inodes:
        for _, inode in inode_versions(store, ino):
            content = unpack_inode(ino, inode).content if inode else NO_CONTENT
            if content == NO_CONTENT:
                continue
            for _, _, record in store.blockmap.versions(pack_u64(content)):
                if interrupts.is_due():
                    yield from pause(store)
                if record:
                    pieces.add(_name(store, record))
    return (yield from _elsewhere(store, pieces, besides=doomed.inodes))


# -- removing --------------------------------------------------------------------------------------


class _Tree:
    """Which epochs see what another one wrote: itself and all that descend from it. They have
    numbers in a row."""

    def __init__(self, store: Store) -> None:
        tree = store.epoch_tree
        #: Every epoch, its parent before it.
        self.order: list[Epoch] = []
        self._numbers: dict[Epoch, int] = {}
        self._last: dict[Epoch, int] = {}
        pending: list[tuple[Epoch, bool]] = [(root, False) for root in tree.children(NO_EPOCH)]
        while pending:
            epoch, is_done = pending.pop()
            if is_done:
                self._last[epoch] = len(self.order) - 1
                continue
            self._numbers[epoch] = len(self.order)
            self.order.append(epoch)
            pending.append((epoch, True))
            pending += [(child, False) for child in tree.children(epoch)]
        # No epoch of history sees an excluded one, nor the other way round.
        for view in store.excluded_views.values():
            self._numbers[view.epoch] = self._last[view.epoch] = len(self._numbers)

    def sees(self, epoch: Epoch, other: Epoch) -> bool:
        """Whether an epoch sees what another one wrote."""
        return self._numbers[other] <= self._numbers[epoch] <= self._last[other]

    def inherited(self, versions: Iterable[tuple[Epoch, bytes]]) -> dict[Epoch, bytes]:
        """By the epoch of each version of an entity, the one that it would see without its own;
        GONE if none."""
        found: dict[Epoch, bytes] = {}
        way: list[tuple[Epoch, bytes]] = []
        for epoch, record in sorted(versions, key=lambda version: self._numbers[version[0]]):
            while way and not self.sees(epoch, way[-1][0]):
                way.pop()
            found[epoch] = way[-1][1] if way else GONE
            way.append((epoch, record))
        return found

    def seen(self, versions: Iterable[tuple[Epoch, bytes]], epoch: Epoch) -> bytes:
        """The version that an epoch sees; GONE if none."""
        visible = [version for version in versions if self.sees(epoch, version[0])]
        return max(visible, key=lambda version: self._numbers[version[0]], default=(0, GONE))[1]


def purge(
    fs: Filesystem, paths: Sequence[bytes], on_changed: OnChanged = lambda changed: None
) -> Purged:
    """Remove it from every view. The caller commits, compacts, and notifies the kernel."""
    return interrupts.finish(purging(fs, paths, on_changed))


def purging(
    fs: Filesystem,
    paths: Sequence[bytes],
    on_changed: OnChanged,
    on_files: OnFiles = lambda done, total: None,
) -> Steps[Purged]:
    """`purge` in steps."""
    freed = yield from removal.freeing(fs)
    if not freed:
        raise Interrupted
    doomed = yield from finding(fs, paths)
    bases = yield from _bases(fs.store, doomed.inodes)
    if doomed.inodes:
        yield from _detach_all(fs.store, bases)
        # What goes leaves no trace in `changes`, which tells a write-back where to look.
        fs.store.metadata.put_agreed(None)
        _owe(fs.store, paths)
        fs.commit()
    remover = _Remover(fs, on_changed, on_files)
    opened = _open_excluding(fs)
    try:
        yield from remover.remove_all(doomed.inodes)
    except Interrupted:
        settle(fs.store)
        compare.forget_counts(fs.store)
        raise Interrupted(_left(len(remover.removed), len(doomed.inodes))) from None
    finally:
        for each in opened:
            each.close()
    compare.forget_counts(fs.store)
    everything = doomed._replace(inodes=doomed.inodes | remover.removed)
    if not doomed.inodes:
        return Purged(everything, [])
    _owe(fs.store, ())
    # To its end: nothing is left that the same purge once more could be asked for.
    elsewhere = yield from interrupts.unstopped(_elsewhere(fs.store, remover.pieces))
    return Purged(everything, elsewhere)


def _open_excluding(fs: Filesystem) -> list[Filesystem]:
    """File systems for the forks without one that keep something out of history: they know their
    borders."""
    known = {each.line for each in filesystems(fs.store)}
    wanted = [line for line in fs.store.excluded_views if line not in known]
    return [Filesystem(fs.store, fs.clock, line=line) for line in wanted]


def _left(done: int, total: int) -> str:
    return (
        f"{done:,} of {total:,} files were purged, from the workspace and every checkpoint; the "
        "others are as they were. Free pages of the store may have bytes of the purged ones until "
        "`ckptfs compact`, or the same purge once more."
    )


def _bases(store: Store, inodes: Iterable[Ino]) -> Steps[set[bytes]]:
    """The blocks of doomed files, and the packs that they are in."""
    found: set[bytes] = set()
    for ino in inodes:
        if interrupts.is_due():
            yield from pause(store)
        for content in _contents(store, ino):
            for _, _, record in store.blockmap.versions(content):
                if interrupts.is_due():
                    yield from pause(store)
                if record and (key := unpack_mapping(record).key):
                    found.add(key)
                    if (pack := store.blocks.pack_of(key)) is not None:
                        found.add(pack)
    return found


def _contents(store: Store, ino: Ino) -> set[bytes]:
    """Every content that an inode ever had."""
    records = (record for _, record in inode_versions(store, ino) if record)
    contents = {unpack_inode(ino, record).content for record in records}
    return {pack_u64(content) for content in contents - {NO_CONTENT}}


def _detach_all(store: Store, bases: set[bytes]) -> Steps[None]:
    """Store blocks that are encoded against one of these, or packed in one, on their own: nothing
    else may keep a purged block."""
    found: list[tuple[list[bytes], bytes]] = []
    for key, needed in store.blocks.possible_bases():
        if interrupts.is_due():
            yield
        if not bases.isdisjoint(needed):
            found.append((needed, key))
    # One pack after the other, since each is decoded as a whole.
    found.sort()
    for _, key in found:
        if interrupts.is_due():
            yield
        if not bases.isdisjoint(store.blocks.bases_of(key)):
            store.note()
            store.blocks.detach(key)


class _Remover:
    """Takes inodes out of every epoch."""

    def __init__(self, fs: Filesystem, on_changed: OnChanged, on_files: OnFiles) -> None:
        self._fs = fs
        self._on_changed, self._on_files = on_changed, on_files
        self._total = 0
        self._store = fs.store
        self._tree = _Tree(fs.store)
        self._tree_of = self._state_of_tree()
        self.removed: set[Ino] = set()
        #: The keys that their bytes had, or would have if they were not inline.
        self.pieces: set[bytes] = set()
        self._changed = Changed(set(), set())
        #: By epoch, how many more of them it has lost than its parent has.
        self._lost: Counter[Epoch] = Counter()
        #: By inode and epoch, the bytes of its blocks that were dropped and are still counted.
        self._emptied: Counter[tuple[Ino, Epoch]] = Counter()

    def remove_all(self, inodes: Collection[Ino]) -> Steps[None]:
        """Remove inodes, and what was ever in those that are directories before these."""
        self._total = len(inodes)
        entered: set[Ino] = set()
        for top in inodes:
            pending = [top]
            while pending:
                if interrupts.is_due():
                    yield from self._pause()
                ino = pending[-1]
                if ino in entered:
                    pending.pop()
                    if _is_large(self._store, ino):
                        # Once begun it is done: a file with holes is not as it was.
                        yield from interrupts.unstopped(self._empty(ino))
                    self._remove(ino)
                else:
                    entered.add(ino)
                    pending += yield from self._entries(ino, entered)
        self._end_slice()

    def _empty(self, ino: Ino) -> Steps[None]:
        """Drop the blocks of a large file before it goes, in slices. Meanwhile it has holes, in
        every epoch, and is whole but for that."""
        blockmap = self._store.blockmap
        for content in _contents(self._store, ino):
            claims = _claims(self._store, ino, content)
            for entity, _ in groupby(blockmap.versions(content), key=itemgetter(0)):
                if interrupts.is_due():
                    yield from self._pause()
                    claims = _claims(self._store, ino, content)
                rows = [
                    (epoch_of(suffix), record) for _, suffix, record in blockmap.versions(entity)
                ]
                for epoch in claims:
                    seen = self._tree.seen(rows, epoch)
                    self._emptied[ino, epoch] += unpack_mapping(seen).length if seen else 0
                self.pieces.update(_drop_blocks(self._store, entity))

    def _entries(self, directory: Ino, entered: set[Ino]) -> Steps[list[Ino]]:
        found: dict[Ino, None] = {}
        for ino in ever_in(self._store, directory):
            if interrupts.is_due():
                yield from self._pause()
            if ino not in entered:
                found[ino] = None
        return list(found)

    def _pause(self) -> Steps[None]:
        self._end_slice()
        self._on_files(len(self.removed), max(self._total, len(self.removed)))
        yield
        if removal.needs_commit(self._store):
            self._store.commit()
            yield
        # A write-back may have noted meanwhile that both sides agree.
        self._store.metadata.put_agreed(None)
        self._store.pending.flush_tables()
        if self._tree_of != self._state_of_tree():
            self._tree, self._tree_of = _Tree(self._store), self._state_of_tree()

    def _state_of_tree(self) -> tuple[int, int]:
        """What differs when epochs came or went."""
        return len(self._store.epochs), self._store.ids.epoch

    def _end_slice(self) -> None:
        """Make everything whole: what views count, and what the kernel has to hear."""
        store, totals = self._store, {NO_EPOCH: 0}
        for epoch in self._tree.order if self._lost else ():
            lost = totals[epoch] = totals[store.epochs[epoch].parent] + self._lost[epoch]
            if lost:
                # The record of a head counts what was flushed.
                is_head = epoch in store.head_epochs
                inodes = store.view(epoch).inodes if is_head else store.epochs[epoch].inodes
                store.recount_epoch(epoch, inodes - lost)
        for view in store.excluded_views.values():
            if self._lost[view.epoch]:
                store.note()
                view.inodes -= self._lost[view.epoch]
        self._lost.clear()
        for (ino, epoch), less in self._emptied.items():
            _shrink(self._fs, ino, epoch, less)
        self._emptied.clear()
        if self._changed.inodes:
            self._on_changed(self._changed)
            self._changed = Changed(set(), set())

    def _remove(self, ino: Ino) -> None:
        """Remove an inode with what is still in it: what a program has put there since, and a
        directory that it was in itself, in another epoch."""
        group = {} if ino in self.removed else {ino: None}
        pending = list(group)
        while pending:
            new = set(ever_in(self._store, pending.pop())) - group.keys() - {ROOT_INO}
            group.update(dict.fromkeys(new))
            pending += new
        for member in group:
            self._remove_one(member)

    def _remove_one(self, ino: Ino) -> None:
        store, versions = self._store, inode_versions(self._store, ino)
        inodes = [(epoch, unpack_inode(ino, record)) for epoch, record in versions if record]
        inherited = self._tree.inherited(versions)
        for epoch, record in versions:
            self._lost[epoch] += bool(record) - bool(inherited[epoch])
        places = {(inode.parent, inode.name) for _, inode in inodes if inode.name}
        places |= {link_place(entity) for entity, _, _ in store.links.versions(pack_u64(ino))}
        if any(inode.is_dir for _, inode in inodes):
            self._uncount(ino, versions, {inode.parent for _, inode in inodes})
        for content in _contents(store, ino):
            self.pieces.update(_drop_blocks(store, content))
        for table in (store.links, store.xattrs, store.inodes):
            for entity, suffix, _ in list(table.versions(pack_u64(ino))):
                store.note()
                table.forget(_at_epoch(store, epoch_of(suffix)), entity)
        for place in places:
            self._drop_entry(place, ino)
        self._changed.entries.update(places)
        self._changed.inodes.add(ino)
        self.removed.add(ino)
        for fs in filesystems(store):
            _forget(fs, ino)
        for line in store.heads:
            store.orphans.delete(line_key(ino, line))

    def _uncount(self, ino: Ino, versions: list[tuple[Epoch, bytes]], parents: set[Ino]) -> None:
        """Correct the link counts of directories that a doomed one is or was in."""
        for fs in filesystems(self._store):
            if ino in fs.exclusion.borders:
                fs.exclusion.drop(ino)
        for parent in parents - {Ino(0)}:
            directories = inode_versions(self._store, parent)
            for epoch, record in directories:
                seen = self._tree.seen(versions, epoch)
                if record and seen and _is_in(unpack_inode(ino, seen), parent):
                    directory = unpack_inode(parent, record)
                    for fs in filesystems(self._store):
                        fs.changing(parent)
                    less = pack_inode(directory._replace(nlink=directory.nlink - 1))
                    self._store.inodes.put(_at_epoch(self._store, epoch), pack_u64(parent), less)
            for fs in filesystems(self._store):
                self._uncount_border(fs, ino, versions, parent, directories)

    def _uncount_border(
        self,
        fs: Filesystem,
        ino: Ino,
        versions: list[tuple[Epoch, bytes]],
        parent: Ino,
        directories: list[tuple[Epoch, bytes]],
    ) -> None:
        excluded = fs.head.excluded
        if excluded is None or any(epoch == excluded.epoch for epoch, _ in directories):
            return
        seen = self._tree.seen(versions, excluded.epoch)
        if seen and _is_in(unpack_inode(ino, seen), parent):
            fs.exclusion.touch(parent, fs.clock(), subdirs=-1)

    def _drop_entry(self, place: Place, ino: Ino) -> None:
        """Remove a name of the inode in every view that has it.

        The oldest version comes first, so that what the next would inherit is already right: a name
        that meant another file before must not mean that file again.
        """
        entity, dirents = dirent_entity(*place), self._store.dirents
        found = [(epoch_of(suffix), record) for _, suffix, record in dirents.versions(entity)]
        left = dict(found)
        for epoch, record in sorted(found):
            if record not in (GONE, pack_u64(ino)):
                continue
            if self._tree.inherited(left.items())[epoch]:
                left[epoch] = GONE
                dirents.put(_at_epoch(self._store, epoch), entity, GONE)
            else:
                del left[epoch]
                dirents.forget(_at_epoch(self._store, epoch), entity)


def _is_in(inode: Inode, parent: Ino) -> bool:
    return inode.is_dir and inode.nlink > 0 and inode.parent == parent


def _at_epoch(store: Store, epoch: Epoch) -> View:
    """A view to write records of an epoch with: it sees no other."""
    writable = is_excluded(epoch) or not store.epochs[epoch].sealed
    return alone(epoch, writable=writable, inodes=0)


def _is_large(store: Store, ino: Ino) -> bool:
    """Whether an inode has, or had, more blocks than may be dropped in one step."""
    records = (record for _, record in inode_versions(store, ino) if record)
    return any(unpack_inode(ino, record).allocated > _STEP_BYTES for record in records)


def _claims(store: Store, ino: Ino, content: bytes) -> list[Epoch]:
    """The epochs whose version of an inode has this content."""
    versions = [(epoch, record) for epoch, record in inode_versions(store, ino) if record]
    return [epoch for epoch, it in versions if pack_u64(unpack_inode(ino, it).content) == content]


def _shrink(fs: Filesystem, ino: Ino, epoch: Epoch, less: int) -> None:
    """Count so many bytes less for the version of an inode that an epoch has."""
    view = _at_epoch(fs.store, epoch)
    record = fs.store.inodes.own(view, pack_u64(ino))
    if record and less:
        inode = unpack_inode(ino, record)
        fs.changing(ino)
        shrunk = pack_inode(inode._replace(allocated=inode.allocated - less))
        fs.store.inodes.put(view, pack_u64(ino), shrunk)


def _drop_blocks(store: Store, prefix: bytes) -> Iterator[bytes]:
    """Drop every block under a content, or the versions of one; yield the key of the bytes of
    each."""
    for entity, suffix, record in store.blockmap.versions(prefix):
        store.note()
        store.blockmap.forget(_at_epoch(store, epoch_of(suffix)), entity)
        if record:
            yield _name(store, record)
            if key := unpack_mapping(record).key:
                store.blocks.release(key)


def _name(store: Store, record: bytes) -> bytes:
    """The key that the bytes of a block have, or would have if they were not inline."""
    mapping = unpack_mapping(record)
    return mapping.key or store.blocks.digest(mapping.inline, 0)


def _forget(fs: Filesystem, ino: Ino) -> None:
    """Forget the inode; a program that has it open finds it stale."""
    fs.partial.drop_file(ino)
    fs.changing(ino)
    fs.unlinked.discard(ino)
    fs.forgotten.discard(ino)


def _elsewhere(
    store: Store, pieces: set[bytes], besides: Collection[Ino] = ()
) -> Steps[list[bytes]]:
    """Paths of files that still hold one of the pieces, besides some: the same block or the same
    inline bytes."""
    contents: set[bytes] = set()
    for entity, _, record in store.blockmap.versions(b"") if pieces else ():
        if interrupts.is_due():
            yield from pause(store)
        if record and _name(store, record) in pieces:
            contents.add(entity[:8])
    found: set[bytes] = set()
    for entity, suffix, record in store.inodes.versions(b"") if contents else ():
        if interrupts.is_due():
            yield from pause(store)
        ino, epoch = Ino(unpack_u64(entity)), epoch_of(suffix)
        if not record or ino in besides:
            continue
        if pack_u64(unpack_inode(ino, record).content) in contents:
            found.update(_paths(store, epoch, ino))
    return sorted(found)


def _paths(store: Store, epoch: Epoch, ino: Ino) -> Iterator[bytes]:
    """The paths of an inode in the view of an epoch, if both are still there."""
    with suppress(KeyError):  # the epoch was removed meanwhile
        view = store.excluded_views[EXCLUDED_EPOCH - epoch] if is_excluded(epoch) else None
        view = store.view(epoch).bare if view is None else view
        record = store.inodes.get(view, pack_u64(ino))
        inode = unpack_inode(ino, record) if record else None
        links = store.links.walk(view, pack_u64(ino))
        places = [link_place(entity) for entity, _ in links]
        if inode is not None:
            places.append((inode.parent, inode.name))
        for place in places:
            if place[1]:
                yield path_of(store, view, place)
