"""The directories that a scan is in, and where the store has each of them.

A lower directory is known by its ledger key, an inode of the store. The store may since have moved
that directory, or deleted it; then what changed below needs another place to go to.
"""

from __future__ import annotations

import os

from ckptfs.model import ROOT_INO, Ino, Inode
from ckptfs.sync.descent import Descent
from ckptfs.sync.intake import Intake
from ckptfs.sync.ledger import UNFINISHED, Ledger, Record, ino_of, is_directory
from ckptfs.sync.results import Tally

#: Begins the names of our own files in the lower directory while they are not finished.
TEMP_PREFIX = b".ckptfs-tmp-"


class Frame:
    """One directory below that is being looked through."""

    __slots__ = (
        "_looked",
        "before",
        "fresh",
        "kept",
        "key",
        "name",
        "old",
        "parent",
        "place",
        "seen",
        "unfinished",
        "waiting",
    )

    def __init__(
        self,
        parent: Frame | None,
        name: bytes,
        key: Ino,
        seen: os.stat_result,
        *,
        old: Record | None = None,
        made: Inode | None = None,
        empty: bool = False,
    ) -> None:
        """``made`` is its inode if this pass has made it; ``empty`` says that neither the store
        nor the ledger has anything in it."""
        self.parent = parent
        self.name = name
        #: Under which directory inode the ledger has its entries.
        self.key = key
        self.seen = seen
        self.old = old
        #: Neither the store nor the ledger knew anything in it when this pass came to it.
        self.fresh = made is not None or empty
        #: Made by a pass that did not come to its end.
        self.unfinished = old is not None and old.stored_ctime_ns == UNFINISHED
        #: The directory of the store that stands for it, once someone asked.
        self.place: Ino | None = made.ino if made else None
        #: The store's directory as it was before this pass changed anything in it.
        self.before: Inode | None = made
        self._looked = made is not None
        #: Something stands in the store's directory that this pass put there beside what is below.
        self.kept = False
        #: Directories in it that are still to be looked through: name, attributes, record.
        self.waiting: list[tuple[bytes, os.stat_result, bytes | None]] = []

    def find(self, intake: Intake) -> Ino | None:
        """The store's directory, or None if it has none for this one any more."""
        for frame in reversed(self._unlooked()):
            frame._look(intake)
        return self.place

    def _unlooked(self) -> list[Frame]:
        """This directory and those above it whose place is not known yet, innermost first."""
        found: list[Frame] = []
        frame: Frame | None = self
        while frame is not None and not frame._looked:
            found.append(frame)
            frame = frame.parent
        return found

    def _look(self, intake: Intake) -> None:
        self._looked = True
        inode = intake.alive(self.key)
        if inode is None and self.parent is not None and self.parent.place is not None:
            inode = intake.find(self.parent.place, self.name)
        if inode is not None and inode.is_dir:
            self.before, self.place = inode, inode.ino


class Scene:
    """Everything that one scan works with."""

    def __init__(self, intake: Intake, ledger: Ledger, down: Descent, tally: Tally) -> None:
        self.intake = intake
        self.ledger = ledger
        self.down = down
        self.tally = tally
        #: Names of inodes with several of them: (ledger's directory, store's directory, name), to
        #: be recorded again when no further link can change the inode.
        self.linked: list[tuple[Ino, Ino, bytes]] = []
        #: An unfinished write-back was here before.
        self.interrupted = False
        self._known_directories: set[Ino] | None = None

    def stored(self, frame: Frame, name: bytes) -> Inode | None:
        """What the store has under a name of the directory."""
        if frame.fresh:
            return None
        place = frame.find(self.intake)
        return None if place is None else self.intake.find(place, name)

    def place(self, frame: Frame) -> Ino:
        """The store's directory; made again, with those above it, if the store deleted it."""
        if frame.place is not None:
            return frame.place
        missing: list[Frame] = []
        above: Frame | None = frame
        while above is not None and above.find(self.intake) is None:
            missing.append(above)
            above = above.parent
        if above is None or above.place is None:
            raise AssertionError("the root is never deleted")
        place = above.place
        for inner in reversed(missing):
            place = self._make_again(place, inner)
        return place

    def _make_again(self, above: Ino, frame: Frame) -> Ino:
        name = frame.name
        if self.intake.find(above, name) is not None:
            name = self.intake.free_name(above, name)
        frame.place = self.intake.make_directory(above, name, frame.seen).ino
        frame.kept = True
        if frame.parent is not None:
            frame.parent.kept = True
        self.tally.added += 1
        return frame.place

    def has_lower_place(self, ino: Ino) -> bool:
        """Whether the ledger knows the store's directory as one that stands below somewhere."""
        if self._known_directories is None:
            self._known_directories = {
                ino_of(value) for _, _, value in self.ledger.walk(ROOT_INO) if is_directory(value)
            }
        return ino in self._known_directories or ino == ROOT_INO
