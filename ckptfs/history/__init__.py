"""Checkpoints: sealed epochs and what is told about them."""

from ckptfs.history.checkpoints import Checkpoint, checkpoints, find, seal

__all__ = ["Checkpoint", "checkpoints", "find", "seal"]
