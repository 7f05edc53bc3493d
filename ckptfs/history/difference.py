"""A comparison as people ask for it: two references and some paths, and what differs there.

Turns words into views and views into changes. How they are shown, and over which wire they go, is
not known here.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ckptfs.errors import CheckpointUnknown
from ckptfs.fs import Filesystem
from ckptfs.history import pairs
from ckptfs.history.checkpoints import Checkpoint, nearest, of_epoch
from ckptfs.history.diff import ROOT_PATH, Change, before, compare, nothing
from ckptfs.history.excluded import hidden_by_excluded
from ckptfs.history.log import seek
from ckptfs.history.pairs import Pair
from ckptfs.history.references import resolve
from ckptfs.history.selection import select
from ckptfs.model import Epoch
from ckptfs.store import View
from ckptfs.store.format import NO_EPOCH


class End(NamedTuple):
    """One end of a comparison. Without a checkpoint it is the workspace as it is, or, if the view
    is of no epoch, nothing at all."""

    view: View
    checkpoint: Checkpoint | None


class Difference(NamedTuple):
    older: End
    newer: End
    changes: list[Change]
    #: The paths that it is limited to; none if it is not.
    paths: list[bytes]

    def without_times(self) -> Difference:
        """Without what got nothing but other times."""
        return self._replace(changes=[item for item in self.changes if not item.only_times])

    def file_pairs(self, fs: Filesystem) -> list[Pair]:
        """The files to show, one by one."""
        a, b = self.older.view, self.newer.view
        found = pairs.file_pairs(fs, a, b, self.changes)
        return [pair for pair in found if not self.paths or self._wants(pair)]

    def _wants(self, pair: Pair) -> bool:
        return any(found and is_below(found.path, self.paths) for found in (pair.old, pair.new))


def between(
    fs: Filesystem, older: str = "", newer: str = "", patterns: Sequence[bytes] = ()
) -> Difference:
    """What differs between two references.

    Without ``older`` it is the checkpoint that the workspace goes on from, without ``newer`` the
    workspace as it is. Raises CheckpointUnknown, and FileNotFoundError for a pattern that names
    nothing at either end.
    """
    fs.flush()
    return _difference(fs, _older(fs, older), _newer(fs, newer), patterns)


def of_checkpoint(
    fs: Filesystem, checkpoint: Checkpoint, patterns: Sequence[bytes] = ()
) -> Difference:
    """What a checkpoint changed against the one it came from."""
    fs.flush()
    origin = before(fs, checkpoint.epoch)
    older = End(origin, of_epoch(fs.store, origin.epoch))
    newer = End(fs.view_of(checkpoint.epoch), checkpoint)
    return _difference(fs, older, newer, patterns)


def _older(fs: Filesystem, text: str) -> End:
    if text:
        return _newer(fs, text)
    found = nearest(fs.store)
    return End(fs.view_of(found.epoch), found) if found else End(nothing(), None)


def _newer(fs: Filesystem, text: str) -> End:
    if not text:
        return End(fs.head, None)
    found = resolve(fs.store, text, fs.clock())
    return End(fs.view_of(found.epoch(fs.store)), found.checkpoint)


def _difference(fs: Filesystem, older: End, newer: End, patterns: Sequence[bytes]) -> Difference:
    paths = _selected(fs, (older.view, newer.view), patterns)
    changes = compare(fs, older.view, newer.view)
    if fs.head.epoch in (older.view.epoch, newer.view.epoch):
        # What was excluded since has left history, not the workspace.
        hidden = hidden_by_excluded(fs)
        changes = [change for change in changes if not hidden(change.path)]
    if paths:
        changes = [change for change in changes if _concerns(change, paths)]
    return Difference(older, newer, changes, paths)


def _selected(fs: Filesystem, views: Iterable[View], patterns: Sequence[bytes]) -> list[bytes]:
    real = tuple(view for view in views if view.epoch != NO_EPOCH)
    if any(pattern in (b"", ROOT_PATH) for pattern in patterns):
        return []
    return select(fs, real, patterns)


def _concerns(change: Change, paths: list[bytes]) -> bool:
    """Whether a change is at or below one of the paths, or moved what is."""
    own = [path for path in (change.path, change.source) if path is not None]
    if any(is_below(path, paths) for path in own):
        return True
    moved = change.source not in (None, change.path)
    return moved and any(is_below(path, own) for path in paths)


def is_below(path: bytes, tops: Iterable[bytes]) -> bool:
    """Whether a path is one of ``tops`` or below one."""
    return any(path == top or path.startswith(top + b"/") for top in tops)


def contents(
    fs: Filesystem, epoch: Epoch, paths: Sequence[bytes], limit: int
) -> list[bytes | None]:
    """The bytes of the files at some paths; None for what is no file, gone, or larger.

    Raises CheckpointUnknown if the epoch can no longer be looked at.
    """
    fs.flush()
    record = fs.store.epochs.get(epoch)
    if record is None or (record.sealed and not record.info):
        raise CheckpointUnknown(str(epoch), reason="The checkpoint was deleted meanwhile")
    view = fs.view_of(epoch)
    return [_content(fs, view, path, limit) for path in paths]


def _content(fs: Filesystem, view: View, path: bytes, limit: int) -> bytes | None:
    try:
        inode = seek(fs, view, path)
    except OSError as error:
        if error.errno not in (errno.ESTALE, errno.ENAMETOOLONG):
            raise
        return None
    if inode is None or not inode.is_file or inode.size > limit:
        return None
    return bytes(fs.read(view, inode.ino, 0, inode.size))
