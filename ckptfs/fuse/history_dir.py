"""`.checkpoints`: history as directories.

A directory in the workspace's root that stands in no listing but can be entered by name. In it: one
read-only directory for each checkpoint, under its number, and symbolic links to them by tag and as
`latest`. Making a directory in it takes a checkpoint of that name; removing one deletes it. What a
checkpoint contains is the file system's business; here are only the names of checkpoints.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Callable, Iterator

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fuse.nodes import HISTORY, HISTORY_ROOT, Nodes, checkpoint_base
from ckptfs.history.checkpoints import numbered
from ckptfs.model import ROOT_INO, Ino, Inode

NAME = b".checkpoints"
_LATEST = b"latest"
_LATEST_NODE = HISTORY | 2
_FIRST_TAG_NODE = HISTORY | 16
#: No checkpoint has a number of more digits.
_DIGITS_MAX = 18

TagName = Callable[[str], bytes]


def _order(name: bytes) -> tuple[bool, int, bytes]:
    return (False, int(name), b"") if name.isdigit() else (True, 0, name)


class HistoryDirectory:
    def __init__(self, fs: Filesystem, nodes: Nodes, tag_name: TagName) -> None:
        self._fs = fs
        self._nodes = nodes
        self._tag_name = tag_name
        #: When its names changed last, as of a revision of the checkpoints.
        self._changed_ns = 0
        self._revision = -1

    # -- what stands in it ------------------------------------------------------------------------

    def links(self) -> dict[bytes, tuple[int, int]]:
        """The symbolic links: name -> (node, number of the checkpoint)."""
        checkpoints = history.without_moments(self._fs.store)
        found = {
            self._tag_name(checkpoint.tag): (_FIRST_TAG_NODE + checkpoint.id, checkpoint.id)
            for checkpoint in checkpoints
            if checkpoint.tag
        }
        if checkpoints:
            found[_LATEST] = (_LATEST_NODE, checkpoints[-1].id)
        return found

    def names(self) -> list[bytes]:
        """Every name: the numbers, then the links. Moments are found by their number, but a list
        of them would bury the rest."""
        numbers = [str(item.id).encode() for item in history.without_moments(self._fs.store)]
        return numbers + sorted(self.links())

    def entries(self, after: bytes) -> Iterator[tuple[bytes, Inode]]:
        """What stands behind a name, which may be gone by now."""
        for name in self.names():
            if after and _order(name) <= _order(after):
                continue
            inode = self.lookup(name)
            if inode is not None:
                yield name, inode

    def lookup(self, name: bytes) -> Inode | None:
        number = self.number(name)
        if number is not None:
            return self.checkpoint(number)
        link = self.links().get(name)
        return self._link(*link) if link else None

    def number(self, name: bytes) -> int | None:
        """Which checkpoint has this number for a name; None if there is none."""
        if not name.isdigit() or len(name) > _DIGITS_MAX or name != str(int(name)).encode():
            return None
        found = numbered(self._fs.store, int(name))
        return None if found is None else found.id

    def find(self, name: bytes) -> int:
        number = self.number(name)
        if number is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return number

    # -- attributes -------------------------------------------------------------------------------

    def checkpoint(self, number: int) -> Inode:
        """The root of a checkpoint."""
        node = checkpoint_base(number) | ROOT_INO
        root = self._fs.getattr(self._nodes.place(node).view, ROOT_INO)
        return root._replace(ino=Ino(node))

    def getattr(self, node: int) -> Inode:
        if node == HISTORY_ROOT:
            return self.itself()
        for found, number in self.links().values():
            if found == node:
                return self._link(found, number)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def readlink(self, node: int) -> bytes:
        for found, number in self.links().values():
            if found == node:
                return str(number).encode()
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def itself(self) -> Inode:
        """The directory. The kernel may keep what it read of it for as long as its time of change
        stays, so that has to follow the names in it. It is asked for with every path into it."""
        revision = history.revision(self._fs.store)
        if revision != self._revision:
            self._revision, self._changed_ns = revision, self._time_of_names()
        directory = self._like_root(HISTORY_ROOT, stat.S_IFDIR | 0o755)
        return directory._replace(mtime_ns=self._changed_ns)

    def _time_of_names(self) -> int:
        newest = history.without_moments(self._fs.store)[-1:]
        seconds = newest[0].time_ns // 10**9 if newest else 0
        return seconds * 10**9 + zlib.crc32(b"/".join(self.names())) % 10**9

    def _link(self, node: int, number: int) -> Inode:
        return self._like_root(node, stat.S_IFLNK | 0o777, len(str(number)))

    def _like_root(self, node: int, mode: int, size: int = 0) -> Inode:
        root = self._fs.getattr(self._fs.head, ROOT_INO)
        return root._replace(ino=Ino(node), mode=mode, nlink=1, size=size, allocated=0)
