"""The result of a pass over two trees: counts, what was kept twice, what was left out.

Nothing here touches a disk. Paths are bytes, relative to the root of the lower directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from ckptfs import interrupts

#: Progress is reported after this many files, and after this many bytes.
_FILES_STEP = 256
_BYTES_STEP = 8 << 20


class Progress(NamedTuple):
    """How far a pass is. ``total_files`` is None if they were not counted."""

    files: int
    bytes: int
    total_files: int | None


Watcher = Callable[[Progress], None]


class Conflict(NamedTuple):
    """Both sides changed ``path`` of the lower directory. The store's version stays where it is;
    the other is ``kept_as`` in the store: ``path`` itself if the store had deleted it."""

    path: bytes
    kept_as: bytes


class Skipped(NamedTuple):
    """An entry that was left out, and why."""

    path: bytes
    reason: str


class SyncResult(NamedTuple):
    """What a pass did to the side it wrote to. ``bytes`` counts file content that was copied."""

    added: int
    modified: int
    deleted: int
    unchanged: int
    bytes: int
    conflicts: tuple[Conflict, ...]
    skipped: tuple[Skipped, ...]

    @property
    def changed(self) -> bool:
        return bool(self.added or self.modified or self.deleted)


# The same value for every direction; the names say in a signature which one it is.
ScanResult = SyncResult
WriteBackResult = SyncResult
ImportResult = SyncResult
ExportResult = SyncResult


class Tally:
    """The result of a pass while it is under way."""

    def __init__(self, watcher: Watcher | None = None, total_files: int | None = None) -> None:
        self.added = 0
        self.modified = 0
        self.deleted = 0
        self.unchanged = 0
        self.bytes = 0
        self.conflicts: list[Conflict] = []
        self.skipped: list[Skipped] = []
        self._watcher = watcher
        self._total = total_files
        #: How many entries are done.
        self.files = 0
        self._reported_files = 0
        self._reported_bytes = 0

    def conflict(self, path: bytes, kept_as: bytes) -> None:
        self.conflicts.append(Conflict(path, kept_as))

    def skip(self, path: bytes, reason: str | OSError) -> None:
        self.skipped.append(Skipped(path, reason_of(reason)))

    def step(self, files: int = 1) -> None:
        """Count this many entries as done, and report progress now and then."""
        self.files += files
        interrupts.between()
        if self._watcher is None:
            return
        if (
            self.files - self._reported_files >= _FILES_STEP
            or self.bytes - self._reported_bytes >= _BYTES_STEP
        ):
            self._report(self._watcher)

    def _report(self, watcher: Watcher) -> None:
        self._reported_files, self._reported_bytes = self.files, self.bytes
        watcher(Progress(self.files, self.bytes, self._total))

    def result(self) -> SyncResult:
        if self._watcher is not None:
            self._report(self._watcher)
        return SyncResult(
            self.added,
            self.modified,
            self.deleted,
            self.unchanged,
            self.bytes,
            tuple(self.conflicts),
            tuple(self.skipped),
        )


def reason_of(reason: str | OSError) -> str:
    """The text of an error, without the path that Python puts into it."""
    if isinstance(reason, str):
        return reason
    if reason.errno == errno.ESTALE:
        return "it changed while it was looked at"
    return os.strerror(reason.errno) if reason.errno else str(reason)


def is_fatal(error: OSError) -> bool:
    """Whether an error ends the pass, rather than leaving one entry out."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
