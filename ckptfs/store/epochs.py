"""Epochs: their records, the tree that they form, and views, an epoch seen as a file tree.

A view decides which version of an entity it sees: the newest one that its own epoch or one of its
ancestors wrote. The head may also see the *excluded* epoch, in front of all that: no checkpoint
sees it, and no restore changes it. Does not know what the records of tables mean.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING

from ckptfs.model import Epoch, Ino, Inode
from ckptfs.store.format import NO_EPOCH, EpochRecord, pack_epoch, pack_u32, suffix_of

if TYPE_CHECKING:
    from ckptfs.store.metadata import IdAllocator
    from ckptfs.store.tables import Plain

#: How many views of checkpoints are kept at hand: each names all epochs before it.
_VIEWS_MAX = 16


class View:
    """One epoch and its ancestors. ``writable`` only for a head; sealing it ends that."""

    __slots__ = (
        "_bare",
        "_count",
        "dirty_inodes",
        "epoch",
        "excluded",
        "first",
        "inherited",
        "seen",
        "suffix",
        "writable",
    )

    def __init__(self, epoch: Epoch, inherited: set[bytes], *, writable: bool, inodes: int) -> None:
        self.epoch = epoch
        self.suffix = suffix_of(epoch)
        #: Suffixes of the ancestors: what the view sees without having written it. Often it is the
        #: parent's ``seen`` itself: what either forgets is gone for both.
        self.inherited = inherited
        #: Suffixes of every epoch whose records the view sees.
        self.seen = {*inherited, self.suffix}
        #: The suffix of the newest record that the view may see.
        self.first = self.suffix
        self.writable = writable
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
    def bare(self) -> View:
        """The same view without what is excluded: what a checkpoint of it would show."""
        return self._bare or self

    def see_excluded(self, excluded: View) -> None:
        """See the excluded epoch in front of everything else, from now on."""
        bare = View(self.epoch, set(), writable=self.writable, inodes=0)
        bare.inherited, bare.seen = self.inherited, self.seen
        bare._count, bare.dirty_inodes = self._count, self.dirty_inodes
        self._bare, self.excluded = bare, excluded
        self.seen = bare.seen | {excluded.suffix}
        self.first = excluded.suffix

    def seal(self) -> None:
        """A checkpoint is not written any more, and sees nothing excluded."""
        if self._bare is not None:
            self.seen, self.first = self._bare.seen, self.suffix
            self._bare.writable = False
            self._bare = self.excluded = None
        self.writable = False

    def forget(self, ancestor: Epoch) -> None:
        """Look no more for what an ancestor wrote: it was removed."""
        suffix = suffix_of(ancestor)
        for suffixes in (self.inherited, self.seen, self.bare.seen):
            suffixes.discard(suffix)

    def require_writable(self) -> None:
        if not self.writable:
            raise OSError(errno.EROFS, "a checkpoint cannot be changed")


def child_of(parent: View, epoch: Epoch, inodes: int) -> View:
    """The view of a new epoch below another's: without a walk over all ancestors."""
    return View(epoch, parent.bare.seen, writable=True, inodes=inodes)


def view_of(
    epochs: Mapping[Epoch, EpochRecord], epoch: Epoch, relative: View | None = None
) -> View:
    """The view of any epoch. With a relative at hand only the way up to an ancestor that both have
    is walked: what is above it is the older part of what the relative sees."""
    record = epochs[epoch]
    inherited: set[bytes] = set()
    related = frozenset() if relative is None else relative.bare.seen
    parent = record.parent
    while parent != NO_EPOCH:
        suffix = suffix_of(parent)
        if suffix in inherited:
            raise ValueError("epochs descend from themselves")
        if suffix in related:
            # Older ones have smaller numbers, and so larger suffixes.
            inherited.update(known for known in related if known >= suffix)
            break
        inherited.add(suffix)
        parent = epochs[parent].parent
    return View(epoch, inherited, writable=not record.sealed, inodes=record.inodes)


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
        #: The view that may be written.
        self.head: View
        #: Views of checkpoints, of those that were asked for.
        self._views: dict[Epoch, View] = {}

    def open(self, parent: Epoch, *, inodes: int) -> View:
        """A new epoch below ``parent`` that may be written."""
        epoch = self._ids.new_epoch()
        self.put(epoch, EpochRecord(parent, sealed=False, inodes=inodes, info={}))
        if parent == NO_EPOCH:
            return view_of(self.records, epoch)
        return child_of(self.view(parent), epoch, inodes)

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
        for view in (self.head, *self._views.values()):
            view.forget(epoch)

    def recount(self, epoch: Epoch, inodes: int) -> None:
        """Note how many inodes the epoch's view has, after some were purged from it."""
        self.put(epoch, self.records[epoch]._replace(inodes=inodes))
        self._views.pop(epoch, None)
        if epoch == self.head.epoch:
            self.head.inodes = inodes

    def put(self, epoch: Epoch, record: EpochRecord) -> None:
        self._changing()
        self.tree.put(epoch, record)
        self._table.put(pack_u32(epoch), pack_epoch(record))

    def view(self, epoch: Epoch) -> View:
        if epoch == self.head.epoch:
            return self.head
        found = self._views.get(epoch)
        if found is None:
            found = view_of(self.records, epoch, self.head)
            if not found.writable:
                self._remember(found)
        return found

    def _remember(self, view: View) -> None:
        if len(self._views) >= _VIEWS_MAX:
            self._views.pop(next(iter(self._views)))
        self._views[view.epoch] = view
