"""What differs between two views."""

from __future__ import annotations

from ckptfs.history.touched import Entities, Touched, entities_between, touched

__all__ = ["Entities", "Touched", "entities_between", "touched"]
