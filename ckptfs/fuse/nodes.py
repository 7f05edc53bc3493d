"""FUSE node ids: which view and inode one stands for.

A node id is computed, so no table has to be kept: the low 40 bits are the inode number, the bits
above them the *slot*. Slot 0 is the live workspace; slot n + 1 is checkpoint n; the last slot is
the `.checkpoints` directory itself. Numbers of checkpoints go round in the slots, past those that
are in use.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.history import Checkpoint
from ckptfs.history.checkpoints import next_number, numbered
from ckptfs.model import CHECKPOINT_SLOTS, Ino
from ckptfs.store import View

INO_BITS = 40
LIVE_END = 1 << INO_BITS
_INO_MASK = LIVE_END - 1

#: The slot of `.checkpoints`: its own node, those of the symbolic links in it; from FORKS_ROOT on
#: `.forks` and what stands in it, by the number of the fork; and from CONTROL on those of the
#: control files, which have bits for which of them it is and below them a number for who opened it.
_HISTORY_SLOT = (1 << 22) - 1
HISTORY = _HISTORY_SLOT << INO_BITS
HISTORY_ROOT = HISTORY | 1
FORKS_ROOT = HISTORY | 1 << 36
CONTROL = HISTORY | 1 << 39
CONTROL_STEP = 1 << 38
CONTROL_CONNECTION = 1 << 37
CONTROL_NUMBERS = CONTROL_CONNECTION - 1

#: How many checkpoints' views are kept: a workspace sees many more of them come and go.
_VIEWS_MAX = 128


class Node(NamedTuple):
    view: View
    ino: Ino
    #: What to add to an inode number of this view to make it a node id.
    base: int


def checkpoint_base(number: int) -> int:
    return (number % CHECKPOINT_SLOTS + 1) << INO_BITS


def is_of_forks(node: int) -> bool:
    """Whether it is `.forks`, or stands in it."""
    return FORKS_ROOT <= node < CONTROL


def base_of(node: int) -> int:
    """What makes an inode number of the node's view a node id. In `.checkpoints` itself they are
    node ids already."""
    return node & ~_INO_MASK if node < HISTORY else 0


def in_checkpoint(
    number: int, entries: Collection[tuple[Ino, bytes]], inodes: Collection[Ino]
) -> tuple[set[tuple[Ino, bytes]], set[Ino]]:
    """Entries and inodes as the nodes that they are in a checkpoint's tree."""
    base = checkpoint_base(number)
    return {(Ino(base | parent), name) for parent, name in entries}, {
        Ino(base | ino) for ino in inodes
    }


class Nodes:
    """The way from node ids to views. Views of checkpoints are made when first asked for."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._views: dict[int, View] = {}

    def place(self, node: int) -> Node:
        """Where a node is. ESTALE if its checkpoint was deleted."""
        if node < LIVE_END:
            fs = self._fs
            return Node(fs.limbo.get(Ino(node)) or fs.head, Ino(node), 0)
        slot = node >> INO_BITS
        return Node(self._checkpoint(slot), Ino(node & _INO_MASK), slot << INO_BITS)

    def _checkpoint(self, slot: int) -> View:
        view = self._views.get(slot)
        if view is None:
            if len(self._views) >= _VIEWS_MAX:
                self._views.clear()
            view = self._views[slot] = self._fs.view_of(self._in_slot(slot).epoch)
        record = self._fs.store.epochs.get(view.epoch)
        if record is None or not record.info:
            # Deleted since it was first asked for; its records are on their way elsewhere.
            del self._views[slot]
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return view

    def _in_slot(self, slot: int) -> Checkpoint:
        """The checkpoint that has a slot now."""
        store = self._fs.store
        for number in range(slot - 1, next_number(store), CHECKPOINT_SLOTS):
            if (found := numbered(store, number)) is not None:
                return found
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
