"""Values that cross module borders: ids, inodes, and the clock.

Nothing here touches the disk or knows how a value is stored.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from typing import NamedTuple, NewType

Ino = NewType("Ino", int)
Epoch = NewType("Epoch", int)
ContentId = NewType("ContentId", int)

ROOT_INO = Ino(1)

#: A file is cut into blocks of this many bytes. Part of the format: see docs/FORMAT.md.
BLOCK_SIZE = 64 * 1024

#: Inode numbers take 40 bits of a FUSE node id, and so many checkpoints have the bits above them:
#: numbers of checkpoints go round in them, past those that are still in use.
INO_MAX = (1 << 40) - 1
CHECKPOINT_SLOTS = (1 << 22) - 2
CHECKPOINT_MAX = (1 << 32) - 1

#: The line of work that the workspace shows; forks have the numbers above it.
MAIN_LINE = 0

NAME_MAX = 255
TARGET_MAX = 4095
LINK_MAX = 65_000
FILE_SIZE_MAX = 2**63 - 1 - BLOCK_SIZE

#: Sentinel of ``Inode.content`` for everything that is not a regular file, and for an empty one.
NO_CONTENT = ContentId(0)

Clock = Callable[[], int]

#: A directory entry, by its directory and its name.
Place = tuple[Ino, bytes]

#: Files are stamped with the fine clock, in the compiled server too (`stamp_ns` in `lease.c`): one
#: that ticks gives two changes the same time, and a program that looked in between misses the
#: second. Without the writeback cache the kernel stamps no file of the mount itself.
wall_clock: Clock = time.time_ns


#: The range of times that can be stored, in nanoseconds since 1970.
TIME_MIN_NS = -(2**63)
TIME_MAX_NS = 2**63 - 1


def storable_ns(time_ns: int) -> int:
    """The nearest time that can be stored, as Linux does where a file system has its limits."""
    return min(max(time_ns, TIME_MIN_NS), TIME_MAX_NS)


class Inode(NamedTuple):
    """One version of a file, directory, link or special node. Sizes are bytes, times nanoseconds.

    ``parent`` and ``name`` are where a directory stands, and one of the names of anything else
    (the further hard links are in the store's `links` table). Both are 0 and empty for the root
    and for an inode that no longer has a name.
    """

    ino: Ino
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    #: Bytes held by the stored blocks; holes count nothing.
    allocated: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int
    #: Which block map the file reads from; O_TRUNC gives a file a new one.
    content: ContentId
    #: The epoch in which ``content`` was allocated.
    content_epoch: Epoch
    parent: Ino
    name: bytes
    #: Target of a symbolic link, else empty.
    target: bytes

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


_FIELD = {name: index for index, name in enumerate(Inode._fields)}


def _replace(inode: Inode, /, **fields: object) -> Inode:
    values = list(inode)
    for name, value in fields.items():
        values[_FIELD[name]] = value
    return tuple.__new__(Inode, values)


# The generated one takes 2.9 µs, this one 0.9, and every request changes an inode or two.
Inode._replace = _replace  # type: ignore[method-assign, assignment]


class Attributes(NamedTuple):
    """What ``setattr`` is asked to change; ``None`` leaves a field as it is."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None
