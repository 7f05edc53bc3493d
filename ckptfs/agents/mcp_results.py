"""What the tools answer: structured, and small enough for a model to read.

Lists and texts are cut at a limit, and say so. Names whose bytes are no UTF-8 get replacement
characters, since JSON between programs has no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel, Field

from ckptfs.api import Checkpoint, CheckpointDiff, RestoreResult
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


def restore(found: RestoreResult) -> Restore:
    if found.dry_run:
        following = "Nothing was changed. Call again with confirm=true and this token to restore."
    else:
        following = f"To take it back, restore checkpoint {found.before_id}."
    lists = (found.added_files, found.modified_files, found.deleted_files)
    added, modified, deleted = (_some(paths) for paths in lists)
    return Restore(
        checkpoint_id=found.checkpoint_id,
        done=not found.dry_run,
        added=added,
        modified=modified,
        deleted=deleted,
        total=sum(map(len, lists)),
        token=found.token,
        undo_id=found.before_id,
        next=following,
    )


def _some(paths: Sequence[str]) -> list[str]:
    return [text(path) for path in paths[:NAMED_MAX]]


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
