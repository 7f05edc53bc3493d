"""The compiled front, where it was built: `_front.c` says what it does.

It has to be loaded before pyfuse3, with its symbols visible to it. Where it is missing, or pyfuse3
does not come to it, every request goes through pyfuse3. CKPTFS_FRONT=off leaves it out, to compare.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from ckptfs.fs import Filesystem
from ckptfs.fuse.failures import errno_of
from ckptfs.fuse.requests import Requests
from ckptfs.model import Attributes, Inode

#: As in linux/fuse.h.
_ATIME_NOW = 1 << 7
_MTIME_NOW = 1 << 8


def load() -> ModuleType | None:
    """The front, or None if there is none."""
    if os.environ.get("CKPTFS_FRONT") == "off":
        return None
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    try:
        return import_module("ckptfs.fuse._front")
    except ImportError:
        return None
    finally:
        sys.setdlopenflags(flags)


class Bound:
    """What the front calls and looks at: the requests as they are, but for what only it needs."""

    def __init__(self, requests: Requests, fs: Filesystem) -> None:
        self._requests = requests
        self._fs = fs
        self.limbo = fs.limbo
        self.unlinked = fs.unlinked
        self.generations = fs.generations
        self.sync = fs.sync
        self.errno_of = errno_of
        fresh = requests.fresh()
        self.grant, self.joins, self.moment = fresh.grant, fresh.joins, fresh.moment
        self.record, self.take = fresh.record, fresh.take
        self.is_certain, self.go_on, self.lose = fresh.is_certain, fresh.go_on, fresh.lose
        self.second_name = fresh.second_name
        connections = requests.connections
        self.control_read, self.control_write = connections.read, connections.write
        self.control_forget = connections.hang_up
        for name in (
            "lookup getattr readlink mknod make_nameless mkdir symlink link unlink rmdir rename"
            " read_pieces write allocate seek copy_range share_record forget entries adopt"
        ).split():
            setattr(self, name, getattr(requests, name))

    def setattr(
        self,
        node: int,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        size: int | None,
        atime_ns: int | None,
        mtime_ns: int | None,
        ctime_ns: int | None,
        now: int,
        pid: int,
        keep_set_id: bool,
    ) -> Inode:
        if now:
            ctime_ns = self._fs.clock()
        if now & _ATIME_NOW:
            atime_ns = ctime_ns
        if now & _MTIME_NOW:
            mtime_ns = ctime_ns
        wanted = Attributes(mode, uid, gid, size, atime_ns, mtime_ns, ctime_ns)
        return self._requests.setattr(node, wanted, pid, keep_set_id)
