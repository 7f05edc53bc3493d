"""`.forks`: the forks of a workspace, under their names.

A directory in the workspace's root that stands in no listing but can be entered by name, while
there are forks. In it is a symbolic link for each fork, to where it is mounted. An entry of that
name in the workspace itself is never hidden: then there is no such directory. Which forks there are
is asked for above.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.fuse.nodes import FORKS_ROOT
from ckptfs.model import ROOT_INO, Ino, Inode

NAME = b".forks"


class ForkPoint(NamedTuple):
    """What stands under the name of a fork."""

    number: int
    #: Where it is mounted.
    target: bytes


#: The forks by name.
Points = Callable[[], Mapping[bytes, ForkPoint]]


def no_forks() -> Mapping[bytes, ForkPoint]:
    return {}


class ForksDirectory:
    def __init__(self, fs: Filesystem, points: Points) -> None:
        self._fs = fs
        self._points = points

    def stands_in(self, parent: int, name: bytes) -> bool:
        """Whether a name in a directory is this one's."""
        return name == NAME and parent == ROOT_INO and self.is_there()

    def is_there(self) -> bool:
        fs = self._fs
        return bool(self._points()) and fs.seek(fs.head, ROOT_INO, NAME) is None

    def lookup(self, name: bytes) -> Inode | None:
        point = self._points().get(name)
        return None if point is None else self._point(point)

    def entries(self, after: bytes) -> Iterator[tuple[bytes, Inode]]:
        for name, point in sorted(self._points().items()):
            if name > after:
                yield name, self._point(point)

    def getattr(self, node: int) -> Inode:
        return self.itself() if node == FORKS_ROOT else self._point(self._numbered(node))

    def readlink(self, node: int) -> bytes:
        if node == FORKS_ROOT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._numbered(node).target

    def itself(self) -> Inode:
        return self._like_root(FORKS_ROOT, stat.S_IFDIR | 0o755)

    def _numbered(self, node: int) -> ForkPoint:
        for point in self._points().values():
            if FORKS_ROOT + point.number == node:
                return point
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def _point(self, point: ForkPoint) -> Inode:
        number, size = FORKS_ROOT + point.number, len(point.target)
        return self._like_root(number, stat.S_IFLNK | 0o777, size)

    def _like_root(self, node: int, mode: int, size: int = 0) -> Inode:
        root = self._fs.getattr(self._fs.head, ROOT_INO)
        return root._replace(ino=Ino(node), mode=mode, nlink=1, size=size, allocated=0)
