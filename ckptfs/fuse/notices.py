"""Telling the kernel what changed without its asking.

The kernel was told that it may believe names, attributes and pages for ever. After a restore it has
to hear what no longer holds. Notices block while the kernel has a request for us, so they are sent
from a thread, never from a handler.
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

#: Set from the end of the mount on: there is nobody left to tell. pyfuse3 serves one in a process.
ended = threading.Event()


async def tell_kernel(
    entries: Collection[Entry], inodes: Collection[Ino], gone: Mapping[Entry, Ino] | None = None
) -> None:
    """Return when the kernel has dropped these names, and attributes and pages of these inodes.

    ``gone`` are the files that these names led to and that nothing will lead to again: whoever
    watches such a file hears that it was deleted.
    """
    if entries or inodes:
        await trio.to_thread.run_sync(_tell, entries, inodes, gone or {})


def _tell(entries: Collection[Entry], inodes: Collection[Ino], gone: Mapping[Entry, Ino]) -> None:
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
    """What the kernel does not know it cannot have wrong; and one notice that it does not take must
    not keep the others from it, nor end the daemon."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        if not ended.is_set():
            log.warning("the kernel did not take a notice: %s", error)
