"""The tree of epochs in memory: what each one's record says, and what is asked of all of them.

A store may have thousands of checkpoints, and every verb asks something about them. So what would
take a walk over all records is kept beside them, and changes with them: every change of a record
goes through `put` and `remove`. Knows neither views nor what a description means.
"""

from __future__ import annotations

from collections.abc import Set

from ckptfs.model import Epoch
from ckptfs.store.format import EpochRecord


class EpochTree:
    def __init__(self) -> None:
        self.records: dict[Epoch, EpochRecord] = {}
        self._children: dict[Epoch, set[Epoch]] = {}
        #: Those that may be written: the head, and the views of files in limbo.
        self.unsealed: set[Epoch] = set()
        #: Those whose checkpoint was deleted and that are not removed yet.
        self.hidden: set[Epoch] = set()
        #: Those whose description came, changed or went since whoever reads descriptions
        #: (`ckptfs.history.checkpoints`, nobody else) took note and cleared this.
        self.retold: set[Epoch] = set()

    def children(self, epoch: Epoch) -> Set[Epoch]:
        return self._children.get(epoch, frozenset())

    def put(self, epoch: Epoch, record: EpochRecord) -> None:
        """Add an epoch, or replace what is known of it."""
        before = self.records.get(epoch)
        if before is None or before.parent != record.parent:
            self._leave_parent(epoch)
            self._children.setdefault(record.parent, set()).add(epoch)
        if before is None or before.info is not record.info:
            self.retold.add(epoch)
        self._sort(self.unsealed, epoch, belongs=not record.sealed)
        self._sort(self.hidden, epoch, belongs=record.sealed and not record.info)
        self.records[epoch] = record

    def remove(self, epoch: Epoch) -> EpochRecord:
        """Take an epoch out that has no children any more; return what was known of it."""
        self._leave_parent(epoch)
        self.unsealed.discard(epoch)
        self.hidden.discard(epoch)
        self.retold.add(epoch)
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
