"""Views: an epoch seen as a file tree.

A view decides which version of an entity it sees: the newest one written by its own epoch or one of
its ancestors. The head may also see the *excluded epoch*, which no checkpoint sees and no restore
changes, in front of all that. Knows epochs only; what the records mean is others'
business.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from ckptfs.model import Epoch, Ino, Inode
from ckptfs.store.format import NO_EPOCH, EpochRecord, suffix_of


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
        """How many inodes the view has, without the excluded ones."""
        return self._count[0]

    @inodes.setter
    def inodes(self, count: int) -> None:
        self._count[0] = count

    @property
    def bare(self) -> View:
        """The same view without the excluded epoch: what a checkpoint of it would show."""
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
        """A checkpoint is not written any more, and does not see the excluded epoch."""
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
