"""Snapshots of a team on disk: one JSON file each, in ``ckptfs/TEAM/`` of the data directory.

A snapshot names the checkpoint of each member's workspace, and holds the bytes of the team's files.
It is written under another name, synced and renamed, so it is there or it is not. A snapshot that
another user owns is refused: others may be able to write to the data directory.
"""

from __future__ import annotations

import json
import os
import secrets
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from ckptfs.errors import SnapshotUnknown, TeamInvalid
from ckptfs.team import files, trust

_VERSION = 1
JsonObject = dict[str, Any]

MANUAL = "manual"
BEFORE_RESTORE = "before restore"
_WORDS = {"latest": MANUAL, "before": BEFORE_RESTORE}


@dataclass(frozen=True)
class Part:
    """One workspace's part of a snapshot, and the members whose workspace it is."""

    members: list[str]
    workspace: str
    store: str
    checkpoint: int


@dataclass(frozen=True)
class Meta:
    """A snapshot as a list of snapshots shows it."""

    id: str
    team: str
    tag: str
    created_ns: int
    kind: str
    parts: list[Part]
    #: Members that have no workspace of ckptfs.
    without_workspace: list[str] = field(default_factory=list)
    #: How many files of each kind it has.
    counts: dict[str, int] = field(default_factory=dict)
    #: Files that are no JSON, or cannot be state: path and reason.
    remarks: dict[str, str] = field(default_factory=dict)
    #: Messages that were being worked on.
    held: list[str] = field(default_factory=list)

    def record(self) -> JsonObject:
        """As JSON, also with the names that other systems use."""
        created = datetime.fromtimestamp(self.created_ns / 1e9, UTC).isoformat()
        return {**asdict(self), "teamName": self.team, "createdAt": created}


@dataclass(frozen=True)
class Snapshot:
    meta: Meta
    files: dict[str, bytes]


def new_id(now_ns: int) -> str:
    """Readable, sorted by time, and unique even within a microsecond."""
    moment = datetime.fromtimestamp(now_ns / 1e9, UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond:06d}Z-{secrets.token_hex(4)}"


def counts(contents: dict[str, bytes], team: str) -> dict[str, int]:
    found = dict.fromkeys(("config", "tasks", "events", "sessions", "costs", "inboxes"), 0)
    for path in contents:
        kind = files.kind_of(path, team)
        if kind is not None:
            found[kind] += 1
    return found


# ``directory`` is a descriptor of the directory of a team's snapshots; None if it has none.


def write(directory: int, snapshot: Snapshot) -> None:
    record = {
        "v": _VERSION,
        "meta": asdict(snapshot.meta),
        "files": [_packed(path, data) for path, data in snapshot.files.items()],
    }
    trust.write(directory, f"{snapshot.meta.id}.json", json.dumps(record).encode())


def delete(directory: int, number: str) -> None:
    trust.remove(directory, f"{number}.json")


def _packed(path: str, data: bytes) -> JsonObject:
    try:
        return {"path": path, "text": data.decode()}
    except UnicodeDecodeError:
        return {"path": path, "base64": b64encode(data).decode()}


def load(directory: int | None, team: str, number: str) -> Snapshot:
    """Read a snapshot; everything in it that becomes a path is checked."""
    path = f"ckptfs/{team}/{number}.json"
    if directory is None:
        raise SnapshotUnknown(team, number)
    try:
        record = json.loads(trust.read(directory, f"{number}.json", f"the snapshot {path}"))
        meta = _meta(record["meta"])
        contents = {
            item["path"]: b64decode(item["base64"]) if "base64" in item else item["text"].encode()
            for item in record["files"]
        }
    except FileNotFoundError as error:
        raise SnapshotUnknown(team, number) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TeamInvalid(f"the snapshot {path}", f"it is damaged ({error})") from error
    if record.get("v") != _VERSION:
        raise TeamInvalid(f"the snapshot {path}", "another version of ckptfs wrote it")
    if meta.id != number or meta.team != team:
        raise TeamInvalid(f"the snapshot {path}", f"it is one of team {meta.team!r}, {meta.id}")
    for name in contents:
        if files.kind_of(name, team) is None:
            raise TeamInvalid(f"the snapshot {path}", f"it has a file {name!r} that no team has")
    return Snapshot(meta, contents)


def _meta(record: JsonObject) -> Meta:
    parts = [Part(**part) for part in record["parts"]]
    return Meta(**{**record, "parts": parts})


def numbers(directory: int | None) -> list[str]:
    """The ids of all snapshots, oldest first."""
    found = [] if directory is None else os.listdir(directory)
    return sorted(name[:-5] for name in found if trust.is_snapshot(name.removesuffix(".json")))


def find(directory: int | None, team: str, name: str) -> Snapshot:
    """The snapshot of an id, the beginning of one, or a tag. ``latest`` is the last that a user
    took, ``before`` the state before the last restore."""
    known = numbers(directory)
    if not known:
        raise SnapshotUnknown(team, name, "the team has none")
    if name in _WORDS:
        wanted = of_kind(directory, team, _WORDS[name])
        if not wanted:
            raise SnapshotUnknown(team, name)
        return load(directory, team, wanted[-1])
    fitting = [number for number in known if number.startswith(name)] if name else []
    if not fitting:
        fitting = [number for number in known if _tag_of(directory, team, number) == name != ""]
    if not fitting:
        raise SnapshotUnknown(team, name)
    if len(fitting) > 1 and name not in fitting:
        raise SnapshotUnknown(team, name, f"it means several: {', '.join(fitting)}")
    return load(directory, team, name if name in fitting else fitting[0])


def of_kind(directory: int | None, team: str, kind: str) -> list[str]:
    """The ids of the snapshots of a kind, oldest first, without damaged ones."""
    found = []
    for number in numbers(directory):
        with suppress(TeamInvalid):
            if load(directory, team, number).meta.kind == kind:
                found.append(number)
    return found


def _tag_of(directory: int | None, team: str, number: str) -> str | None:
    try:
        return load(directory, team, number).meta.tag
    except TeamInvalid:
        return None
