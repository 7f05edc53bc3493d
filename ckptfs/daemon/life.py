"""What the daemon does, from opening the store to leaving a current directory behind.

    open the store → clear a dead mount → bring in the directory below → serve → write back

Every step that fails before the mount is usable leaves things as they were: a store made for
this mount goes again, an older one keeps the state it had. The event loop runs only while the
workspace is mounted; bringing in and writing back happen before and after it, on this same
thread, because the store belongs to the thread that opened it.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckptfs import __version__, config, locating
from ckptfs.config import LOG_BYTES, LOG_KEEP, Workspace
from ckptfs.control import runtime, server
from ckptfs.control.protocol import Record
from ckptfs.control.verbs import Tell, relay, result_record
from ckptfs.daemon import mounts, rules
from ckptfs.daemon.launch import Announcer
from ckptfs.daemon.log_file import LogFile
from ckptfs.daemon.mounted import Farewell, Mounted, mount_options
from ckptfs.daemon.stderr import Stderr
from ckptfs.errors import (
    CkptfsError,
    MountFailed,
    NoPermission,
    StoreFull,
    WriteBackIncomplete,
)
from ckptfs.fs import Filesystem
from ckptfs.service import Service
from ckptfs.store import Store
from ckptfs.sync import below

log = logging.getLogger(__name__)


def live(plan: rules.Plan, announcer: Announcer) -> None:
    """The whole life of a daemon, in the process and thread that calls it."""
    farewell = Farewell()
    with _terminable():
        try:
            with _store_for(plan, announcer) as store, _logging_to(store, plan.workspace.log.name):
                left = _live_with(store, plan, announcer, farewell)
        except CkptfsError as error:
            farewell.fail(error)
            raise
        # Only now: whoever hears it may use the store and the directory at once.
        farewell.finish(left)


def write_back_alone(workspace: Workspace, tell: Tell | None) -> Record | None:
    """Finish for a daemon that died: bring the directory below up to date from the store.

    Returns None if nothing was left to do.
    """
    store = Store.open(workspace.store)
    try:
        service = Service(Filesystem(store))
        if service.below_is_current():
            return None
        try:
            dir_fd = below.open_root(workspace.path)
        except OSError as error:
            raise WriteBackIncomplete(workspace.path, _words(error)) from error
        try:
            return _write_back(service, workspace.path, dir_fd, tell)
        finally:
            os.close(dir_fd)
    finally:
        store.close()


def _live_with(store: Store, plan: rules.Plan, announcer: Announcer, farewell: Farewell) -> Record:
    workspace = plan.workspace
    log.info("ckptfs %s takes %s, store %s", __version__, workspace.path, store.path)
    if (died := runtime.left_behind(workspace)) is not None:
        log.info("the last daemon, process %s, ended without a word", died.get("pid"))
    note = _note(plan)
    try:
        with _published(workspace, note):
            dir_fd = _uncovered_directory(plan)
            service = Service(Filesystem(store))
            brought = _bring_in(service, plan, dir_fd, announcer)
            place = locating.directory_id(dir_fd)
            _serve(service, plan, note, farewell, announcer, brought, place)
            runtime.publish(workspace, note._replace(state=runtime.WRITING_BACK))
            return _leave(service, plan, dir_fd, farewell)
    except CkptfsError as error:
        log.info("ending: %s", error)  # whoever asked hears it; here it is for the record
        raise
    except Exception:
        log.exception("ending with an error")
        raise


def _uncovered_directory(plan: rules.Plan) -> int:
    """A descriptor that reaches the directory below even while the mount covers it."""
    path = plan.workspace.path
    if plan.covered_by_dead:
        log.info("clearing a dead mount")
        mounts.unmount(path, detach=True)
        rules.check_directory(plan)
    return _open_directory(path)


def _bring_in(service: Service, plan: rules.Plan, dir_fd: int, announcer: Announcer) -> Record:
    try:
        imported = None
        service.add_excluded(plan.exclude)
        if plan.source is not None:
            imported = service.import_tree(plan.source, relay(announcer.progress, "import"))
        watch = relay(announcer.progress, "scan")
        result = service.bring_in(dir_fd, plan.workspace.path, watch)
        if imported is not None:
            # The directory itself is empty then.
            result = imported
    except OSError as error:
        raise _not_brought_in(plan.workspace, error) from error
    log.info("brought in: %s", result[:5])
    return result_record(result)


def _not_brought_in(workspace: Workspace, error: OSError) -> CkptfsError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(workspace.store)
    return MountFailed(workspace.path, f"its content cannot be read ({_words(error)})")


def _serve(
    service: Service,
    plan: rules.Plan,
    note: runtime.Daemon,
    farewell: Farewell,
    announcer: Announcer,
    brought: Record,
    place: str | None,
) -> None:
    workspace = plan.workspace

    def started() -> None:
        stderr.release()
        config.register(workspace, directory=place)
        runtime.publish(workspace, note._replace(state=runtime.SERVING))
        room = service.shortage()
        short = None if room is None else room._asdict()
        announcer.ready({"pid": os.getpid(), "scan": brought, "room": short})
        log.info("mounted")

    # From here on the store may know more than the directory below.
    service.mark_below(current=False)
    listener = server.listen(workspace.socket)
    stderr = Stderr()
    try:
        Mounted(plan, service, note, farewell).serve(listener, started)
    except MountFailed as error:
        said = stderr.release()
        if said:
            raise MountFailed(workspace.path, said.rstrip(".")) from error
        raise
    finally:
        stderr.release()
        listener.close()
        workspace.socket.unlink(missing_ok=True)
    log.info("unmounted")


def _leave(service: Service, plan: rules.Plan, dir_fd: int, farewell: Farewell) -> Record:
    if not (plan.write_back and farewell.write_back and _is_writable(plan, dir_fd)):
        service.fs.commit()
        return {"write_back": None}
    # A shutdown sends its signal to us while we do exactly what it wants.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return _write_back(service, plan.workspace.path, dir_fd, farewell.tell)


def _is_writable(plan: rules.Plan, dir_fd: int) -> bool:
    """Whether the directory below can be brought up to date; only read-only mounts do without."""
    return not plan.read_only or os.access(".", os.W_OK, dir_fd=dir_fd)


def _write_back(service: Service, path: Path, dir_fd: int, tell: Tell | None) -> Record:
    try:
        result = service.write_back(dir_fd, relay(tell, "write back"))
    except OSError as error:
        log.error("write-back failed: %s", error)
        raise WriteBackIncomplete(path, _words(error)) from error
    log.info("written back: %s", result[:5])
    return {"write_back": result_record(result)}


@contextmanager
def _store_for(plan: rules.Plan, announcer: Announcer) -> Iterator[Store]:
    """The plan's store, made if there is none; a new one goes again if the mount fails."""
    path = plan.workspace.store
    existed, new = path.exists(), not (path / "data.mdb").exists()
    # LMDB does not survive every bit that flipped on disk, so every page is looked at first.
    store = Store.create(path) if new else Store.open(path, doubt=True)
    try:
        yield store
    except BaseException:
        store.close(commit=False)
        if new and not announcer.is_ready:
            _remove_store(path, keep_directory=existed)
        raise
    store.close()


def _remove_store(path: Path, *, keep_directory: bool) -> None:
    if not keep_directory:
        shutil.rmtree(path, ignore_errors=True)
        return
    for entry in path.iterdir():
        with suppress(OSError):
            entry.unlink()


@contextmanager
def _published(workspace: Workspace, note: runtime.Daemon) -> Iterator[None]:
    runtime.publish(workspace, note)
    try:
        yield
    finally:
        runtime.withdraw(workspace)


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
        return below.open_root(path)
    except OSError as error:
        raise NoPermission(path, f"it cannot be opened ({_words(error)})") from error


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _note(plan: rules.Plan) -> runtime.Daemon:
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
