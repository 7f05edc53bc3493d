"""The scan behind a mount: what is served before it has ended, what waits for it, and its end.

    read      at once; a directory is compared on the way of the first request into it
    change    waits in the compiled server (`gate.c`), from whatever program it comes
    verb      waits here, but for those that only tell of the daemon, and umount

So the state before the first change is one that has all that changed while it was not mounted, and
so has every checkpoint. An unmount waits only if something was brought in, which is to become that
checkpoint: what was not compared stays as it is below, and the next scan meets it.
`sync.scan_behind` has what it means that a directory is compared.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import trio

from ckptfs import fuse, interrupts
from ckptfs.config import Workspace
from ckptfs.daemon.slices import Slices
from ckptfs.errors import CkptfsError, MountFailed, StoreFull, reason_of
from ckptfs.fuse import loop
from ckptfs.fuse.hooks import GateKeeper
from ckptfs.interrupts import Steps
from ckptfs.model import Ino, Inode, Place
from ckptfs.service import Service
from ckptfs.service.arguments import JsonObject
from ckptfs.service.wire import sync_result
from ckptfs.sync import ScanBehind, SyncResult

log = logging.getLogger(__name__)

#: The name of a file: while it exists a scan stays behind the mount, however small the workspace,
#: and goes on only where something waits for its end. For tests.
HOLD = "CKPTFS_HOLD_SCAN"
#: How often the file is looked for, in seconds.
_LOOK_AGAIN = 0.02
#: Fewer entries than this are compared in less time than it takes to mount.
_FEW = 20_000
#: Seconds that the kernel may take to drop what the scan changed. It cannot where a change that
#: waits has the inode locked, and that change waits for this.
_NOTIFYING_S = 1.0


def is_wanted(service: Service) -> bool:
    """Whether the workspace is to be served before its scan has ended, where that is safe."""
    return _is_held() or service.count_entries() >= _FEW


def not_brought_in(workspace: Workspace, error: OSError) -> CkptfsError:
    """The error for a scan that could not come to its end."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(workspace.store)
    return MountFailed(workspace.path, f"its content cannot be read ({reason_of(error)})")


def _is_held() -> bool:
    hold = os.environ.get(HOLD)
    return hold is not None and Path(hold).exists()


class Scanning:
    """`fuse.hooks.Gate` of one mount; it has nothing to do where the scan came first."""

    def __init__(self, service: Service, scan: ScanBehind | None, slices: Slices) -> None:
        self._service = service
        self._scan = scan
        self._slices = slices
        self._keeper: GateKeeper | None = None
        #: What the scan changed of what the kernel knows.
        self._inodes: set[Ino] = set()
        self._entries: set[Place] = set()
        self._result: SyncResult | None = None
        self._stopped = False
        #: Something waits for the end.
        self._is_awaited = False
        self._ended = trio.Event()
        if scan is None:
            self._ended.set()

    # -- for requests -----------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._scan is not None and self._result is None

    @property
    def uncompared(self) -> Mapping[Ino, object]:
        return {} if self._scan is None else self._scan.uncompared

    def kept_by(self, keeper: GateKeeper) -> None:
        self._keeper = keeper

    def compare(self, node: int) -> None:
        """Compare a directory before anything in it is shown."""
        if self._scan is not None:
            with self._noting():
                self._scan.compare(Ino(node))

    def compare_all(self) -> None:
        if self.is_closed:
            interrupts.finish(self._steps())

    # -- for verbs --------------------------------------------------------------------------------

    async def ended(self) -> None:
        """Return when everything is compared, and the kernel knows of it."""
        self._is_awaited = True
        await self.wait()

    async def wait(self) -> None:
        """The same for one who has time."""
        await self._ended.wait()

    async def may_be_left(self) -> None:
        """Return when an unmount may come: nothing was brought in, or everything was."""
        if self._scan is not None and self._scan.has_changed:
            await self.ended()

    def status(self) -> JsonObject | None:
        """How far it is; None where the scan came before the mount."""
        if self._scan is None:
            return None
        return {
            "ended": self._ended.is_set(),
            "files": self._scan.files,
            "total_files": self._scan.total,
            "result": None if self._result is None else sync_result(self._result),
        }

    # -- while there is time ----------------------------------------------------------------------

    async def run(self) -> None:
        if self._scan is None:
            return
        while _is_held() and not self._is_hurried():  # noqa: ASYNC110 - another process removes it
            await trio.sleep(_LOOK_AGAIN)
        if self.is_closed:
            await self._slices.run(self._steps(), around=self._noting)
        if self._stopped:
            return
        async with trio.open_nursery() as nursery:
            told = trio.Event()
            nursery.start_soon(self._notify, told.set)
            with trio.move_on_after(_NOTIFYING_S):
                await told.wait()
            self._open()
            self._ended.set()

    def stop(self) -> None:
        """The mount is about to end: leave the rest to the next scan."""
        self._stopped = True

    def _is_hurried(self) -> bool:
        return self._is_awaited or (self._keeper is not None and self._keeper.holds_changes())

    def _steps(self) -> Steps[None]:
        scan = self._scan
        while scan is not None and scan.uncompared and not self._stopped:
            scan.compare_next()
            if interrupts.is_due():
                yield
        if scan is not None and not self._stopped and self._result is None:
            self._result = self._service.end_scan(scan)
            log.info("brought in: %s", self._result[:5])
            for path, reason in self._result.skipped:
                log.warning("left out of the scan: %s: %s", os.fsdecode(path), reason)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note what changes of all that the kernel knows."""
        fs, scan = self._service.fs, self._scan
        changing, changed = fs.changing, fs.changed

        def note(ino: Ino) -> None:
            if fs.is_used(ino):
                self._inodes.add(ino)

        def is_changing(ino: Ino) -> None:
            note(ino)
            changing(ino)

        def has_changed(inode: Inode) -> None:
            note(inode.ino)
            changed(inode)

        fs.changing, fs.changed = is_changing, has_changed
        try:
            yield
        finally:
            fs.changing, fs.changed = changing, changed
            if scan is not None:
                self._entries.update(place for place in scan.take_moved() if fs.is_used(place[0]))

    async def _notify(self, done: Callable[[], None]) -> None:
        inodes, self._inodes = self._inodes, set()
        await fuse.invalidate(self._entries, inodes)
        done()

    def _open(self) -> None:
        """Let changes through, those first that waited."""
        if self._keeper is not None:
            self._keeper.open_gate()
            loop.wake()
