"""The verbs that tell what changed, from JSON arguments to records.

A daemon sends what differs and, when asked, the bytes of small files; the text diff is made by the
client, so that nobody's file system waits for it.
"""

from __future__ import annotations

import os
import stat
from base64 import b64encode
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from ckptfs import interrupts
from ckptfs.control.protocol import JsonObject, OnProgress

if TYPE_CHECKING:
    from ckptfs.history import Checkpoint
    from ckptfs.history.diff.compare import Difference, End
    from ckptfs.history.diff.patch import Found, Pair
    from ckptfs.history.diff.tree import Change
    from ckptfs.history.log import Version
    from ckptfs.model import Inode
    from ckptfs.service import Service

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


def change_record(change: Change) -> JsonObject:
    """A change; ``old_path`` only where it differs from ``path``."""
    record: JsonObject = {
        "path": os.fsdecode(change.path),
        "status": "".join(LETTERS[kind] for kind in LETTERS if kind in change.kinds),
        "kinds": [kind for kind in LETTERS if kind in change.kinds],
        "old": _node(change.old),
        "new": _node(change.new),
    }
    if change.source not in (None, change.path):
        record["old_path"] = os.fsdecode(change.source or b"")
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


def _end(end: End) -> JsonObject:
    """``view`` names it for `contents`; the checkpoint is null for the workspace as it is."""
    checkpoint = end.checkpoint
    return {
        "view": end.view.epoch,
        "checkpoint": None if checkpoint is None else described(checkpoint),
    }


def described(checkpoint: Checkpoint) -> JsonObject:
    """What a checkpoint tells; of its documents, their names."""
    record = asdict(checkpoint)
    del record["epoch"]
    return {**record, "state": list(checkpoint.state)}


def difference_record(difference: Difference) -> JsonObject:
    from ckptfs.history.diff.compare import count_changes

    return {
        "from": _end(difference.older),
        "to": _end(difference.newer),
        "changes": [change_record(change) for change in interrupts.checked(difference.changes)],
        **count_changes(difference.changes)._asdict(),
    }


def _pair_record(pair: Pair) -> JsonObject:
    return {"old": _file(pair.old), "new": _file(pair.new), "same": pair.same}


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


def patterns_of(args: JsonObject) -> list[bytes] | None:
    """The paths that an operation is limited to; None for all."""
    paths = args.get("paths")
    return None if paths is None else [os.fsencode(str(path)) for path in paths]


def _diff(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    found = service.diff(
        str(args.get("older") or ""), str(args.get("newer") or ""), patterns_of(args)
    )
    return _answer(service, args, found)


def _show(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    found = service.show(str(args["checkpoint"]), patterns_of(args))
    return _answer(service, args, found)


def _answer(service: Service, args: JsonObject, found: Difference) -> JsonObject:
    if not args.get("times"):
        found = found.without_times()
    record = difference_record(found)
    if args.get("files"):
        pairs = found.file_pairs(service.fs)
        record["files"] = [_pair_record(pair) for pair in interrupts.checked(pairs)]
    return record


def _contents(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    paths = [os.fsencode(str(path)) for path in args["paths"]]
    found = service.contents(int(args["view"]), paths, int(args["limit"]))
    return {"contents": [None if data is None else b64encode(data).decode() for data in found]}


def _log(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    path = os.fsencode(str(args["path"]))
    return {
        "path": os.fsdecode(path),
        "versions": [_version(version) for version in service.path_log(path)],
    }


def _version(version: Version) -> JsonObject:
    saved = version.checkpoint
    return {
        "checkpoint": None if saved is None else described(saved),
        "writer": None if version.writer is None else asdict(version.writer),
        **change_record(version.change),
    }


VERBS: dict[str, Callable[[Service, JsonObject, OnProgress | None], JsonObject]] = {
    "diff": _diff,
    "show": _show,
    "contents": _contents,
    "log": _log,
}
