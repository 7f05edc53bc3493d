"""Shutdown: only a directory that is current is ever uncovered.

    umount     look whether it is in use → write back under the mount → unmount
    --lazy     write back under the mount → detach → serve what is open → write back what came after
    --force    end the connection: the mountpoint is dead → write back → take it away
    a signal   likewise; if the write-back fails, the dead mountpoint stays

The first two happen here, while the loop still serves; a write-back then keeps every request
waiting, so nothing changes meanwhile and no program sees a part, and an unmount that is refused
leaves a mount that goes on. What follows the loop is in `lifecycle`. An unmount from outside
uncovers the directory before it can be brought up to date: that is noticed here, and done at once.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import trio

from ckptfs.control import runtime
from ckptfs.daemon import mounts
from ckptfs.daemon.mounts import Copies, holders, shortened
from ckptfs.daemon.preflight import Plan
from ckptfs.errors import ControlError, MountpointBusy, WriteBackIncomplete, reason_of
from ckptfs.service import Service
from ckptfs.service.arguments import OnProgress
from ckptfs.service.wire import progress_of
from ckptfs.sync import SyncResult

log = logging.getLogger(__name__)

#: Seconds that other mount namespaces, which have a copy of the mount, get to let go of it.
COPIES_PATIENCE = 3.0
_LOOK_AGAIN = 0.1
#: Seconds that the kernel may take to write back its dirty pages.
_SYNC_PATIENCE = 10.0
#: Seconds for which an unmount is tried again while the kernel says EBUSY, though no process is
#: found that uses the mount.
_BUSY_PATIENCE = 2.0
#: Seconds for which requests wait for an unmount. It does not need us, as far as is known.
_UNMOUNT_PATIENCE = 2.0

T = TypeVar("T")


class Written(NamedTuple):
    """A write-back under the mount: what it did, and up to which commit the directory has it."""

    result: SyncResult
    #: Something changed below meanwhile; another pass has to decide on it.
    late: bool
    commits: int


class Shutdown:
    """The end of one mount, from the first look to the unmount."""

    def __init__(self, plan: Plan, service: Service, dir_fd: int, note: runtime.Daemon) -> None:
        self._plan = plan
        self._path = plan.workspace.path
        self._service = service
        self._dir_fd = dir_fd
        self._note = note
        self._copies: Copies | None = None
        #: The last write-back under the mount, if there was one.
        self.written: Written | None = None
        #: Who lost the workspace because it ended for them, too.
        self.cut_off: list[str] = []
        #: An unmount of our own is under way.
        self._unmounting = False

    def mounted(self) -> None:
        """The mount is there."""
        self._copies = Copies(self._path)

    @property
    def covers(self) -> bool:
        """Whether the mount, dead or alive, still covers the directory."""
        return self._copies is not None and self._copies.is_mounted()

    @property
    def writes_back(self) -> bool:
        """Whether the lower directory is to be brought up to date; only a read-only mount does
        without where it may not be written."""
        if self._plan.read_only and not os.access(".", os.W_OK, dir_fd=self._dir_fd):
            return False
        return self._plan.write_back

    def uncover(self) -> None:
        """Take a mount away whose connection has ended."""
        if self.covers:
            mounts.unmount(self._path, detach=True)

    # -- asked for --------------------------------------------------------------------------------

    async def sync_kernel(self) -> None:
        """Have the kernel write back its dirty pages, for a limited time. It reports those that
        cannot be written to their writers."""
        if not self.covers:
            return  # the path leads to another file system
        try:
            with trio.move_on_after(_SYNC_PATIENCE):
                await _in_thread(lambda: mounts.sync_filesystem(self._path))
        except OSError as error:
            log.warning("the kernel did not write back all of its dirty pages: %s", error)

    async def require_idle(self, asking: int) -> None:
        """Refuse an unmount while a process of this namespace uses the workspace."""
        if not self.covers:
            return
        elsewhere = [] if self._copies is None else self._copies.elsewhere()
        if elsewhere:
            raise MountpointBusy(self._path, also_at=[str(path) for path in elsewhere])
        patience = _Patience()
        while os.geteuid() != 0 or await _in_thread(lambda: mounts.is_busy(self._path)):
            users = await self._users(asking)
            if os.geteuid() != 0 and not users:
                return  # only root can ask the kernel
            if users or not await patience.wait():
                raise MountpointBusy(self._path, users)

    async def _users(self, asking: int = 0) -> list[str]:
        device = None if self._copies is None else self._copies.device_number
        return await _in_thread(lambda: holders(self._path, but=asking, device=device))

    async def wait_for_copies(self, on_progress: OnProgress | None) -> bool:
        """Give other mount namespaces a moment to let go; whether none has a copy any more."""
        self.cut_off = await let_go(self._copy_holders, on_progress)
        return not self.cut_off

    async def _copy_holders(self) -> list[str]:
        return [] if self._copies is None else await _in_thread(self._copies.holders)

    async def outlived(self) -> None:
        """After an unmount: return when the kernel has kept the connection for too long, since
        something that cannot be seen from here holds it. Its end cancels this."""
        await trio.sleep(COPIES_PATIENCE)
        self.cut_off = shortened(await self._copy_holders()) or ["processes that cannot be seen"]
        log.info("still in use after the unmount, by %s: ending it", ", ".join(self.cut_off))

    async def unmount(
        self, *, lazy: bool, write_back: bool, on_progress: OnProgress | None
    ) -> None:
        """Bring the lower directory up to date and take the mount away from it. If either cannot be
        done the mount goes on, and the error says why. Requests wait meanwhile."""
        patience = _Patience()
        with self._said(runtime.UNMOUNTING):
            while True:
                if write_back and not self._is_written():
                    self._write_back(on_progress)
                error = await self._try_to_unmount(lazy=lazy)
                if error is None:
                    return
                # A request that came during the write-back waits, and keeps the mount busy.
                if error.errno != errno.EBUSY or not await patience.wait():
                    await self._refuse(error)
                    return

    async def _try_to_unmount(self, *, lazy: bool) -> OSError | None:
        self._unmounting = True
        try:
            await _alone(lambda: mounts.unmount(self._path, detach=lazy))
        except OSError as error:
            self._unmounting = False
            return error
        return None

    def _is_written(self) -> bool:
        """Whether the directory has all that was acknowledged until now."""
        fs = self._service.fs
        fs.commit()
        return self.written is not None and self.written.commits == fs.store.commits

    async def _refuse(self, error: OSError) -> None:
        if error.errno == errno.EINVAL:
            return  # unmounted meanwhile; the loop is ending already
        if error.errno == errno.EBUSY:
            raise MountpointBusy(self._path, await self._users()) from error
        raise ControlError(
            f"Cannot unmount {self._path}: {reason_of(error)}. It stays mounted."
        ) from error

    @contextmanager
    def _said(self, state: str) -> Iterator[None]:
        """Tell everyone who looks at the note; and take it back if nothing comes of it."""
        runtime.update(self._plan.workspace, self._note._replace(state=state))
        try:
            yield
        except BaseException:
            serving = self._note._replace(state=runtime.SERVING)
            runtime.update(self._plan.workspace, serving)
            raise

    def _write_back(self, on_progress: OnProgress | None) -> None:
        try:
            result, late = self._service.write_back_mounted(
                self._dir_fd, progress_of(on_progress, "write back")
            )
        except OSError as error:
            raise WriteBackIncomplete(self._path, with_file(error), mounted=True) from error
        if result.skipped:
            raise incomplete(self._path, result, mounted=True)
        log.info("written back under the mount: %s", result[:5])
        if self.written is not None:
            result = added_up(self.written.result, result)
        self.written = Written(result, late, self._service.fs.store.commits)

    # -- from outside -----------------------------------------------------------------------------

    async def watch(self) -> None:
        """Notice an unmount from outside: the directory is in sight, so it must become current now,
        even if programs still have files of the workspace open."""
        with _MountTable() as table:
            while await self._covers_still():
                await _in_thread(table.wait)
        if self._unmounting:
            return
        log.info("unmounted from outside")
        runtime.update(self._plan.workspace, self._note._replace(state=runtime.DETACHED))
        if self.writes_back:
            try:
                self._write_back(None)
            except WriteBackIncomplete as error:
                log.warning("%s", error)  # the end tries again

    async def _covers_still(self) -> bool:
        while True:
            try:
                return self.covers
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
            await trio.sleep(_LOOK_AGAIN)  # there is no descriptor to spare for a look


class _Patience:
    """For a mount that the kernel says is busy: a call that is under way there is soon over. It
    begins at the first wait, so a long write-back does not use it up."""

    def __init__(self) -> None:
        self._deadline: float | None = None

    async def wait(self) -> bool:
        """Wait a moment; False once that was done for long enough."""
        if self._deadline is None:
            self._deadline = trio.current_time() + _BUSY_PATIENCE
            log.info("something uses the mount: trying again for %s seconds", _BUSY_PATIENCE)
        elif trio.current_time() > self._deadline:
            return False
        await trio.sleep(_LOOK_AGAIN / 10)
        return True


async def let_go(
    find_holders: Callable[[], Awaitable[list[str]]], on_progress: OnProgress | None = None
) -> list[str]:
    """Wait a moment until nobody has a copy of a mount any more. Who still has one then, for whom
    it ends, too."""
    deadline = trio.current_time() + COPIES_PATIENCE
    reported = on_progress is None
    while found := await find_holders():
        if on_progress is not None and not reported:
            on_progress({"waiting_for": shortened(found), "seconds": COPIES_PATIENCE})
            reported = True
        if trio.current_time() >= deadline:
            cut_off = shortened(found)
            log.info("ending it for other mount namespaces, too: %s", ", ".join(cut_off))
            return cut_off
        await trio.sleep(_LOOK_AGAIN)
    return []


def added_up(before: SyncResult, last: SyncResult) -> SyncResult:
    """What two passes did, one after the other."""
    return last._replace(
        added=before.added + last.added,
        modified=before.modified + last.modified,
        deleted=before.deleted + last.deleted,
        bytes=before.bytes + last.bytes,
    )


def with_file(error: OSError) -> str:
    """The words for an error that ended a write-back, and where it was met if that is known."""
    named = isinstance(error.filename, bytes) and error.filename
    return f"{os.fsdecode(named)}: {reason_of(error)}" if named else reason_of(error)


def incomplete(path: Path, result: SyncResult, *, mounted: bool = False) -> WriteBackIncomplete:
    """The error for a write-back that had to leave something out."""
    first, *more = result.skipped
    reason = f"{os.fsdecode(first.path)}: {first.reason}"
    if more:
        reason += f", and {len(more):,} more"
    return WriteBackIncomplete(path, reason, mounted=mounted)


async def _alone(unmount: Callable[[], None]) -> None:
    """Unmount while nothing else happens here: what is acknowledged after a write-back would not be
    in the directory that comes into sight. Should the kernel need an answer from us, it gets it
    after a while."""
    failed: list[OSError] = []

    def run() -> None:
        try:
            unmount()
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="unmount", daemon=True)
    thread.start()
    thread.join(_UNMOUNT_PATIENCE)
    if thread.is_alive():
        await _in_thread(thread.join)
    if failed:
        raise failed[0]


class _MountTable:
    """Waits for changes of this namespace's mount table. In a thread: the kernel reports each
    change once, to the first poll, and the request loop polls trio's own descriptor."""

    def __enter__(self) -> _MountTable:
        self._table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._table, select.POLLPRI)
        self._poll.register(self._over, select.POLLIN)
        return self

    def wait(self) -> None:
        """Return after a change, or at the end."""
        self._poll.poll()

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._over, 1)
        # Not closed: the thread may still have to look at them, and the process is about to end.


async def _in_thread(function: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)
