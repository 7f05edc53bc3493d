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
    of_line,
    revision,
    seal,
    without_moments,
)
from ckptfs.history.diff.changed import Changed
from ckptfs.history.difference import drop as drop_prepared
from ckptfs.history.paths import select
from ckptfs.history.restore import (
    LogEntry,
    Plan,
    Restored,
    differ,
    leave_limbo,
    plan,
    preparing,
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
    "checkpoints",
    "count_moments",
    "describe",
    "differ",
    "drop_prepared",
    "find",
    "leave_limbo",
    "lineage",
    "nearest",
    "newest_state",
    "of_line",
    "plan",
    "preparing",
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
