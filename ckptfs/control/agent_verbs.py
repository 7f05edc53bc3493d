"""The verbs for those who work in steps: marks before and after, tasks. From JSON to records.

What an agent's hook tells beside its checkpoints comes in here, too: how a tool ended, which
subagents are at work, which tasks it set itself. To tell of what is not known changes nothing and
is no error: hooks come late, twice, or without the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptfs import interrupts
from ckptfs.control.protocol import JsonObject, OnProgress
from ckptfs.errors import ControlError
from ckptfs.history.path_restore import Undoing

if TYPE_CHECKING:
    from ckptfs.history import Cause, Checkpoint
    from ckptfs.history.tasks import Task
    from ckptfs.service import Service

#: These must see what programs wrote a moment ago.
NEEDS_SYNC = frozenset(
    {
        *("mark", "task_start", "task_done", "task_list", "task_revert"),
        *("task_announce", "task_finish"),
    }
)

#: A task may have changed a great many files; this many are named.
NAMED_MAX = 1000


def _cause(args: JsonObject) -> Cause:
    from ckptfs.history import Cause

    return Cause(
        pid=int(args.get("pid", 0)),
        command=str(args.get("command", "")),
        session=str(args.get("session", "")),
    )


def _named(checkpoint: Checkpoint) -> JsonObject:
    return {
        "id": checkpoint.id,
        "kind": checkpoint.kind,
        "message": checkpoint.message,
        "time_ns": checkpoint.time_ns,
        "metadata": checkpoint.metadata,
        "pinned": checkpoint.pinned,
    }


def _mark(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    """A checkpoint of now. ``changed`` tells whether a new one was taken.

    ``ran`` is the command that it is about, which follows the message as far as it may go into
    history.
    """
    from ckptfs.history import hook_checkpoints

    kind = str(args["kind"])
    if kind not in hook_checkpoints.KINDS:
        raise ControlError(f"Cannot mark: {kind!r} is no kind of mark. Nothing was changed.")
    message, metadata = _recorded(args, service.record_command())
    if args.get("with_subagents"):
        names = hook_checkpoints.subagents_of(service.fs.store).names(metadata.get("session", ""))
        metadata |= {hook_checkpoints.SUBAGENT: names} if names else {}
    same = service.unchanged_since()
    found = hook_checkpoints.mark(
        service.fs,
        kind,
        message,
        same,
        metadata=metadata,
        cause=_cause(args),
        weak=bool(args.get("weak")),
    )
    service.fs.commit()
    return {**_named(found), "changed": same is None or found.id != same.id}


def _result(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    """How tools ended, for the checkpoints before them; ``checkpoints`` are those told of it."""
    from ckptfs.history import hook_checkpoints

    told = [
        hook_checkpoints.record_result(
            service.fs.store,
            str(item["result"]),
            session=str(item.get("session", "")),
            tool=str(item.get("tool", "")),
            tool_use_id=str(item.get("tool_use_id", "")),
        )
        for item in args["results"]
    ]
    service.fs.commit()
    return {"checkpoints": [item.id for item in told if item is not None]}


def _subagent(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    """One is at work, or no longer; not running without id and name: none of the session is."""
    from ckptfs.history import hook_checkpoints

    found = hook_checkpoints.subagents_of(service.fs.store)
    session, ident, name = str(args["session"]), str(args.get("id", "")), str(args.get("name", ""))
    if args.get("running"):
        found.started(session, ident or name, name or ident)
    elif ident or name:
        found.stopped(session, ident, name)
    else:
        found.forget(session)
    return {"running": found.names(session)}


def _task_announce(
    service: Service, args: JsonObject, on_progress: OnProgress | None
) -> JsonObject:
    """``checkpoint`` is where it begins; null if it waits in line, or is open already."""
    from ckptfs.history import tasks

    name = str(args["name"])
    begins = tasks.announce(service.fs, name, str(args.get("message", "")), _cause(args))
    service.fs.commit()
    current = tasks.current(service.fs.store)
    return {"name": name, "checkpoint": begins.id if begins else None, "current": current}


def _task_finish(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    """``checkpoint`` is where it ends; null if it was not the current one, or not open."""
    from ckptfs.history import tasks

    name = str(args["name"])
    ends = tasks.finish(service.fs, name, _cause(args))
    service.fs.commit()
    current = tasks.current(service.fs.store)
    return {"name": name, "checkpoint": ends.id if ends else None, "current": current}


def _recorded(args: JsonObject, record: str) -> tuple[str, dict[str, str]]:
    """The message and the metadata of a mark, without what is not to be recorded."""
    from ckptfs.commands import cut, noted, shown

    message = noted(str(args["message"]), record)
    if ran := shown(str(args.get("ran", "")), record):
        message = cut(f"{message}: {ran}")
    metadata = {str(key): str(value) for key, value in args.get("metadata", {}).items()}
    for key, reduced in (("command", shown), ("prompt", noted)):
        if key in metadata:
            metadata[key] = reduced(metadata[key], record)
    return message, metadata


def _task_start(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    from ckptfs.history import tasks

    name = str(args["name"])
    earlier = tasks.tasks(service.fs.store).get(name)
    begins = tasks.start(service.fs, name, _cause(args))
    service.fs.commit()
    was = earlier.state if earlier else ""
    record: JsonObject = {
        "name": name,
        "changed": begins is not None,
        "checkpoint": None,
        "was": was,
    }
    return record if begins is None else {**record, "checkpoint": begins.id, **_named(begins)}


def _task_done(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    from ckptfs.history import tasks

    name, ends = tasks.done(service.fs, str(args.get("message", "")), _cause(args))
    service.fs.commit()
    current = tasks.current(service.fs.store)
    return {"name": name, "checkpoint": ends.id, "current": current, **_named(ends)}


def _task_list(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    from ckptfs.history import tasks

    fs = service.fs
    fs.flush()
    known = {checkpoint.id: checkpoint for checkpoint in service.checkpoints()}
    found = tasks.tasks(fs.store)
    return {
        "tasks": [_task(task, tasks.paths_changed_by(fs, known, task)) for task in found.values()]
    }


def _task(task: Task, paths: list[bytes] | None) -> JsonObject:
    """``paths`` are those that it changed; null if that cannot be told any more."""
    return {
        "name": task.name,
        "state": task.state,
        "message": task.message,
        "started_ns": task.started_ns,
        "ended_ns": task.ended_ns,
        "stretches": [list(stretch) for stretch in task.stretches],
        "count": None if paths is None else len(paths),
        "paths": None if paths is None else [os.fsdecode(path) for path in paths[:NAMED_MAX]],
    }


def _task_revert(service: Service, args: JsonObject, on_progress: OnProgress | None) -> JsonObject:
    from ckptfs.history import Touched, tasks

    name, fs = str(args["name"]), service.fs
    if args.get("dry_run"):
        fs.flush()
        with interrupts.stoppable():
            return {"dry_run": True, **_undoing(tasks.plan_revert(fs, name))}
    touched = Touched(set(), set())
    service.unannounced.append(touched)  # first: also if it fails, the kernel has to hear of it
    done = tasks.revert(
        fs, name, force=bool(args.get("force")), touched_here=touched, cause=_cause(args)
    )
    fs.commit()
    return {
        "dry_run": False,
        **_undoing(done.undoing),
        "before": done.before.id,
        "after": done.after.id,
    }


def _undoing(undoing: Undoing) -> JsonObject:
    conflicts = list(undoing.conflicts.items())[:NAMED_MAX]
    return {
        "name": undoing.name,
        "paths": [os.fsdecode(path) for path in undoing.paths[:NAMED_MAX]],
        "count": len(undoing.paths),
        "conflicts": [{"path": os.fsdecode(path), "task": task} for path, task in conflicts],
    }


VERBS: dict[str, Callable[[Service, JsonObject, OnProgress | None], JsonObject]] = {
    "mark": _mark,
    "result": _result,
    "subagent": _subagent,
    "task_announce": _task_announce,
    "task_finish": _task_finish,
    "task_start": _task_start,
    "task_done": _task_done,
    "task_list": _task_list,
    "task_revert": _task_revert,
}
