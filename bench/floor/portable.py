"""The floor of the portable path: pyfuse3 and the daemon's loop, with handlers that do nothing.

    .venv/bin/python bench/floor/portable.py MOUNTPOINT

Names and attributes are kept in a dictionary, bytes are thrown away. What a program takes in it,
pyfuse3 and the kernel take. It ends with `umount MOUNTPOINT`.
"""

from __future__ import annotations

import errno
import stat
import sys
from collections.abc import Sequence
from itertools import count

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext, SetattrFields

from ckptfs.fuse import loop
from ckptfs.fuse.adapter import FOREVER, absent
from ckptfs.fuse.latency import Latency


def _attributes(ino: int, mode: int) -> EntryAttributes:
    entry = EntryAttributes()
    entry.st_ino, entry.st_mode, entry.st_nlink = ino, mode, 1
    entry.st_uid = entry.st_gid = entry.st_size = 0
    entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = 10**18
    entry.attr_timeout = entry.entry_timeout = FOREVER
    return entry


class Nothing(pyfuse3.Operations):
    enable_writeback_cache = False

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count(2)
        self._names: dict[tuple[int, bytes], EntryAttributes] = {}
        self._inodes = {1: _attributes(1, stat.S_IFDIR | 0o755)}

    def _make(self, parent: int, name: bytes, mode: int) -> EntryAttributes:
        entry = _attributes(next(self._numbers), mode)
        self._names[parent, name] = self._inodes[entry.st_ino] = entry
        return entry

    async def lookup(self, parent: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        return self._names.get((parent, name)) or absent(FOREVER)

    async def getattr(self, node: int, ctx: RequestContext) -> EntryAttributes:
        return self._inodes[node]

    async def setattr(
        self,
        node: int,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: int | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        return self._inodes[node]

    async def mkdir(
        self, parent: int, name: bytes, mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        return self._make(parent, name, mode)

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        entry = self._make(parent, name, mode)
        return FileInfo(fh=entry.st_ino, keep_cache=True), entry

    async def write(self, fh: int, offset: int, data: bytes) -> int:
        return len(data)

    async def release(self, fh: int) -> None:
        pass

    async def flush(self, fh: int) -> None:
        raise FUSEError(errno.ENOSYS)

    async def getxattr(self, node: int, name: bytes, ctx: RequestContext) -> bytes:
        raise FUSEError(errno.ENOSYS)

    async def forget(self, forgotten: Sequence[tuple[int, int]]) -> None:
        pass


def main() -> None:
    loop.install(lambda: None, None, Latency())
    pyfuse3.init(Nothing(), sys.argv[1], {"default_permissions", "fsname=floor"})
    trio.run(pyfuse3.main)
    pyfuse3.close()


if __name__ == "__main__":
    main()
