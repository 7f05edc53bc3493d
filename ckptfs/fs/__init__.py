"""POSIX in a view."""

from ckptfs.fs.filesystem import Filesystem, filesystems

__all__ = ["Filesystem", "filesystems"]
