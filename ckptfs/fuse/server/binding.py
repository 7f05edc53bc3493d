"""The compiled server, where it was built: `server.c` says what it does.

It has to be loaded before pyfuse3, with its symbols visible to it. Where it is missing, or pyfuse3
does not call it, every request takes the portable path. CKPTFS_SERVER=off leaves it out.
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
    """The server, or None if there is none."""
    if os.environ.get("CKPTFS_SERVER") == "off":
        return None
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    try:
        return import_module("ckptfs.fuse.server._server")
    except ImportError:
        return None
    finally:
        sys.setdlopenflags(flags)


class Bound:
    """What the server calls and looks at: the requests as they are, but for what only it needs."""

    def __init__(self, requests: Requests, fs: Filesystem) -> None:
        self._requests = requests
        self._fs = fs
        self.limbo = fs.limbo
        self.unlinked = fs.unlinked
        self.generations = fs.generations
        self.sync = fs.sync
        self.errno_of = errno_of
        pending = requests.write_behind()
        self.lease, self.joins = pending.lease, pending.joins
        self.names_version = pending.names_version
        self.record, self.flush = pending.record, pending.flush
        self.may_acknowledge = pending.may_acknowledge
        self.write_acknowledged, self.fail = pending.write_acknowledged, pending.fail
        self.link_flushed = pending.link_flushed
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
