"""The lines of a mounted workspace: the main one and its forks, each with a mount of its own.

A `Line` is what one of them is made of while it is served: its verbs, its automatic checkpoints,
those who watch it, and the way to its mount. `Lines` has all of them and serves more. Which forks
there are for people, and where they are mounted, is decided in `forks` and `scratch`.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from ckptfs import fuse, mountinfo
from ckptfs.config import Workspace
from ckptfs.control import server
from ckptfs.control.events import Hub
from ckptfs.control.server import CONNECTIONS_MAX, Accepted, Peer
from ckptfs.daemon import mounts
from ckptfs.daemon.autosave import AutoSave
from ckptfs.daemon.mounts import Copies, is_inside
from ckptfs.daemon.slices import Slices
from ckptfs.daemon.watchers import WatchNotifier, heard
from ckptfs.errors import ControlError, WorkspaceReadOnly
from ckptfs.fs import Filesystem
from ckptfs.fuse import Connection, Connections, MountOptions, Tree
from ckptfs.fuse.control_files import Connect
from ckptfs.fuse.history_dir import NAME
from ckptfs.fuse.nodes import HISTORY_ROOT, checkpoint_base, in_checkpoint
from ckptfs.fuse.notify import Entry
from ckptfs.history import Checkpoint, references
from ckptfs.history.auto import Policy
from ckptfs.model import MAIN_LINE, ROOT_INO, Ino
from ckptfs.service import Service, wire
from ckptfs.service.service import Unannounced
from ckptfs.store import View
from ckptfs.store.forks import Fork

log = logging.getLogger(__name__)

CHECKPOINTS = os.fsdecode(NAME)


class CheckpointsDir:
    """What `.checkpoints` can ask for: mkdir in it saves, rmdir deletes."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._service = line.service
        self._hub = line.hub

    async def save(self, name: str) -> int:
        references.require_plain_tag(name)
        await self._line.sync()
        saved = self._service.save(name, tag=name)
        self._hub.happened("save", wire.checkpoint(saved))
        return saved.id

    async def delete(self, number: int, pid: int) -> None:
        # A recursive delete runs in there; `rmdir .checkpoints/12` does not, and means it.
        if is_inside(pid, self._line.path / CHECKPOINTS):
            log.info(
                "rmdir of checkpoint %d refused: process %d is in %s", number, pid, CHECKPOINTS
            )
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        self._service.delete_named([str(number)])
        self._hub.happened("delete", {"checkpoints": [{"id": number}]})


def _nothing() -> None:
    pass


class MountConnections:
    """Connections that come through the mounts, on their way to the control server."""

    def __init__(self) -> None:
        self._sending, self.handed = trio.open_memory_channel[Accepted](CONNECTIONS_MAX)

    def of(self, line: int) -> Connect:
        """What makes those of one line."""
        return partial(self._connect, line)

    def _connect(self, line: int, uid: int, pid: int) -> socket.socket:
        """One end of a new connection for a user and process, by the rule of the socket."""
        if not server.allowed(uid):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        ours, theirs = socket.socketpair()
        try:
            since = time.clock_gettime(time.CLOCK_BOOTTIME)
            peer = Peer(pid, uid, since, through_mount=True, line=line)
            self._sending.send_nowait((theirs, peer))
        except trio.WouldBlock:
            ours.close()
            theirs.close()
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY)) from None
        # The request loop waits for what wakes trio; a task that is ready does not.
        trio.lowlevel.current_trio_token().run_sync_soon(_nothing, idempotent=True)
        return ours


class Shared(NamedTuple):
    """What all lines of a workspace use."""

    workspace: Workspace
    options: MountOptions
    policy: Policy
    slices: Slices


class Line:
    """One line of work, from its mount to the end of that."""

    def __init__(self, service: Service, path: Path, shared: Shared, name: str = "") -> None:
        self.service = service
        self.path = path
        #: Of a fork; the main line has none.
        self.name = name
        self.hub = Hub(path, name)
        self.auto = AutoSave(service, shared.policy, self.hub)
        self.watch_notifier = WatchNotifier(service, path, shared.slices)
        self.history = CheckpointsDir(self)
        #: Its mount; None for the main line, whose mount is that of pyfuse3's session.
        self.connection: Connection | None = None
        #: The device number of that mount.
        self.device = ""
        #: What other mount namespaces have of it.
        self.copies: Copies | None = None
        #: One end at a time: an unmount of the workspace may meet that of the fork.
        self.ending = trio.Lock()
        #: Set once nothing of it goes on by itself any more.
        self.finished = trio.Event()
        #: One verb is planned at a time, since one plan waits to be carried out.
        self.planning = trio.Lock()
        self._slices = shared.slices

    @property
    def number(self) -> int:
        return self.service.fs.line

    @property
    def is_served(self) -> bool:
        return self.connection is None or not self.connection.ended.is_set()

    def require_writable(self, op: str) -> None:
        """A mount that is read-only stays as it is, whichever way a change comes."""
        if mounts.is_read_only(self.path):
            raise WorkspaceReadOnly(self.path, op.replace("_", " "))

    async def sync(self) -> None:
        """Have the kernel send what programs wrote and it still keeps to itself."""
        if self.is_served:
            self.locate()
            await trio.to_thread.run_sync(mounts.sync_filesystem, self.path)

    def locate(self) -> None:
        """Follow a mount that was moved with a directory above it."""
        if self.device:
            self.path = mounts.place_of(self.device, self.path)

    async def invalidate(
        self,
        entries: Collection[Entry],
        inodes: Collection[Ino],
        gone: Mapping[Entry, Ino] | None = None,
    ) -> None:
        if self.connection is None:
            await fuse.invalidate(entries, inodes, gone)
        elif self.is_served:
            await self.connection.invalidate(entries, inodes, gone)

    async def announce(self, pending: Unannounced, before: View, nameless: set[Ino]) -> None:
        """Tell the kernel what a verb of this line changed in it. ``before`` is the head as it was,
        ``nameless`` what was open in it without a name."""
        fs = self.service.fs
        for changed in pending.changed:
            steps = heard(fs, before, nameless, changed)
            known, gone = await self._slices.run(steps, in_turn=False)
            await self.invalidate(known.entries, known.inodes, gone)
            self.watch_notifier.add(known)
        if pending.new_names:
            # The kernel was told for ever that they are not there.
            names = {(ROOT_INO, name) for name, _ in fs.entries(fs.head, ROOT_INO)}
            await self.invalidate(names, {ROOT_INO})

    async def announce_history(self, pending: Unannounced, *, others: bool) -> None:
        """Tell it what a verb changed in checkpoints, which all lines show; with ``others`` a verb
        of another line, which may have purged something from this one, too."""
        if others:
            for changed in pending.purged:
                await self.invalidate(changed.entries, changed.inodes)
        for checkpoint in self._cached_checkpoints() if pending.purged else ():
            for changed in pending.purged:
                places = in_checkpoint(checkpoint.id, changed.entries, changed.inodes)
                await self.invalidate(*places)
        if pending.deleted:
            await self.invalidate({(Ino(HISTORY_ROOT), b"%d" % n) for n in pending.deleted}, ())

    def _cached_checkpoints(self) -> list[Checkpoint]:
        """The checkpoints of whose trees the kernel may cache something."""
        fs, found = self.service.fs, self.service.checkpoints()
        if not fs.can_ask:
            return found
        if not fs.is_used(Ino(HISTORY_ROOT)):
            return []
        return [item for item in found if fs.is_used(Ino(checkpoint_base(item.id) | ROOT_INO))]


def _not_mounted() -> ControlError:
    return ControlError(
        "Cannot do anything there: that fork is not mounted any more. Nothing was changed.",
        hint="`ckptfs forks` lists those that there are.",
    )


class Lines:
    """All that are served."""

    def __init__(self, service: Service, shared: Shared) -> None:
        self._shared = shared
        self.main = Line(service, shared.workspace.path, shared)
        self._forks: dict[int, Line] = {}
        #: Harnesses that clients declared: those of later forks, too.
        self._declared: list[int] = []
        #: What serves the mounts of forks, as long as that of the workspace is served.
        self.connections = Connections()
        self.mount_connections = MountConnections()
        self.nursery: trio.Nursery
        #: Called after a fork was unmounted from outside.
        self.on_end: Callable[[Line], Awaitable[None]]

    def __iter__(self) -> Iterator[Line]:
        """The main line first."""
        return iter([self.main, *self._forks.values()])

    def get(self, number: int) -> Line | None:
        return self.main if number == MAIN_LINE else self._forks.get(number)

    def find(self, number: int) -> Line:
        """The line that a request is about. Raises ControlError."""
        found = self.get(number)
        if found is None:
            raise _not_mounted()
        return found

    def require(self, line: Line) -> None:
        """Raises ControlError if a line has ended while a verb of it waited; it may be mounted
        again, as another one."""
        if self.get(line.number) is not line:
            raise _not_mounted()

    def declare(self, pid: int) -> bool:
        """Take a process for a harness in every line; whether it can be seen."""
        self._declared.append(pid)
        seen = [line.auto.declare(pid) for line in self]
        return all(seen)

    def require_forks(self) -> None:
        """Raises ControlError where forks cannot be mounted."""
        if self.connections.reason:
            raise ControlError(
                "Cannot fork: that takes the compiled server, which does not serve this workspace "
                f"({self.connections.reason}). Nothing was changed."
            )

    async def add(self, fork: Fork, path: Path, *, scratch: bool = False) -> Line:
        """Mount a fork on an empty directory and serve it. A scratch tree takes no checkpoints by
        itself, and lists no `.checkpoints`."""
        fs = self.main.service.fs
        service = Service(Filesystem(fs.store, fs.clock, line=fork.number))
        service.free_later = self.main.service.free_later
        line = Line(service, path, self._shared, fork.name)
        for pid in self._declared:
            line.auto.declare(pid)
        options = self._shared.options
        tree = Tree(
            service.fs,
            replace(options, show_checkpoints=False) if scratch else options,
            None if scratch else line.history,
            None if scratch else line.auto,
            self.mount_connections.of(fork.number),
        )
        try:
            line.connection = await self.connections.add(tree, path, self._source(fork.number))
        except BaseException:
            service.fs.close()
            raise
        line.copies = Copies(path)
        line.device = line.copies.device
        self._forks[fork.number] = line
        self.nursery.start_soon(self._serve, line, line.connection)
        return line

    def _source(self, number: int) -> str:
        return f"{self._shared.workspace.store}{mountinfo.FORK}{number}"

    async def _serve(self, line: Line, connection: Connection) -> None:
        """What goes on while a fork is mounted; also its end from outside, by umount."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(line.watch_notifier.run)
                await connection.ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            line.finished.set()
        if self._forks.get(line.number) is line:
            log.info("fork %s is not mounted any more", line.name)
            self._forget(line)
            await self.on_end(line)

    async def end(self, line: Line, *, detach: bool) -> None:
        """Unmount a fork; with ``detach`` also from programs that still use it, for which it is
        dead then, as it is for those in other mount namespaces. Raises OSError."""
        async with line.ending:
            connection = line.connection
            if connection is None or not line.is_served:
                return
            line.locate()
            place = mounts.uncovered(line.device, line.path)
            await line.sync()
            self._forks.pop(line.number, None)  # else its end would be taken for one from outside
            try:
                await trio.to_thread.run_sync(partial(mounts.unmount, place, detach=detach))
            except BaseException:
                self._forks[line.number] = line
                raise
            self.connections.remove(connection)
            await line.finished.wait()  # what notifies watchers reads the file system
            self._forget(line)

    def _forget(self, line: Line) -> None:
        self._forks.pop(line.number, None)
        line.service.fs.close()

    async def announce(self, line: Line, before: View, nameless: set[Ino]) -> None:
        """Tell the kernel what a verb changed, also before it failed or its client had gone; only
        then has the verb happened for everyone."""
        pending = line.service.take_unannounced()
        if self.get(line.number) is line:  # else there is nobody to tell it in the line itself
            await line.announce(pending, before, nameless)
        if pending.purged or pending.deleted:
            for each in self:
                await each.announce_history(pending, others=each is not line)

    async def sync_forks(self) -> None:
        for line in list(self._forks.values()):
            with suppress(OSError):
                await line.sync()

    def close(self) -> None:
        """The workspace's mount has ended, and with it theirs. Their states stay in the store."""
        for line in list(self._forks.values()):
            with suppress(OSError):
                line.locate()
                mounts.unmount(mounts.uncovered(line.device, line.path), detach=True)
                mounts.leave(self._shared.workspace.store, line.path)
        self._forks.clear()
