"""Epochs: their records, the tree that they form, and views, an epoch seen as a file tree.

A view decides which version of an entity it sees: the newest one that its own epoch or one of its
ancestors wrote. The head may also see the *excluded* epoch, in front of all that: no checkpoint
sees it, and no restore changes it. Does not know what the records of tables mean.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import chain
from typing import TYPE_CHECKING, Any

from ckptfs.model import MAIN_LINE, Epoch, Ino, Inode
from ckptfs.store.format import (
    NO_EPOCH,
    SUFFIX_SIZE,
    EpochRecord,
    pack_epoch,
    pack_u32,
    suffix_of,
)

if TYPE_CHECKING:
    from ckptfs.store.metadata import IdAllocator
    from ckptfs.store.tables import Plain

#: How many views of checkpoints are kept at hand, and how many lines aside of the head's.
_VIEWS_MAX = 16
_LINES_MAX = 8

#: Behind every suffix: a line that goes on nowhere else.
_NOWHERE = b"\xff" * (SUFFIX_SIZE + 1)


class Line:
    """A way through the tree of epochs, from its newest one, the *tip*, towards the root.

    All views of epochs on it share its suffixes, so that a view costs the same however many epochs
    there are: numbers count up along the way, so the ancestors of an epoch are the older part. From
    the suffix ``branch`` on the way goes on in ``rest``, which is that of another line."""

    __slots__ = ("branch", "rest", "suffixes", "tip")

    def __init__(
        self,
        suffixes: set[bytes],
        tip: bytes,
        branch: bytes = _NOWHERE,
        rest: Set[bytes] | Seen = frozenset(),
    ) -> None:
        self.suffixes = suffixes
        self.tip = tip
        self.branch = branch
        self.rest = rest


class Seen:
    """The suffixes of a line from ``first`` on: what a view sees that is not the head's."""

    __slots__ = ("_branch", "_first", "_rest", "_suffixes")

    def __init__(self, line: Line, first: bytes) -> None:
        self._first = first
        self._suffixes, self._branch, self._rest = line.suffixes, line.branch, line.rest

    def __contains__(self, suffix: Any) -> bool:
        return suffix >= self._first and (
            suffix in self._suffixes or (suffix >= self._branch and suffix in self._rest)
        )

    def __iter__(self) -> Iterator[bytes]:
        later = max(self._first, self._branch)
        return chain(filter(self._first.__le__, self._suffixes), filter(later.__le__, self._rest))


class View:
    """One epoch and its ancestors. ``writable`` only for a head; sealing it ends that."""

    __slots__ = (
        "_bare",
        "_count",
        "dirty_inodes",
        "epoch",
        "excluded",
        "first",
        "is_first",
        "line",
        "seen",
        "suffix",
        "writable",
    )

    def __init__(
        self, epoch: Epoch, line: Line, *, writable: bool, inodes: int, is_first: bool = False
    ) -> None:
        self.epoch = epoch
        self.suffix = suffix_of(epoch)
        self.line = line
        #: Suffixes of every epoch whose records the view sees.
        self.seen: Set[bytes] | Seen = Seen(line, self.suffix)
        #: The suffix of the newest record that the view may see.
        self.first = self.suffix
        self.writable = writable
        #: Whether it is known to have no ancestors.
        self.is_first = is_first
        #: In a list, so that `bare` counts the same inodes.
        self._count = [inodes]
        #: Inodes written through this view that are not in the transaction yet (ckptfs.fs.inodes).
        self.dirty_inodes: dict[Ino, Inode] = {}
        #: The view of the excluded epoch, if this one sees it.
        self.excluded: View | None = None
        self._bare: View | None = None

    @property
    def inodes(self) -> int:
        """How many inodes the view has, without those excluded."""
        return self._count[0]

    @inodes.setter
    def inodes(self, count: int) -> None:
        self._count[0] = count

    @property
    def inherited(self) -> Seen:
        """Suffixes of the ancestors: what the view sees without having written it."""
        return Seen(self.line, _behind(self.suffix))

    @property
    def bare(self) -> View:
        """The same view without what is excluded: what a checkpoint of it would show."""
        return self._bare or self

    def lead(self) -> None:
        """Be the head. Every request asks what it sees, so that is a plain set from now on."""
        if self.line.branch != _NOWHERE or self.line.tip != self.suffix:
            self.line = Line({*self.seen}, self.suffix)
        self.seen = self.line.suffixes

    def see_excluded(self, excluded: View) -> None:
        """Let the head see the excluded epoch in front of everything else, from now on. Its suffix
        is before all others, so that the line's other views see nothing of it."""
        bare = View(self.epoch, self.line, writable=self.writable, inodes=0, is_first=self.is_first)
        bare._count, bare.dirty_inodes = self._count, self.dirty_inodes
        self._bare, self.excluded = bare, excluded
        self.line.suffixes.add(excluded.suffix)
        self.first = excluded.suffix

    def seal(self) -> None:
        """A checkpoint is not written any more, and sees nothing excluded."""
        self.seen, self.first = Seen(self.line, self.suffix), self.suffix
        if self._bare is not None:
            self._bare.writable = False
            self._bare = self.excluded = None
        self.writable = False

    def without(self, parent: View) -> View:
        """The view as it will be once its parent is removed. To be read."""
        line = Line({self.suffix}, self.suffix, _behind(parent.suffix), parent.bare.seen)
        return View(self.epoch, line, writable=False, inodes=self.inodes)

    def require_writable(self) -> None:
        if not self.writable:
            raise OSError(errno.EROFS, "a checkpoint cannot be changed")


def _behind(suffix: bytes) -> bytes:
    """Before every suffix but those up to this one."""
    return suffix + b"\0"


def alone(epoch: Epoch, *, writable: bool, inodes: int = 0) -> View:
    """The view of an epoch without ancestors."""
    suffix = suffix_of(epoch)
    return View(epoch, Line({suffix}, suffix), writable=writable, inodes=inodes, is_first=True)


def view_of(epochs: Mapping[Epoch, EpochRecord], epoch: Epoch) -> View:
    """The view of an epoch of which no relative is at hand: its whole lineage is walked."""
    record = epochs[epoch]
    way = set(_way_up(epochs, epoch))
    line = Line(way, suffix_of(epoch))
    return View(
        epoch,
        line,
        writable=not record.sealed,
        inodes=record.inodes,
        is_first=record.parent == NO_EPOCH,
    )


def _way_up(epochs: Mapping[Epoch, EpochRecord], epoch: Epoch) -> Iterator[bytes]:
    """The suffixes of an epoch and its ancestors, newest first."""
    while epoch != NO_EPOCH:
        yield suffix_of(epoch)
        parent = epochs[epoch].parent
        if parent >= epoch:
            raise ValueError("epochs descend from themselves")
        epoch = parent


class EpochTree:
    """All epochs in memory. A store may have thousands of checkpoints, and every verb asks
    something about them; so what would take a walk over all records is kept beside them. Every
    change of a record goes through `put` and `remove`."""

    def __init__(self) -> None:
        self.records: dict[Epoch, EpochRecord] = {}
        self._children: dict[Epoch, set[Epoch]] = {}
        #: Those that may be written: the head, and the views of files in limbo.
        self.unsealed: set[Epoch] = set()
        #: Those whose checkpoint was deleted and that are not removed yet.
        self.hidden: set[Epoch] = set()
        #: Those whose description came, changed or went since `ckptfs.history.checkpoints`, its
        #: one reader, cleared this.
        self.redescribed: set[Epoch] = set()

    def children(self, epoch: Epoch) -> Set[Epoch]:
        return self._children.get(epoch, frozenset())

    def between(self, a: Epoch, b: Epoch) -> list[Epoch]:
        """The epochs on the two ways from ``a`` and ``b`` up to, not with, their common
        ancestor."""
        way_a: list[Epoch] = []
        way_b: list[Epoch] = []
        while a != b:
            # The younger of two is no ancestor of the other: numbers count up.
            if a > b:
                way_a.append(a)
                a = self.records[a].parent
            else:
                way_b.append(b)
                b = self.records[b].parent
        return way_a + way_b

    def put(self, epoch: Epoch, record: EpochRecord) -> None:
        """Add an epoch, or replace what is known of it."""
        before = self.records.get(epoch)
        if before is None or before.parent != record.parent:
            self._leave_parent(epoch)
            self._children.setdefault(record.parent, set()).add(epoch)
        if before is None or before.info is not record.info:
            self.redescribed.add(epoch)
        self._sort(self.unsealed, epoch, belongs=not record.sealed)
        self._sort(self.hidden, epoch, belongs=record.sealed and not record.info)
        self.records[epoch] = record

    def remove(self, epoch: Epoch) -> EpochRecord:
        """Take an epoch out that has no children any more; return what was known of it."""
        self._leave_parent(epoch)
        self.unsealed.discard(epoch)
        self.hidden.discard(epoch)
        self.redescribed.add(epoch)
        return self.records.pop(epoch)

    def _leave_parent(self, epoch: Epoch) -> None:
        before = self.records.get(epoch)
        if before is not None:
            siblings = self._children[before.parent]
            siblings.remove(epoch)
            if not siblings:
                del self._children[before.parent]

    def _sort(self, group: set[Epoch], epoch: Epoch, *, belongs: bool) -> None:
        if belongs:
            group.add(epoch)
        else:
            group.discard(epoch)


class Lineage:
    """The epochs of a store: their records, and the views of them that are at hand. Every change of
    an epoch's record goes through here. Which epoch the head is, the store decides. ``changing`` is
    called before a record is written."""

    def __init__(self, table: Plain, ids: IdAllocator, changing: Callable[[], None]) -> None:
        self._table = table
        self._ids = ids
        self._changing = changing
        self.tree = EpochTree()
        self.records = self.tree.records
        #: The views that may be written, by line.
        self.heads: dict[int, View] = {}
        #: Views of checkpoints, of those that were asked for.
        self._views: dict[Epoch, View] = {}
        #: The lines of others, the newest last.
        self._lines: list[Line] = []

    def open(self, parent: Epoch, *, inodes: int) -> View:
        """A new epoch below ``parent`` that may be written."""
        epoch = self._ids.new_epoch()
        self.put(epoch, EpochRecord(parent, sealed=False, inodes=inodes, info={}))
        if parent == NO_EPOCH:
            return alone(epoch, writable=True, inodes=inodes)
        above, suffix = self.view(parent).bare, suffix_of(epoch)
        line = above.line
        if line.tip == above.suffix:
            line.suffixes.add(suffix)
            line.tip = suffix
        else:
            line = Line({suffix}, suffix, above.suffix, above.seen)
        return View(epoch, line, writable=True, inodes=inodes)

    def seal(self, view: View, info: dict[str, object]) -> None:
        """Make the view's epoch a checkpoint: from here on it can only be read. Refused if there is
        no number left for an epoch to go on in."""
        self._ids.require_epoch()
        record = self.records[view.epoch]
        self.put(view.epoch, record._replace(sealed=True, inodes=view.inodes, info=info))
        view.seal()
        self._remember(view)

    def describe(self, epoch: Epoch, info: dict[str, object]) -> None:
        """Change the description of a sealed epoch."""
        self.put(epoch, self.records[epoch]._replace(info=info))

    def remove(self, epoch: Epoch) -> None:
        """Take an epoch without records out of the tree; its children become its parent's."""
        self._changing()
        parent = self.records[epoch].parent
        for child in list(self.tree.children(epoch)):
            self.put(child, self.records[child]._replace(parent=parent))
        self.tree.remove(epoch)
        self._table.delete(pack_u32(epoch))
        # A view that still looks for the records of a removed epoch finds none and is right; those
        # that live long, or that new ones come from, are kept short.
        self._views.pop(epoch, None)
        suffix = suffix_of(epoch)
        for view in (*self.heads.values(), *self._views.values()):
            view.line.suffixes.discard(suffix)
        for line in self._lines:
            line.suffixes.discard(suffix)

    def recount(self, epoch: Epoch, inodes: int) -> None:
        """Note how many inodes the epoch's view has, after some were purged from it."""
        self.put(epoch, self.records[epoch]._replace(inodes=inodes))
        self._views.pop(epoch, None)
        for head in self.heads.values():
            if epoch == head.epoch:
                head.inodes = inodes

    def put(self, epoch: Epoch, record: EpochRecord) -> None:
        self._changing()
        self.tree.put(epoch, record)
        self._table.put(pack_u32(epoch), pack_epoch(record))

    def view(self, epoch: Epoch) -> View:
        found = self._views.get(epoch) or self._head_of(epoch)
        if found is None:
            record, line = self.records[epoch], self._line_of(epoch)
            is_first = record.parent == NO_EPOCH
            writable = not record.sealed
            found = View(epoch, line, writable=writable, inodes=record.inodes, is_first=is_first)
            if not writable:
                self._remember(found)
        return found

    def _head_of(self, epoch: Epoch) -> View | None:
        return next((head for head in self.heads.values() if head.epoch == epoch), None)

    def _line_of(self, epoch: Epoch) -> Line:
        """A line that an epoch is on: a head's, one at hand, or a new one from a leaf below it
        up to the main head's."""
        suffix = suffix_of(epoch)
        for head in self.heads.values():
            if suffix in head.line.suffixes:
                return head.line
        for line in reversed(self._lines):
            if suffix in line.suffixes:
                return line
        line = self._line_aside(epoch)
        self._lines = [*self._lines[1 - _LINES_MAX :], line]
        return line

    def _line_aside(self, epoch: Epoch) -> Line:
        while children := self.tree.children(epoch):
            epoch = max(children)
        heads = self.heads[MAIN_LINE].line.suffixes
        aside: set[bytes] = set()
        for suffix in _way_up(self.records, epoch):
            if suffix in heads:
                return Line(aside, suffix_of(epoch), suffix, heads)
            aside.add(suffix)
        return Line(aside, suffix_of(epoch))

    def _remember(self, view: View) -> None:
        if len(self._views) >= _VIEWS_MAX:
            self._views.pop(next(iter(self._views)))
        self._views[view.epoch] = view
