"""A workspace for the API: finding it, mounting it or preparing a plain directory, and asking it.

Mounting starts the command line in a process of its own: a daemon must not be forked from a program
that has threads, locks and an event loop.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ckptfs import config as places
from ckptfs.api.events import CheckpointEvent, Handlers
from ckptfs.api.values import CheckpointConfig, moment
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace, prepare_directory
from ckptfs.control import runtime
from ckptfs.errors import (
    AlreadyMounted,
    CkptfsError,
    MountError,
    PathUnknown,
    SystemRefused,
    UsageError,
    WorkspaceUnknown,
    from_record,
)
from ckptfs.service.arguments import JsonObject
from ckptfs.service.verbs import VERBS, events_of

AnyPath = str | os.PathLike[str]


#: Seconds to wait while another process has the store of a plain directory.
STORE_PATIENCE = 30.0


class Sessions:
    """One workspace to ask. Holds no connection: each question has its own session."""

    def __init__(self, directory: str, storage: str | None) -> None:
        self.directory = directory
        self.storage = storage
        self.handlers = Handlers()
        self.found: Workspace | None = None
        #: The last error that was emitted: it may pass here more than once on its way out.
        self._emitted: CkptfsError | None = None

    @property
    def workspace(self) -> Workspace:
        if self.found is None:
            self.found = find(self.directory, self.storage)
        return self.found

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session for several questions."""
        with self.telling_errors():
            with open_workspace(self.workspace, patience=STORE_PATIENCE) as session:
                yield session

    def call(self, op: str, args: JsonObject | None = None) -> JsonObject:
        """The answer of a verb. The handlers hear of what its declaration says it makes known."""
        with self.session() as session:
            result = session.call(op, args)
        for kind, data, checkpoint in events_of(VERBS[op], result):
            self.emit(kind, data, None if checkpoint is None else str(checkpoint))
        return result

    def text(self, op: str, asked: JsonObject) -> str:
        """The text diff of what `diff` or `show` answers."""
        from ckptfs.control.transfer import patch_lines

        with self.session() as session:
            record = session.call(op, {**asked, "files": True})
            text = b"".join(line + b"\n" for line in patch_lines(session, record))
        return text.decode("utf-8", "surrogateescape")

    def caller(self) -> JsonObject:
        """Who asks, for the history."""
        return {"pid": os.getpid(), "command": " ".join(sys.argv[:1] or ["python"])}

    def emit(self, kind: str, data: JsonObject, checkpoint_id: str | None = None) -> None:
        path = str(self.workspace.path)
        event = CheckpointEvent(kind, path, moment(time.time_ns()), checkpoint_id, data)
        self.handlers.emit(event)

    @contextmanager
    def telling_errors(self) -> Iterator[None]:
        try:
            yield
        except CkptfsError as error:
            if error is not self._emitted:
                self._tell(error)
            raise
        except OSError as error:
            ours = SystemRefused("go on", error)
            self._tell(ours)
            raise ours from error

    def _tell(self, error: CkptfsError) -> None:
        self._emitted = error
        now, data = moment(time.time_ns()), dict(error.record())
        self.handlers.emit(CheckpointEvent(CheckpointEvent.ERROR, self.directory, now, None, data))


# -- making it ready -------------------------------------------------------------------------------


class Prepared(NamedTuple):
    workspace: Workspace
    mounted_here: bool


def find(directory: AnyPath, storage: AnyPath | None) -> Workspace:
    """The workspace at exactly this directory. Raises `WorkspaceUnknown`."""
    path = places.resolve(directory)
    if storage is not None:
        store = places.resolve(storage)
        seen = Workspace(path, store)
        if not (store / "data.mdb").exists() and places.mounted(path) != seen:
            raise WorkspaceUnknown(path, hint="Call initialize() first.")
        return seen
    found = places.lookup(path)
    if found is None:
        raise WorkspaceUnknown(path, hint="Call initialize() first.")
    return found


def prepare(
    directory: AnyPath, storage: AnyPath | None, wanted: CheckpointConfig, *, configured: bool
) -> Prepared:
    """Mount the directory, or make it a plain workspace; what is ready stays as it is."""
    from ckptfs.daemon import preflight

    path = places.resolve(directory)
    preflight.check_not_dangerous(path)
    workspace = _seen_by_mount(path, storage)
    if workspace is None:
        workspace = Workspace(path, preflight.choose_store(path, _text(storage)))
    if runtime.living(workspace) is not None:
        if wanted.exclude_patterns:
            with open_workspace(workspace) as session:
                session.call("exclude", {"patterns": wanted.exclude_patterns})
        return Prepared(workspace, mounted_here=False)
    if wanted.mount and _mount(workspace, wanted, configured=configured):
        return Prepared(workspace, mounted_here=True)
    plain = prepare_plain(path, storage, exclude=wanted.exclude_patterns)
    return Prepared(plain, mounted_here=False)


def _seen_by_mount(path: Path, storage: AnyPath | None) -> Workspace | None:
    """A mounted workspace that the registry does not know, as in a sandbox."""
    known = storage is not None or places.registered(path) is not None
    return None if known else places.mounted(path)


def prepare_plain(
    directory: AnyPath,
    storage: AnyPath | None = None,
    *,
    keep_first: bool = True,
    exclude: Sequence[str] = (),
) -> Workspace:
    """Make a directory a workspace as it stands, without mounting it; its first state becomes a
    checkpoint unless the caller is about to take one."""
    from ckptfs.daemon import preflight

    path = places.resolve(directory)
    preflight.check_not_dangerous(path)
    preflight.check_is_directory(path)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        raise SystemRefused("take a directory for a workspace", refused)
    workspace = Workspace(path, preflight.choose_store(path, _text(storage)))
    preflight.check_apart(path, workspace.store)
    prepare_directory(workspace, keep_first=keep_first, exclude=exclude)
    return workspace


def _text(path: AnyPath | None) -> str | None:
    return None if path is None else os.fspath(path)


def _mount(workspace: Workspace, wanted: CheckpointConfig, *, configured: bool) -> bool:
    """Mount; False where the machine cannot, so that the plain directory is all there is."""
    words = ["mount", str(workspace.path), "--store", str(workspace.store)]
    if configured:
        words += ["--auto", "command" if wanted.auto_checkpoint else "off"]
    for pattern in wanted.exclude_patterns:
        words += ["--exclude", pattern]
    try:
        _run(words)
    except AlreadyMounted:
        if runtime.living(workspace) is None:
            raise  # by something else
    except MountError:
        return False
    return True


def unmount(workspace: Workspace) -> None:
    """Unmount and wait until the directory is current."""
    _run(["umount", str(workspace.path)])


def _run(words: list[str]) -> JsonObject:
    """A verb of the command line in a process of its own; raises the error that it ends with."""
    done = subprocess.run(
        [sys.executable, "-m", "ckptfs", *words, "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        cwd="/",  # or the process would keep the directory busy
    )
    try:
        record: JsonObject = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.decode(errors="replace").strip()
        raise CkptfsError(f"Cannot {words[0]} {words[1]}: {said or 'it ended silently'}") from None
    if "error" in record:
        raise from_record(record["error"])
    return record


def listed(paths: AnyPath | Sequence[AnyPath]) -> list[AnyPath]:
    """One path or several. A text is one, not its letters."""
    if isinstance(paths, str | bytes | os.PathLike):
        return [paths]
    if not isinstance(paths, Iterable):
        raise _no_path(paths)
    return list(paths)


def _no_path(given: object) -> UsageError:
    return UsageError(
        f"Cannot use {given!r} as a path. Nothing was changed.",
        hint="A path is a str, bytes or a pathlib.Path; several are a list of these.",
    )


def inside(root: Path, paths: Sequence[AnyPath]) -> list[str]:
    """Paths relative to the workspace; absolute ones must lie in it. The last part is not followed
    if it is a link: it itself is meant."""
    return [_inside(root, _decoded(path)) for path in paths]


def _decoded(path: AnyPath) -> str:
    try:
        return os.fsdecode(path)
    except TypeError as error:
        raise _no_path(path) from error


def _inside(root: Path, path: str) -> str:
    full = os.path.normpath(os.path.join(root, path))
    if os.path.isabs(path):
        above, name = os.path.split(full)
        full = os.path.join(os.path.realpath(above), name)
    if full == str(root):
        return ""
    if not full.startswith(f"{root}/"):
        raise PathUnknown(path, "it is not inside the workspace", verb="use")
    return full[len(str(root)) + 1 :]
