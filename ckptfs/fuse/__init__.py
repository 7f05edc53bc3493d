"""The workspace as a FUSE file system."""

from ckptfs.fuse.server import binding

# Before pyfuse3 is imported: see there.
binding.lend_loops(binding.load().module)

from ckptfs.fuse.connections import Connection, Connections, Tree  # noqa: E402
from ckptfs.fuse.hooks import MountOptions, ServedBy  # noqa: E402
from ckptfs.fuse.notify import invalidate  # noqa: E402
from ckptfs.fuse.serving import serve  # noqa: E402

__all__ = [
    "Connection",
    "Connections",
    "MountOptions",
    "ServedBy",
    "Tree",
    "invalidate",
    "serve",
]
