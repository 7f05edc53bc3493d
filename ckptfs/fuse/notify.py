"""Notifications: the kernel invalidates what it caches and what no longer holds.

The kernel caches names, attributes and pages without limit. After a restore it has to drop what
changed without a request. A notification blocks while the kernel waits for an answer about the same
inode, so it is sent from a thread, never from a handler.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import pyfuse3
import trio

from ckptfs.model import Ino

log = logging.getLogger(__name__)

Entry = tuple[Ino, bytes]

#: Set when the mount has ended, and its caches with it. pyfuse3 serves one mount in a process.
ended = threading.Event()


async def invalidate(
    entries: Collection[Entry], inodes: Collection[Ino], gone: Mapping[Entry, Ino] | None = None
) -> None:
    """Return when the kernel has dropped these names, and attributes and pages of these inodes.

    ``gone`` are the files that these names led to and that nothing will lead to again: programs
    that watch such a file are notified that it was deleted.
    """
    if entries or inodes:
        await trio.to_thread.run_sync(_invalidate, entries, inodes, gone or {})


def _invalidate(
    entries: Collection[Entry], inodes: Collection[Ino], gone: Mapping[Entry, Ino]
) -> None:
    for entry in entries:
        parent, name = entry
        with _one_of_many():
            deleted = pyfuse3.InodeT(gone.get(entry, 0))
            pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), name, deleted)
    for ino in inodes:
        with _one_of_many():
            pyfuse3.invalidate_inode(pyfuse3.InodeT(ino))


@contextmanager
def _one_of_many() -> Iterator[None]:
    """What the kernel does not cache it cannot have wrong; and a notification that it refuses must
    not keep the others from it, nor end the daemon."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        if not ended.is_set():
            log.warning("the kernel refused a notification: %s", error)
