"""The workspace as a FUSE file system."""

from ckptfs.fuse.notices import tell_kernel
from ckptfs.fuse.options import MountOptions
from ckptfs.fuse.serving import serve

__all__ = ["MountOptions", "serve", "tell_kernel"]
