"""More mounts in one daemon, served by one loop on one thread.

pyfuse3 has one session in a process: the workspace's own mount. Each further one is a `Connection`:
a FUSE descriptor (`mounting`), a compiled server that is a companion of the main one
(`server/companions.c`), and what a mount is made of: its requests, guard, history and control
connections. Where the compiled server does not serve, there are none.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import trio

from ckptfs import mountinfo
from ckptfs.errors import MountFailed
from ckptfs.fs import Filesystem
from ckptfs.fs.filesystem import ignore, nothing
from ckptfs.fuse import mounting
from ckptfs.fuse.control_files import Connect, refuse
from ckptfs.fuse.fallback import Fallback
from ckptfs.fuse.hooks import Guard, HistoryHooks, MountOptions, unguarded
from ckptfs.fuse.loop import RequestWaiter
from ckptfs.fuse.notify import Device, Entry, invalidate_at
from ckptfs.fuse.requests import Requests, unfamiliar
from ckptfs.fuse.server.binding import Bound
from ckptfs.fuse.server.interface import CompiledServer, ServerModule
from ckptfs.model import Ino
from ckptfs.store.snapshot import NO_READER

log = logging.getLogger(__name__)

#: How far the kernel reads ahead: twice what one request can ask for, so that one is answered while
#: the program is busy with the other.
_READ_AHEAD_KB = 2048


class Tree(NamedTuple):
    """What is to be mounted: a file system, and what its mount asks for."""

    fs: Filesystem
    options: MountOptions
    history: HistoryHooks | None = None
    guard: Guard | None = None
    connect: Connect = refuse


class Connection:
    """One mount beside that of pyfuse3's session, from `Connections.add` to its end."""

    def __init__(self, tree: Tree, path: Path, device: Device, requests: Requests) -> None:
        self.fs = tree.fs
        self.path = path
        self.requests = requests
        self.device = device
        self.server: CompiledServer
        self.bound: Bound
        #: Set when it has ended: by an unmount, or by `Connections.remove`.
        self.ended = trio.Event()

    async def invalidate(
        self,
        entries: Collection[Entry],
        inodes: Collection[Ino],
        gone: Mapping[Entry, Ino] | None = None,
    ) -> None:
        """As `fuse.invalidate`, in this mount."""
        await invalidate_at(self.device, entries, inodes, gone)

    def close(self) -> None:
        """The kernel will ask for nothing more, and knows nothing any more."""
        self.fs.keep_unlinked = False
        follow_handles(self.fs, self.requests)
        self.fs.store.attach_reader(NO_READER, self.fs.line)
        for ino in (*self.fs.unlinked, *self.fs.limbo):
            self.fs.forget(ino)
        self.requests.connections.close()
        self.server.close()
        self.device.close()
        self.ended.set()


class Connections:
    """All of them. `fuse.serve` opens it when the main mount is there, and closes it."""

    def __init__(self) -> None:
        self._all: list[Connection] = []
        #: Those that had no request yet.
        self._unmet: list[Connection] = []
        self._module: ServerModule | None = None
        self._leader: CompiledServer
        self._bound: Bound
        self._waiter: RequestWaiter
        self._nursery: trio.Nursery
        #: Why there can be none; empty if there can.
        self.reason = "the workspace is not mounted"

    def open(
        self,
        module: ServerModule,
        leader: CompiledServer,
        bound: Bound,
        waiter: RequestWaiter,
        nursery: trio.Nursery,
    ) -> None:
        self._module, self._leader, self._bound = module, leader, bound
        self._waiter, self._nursery = waiter, nursery
        waiter.ended = self._reap
        self.reason = ""

    async def add(self, tree: Tree, path: Path, source: str) -> Connection:
        """Mount a tree at a directory and serve it. The path may lead through a mount of ours."""
        if self.reason or self._module is None:
            raise MountFailed(path, self.reason)
        if not self._leader.hooked():
            raise MountFailed(path, "the compiled server does not serve the workspace")
        fd = await trio.to_thread.run_sync(mounting.mount, path, tree.options, source)
        connection = self._made(self._module, tree, path, Device(fd))
        self._waiter.follow(self._leader.join(connection.server))
        self._all.append(connection)
        self._unmet.append(connection)
        self._share()
        return connection

    def _made(self, module: ServerModule, tree: Tree, path: Path, device: Device) -> Connection:
        requests = Requests(tree.fs, tree.options, tree.guard or unguarded(), tree.connect)
        connection = Connection(tree, path, device, requests)
        fallback = Fallback(requests, tree.history, self._start)
        bound = Bound(requests, tree.fs, other=fallback.other)
        connection.bound, connection.server = bound, module.Server(bound)
        fallback.replies = connection.server
        connection.server.open(device.fd)
        requests.spoiled = lambda node: self._nursery.start_soon(
            connection.invalidate, (), {Ino(node)}
        )
        tree.fs.keep_unlinked = True
        follow_lookups(tree.fs, requests, connection.server)
        tree.fs.commit()
        tree.fs.store.attach_reader(connection.server, tree.fs.line)
        return connection

    def _start(self, task: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(task)

    def _share(self) -> None:
        """Numbers of inodes are leased apart where there is more than one mount."""
        for bound in (self._bound, *(connection.bound for connection in self._all)):
            bound.pending.servers = len(self._all) + 1

    def meet(self) -> None:
        """What comes after the first request of each."""
        for connection in [one for one in self._unmet if one.server.requests()]:
            self._unmet.remove(connection)
            read_ahead(connection.path)

    def _reap(self) -> None:
        """The kernel has ended some."""
        for connection in [one for one in self._all if one.server.ended()]:
            self.remove(connection)

    def remove(self, connection: Connection) -> None:
        """Serve one no longer. What is still mounted there is dead."""
        if connection in self._all:
            self._leader.part(connection.server)
            self._all.remove(connection)
            self._unmet = [one for one in self._unmet if one is not connection]
            connection.close()
            self._share()

    def close(self) -> None:
        self.reason = "the workspace is not mounted"
        for connection in [*self._all]:
            self.remove(connection)


def follow_lookups(fs: Filesystem, requests: Requests, server: CompiledServer) -> None:
    """What is in use is what the kernel has looked up; the server counts that."""
    fs.is_used = server.is_referenced
    fs.can_ask = True
    fs.changing, fs.changed = server.invalidate_inode, server.update_inode
    fs.acknowledge = server.acknowledge
    requests.familiar = server.is_cached


def follow_handles(fs: Filesystem, requests: Requests) -> None:
    """What is in use is what is open; lookups are not counted."""
    fs.is_used = fs.is_held
    fs.can_ask = False
    fs.changing = fs.changed = ignore
    fs.acknowledge = nothing
    requests.familiar = unfamiliar


def read_ahead(mountpoint: Path) -> None:
    """Let the kernel read whole requests ahead: of a cold file it then asks for eight times fewer.
    Only root may say so; for others it stays at 128 KiB. The first request is the one in which the
    kernel sets its own value, so this has to come after it."""
    device = device_of(mountpoint)
    with suppress(OSError):
        Path(f"/sys/class/bdi/{device}/read_ahead_kb").write_text(f"{_READ_AHEAD_KB}\n")


def device_of(mountpoint: Path) -> str:
    """The mount's device number, from the mount table: to stat it here would wait for ourselves."""
    table = Path("/proc/self/mountinfo").read_bytes()
    found = [mount.device for mount in mountinfo.entries(table) if mount.path == str(mountpoint)]
    return found[-1] if found else ""
