"""The store: versioned records and deduplicated blocks in one LMDB environment."""

from ckptfs.store.check import check
from ckptfs.store.environment import Store
from ckptfs.store.problem import Problem
from ckptfs.store.views import View

__all__ = ["Problem", "Store", "View", "check"]
