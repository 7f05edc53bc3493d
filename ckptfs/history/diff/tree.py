"""Comparing two trees: what differs between two views, path by path.

Uses the `changes` index: the cost is what was written between the two, never the size of the tree.
What a path was before is decided in this order: a directory is the same wherever it was moved; a
file is what was at the same path; a file that only lost its name and one that only gained one are
the same if their inodes or bytes are. docs/design/diff.md gives the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.diff.changed import (
    TIMES,
    block_records,
    changed_of,
    differences,
    differing_blocks,
    entities_between,
    entry_in,
    inode_in,
)
from ckptfs.history.paths import ROOT_PATH
from ckptfs.model import ROOT_INO, Ino, Inode, Place
from ckptfs.store import Store, View
from ckptfs.store.format import dirent_entity, link_place, pack_u64

#: What the parent of the root is called in its inode.
_NOWHERE = Ino(0)


class TreeReader:
    """One view, as far as it was looked at. An inode without a name counts as absent."""

    def __init__(self, store: Store, view: View) -> None:
        self._store = store
        self.view = view.bare
        self._inodes: dict[Ino, Inode | None] = {}
        self._paths: dict[Ino, bytes] = {ROOT_INO: b""}

    def inode(self, ino: Ino | None) -> Inode | None:
        if ino is None:
            return None
        if ino not in self._inodes:
            found = inode_in(self._store, self.view, ino)
            self._inodes[ino] = found if found is not None and found.nlink else None
        return self._inodes[ino]

    def entry(self, place: Place) -> Ino | None:
        return entry_in(self._store, self.view, dirent_entity(*place))

    def places(self, inode: Inode) -> list[Place]:
        """Every name of an inode."""
        places = [(inode.parent, inode.name)]
        if not inode.is_dir and inode.nlink > 1:
            further = self._store.links.walk(self.view, pack_u64(inode.ino))
            places += [link_place(entity) for entity, _ in further]
        return places

    def path(self, place: Place) -> bytes:
        """The path of a place, relative to the root."""
        directory, name = place
        above = self.directory_path(directory)
        return above + b"/" + name if above else name

    def directory_path(self, ino: Ino) -> bytes:
        below = []
        while ino not in self._paths:
            inode = self._inodes.get(ino) or inode_in(self._store, self.view, ino)
            if inode is None:
                raise LookupError(f"epoch {self.view.epoch} has no directory {ino}")
            below.append((ino, inode.name))
            ino = inode.parent
        path = self._paths[ino]
        for directory, name in reversed(below):
            path = path + b"/" + name if path else name
            self._paths[directory] = path
        return path


class Partners:
    """Which directory of one tree is a directory of the other.

    The same inode, if it is there too: then it was moved at most. Else the directory in the same
    place, if that in turn is not here: a directory that was removed and made again is still the
    same for a comparison of paths.
    """

    def __init__(self, here: TreeReader, there: TreeReader) -> None:
        self._here = here
        self._there = there
        self._known: dict[Ino, Ino | None] = {_NOWHERE: None}

    def of(self, ino: Ino) -> Ino | None:
        """The partner of a directory that is here, or None."""
        # Up to one that is known, then down again: trees are deeper than the stack.
        chain: list[Inode] = []
        while ino not in self._known:
            if self._there.inode(ino) is not None:
                self._known[ino] = ino
                break
            inode = self._here.inode(ino)
            if inode is None:
                raise LookupError(f"epoch {self._here.view.epoch} has no directory {ino}")
            chain.append(inode)
            ino = inode.parent
        partner = self._known[ino]
        for inode in reversed(chain):
            partner = None if partner is None else self._in_place((partner, inode.name))
            self._known[inode.ino] = partner
        return partner

    def _in_place(self, place: Place) -> Ino | None:
        found = self._there.inode(self._there.entry(place))
        if found is None or not found.is_dir or self._here.inode(found.ino) is not None:
            return None
        return found.ino


ADDED = "added"
DELETED = "deleted"
RENAMED = "renamed"


@dataclass(frozen=True)
class Change:
    """One path that differs. ``kinds`` says how, in words of this module and of `changed`.

    ``path`` is where it is in the newer view, or where it was if it is deleted. ``source`` is where
    it was in the older one, None if it was not there; it differs from ``path`` also if only a
    directory above was renamed. What is below a renamed directory is not listed for that.
    """

    path: bytes
    source: bytes | None
    kinds: frozenset[str]
    old: Inode | None
    new: Inode | None

    @property
    def old_path(self) -> bytes | None:
        """What it was called before it was renamed itself; None if it was not."""
        return self.source if RENAMED in self.kinds else None

    @property
    def only_times(self) -> bool:
        return self.kinds == {TIMES}


def compare_views(fs: Filesystem, a: View, b: View) -> list[Change]:
    """What became of ``a`` on the way to ``b``, ordered by path."""
    fs.flush()
    return sorted(unordered_changes(fs, a, b), key=lambda change: (change.path, change.old is None))


def unordered_changes(fs: Filesystem, a: View, b: View) -> Iterator[Change]:
    """The same in no order, for a caller that has flushed: a list compares ten thousand pairs."""
    return _Comparison(fs, a.bare, b.bare).changes()


class _Slot(NamedTuple):
    """A place in each tree that a path goes by: None where the directory has no partner."""

    old: Place | None
    new: Place | None


class _Named(NamedTuple):
    """A name, and what it leads to in its view."""

    place: Place
    inode: Inode


class _Comparison:
    def __init__(self, fs: Filesystem, a: View, b: View) -> None:
        self._fs = fs
        written = entities_between(fs.store, a, b)
        self._blocks = differing_blocks(fs.store, a, b, written.blocks)
        self._changed = changed_of(fs.store, a, b, written, self._blocks)
        self._old = TreeReader(fs.store, a)
        self._new = TreeReader(fs.store, b)
        self._lost: list[_Named] = []
        self._gained: list[_Named] = []

    def changes(self) -> Iterator[Change]:
        yield from self._in_place()
        for slot in interrupts.checked(self._slots()):
            yield from self._at(slot)
        yield from self._moved()

    # -- under names that did not change ----------------------------------------------------------

    def _in_place(self) -> Iterator[Change]:
        for ino in interrupts.checked(self._changed.inodes):
            old, new = self._old.inode(ino), self._new.inode(ino)
            if old is None or new is None:
                continue
            if ino == ROOT_INO:
                yield from self._pair(ROOT_PATH, ROOT_PATH, old, new)
                continue
            for place in self._new.places(new):
                if place not in self._changed.entries:
                    yield from self._pair(self._old.path(place), self._new.path(place), old, new)

    def _pair(self, old_path: bytes, path: bytes, old: Inode, new: Inode) -> Iterator[Change]:
        kinds = self._differences(old, new)
        if kinds:
            yield Change(path, old_path, kinds, old, new)

    def _differences(self, old: Inode, new: Inode) -> frozenset[str]:
        return differences(self._fs, self._old.view, old, self._new.view, new, self._blocks)

    # -- where names changed ----------------------------------------------------------------------

    def _slots(self) -> set[_Slot]:
        to_new = Partners(self._old, self._new)
        to_old = Partners(self._new, self._old)
        slots = set()
        for directory, name in interrupts.checked(self._changed.entries):
            if self._old.inode(directory) is not None:
                there = to_new.of(directory)
                slots.add(_Slot((directory, name), None if there is None else (there, name)))
            if self._new.inode(directory) is not None:
                there = to_old.of(directory)
                slots.add(_Slot(None if there is None else (there, name), (directory, name)))
        return slots

    def _at(self, slot: _Slot) -> Iterator[Change]:
        old, new = _named_at(self._old, slot.old), _named_at(self._new, slot.new)
        if not (old and new and old.inode.ino == new.inode.ino):
            if old and old.inode.is_dir and self._new.inode(old.inode.ino):
                old = None  # moved: reported at its new place
            if new and new.inode.is_dir and (was := self._old.inode(new.inode.ino)):
                yield self._renamed(_Named((was.parent, was.name), was), new)
                new = None
        if old and new:
            old_path, path = self._old.path(old.place), self._new.path(new.place)
            yield from self._pair(old_path, path, old.inode, new.inode)
        elif old:
            yield from self._gone(old)
        elif new:
            yield from self._came(new)

    def _gone(self, named: _Named) -> Iterator[Change]:
        if named.inode.is_dir:
            yield self._deleted(named)
        else:
            self._lost.append(named)

    def _came(self, named: _Named) -> Iterator[Change]:
        if named.inode.is_dir:
            yield self._added(named)
        else:
            self._gained.append(named)

    def _deleted(self, named: _Named) -> Change:
        path = self._old.path(named.place)
        return Change(path, path, frozenset({DELETED}), named.inode, None)

    def _added(self, named: _Named) -> Change:
        path = self._new.path(named.place)
        return Change(path, None, frozenset({ADDED}), None, named.inode)

    def _renamed(self, lost: _Named, gained: _Named) -> Change:
        kinds = self._differences(lost.inode, gained.inode) | {RENAMED}
        old_path, path = self._old.path(lost.place), self._new.path(gained.place)
        return Change(path, old_path, kinds, lost.inode, gained.inode)

    # -- files that moved -------------------------------------------------------------------------

    def _moved(self) -> Iterator[Change]:
        self._lost.sort(key=lambda named: self._old.path(named.place))
        self._gained.sort(key=lambda named: self._new.path(named.place))
        yield from self._joined(_by_inode)
        common = _sizes(self._lost) & _sizes(self._gained)
        if common:
            lasting = _Fingerprints(self._fs, common)
            yield from self._joined(lasting.with_name)
            yield from self._joined(lasting.of)
        yield from map(self._deleted, self._lost)
        yield from map(self._added, self._gained)

    def _joined(self, key: Callable[[_Named, View], Hashable]) -> Iterator[Change]:
        """Join each lost name with a gained one of the same key; None joins nothing."""
        waiting: dict[Hashable, list[_Named]] = {}
        for named in interrupts.checked(reversed(self._lost)):
            waiting.setdefault(key(named, self._old.view), []).append(named)
        waiting.pop(None, None)
        taken: set[Place] = set()
        left = []
        for named in interrupts.checked(self._gained):
            candidates = waiting.get(key(named, self._new.view))
            if candidates:
                lost = candidates.pop()
                taken.add(lost.place)
                yield self._renamed(lost, named)
            else:
                left.append(named)
        self._gained = left
        self._lost = [named for named in self._lost if named.place not in taken]


def _named_at(tree: TreeReader, place: Place | None) -> _Named | None:
    inode = None if place is None else tree.inode(tree.entry(place))
    return None if inode is None or place is None else _Named(place, inode)


def _by_inode(named: _Named, view: View) -> Hashable:
    return named.inode.ino


def _sizes(names: list[_Named]) -> set[int]:
    return {named.inode.size for named in names if named.inode.is_file and named.inode.size}


class _Fingerprints:
    """Keys of files that hold the same bytes; nothing is read for them but block maps."""

    def __init__(self, fs: Filesystem, sizes: set[int]) -> None:
        self._fs = fs
        self._sizes = sizes

    def of(self, named: _Named, view: View) -> Hashable:
        inode = named.inode
        if not inode.is_file or inode.size not in self._sizes:
            return None
        blocks = block_records(self._fs, view, inode)
        return inode.size, tuple(sorted(blocks.items()))

    def with_name(self, named: _Named, view: View) -> Hashable:
        """Of several files with the same bytes, the one of the same name is the likeliest."""
        fingerprint = self.of(named, view)
        return None if fingerprint is None else (fingerprint, named.place[1])
