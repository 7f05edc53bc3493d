"""`CheckpointService`: the verbs of one workspace for programs.

Each call opens a session, asks and closes it, so a service holds nothing between calls: other
processes, the command line among them, use the same workspace meanwhile. Any thread may call.
"""

from __future__ import annotations

import builtins
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from ckptfs.api import after, place
from ckptfs.api.events import CheckpointEvent, EventStream, Handler, Handlers
from ckptfs.api.values import (
    Checkpoint,
    CheckpointConfig,
    CheckpointDiff,
    FileVersion,
    PruneDecision,
    Record,
    RestoreResult,
    State,
    WorkspaceStatus,
    change_of,
    checkpoint_of,
    diff_of,
    moment,
    restore_of,
)
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace
from ckptfs.control import documents, runtime
from ckptfs.control.client import Client
from ckptfs.errors import CkptfsError, NotMounted, SystemRefused

#: Seconds to wait while another process has the store of a plain directory.
STORE_PATIENCE = 30.0

AnyPath = str | os.PathLike[str]


class CheckpointService:
    """The checkpoints of one workspace.

    ``workspace_dir`` is the directory; ``storage_dir`` is where its content and history live, by
    default below ``~/.local/share/ckptfs``. With a configuration given, `initialize` and `save`
    follow it; without one the workspace's own settings hold.

    Errors are those of `ckptfs.errors`: each has ``kind``, ``message`` and ``hint``.
    """

    def __init__(
        self,
        workspace_dir: AnyPath,
        storage_dir: AnyPath | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        self.config = config or CheckpointConfig()
        self._configured = config is not None
        self._directory = os.path.expanduser(workspace_dir)
        self._storage = None if storage_dir is None else os.path.expanduser(storage_dir)
        self._found: Workspace | None = None
        self._mounted_here = False
        self._handlers = Handlers()
        self._starting = threading.Lock()

    # -- its life ----------------------------------------------------------------------------------

    def initialize(self) -> WorkspaceStatus:
        """Make the workspace ready: mount it, or prepare its store and work on the directory.

        Mounts if the configuration wants it and the machine can; what is mounted already stays as
        it is. May be called again at any time.
        """
        with self._telling_errors(), self._starting:
            made = place.prepare(
                self._directory, self._storage, self.config, configured=self._configured
            )
            self._found, self._mounted_here = made.workspace, made.mounted_here
        status = self.status()
        self._emit(CheckpointEvent.INITIALIZED, {"mounted": status.mounted})
        return status

    def close(self) -> None:
        """Let go. The workspace stays mounted unless ``unmount_on_close`` was asked for."""
        if self._mounted_here and self.config.unmount_on_close:
            place.unmount(self.workspace)
            self._mounted_here = False

    def __enter__(self) -> CheckpointService:
        self.initialize()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    @property
    def workspace(self) -> Workspace:
        """Where the workspace and its store are. Raises `WorkspaceUnknown` before the first
        `initialize` of a directory that ckptfs does not know."""
        if self._found is None:
            self._found = place.find(self._directory, self._storage)
        return self._found

    @property
    def mounted(self) -> bool:
        """Whether a daemon serves the workspace now."""
        daemon = runtime.living(self.workspace)
        return daemon is not None and daemon.state == runtime.SERVING

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        """Call ``handler`` with each event of that kind that this service causes; returns the
        function that ends it. A handler that raises is logged and changes nothing."""
        return self._handlers.add(event, handler)

    def watch(self) -> EventStream:
        """What happens to the mounted workspace from now on, whoever causes it."""
        if not self.mounted:
            raise NotMounted(self.workspace.path)
        return EventStream(Client(self.workspace))

    # -- checkpoints -------------------------------------------------------------------------------

    def save(
        self,
        message: str = "",
        *,
        tag: str = "",
        metadata: dict[str, str] | None = None,
        state: State | None = None,
        pin: bool = False,
        allow_empty: bool = False,
    ) -> Checkpoint:
        """Take a checkpoint of the workspace as it is, and return it.

        If nothing changed since the last one, and no tag, metadata, state or pin is given, the last
        one is returned with ``created`` False, unless ``allow_empty``. ``state`` are documents to
        keep with it: bytes, or what JSON can say. They take only the room that they do not share
        with what is there.
        """
        asked: Record = {
            "message": message,
            "tag": tag,
            "metadata": metadata or {},
            "pin": pin,
            "allow_empty": allow_empty,
            **self._caller(),
        }
        if self._configured and self.config.max_checkpoints is not None:
            asked["max_checkpoints"] = self.config.max_checkpoints
        with self._telling_errors(), documents.staged(self.workspace.store, state or {}) as staged:
            record = self._call("save", asked | {"state": staged} if staged else asked)
        saved = self._checkpoint(record)
        if saved.created:
            self._emit(CheckpointEvent.CHECKPOINT_CREATED, record, saved.id)
        if record.get("pruned"):
            self._emit(CheckpointEvent.CHECKPOINTS_PRUNED, {"ids": _texts(record["pruned"])})
        return saved

    def list(self, limit: int | None = None) -> builtins.list[Checkpoint]:
        """The checkpoints, newest first."""
        record = self._ask("list", {"limit": limit})
        return [self._checkpoint(item) for item in reversed(record["checkpoints"])]

    def get(self, checkpoint_id: str) -> Checkpoint:
        """One checkpoint: by number, tag, ``latest``, ``@-2``, or a time. Raises
        `CheckpointUnknown`."""
        return self._checkpoint(self._ask("get", {"checkpoint": checkpoint_id}))

    def delete(self, *checkpoint_ids: str) -> None:
        """Delete checkpoints and what only they held: all of them, or none."""
        with self._telling_errors():
            record = self._call("delete", {"checkpoints": builtins.list(checkpoint_ids)})
        self._emit(CheckpointEvent.CHECKPOINTS_PRUNED, {"ids": _ids(record)})

    def tag(self, checkpoint_id: str, tag: str | None, *, move: bool = False) -> Checkpoint:
        """Give a checkpoint a tag; with None, take its tag away. ``move`` takes it from another."""
        asked = {"checkpoint": checkpoint_id, "tag": tag or "", "move": move}
        (found,) = self._ask("tag", asked)["checkpoints"]
        return self.get(str(found["id"]))

    def pin(self, *checkpoint_ids: str) -> None:
        """Keep checkpoints from expiring and from being deleted."""
        self._ask("pin", {"checkpoints": builtins.list(checkpoint_ids)})

    def unpin(self, *checkpoint_ids: str) -> None:
        self._ask("unpin", {"checkpoints": builtins.list(checkpoint_ids)})

    def prune(self, *, dry_run: bool = False) -> builtins.list[PruneDecision]:
        """Let checkpoints expire as the workspace's settings say."""
        record = self._ask("prune", {"dry_run": dry_run})
        found = [
            PruneDecision(str(item["id"]), item["keep"], item["reason"])
            for item in record["checkpoints"]
        ]
        gone = [item.id for item in found if not item.keep]
        if gone and not dry_run:
            self._emit(CheckpointEvent.CHECKPOINTS_PRUNED, {"ids": gone})
        return found

    # -- differences -------------------------------------------------------------------------------

    def diff(
        self,
        from_id: str | None = None,
        to_id: str | None = None,
        *,
        paths: Sequence[AnyPath] = (),
        times: bool = False,
    ) -> CheckpointDiff:
        """What differs between two checkpoints, or between one and now.

        Without ``from_id`` it is the checkpoint that the workspace goes on from. ``times`` lists
        files too of which nothing but the time changed.
        """
        asked: Record = {
            "older": from_id or "",
            "newer": to_id or "",
            "paths": self._inside(paths),
            "times": times,
        }
        return diff_of(self._ask("diff", asked), lambda: self._text("diff", asked))

    def show(self, checkpoint_id: str, *, times: bool = False) -> CheckpointDiff:
        """What a checkpoint changed."""
        asked: Record = {"checkpoint": checkpoint_id, "times": times}
        return diff_of(self._ask("show", asked), lambda: self._text("show", asked))

    def log(self, path: AnyPath) -> builtins.list[FileVersion]:
        """Every checkpoint in which a path, or anything below it, changed; newest first."""
        (inside,) = self._inside([path])
        return [self._version(item) for item in self._ask("log", {"path": inside})["versions"]]

    def restores(self) -> builtins.list[Record]:
        """The log of restores, oldest first."""
        found: builtins.list[Record] = self._ask("restores")["restores"]
        return found

    # -- going back --------------------------------------------------------------------------------

    def restore(
        self,
        checkpoint_id: str,
        paths: Sequence[AnyPath] | None = None,
        dry_run: bool = False,
        *,
        token: str = "",
        backup: bool = True,
        files: bool = True,
        state: bool = True,
    ) -> RestoreResult:
        """Make the workspace, or some paths of it, what it was, and hand back the state documents.

        What it is now becomes a checkpoint first, which `undo` goes back to, unless ``backup`` is
        False. With ``token`` of a dry run it is refused (`TreeMoved`) if anything changed since.
        ``files=False`` hands back the state only; ``state=False`` restores the files only.
        """
        asked: Record = {
            "checkpoint": checkpoint_id,
            "paths": self._inside(paths or ()),
            "token": token,
            "backup": backup,
            "files": files,
            "state": state,
        }
        return self._go("restore", asked, dry_run=dry_run)

    def rewind(self, steps: int = 1, dry_run: bool = False) -> RestoreResult:
        """Go back a number of checkpoints along the way that led here."""
        return self._go("rewind", {"steps": steps}, dry_run=dry_run)

    def undo(self) -> RestoreResult:
        """Take back the last restore."""
        return self._go("undo", {})

    def redo(self) -> RestoreResult:
        """Take back the last undo."""
        return self._go("redo", {})

    def state(self, checkpoint_id: str) -> dict[str, Any]:
        """The state documents of a checkpoint."""
        with self._telling_errors(), self._session() as session:
            return documents.fetch(session, checkpoint_id)

    # -- the store ---------------------------------------------------------------------------------

    def status(self) -> WorkspaceStatus:
        """Where the workspace is and how much it has."""
        with self._telling_errors(), self._session() as session:
            mounted = isinstance(session, Client)
            record = session.call("status" if mounted else "figures")
        known = ("pid", "version", "started_ns", "options")
        return WorkspaceStatus(
            workspace=str(self.workspace.path),
            store=str(self.workspace.store),
            mounted=mounted,
            checkpoints=record["checkpoints"],
            store_bytes=record["store_bytes"],
            inodes=record["inodes"],
            daemon={key: record[key] for key in known} if mounted else {},
        )

    def compact(self) -> tuple[int, int]:
        """Give free room back to the disk; the size of the store's file before and after."""
        record = self._ask("compact")
        return record["before_bytes"], record["after_bytes"]

    def purge(self, *paths: AnyPath, dry_run: bool = False) -> Record:
        """Remove files from the workspace and every checkpoint, for ever."""
        return self._ask("purge", {"paths": self._inside(paths), "dry_run": dry_run})

    def check(self) -> builtins.list[str]:
        """What is wrong with the store; empty if nothing is."""
        return [
            f"{item['invariant']}: {item['message']}" for item in self._ask("check")["problems"]
        ]

    def export(self, dest: AnyPath, checkpoint_id: str | None = None) -> Record:
        """Write a checkpoint, or the present state, into an absent or empty directory."""
        full = os.path.realpath(dest)
        return self._ask("export", {"dest": full, "checkpoint": checkpoint_id})

    # -- asking ------------------------------------------------------------------------------------

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with open_workspace(self.workspace, patience=STORE_PATIENCE) as session:
            yield session

    def _call(self, op: str, args: Record | None = None) -> Record:
        with self._session() as session:
            return session.call(op, args)

    def _ask(self, op: str, args: Record | None = None) -> Record:
        with self._telling_errors():
            return self._call(op, args)

    def _go(self, op: str, asked: Record, *, dry_run: bool = False) -> RestoreResult:
        with self._telling_errors(), self._session() as session:
            if dry_run:
                record = session.call("plan", asked)
            else:
                record = session.call(op, {**asked, **self._caller(), "names": True})
            wanted = asked.get("state", True) and record["state"]
            found = documents.fetch(session, str(record["checkpoint"])) if wanted else {}
        if dry_run:
            return restore_of(record, found, dry_run=True)
        told = {**record, "workspace": str(self.workspace.path), "state": found}
        told["hook"] = self._run_hook(told.pop("on_restore", ""), told)
        result = restore_of(told, found, dry_run=False)
        self._emit(CheckpointEvent.CHECKPOINT_RESTORED, told, result.checkpoint_id)
        return result

    def _run_hook(self, setting: str, told: Record) -> str:
        command = self.config.on_restore
        if command is None:
            command = shlex.split(setting)
        return after.run(command, told, self.workspace.path) if command else ""

    def _text(self, op: str, asked: Record) -> str:
        from ckptfs.control.difftext import patch_lines

        with self._telling_errors(), self._session() as session:
            record = session.call(op, {**asked, "files": True})
            text = b"".join(line + b"\n" for line in patch_lines(session, record))
        return text.decode("utf-8", "surrogateescape")

    def _checkpoint(self, record: Record) -> Checkpoint:
        number = str(record["id"])
        return checkpoint_of(record, lambda: self._files_of(number))

    def _files_of(self, number: str) -> builtins.list[str]:
        changes = self.show(number).changes
        return [item.path for item in changes if not item.is_directory or item.old_path]

    def _version(self, record: Record) -> FileVersion:
        saved = record["checkpoint"]
        return FileVersion(
            change_of(record), None if saved is None else self._checkpoint(saved), record["writer"]
        )

    def _inside(self, paths: Sequence[AnyPath]) -> builtins.list[str]:
        return place.inside(self.workspace.path, paths)

    def _caller(self) -> Record:
        return {"pid": os.getpid(), "command": " ".join(sys.argv[:1] or ["python"])}

    # -- telling -----------------------------------------------------------------------------------

    def _emit(self, kind: str, data: Record, checkpoint_id: str | None = None) -> None:
        path = str(self.workspace.path)
        self._handlers.emit(
            CheckpointEvent(kind, path, moment(time.time_ns()), checkpoint_id, data)
        )

    @contextmanager
    def _telling_errors(self) -> Iterator[None]:
        """Every error is one of ours, and told to those who want to hear of errors."""
        try:
            yield
        except CkptfsError as error:
            self._tell_error(error)
            raise
        except OSError as error:
            ours = SystemRefused("go on", error)
            self._tell_error(ours)
            raise ours from error

    def _tell_error(self, error: CkptfsError) -> None:
        path = os.fspath(self._directory)
        event = CheckpointEvent(
            CheckpointEvent.ERROR, path, moment(time.time_ns()), None, dict(error.record())
        )
        self._handlers.emit(event)


def _ids(record: Record) -> builtins.list[str]:
    return [str(item["id"]) for item in record["checkpoints"]]


def _texts(numbers: Sequence[int]) -> builtins.list[str]:
    return [str(number) for number in numbers]
