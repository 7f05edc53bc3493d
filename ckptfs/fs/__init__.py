"""POSIX in a view."""

from ckptfs.fs.filesystem import Filesystem

__all__ = ["Filesystem"]
