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
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fuse.nodes import HISTORY, HISTORY_ROOT, Nodes, checkpoint_base
from ckptfs.history.checkpoints import Checkpoint, numbered
from ckptfs.model import ROOT_INO, Ino, Inode

NAME = b".checkpoints"
_LATEST = b"latest"
#: The nodes of links are those of where they lead: the kernel keeps that for each node.
_FIRST_TAG_NODE = HISTORY | 16
_FIRST_LATEST_NODE = HISTORY | 1 << 35
#: No checkpoint has a number of more digits.
_DIGITS_MAX = 18

TagName = Callable[[str], bytes]


def _order(name: bytes) -> tuple[bool, int, bytes]:
    return (False, int(name), b"") if name.isdigit() else (True, 0, name)


def _time_of_names(checkpoints: list[Checkpoint], names: list[bytes]) -> int:
    """The time of the newest one; what is below a second tells which names there are."""
    seconds = checkpoints[-1].time_ns // 10**9 if checkpoints else 0
    return seconds * 10**9 + zlib.crc32(b"/".join(names)) % 10**9


class _Names(NamedTuple):
    """What stands in the directory, as of a revision of the checkpoints."""

    revision: int
    #: The numbers, then the links: in the order of `_order`.
    names: list[bytes]
    #: The symbolic links: name -> (node, number of the checkpoint); and by node the number.
    links: dict[bytes, tuple[int, int]]
    by_node: dict[int, int]
    #: When the names changed last.
    changed_ns: int


class HistoryDirectory:
    def __init__(self, fs: Filesystem, nodes: Nodes, tag_name: TagName) -> None:
        self._fs = fs
        self._nodes = nodes
        self._tag_name = tag_name
        self._known = _Names(-1, [], {}, {}, 0)

    # -- what stands in it ------------------------------------------------------------------------

    def _names(self) -> _Names:
        """A listing asks page by page, and every path into the directory asks for its time, so all
        of it is made once for each revision."""
        revision = history.revision(self._fs.store)
        if revision != self._known.revision:
            checkpoints = history.of_line(self._fs)
            links = self._links(checkpoints)
            # Moments are found by their number, but a list of them would bury the rest.
            names = [b"%d" % item.id for item in checkpoints] + sorted(links)
            by_node = dict(links.values())
            changed_ns = _time_of_names(checkpoints, names)
            self._known = _Names(revision, names, links, by_node, changed_ns)
        return self._known

    def _links(self, checkpoints: list[Checkpoint]) -> dict[bytes, tuple[int, int]]:
        found = {
            self._tag_name(checkpoint.tag): (_FIRST_TAG_NODE + checkpoint.id, checkpoint.id)
            for checkpoint in checkpoints
            if checkpoint.tag
        }
        if checkpoints:
            newest = checkpoints[-1].id
            found[_LATEST] = (_FIRST_LATEST_NODE + newest, newest)
        return found

    def links(self) -> dict[bytes, tuple[int, int]]:
        """The symbolic links: name -> (node, number of the checkpoint)."""
        return self._names().links

    def names(self) -> list[bytes]:
        """Every name: the numbers, then the links."""
        return self._names().names

    def entries(self, after: bytes) -> Iterator[tuple[bytes, Inode]]:
        """What stands behind a name, which may be gone by now."""
        names = self._names().names
        start = bisect_right(names, _order(after), key=_order) if after else 0
        for index in range(start, len(names)):
            inode = self.lookup(names[index])
            if inode is not None:
                yield names[index], inode

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
        number = self._names().by_node.get(node)
        if number is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self._link(node, number)

    def readlink(self, node: int) -> bytes:
        number = self._names().by_node.get(node)
        if number is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return str(number).encode()

    def itself(self) -> Inode:
        """The directory. The kernel may keep what it read of it for as long as its time of change
        stays, so that has to follow the names in it. It is asked for with every path into it."""
        directory = self._like_root(HISTORY_ROOT, stat.S_IFDIR | 0o755)
        return directory._replace(mtime_ns=self._names().changed_ns)

    def _link(self, node: int, number: int) -> Inode:
        return self._like_root(node, stat.S_IFLNK | 0o777, len(str(number)))

    def _like_root(self, node: int, mode: int, size: int = 0) -> Inode:
        root = self._fs.getattr(self._fs.head, ROOT_INO)
        return root._replace(ino=Ino(node), mode=mode, nlink=1, size=size, allocated=0)
