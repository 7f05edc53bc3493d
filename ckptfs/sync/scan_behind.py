"""A scan behind a mount: the workspace is read while the lower directory is still being compared.

Owns which directories are not compared yet. A directory is compared before anything in it is shown,
on the way of the first request that asks for it; the rest is compared when there is time. What is
brought in is decided by `scan`, entry by entry, as if it came first.

    compared      every name in the directory is as in the lower one: files with content and
                  attributes, directories with their own attributes
    uncompared    its own attributes are as recorded; nothing is known of what is in it

A directory is left for later only if its own attributes are as recorded, so what a listing of the
one above says of it is true. All others are compared with the one above. So every directory that
a listing or a lookup has shown is one or the other, and the root is compared at the start.

Nothing else may change the head before the end: then what is brought in is one checkpoint, and no
checkpoint has a part of it. docs/design/in-place.md, "Serving before the scan has ended".
"""

from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Ino, Place
from ckptfs.store.metadata import Agreed
from ckptfs.sync import intent_log, lower
from ckptfs.sync.ingest import Ingest
from ckptfs.sync.ledger import (
    ROOT_PLACE,
    SIGNATURE_SIZE,
    Ledger,
    decode,
    ino_of,
    is_directory,
    signature,
    wait_for_tick,
)
from ckptfs.sync.results import ScanResult, Tally, is_fatal
from ckptfs.sync.scan import (
    count_stored,
    enter_directory,
    finish_directory,
    list_directory,
    note_links,
)
from ckptfs.sync.scan_stack import Frame, ScanState


class _Left(NamedTuple):
    """A directory that was left for later: the one above, and what its listing said of it."""

    above: Frame
    name: bytes
    seen: os.stat_result
    value: bytes


def is_safe(fs: Filesystem) -> bool:
    """Whether the store is what both sides last agreed on, so that a scan need not come first."""
    return (
        fs.store.metadata.agreed() is not None
        and not intent_log.was_interrupted(fs)
        and Ledger(fs.store).get(*ROOT_PLACE) is not None
    )


class ScanBehind:
    """A scan of the lower directory, a directory at a time, in any order from the root down."""

    def __init__(self, fs: Filesystem, dir_fd: int) -> None:
        self._dir_fd = os.open(b".", lower.DIRECTORY, dir_fd=dir_fd)
        self._tally = Tally()
        ingest = Ingest(fs, self._tally)
        self._state = ScanState(ingest, Ledger(fs.store), lower.Descent(dir_fd), self._tally)
        #: What was noted before, which the first change of the ledger drops.
        self.agreed: Agreed | None = fs.store.metadata.agreed()
        self.total = count_stored(fs)
        #: By inode, the directories that are not compared and may be asked for.
        self.uncompared: dict[Ino, _Left] = {}
        seen = lower.fstat(self._state.down.fd)
        root = Frame(None, b"", ROOT_INO, seen, old=self._state.ledger.get(*ROOT_PLACE))
        self._compare_from(root)

    @property
    def files(self) -> int:
        """How many entries were compared."""
        return self._tally.files

    @property
    def has_changed(self) -> bool:
        """Whether anything was brought in, so that the note of the agreement was dropped."""
        return self._state.ingest.fs.store.metadata.agreed() != self.agreed

    def take_moved(self) -> list[Place]:
        """Names in compared directories that lead to another inode since this was last asked."""
        moved, self._state.ingest.moved = self._state.ingest.moved, []
        return moved

    def compare_next(self) -> None:
        """Compare a directory that waits; one beside or below the last, which is quick to reach."""
        self.compare(next(reversed(self.uncompared)))

    def compare(self, ino: Ino) -> None:
        """Compare a directory, if it was not compared. After an error it still waits."""
        left = self.uncompared.get(ino)
        if left is None:
            return
        try:
            self._compare(left)
        except BaseException:
            self._begin_anew()
            raise
        del self.uncompared[ino]

    def _compare(self, left: _Left) -> None:
        try:
            self._go_to(left.above)
        except OSError as error:
            # It is not where it was any more: a later mount finds it.
            if is_fatal(error):
                raise
            self._tally.skip(b"/".join((*_names_of(left.above), left.name)), error)
            self._begin_anew()
            return
        frame = enter_directory(self._state, *left)
        if frame is not None:
            self._compare_from(frame)

    def _compare_from(self, top: Frame) -> None:
        """Compare the current directory, and those in it that cannot wait."""
        state = self._state
        try:
            lower.traverse(
                top,
                visit=self._list,
                enter=partial(enter_directory, state),
                finish=partial(finish_directory, state),
                leave=state.down.leave,
            )
        finally:
            state.ingest.fs.new_entries.flush()

    def _list(self, frame: Frame) -> None:
        list_directory(self._state, frame)
        waiting, frame.waiting = frame.waiting, []
        for name, seen, value in waiting:
            if value is not None and self._may_wait(seen, value):
                self.uncompared[ino_of(value)] = _Left(frame, name, seen, value)
            else:
                frame.waiting.append((name, seen, value))

    def _may_wait(self, seen: os.stat_result, value: bytes) -> bool:
        """Whether a directory is as recorded, all but what is in it."""
        if value[:SIGNATURE_SIZE] != signature(seen) or not is_directory(value):
            return False
        record = decode(value)
        return (
            record is not None
            and record.stored_ctime_ns >= 0
            and seen.st_dev == self._state.down.device
        )

    def _go_to(self, frame: Frame) -> None:
        """Make a directory that was compared the current one."""
        frames = _way_to(frame)
        down = self._state.down
        shared = 0
        for above, name in zip(frames, down.names, strict=False):
            if above.name != name:
                break
            shared += 1
        down.leave_to(shared)
        for above in frames[shared:]:
            down.enter_known(above.name, partial(_is_same, above.seen))

    def _begin_anew(self) -> None:
        """Go back to the root; what was read and is not in the store is read again."""
        state = self._state
        state.small, state.small_bytes = [], 0
        state.down.close()
        state.down = lower.Descent(self._dir_fd)

    def end(self) -> ScanResult:
        """Everything is compared: commit."""
        fs = self._state.ingest.fs
        note_links(self._state)
        fs.commit()
        if self._state.ledger.changed:
            wait_for_tick(fs)
        self.close()
        return self._tally.result()

    def close(self) -> None:
        self._state.down.close()
        os.close(self._dir_fd)


def _way_to(frame: Frame) -> list[Frame]:
    """The directories from below the root to this one."""
    found = []
    while frame.parent is not None:
        found.append(frame)
        frame = frame.parent
    return found[::-1]


def _names_of(frame: Frame) -> list[bytes]:
    return [above.name for above in _way_to(frame)]


def _is_same(then: os.stat_result, now: os.stat_result) -> bool:
    return lower.identity(then) == lower.identity(now)
