"""Checkpoints: sealed epochs, what is told about them, and the way back to them."""

from ckptfs.history.checkpoints import (
    Cause,
    Checkpoint,
    checkpoints,
    describe,
    find,
    lineage,
    seal,
)
from ckptfs.history.restore import LogEntry, Restored, leave_limbo, redoable, restore, undoable
from ckptfs.history.restore import log as restore_log
from ckptfs.history.touched import Touched

__all__ = [
    "Cause",
    "Checkpoint",
    "LogEntry",
    "Restored",
    "Touched",
    "checkpoints",
    "describe",
    "find",
    "leave_limbo",
    "lineage",
    "redoable",
    "restore",
    "restore_log",
    "seal",
    "undoable",
]
