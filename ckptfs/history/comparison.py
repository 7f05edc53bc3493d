"""Comparing several states with the one that they all come from: what each changed since.

A state is a line as it is, or a checkpoint. Paths are those of each state, or of the one in common
for what is gone. The cost is what was written since (`ckptfs.history.diff`), and reading the files
whose lines are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import Checkpoint, Run, of_epoch, view_or_empty
from ckptfs.history.diff.changed import MODIFIED, TYPE, differences
from ckptfs.history.diff.tree import Change, compare_views
from ckptfs.history.forks import is_left_out, left_out
from ckptfs.history.merge import common_origin
from ckptfs.history.references import Reference, resolve
from ckptfs.model import Epoch, Inode
from ckptfs.store import View
from ckptfs.store.format import NO_EPOCH
from ckptfs.textdiff import TEXT_MAX, common_blocks, is_text, regions, split_lines


class LineCount(NamedTuple):
    """Lines that came and went."""

    added: int = 0
    removed: int = 0


class State(NamedTuple):
    """One of the states: its changes by path, the lines of all its texts, and the commands that
    were last run on it or on its way."""

    reference: Reference
    view: View
    changes: dict[bytes, Change]
    lines: LineCount
    runs: tuple[Run, ...]


class Comparison(NamedTuple):
    base: Checkpoint | None
    states: list[State]

    def paths(self) -> list[bytes]:
        return sorted({path for state in self.states for path in state.changes})


def compare(fs: Filesystem, texts: Sequence[str]) -> Comparison:
    """What each of these references changed since the newest state that all of them have."""
    fs.flush()
    found = [resolve(fs, text, fs.clock()) for text in texts]
    base = common_origin(fs.store, [each.epoch(fs) for each in found])
    view = view_or_empty(fs, base)
    return Comparison(of_epoch(fs.store, base), [_state(fs, view, each) for each in found])


def _state(fs: Filesystem, base: View, reference: Reference) -> State:
    view = fs.view_of(reference.epoch(fs))
    spec = left_out(fs.store, view.epoch)
    changes = [
        change
        for change in compare_views(fs, base, view)
        if not change.only_times and not is_left_out(spec, change)
    ]
    counts = [_lines(fs, base, view, change) for change in interrupts.checked(changes)]
    lines = LineCount(sum(each.added for each in counts), sum(each.removed for each in counts))
    by_path = {change.path: change for change in changes}
    return State(reference, view, by_path, lines, _runs(fs, view.epoch, base.epoch))


def _lines(fs: Filesystem, base: View, view: View, change: Change) -> LineCount:
    if change.old is not None and change.new is not None and not {MODIFIED, TYPE} & change.kinds:
        return LineCount()
    old, new = _text(fs, base, change.old), _text(fs, view, change.new)
    if old is None or new is None:
        return LineCount()
    a, b = split_lines(old), split_lines(new)
    parts = list(regions(common_blocks(a, b), len(a), len(b)))
    added = sum(part.new_end - part.new for part in parts)
    return LineCount(added, sum(part.old_end - part.old for part in parts))


def _text(fs: Filesystem, view: View, inode: Inode | None) -> bytes | None:
    """The bytes of a text, none of what is absent; None for anything that has no lines."""
    if inode is None:
        return b""
    if not inode.is_file or inode.size > TEXT_MAX:
        return None
    data = bytes(fs.read(view, inode.ino, 0, inode.size))
    return data if is_text(data) else None


def _runs(fs: Filesystem, epoch: Epoch, base: Epoch) -> tuple[Run, ...]:
    return next((found.runs for found in _way(fs, epoch, base) if found.runs), ())


def _way(fs: Filesystem, epoch: Epoch, base: Epoch) -> Iterator[Checkpoint]:
    """The checkpoints from a state back to the base, without it."""
    epochs = fs.store.epochs
    while epoch != base and epoch != NO_EPOCH and epoch in epochs:
        found = of_epoch(fs.store, epoch)
        if found is not None:
            yield found
        epoch = epochs[epoch].parent


def alike(fs: Filesystem, states: Sequence[State], path: bytes) -> bool:
    """Whether all states that changed a path made the same of it."""
    first, *others = [(state.view, state.changes[path].new) for state in states]
    return all(_same(fs, first, other) for other in others)


def _same(fs: Filesystem, a: tuple[View, Inode | None], b: tuple[View, Inode | None]) -> bool:
    if a[1] is None or b[1] is None:
        return a[1] is b[1]
    return not differences(fs, a[0], a[1], b[0], b[1]) - {"times"}
