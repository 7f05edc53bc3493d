"""Taking a restore back: `undo`, and `redo`, which takes an undo back.

A restore of everything is undone by restoring the state before it. Undoing a restore of paths
restores only these paths; what changed elsewhere since stays. `has_moved_on` says beforehand
whether anything changed since, which is what an undo might cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.history import tasks
from ckptfs.history.checkpoints import Cause, Checkpoint, find, numbered, seal
from ckptfs.history.diff.changed import Changed
from ckptfs.history.diff.tree import Change
from ckptfs.history.path_restore import Claim, put_back
from ckptfs.history.paths import directories_above, is_below
from ckptfs.history.restore import (
    LogEntry,
    Plan,
    Restored,
    log,
    log_restore,
    or_roll_back,
    paths_by_effect,
    plan,
    restore,
    restore_paths,
    token_of,
    visible_changes,
)


class _Scope(NamedTuple):
    """The paths of a restore; those of ``tops`` with everything below them. ``ways`` are the
    directories above, which come and go with the paths."""

    paths: list[bytes]
    named: set[bytes]
    tops: set[bytes]
    ways: set[bytes]

    def holds(self, path: bytes) -> bool:
        return path in self.named or is_below(path, self.tops)


def _scope(entry: LogEntry) -> _Scope:
    paths = [os.fsencode(path) for path in entry.paths]
    whole = entry.paths if entry.whole is None else entry.whole
    ways = {way for path in paths for way in directories_above(path)}
    return _Scope(paths, set(paths), set(map(os.fsencode, whole)), ways)


# -- looking ---------------------------------------------------------------------------------------


def has_moved_on(fs: Filesystem, entry: LogEntry) -> bool:
    """Whether anything but times changed since a restore, or that cannot be known any more."""
    fs.flush()
    left = numbered(fs.store, entry.target if entry.after is None else entry.after)
    if left is None:
        return True
    if entry.after is not None or not entry.paths:
        return any(_changes(fs, left))
    scope = _scope(entry)
    beside = any(_is_beside(change, scope) for change in _changes(fs, find(fs.store, entry.before)))
    return beside or _differs(fs, entry, left, scope)


def _changes(fs: Filesystem, goal: Checkpoint) -> Iterator[Change]:
    """How the workspace differs from a checkpoint."""
    found = visible_changes(fs, fs.view_of(goal.epoch))
    return (change for change in found if not change.only_times)


def _is_beside(change: Change, scope: _Scope) -> bool:
    inode = change.new or change.old
    is_dir = inode is not None and inode.is_dir
    places = [place for place in (change.path, change.source) if place is not None]
    return any(not (scope.holds(path) or (is_dir and path in scope.ways)) for path in places)


def _concerns(change: Change, scope: _Scope) -> bool:
    return scope.holds(change.path) or (change.source is not None and scope.holds(change.source))


def _differs(fs: Filesystem, entry: LogEntry, left: Checkpoint, scope: _Scope) -> bool:
    """Whether the restored paths are no longer what they were restored to."""
    if entry.whole is not None:
        return any(_concerns(change, scope) for change in _changes(fs, left))
    try:
        found = plan(fs, left, scope.paths)
    except OSError:  # something is in the way now
        return True
    return bool(found.added or found.modified or found.deleted)


def plan_back(fs: Filesystem, entry: LogEntry) -> Plan:
    """What undoing a restore would do."""
    target, scope = find(fs.store, entry.before), _scope(entry)
    if entry.whole is None:
        return plan(fs, target, scope.paths)
    changes = [change for change in _changes(fs, target) if _concerns(change, scope)]
    return Plan(target.id, *paths_by_effect(changes), token_of(fs, target.epoch, scope.paths))


def token_back(fs: Filesystem, entry: LogEntry) -> str:
    """The token that such a plan has now."""
    return token_of(fs, find(fs.store, entry.before).epoch, _scope(entry).paths)


def head_after(fs: Filesystem, entry: LogEntry) -> Checkpoint | None:
    """The checkpoint that becomes the head when a restore is taken back; None if only the paths
    that it was of change, since others changed meanwhile."""
    if entry.paths and has_moved_on(fs, entry):
        return None
    return find(fs.store, entry.before)


# -- doing it --------------------------------------------------------------------------------------


def take_back(
    fs: Filesystem,
    entry: LogEntry,
    kind: str,
    *,
    changed: Changed,
    cause: Cause | None = None,
) -> Restored:
    """Undo or redo, as ``kind`` says. The caller commits and tells the kernel of what the result
    says, and of ``changed`` also if it fails: then everything is as it was.
    """
    target, scope = find(fs.store, entry.before), _scope(entry)
    if head_after(fs, entry) is not None:
        restored = restore(fs, target, kind=kind, takes_back=entry, cause=cause)
    elif entry.whole is None:
        restored = restore_paths(
            fs,
            target,
            scope.paths,
            kind=kind,
            takes_back=entry,
            changed=changed,
            cause=cause,
        )
    else:
        restored = _put_back(fs, entry, target, kind, changed, cause or Cause())
    _tell_task(fs, entry, kind, restored.before)
    return restored


def _put_back(
    fs: Filesystem,
    entry: LogEntry,
    target: Checkpoint,
    kind: str,
    changed: Changed,
    cause: Cause,
) -> Restored:
    """The same for a restore that took some paths alone, without what is below them."""
    scope = _scope(entry)
    goals = {Claim(path, path in scope.tops): target for path in scope.paths}
    before = seal(fs, "restore", f"before {kind} to {target.id}", fs.clock(), cause=cause)
    with or_roll_back(fs, [before], changed):
        put_back(fs, goals, changed)
    log_restore(fs, kind, target, before, changed, cause, takes_back=entry)
    return Restored(before, target.id, changed)


def _tell_task(fs: Filesystem, entry: LogEntry, kind: str, before: Checkpoint) -> None:
    """A task whose revert is taken back can be reverted again."""
    entries = log(fs)
    while entry.undoes is not None:
        entry = entries[entry.undoes]
    for event in tasks.events(fs):
        if event.event == tasks.REVERT and event.checkpoint == entry.before:
            deed = tasks.REVERT_UNDONE if kind == "undo" else tasks.REVERT_REDONE
            tasks.log_event(fs, deed, event.name, before, before)
