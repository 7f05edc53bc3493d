"""From an operation's name and JSON arguments to a verb of the service, and back to JSON.

The daemon answers its socket from this table and a command without a daemon uses it directly,
so both give the same records. Fields may be added to a record; none change their meaning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ckptfs import interrupts
from ckptfs.control import agent_verbs, diff_verbs, space_verbs, state_verbs
from ckptfs.control.protocol import JsonObject, OnProgress, metadata_of
from ckptfs.errors import ControlError

if TYPE_CHECKING:
    from ckptfs.history import Cause, Checkpoint, Restored
    from ckptfs.history.authors import Skipped
    from ckptfs.history.damage import Affected
    from ckptfs.service import Service
    from ckptfs.sync import Progress, SyncResult
    from ckptfs.sync.results import Watcher

#: A pass over a large tree may have left out a great many entries; this many are named.
NAMED_MAX = 1000

#: Verbs that must see what programs wrote a moment ago: the kernel's own cache goes out first.
NEEDS_SYNC = frozenset(
    {
        "save",
        "diff",
        "log",
        "export",
        "plan",
        "restore",
        "rewind",
        "undo",
        "redo",
        "purge",
        "backup",
    }
    | agent_verbs.NEEDS_SYNC
)

#: Verbs that only read: they end wherever they are when nobody waits for them any more.
READING = frozenset(
    {
        *("figures", "list", "plan", "restores", "check", "diff", "show", "contents", "log"),
        *("space", "get", "state", "state_read", "task_list"),
    }
)

#: Verbs that change the files of the workspace; only their state is asked for where ``files`` is
#: False.
CHANGES_FILES = frozenset({"restore", "rewind", "undo", "redo", "purge", "task_revert", "import"})


def changes_files(op: str, args: JsonObject) -> bool:
    return op in CHANGES_FILES and args.get("files") is not False


def perform(
    service: Service, op: str, args: JsonObject, on_progress: OnProgress | None
) -> JsonObject:
    """Do what is asked and return the record that says how it went.

    ``on_progress`` hears how far it is; None where nobody wants to know.
    """
    verb = _VERBS.get(op)
    if verb is None:
        raise ControlError(f"There is no operation {op!r}. Nothing was changed.")
    args = _without_secrets(service, args)
    try:
        with service.acting(cause_of(args)):
            if op not in READING:
                return verb(service, args, on_progress)
            service.fs.flush()
            with interrupts.stoppable():
                return verb(service, args, on_progress)
    except KeyError as error:
        raise ControlError(
            f"Cannot {op}: the argument {error.args[0]!r} is missing. Nothing was changed."
        ) from error


def _without_secrets(service: Service, args: JsonObject) -> JsonObject:
    """The arguments with as much of the caller's command line as may go into history."""
    if not args.get("command"):
        return args
    from ckptfs.commands import shown

    return {**args, "command": shown(str(args["command"]), service.record_command())}


def relay(on_progress: OnProgress | None, phase: str) -> Watcher | None:
    """Turn the progress of a pass into records that say what it is doing."""
    if on_progress is None:
        return None

    def watch(progress: Progress) -> None:
        on_progress({"phase": phase, **progress._asdict()})

    return watch


def checkpoint_record(checkpoint: Checkpoint) -> JsonObject:
    return diff_verbs.described(checkpoint)


def restored_record(restored: Restored) -> JsonObject:
    return {
        "checkpoint": restored.target,
        "changed": True,
        "before": restored.before.id,
        "entries": len(restored.touched.entries),
        "inodes": len(restored.touched.inodes),
    }


def nothing_record(checkpoint: int) -> JsonObject:
    """Of a restore to what is there already: no checkpoint was taken, there is nothing to undo."""
    return {"checkpoint": checkpoint, "changed": False, "before": None, "entries": 0, "inodes": 0}


def patterns_of(args: JsonObject) -> list[bytes] | None:
    return diff_verbs.patterns_of(args)


def cause_of(args: JsonObject) -> Cause:
    """Who asks, as the client says of itself."""
    from ckptfs.history import Cause

    return Cause(pid=int(args.get("pid", 0)), command=str(args.get("command", "")))


def result_record(result: SyncResult) -> JsonObject:
    """What a pass did; names go out as strings with surrogate escapes."""
    return {
        "added": result.added,
        "modified": result.modified,
        "deleted": result.deleted,
        "unchanged": result.unchanged,
        "bytes": result.bytes,
        "conflicts": [
            {"path": os.fsdecode(found.path), "kept_as": os.fsdecode(found.kept_as)}
            for found in result.conflicts[:NAMED_MAX]
        ],
        "skipped": [
            {"path": os.fsdecode(found.path), "reason": found.reason}
            for found in result.skipped[:NAMED_MAX]
        ],
        "conflict_count": len(result.conflicts),
        "skipped_count": len(result.skipped),
    }


def _figures(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    return service.figures()._asdict()


def _save(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    most = int(args["max_checkpoints"]) if "max_checkpoints" in args else None
    if most is not None and most < 1:
        raise ControlError(f"Cannot save: {most} checkpoints cannot be kept. Nothing was changed.")
    words = ("tag", "pin", "metadata", "state")
    described = any(args.get(word) for word in words)
    if (
        not (args.get("allow_empty") or described)
        and (same := service.unchanged_since()) is not None
    ):
        return {**checkpoint_record(same), "changed": False}
    with state_verbs.drafts(service, args) as documents:
        saved = service.save(
            str(args["message"]),
            tag=str(args.get("tag", "")),
            pinned=bool(args.get("pin")),
            metadata=metadata_of(args.get("metadata", {})),
            cause=cause_of(args),
            documents=documents,
        )
    record = {**checkpoint_record(saved), "changed": True}
    if saved.tag:
        record["reference"] = space_verbs.reference(saved)
    if most is not None:
        record["pruned"] = service.keep_newest(most)
    return record


def _list(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    limit, path = args.get("limit"), args.get("path")
    found = service.listed(
        limit=None if limit is None else int(limit),
        since=str(args.get("since") or ""),
        path=None if path is None else os.fsencode(str(path)),
        moments=bool(args.get("moments")),
    )
    counted = zip(found.checkpoints, service.counts(found.checkpoints), strict=True)
    return {
        "checkpoints": [checkpoint_record(item) | counts._asdict() for item, counts in counted],
        "more": found.more,
        "moments": found.moments,
    }


def _restore(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    target = service.find(str(args["checkpoint"])).id
    if args.get("files") is False:
        return state_verbs.after_restore(service, args, nothing_record(target))
    if args.get("only"):
        return _restore_selective(service, args, target)
    restored = service.restore(
        str(target),
        patterns_of(args),
        token=str(args.get("token", "")),
        backup=bool(args.get("backup", True)),
        cause=cause_of(args),
    )
    record = nothing_record(target) if restored is None else restored_record(restored)
    return state_verbs.after_restore(service, args, record)


def _restore_selective(service: Service, args: JsonObject, target: int) -> JsonObject:
    restored, skipped = service.restore_selective(
        str(target),
        patterns_of(args),
        str(args["only"]),
        token=str(args.get("token", "")),
        backup=bool(args.get("backup", True)),
        cause=cause_of(args),
    )
    record = nothing_record(target) if restored is None else restored_record(restored)
    record["skipped"] = skipped_records(skipped)
    return state_verbs.after_restore(service, args, record)


def skipped_records(skipped: Iterable[Skipped]) -> list[JsonObject]:
    return [
        {
            "path": os.fsdecode(item.path),
            "reason": item.reason,
            "by": [asdict(author) for author in item.by],
        }
        for item in skipped
    ]


def _plan(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    if args.get("files") is False:
        target = service.find(str(args["checkpoint"]))
        nothing: JsonObject = {"token": "", "added": [], "modified": [], "deleted": []}
        return {"checkpoint": target.id, **nothing, "state": list(target.state)}
    skipped: list[Skipped] = []
    if args.get("only"):
        found, skipped = service.plan_selective(
            str(args["checkpoint"]), patterns_of(args), str(args["only"])
        )
    elif "back" in args:
        found = service.plan_back(str(args["back"]))
    elif "steps" in args:
        found = service.plan_restore(str(service.steps_back(int(args["steps"])).id))
    else:
        found = service.plan_restore(str(args["checkpoint"]), patterns_of(args))
    return {
        "checkpoint": found.target,
        "token": found.token,
        "added": [os.fsdecode(path) for path in found.added],
        "modified": [os.fsdecode(path) for path in found.modified],
        "deleted": [os.fsdecode(path) for path in found.deleted],
        "skipped": skipped_records(skipped),
        "state": list(service.find(str(found.target)).state),
    }


def _rewind(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    target = service.steps_back(int(args["steps"])).id
    return _restore(service, {**args, "checkpoint": target}, on_progress)


def next_head(service: Service, op: str, args: JsonObject) -> Checkpoint | None:
    """The checkpoint that an operation is about to make the head; None if it makes none."""
    if op in ("undo", "redo"):
        return service.head_back(op)
    if op not in ("restore", "rewind") or args.get("files") is False:
        return None
    if args.get("only") or args.get("paths") is not None:
        return None
    if op == "rewind":
        return service.steps_back(int(args["steps"]))
    return service.find(str(args["checkpoint"]))


class _Condition(TypedDict):
    token: str
    if_unchanged: bool


def _condition(args: JsonObject) -> _Condition:
    return {
        "token": str(args.get("token", "")),
        "if_unchanged": bool(args.get("if_unchanged")),
    }


def _undo(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    record = restored_record(service.undo(cause_of(args), **_condition(args)))
    return state_verbs.after_restore(service, args, record)


def _redo(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    record = restored_record(service.redo(cause_of(args), **_condition(args)))
    return state_verbs.after_restore(service, args, record)


def _restores(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    return {"restores": [asdict(entry) for entry in service.restores()]}


def _check(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    def watch(what: str, done: int, total: int) -> None:
        if on_progress is not None:
            on_progress({"phase": f"check {what}", "files": done, "total_files": total})

    problems = service.check(
        deep=bool(args.get("deep", True)), progress=watch if on_progress else None
    )
    return {
        "problems": [problem._asdict() for problem in problems],
        "affected": [_affected(item) for item in service.affected(problems)] if problems else [],
        "lost": [] if problems else [_affected(item) for item in service.affected()],
    }


def _affected(item: Affected) -> JsonObject:
    return {**asdict(item), "path": os.fsdecode(item.path)}


def _backup(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    return service.backup(Path(args["dest"]))._asdict()


def _import(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    source, merge = Path(args["source"]), bool(args.get("merge"))
    left = "What came in so far stays in the workspace."
    with interrupts.stoppable_between(left):
        return result_record(service.import_tree(source, relay(on_progress, "import"), merge=merge))


def _export(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    dest, checkpoint = Path(args["dest"]), args.get("checkpoint")
    left = f"What was written to {dest} so far stays there; the workspace was not changed."
    with interrupts.stoppable_between(left):
        return result_record(service.export(dest, checkpoint, relay(on_progress, "export")))


_VERBS: dict[str, Callable[[Service, JsonObject, OnProgress | None], JsonObject]] = {
    "figures": _figures,
    "save": _save,
    "list": _list,
    "plan": _plan,
    "restore": _restore,
    "rewind": _rewind,
    "undo": _undo,
    "redo": _redo,
    "restores": _restores,
    "check": _check,
    "backup": _backup,
    "import": _import,
    "export": _export,
    **diff_verbs.VERBS,
    **space_verbs.VERBS,
    **state_verbs.VERBS,
    **agent_verbs.VERBS,
}
