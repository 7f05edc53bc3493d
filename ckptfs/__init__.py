"""ckptfs: a workspace that is a file system with a history.

Importing the package costs nothing; every part is imported where it is needed. The names of the
Python API stand here (docs/API.md) and come from `ckptfs.api` when one is asked for.
"""

TYPE_CHECKING = False  # as type checkers want it; the real one would be an import
if TYPE_CHECKING:
    from ckptfs.api import (
        AsyncCheckpointService,
        Checkpoint,
        CheckpointConfig,
        CheckpointDiff,
        CheckpointEvent,
        CheckpointService,
        RestoreResult,
    )
    from ckptfs.errors import CkptfsError

__version__ = "0.1.0"

__all__ = [
    "AsyncCheckpointService",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointDiff",
    "CheckpointEvent",
    "CheckpointService",
    "CkptfsError",
    "RestoreResult",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module("ckptfs.api"), name)
    globals()[name] = found
    return found
