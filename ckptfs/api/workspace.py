"""A workspace for the API: finding it, mounting it or preparing a plain directory, asking it, and
restoring it.

Mounting starts the command line in a process of its own: a daemon must not be forked from a program
that has threads, locks and an event loop.

The command to run after a restore lets an agent rewind itself and learn what changed. It gets the
restore as one JSON object on stdin and runs in the workspace. The restore has happened whatever
becomes of it: a failure is reported, never more. Which command it is stands in the settings of the
user who runs it, and is read here, by that user's own process: a daemon is not asked.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ckptfs import config
from ckptfs import config as places
from ckptfs.api.values import (
    CheckpointConfig,
    CheckpointEvent,
    Handlers,
    RestoreResult,
    moment,
    restore_of,
)
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace, prepare_directory
from ckptfs.control import runtime, transfer
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
        """This process, as the history names the caller."""
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


# -- restores, and the command to run after one ----------------------------------------------------

#: Seconds that the command may take.
PATIENCE = 60.0
#: How much of what it said goes into the reason of its failure.
_SAID_MAX = 500

DONE = "done"

#: The file in a store that may have settings.
_FILE = "config.toml"


def restore(
    sessions: Sessions,
    op: str,
    asked: JsonObject,
    *,
    dry_run: bool,
    on_restore: Sequence[str] | None,
) -> RestoreResult:
    """Restore, or say what it would do. ``on_restore`` stands for the workspace's setting."""
    with sessions.session() as session:
        if dry_run:
            record = session.call("plan", asked)
        else:
            record = session.call(op, {**asked, **sessions.caller(), "names": True})
        wanted = asked.get("state", True) and record["state_names"]
        found = transfer.fetch(session, str(record["checkpoint"])) if wanted else {}
    if dry_run:
        return restore_of(record, found, dry_run=True)
    restored = {**record, "workspace": str(sessions.workspace.path), "state": found}
    # The session is over: the command may ask the workspace itself.
    store = sessions.workspace.store
    command = command_of(store) if on_restore is None else Command(on_restore)
    wanted = command and is_news(restored, found)
    restored["hook"] = run_command(command, restored, sessions.workspace.path) if wanted else ""
    result = restore_of(restored, found, dry_run=False)
    sessions.emit(CheckpointEvent.CHECKPOINT_RESTORED, restored, result.checkpoint_id)
    return result


# -- the command after it --------------------------------------------------------------------------


class Command(NamedTuple):
    """The words of the command, or none; or why the one that is set is not run."""

    words: Sequence[str] = ()
    refused: str = ""

    def __bool__(self) -> bool:
        return bool(self.words or self.refused)


def command_of(store: Path, name: str = "hooks.on_restore") -> Command:
    """What a setting wants to be run: that of the store, or else of the user who asks. Settings
    that make no sense want nothing: `ckptfs config` tells what is wrong."""
    refused = ""
    for file in (store / _FILE, config.settings_file()):
        try:
            text, reason = _setting(file, *name.split("."))
            if text is None:
                continue
            if not reason:
                return Command(shlex.split(text))
            refused = refused or f"it was not run, since {reason}"
        except (OSError, ValueError):
            pass
    return Command(refused=refused)


def _setting(file: Path, section: str, key: str) -> tuple[str | None, str]:
    """The command that a file sets, None if it sets none, and why it is not run."""
    opened, reason = config.open_settings(file)
    with opened:
        found = tomllib.load(opened).get(section, {})
    text = found.get(key) if isinstance(found, dict) else None
    return (None if text is None else str(text)), reason


def is_news(restore: dict[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether there is anything to tell: files that changed, or documents to go back to."""
    return bool(restore["changed"] or state)


def run_command(wanted: Command, restore: dict[str, Any], workspace: Path) -> str:
    """Run it to its end; "done", or why it failed or was not run."""
    if wanted.refused:
        return wanted.refused
    command = wanted.words
    try:
        done = subprocess.run(
            list(command),
            input=payload(restore),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=workspace,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within {PATIENCE:.0f} seconds and was killed"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"{command[0]} could not be run ({reason.lower()})"
    if done.returncode == 0:
        return DONE
    said = done.stderr.decode(errors="replace").strip()[-_SAID_MAX:]
    return f"{command[0]} ended with {done.returncode}" + (f": {said}" if said else "")


def payload(restore: dict[str, Any]) -> bytes:
    """The restore as JSON; bytes in it are {"base64": ...}."""
    return json.dumps(restore, default=_encoded).encode() + b"\n"


def _encoded(value: object) -> Any:
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} is not JSON")
