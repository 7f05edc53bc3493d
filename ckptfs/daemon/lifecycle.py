"""What the daemon does, from opening the store to leaving a current directory behind.

    open the store → bring in the lower directory → clear a dead mount → serve → write back

Every step that fails before the mount is usable leaves things as they were: a store made for
this mount goes again, an older one keeps the state it had, a dead mountpoint stays where it can.
A later failure leaves a dead mountpoint, which keeps an older directory out of sight, and the
reason in the daemon's note. The event loop runs only while the workspace is mounted; bringing in
and writing back happen before and after it, on this same thread, because the store belongs to the
thread that opened it.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NamedTuple

from ckptfs import __version__, config, fuse, locating
from ckptfs.config import LOG_BYTES, LOG_KEEP, Workspace
from ckptfs.control import runtime, server
from ckptfs.daemon import memory, mounts, preflight, scanning
from ckptfs.daemon.launch import Announcer
from ckptfs.daemon.mounted import Mounted, UmountReplies, mount_options
from ckptfs.daemon.scanning import not_brought_in
from ckptfs.daemon.shutdown import Shutdown, added_up, incomplete, with_file
from ckptfs.errors import (
    CkptfsError,
    ControlError,
    MountFailed,
    NoPermission,
    StoreGone,
    StoreInUse,
    WriteBackIncomplete,
    reason_of,
)
from ckptfs.fs import Filesystem
from ckptfs.history import forks
from ckptfs.service import Service
from ckptfs.service.arguments import JsonObject, OnProgress
from ckptfs.service.wire import progress_of, sync_result
from ckptfs.store import Store, new_store
from ckptfs.store.directory import store_exists
from ckptfs.sync import ScanBehind, SyncResult, lower

log = logging.getLogger(__name__)

#: Seconds that a mount waits for a verb that has the store open.
_PATIENCE = 2.0
#: How often it looks, in seconds.
_LOOK_AGAIN = 0.02


def run_daemon(plan: preflight.Plan, announcer: Announcer) -> None:
    """The whole life of a daemon, in the process and thread that calls it."""
    memory.set_limits()
    replies = UmountReplies()
    with _terminable():
        try:
            with _store_for(plan, announcer) as store, _logging_to(store, plan.workspace.log.name):
                left = _run_with(store, plan, announcer, replies)
        except CkptfsError as error:
            replies.fail(error)
            raise
        # Only now: the client that hears it may use the store and the directory at once.
        replies.finish(left)


def write_back_without_daemon(
    workspace: Workspace,
    on_progress: OnProgress | None,
    *,
    covered: int | None = None,
    force: bool = False,
) -> JsonObject | None:
    """Finish for a daemon that died: bring the lower directory up to date from the store.

    ``covered`` is a descriptor of the directory where a dead mount still covers it; it may be
    uncovered when this returns, since nothing had to be left out, or ``force`` says all the same.
    Returns None if nothing was left to do.
    """
    store = Store.open(workspace.store)
    try:
        service = Service(Filesystem(store))
        if service.lower_is_current():
            return None
        try:
            dir_fd = lower.open_root(workspace.path) if covered is None else covered
        except OSError as error:
            raise WriteBackIncomplete(workspace.path, reason_of(error)) from error
        result = _write_back(service, workspace.path, dir_fd, on_progress)
        if covered is not None and not force:
            _require_clean(service, workspace.path, result)
        return {"write_back": sync_result(result)}
    finally:
        store.close()


def _run_with(
    store: Store, plan: preflight.Plan, announcer: Announcer, replies: UmountReplies
) -> JsonObject:
    workspace = plan.workspace
    log.info("ckptfs %s takes %s, store %s", __version__, workspace.path, store.path)
    if (died := runtime.left_behind(workspace)) is not None:
        log.info("the last daemon, process %s, ended without a word", died.get("pid"))
    note = _note(plan)
    try:
        with _published(workspace, note, announcer):
            service = Service(Filesystem(store))
            dir_fd, in_sight = _lower_directory(plan)
            start = _Start(plan, note, announcer)
            if not in_sight:
                start.bring_in(service, dir_fd)
            shutdown = Shutdown(plan, service, dir_fd, note)
            try:
                _serve(service, start, dir_fd, replies, shutdown)
            except StoreGone as gone:
                _save_from_gone(service, plan, dir_fd, replies, shutdown, gone)
                raise
            runtime.update(workspace, note._replace(state=runtime.WRITING_BACK))
            return _leave(service, plan, dir_fd, replies, shutdown)
    except CkptfsError as error:
        if announcer.is_ready:
            log.error("ending: %s", error)
        else:
            log.info("ending: %s", error)  # the caller gets the error; this is for the record
        raise
    except Exception:
        log.exception("ending with an error")
        raise


def _lower_directory(plan: preflight.Plan) -> tuple[int, bool]:
    """A descriptor that reaches the lower directory even while a mount covers it; and whether a
    dead mount had to go for it, so that an older directory is in sight until it is covered again:
    then the mount comes first, and requests wait for what takes time."""
    path = plan.workspace.path
    if not plan.covered_by_dead:
        return _open_directory(path), False
    lower_fd = mounts.open_lower(path)
    if lower_fd is None:
        log.info("clearing a dead mount")
        mounts.unmount(path, detach=True)
        preflight.check_directory(plan)
        return _open_directory(path), True
    preflight.check_directory(plan, f"/proc/self/fd/{lower_fd}")
    return lower_fd, False


def _clear_dead(plan: preflight.Plan) -> None:
    """Take a dead mount away, as late as can be: what it covers is older than the store."""
    mount = mounts.mount_at(plan.workspace.path) if plan.covered_by_dead else None
    if mount is not None and mount.is_ours:
        log.info("clearing a dead mount")
        mounts.unmount(plan.workspace.path, detach=True)


class _BroughtIn(NamedTuple):
    """What a mount took over from the lower directory, or the scan that is still to do so."""

    result: JsonObject | None
    scan: ScanBehind | None = None


def _bring_in(
    service: Service, plan: preflight.Plan, dir_fd: int, announcer: Announcer
) -> _BroughtIn:
    try:
        imported = None
        service.add_excluded(plan.exclude)
        scan = _begin_scan(service, plan, dir_fd)
        if scan is not None:
            log.info("serving while up to %d entries are compared", scan.total)
            return _BroughtIn(None, scan)
        if plan.source is not None:
            imported = service.import_tree(plan.source, progress_of(announcer.progress, "import"))
        watch = progress_of(announcer.progress, "scan")
        result = service.bring_in(dir_fd, plan.workspace.path, watch)
        if imported is not None:
            # The directory itself is empty then.
            result = imported
    except OSError as error:
        raise not_brought_in(plan.workspace, error) from error
    log.info("brought in: %s", result[:5])
    return _BroughtIn(sync_result(result))


def _begin_scan(service: Service, plan: preflight.Plan, dir_fd: int) -> ScanBehind | None:
    """The scan, if it may come behind the mount; not over the dead mount of one that was killed."""
    if plan.source is not None or plan.covered_by_dead or not scanning.is_wanted(service):
        return None
    return service.begin_scan(dir_fd, plan.workspace.path)


class _Start:
    """The steps of a daemon from its directory to the first request."""

    def __init__(self, plan: preflight.Plan, note: runtime.Daemon, announcer: Announcer) -> None:
        self.plan = plan
        self.note = note
        self._announcer = announcer
        self._brought: _BroughtIn | None = None
        #: `locating.directory_id` of the lower directory.
        self._place: str | None = None

    def bring_in(self, service: Service, dir_fd: int) -> None:
        """Take over what the lower directory holds, if that was not done yet."""
        if self._brought is None:
            self._brought = _bring_in(service, self.plan, dir_fd, self._announcer)
            self._place = locating.directory_id(dir_fd)

    @property
    def scan(self) -> ScanBehind | None:
        """The scan that goes on behind the mount."""
        return None if self._brought is None else self._brought.scan

    def announce(
        self, service: Service, served: fuse.ServedBy, forks_not_mounted: list[JsonObject]
    ) -> None:
        workspace = self.plan.workspace
        config.register(workspace, directory=self._place)
        runtime.publish(workspace, self.note._replace(state=runtime.SERVING))
        room = service.shortage()
        short = None if room is None else room._asdict()
        brought = None if self._brought is None else self._brought.result
        record: JsonObject = {"pid": os.getpid(), "scan": brought, "room": short}
        record["forks_not_mounted"] = forks_not_mounted
        self._announcer.ready({**record, **served._asdict()})
        log.info("mounted")


def _serve(
    service: Service, start: _Start, dir_fd: int, replies: UmountReplies, shutdown: Shutdown
) -> None:
    plan, workspace = start.plan, start.plan.workspace

    def started() -> None:
        stderr.release()
        start.announce(service, mounted.served, mounted.forks_not_mounted())

    # From here on the store may know more than the lower directory.
    service.mark_lower(current=False)
    listener = server.listen(workspace.socket)
    stderr = Stderr()
    try:
        _clear_dead(plan)
        mounted = Mounted(plan, service, start.note, replies, shutdown, start.scan)
        mounted.serve(listener, lambda: start.bring_in(service, dir_fd), started)
    except MountFailed as error:
        said = stderr.release()
        if said:
            raise MountFailed(workspace.path, said.rstrip(".")) from error
        raise
    finally:
        stderr.release()
        listener.close()
        workspace.socket.unlink(missing_ok=True)
    log.info("no longer served" if shutdown.covers else "unmounted")


def _leave(
    service: Service, plan: preflight.Plan, dir_fd: int, replies: UmountReplies, shutdown: Shutdown
) -> JsonObject:
    """Bring the lower directory up to date, then take a mount away that still covers it."""
    # A shutdown sends its signal to us while we do exactly what it wants.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    service.fs.commit()
    record: JsonObject = {"write_back": None, "cut_off": shutdown.cut_off}
    if shutdown.writes_back and replies.write_back:
        result = _last_write_back(
            service, plan.workspace.path, dir_fd, replies.on_progress, shutdown
        )
        if shutdown.covers and not replies.force:
            _require_clean(service, plan.workspace.path, result)
        record["write_back"] = sync_result(result)
    try:
        shutdown.uncover()
    except OSError as error:
        reason = f"Cannot take the mount away from {plan.workspace.path}: {reason_of(error)}."
        raise ControlError(f"{reason} What it covers is current.") from error
    return record


def _last_write_back(
    service: Service, path: Path, dir_fd: int, on_progress: OnProgress | None, shutdown: Shutdown
) -> SyncResult:
    """What is left to do after a write-back under the mount; all of it where there was none."""
    before = shutdown.written
    if before is None:
        return _write_back(service, path, dir_fd, on_progress)
    if not before.late and before.commits == service.fs.store.commits:
        service.owe_write_back(False)
        service.mark_lower(current=True)
        return before.result
    return added_up(before.result, _write_back(service, path, dir_fd, on_progress))


def _write_back(
    service: Service, path: Path, dir_fd: int, on_progress: OnProgress | None
) -> SyncResult:
    try:
        result = service.write_back(dir_fd, progress_of(on_progress, "write back"))
    except OSError as error:
        raise WriteBackIncomplete(path, with_file(error)) from error
    log.info("written back: %s", result[:5])
    return result


def _require_clean(service: Service, path: Path, result: SyncResult) -> None:
    """A directory that is not what the workspace was stays covered."""
    if result.skipped:
        service.mark_lower(current=False)
        raise incomplete(path, result)


def _save_from_gone(
    service: Service,
    plan: preflight.Plan,
    dir_fd: int,
    replies: UmountReplies,
    shutdown: Shutdown,
    gone: StoreGone,
) -> None:
    """The store was taken away under the daemon, which still has its files open: the lower
    directory is the only place where what programs wrote can stay."""
    names = [fork.name for fork in service.fs.store.forks if not forks.is_scratch(fork.name)]
    if names:
        gone.message += f" So did its forks: {', '.join(names)}."
    log.error("%s", gone)
    if shutdown.writes_back:
        service.fs.store.abandon()
        _leave(service, plan, dir_fd, replies, shutdown)
        gone.message += f" {plan.workspace.path} was brought up to date, and is not mounted."


@contextmanager
def _store_for(plan: preflight.Plan, announcer: Announcer) -> Iterator[Store]:
    """The plan's store, made if there is none; a new one goes again if the mount fails."""
    path = plan.workspace.store
    if not store_exists(path):
        with new_store(path, keep=lambda: announcer.is_ready) as store:
            yield store
        return
    store = _opened(plan.workspace)
    try:
        yield store
    except BaseException:
        store.close(commit=False)
        raise
    store.close()


def _opened(workspace: Workspace) -> Store:
    """The store, as soon as a verb of another process lets go of it."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            # LMDB does not survive every bit that flipped on disk, so every page is looked at
            # first.
            return Store.open(workspace.store, verify=True)
        except StoreInUse:
            if time.monotonic() >= deadline or runtime.living(workspace) is not None:
                raise
        time.sleep(_LOOK_AGAIN)


@contextmanager
def _published(workspace: Workspace, note: runtime.Daemon, announcer: Announcer) -> Iterator[None]:
    """The daemon's note, which goes at the end; after a failure it has the reason."""
    runtime.forget_failure(workspace)
    runtime.publish(workspace, note)
    try:
        yield
    except BaseException as error:
        if announcer.is_ready:
            runtime.record_failure(workspace, note, _reason(error))
        else:
            runtime.withdraw(workspace)
        raise
    runtime.withdraw(workspace)


def _reason(error: BaseException) -> str:
    if isinstance(error, CkptfsError):
        return error.message
    return f"It failed ({type(error).__name__}: {error})."


@contextmanager
def _logging_to(store: Store, name: str) -> Iterator[None]:
    path = store.files / name
    handler = LogFile(path, maxBytes=LOG_BYTES, backupCount=LOG_KEEP, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the daemon in order even before the loop, which has its own way, is there."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _open_directory(path: Path) -> int:
    try:
        return lower.open_root(path)
    except OSError as error:
        raise NoPermission(path, f"it cannot be opened ({reason_of(error)})") from error


def _note(plan: preflight.Plan) -> runtime.Daemon:
    options = {
        "xattrs": mount_options(plan).xattrs,
        "allow_other": plan.allow_other,
        "write_back": plan.write_back,
        "auto": plan.auto,
        "flags": sorted(plan.flags),
    }
    return runtime.Daemon(
        pid=os.getpid(),
        start_ticks=runtime.own_start_ticks(),
        state=runtime.SCANNING,
        workspace=str(plan.workspace.path),
        started_ns=time.time_ns(),
        version=__version__,
        options=options,
    )


# -- its log ---------------------------------------------------------------------------------------

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogFile(RotatingFileHandler):
    """A rotated log that only its owner reads."""

    def _open(self) -> io.TextIOWrapper:
        descriptor = os.open(self.baseFilename, _APPEND, 0o600)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            os.close(descriptor)
            raise OSError(errno.EPERM, "the log is not a file of its own", self.baseFilename)
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")


# -- what libfuse and fusermount3 say, on stderr only ----------------------------------------------

#: Enough for the last words of a program that failed.
_KEPT_MAX = 4096


class Stderr:
    """File descriptor 2 put into memory, from making this until `release`."""

    def __init__(self) -> None:
        self._kept = os.memfd_create("ckptfs-stderr", os.MFD_CLOEXEC)
        self._before = os.dup(2)
        os.dup2(self._kept, 2)

    def release(self) -> str:
        """Put stderr back; return the last line that was written meanwhile. Once is enough."""
        if self._before < 0:
            return ""
        os.dup2(self._before, 2)
        os.close(self._before)
        self._before = -1
        said = os.pread(self._kept, _KEPT_MAX, 0)
        os.close(self._kept)
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
