"""Notifications: the kernel invalidates what it caches and what no longer holds.

The kernel caches names, attributes and pages without limit. After a restore it has to drop what
changed without a request. A notification blocks while the kernel waits for an answer about the same
inode, so it is sent from a thread, never from a handler. pyfuse3 sends those of its mount; those of
another one (`connections`) are written to its descriptor.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import pyfuse3
import trio

from ckptfs.model import Ino

log = logging.getLogger(__name__)

Entry = tuple[Ino, bytes]

#: fuse_out_header; the codes, and what comes with each: fuse_notify_inval_inode_out,
#: fuse_notify_inval_entry_out and fuse_notify_delete_out.
_HEADER = struct.Struct("=IiQ")
_INVAL_INODE, _INVAL_ENTRY, _DELETE = 2, 3, 6
_INODE_BODY = struct.Struct("=Qqq")
_ENTRY_BODY = struct.Struct("=QI4x")
_DELETE_BODY = struct.Struct("=QQI4x")


class Channel(Protocol):
    """The way to one mount. Both raise OSError if the kernel refuses."""

    def invalidate_entry(self, parent: int, name: bytes, deleted: int) -> None: ...
    def invalidate_inode(self, ino: int) -> None: ...
    def has_ended(self) -> bool:
        """Whether the mount has ended, and its caches with it."""


class _Session:
    """pyfuse3's: it serves one mount in a process."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def invalidate_entry(self, parent: int, name: bytes, deleted: int) -> None:
        pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), name, pyfuse3.InodeT(deleted))

    def invalidate_inode(self, ino: int) -> None:
        pyfuse3.invalidate_inode(pyfuse3.InodeT(ino))

    def has_ended(self) -> bool:
        return self.ended.is_set()


class Device:
    """A FUSE descriptor, which is closed when nothing is being sent any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._ended = threading.Event()
        self._senders = 0

    def invalidate_entry(self, parent: int, name: bytes, deleted: int) -> None:
        if deleted:
            self._send(_DELETE, _DELETE_BODY.pack(parent, deleted, len(name)) + name + b"\0")
        else:
            self._send(_INVAL_ENTRY, _ENTRY_BODY.pack(parent, len(name)) + name + b"\0")

    def invalidate_inode(self, ino: int) -> None:
        self._send(_INVAL_INODE, _INODE_BODY.pack(ino, 0, 0))

    def _send(self, code: int, body: bytes) -> None:
        os.write(self.fd, _HEADER.pack(_HEADER.size + len(body), code, 0) + body)

    def has_ended(self) -> bool:
        return self._ended.is_set()

    @contextmanager
    def sending(self) -> Iterator[None]:
        self._senders += 1
        try:
            yield
        finally:
            self._senders -= 1
            self._close_unused()

    def close(self) -> None:
        self._ended.set()
        self._close_unused()

    def _close_unused(self) -> None:
        if self._ended.is_set() and not self._senders and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


session = _Session()


async def invalidate(
    entries: Collection[Entry], inodes: Collection[Ino], gone: Mapping[Entry, Ino] | None = None
) -> None:
    """Return when the kernel has dropped these names, and attributes and pages of these inodes, in
    the mount of pyfuse3's session.

    ``gone`` are the files that these names led to and that nothing will lead to again: programs
    that watch such a file are notified that it was deleted.
    """
    if entries or inodes:
        await trio.to_thread.run_sync(_invalidate, session, entries, inodes, gone or {})


async def invalidate_at(
    device: Device,
    entries: Collection[Entry],
    inodes: Collection[Ino],
    gone: Mapping[Entry, Ino] | None = None,
) -> None:
    """The same in the mount of a descriptor."""
    if (entries or inodes) and not device.has_ended():
        with device.sending():
            await trio.to_thread.run_sync(_invalidate, device, entries, inodes, gone or {})


def _invalidate(
    channel: Channel,
    entries: Collection[Entry],
    inodes: Collection[Ino],
    gone: Mapping[Entry, Ino],
) -> None:
    for entry in entries:
        parent, name = entry
        with _one_of_many(channel):
            channel.invalidate_entry(parent, name, gone.get(entry, 0))
    for ino in inodes:
        with _one_of_many(channel):
            channel.invalidate_inode(ino)


@contextmanager
def _one_of_many(channel: Channel) -> Iterator[None]:
    """What the kernel does not cache it cannot have wrong; and a notification that it refuses must
    not keep the others from it, nor end the daemon."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        if not channel.has_ended():
            log.warning("the kernel refused a notification: %s", error)
