"""`CheckpointService`: the verbs of one workspace for programs.

Each call opens a session, asks and closes it, so a service holds nothing between calls: other
processes, the command line among them, use the same workspace meanwhile. Any thread may call.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ckptfs import config as places
from ckptfs.api import place
from ckptfs.api.asking import Asking
from ckptfs.api.events import CheckpointEvent, EventStream, Handler
from ckptfs.api.going import go
from ckptfs.api.values import (
    Checkpoint,
    CheckpointConfig,
    CheckpointDiff,
    Compacted,
    FileVersion,
    JsonObject,
    PruneDecision,
    RestoreResult,
    State,
    WorkspaceStatus,
    change_of,
    checkpoint_of,
    diff_of,
)
from ckptfs.config import Workspace
from ckptfs.control import runtime, transfer
from ckptfs.control.client import Client
from ckptfs.errors import NotMounted, no_paths
from ckptfs.service.arguments import metadata_of

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
        storage = None if storage_dir is None else os.path.expanduser(storage_dir)
        self._asking = Asking(os.path.expanduser(workspace_dir), storage)
        self._mounted_here = False
        self._starting = threading.Lock()

    # -- its life ----------------------------------------------------------------------------------

    def initialize(self) -> WorkspaceStatus:
        """Make the workspace ready: mount it, or prepare its store and work on the directory.

        Mounts if the configuration wants it and the machine can; what is mounted already stays as
        it is. May be called again at any time.
        """
        with self._asking.telling_errors(), self._starting:
            asking = self._asking
            made = place.prepare(
                asking.directory, asking.storage, self.config, configured=self._configured
            )
            asking.found = made.workspace
            self._mounted_here |= made.mounted_here
        status = self.status()
        self._asking.emit(CheckpointEvent.INITIALIZED, {"mounted": status.mounted})
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
        return self._asking.workspace

    @property
    def mounted(self) -> bool:
        """Whether a daemon serves the workspace now."""
        daemon = runtime.living(self.workspace)
        return daemon is not None and daemon.state == runtime.SERVING

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        """Call ``handler`` with each event of that kind that this service causes; returns the
        function that ends it. A handler that raises is logged and changes nothing."""
        return self._asking.handlers.add(event, handler)

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
        metadata: Mapping[str, Any] | None = None,
        state: State | None = None,
        pin: bool = False,
        allow_empty: bool = False,
    ) -> Checkpoint:
        """Take a checkpoint of the workspace as it is, and return it.

        If nothing changed since the last one, and no tag, metadata, state or pin is given, the last
        one is returned with ``created`` False, unless ``allow_empty``. ``metadata`` are words about
        it: a value that is no text is kept as its JSON text. ``state`` are documents to keep with
        it: bytes, or what JSON can say. They take only the room that they do not share with what is
        there.
        """
        asked: JsonObject = {
            "message": message,
            "tag": tag,
            "pin": pin,
            "allow_empty": allow_empty,
            **self._asking.caller(),
        }
        if self.config.limit is not None:
            asked["max_checkpoints"] = self.config.limit
        with self._asking.telling_errors():
            asked["metadata"] = metadata_of(metadata or {})
            with transfer.staged(self.workspace, state or {}) as staged:
                record = self._asking.ask("save", asked | {"state": staged} if staged else asked)
        saved = self._checkpoint(record)
        if saved.created:
            self._asking.emit(CheckpointEvent.CHECKPOINT_CREATED, record, saved.id)
        if record.get("pruned"):
            self._asking.emit(CheckpointEvent.CHECKPOINTS_PRUNED, {"ids": _texts(record["pruned"])})
        return saved

    def list(
        self,
        limit: int | None = None,
        *,
        since: str = "",
        path: AnyPath | None = None,
        moments: bool = False,
    ) -> builtins.list[Checkpoint]:
        """The checkpoints, newest first: some or all, from a time on, or in which a path changed.
        With ``moments`` also those that were taken just before something was lost."""
        asked: JsonObject = {"limit": limit, "since": since, "moments": moments}
        if path is not None:
            (asked["path"],) = self._inside([path])
        record = self._asking.ask("list", asked)
        return [self._checkpoint(item) for item in reversed(record["checkpoints"])]

    def get(self, checkpoint_id: str) -> Checkpoint:
        """One checkpoint: by number, tag, ``latest``, ``@-2``, or a time. Raises
        `CheckpointUnknown`."""
        return self._checkpoint(self._asking.ask("get", {"checkpoint": checkpoint_id}))

    def delete(self, *checkpoint_ids: str) -> None:
        """Delete checkpoints and what only they held: all of them, or none if one is pinned. A tag
        does not keep one from being deleted: who calls this is asked nothing."""
        record = self._asking.ask("delete", {"checkpoints": builtins.list(checkpoint_ids)})
        self._asking.emit(CheckpointEvent.CHECKPOINTS_PRUNED, {"ids": _ids(record)})

    def tag(self, checkpoint_id: str, tag: str | None, *, move: bool = False) -> Checkpoint:
        """Give a checkpoint a tag; with None, take its tag away. ``move`` takes it from another."""
        asked = {"checkpoint": checkpoint_id, "tag": tag or "", "move": move}
        (found,) = self._asking.ask("tag", asked)["checkpoints"]
        return self.get(str(found["id"]))

    def pin(self, *checkpoint_ids: str) -> None:
        """Keep checkpoints from expiring and from being deleted."""
        self._asking.ask("pin", {"checkpoints": builtins.list(checkpoint_ids)})

    def unpin(self, *checkpoint_ids: str) -> None:
        self._asking.ask("unpin", {"checkpoints": builtins.list(checkpoint_ids)})

    def prune(self, *, dry_run: bool = False) -> builtins.list[PruneDecision]:
        """Let checkpoints expire as the workspace's settings say."""
        record = self._asking.ask("prune", {"dry_run": dry_run})
        found = [
            PruneDecision(str(item["id"]), item["keep"], item["reason"])
            for item in record["checkpoints"]
        ]
        gone = [item.id for item in found if not item.keep]
        if gone and not dry_run:
            self._asking.emit(CheckpointEvent.CHECKPOINTS_PRUNED, {"ids": gone})
        return found

    # -- differences -------------------------------------------------------------------------------

    def diff(
        self,
        from_id: str | None = None,
        to_id: str | None = None,
        *,
        paths: AnyPath | Sequence[AnyPath] | None = None,
        times: bool = False,
    ) -> CheckpointDiff:
        """What differs between two checkpoints, or between one and now.

        Without ``from_id`` it is the checkpoint that the workspace goes on from. ``paths``, one or
        several, limit it. ``times`` lists files too of which nothing but the time changed.
        """
        asked: JsonObject = {
            "older": from_id or "",
            "newer": to_id or "",
            "times": times,
            **self._limited(paths, "compare"),
        }
        return diff_of(self._asking.ask("diff", asked), lambda: self._asking.text("diff", asked))

    def show(self, checkpoint_id: str, *, times: bool = False) -> CheckpointDiff:
        """What a checkpoint changed."""
        asked: JsonObject = {"checkpoint": checkpoint_id, "times": times}
        return diff_of(self._asking.ask("show", asked), lambda: self._asking.text("show", asked))

    def log(self, path: AnyPath) -> builtins.list[FileVersion]:
        """Every checkpoint in which a path, or anything below it, changed; newest first."""
        (inside,) = self._inside([path])
        return [
            self._version(item) for item in self._asking.ask("log", {"path": inside})["versions"]
        ]

    def restores(self) -> builtins.list[JsonObject]:
        """The log of restores, oldest first."""
        found: builtins.list[JsonObject] = self._asking.ask("restores")["restores"]
        return found

    # -- going back --------------------------------------------------------------------------------

    def restore(
        self,
        checkpoint_id: str,
        paths: AnyPath | Sequence[AnyPath] | None = None,
        dry_run: bool = False,
        *,
        token: str = "",
        backup: bool = True,
        files: bool = True,
        state: bool = True,
        only_changed_by: str = "",
    ) -> RestoreResult:
        """Make the workspace, or some paths of it, what it was, and hand back the state documents.

        ``paths`` is one or several; None is all, and an empty list is an error.
        What it is now becomes a checkpoint first, which `undo` goes back to, unless ``backup`` is
        False. With ``token`` of a dry run it is refused (`TreeMoved`) if anything changed since.
        ``files=False`` hands back the state only; ``state=False`` restores the files only.
        ``only_changed_by`` a session, process or command: what others changed too stays, and is
        listed in ``skipped``.
        """
        asked: JsonObject = {
            "checkpoint": checkpoint_id,
            "token": token,
            "backup": backup,
            "files": files,
            "state": state,
            "only": only_changed_by,
            **self._limited(paths, "restore"),
        }
        return self._go("restore", asked, dry_run=dry_run)

    def rewind(self, steps: int = 1, dry_run: bool = False) -> RestoreResult:
        """Go back a number of checkpoints along the way that led here."""
        return self._go("rewind", {"steps": steps}, dry_run=dry_run)

    def undo(
        self, dry_run: bool = False, *, token: str = "", if_unchanged: bool = False
    ) -> RestoreResult:
        """Take back the last restore: all, or the paths that it was of.

        What changed there since goes, too (and is a checkpoint then). With ``if_unchanged`` it is
        refused (`NotConfirmed`) if anything changed since that restore, with ``token`` of a dry run
        (`TreeMoved`) if anything changed since that.
        """
        asked = {"back": "undo", "token": token, "if_unchanged": if_unchanged}
        return self._go("undo", asked, dry_run=dry_run)

    def redo(
        self, dry_run: bool = False, *, token: str = "", if_unchanged: bool = False
    ) -> RestoreResult:
        """Take back the last undo; the rest as in `undo`."""
        asked = {"back": "redo", "token": token, "if_unchanged": if_unchanged}
        return self._go("redo", asked, dry_run=dry_run)

    def state(self, checkpoint_id: str) -> dict[str, Any]:
        """The state documents of a checkpoint."""
        with self._asking.session() as session:
            return transfer.fetch(session, checkpoint_id)

    # -- the store ---------------------------------------------------------------------------------

    def status(self) -> WorkspaceStatus:
        """Where the workspace is and how much it has."""
        with self._asking.session() as session:
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

    def compact(self) -> Compacted:
        """Give free room back to the disk; the size of the store's file before and after."""
        record = self._asking.ask("compact")
        return Compacted(record["before_bytes"], record["after_bytes"])

    def purge(self, *paths: AnyPath, dry_run: bool = False) -> JsonObject:
        """Remove files from the workspace and every checkpoint, for ever."""
        asked = {**self._limited(paths, "purge"), "dry_run": dry_run}
        return self._asking.ask("purge", asked)

    def check(self, *, deep: bool = False) -> builtins.list[str]:
        """What is wrong with the store; empty if nothing is. ``deep`` reads every block."""
        found = self._asking.ask("check", {"deep": deep})["problems"]
        return [f"{item['invariant']}: {item['message']}" for item in found]

    def export(self, dest: AnyPath, checkpoint_id: str | None = None) -> JsonObject:
        """Write a checkpoint, or the present state, into an absent or empty directory."""
        full = self._destination(dest)
        return self._asking.ask("export", {"dest": str(full), "checkpoint": checkpoint_id})

    def backup(self, dest: AnyPath) -> JsonObject:
        """Copy the store, with its whole history, into an absent or empty directory."""
        return self._asking.ask("backup", {"dest": str(self._destination(dest))})

    def import_from(self, source: AnyPath) -> JsonObject:
        """Fill the workspace from another directory, which is only read; a mounted one must be
        empty."""
        full = places.resolve(source)
        with self._asking.telling_errors():
            runtime.check_source(full)
            runtime.check_apart(full, self.workspace)
        return self._asking.ask("import", {"source": str(full), "merge": not self.mounted})

    def _destination(self, dest: AnyPath) -> Path:
        full = places.resolve(dest)
        with self._asking.telling_errors():
            runtime.check_apart(full, self.workspace)
            runtime.check_dest(full)
        return full

    def settings(self) -> dict[str, str]:
        """The workspace's settings, as `ckptfs config` lists them."""
        from ckptfs.history import settings

        with self._asking.telling_errors():
            store = runtime.require_store(self.workspace)
            files = [places.settings_file(), store / settings.FILE]
            return dict(settings.load(files).texts)

    def configure(self, name: str, value: str | None) -> None:
        """Change a setting of the workspace; None takes it back to the default."""
        from ckptfs.history import settings

        with self._asking.telling_errors():
            store = runtime.require_store(self.workspace)
            settings.store(store / settings.FILE, name, value)
        if name == "exclude.patterns":
            self._asking.ask("exclude")

    # -- tasks -------------------------------------------------------------------------------------

    def start_task(self, name: str) -> JsonObject:
        """Begin a task: checkpoints belong to it until it is done."""
        return self._asking.ask("task_start", {"name": name, **self._asking.caller()})

    def finish_task(self, message: str = "") -> JsonObject:
        """The task is done."""
        return self._asking.ask("task_done", {"message": message, **self._asking.caller()})

    def tasks(self) -> builtins.list[JsonObject]:
        """The tasks, and what each changed."""
        found: builtins.list[JsonObject] = self._asking.ask("task_list")["tasks"]
        return found

    def revert_task(self, name: str, *, force: bool = False, dry_run: bool = False) -> JsonObject:
        """Undo what a task changed and leave other tasks' files alone. Raises `TaskConflict` where
        others changed the same file, unless ``force``."""
        asked = {"name": name, "force": force, "dry_run": dry_run, **self._asking.caller()}
        return self._asking.ask("task_revert", asked)

    # -- values ------------------------------------------------------------------------------------

    def _go(self, op: str, asked: JsonObject, *, dry_run: bool = False) -> RestoreResult:
        return go(self._asking, op, asked, dry_run=dry_run, on_restore=self.config.on_restore)

    def _checkpoint(self, record: JsonObject) -> Checkpoint:
        number = str(record["id"])
        return checkpoint_of(record, lambda: self._files_of(number))

    def _files_of(self, number: str) -> builtins.list[str]:
        changes = self.show(number).changes
        return [item.path for item in changes if not item.is_directory or item.old_path]

    def _version(self, record: JsonObject) -> FileVersion:
        saved = record["checkpoint"]
        return FileVersion(
            change_of(record), None if saved is None else self._checkpoint(saved), record["writer"]
        )

    def _limited(self, paths: AnyPath | Sequence[AnyPath] | None, verb: str) -> JsonObject:
        """The argument that limits an operation to paths; none is sent where all is meant."""
        if paths is None:
            return {}
        with self._asking.telling_errors():
            found = place.listed(paths)
            if not found:
                raise no_paths(verb)
            return {"paths": self._inside(found)}

    def _inside(self, paths: Sequence[AnyPath]) -> builtins.list[str]:
        return place.inside(self.workspace.path, paths)


def _ids(record: JsonObject) -> builtins.list[str]:
    return [str(item["id"]) for item in record["checkpoints"]]


def _texts(numbers: Sequence[int]) -> builtins.list[str]:
    return [str(number) for number in numbers]
