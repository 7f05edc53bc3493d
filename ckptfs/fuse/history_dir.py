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
from collections.abc import Callable, Iterator

from pyfuse3 import EntryAttributes

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fuse.entries import absent, attributes
from ckptfs.fuse.nodes import HISTORY, HISTORY_ROOT, Nodes, checkpoint_base
from ckptfs.model import ROOT_INO, Ino, Inode

NAME = b".checkpoints"
_LATEST = b"latest"
_LATEST_NODE = HISTORY | 2
_FIRST_TAG_NODE = HISTORY | 16

TagName = Callable[[str], bytes]


class HistoryDirectory:
    def __init__(self, fs: Filesystem, nodes: Nodes, tag_name: TagName) -> None:
        self._fs = fs
        self._nodes = nodes
        self._tag_name = tag_name

    # -- what stands in it ------------------------------------------------------------------------

    def links(self) -> dict[bytes, tuple[int, int]]:
        """The symbolic links: name -> (node, number of the checkpoint)."""
        checkpoints = history.checkpoints(self._fs.store)
        found = {
            self._tag_name(checkpoint.tag): (_FIRST_TAG_NODE + checkpoint.id, checkpoint.id)
            for checkpoint in checkpoints
            if checkpoint.tag
        }
        if checkpoints:
            found[_LATEST] = (_LATEST_NODE, checkpoints[-1].id)
        return found

    def names(self) -> list[bytes]:
        """Every name, in a fixed order: the numbers, then the links."""
        numbers = [str(item.id).encode() for item in history.checkpoints(self._fs.store)]
        return numbers + sorted(self.links())

    def entries(self, position: int) -> Iterator[tuple[bytes, EntryAttributes]]:
        for name in self.names()[position:]:
            entry = self.lookup(name)
            if entry.st_ino:
                yield name, entry

    def lookup(self, name: bytes) -> EntryAttributes:
        number = self.number(name)
        if number is not None:
            return self.checkpoint(number)
        link = self.links().get(name)
        return self._link(*link) if link else absent(0)

    def number(self, name: bytes) -> int | None:
        """Which checkpoint has this number for a name; None if there is none."""
        if not name.isdigit() or name != str(int(name)).encode():
            return None
        known = {item.id for item in history.checkpoints(self._fs.store)}
        return int(name) if int(name) in known else None

    def find(self, name: bytes) -> int:
        number = self.number(name)
        if number is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return number

    # -- attributes -------------------------------------------------------------------------------

    def checkpoint(self, number: int) -> EntryAttributes:
        """The root of a checkpoint."""
        base = checkpoint_base(number)
        view = self._nodes.place(base | ROOT_INO).view
        return attributes(self._fs.getattr(view, ROOT_INO), base)

    def getattr(self, node: int) -> EntryAttributes:
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

    def itself(self) -> EntryAttributes:
        return self._passing(self._like_root(HISTORY_ROOT, stat.S_IFDIR | 0o755))

    def _link(self, node: int, number: int) -> EntryAttributes:
        target = str(number).encode()
        return self._passing(self._like_root(node, stat.S_IFLNK | 0o777, len(target)))

    def _like_root(self, node: int, mode: int, size: int = 0) -> Inode:
        root = self._fs.getattr(self._fs.head, ROOT_INO)
        return root._replace(ino=Ino(node), mode=mode, nlink=1, size=size, allocated=0)

    def _passing(self, inode: Inode) -> EntryAttributes:
        """Attributes that the kernel has to ask for again: checkpoints come and go."""
        entry = attributes(inode)
        entry.attr_timeout = entry.entry_timeout = 0
        return entry
