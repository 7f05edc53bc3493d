"""The state of a scan: the stack of directories that it is in, and where the store has each.

The ledger knows a directory of the lower directory by an inode of the store. The store may have
moved or deleted that directory since; what changed in it then needs another place to go to.
"""

from __future__ import annotations

import os

from ckptfs.model import ROOT_INO, Ino, Inode
from ckptfs.sync.ingest import Ingest
from ckptfs.sync.ledger import UNFINISHED, EmptyLedger, Ledger, Record, ino_of, is_directory
from ckptfs.sync.lower import Descent
from ckptfs.sync.results import Tally

#: The store's map is looked at after so many directories.
_TRIM_AFTER = 64


class Frame:
    """A directory that the scan is in."""

    __slots__ = (
        "_searched",
        "before",
        "is_new",
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
        """``made`` is its inode if this pass has made it. ``empty``: neither the store nor the
        ledger has anything in it."""
        self.parent = parent
        self.name = name
        #: The directory inode under which the ledger has its entries.
        self.key = key
        self.seen = seen
        self.old = old
        #: Neither the store nor the ledger knew anything in it when this pass came to it.
        self.is_new = made is not None or empty
        #: A scan that did not end has made it in the store, and may not have filled it.
        self.unfinished = old is not None and old.stored_ctime_ns == UNFINISHED
        #: The store's directory that stands for it, once `find` was called.
        self.place: Ino | None = made.ino if made else None
        #: The store's directory as it was before this pass changed anything in it.
        self.before: Inode | None = made
        self._searched = made is not None
        #: This pass put something into the store's directory that the lower one does not have.
        self.kept = False
        #: Directories in it that the scan has not entered yet: name, attributes, record.
        self.waiting: list[tuple[bytes, os.stat_result, bytes | None]] = []

    def find(self, ingest: Ingest) -> Ino | None:
        """The store's directory, or None if the store has none for this one any more."""
        if not self._searched:
            for frame in reversed(self._unsearched()):
                frame._search(ingest)
        return self.place

    def _unsearched(self) -> list[Frame]:
        """This directory and those above it whose place is not known yet, innermost first."""
        found: list[Frame] = []
        frame: Frame | None = self
        while frame is not None and not frame._searched:
            found.append(frame)
            frame = frame.parent
        return found

    def _search(self, ingest: Ingest) -> None:
        self._searched = True
        inode = ingest.alive(self.key)
        if inode is None and self.parent is not None and self.parent.place is not None:
            inode = ingest.find(self.parent.place, self.name)
        if inode is not None and inode.is_dir:
            self.before, self.place = inode, inode.ino


class ScanState:
    """Everything that one scan works with."""

    def __init__(
        self, ingest: Ingest, ledger: Ledger | EmptyLedger, down: Descent, tally: Tally
    ) -> None:
        self.ingest = ingest
        self.ledger = ledger
        #: An import: the source wins over the store, and is only read.
        self.importing = isinstance(ledger, EmptyLedger)
        self.down = down
        self.tally = tally
        #: Names of inodes with several of them: (ledger's directory, store's directory, name), to
        #: be recorded again when no further link can change the inode.
        self.linked: list[tuple[Ino, Ino, bytes]] = []
        #: A write-back before this scan did not end.
        self.interrupted = False
        #: Small files of the current directory that were read and are not in the store yet: name,
        #: attributes (`lower.Seen`), content, and when each was opened.
        self.small: list[tuple[bytes, tuple[int, ...], bytes, int]] = []
        self.small_bytes = 0
        self._known_directories: set[Ino] | None = None
        self._finished = 0

    def stored(self, frame: Frame, name: bytes) -> Inode | None:
        """What the store has under a name of the directory."""
        if frame.is_new:
            return None
        place = frame.find(self.ingest)
        return None if place is None else self.ingest.find(place, name)

    def place(self, frame: Frame) -> Ino:
        """The store's directory; made again, with those above it, if the store deleted it."""
        if frame.place is not None:
            return frame.place
        missing: list[Frame] = []
        above: Frame | None = frame
        while above is not None and above.find(self.ingest) is None:
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
        if self.ingest.find(above, name) is not None:
            name = self.ingest.free_name(above, name)
        frame.place = self.ingest.make_directory(above, name, frame.seen).ino
        frame.kept = True
        if frame.parent is not None:
            frame.parent.kept = True
        self.tally.added += 1
        return frame.place

    def trim_now_and_then(self) -> None:
        """Let go of the store's pages: a scan comes by all of its records, and by each once."""
        self._finished += 1
        if not self._finished % _TRIM_AFTER:
            self.ingest.fs.store.trim()

    def has_lower_place(self, ino: Ino) -> bool:
        """Whether the ledger has the store's directory somewhere in the lower directory."""
        if self._known_directories is None:
            self._known_directories = {
                ino_of(value) for _, _, value in self.ledger.walk(ROOT_INO) if is_directory(value)
            }
        return ino in self._known_directories or ino == ROOT_INO
