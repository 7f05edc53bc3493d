"""What the tools answer: values small enough for a model to read, made of what the API returns.

Lists and texts are cut at a limit, and say so. Names whose bytes are no UTF-8 get replacement
characters, since JSON between programs has no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from ckptfs import api
from ckptfs.api import Checkpoint, CheckpointDiff, MergeResult, RestoreResult
from ckptfs.api.values import FileChange, FileVersion, WorkspaceStatus

#: How many paths one list names, and how many characters of a diff are sent, unless told otherwise.
NAMED_MAX = 200
TEXT_MAX = 20_000


class CheckpointInfo(BaseModel):
    id: str
    message: str
    time: datetime
    kind: str = Field(description="manual, auto, hook, run, task, mount, offline or restore")
    tag: str = ""
    pinned: bool = False
    metadata: dict[str, str] = {}
    created: bool = Field(True, description="false if nothing had changed since this one")


class Change(BaseModel):
    path: str
    old_path: str | None = Field(None, description="where it was, if it was renamed")
    how: list[str] = Field(description="added, deleted, renamed, modified, mode, owner, ...")


class CheckpointList(BaseModel):
    checkpoints: list[CheckpointInfo] = Field(description="newest first")
    more: bool = Field(description="whether there are older ones")


class Difference(BaseModel):
    from_id: str | None = Field(description="null: before the first checkpoint")
    to_id: str | None = Field(description="null: the workspace as it is now")
    total: int = Field(description="how many paths differ")
    changes: list[Change] = Field(description="the first of them")
    diff: str = Field("", description="as `git diff` shows it; may be cut off")
    truncated: bool = Field(description="whether `changes` or `diff` is cut off")


class CheckpointDetails(BaseModel):
    checkpoint: CheckpointInfo
    difference: Difference = Field(description="against the checkpoint it came from")


class Restore(BaseModel):
    checkpoint_id: str
    done: bool = Field(description="false: a dry run, nothing was changed")
    added: list[str]
    modified: list[str]
    deleted: list[str]
    total: int = Field(description="how many paths are concerned; the lists may be cut off")
    token: str = Field("", description="of a dry run: restores only if nothing changed since")
    undo_id: str | None = Field(None, description="the checkpoint of the state before")
    next: str = Field(description="what to do now")


class ForkInfo(BaseModel):
    name: str
    path: str = Field(description="work there; empty if it is not mounted")
    base_id: str | None = Field(description="the checkpoint where it parted")
    changed: int = Field(description="how many paths changed in it since")


class Forks(BaseModel):
    forks: list[ForkInfo]


class DeletedFork(BaseModel):
    done: bool = Field(description="false: nothing was changed")
    fork: ForkInfo
    checkpoint_id: str | None = Field(None, description="has its last state, for a day")
    next: str = Field(description="what to do now")


class ComparedState(BaseModel):
    name: str
    paths_changed: int
    lines_added: int
    lines_removed: int
    runs: list[str] = Field(description="the commands that were last run there, and how they ended")


class ComparedPath(BaseModel):
    path: str
    changed_by: list[str]
    alike: bool = Field(description="whether those that changed it made the same of it")


class Comparison(BaseModel):
    base_id: str | None = Field(description="what all have in common; null: the beginning")
    states: list[ComparedState]
    paths: list[ComparedPath] = Field(description="those that several changed come first")
    total: int = Field(description="how many paths were changed; the list may be cut off")


class Conflict(BaseModel):
    path: str
    kind: str = Field(description="content, binary, added, deleted here, deleted there, ...")
    resolution: str = Field(description="ours, theirs, markers or driver; empty: not decided")


class Merge(BaseModel):
    done: bool = Field(description="false: a dry run, or conflicts; nothing was changed")
    added: list[str]
    modified: list[str]
    deleted: list[str]
    total: int = Field(description="how many paths are concerned; the lists may be cut off")
    conflicts: list[Conflict]
    token: str = Field("", description="of a dry run: merges only if nothing changed since")
    undo_id: str | None = Field(None, description="the checkpoint of the state before")
    next: str = Field(description="what to do now")


class Tried(BaseModel):
    exit_code: int
    checkpoint_id: str = Field(description="has what the command left, for a day")
    changes: list[Change] = Field(description="what it changed; the first of them")
    total: int = Field(description="how many paths it changed")
    output: str = Field(description="what it printed; the end of it, if that is long")
    next: str = Field(description="what to do now")


class Version(BaseModel):
    checkpoint: CheckpointInfo | None = Field(description="null: not saved yet")
    path: str
    old_path: str | None = None
    how: list[str]
    size: int | None = None
    writer: str = Field("", description="the command that wrote it, if that is known")


class FileHistory(BaseModel):
    path: str
    versions: list[Version] = Field(description="newest first")
    more: bool


class Status(BaseModel):
    workspace: str
    mounted: bool
    checkpoints: int
    entries: int
    store: str
    store_bytes: int
    unsaved: int = Field(description="how many paths changed since the last checkpoint")
    history: str = Field(description="where checkpoints can be read as directories; empty if not")


# -- from what the API returns ---------------------------------------------------------------------


def text(raw: str) -> str:
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def checkpoint(found: Checkpoint) -> CheckpointInfo:
    return CheckpointInfo(
        id=found.id,
        message=text(found.message),
        time=found.timestamp,
        kind=found.kind,
        tag=text(found.tag),
        pinned=found.pinned,
        metadata={text(key): text(value) for key, value in found.metadata.items()},
        created=found.created,
    )


def change(found: FileChange) -> Change:
    old = None if found.old_path is None else text(found.old_path)
    return Change(path=text(found.path), old_path=old, how=list(found.kinds))


def difference(found: CheckpointDiff, most: int, *, content: bool) -> Difference:
    shown = text(found.diff_content) if content else ""
    return Difference(
        from_id=found.from_id,
        to_id=found.to_id,
        total=len(found.changes),
        changes=[change(item) for item in found.changes[:NAMED_MAX]],
        diff=shown[:most],
        truncated=len(found.changes) > NAMED_MAX or len(shown) > most,
    )


def restore(found: RestoreResult, remarks: Sequence[str]) -> Restore:
    if found.dry_run:
        following = "Nothing was changed. Call again with confirm=true and this token to restore."
    else:
        following = f"To take it back, restore checkpoint {found.before_id}."
    if not found.paths_known:
        following = f"What it changed could not be found out. {following}"
    lists = (found.added_paths, found.modified_paths, found.deleted_paths)
    added, modified, deleted = (some(paths) for paths in lists)
    return Restore(
        checkpoint_id=found.checkpoint_id,
        done=not found.dry_run,
        added=added,
        modified=modified,
        deleted=deleted,
        total=sum(map(len, lists)),
        token=found.token,
        undo_id=found.before_id,
        next=" ".join([following, *remarks]),
    )


def some(paths: Sequence[str]) -> list[str]:
    return [text(path) for path in paths[:NAMED_MAX]]


def fork(found: dict[str, Any]) -> ForkInfo:
    base = found["base_id"]
    return ForkInfo(
        name=text(found["name"]),
        path=text(found["path"]),
        base_id=None if base is None else str(base),
        changed=found["added"] + found["modified"] + found["deleted"],
    )


def comparison(found: api.Comparison) -> Comparison:
    paths = sorted(found.paths, key=lambda each: len(each.changed_by) < 2)
    return Comparison(
        base_id=found.base_id,
        states=[
            ComparedState(
                name=text(state.name),
                paths_changed=state.added + state.modified + state.deleted,
                lines_added=state.lines_added,
                lines_removed=state.lines_removed,
                runs=[f"{text(run['command'])}: {run['exit_code']}" for run in state.runs],
            )
            for state in found.states
        ],
        paths=[
            ComparedPath(
                path=text(each.path),
                changed_by=list(map(text, each.changed_by)),
                alike=each.alike,
            )
            for each in paths[:NAMED_MAX]
        ],
        total=len(paths),
    )


def merge(found: MergeResult) -> Merge:
    lists = (found.added_paths, found.modified_paths, found.deleted_paths)
    added, modified, deleted = (some(paths) for paths in lists)
    return Merge(
        done=found.changed,
        added=added,
        modified=modified,
        deleted=deleted,
        total=sum(map(len, lists)),
        conflicts=[
            Conflict(path=text(each.path), kind=each.kind, resolution=each.resolution)
            for each in found.conflicts[:NAMED_MAX]
        ],
        token=found.token,
        undo_id=found.before_id,
        next=_after_merge(found),
    )


def _after_merge(found: MergeResult) -> str:
    if found.changed:
        return f"To take it back, restore checkpoint {found.before_id}."
    if any(not each.resolution for each in found.conflicts):
        return (
            "Nothing was changed. Call again with confirm=true, this token and a resolution: "
            "markers, ours or theirs; for single paths with resolutions."
        )
    if found.dry_run and (found.added_paths or found.modified_paths or found.deleted_paths):
        return "Nothing was changed. Call again with confirm=true and this token to merge."
    return "There is nothing to merge."


def version(found: FileVersion) -> Version:
    changed = change(found.change)
    return Version(
        checkpoint=None if found.checkpoint is None else checkpoint(found.checkpoint),
        path=changed.path,
        old_path=changed.old_path,
        how=changed.how,
        size=(found.change.new or {}).get("size"),
        writer=text(str((found.writer or {}).get("command", ""))),
    )


def status(found: WorkspaceStatus, unsaved: int) -> Status:
    return Status(
        workspace=text(found.workspace),
        mounted=found.mounted,
        checkpoints=found.checkpoints,
        entries=found.inodes,
        store=text(found.store),
        store_bytes=found.store_bytes,
        unsaved=unsaved,
        history=text(f"{found.workspace}/.checkpoints") if found.mounted else "",
    )
