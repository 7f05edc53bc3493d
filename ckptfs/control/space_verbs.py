"""The verbs about what is kept and what it costs, from JSON arguments to records."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptfs import interrupts
from ckptfs.control.protocol import JsonObject, OnProgress

if TYPE_CHECKING:
    from ckptfs.history import Checkpoint
    from ckptfs.history.purge import Doomed
    from ckptfs.service import Service

#: A purge may take a great many files; this many are named.
NAMED_MAX = 1000


def _named(checkpoints: list[Checkpoint]) -> JsonObject:
    return {
        "checkpoints": [
            {"id": item.id, "tag": item.tag, "pinned": item.pinned} for item in checkpoints
        ]
    }


def _names(args: JsonObject) -> list[str]:
    return [str(name) for name in args["checkpoints"]]


def _tag(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    was = service.find(str(args["checkpoint"]))
    changed = service.tag(str(was.id), str(args["tag"]), move=bool(args.get("move")))
    record = _named([changed])
    record["checkpoints"][0] |= {"was": was.tag, "reference": reference(changed)}
    return record


def reference(checkpoint: Checkpoint) -> str:
    """What names a checkpoint by its tag: the tag, unless that reads like something else."""
    from ckptfs.history.references import is_reserved, safe_tag

    tag = checkpoint.tag
    return safe_tag(tag) if tag and is_reserved(tag) else tag


def _pin(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    return _named(service.pin(_names(args)))


def _unpin(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    return _named(service.pin(_names(args), pinned=False))


def _delete(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    return _named(service.delete_named(_names(args), tagged=bool(args.get("tagged", True))))


def _prune(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    dry_run = bool(args.get("dry_run"))
    decisions = service.prune(dry_run=dry_run)
    return {"dry_run": dry_run, "checkpoints": [decision._asdict() for decision in decisions]}


def _exclude(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    service.add_excluded([str(pattern) for pattern in args.get("patterns", ())])
    return {"patterns": list(service.exclude())}


def _space(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    return service.space()._asdict()


def _compact(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    with interrupts.stoppable_between("What is smaller by now stays so; no file was changed."):
        before, after = service.compact()
    return {"before_bytes": before, "after_bytes": after}


def _purge(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    paths = [os.fsencode(str(path)) for path in args["paths"]]
    if args.get("dry_run"):
        with interrupts.stoppable():
            doomed = service.plan_purge(paths)
        return {**_doomed(doomed), "dry_run": True, "elsewhere": []}
    purged = service.purge(paths)
    elsewhere = [os.fsdecode(path) for path in purged.elsewhere[:NAMED_MAX]]
    return {**_doomed(purged.doomed), "dry_run": False, "elsewhere": elsewhere}


def _doomed(doomed: Doomed) -> JsonObject:
    return {
        "files": len(doomed.inodes),
        "path_count": len({*doomed.live_paths, *doomed.past_paths}),
        "live_paths": [os.fsdecode(path) for path in doomed.live_paths[:NAMED_MAX]],
        "past_paths": [os.fsdecode(path) for path in doomed.past_paths[:NAMED_MAX]],
    }


VERBS: dict[str, Callable[[Service, JsonObject, OnProgress | None], JsonObject]] = {
    "tag": _tag,
    "pin": _pin,
    "unpin": _unpin,
    "delete": _delete,
    "prune": _prune,
    "space": _space,
    "exclude": _exclude,
    "compact": _compact,
    "purge": _purge,
}
