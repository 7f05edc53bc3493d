"""PraisonAI's `CheckpointService` on ours: the names, arguments and results of its package
`praisonaiagents.checkpoints`, without git and without a copy of every file.

    from ckptfs.compat.praisonai import CheckpointService

    service = CheckpointService(workspace_dir="/path/to/project")
    await service.initialize()
    result = await service.save("before refactoring")
    await service.restore(result.checkpoint.id)

What fails is a result with ``success`` False and ``error``, as there; nothing raises. `install`
has PraisonAI's own code use it. What differs: an id is a number; the initial checkpoint has the
files that were there, not none; `.git`, `.env`, `node_modules` and files of any size are part of a
checkpoint. Needs nothing of PraisonAI.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

from ckptfs.api import Checkpoint as Saved
from ckptfs.api import CheckpointConfig as Wanted
from ckptfs.api import CheckpointDiff as Difference
from ckptfs.api import CheckpointService as Service
from ckptfs.api.awaited import in_thread
from ckptfs.errors import CkptfsError

log = logging.getLogger(__name__)

NOT_INITIALIZED = "Service not initialized"
NO_CHANGES = "No changes to checkpoint"

#: How a step is written into a message.
_STEP = re.compile(r"^\[step-(\d+)\]\s*", re.ASCII)
#: What PraisonAI itself keeps in a workspace, sessions above all, goes back with no restore.
_EXCLUDED = [".praisonai/"]


class CheckpointEvent(StrEnum):
    """What handlers hear of. Equal to PraisonAI's own by their values."""

    INITIALIZED = "initialized"
    CHECKPOINT_CREATED = "checkpoint_created"
    CHECKPOINT_RESTORED = "checkpoint_restored"
    CHECKPOINTS_PRUNED = "checkpoints_pruned"
    ERROR = "error"


@dataclass
class CheckpointConfig:
    """What a service was made with. ``user_name``, ``user_email`` and ``max_file_size`` are git's
    there and mean nothing here."""

    workspace_dir: str
    storage_dir: str | None = None
    enabled: bool = True
    auto_checkpoint: bool = True
    max_checkpoints: int = 100
    user_name: str = "PraisonAI Checkpoints"
    user_email: str = "checkpoints@praison.ai"
    max_file_size: int = 2 * 1024 * 1024
    exclude_patterns: list[str] = field(default_factory=lambda: list(_EXCLUDED))

    def __post_init__(self) -> None:
        self.workspace_dir = os.path.expanduser(self.workspace_dir)
        if self.storage_dir:
            self.storage_dir = os.path.expanduser(self.storage_dir)

    def get_checkpoint_dir(self) -> str | None:
        """The store, if it is not where ckptfs itself puts it: one of several in that directory."""
        if not self.storage_dir:
            return None
        name = hashlib.sha256(os.fsencode(self.workspace_dir)).hexdigest()[:12]
        return os.path.join(self.storage_dir, name)


@dataclass
class Checkpoint:
    """A checkpoint. ``files_changed``, ``insertions`` and ``deletions`` are 0, as there."""

    id: str
    short_id: str
    message: str
    timestamp: datetime
    files_changed: int = 0
    insertions: int = 0
    deletions: int = 0
    step: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "timestamp": self.timestamp.isoformat()}


@dataclass
class FileDiff:
    """What changed in a file; ``status`` is added, modified or deleted."""

    path: str
    absolute_path: str
    status: str
    additions: int = 0
    deletions: int = 0
    before_content: str | None = None
    after_content: str | None = None

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        return {key: found[key] for key in found if not key.endswith("_content")}


@dataclass
class CheckpointDiff:
    """What changed between two checkpoints; ``to_checkpoint`` None is the workspace as it is."""

    from_checkpoint: str
    to_checkpoint: str | None
    files: list[FileDiff] = field(default_factory=list)
    total_additions: int = 0
    total_deletions: int = 0

    def __post_init__(self) -> None:
        self.total_additions = sum(file.additions for file in self.files)
        self.total_deletions = sum(file.deletions for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "files": [file.to_dict() for file in self.files]}


@dataclass
class CheckpointResult:
    """What became of a call."""

    success: bool
    checkpoint: Checkpoint | None = None
    error: str | None = None

    @classmethod
    def ok(cls, checkpoint: Checkpoint) -> CheckpointResult:
        return cls(success=True, checkpoint=checkpoint)

    @classmethod
    def fail(cls, error: str) -> CheckpointResult:
        return cls(success=False, error=error)


class CheckpointService:
    """The checkpoints of one workspace, by PraisonAI's names.

    The workspace may be mounted or a plain directory. ``mount`` mounts it in `initialize`: not by
    default, since a process that stands in the directory would go on below the mount.
    """

    def __init__(
        self,
        workspace_dir: str,
        storage_dir: str | None = None,
        enabled: bool = True,
        auto_checkpoint: bool = True,
        max_checkpoints: int = 100,
        user_name: str = "PraisonAI Checkpoints",
        user_email: str = "checkpoints@praison.ai",
        max_file_size: int = 2 * 1024 * 1024,
        *,
        mount: bool = False,
    ) -> None:
        self.config = CheckpointConfig(
            os.fspath(workspace_dir),
            storage_dir,
            enabled,
            auto_checkpoint,
            max_checkpoints,
            user_name,
            user_email,
            max_file_size,
        )
        self._mount = mount
        self._service: Service | None = None
        self._handlers: dict[str, list[Callable[[Any], object]]] = {}

    @property
    def workspace_dir(self) -> str:
        return self.config.workspace_dir

    @property
    def checkpoint_dir(self) -> str:
        """Where the store is."""
        if self._service is not None:
            return str(self._service.workspace.store)
        return self.config.get_checkpoint_dir() or ""

    @property
    def is_initialized(self) -> bool:
        return self._service is not None

    def on(self, event: CheckpointEvent | str, handler: Callable[[Any], object]) -> None:
        """Call ``handler`` with what belongs to each event of that kind."""
        self._handlers.setdefault(_value(event), []).append(handler)

    def _emit(self, event: CheckpointEvent, data: Any = None) -> None:
        for handler in self._handlers.get(event.value, ()):
            try:
                handler(data)
            except Exception as error:  # noqa: BLE001 a handler's failure is not ours
                log.warning("A handler of %s failed: %s", event.value, error)

    # -- what is awaited ---------------------------------------------------------------------------

    async def initialize(self) -> bool:
        """Make the workspace ready; False, with the reason in the log, if that cannot be."""
        if not self.config.enabled:
            return False
        try:
            self._service = await in_thread(self._made)()
        except CkptfsError as error:
            log.error("%s %s", error.message, error.hint)
            self._emit(CheckpointEvent.ERROR, {"error": error.message})
            return False
        self._emit(CheckpointEvent.INITIALIZED, {"workspace": self.workspace_dir})
        return True

    async def save(
        self, message: str, allow_empty: bool = False, step: int | None = None
    ) -> CheckpointResult:
        """Take a checkpoint; no success if nothing changed, unless ``allow_empty``. One with a
        ``step`` is found by `restore` with that step."""
        if step is not None and step < 0:
            return CheckpointResult.fail("step must be a non-negative integer")
        if step is not None:
            message = f"[step-{step}] {_STEP.sub('', message)}"
        result = await self._attempt(lambda service: _save(service, message, allow_empty))
        if result.success:
            self._emit(CheckpointEvent.CHECKPOINT_CREATED, result.checkpoint)
        return result

    async def restore(
        self, checkpoint_id: str | None = None, step: int | None = None
    ) -> CheckpointResult:
        """Make the workspace what it was. What it is now becomes a checkpoint first."""
        if self._service is None:
            return CheckpointResult.fail(NOT_INITIALIZED)
        if checkpoint_id is not None and step is not None:
            return CheckpointResult.fail("Provide either checkpoint_id or step, not both")
        if step is not None:
            found = await self.get_checkpoint_by_step(step)
            if found is None:
                return CheckpointResult.fail(f"No checkpoint found for step {step}")
            checkpoint_id = found.id
        if checkpoint_id is None:
            return CheckpointResult.fail("No checkpoint id or step provided")
        wanted = checkpoint_id
        result = await self._attempt(lambda service: _restore(service, wanted))
        if result.success:
            self._emit(CheckpointEvent.CHECKPOINT_RESTORED, result.checkpoint)
        return result

    async def rewind(self, steps: int = 1) -> CheckpointResult:
        """Restore the checkpoint that is so many before the newest of `list_checkpoints`."""
        if self._service is None:
            return CheckpointResult.fail(NOT_INITIALIZED)
        if steps < 1:
            return CheckpointResult.fail("steps must be >= 1")
        found = await self.list_checkpoints(steps + 1)
        if steps >= len(found):
            return CheckpointResult.fail(
                f"Cannot rewind {steps} step(s): only {len(found)} checkpoint(s) available"
            )
        return await self.restore(found[steps].id)

    async def diff(self, from_id: str | None = None, to_id: str | None = None) -> CheckpointDiff:
        """What changed between two checkpoints, or one and now. Without ``from_id`` it is the one
        before the newest."""
        if self._service is None:
            return CheckpointDiff("", "")
        if from_id is None:
            found = await self.list_checkpoints(2)
            from_id = found[-1].id if found else None
        try:
            differs = await in_thread(self._service.diff)(from_id, to_id)
            files = await in_thread(_files)(differs, self.workspace_dir)
        except CkptfsError as error:
            log.error("%s", error.message)
            return CheckpointDiff("", "")
        return CheckpointDiff(from_id or "", to_id, files)

    async def list_checkpoints(self, limit: int = 50) -> list[Checkpoint]:
        """The checkpoints that were saved on the way that led here, newest first."""
        if self._service is None:
            return []
        try:
            return (await in_thread(_lineage)(self._service))[:limit]
        except CkptfsError as error:
            log.error("%s", error.message)
            return []

    async def get_checkpoint(self, checkpoint_id: str) -> Checkpoint | None:
        if self._service is None:
            return None
        try:
            return _checkpoint(await in_thread(self._service.get)(checkpoint_id))
        except CkptfsError:
            return None

    async def get_checkpoint_by_step(self, step: int) -> Checkpoint | None:
        """The newest one of that step."""
        found = await self.list_checkpoints(self.config.max_checkpoints)
        return next((item for item in found if item.step == step), None)

    async def cleanup(self) -> None:
        """Let go; the history stays."""
        if self._service is not None:
            await in_thread(self._service.close)()
        self._service = None

    async def delete_all(self) -> bool:
        """Delete every checkpoint that is not pinned, and let go."""
        if self._service is not None:
            try:
                await in_thread(_delete_all)(self._service)
            except CkptfsError as error:
                log.error("%s", error.message)
                return False
        await self.cleanup()
        return True

    # -- how ---------------------------------------------------------------------------------------

    def _made(self) -> Service:
        wanted = Wanted(
            auto_checkpoint=self.config.auto_checkpoint,
            exclude_patterns=self.config.exclude_patterns,
            mount=self._mount,
        )
        service = Service(self.workspace_dir, self.config.get_checkpoint_dir(), wanted)
        service.initialize()
        if not _lineage(service):
            service.save("Initial checkpoint", allow_empty=True)
        return service

    async def _attempt(self, deed: Callable[[Service], CheckpointResult]) -> CheckpointResult:
        if self._service is None:
            return CheckpointResult.fail(NOT_INITIALIZED)
        try:
            return await in_thread(deed)(self._service)
        except CkptfsError as error:
            text = " ".join(filter(None, (error.message, error.hint)))
            self._emit(CheckpointEvent.ERROR, {"error": text})
            return CheckpointResult.fail(text)


def install() -> None:
    """Have PraisonAI's own code take this service wherever it makes one; before it does."""
    from importlib import import_module

    package = import_module("praisonaiagents.checkpoints")
    service = import_module("praisonaiagents.checkpoints.service")
    here = sys.modules[__name__]
    for module in (package, service):
        module.CheckpointService = here.CheckpointService  # type: ignore[attr-defined]


def _value(event: CheckpointEvent | str) -> str:
    return str(event.value) if isinstance(event, Enum) else event


def _checkpoint(saved: Saved) -> Checkpoint:
    found = _STEP.match(saved.message)
    step = int(found.group(1)) if found else None
    return Checkpoint(saved.id, saved.id, saved.message, saved.timestamp, step=step)


def _save(service: Service, message: str, allow_empty: bool) -> CheckpointResult:
    saved = service.save(message, allow_empty=allow_empty)
    return CheckpointResult.ok(_checkpoint(saved)) if saved.created else _NOTHING


_NOTHING = CheckpointResult.fail(NO_CHANGES)


def _restore(service: Service, checkpoint_id: str) -> CheckpointResult:
    return CheckpointResult.ok(
        _checkpoint(service.get(service.restore(checkpoint_id).checkpoint_id))
    )


def _lineage(service: Service) -> list[Checkpoint]:
    """Those that were saved by hand and that the workspace came by: not what a restore of
    everything left behind, as a reset of git leaves it."""
    left: list[tuple[int, int]] = []
    newest = sys.maxsize
    for entry in reversed(service.restores()):
        if not entry["paths"] and entry["before"] <= newest:
            left.append((entry["checkpoint"], entry["before"]))
            newest = entry["checkpoint"]
    return [
        _checkpoint(saved)
        for saved in service.list()
        if saved.kind == "manual"
        and not any(target < int(saved.id) <= before for target, before in left)
    ]


def _delete_all(service: Service) -> None:
    found = [saved.id for saved in service.list() if not saved.pinned]
    if found:
        service.delete(*found)


def _files(differs: Difference, workspace: str) -> list[FileDiff]:
    lines = _line_counts(differs.diff_content)
    status = {
        **dict.fromkeys(differs.added_files, "added"),
        **dict.fromkeys(differs.modified_files, "modified"),
        **dict.fromkeys(differs.deleted_files, "deleted"),
        **{new: "modified" for _, new in differs.renamed_files},
    }
    return [
        FileDiff(path, str(Path(workspace, path)), status[path], *lines.get(path, (0, 0)))
        for path in sorted(status)
    ]


def _line_counts(text: str) -> dict[str, tuple[int, int]]:
    """By path, how many lines a diff adds and takes away."""
    found: dict[str, tuple[int, int]] = {}
    path, in_hunk, old = "", False, ""
    for line in text.split("\n"):
        if line.startswith("diff --git "):
            in_hunk = False
        elif line.startswith("@@"):
            in_hunk = True
        elif not in_hunk and line.startswith("--- "):
            old = line[4:].rstrip("\t").removeprefix("a/")
        elif not in_hunk and line.startswith("+++ "):
            new = line[4:].rstrip("\t")
            path = old if new == "/dev/null" else new.removeprefix("b/")
            found[path] = (0, 0)
        elif in_hunk and line[:1] in ("+", "-"):
            added, gone = found[path]
            found[path] = (added + (line[0] == "+"), gone + (line[0] == "-"))
    return found
