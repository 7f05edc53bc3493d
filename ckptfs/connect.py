"""The verbs of a workspace: from its daemon if it is mounted, else from its store.

Either way a caller gets the same records for the same operation. Costs the standard library
only as long as a daemon answers; the store is imported when there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.control.client import Client, Progress, Session
from ckptfs.control.protocol import Record
from ckptfs.errors import ControlError

if TYPE_CHECKING:
    from ckptfs.service import Service

__all__ = ["LocalSession", "Session", "new_store", "open_store", "open_workspace"]


#: What changes the workspace itself, so that its directory has to follow.
_MOVING = frozenset({"restore", "rewind", "undo", "redo", "purge"})


def _is_about_now(op: str, args: Record) -> bool:
    """Whether an operation must see the directory as it is."""
    if op == "diff":
        return args.get("newer") in ("", "@", "now", None)
    return op in ("save", "plan") or op in _MOVING


class LocalSession:
    """The verbs on a store that this process opened itself."""

    def __init__(self, service: Service, below: Path | None) -> None:
        self._service = service
        self._below = below

    def call(
        self, op: str, args: Record | None = None, *, progress: Progress | None = None
    ) -> Record:
        from ckptfs.control.verbs import perform

        if self._below is None or not _is_about_now(op, args or {}):
            return perform(self._service, op, args or {}, progress)
        with _directory(self._below) as dir_fd:
            # An unmounted workspace is the directory itself: what it holds is what it is now, and
            # what becomes of it has to stand there.
            if dir_fd is not None:
                self._service.take_in(dir_fd)
            result = perform(self._service, op, args or {}, progress)
            if dir_fd is not None and op in _MOVING:
                self._service.write_back(dir_fd)
            return result


@contextmanager
def _directory(path: Path) -> Iterator[int | None]:
    """The directory, or None if it is gone or behind a dead mount: then the store's own state is
    all there is."""
    try:
        dir_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield dir_fd
    finally:
        os.close(dir_fd)


@contextmanager
def open_workspace(workspace: Workspace) -> Iterator[Session]:
    """A session with the workspace's daemon, or with its store if there is no daemon."""
    daemon = runtime.living(workspace)
    if daemon is None:
        with open_store(workspace.store, below=workspace.path) as session:
            yield session
        return
    if daemon.state != runtime.SERVING:
        raise ControlError(
            f"Workspace {workspace.path} is busy: its daemon ({daemon.pid}) is {daemon.state}. "
            "Nothing was changed.",
            hint="Try again when it is done; `ckptfs status` tells.",
        )
    with Client(workspace) as client:
        yield client


@contextmanager
def open_store(path: Path, *, below: Path | None = None) -> Iterator[Session]:
    """A session with a store that no daemon has. ``below`` is its workspace's directory."""
    from ckptfs.fs import Filesystem
    from ckptfs.service import Service
    from ckptfs.store import Store

    store = Store.open(path)
    try:
        yield LocalSession(Service(Filesystem(store)), below)
    finally:
        store.close()


@contextmanager
def new_store(path: Path) -> Iterator[Session]:
    """A session with a store made for it; if the session fails, the store goes again."""
    import shutil

    from ckptfs.fs import Filesystem
    from ckptfs.service import Service
    from ckptfs.store import Store

    existed = path.exists()
    store = Store.create(path)
    try:
        yield LocalSession(Service(Filesystem(store)), None)
    except BaseException:
        store.close(commit=False)
        if not existed:
            shutil.rmtree(path, ignore_errors=True)
        raise
    store.close()
