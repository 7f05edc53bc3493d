"""Views: an epoch seen as a file tree.

A view decides which version of an entity it sees: the newest one written by its own epoch or one of
its ancestors. Knows epochs only; what the records mean is others' business.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from ckptfs.model import Epoch, Ino, Inode
from ckptfs.store.format import NO_EPOCH, EpochRecord, suffix_of


class View:
    """One epoch and its ancestors. ``writable`` only for a head; sealing it ends that."""

    __slots__ = ("epoch", "inherited", "inodes", "seen", "suffix", "unsettled", "writable")

    def __init__(
        self, epoch: Epoch, ancestors: frozenset[Epoch], *, writable: bool, inodes: int
    ) -> None:
        self.epoch = epoch
        self.suffix = suffix_of(epoch)
        #: Suffixes of the ancestors: what the view sees without having written it.
        self.inherited = frozenset(suffix_of(ancestor) for ancestor in ancestors)
        #: Suffixes of every epoch whose records the view sees.
        self.seen = self.inherited | {self.suffix}
        self.writable = writable
        #: How many inodes the view has.
        self.inodes = inodes
        #: Inodes written through this view that are not in the transaction yet (ckptfs.fs.inodes).
        self.unsettled: dict[Ino, Inode] = {}

    def follow(self, other: View) -> None:
        """Look where another view of the same epoch looks: an ancestor was removed."""
        self.inherited = other.inherited
        self.seen = other.seen

    def require_writable(self) -> None:
        if not self.writable:
            raise OSError(errno.EROFS, "a checkpoint cannot be changed")


def ancestors_of(epochs: Mapping[Epoch, EpochRecord], epoch: Epoch) -> frozenset[Epoch]:
    found = []
    parent = epochs[epoch].parent
    while parent != NO_EPOCH:
        found.append(parent)
        parent = epochs[parent].parent
    return frozenset(found)


def view_of(epochs: Mapping[Epoch, EpochRecord], epoch: Epoch) -> View:
    record = epochs[epoch]
    return View(
        epoch,
        ancestors_of(epochs, epoch),
        writable=not record.sealed,
        inodes=record.inodes,
    )
