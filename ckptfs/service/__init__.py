"""Every verb of a workspace, once."""

from ckptfs.service.service import Service

__all__ = ["Service"]
