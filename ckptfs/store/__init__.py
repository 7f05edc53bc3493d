"""The store: versioned records and deduplicated blocks in one LMDB environment."""

from ckptfs.store.check import Problem, check
from ckptfs.store.environment import Store, new_store
from ckptfs.store.epochs import View

__all__ = ["Problem", "Store", "View", "check", "new_store"]
