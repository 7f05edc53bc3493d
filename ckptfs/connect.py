"""The verbs of a workspace: from its daemon if it is mounted, else from its store.

Either way a caller gets the same records for the same operation. Costs the standard library
only as long as a daemon answers; the store is imported when there is none.

A workspace that is not mounted is its directory: what that holds is taken in before an operation
that is about now, and what an operation makes of the workspace is written back to it. A write-back
that was cut short is finished by the next such operation.
"""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs import notices
from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.control.client import Client, Session
from ckptfs.errors import (
    ControlError,
    DaemonGone,
    NotAStore,
    NotMounted,
    RefusedInSandbox,
    StoreInUse,
    StoreMissing,
    WorkspaceUnknown,
    WriteBackIncomplete,
)
from ckptfs.service import verbs
from ckptfs.service.arguments import JsonObject, OnProgress
from ckptfs.service.verbs import Verb

if TYPE_CHECKING:
    from ckptfs.service import Service
    from ckptfs.store import Store
    from ckptfs.sync import SyncResult
    from ckptfs.sync.results import Skipped

__all__ = [
    "LocalSession",
    "Session",
    "has_store",
    "new_store",
    "open_store",
    "open_workspace",
    "prepare_directory",
    "remove_store",
]

#: Seconds that a caller waits for a workspace that is busy for a moment, unless it says otherwise.
PATIENCE = 10.0
#: How often to look whether another process has let go of a store, in seconds.
_LOOK_AGAIN = 0.02

#: LMDB may open an environment once in a process, so its threads take turns.
_turns: dict[Path, _thread.LockType] = {}


class LocalSession:
    """The verbs on a store that this process opened itself."""

    def __init__(self, service: Service, lower: Path | None) -> None:
        self._service = service
        self._lower = lower

    def call(
        self, op: str, args: JsonObject | None = None, *, on_progress: OnProgress | None = None
    ) -> JsonObject:
        """Perform an operation. An interrupt leaves the store as it was last committed, as the end
        of the process would; the KeyboardInterrupt that goes on says so."""
        from ckptfs.service import service

        verb = verbs.find(op)
        if verb.module == verbs.DAEMON and self._lower is not None:
            raise NotMounted(self._lower)
        values, cause = verb.decode(args or {}), service.caller_of(self._service, args or {})

        def run() -> JsonObject:
            if verb.in_thread:
                self._service.fs.commit()
            return service.run(self._service, verb, values, cause, on_progress)

        try:
            return self._with_directory(verb, values, run)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_left_by(verb)) from None

    def _with_directory(
        self, verb: Verb, values: JsonObject, run: Callable[[], JsonObject]
    ) -> JsonObject:
        """Run a verb; with the directory, if that is wanted, before and after it."""
        if self._lower is None or not self._needs_directory(self._lower, verb, values):
            return run()
        with _directory(self._lower, self._service.fs.store.path) as dir_fd:
            if dir_fd is None:
                return run()
            _tell_conflicts(*self._service.catch_up(dir_fd))
            return self._move(dir_fd, run) if verb.changes == verbs.FILES else run()

    def _needs_directory(self, lower: Path, verb: Verb, values: JsonObject) -> bool:
        """Whether the directory is wanted; what can do without it does where a mount covers it."""
        if verb.needs_directory(values):
            return not verb.of_the_store or not runtime.is_dead(lower)
        if not self._service.owes_write_back():
            return False
        workspace = Workspace(lower, self._service.fs.store.path)
        return not runtime.is_dead(lower) and runtime.foreign_mount(workspace) is None

    def _move(self, dir_fd: int, run: Callable[[], JsonObject]) -> JsonObject:
        """Change the workspace, then its directory. The debt is committed with the change."""
        service = self._service
        head = service.fs.head
        service.owe_write_back()
        try:
            result = run()
        except Exception:
            if service.fs.head is head:
                service.owe_write_back(False)
            else:
                _tell_conflicts(service.write_back(dir_fd))
            raise
        written = service.write_back(dir_fd)
        _tell_conflicts(written)
        if written.skipped:
            raise _incomplete(self._lower, written.skipped)
        return result

    def is_directory_current(self) -> bool:
        """Whether the directory was brought up to date when the workspace was last let go."""
        return self._service.lower_is_current() and not self._service.owes_write_back()

    def meet(self, path: Path, *, keep_first: bool, exclude: Sequence[str]) -> None:
        """Take over what the workspace's directory holds, as a mount does."""
        self._service.add_excluded(exclude)
        with _directory(path, self._service.fs.store.path) as dir_fd:
            if dir_fd is not None:
                _tell_conflicts(*self._service.adopt_directory(dir_fd, path, keep_first=keep_first))


def _tell_conflicts(*passes: SyncResult) -> None:
    from ckptfs.service.wire import sync_result

    for result in passes:
        if result.conflicts:
            notices.on_conflicts({**sync_result(result), "skipped": [], "skipped_count": 0})


def _left_by(verb: Verb) -> str:
    """What an interrupt leaves of a verb on a store that this process has."""
    if verb.only_reads:
        return "Stopped. Nothing was changed."
    if verb.changes == verbs.FILES:
        return (
            f"Stopped. If {verb.name} had begun to change the workspace, the next ckptfs command "
            "about it goes on."
        )
    return f"Stopped. What {verb.name} had finished stays."


def _incomplete(path: Path | None, left: Sequence[Skipped]) -> WriteBackIncomplete:
    """The workspace is what was asked for; its directory is not, where something is in the way."""
    more = f" and {len(left) - 1:,} more" if len(left) > 1 else ""
    reason = f"{os.fsdecode(left[0].path)}: {left[0].reason}{more}"
    hint = "Put that right; the next ckptfs command about the workspace goes on."
    return WriteBackIncomplete(path or "", reason, hint=hint)


@contextmanager
def _directory(path: Path, store: Path) -> Iterator[int | None]:
    """The directory, or None if it is gone: then the store's own state is all there is. Behind a
    dead mount it is still there, and older than the store, so it is not the present state; nor is
    what a mount shows that has another history. What a link leads to is not the workspace."""
    from ckptfs.sync import lower

    workspace = Workspace(path, store)
    if runtime.is_dead(path):
        raise DaemonGone(path, runtime.why_gone(workspace))
    runtime.require_uncovered(workspace)
    try:
        dir_fd = lower.open_root(path)
    except OSError as error:
        runtime.require_uncovered(workspace)  # it may have come meanwhile
        if isinstance(error, PermissionError):
            raise  # it is there
        if os.path.realpath(path) != str(path):
            hint = "A symbolic link stands in its path now; put the directory back, or mount DIR."
            raise WorkspaceUnknown(path, hint=hint) from None
        yield None
        return
    try:
        yield dir_fd
    finally:
        os.close(dir_fd)


@contextmanager
def open_workspace(workspace: Workspace, *, patience: float = PATIENCE) -> Iterator[Session]:
    """A session with the workspace's daemon, or with its store if there is no daemon.

    ``patience`` is how many seconds to wait for what passes by itself: another process that has the
    store, a daemon that is about to serve or to end.
    """
    with ExitStack() as stack:
        deadline = time.monotonic() + patience
        while True:
            try:
                session = stack.enter_context(_session(workspace, deadline))
                break
            except (StoreInUse, ControlError) as error:
                if time.monotonic() >= deadline or _lasts(error, workspace):
                    raise
                time.sleep(_LOOK_AGAIN)
        yield session


def _lasts(error: StoreInUse | ControlError, workspace: Workspace) -> bool:
    """Whether waiting is of no use."""
    if isinstance(error, DaemonGone):
        return runtime.is_dead(workspace.path)
    return isinstance(error, RefusedInSandbox)


def _session(workspace: Workspace, deadline: float) -> AbstractContextManager[Session]:
    daemon = runtime.living(workspace)
    if daemon is None:
        if workspace.line:
            raise DaemonGone(workspace.path, "it died")  # a fork is nowhere but in its mount
        # For its turn among our own threads it waits; for another process the caller does, since
        # that may be a daemon, which can be asked.
        left = deadline - time.monotonic()
        # A store alone stands for its own workspace; then there is no directory.
        lower = None if workspace.path == workspace.store else workspace.path
        if lower and not os.access(workspace.store, os.W_OK) and runtime.is_dead(lower):
            raise DaemonGone(lower, "it died")  # seen from a sandbox, which cannot go on without it
        return open_store(workspace.store, lower=lower, patience=left)
    if daemon.state != runtime.SERVING:
        raise ControlError(
            f"Workspace {workspace.path} is busy: its daemon ({daemon.pid}) is {daemon.state}. "
            "Nothing was changed.",
            hint="Try again when it is done; `ckptfs status` tells.",
        )
    return Client(workspace)


@contextmanager
def open_store(
    path: Path, *, lower: Path | None = None, patience: float = 0.0
) -> Iterator[Session]:
    """A session with a store that no daemon has. ``lower`` is its workspace's directory.

    ``patience`` is how many seconds to wait for other threads of this process.
    """
    from ckptfs.fs import Filesystem
    from ckptfs.service import Service

    with _opened(path, patience) as store:
        yield LocalSession(Service(Filesystem(store)), lower)


@contextmanager
def _opened(path: Path, patience: float) -> Iterator[Store]:
    from ckptfs.store import Store

    turn = _turns.setdefault(path, _thread.allocate_lock())
    if not turn.acquire(timeout=max(0.0, patience)):
        raise StoreInUse(path, os.getpid())
    try:
        store = Store.open(path)
        try:
            yield store
        except KeyboardInterrupt:
            # It may come in the middle of a change: what was committed is whole.
            store.close(commit=False)
            raise
        except OSError as error:
            gone = not path.exists()
            store.close(commit=not gone)
            if gone:
                raise StoreMissing(path) from error
            raise
        except BaseException:
            store.close()
            raise
        store.close()
    finally:
        turn.release()


@contextmanager
def new_store(path: Path, *, lower: Path | None = None) -> Iterator[LocalSession]:
    """A session with a store made for it; if the session fails, the store goes again. ``lower`` is
    its workspace's directory."""
    from ckptfs.fs import Filesystem
    from ckptfs.service import Service
    from ckptfs.store import new_store

    try:
        with new_store(path) as store:
            yield LocalSession(Service(Filesystem(store)), lower)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_left_without_store(lower)) from None


def _left_without_store(lower: Path | None) -> str:
    """What an interrupt leaves of a workspace whose store went again."""
    try:
        written = lower is not None and bool(os.listdir(lower))
    except OSError:
        written = False
    if not written:
        return "Stopped. Nothing was changed."
    return f"Stopped. What was written to {lower} so far stays there, without a history."


def has_store(path: Path) -> bool:
    """Whether there is a store to open, and not at most what an interrupt left of making one."""
    if not (path / "data.mdb").exists():
        return False
    from ckptfs.store.directory import store_exists

    return store_exists(path)


def remove_store(path: Path) -> list[str]:
    """Delete a store that no process has open. Returns the names of what else is in its directory,
    which stays; a directory without a store in it is not touched at all."""
    from contextlib import closing

    from ckptfs.store.directory import DATA_FILE, lock_directory, open_directory, remove_store_files

    with closing(open_directory(path)) as directory:
        if not directory.has(DATA_FILE):
            raise NotAStore(path)
        lock_directory(directory)
        left = remove_store_files(directory.files)
    if not left:
        os.rmdir(path)
    return left


def prepare_directory(
    workspace: Workspace,
    *,
    patience: float = 30.0,
    keep_first: bool = True,
    exclude: Sequence[str] = (),
) -> None:
    """Make a directory a workspace without mounting it: its store, if there is none, and, if
    ``keep_first``, the first checkpoint. ``exclude`` are patterns to keep out of history."""
    from ckptfs import config, locating

    deadline = time.monotonic() + patience
    while True:
        was_there = has_store(workspace.store)
        try:
            _meet(workspace, deadline, make=not was_there, keep_first=keep_first, exclude=exclude)
            break
        except (StoreInUse, NotAStore) as error:
            # Others were making it just then, and it is there in a moment.
            is_made = isinstance(error, StoreInUse) or has_store(workspace.store)
            if was_there or time.monotonic() >= deadline or not is_made:
                raise
            time.sleep(_LOOK_AGAIN)
    config.register(workspace, directory=locating.directory_id(str(workspace.path)))


def _meet(
    workspace: Workspace,
    deadline: float,
    *,
    make: bool,
    keep_first: bool,
    exclude: Sequence[str],
) -> None:
    if make:
        with new_store(workspace.store) as fresh:
            fresh.meet(workspace.path, keep_first=keep_first, exclude=exclude)
        return
    with open_workspace(workspace, patience=deadline - time.monotonic()) as session:
        if isinstance(session, LocalSession):  # or it was mounted just now
            session.meet(workspace.path, keep_first=keep_first, exclude=exclude)
