"""The verbs of agents that work in steps: checkpoints around what they do, and tasks.

An agent's hook tells more than its checkpoints: how a tool ended, which subagents are at work,
which tasks it set itself. To tell of what is not known changes nothing and is no error: hooks come
late, twice, or without the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs import commands, interrupts
from ckptfs.errors import ControlError
from ckptfs.history import Changed, hook_checkpoints, tasks
from ckptfs.service import wire
from ckptfs.service.arguments import JsonObject

if TYPE_CHECKING:
    from ckptfs.service.service import Call


def do_mark(
    call: Call,
    kind: str,
    message: str,
    ran: str,
    metadata: dict[str, str],
    weak: bool,
    with_subagents: bool,
) -> JsonObject:
    """A checkpoint of now. ``changed`` tells whether a new one was taken.

    ``ran`` is the command that it is about, which follows the message as far as it may go into
    history.
    """
    service = call.service
    if kind not in hook_checkpoints.KINDS:
        raise ControlError(f"Cannot mark: {kind!r} is no kind of mark. Nothing was changed.")
    message, metadata = _recorded(message, ran, metadata, service.record_command())
    if with_subagents:
        at_work = hook_checkpoints.subagents_of(service.fs.store)
        if names := at_work.names(metadata.get("session", "")):
            metadata[hook_checkpoints.SUBAGENT] = names
    same = service.unchanged_since()
    found = hook_checkpoints.mark(
        service.fs, kind, message, same, metadata=metadata, cause=call.cause, weak=weak
    )
    service.fs.commit()
    return {**wire.checkpoint(found), "changed": same is None or found.id != same.id}


def _recorded(
    message: str, ran: str, metadata: dict[str, str], record: str
) -> tuple[str, dict[str, str]]:
    """The message and the metadata, without what is not to be recorded."""
    message, found = commands.noted(message, record), dict(metadata)
    if shown := commands.shown(ran, record):
        message = commands.cut(f"{message}: {shown}")
    for key, reduced in (("command", commands.shown), ("prompt", commands.noted)):
        if key in found:
            found[key] = reduced(found[key], record)
    return message, found


def do_result(call: Call, results: list[dict[str, str]]) -> JsonObject:
    """How tools ended, for the checkpoints before them; ``checkpoints`` are those with it."""
    fs = call.service.fs
    found = [hook_checkpoints.record_result(fs.store, **item) for item in results]
    fs.commit()
    return {"checkpoints": [item.id for item in found if item is not None]}


def do_subagent(call: Call, session: str, running: bool, id: str, name: str) -> JsonObject:
    """One is at work, or no longer; not running without id and name: none of the session is."""
    found = hook_checkpoints.subagents_of(call.service.fs.store)
    if running:
        found.started(session, id or name, name or id)
    elif id or name:
        found.stopped(session, id, name)
    else:
        found.forget(session)
    return {"running": found.names(session)}


def do_task_announce(call: Call, name: str, message: str) -> JsonObject:
    """``checkpoint`` is where it begins; null if it waits in line, or is open already."""
    fs = call.service.fs
    begins = tasks.announce(fs, name, message, call.cause)
    fs.commit()
    number = begins.id if begins else None
    return {"name": name, "checkpoint": number, "current": tasks.current(fs.store)}


def do_task_finish(call: Call, name: str) -> JsonObject:
    """``checkpoint`` is where it ends; null if it was not the current one, or not open."""
    fs = call.service.fs
    ends = tasks.finish(fs, name, call.cause)
    fs.commit()
    number = ends.id if ends else None
    return {"name": name, "checkpoint": number, "current": tasks.current(fs.store)}


def do_task_start(call: Call, name: str) -> JsonObject:
    fs = call.service.fs
    earlier = tasks.tasks(fs.store).get(name)
    begins = tasks.start(fs, name, call.cause)
    fs.commit()
    was = earlier.state if earlier else ""
    if begins is None:
        return {"name": name, "changed": False, "checkpoint": None, "was": was}
    record = {"name": name, "changed": True, "checkpoint": begins.id, "was": was}
    return record | wire.checkpoint(begins)


def do_task_done(call: Call, message: str) -> JsonObject:
    fs = call.service.fs
    name, ends = tasks.done(fs, message, call.cause)
    fs.commit()
    record = {"name": name, "checkpoint": ends.id, "current": tasks.current(fs.store)}
    return record | wire.checkpoint(ends)


def do_task_list(call: Call) -> JsonObject:
    fs = call.service.fs
    known = {checkpoint.id: checkpoint for checkpoint in call.service.checkpoints()}
    found = tasks.tasks(fs.store).values()
    return {"tasks": [wire.task(task, tasks.paths_changed_by(fs, known, task)) for task in found]}


def do_task_revert(call: Call, name: str, force: bool, dry_run: bool) -> JsonObject:
    service, fs = call.service, call.service.fs
    if dry_run:
        fs.flush()
        with interrupts.stoppable():
            return {"dry_run": True, **wire.revert_plan(tasks.plan_revert(fs, name))}
    changed = Changed(set(), set())
    # First: also if it fails, the kernel has to hear of it.
    service.unannounced.changed.append(changed)
    done = tasks.revert(fs, name, force=force, changed=changed, cause=call.cause)
    fs.commit()
    record = {"before": done.before.id, "after": done.after.id}
    return {"dry_run": False, **wire.revert_plan(done.plan), **record}
