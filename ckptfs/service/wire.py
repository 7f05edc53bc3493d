"""The wire form of what verbs answer: values of `history` and `sync` as JSON objects.

Each value has one form, whichever verb, event or tool tells of it, and one name has one type in all
of them: ``added`` is a number, ``added_paths`` a list. Fields may be added; none changes its
meaning. Names of files are strings with surrogate escapes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ckptfs import interrupts
from ckptfs.history.diff.compare import count_changes
from ckptfs.service.arguments import JsonObject, OnProgress

if TYPE_CHECKING:
    from ckptfs.history import Checkpoint, Restored
    from ckptfs.history.authors import LeftAlone
    from ckptfs.history.collisions import Collision
    from ckptfs.history.damage import Affected
    from ckptfs.history.diff.compare import Difference, End
    from ckptfs.history.diff.patch import Found, Pair
    from ckptfs.history.diff.tree import Change
    from ckptfs.history.log import Version
    from ckptfs.history.purge_plan import Doomed
    from ckptfs.history.tasks import RevertPlan, Task
    from ckptfs.model import Inode
    from ckptfs.store.forks import Fork
    from ckptfs.sync import Progress, SyncResult
    from ckptfs.sync.results import Watcher

#: A pass over a large tree may be about a great many paths; this many are named.
NAMED_MAX = 1000
#: The same of each kind of path that a restore changed.
_RESTORED_MAX = 10_000

#: Kinds of a change in the order in which they are told, and the letter of each.
LETTERS = {
    "added": "A",
    "deleted": "D",
    "renamed": "R",
    "type": "T",
    "modified": "M",
    "target": "l",
    "mode": "m",
    "owner": "o",
    "xattr": "x",
    "times": "t",
}

_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


def fork(found: Fork, base: Checkpoint | None, path: str) -> JsonObject:
    """``base_id`` is the checkpoint where it parted; ``path`` is empty while it is not mounted."""
    return {
        "name": found.name,
        "path": path,
        "at": found.at,
        "base_id": None if base is None else base.id,
        "time_ns": found.time_ns,
        "without": list(found.without),
    }


def names(paths: Iterable[bytes]) -> list[str]:
    return [os.fsdecode(path) for path in paths]


def collision(found: Collision) -> JsonObject:
    path = os.fsdecode(found.path)
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)
    since = f"changed by session {found.changed_by} since session {found.read_by} read it"
    return {
        "path": path,
        "changed_by": found.changed_by,
        "read_by": found.read_by,
        "message": f"{shown}: {since}",
    }


def checkpoint(found: Checkpoint) -> JsonObject:
    """A checkpoint; of its documents, their names; ``fork`` only of one that a fork took."""
    # By hand: `asdict` copies every value, and a list may have ten thousand of them.
    record = {
        **vars(found),
        "cause": dict(vars(found.cause)),
        "runs": [dict(vars(run)) for run in found.runs],
        "state_names": list(found.state),
    }
    del record["epoch"], record["state"]
    if not found.fork:
        del record["fork"]
    return record


# -- differences -----------------------------------------------------------------------------------


def difference(found: Difference) -> JsonObject:
    return {
        "from": _end(found.older),
        "to": _end(found.newer),
        "changes": [change(item) for item in interrupts.checked(found.changes)],
        **count_changes(found.changes)._asdict(),
    }


def _end(end: End) -> JsonObject:
    """``view`` names it for `contents`; ``saved`` is null for the workspace as it is."""
    saved = end.checkpoint
    return {"view": end.view.epoch, "saved": None if saved is None else checkpoint(saved)}


def change(found: Change) -> JsonObject:
    """A change; ``old_path`` only where it differs from ``path``."""
    record: JsonObject = {
        "path": os.fsdecode(found.path),
        "status": "".join(LETTERS[kind] for kind in LETTERS if kind in found.kinds),
        "kinds": [kind for kind in LETTERS if kind in found.kinds],
        "old": _node(found.old),
        "new": _node(found.new),
    }
    if found.source not in (None, found.path):
        record["old_path"] = os.fsdecode(found.source or b"")
    return record


def _node(inode: Inode | None) -> JsonObject | None:
    if inode is None:
        return None
    record: JsonObject = {
        "type": _TYPES.get(stat.S_IFMT(inode.mode), "unknown"),
        "mode": stat.S_IMODE(inode.mode),
        "uid": inode.uid,
        "gid": inode.gid,
        "size": inode.size,
        "mtime_ns": inode.mtime_ns,
    }
    return {**record, "target": os.fsdecode(inode.target)} if inode.is_link else record


def pair(found: Pair) -> JsonObject:
    return {"old": _file(found.old), "new": _file(found.new), "same": found.same}


def _file(found: Found | None) -> JsonObject | None:
    if found is None:
        return None
    record: JsonObject = {
        "path": os.fsdecode(found.path),
        "mode": found.inode.mode,
        "size": found.inode.size,
    }
    if found.inode.is_link:
        record["target"] = os.fsdecode(found.inode.target)
    return record


def version(found: Version) -> JsonObject:
    saved = found.checkpoint
    return {
        "saved": None if saved is None else checkpoint(saved),
        "writer": None if found.writer is None else dict(vars(found.writer)),
        **change(found.change),
    }


# -- restores --------------------------------------------------------------------------------------


def restored(found: Restored) -> JsonObject:
    return {
        "checkpoint": found.target,
        "changed": True,
        "before": found.before.id,
        "entries": len(found.changed.entries),
        "inodes": len(found.changed.inodes),
    }


def not_restored(target: int) -> JsonObject:
    """A restore to what is there already: it took no checkpoint, there is nothing to undo."""
    return {"checkpoint": target, "changed": False, "before": None, "entries": 0, "inodes": 0}


def skipped(found: Iterable[LeftAlone]) -> list[JsonObject]:
    """What a restore of one author's changes leaves alone."""
    return [
        {
            "path": os.fsdecode(item.path),
            "reason": item.reason,
            "by": [dict(vars(author)) for author in item.by],
        }
        for item in found
    ]


def paths_by_change(changes: Sequence[Change]) -> JsonObject:
    """Paths by what became of them; a renamed one is deleted there and added here."""
    added, modified, deleted = [], [], []
    for item in changes:
        if item.old is None or item.old_path is not None:
            added.append(item.path)
        if item.new is None or item.old_path is not None:
            deleted.append(item.old_path or item.path)
        if item.old is not None and item.new is not None and item.old_path is None:
            modified.append(item.path)
    lists = {"added_paths": added, "modified_paths": modified, "deleted_paths": deleted}
    return {kind: names(paths[:_RESTORED_MAX]) for kind, paths in lists.items()}


def unknown_paths() -> JsonObject:
    """The same of a restore that is done, where they could not be found."""
    return {"added_paths": None, "modified_paths": None, "deleted_paths": None}


# -- tasks -----------------------------------------------------------------------------------------


def task(found: Task, paths: list[bytes] | None) -> JsonObject:
    """``paths`` are those that it changed; null if that cannot be told any more."""
    return {
        "name": found.name,
        "state": found.state,
        "message": found.message,
        "started_ns": found.started_ns,
        "ended_ns": found.ended_ns,
        "stretches": [list(stretch) for stretch in found.stretches],
        "count": None if paths is None else len(paths),
        "paths": None if paths is None else names(paths[:NAMED_MAX]),
    }


def revert_plan(found: RevertPlan) -> JsonObject:
    """What a task's revert undoes."""
    conflicts = list(found.conflicts.items())[:NAMED_MAX]
    return {
        "name": found.name,
        "paths": names(found.paths[:NAMED_MAX]),
        "count": len(found.paths),
        "conflicts": [{"path": os.fsdecode(path), "task": other} for path, other in conflicts],
    }


# -- the store and other directories ---------------------------------------------------------------


def doomed(found: Doomed) -> JsonObject:
    """What a purge takes away."""
    return {
        "file_count": len(found.inodes),
        "path_count": found.path_count,
        "live_paths": names(found.live_paths[:NAMED_MAX]),
        "past_paths": names(found.past_paths[:NAMED_MAX]),
    }


def affected(found: Affected) -> JsonObject:
    return {**asdict(found), "path": os.fsdecode(found.path)}


def sync_result(found: SyncResult) -> JsonObject:
    """What a pass over a directory did."""
    return {
        "added": found.added,
        "modified": found.modified,
        "deleted": found.deleted,
        "unchanged": found.unchanged,
        "bytes": found.bytes,
        "conflicts": [
            {"path": os.fsdecode(item.path), "kept_as": os.fsdecode(item.kept_as)}
            for item in found.conflicts[:NAMED_MAX]
        ],
        "skipped": [
            {"path": os.fsdecode(item.path), "reason": item.reason}
            for item in found.skipped[:NAMED_MAX]
        ],
        "conflict_count": len(found.conflicts),
        "skipped_count": len(found.skipped),
    }


def progress_of(on_progress: OnProgress | None, phase: str) -> Watcher | None:
    """Hands the progress of a pass on, with what it is doing; None if it is not wanted."""
    if on_progress is None:
        return None

    def watch(progress: Progress) -> None:
        on_progress({"phase": phase, **progress._asdict()})

    return watch
