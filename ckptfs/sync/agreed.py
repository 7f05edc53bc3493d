"""What the head may have changed since it last agreed with the lower directory.

Owns the note of the epoch that agreed, and finds from it, by the store's `changes`, the names at
which a write-back has to look. `write_back` decides what to do there; docs/design/in-place.md,
"What a write-back looks at", has the reasons.

    agreed   the ledger has every name as the view of the epoch has it, or had it at a moment
             *within* the epoch, which then was the head
    dirty    names whose entry or inode an epoch wrote that lies between that one and the head

Every name that the set lacks is as the ledger has it. The set may have more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Epoch, Ino, Inode, Place
from ckptfs.store.format import EXCLUDED_EPOCH, NO_EPOCH, dirent_name, unpack_u64
from ckptfs.store.metadata import Agreed
from ckptfs.sync.ledger import ROOT_PLACE, STORED_SLICE, Ledger, ino_of, is_directory, stored

#: To look a dirty name up takes about this many times as long as to come by it in a full walk.
_LOOK_UP = 4
#: A set of so many is used whatever the size of the workspace.
_FEW = 1_000

#: By directory of the store, the names to look at; None for all.
Names = dict[Ino, set[bytes] | None]


class Dirty(NamedTuple):
    names: Names
    #: Places in the ledger of directories that the store may have moved.
    places: dict[Ino, Place]

    @property
    def size(self) -> int:
        """How many names these are at least."""
        return sum(len(names) for names in self.names.values() if names is not None)


class Unknown(Exception):
    """The set cannot be known; why."""


def entries(
    fs: Filesystem, directory: Ino, names: set[bytes] | None
) -> Iterator[tuple[bytes, Inode]]:
    """(name, inode) of a directory of the head, or of those names in it that are there."""
    if names is None:
        yield from fs.entries(fs.head, directory)
        return
    for name in sorted(names):
        with suppress(FileNotFoundError):
            yield name, fs.lookup(fs.head, directory, name)


# -- the note --------------------------------------------------------------------------------------


def forget(fs: Filesystem) -> None:
    fs.store.metadata.put_agreed(None)


def note(fs: Filesystem) -> None:
    """The ledger agrees with the head as it is now."""
    store = fs.store
    fs.flush()
    epoch, parent = fs.head.epoch, store.epochs[fs.head.epoch].parent
    # The parent is the better note: nothing writes to it any more.
    whole = parent != NO_EPOCH and parent not in store.epoch_tree.hidden and _is_empty(fs, epoch)
    agreed = Agreed(parent if whole else epoch, not whole, store.ids.next_ids()[0])
    if agreed != store.metadata.agreed():
        store.metadata.put_agreed(agreed)


def settle(fs: Filesystem, before: Agreed | None) -> None:
    """After a scan, and the checkpoint of what it brought in: note that both sides agree, if they
    do. ``before`` is what was noted before the scan, which drops it where it changes the ledger."""
    agreed = fs.store.metadata.agreed()
    if before is not None:
        is_settled = _agrees(fs, Ledger(fs.store), before)
    elif agreed is not None:
        # The scan has noted it.
        is_settled = agreed == _noted_in(fs, fs.store.epochs[fs.head.epoch].parent, agreed)
    else:
        return
    if is_settled:
        note(fs)
        fs.commit()


def _noted_in(fs: Filesystem, epoch: Epoch, agreed: Agreed) -> Agreed:
    """What a scan notes that ends in the epoch; the epoch was sealed since, and nothing else."""
    return agreed._replace(epoch=epoch, within=True) if _is_empty(fs, fs.head.epoch) else agreed


def _is_empty(fs: Filesystem, epoch: Epoch) -> bool:
    return next(fs.store.changes.walk(epoch), None) is None


def _agrees(fs: Filesystem, ledger: Ledger, agreed: Agreed) -> bool:
    """Whether the ledger has every dirty name as the head has it."""
    try:
        dirty = find(fs, ledger, agreed)
    except Unknown:
        return False
    root = fs.store.ledger.get(*ROOT_PLACE)
    if root is None or root[STORED_SLICE] != stored(fs.getattr(fs.head, ROOT_INO)):
        return False
    return all(_agrees_in(fs, ledger, *item) for item in dirty.names.items())


def _agrees_in(fs: Filesystem, ledger: Ledger, directory: Ino, names: set[bytes] | None) -> bool:
    known = ledger.children(directory, names)
    for name, inode in entries(fs, directory, names):
        value = known.pop(name, None)
        if value is None or value[STORED_SLICE] != stored(inode):
            return False
    return not known


# -- the set ---------------------------------------------------------------------------------------


def find(fs: Filesystem, ledger: Ledger, agreed: Agreed | None) -> Dirty:
    """The names that may differ since then; `Unknown` if all may."""
    if agreed is None:
        raise Unknown("it is not known when both sides last agreed")
    if agreed.epoch not in fs.store.epochs:
        raise Unknown("the epoch in which both sides last agreed is gone")
    return _Search(fs, ledger, agreed).run()


class _Search:
    def __init__(self, fs: Filesystem, ledger: Ledger, agreed: Agreed) -> None:
        self._fs = fs
        self._view = fs.head
        self._ledger = ledger
        self._agreed = agreed
        self._inodes: set[Ino] = set()
        self._entries: set[Place] = set()
        #: Directories of which every entry is looked at, in the ledger also if they are gone.
        self._whole: set[Ino] = set()
        self._names: Names = {ROOT_INO: set()}
        self._places: dict[Ino, Place] = {}

    def run(self) -> Dirty:
        self._collect()
        excluded = self._collect_excluded()
        for directory in self._whole:
            if self._is_directory(directory):
                self._names[directory] = None
        for ino in self._inodes:
            self._add_inode(ino)
        for directory, name in self._entries:
            if self._is_directory(directory):
                self._add(directory, name)
        self._add_ways()
        self._find_places()
        if excluded or self._agreed.within:
            self._require_places()
        return Dirty(self._names, self._places)

    # -- what was written ---------------------------------------------------------------------

    def _collect(self) -> None:
        store, agreed = self._fs.store, self._agreed
        epochs = store.epoch_tree.between(agreed.epoch, self._view.epoch)
        if agreed.within and agreed.epoch not in epochs:
            epochs.append(agreed.epoch)
        limit = max(_FEW, self._view.inodes // _LOOK_UP)
        for epoch in epochs:
            for kind in (store.inodes.kind, store.xattrs.kind):
                for entity in store.changes.walk(epoch, kind):
                    self._inodes.add(Ino(unpack_u64(entity[:8])))
                    self._require_few(limit)
            for place in self._entries_of(epoch):
                self._entries.add(place)
                self._require_few(limit)
        if agreed.within:
            # What came before the agreement and went after it, all in one epoch, left no trace but
            # in the directory.
            self._whole |= {directory for directory, _ in self._entries} | self._inodes

    def _entries_of(self, epoch: Epoch) -> Iterator[Place]:
        store = self._fs.store
        for entity in store.changes.walk(epoch, store.dirents.kind):
            yield Ino(unpack_u64(entity[:8])), dirent_name(entity)

    def _require_few(self, limit: int) -> None:
        if len(self._inodes) + len(self._entries) > limit:
            raise Unknown("most of it may have changed")

    def _collect_excluded(self) -> bool:
        """What is excluded has one epoch for ever, and what goes leaves no trace in it: all of its
        directories are looked at. Whether there are any."""
        if self._view.excluded is None:
            return False
        found = {directory for directory, _ in self._entries_of(EXCLUDED_EPOCH)}
        found.update(self._fs.exclusion.borders)
        self._whole |= found
        # A directory that history has, too, may have lost its last entry here.
        known = self._inodes | {directory for directory, _ in self._entries}
        self._whole |= {ino for ino in known if self._fs.is_own(self._view.excluded, ino)}
        return bool(found)

    # -- where it stands ----------------------------------------------------------------------

    def _alive(self, ino: Ino) -> Inode | None:
        try:
            inode = self._fs.getattr(self._view, ino)
        except OSError:
            return None
        return inode if inode.nlink else None

    def _is_directory(self, ino: Ino) -> bool:
        inode = self._alive(ino)
        return inode is not None and inode.is_dir

    def _add(self, directory: Ino, name: bytes) -> None:
        names = self._names.setdefault(directory, set())
        if names is not None:
            names.add(name)

    def _add_inode(self, ino: Ino) -> None:
        """All names of a file: they stand for one lower file."""
        inode = self._alive(ino)
        if inode is None:
            return
        if inode.is_dir:
            self._names.setdefault(ino, set())
            return
        for directory, name in self._fs.places_of(self._view, inode):
            self._add(directory, name)

    def _add_ways(self) -> None:
        """The names that lead from the root to each directory."""
        for directory in list(self._names):
            ino = directory
            while ino != ROOT_INO:
                inode = self._fs.getattr(self._view, ino)
                is_known = inode.parent in self._names
                self._add(inode.parent, inode.name)
                if is_known:
                    break
                ino = inode.parent

    # -- where the ledger has it --------------------------------------------------------------

    def _find_places(self) -> None:
        for directory, name in self._entries:
            value = self._fs.store.ledger.get(directory, name)
            if value is not None and is_directory(value):
                self._places[ino_of(value)] = (directory, name)
        for directory in self._whole:
            for name, value in self._ledger.children(directory).items():
                if is_directory(value):
                    self._places[ino_of(value)] = (directory, name)

    def _require_places(self) -> None:
        """A directory may have left another that came and went without a trace."""
        for ino in self._names:
            if ino >= self._agreed.next_ino or ino == ROOT_INO or ino in self._places:
                continue
            inode = self._fs.getattr(self._view, ino)
            record = self._ledger.get(inode.parent, inode.name)
            if record is None or record.ino != ino:
                raise Unknown("it is not known where a directory stands in the lower directory")
