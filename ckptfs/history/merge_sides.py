"""The three sides of a merge: the base, ours and theirs, and what became of each thing in them.

Everything is looked up by what differs from the base (`ckptfs.history.diff.tree`): a directory is
the same wherever a side moved it, a file is what has its name, or its inode.
"""

from __future__ import annotations

from typing import NamedTuple

from ckptfs import textmerge
from ckptfs.fs import Filesystem
from ckptfs.history.diff.changed import TIMES
from ckptfs.history.diff.changed import differences as differences_of
from ckptfs.history.diff.tree import RENAMED, Change, Partners, TreeReader, compare_views
from ckptfs.history.paths import ROOT_PATH, seek
from ckptfs.model import ROOT_INO, Epoch, Ino, Inode, Place
from ckptfs.store import View
from ckptfs.textdiff import TEXT_MAX

UNTOUCHED: frozenset[str] = frozenset()


class Ours(NamedTuple):
    """What became of something of the base here: None if it is gone."""

    inode: Inode | None
    place: Place
    path: bytes
    kinds: frozenset[str]


class Sides:
    """Three views; ``head`` is ours."""

    def __init__(self, fs: Filesystem, base: View, head: View, theirs: View) -> None:
        self._fs = fs
        self.base, self.head, self.theirs = base, head, theirs
        trees = [TreeReader(fs.store, view) for view in (base, head, theirs)]
        self.base_tree, self.our_tree, self.their_tree = trees
        self.to_base = Partners(self.their_tree, self.base_tree)
        self.to_ours = Partners(self.base_tree, self.our_tree)
        self._to_theirs = Partners(self.base_tree, self.their_tree)
        self._back = Partners(self.our_tree, self.base_tree)
        self._across = Partners(self.our_tree, self.their_tree)
        #: Directories that were looked up, by the epoch of their view and their path there.
        self._directories: dict[tuple[Epoch, bytes], Ino] = {}
        #: What they did, but for times alone.
        self.changes = _changes(fs, base, theirs)
        #: The same, and what we did, by its path in the base.
        self._theirs_by_source = _by_source(self.changes)
        self._ours_by_source = _by_source(_changes(fs, base, head))
        #: By its path here, where in the base it was what we moved.
        self._moved = {
            change.path: source
            for source, change in self._ours_by_source.items()
            if RENAMED in change.kinds
        }

    def ours_of(self, source: bytes) -> Ours:
        """What became here of what was at a path of the base."""
        mine = self._ours_by_source.get(source)
        kinds = UNTOUCHED if mine is None else mine.kinds
        if source == ROOT_PATH:
            root = self._fs.getattr(self._fs.head, ROOT_INO)
            return Ours(root, (Ino(0), b""), ROOT_PATH, kinds)
        if mine is not None and mine.new is None:
            return Ours(None, (Ino(0), b""), source, kinds)
        if mine is not None:
            place = self.place(self.head, mine.path)
            return Ours(mine.new, place, mine.path, kinds)
        directory, name = self.place(self.base, source)
        here = self.to_ours.of(directory)
        inode = None if here is None else self.our_tree.inode(self.our_tree.entry((here, name)))
        if inode is None or here is None:
            return Ours(None, (Ino(0), b""), source, UNTOUCHED)
        return Ours(inode, (here, name), self.our_tree.path((here, name)), UNTOUCHED)

    def counterpart(self, place: Place) -> Place | None:
        """Where they have what is ours at a place, or would have it."""
        directory, name = place
        source = self._source(place)
        if source is None:
            to = self._across.of(directory)
        elif (change := self._theirs_by_source.get(source)) is not None:
            return None if change.new is None else self.place(self.theirs, change.path)
        else:
            above, name = self.place(self.base, source)
            to = self._to_theirs.of(above)
        return None if to is None else (to, name)

    def _source(self, place: Place) -> bytes | None:
        """Where in the base it was what is ours at a place; None if it was not there."""
        path = self.our_tree.path(place)
        if path in self._moved:
            return self._moved[path]
        directory = self._back.of(place[0])
        at = None if directory is None else (directory, place[1])
        if at is None or self.base_tree.entry(at) is None:
            return None
        source = self.base_tree.path(at)
        mine = self._ours_by_source.get(source)
        return None if mine is not None and mine.path != path else source

    def place(self, view: View, path: bytes) -> Place:
        above, _, name = path.rpartition(b"/")
        known = self._directories.get((view.epoch, above))
        if known is None:
            directory = seek(self._fs, view, above)
            if directory is None:
                raise LookupError(f"epoch {view.epoch} has no directory {above!r}")
            known = self._directories[view.epoch, above] = directory.ino
        return known, name

    def elsewhere(self, place: Place, inode: Inode) -> Place | None:
        """Where they have what is ours at a place under another name, which one of us gave it; None
        if they have no such thing."""
        if inode.is_dir:
            directory = self.their_tree.inode(inode.ino)
            return None if directory is None else (directory.parent, directory.name)
        there = self.counterpart(place)
        if there is None or there == (self._across.of(place[0]), place[1]):
            return None
        found = self.their_tree.inode(self.their_tree.entry(there))
        return None if found is None or found.is_dir else there

    def both_moved(self, ours: Ours) -> bool:
        """Whether they have the file that we moved under the name that we gave it, too."""
        if RENAMED not in ours.kinds or ours.inode is None or ours.inode.is_dir:
            return False
        to = self._across.of(ours.place[0])
        return to is not None and self.their_tree.entry((to, ours.place[1])) == ours.inode.ino

    def path_here(self, change: Change) -> bytes | None:
        """Where something that they changed or made is here, or would be."""
        if change.source is not None:
            return self.ours_of(change.source).path
        directory, name = self.place(self.theirs, change.path)
        base = self.to_base.of(directory)
        here = None if base is None else self.to_ours.of(base)
        return None if here is None else self.our_tree.path((here, name))

    # -- files ------------------------------------------------------------------------------------

    def there(self, place: Place) -> Ino | None:
        """What they have of a place of ours."""
        there = self.counterpart(place)
        return None if there is None else self.their_tree.entry(there)

    def is_one(self, mine: Inode, theirs: Inode, *, is_new: bool) -> bool:
        """Whether all names of a file of ours that they have, too, are those of one file there; of
        one that both made, they must have all of them."""
        there = {self.there(place) for place in self.our_tree.places(mine)}
        return there == {theirs.ino} or (not is_new and there == {theirs.ino, None})

    def is_further(self, theirs: Inode) -> bool:
        """Whether a name that they added is one more of a file that is here."""
        mine = self.our_tree.inode(theirs.ino) if theirs.nlink > 1 else None
        places = [] if mine is None else self.our_tree.places(mine)
        return any(self.there(place) == theirs.ino for place in places)

    def differ(self, mine: Inode, theirs: Inode) -> frozenset[str]:
        return differences_of(self._fs, self.head, mine, self.theirs, theirs) - {TIMES}

    def texts(
        self, base: Inode | None, mine: Inode, theirs: Inode
    ) -> tuple[bytes, bytes, bytes] | None:
        """The bytes of all three, if they can be merged by lines."""
        sides = [(self.base, base), (self.head, mine), (self.theirs, theirs)]
        if any(inode is not None and inode.size > TEXT_MAX for _, inode in sides):
            return None
        old, here, there = (
            b"" if inode is None else bytes(self._fs.read(view, inode.ino, 0, inode.size))
            for view, inode in sides
        )
        return (old, here, there) if textmerge.can_merge(old, here, there) else None


def _changes(fs: Filesystem, base: View, view: View) -> list[Change]:
    return [change for change in compare_views(fs, base, view) if not change.only_times]


def _by_source(changes: list[Change]) -> dict[bytes, Change]:
    """By its path in the base, what was there and changed."""
    return {change.source: change for change in changes if change.source is not None}
