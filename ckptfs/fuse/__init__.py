"""The workspace as a FUSE file system."""

from ckptfs.fuse.server import binding

# Before pyfuse3 is imported: see there.
binding.load()

from ckptfs.fuse.notices import tell_kernel  # noqa: E402
from ckptfs.fuse.options import MountOptions, ServedBy  # noqa: E402
from ckptfs.fuse.serving import serve  # noqa: E402

__all__ = ["MountOptions", "ServedBy", "serve", "tell_kernel"]
