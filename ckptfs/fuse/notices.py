"""Telling the kernel what changed without its asking.

The kernel was told that it may believe names, attributes and pages for ever. After a restore it has
to hear what no longer holds. Notices block while the kernel has a request for us, so they are sent
from a thread, never from a handler.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import pyfuse3
import trio

from ckptfs.model import Ino


async def tell_kernel(entries: Collection[tuple[Ino, bytes]], inodes: Collection[Ino]) -> None:
    """Return when the kernel has dropped these names, and attributes and pages of these inodes."""
    if entries or inodes:
        await trio.to_thread.run_sync(_tell, entries, inodes)


def _tell(entries: Collection[tuple[Ino, bytes]], inodes: Collection[Ino]) -> None:
    # What the kernel does not know it cannot have wrong.
    for parent, name in entries:
        with suppress(FileNotFoundError):
            pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), name)
    for ino in inodes:
        with suppress(FileNotFoundError):
            pyfuse3.invalidate_inode(pyfuse3.InodeT(ino))
