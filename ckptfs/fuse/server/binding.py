"""Loading the compiled server, where it was built, and what of the file system it is given.

The module has to be loaded before pyfuse3, with its symbols visible to it. Where it is missing, or
pyfuse3 does not call it, every request takes the portable path. CKPTFS_SERVER=off leaves it out.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, cast

from xxhash import xxh3_64_digest, xxh3_128_digest

from ckptfs.fs import Filesystem, buffers
from ckptfs.fuse import forks_dir, history_dir, listings, nodes
from ckptfs.fuse.hooks import Gate, ungated
from ckptfs.fuse.requests import Requests, errno_of
from ckptfs.fuse.server.interface import ServerModule
from ckptfs.model import BLOCK_SIZE, FILE_SIZE_MAX, NAME_MAX, TARGET_MAX, Attributes, Inode
from ckptfs.store import pages
from ckptfs.store.format import SUFFIX_SIZE
from ckptfs.sync import lower

#: As in linux/fuse.h.
_ATIME_NOW = 1 << 7
_MTIME_NOW = 1 << 8

#: What C has to have the same values of. A module that was built from other sources has not.
CONSTANTS = {
    "INO_BITS": nodes.INO_BITS,
    "HISTORY": nodes.HISTORY,
    "FORKS_ROOT": nodes.FORKS_ROOT,
    "CONTROL": nodes.CONTROL,
    "CONTROL_STEP": nodes.CONTROL_STEP,
    "CONTROL_CONNECTION": nodes.CONTROL_CONNECTION,
    "POSITION_BITS": listings.POSITION_BITS,
    "STREAM_FIRST": listings.STREAM_FIRST,
    "BLOCK_SIZE": BLOCK_SIZE,
    "FILE_SIZE_MAX": FILE_SIZE_MAX,
    "NAME_BYTES_MAX": NAME_MAX,
    "TARGET_BYTES_MAX": TARGET_MAX,
    "SUFFIX_SIZE": SUFFIX_SIZE,
    "FATTR_ATIME_NOW": _ATIME_NOW,
    "FATTR_MTIME_NOW": _MTIME_NOW,
}


class Loaded(NamedTuple):
    """The module, or None and the reason."""

    module: ServerModule | None
    reason: str = ""


def load() -> Loaded:
    if os.environ.get("CKPTFS_SERVER") == "off":
        return Loaded(None, "CKPTFS_SERVER=off")
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    try:
        module = cast("ServerModule", import_module("ckptfs.fuse.server._server"))
    except ImportError:
        return Loaded(None, "it was not compiled")
    finally:
        sys.setdlopenflags(flags)
    return Loaded(module) if _fits(module) else Loaded(None, "it was compiled from other sources")


#: What `lend_loops` gives away.
_LENT = ("overwrite", "pass_unchanged", "read_small", "sound_ends", "sound_leaves")


def _fits(module: ServerModule) -> bool:
    values = getattr(module, "CONSTANTS", {})
    names = getattr(module, "HISTORY_NAME", ""), getattr(module, "FORKS_NAME", "")
    return (
        CONSTANTS.items() <= values.items()
        and names == (history_dir.NAME.decode(), forks_dir.NAME.decode())
        and all(hasattr(module, name) for name in _LENT)
    )


def lend_loops(module: ServerModule | None) -> None:
    """Give the layers below what the module does for them."""
    if module is not None:
        buffers.overwrite = module.overwrite
        lower.pass_unchanged, lower.read_small = module.pass_unchanged, module.read_small
        pages.sound_ends, pages.sound_leaves = module.sound_ends, module.sound_leaves


Other = Callable[[int, int, int, int, int, bytes], bytes | None]


def _left_to_libfuse(
    opcode: int, unique: int, node: int, uid: int, pid: int, body: bytes
) -> bytes | None:
    """Never called for the mount of pyfuse3's session."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


class Bound:
    """`interface.Callbacks`: the requests as they are, but for what only the server needs."""

    def __init__(
        self,
        requests: Requests,
        fs: Filesystem,
        gate: Gate | None = None,
        other: Other = _left_to_libfuse,
    ) -> None:
        self._requests = requests
        self._fs = fs
        self.other = other
        self.limbo, self.unlinked, self.generations = fs.limbo, fs.unlinked, fs.generations
        gate = gate or ungated()
        self.uncompared = gate.uncompared
        self.compare, self.compare_all = gate.compare, gate.compare_all
        self.partial, self.resized = fs.partial.files, fs.resized
        self.sync = fs.sync
        self.errno_of = errno_of
        self.block_digest, self.inline_digest = xxh3_128_digest, xxh3_64_digest

        self.lookup, self.getattr = requests.lookup, requests.getattr
        self.readlink, self.forget = requests.readlink, requests.forget
        self.mknod, self.make_nameless = requests.mknod, requests.make_nameless
        self.mkdir, self.symlink, self.link = requests.mkdir, requests.symlink, requests.link
        self.unlink, self.rmdir, self.rename = requests.unlink, requests.rmdir, requests.rename
        self.read_pieces, self.write = requests.read_pieces, requests.write
        self.allocate, self.seek = requests.allocate, requests.seek
        self.end_of = requests.end_of
        self.copy_range, self.share_record = requests.copy_range, requests.share_record
        self.entries, self.adopt = requests.entries, requests.adopt

        connections = requests.connections
        self.control_read, self.control_write = connections.read, connections.write
        self.control_forget = connections.hang_up

        pending = self.pending = requests.write_behind()
        self.lease, self.joins = pending.lease, pending.joins
        self.names_version = pending.names_version
        self.record, self.flush = pending.record, pending.flush
        self.link_flushed, self.may_acknowledge = pending.link_flushed, pending.may_acknowledge
        self.write_acknowledged, self.fail = pending.write_acknowledged, pending.fail

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
