"""The Python API: `CheckpointService` and the values that it takes and returns.

It stands on the same operations as the command line, through the daemon of a mounted workspace or
on the store of a plain directory. It never prints, never ends the process, and raises errors of
`ckptfs.errors` only. `from ckptfs import CheckpointService` imports this package when it is asked
for.
"""

import logging

from ckptfs.api.awaited import AsyncCheckpointService
from ckptfs.api.service import CheckpointService
from ckptfs.api.values import (
    EVENTS,
    Checkpoint,
    CheckpointConfig,
    CheckpointDiff,
    CheckpointEvent,
    Compacted,
    ComparedPath,
    ComparedState,
    Comparison,
    ConflictedPath,
    EventStream,
    FileChange,
    FileVersion,
    Fork,
    Handler,
    MergeResult,
    PruneDecision,
    RestoreResult,
    State,
    WorkspaceStatus,
)
from ckptfs.errors import CkptfsError

# A program that wants our log sets handlers; without any, Python would print it.
logging.getLogger("ckptfs").addHandler(logging.NullHandler())

__all__ = [
    "EVENTS",
    "AsyncCheckpointService",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointDiff",
    "CheckpointEvent",
    "CheckpointService",
    "CkptfsError",
    "Compacted",
    "ComparedPath",
    "ComparedState",
    "Comparison",
    "ConflictedPath",
    "EventStream",
    "FileChange",
    "FileVersion",
    "Fork",
    "Handler",
    "MergeResult",
    "PruneDecision",
    "RestoreResult",
    "State",
    "WorkspaceStatus",
]
