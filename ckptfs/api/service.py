"""`CheckpointService`: the verbs of one workspace for programs.

Each call opens a session, asks and closes it, so a service holds nothing between calls: other
processes, the command line among them, use the same workspace meanwhile. Any thread may call.
"""

from __future__ import annotations

import builtins
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ckptfs import config as places
from ckptfs.api import merging
from ckptfs.api import workspace as workspaces
from ckptfs.api.values import (
    Checkpoint,
    CheckpointConfig,
    CheckpointDiff,
    CheckpointEvent,
    Compacted,
    Comparison,
    EventStream,
    FileVersion,
    Fork,
    Handler,
    MergeResult,
    PruneDecision,
    RestoreResult,
    State,
    WorkspaceStatus,
    change_of,
    checkpoint_of,
    diff_of,
    fork_of,
)
from ckptfs.api.workspace import Sessions, restore
from ckptfs.config import Workspace
from ckptfs.control import runtime, transfer
from ckptfs.control.client import Client
from ckptfs.errors import MergeConflict, NotMounted, no_paths
from ckptfs.linked import Linked
from ckptfs.service.arguments import JsonObject, malformed, metadata_of
from ckptfs.service.verbs import CALLER, find

log = logging.getLogger(__name__)

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
        self._sessions = Sessions(os.path.expanduser(workspace_dir), storage)
        self._mounted_here = False
        self._starting = threading.Lock()

    # -- its life ----------------------------------------------------------------------------------

    def initialize(self) -> WorkspaceStatus:
        """Make the workspace ready: mount it, or prepare its store and work on the directory.

        Mounts if the configuration wants it and the machine can; what is mounted already stays as
        it is. May be called again at any time.
        """
        with self._sessions.telling_errors(), self._starting:
            sessions = self._sessions
            made = workspaces.prepare(
                sessions.directory, sessions.storage, self.config, configured=self._configured
            )
            sessions.found = made.workspace
            self._mounted_here |= made.mounted_here
        status = self.status()
        self._sessions.emit(CheckpointEvent.INITIALIZED, {"mounted": status.mounted})
        return status

    def close(self) -> None:
        """Let go. The workspace stays mounted unless ``unmount_on_close`` was asked for."""
        if self._mounted_here and self.config.unmount_on_close:
            workspaces.unmount(self.workspace)
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
        return self._sessions.workspace

    @property
    def mounted(self) -> bool:
        """Whether a daemon serves the workspace now."""
        daemon = runtime.living(self.workspace)
        return daemon is not None and daemon.state == runtime.SERVING

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        """Call ``handler`` with each event of that kind that this service causes; returns the
        function that ends it. A handler that raises is logged and changes nothing."""
        return self._sessions.handlers.add(event, handler)

    def watch(self) -> EventStream:
        """What happens to the mounted workspace from now on, by whichever process."""
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
            **self._sessions.caller(),
        }
        if self.config.limit is not None:
            asked["max_checkpoints"] = self.config.limit
        with self._sessions.telling_errors():
            asked["metadata"] = metadata_of(metadata or {})
            with transfer.staged(self.workspace, state or {}) as staged:
                record = self._sessions.call("save", asked | {"state": staged} if staged else asked)
        return self._checkpoint(record)

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
        record = self._sessions.call("list", asked)
        return [self._checkpoint(item) for item in reversed(record["checkpoints"])]

    def get(self, checkpoint_id: str) -> Checkpoint:
        """One checkpoint: by number, tag, ``latest``, ``@-2``, or a time. Raises
        `CheckpointUnknown`."""
        return self._checkpoint(self._sessions.call("get", {"checkpoint": checkpoint_id}))

    def delete(self, *checkpoint_ids: str) -> None:
        """Delete checkpoints and what only they held: all of them, or none if one is pinned. A tag
        does not keep one from being deleted: a program is asked nothing."""
        self._sessions.call("delete", {"checkpoints": builtins.list(checkpoint_ids)})

    def tag(self, checkpoint_id: str, tag: str | None, *, move: bool = False) -> Checkpoint:
        """Give a checkpoint a tag; with None, take its tag away. ``move`` takes it from another."""
        asked = {"checkpoint": checkpoint_id, "tag": tag or "", "move": move}
        (found,) = self._sessions.call("tag", asked)["checkpoints"]
        return self.get(str(found["id"]))

    def pin(self, *checkpoint_ids: str) -> None:
        """Keep checkpoints from expiring and from being deleted."""
        self._sessions.call("pin", {"checkpoints": builtins.list(checkpoint_ids)})

    def unpin(self, *checkpoint_ids: str) -> None:
        self._sessions.call("unpin", {"checkpoints": builtins.list(checkpoint_ids)})

    def prune(self, *, dry_run: bool = False) -> builtins.list[PruneDecision]:
        """Let checkpoints expire as the workspace's settings say."""
        record = self._sessions.call("prune", {"dry_run": dry_run})
        return [
            PruneDecision(str(item["id"]), item["keep"], item["reason"])
            for item in record["checkpoints"]
        ]

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
        return diff_of(
            self._sessions.call("diff", asked), lambda: self._sessions.text("diff", asked)
        )

    def show(self, checkpoint_id: str, *, times: bool = False) -> CheckpointDiff:
        """What a checkpoint changed."""
        asked: JsonObject = {"checkpoint": checkpoint_id, "times": times}
        return diff_of(
            self._sessions.call("show", asked), lambda: self._sessions.text("show", asked)
        )

    def compare(self, *states: str) -> Comparison:
        """What two or more checkpoints, or forks as they are, changed since the newest state that
        all of them have in common."""
        record = self._sessions.call("compare", {"states": builtins.list(states)})
        return Comparison.from_record(record)

    def log(self, path: AnyPath) -> builtins.list[FileVersion]:
        """Every checkpoint in which a path, or anything below it, changed; newest first."""
        (inside,) = self._inside([path])
        return [
            self._version(item) for item in self._sessions.call("log", {"path": inside})["versions"]
        ]

    def restores(self) -> builtins.list[JsonObject]:
        """The log of restores, oldest first."""
        found: builtins.list[JsonObject] = self._sessions.call("restores")["restores"]
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

    def merge(
        self,
        checkpoint_id: str,
        paths: AnyPath | Sequence[AnyPath] | None = None,
        dry_run: bool = False,
        *,
        resolution: str = "",
        resolutions: Mapping[str, str] | None = None,
        token: str = "",
        driver: str | None = None,
    ) -> MergeResult:
        """Bring in what another state changed since it and the workspace had one in common.

        Raises `MergeConflict`, and changes nothing, if both sides changed the same things, unless
        ``resolution`` (``ours``, ``theirs`` or ``markers``), or ``resolutions`` by path, says what
        becomes of each. A dry run returns the conflicts instead. ``driver`` is a command that
        merges texts which conflict, instead of the setting `merge.driver`; an empty one is none.
        """
        asked: JsonObject = {
            "source": checkpoint_id,
            "resolution": resolution,
            "resolutions": dict(resolutions or {}),
            "token": token,
            "dry_run": dry_run,
            **self._limited(paths, "merge"),
        }
        with self._sessions.session() as session:
            record = merging.merge(session, self.workspace, asked, driver)
            result = MergeResult.from_record(record, dry_run=dry_run)
        open_conflicts = [each.path for each in result.conflicts if not each.resolution]
        if open_conflicts and not dry_run:
            raise MergeConflict(open_conflicts)
        return result

    def fork(
        self,
        name: str,
        *,
        start: str = "",
        at: AnyPath | None = None,
        without: Sequence[str] = (),
    ) -> CheckpointService:
        """Let a second line of work begin as this one is now, or as the checkpoint ``start``; the
        service of it, which is a workspace like any other. ``at`` is where to mount it, in place of
        the usual place; what matches a pattern of ``without`` is not in it."""
        asked: JsonObject = {"name": name, "start": start, "without": [*without]}
        if at is not None:
            asked["at"] = str(places.resolve(os.path.expanduser(at)))
        (made,) = self._sessions.call("fork", {**asked, **self._sessions.caller()})["forks"]
        return CheckpointService(made["path"])

    def forks(self) -> builtins.list[Fork]:
        """The forks of the workspace, in the order in which they were made."""
        return [fork_of(found) for found in self._sessions.call("forks")["forks"]]

    def delete_fork(self, name: str, *, force: bool = False) -> Checkpoint:
        """End a fork; the checkpoint of its last state, which stays for a day. Raises `ForkBusy`
        while a process is in it, unless ``force``."""
        asked = {"name": name, "force": force, **self._sessions.caller()}
        record, reason = self._linked().delete(asked)
        if reason:
            log.warning("git goes on listing the fork %s: %s", name, reason)
        return self.get(str(record["checkpoint"]))

    def rename_fork(self, name: str, new: str) -> None:
        """Give a fork another name, and with it another path unless it was made with ``at``."""
        self._linked().rename({"name": name, "new": new})

    def _linked(self) -> Linked:
        return Linked(self._sessions.call, self.workspace.path)

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
        with self._sessions.session() as session:
            return transfer.fetch(session, checkpoint_id)

    # -- the store ---------------------------------------------------------------------------------

    def status(self) -> WorkspaceStatus:
        """Where the workspace is and how much it has."""
        with self._sessions.session() as session:
            mounted = isinstance(session, Client)
            record = session.call("status" if mounted else "figures")
        known = ("pid", "version", "started_ns", "options")
        return WorkspaceStatus(
            workspace=str(self.workspace.path),
            store=str(self.workspace.store),
            mounted=mounted,
            checkpoints=record["checkpoint_count"],
            store_bytes=record["store_bytes"],
            inodes=record["inodes"],
            daemon={key: record[key] for key in known} if mounted else {},
        )

    def compact(self) -> Compacted:
        """Give free room back to the disk; the size of the store's file before and after."""
        record = self._sessions.call("compact")
        return Compacted(record["before_bytes"], record["after_bytes"])

    def purge(self, *paths: AnyPath, dry_run: bool = False) -> JsonObject:
        """Remove files from the workspace and every checkpoint, for ever."""
        asked = {**self._limited(paths, "purge"), "dry_run": dry_run}
        return self._sessions.call("purge", asked)

    def check(self, *, deep: bool = False) -> builtins.list[str]:
        """What is wrong with the store; empty if nothing is. ``deep`` reads every block."""
        found = self._sessions.call("check", {"deep": deep})["problems"]
        return [f"{item['invariant']}: {item['message']}" for item in found]

    def export(self, dest: AnyPath, checkpoint_id: str | None = None) -> JsonObject:
        """Write a checkpoint, or the present state, into an absent or empty directory."""
        full = self._destination(dest)
        return self._sessions.call("export", {"dest": str(full), "checkpoint": checkpoint_id})

    def backup(self, dest: AnyPath) -> JsonObject:
        """Copy the store, with its whole history, into an absent or empty directory."""
        return self._sessions.call("backup", {"dest": str(self._destination(dest))})

    def import_from(self, source: AnyPath) -> JsonObject:
        """Fill the workspace from another directory, which is only read; a mounted one must be
        empty."""
        full = places.resolve(source)
        with self._sessions.telling_errors():
            runtime.check_source(full)
            runtime.check_apart(full, self.workspace)
        return self._sessions.call("import", {"source": str(full), "merge": not self.mounted})

    def _destination(self, dest: AnyPath) -> Path:
        full = places.resolve(dest)
        with self._sessions.telling_errors():
            runtime.check_apart(full, self.workspace)
            runtime.check_dest(full)
        return full

    def settings(self) -> dict[str, str]:
        """The workspace's settings, as `ckptfs config` lists them."""
        from ckptfs.service import settings

        with self._sessions.telling_errors():
            return dict(settings.load(runtime.require_store(self.workspace)).texts)

    def configure(self, name: str, value: str | None) -> None:
        """Change a setting of the workspace; None takes it back to the default."""
        from ckptfs.service import settings

        with self._sessions.telling_errors():
            settings.change(runtime.require_store(self.workspace), name, value)
        if name == settings.PATTERNS:
            self._sessions.call("exclude")

    # -- tasks -------------------------------------------------------------------------------------

    def start_task(self, name: str) -> JsonObject:
        """Begin a task: checkpoints belong to it until it is done."""
        return self._sessions.call("task_start", {"name": name, **self._sessions.caller()})

    def finish_task(self, message: str = "") -> JsonObject:
        """The task is done."""
        return self._sessions.call("task_done", {"message": message, **self._sessions.caller()})

    def tasks(self) -> builtins.list[JsonObject]:
        """The tasks, and what each changed."""
        found: builtins.list[JsonObject] = self._sessions.call("task_list")["tasks"]
        return found

    def revert_task(self, name: str, *, force: bool = False, dry_run: bool = False) -> JsonObject:
        """Undo what a task changed and leave other tasks' files alone. Raises `TaskConflict` where
        others changed the same file, unless ``force``."""
        asked = {"name": name, "force": force, "dry_run": dry_run, **self._sessions.caller()}
        return self._sessions.call("task_revert", asked)

    # -- any verb ----------------------------------------------------------------------------------

    def call(self, verb: str, **arguments: Any) -> JsonObject:
        """The JSON answer of any verb, by its name and arguments on the wire (docs/API.md).
        A name that the verb does not take is a mistake (`UsageError`)."""
        with self._sessions.telling_errors():
            declared = find(verb)
            known = {parameter.name for parameter in (*declared.parameters, *CALLER)}
            for name in arguments:
                if name not in known:
                    reason = f"it takes no argument {name!r}"
                    raise malformed(verb, reason, declared.parameters)
            declared.decode(arguments)
        return self._sessions.call(verb, self._sessions.caller() | arguments)

    # -- values ------------------------------------------------------------------------------------

    def _go(self, op: str, asked: JsonObject, *, dry_run: bool = False) -> RestoreResult:
        return restore(
            self._sessions, op, asked, dry_run=dry_run, on_restore=self.config.on_restore
        )

    def _checkpoint(self, record: JsonObject) -> Checkpoint:
        number = str(record["id"])
        return checkpoint_of(record, lambda: self._files_of(number))

    def _files_of(self, number: str) -> builtins.list[str]:
        changes = self.show(number).changes
        return [item.path for item in changes if not item.is_directory or item.old_path]

    def _version(self, record: JsonObject) -> FileVersion:
        saved = record["saved"]
        return FileVersion(
            change_of(record), None if saved is None else self._checkpoint(saved), record["writer"]
        )

    def _limited(self, paths: AnyPath | Sequence[AnyPath] | None, verb: str) -> JsonObject:
        """The argument that limits an operation to paths; none is sent where all is meant."""
        if paths is None:
            return {}
        with self._sessions.telling_errors():
            found = workspaces.listed(paths)
            if not found:
                raise no_paths(verb)
            return {"paths": self._inside(found)}

    def _inside(self, paths: Sequence[AnyPath]) -> builtins.list[str]:
        return workspaces.inside(self.workspace.path, paths)
