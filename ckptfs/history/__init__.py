"""Checkpoints: sealed epochs, what is recorded about them, and the way back to them."""

from ckptfs.history.checkpoints import (
    Cause,
    Checkpoint,
    checkpoints,
    count_moments,
    describe,
    find,
    lineage,
    nearest,
    newest_state,
    revision,
    seal,
    without_moments,
)
from ckptfs.history.diff.changed import Changed
from ckptfs.history.paths import select
from ckptfs.history.restore import (
    LogEntry,
    Plan,
    Restored,
    cached_files,
    leave_limbo,
    plan,
    redoable,
    restore,
    restore_paths,
    token_of,
    undoable,
    would_change,
)
from ckptfs.history.restore import log as restore_log

__all__ = [
    "Cause",
    "Changed",
    "Checkpoint",
    "LogEntry",
    "Plan",
    "Restored",
    "cached_files",
    "checkpoints",
    "count_moments",
    "describe",
    "find",
    "leave_limbo",
    "lineage",
    "nearest",
    "newest_state",
    "plan",
    "redoable",
    "restore",
    "restore_log",
    "restore_paths",
    "revision",
    "seal",
    "select",
    "token_of",
    "undoable",
    "without_moments",
    "would_change",
]
