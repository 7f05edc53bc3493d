"""What a mount is given by the layers above it: its options, and whom it asks before a change."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ckptfs.fs import Filesystem
from ckptfs.history.auto import Loss
from ckptfs.model import Ino
from ckptfs.store import View

_FOREVER = 1 << 62
_WRITERS_MAX = 4096

#: Finds out what a change takes away, if anything.
LossOf = Callable[[], Loss | None]


@dataclass(frozen=True)
class MountOptions:
    """``xattrs`` is off by default: while getxattr is answered at all, the kernel asks for
    security.capability before every write(2) (docs/design/fuse.md has the figures)."""

    xattrs: bool = False
    allow_other: bool = False
    #: Of ro, suid, dev and noexec; without the first three the mount has rw, nosuid and nodev.
    flags: frozenset[str] = frozenset()
    #: The source in the table of mounts, with a backslash and three digits for what means something
    #: in an option.
    fsname: str = "ckptfs"
    #: Whether `.checkpoints` stands in the listing of the workspace's root.
    show_checkpoints: bool = False
    #: Whether the CPUs may be kept awake while requests come in a row.
    keep_cpus_awake: bool = True
    #: Whether the daemon goes before programs that want the CPU.
    raise_priority: bool = True


class ServedBy(NamedTuple):
    """Which path replies to requests, and whether CPUs are kept awake for them. The reasons are
    empty for the compiled path, and for CPUs that are kept awake."""

    #: "compiled" or "portable".
    server: str
    server_reason: str
    cpus_awake: bool
    cpus_awake_reason: str


class Guard(Protocol):
    """Called before every change, with the process that makes it and, if it takes content away,
    with a way to find out what that is: the moment to take a checkpoint of what was."""

    def __call__(self, pid: int, loss: LossOf | None, *, begins: bool = True) -> None:
        """``begins`` is false where a process goes on with what it did before."""

    def made(self, ino: int, *, content: bool = True, new: bool = False) -> None:
        """The process of the last call has made or changed this inode: its content, or only its
        attributes."""

    def made_all(self, inodes: Sequence[int], makers: Sequence[int]) -> None:
        """These are new, each made by the process beside it."""

    def is_writing(self, ino: int, pid: int) -> bool:
        """Whether the process was the last to change an inode, and not long ago. Only the first of
        a process's writes is a beginning: a checkpoint before a later one would hold half a
        file."""

    def make_room(self, ino: int) -> bool:
        """The disk is full for a request about this inode: give up some of what is kept beyond
        need, but nothing of the inode itself. False if there is nothing."""

    def lasting(self, pid: int) -> int:
        """Until when, by the monotonic clock, changes by this process that take nothing away need
        no call before they happen, as long as no other actor changes anything. 0: they do."""

    def mark(self, pid: int, message: str) -> int:
        """Take a checkpoint now, on the word of this process; its number. It is durable then, or an
        OSError says why there is none."""

    def take_back(self, number: int) -> None:
        """Delete a mark: it had not all of its message."""

    def name_step(self, pid: int, text: str) -> None:
        """What this process does next is called so; nothing in particular if it is empty."""


class GateKeeper(Protocol):
    """The part of the compiled server that lets changes wait."""

    def open_gate(self) -> object: ...
    def holds_changes(self) -> bool: ...


class Gate(Protocol):
    """Where a mount serves before its tree is compared with another: what has to be compared before
    it is shown. While it is closed, changes wait."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def uncompared(self) -> Mapping[Ino, object]:
        """The directories that are not compared: always the same dictionary."""

    def compare(self, node: int) -> None:
        """Compare one of them."""

    def compare_all(self) -> None:
        """Compare all at once: the requests cannot be told apart. It is open then."""

    def kept_by(self, keeper: GateKeeper) -> None:
        """It is closed; this opens it."""


class _Open:
    """The gate of a mount that has nothing to compare."""

    is_closed = False

    def __init__(self) -> None:
        self.uncompared: dict[Ino, object] = {}

    def compare(self, node: int) -> None:
        pass

    def compare_all(self) -> None:
        pass

    def kept_by(self, keeper: GateKeeper) -> None:
        pass


def ungated() -> Gate:
    return _Open()


#: Threads of this process that touch files to wake the programs that watch them: their requests
#: change nothing, not even a time.
touching: set[int] = set()


class _Unguarded:
    """The guard of a mount that takes no checkpoints by itself."""

    def __init__(self) -> None:
        self._writers: dict[int, int] = {}
        self._pid = 0

    def __call__(self, pid: int, loss: LossOf | None, *, begins: bool = True) -> None:
        self._pid = pid

    def made(self, ino: int, *, content: bool = True, new: bool = False) -> None:
        self.made_all([ino], [self._pid])

    def made_all(self, inodes: Sequence[int], makers: Sequence[int]) -> None:
        if len(self._writers) >= _WRITERS_MAX:
            self._writers.clear()
        self._writers.update(zip(inodes, makers, strict=True))

    def is_writing(self, ino: int, pid: int) -> bool:
        return self._writers.get(ino) == pid

    def make_room(self, ino: int) -> bool:
        return False

    def lasting(self, pid: int) -> int:
        return _FOREVER

    def mark(self, pid: int, message: str) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def take_back(self, number: int) -> None:
        pass

    def name_step(self, pid: int, text: str) -> None:
        pass


def unguarded() -> Guard:
    return _Unguarded()


class HistoryHooks(Protocol):
    """What `.checkpoints` needs from above: what the kernel cached of its names is
    invalidated when they return. ``pid`` is the thread that asks."""

    async def save(self, name: str) -> int: ...
    async def delete(self, number: int, pid: int) -> None: ...


def bytes_lost(fs: Filesystem, view: View, ino: Ino, start: int, *, in_place: bool) -> Loss | None:
    """What a file has from ``start`` on, where that is cut off or changed in place."""
    size = fs.getattr(view, ino).size
    return Loss(ino, size if in_place else 0) if start < size else None
