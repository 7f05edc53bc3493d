"""The epochs of a store with their records, and the views of them that are at hand.

Every change of an epoch's record goes through here. Which epoch the head is, the store decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptfs.store.epochs import EpochTree
from ckptfs.store.format import NO_EPOCH, EpochRecord, pack_epoch, pack_u32
from ckptfs.store.views import View, child_of, view_of

if TYPE_CHECKING:
    from ckptfs.model import Epoch
    from ckptfs.store.numbers import Numbers
    from ckptfs.store.tables import Plain

#: How many views of checkpoints are kept at hand: each names all epochs before it.
_VIEWS_MAX = 16


class Lineage:
    """``changing`` is called before a record is written."""

    def __init__(self, table: Plain, numbers: Numbers, changing: Callable[[], None]) -> None:
        self._table = table
        self._numbers = numbers
        self._changing = changing
        self.tree = EpochTree()
        self.records = self.tree.records
        #: The view that may be written.
        self.head: View
        #: Views of checkpoints, of those that were asked for.
        self._views: dict[Epoch, View] = {}

    def open(self, parent: Epoch, *, inodes: int) -> View:
        """A new epoch below ``parent`` that may be written."""
        epoch = self._numbers.new_epoch()
        self.put(epoch, EpochRecord(parent, sealed=False, inodes=inodes, info={}))
        if parent == NO_EPOCH:
            return view_of(self.records, epoch)
        return child_of(self.view(parent), epoch, inodes)

    def seal(self, view: View, info: dict[str, object]) -> None:
        """Make the view's epoch a checkpoint: from here on it can only be read. Refused if there is
        no number left for an epoch to go on in."""
        self._numbers.require_epoch()
        record = self.records[view.epoch]
        self.put(view.epoch, record._replace(sealed=True, inodes=view.inodes, info=info))
        view.seal()
        self._remember(view)

    def describe(self, epoch: Epoch, info: dict[str, object]) -> None:
        """Change what is told about a sealed epoch."""
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
