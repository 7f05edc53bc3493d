"""Checkpoints: they are taken, named, kept and deleted, carry state documents, and belong to tasks.

An agent's hook tells more than its checkpoints: how a tool ended, which subagents are at work,
which tasks it set itself. To tell of what is not known changes nothing and is no error: hooks come
late, twice, or without the others.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ckptfs import commands, history, interrupts
from ckptfs.errors import CheckpointPinned, Interrupted, NotConfirmed
from ckptfs.history import (
    Cause,
    Changed,
    Checkpoint,
    collisions,
    hook_checkpoints,
    references,
    removal,
    runs,
    state,
    tasks,
)
from ckptfs.history.checkpoints import Run
from ckptfs.interrupts import Steps
from ckptfs.service import wire
from ckptfs.service.arguments import (
    PREFIX,
    SIZE_MAX,
    SUFFIX,
    JsonObject,
    malformed,
    new_name,
    require_name,
    sweep,
)
from ckptfs.service.storage import may_compress

if TYPE_CHECKING:
    from ckptfs.fs import Filesystem
    from ckptfs.service.service import Call, Service

_STAGED = re.compile(re.escape(PREFIX) + r"[0-9a-z-]{1,60}" + re.escape(SUFFIX), re.ASCII)
#: How much of a document one answer carries at most.
_PIECE_MAX = 4 << 20


def save(
    service: Service,
    message: str,
    kind: str = "manual",
    *,
    tag: str = "",
    pinned: bool = False,
    metadata: dict[str, str] | None = None,
    cause: Cause | None = None,
    documents: Sequence[state.Draft] = (),
) -> Checkpoint:
    """Take a checkpoint of the workspace as it is, with an agent's documents if it has any."""
    if tag:
        tag = references.clean_tag(tag)
        references.require_free_tag(service.fs.store, tag)
    described = {}
    if documents:
        described = state.keep(service.fs, documents, compress=may_compress(service))
    else:
        state.tidy(service.fs)
    checkpoint = history.seal(
        service.fs,
        kind,
        message,
        service.fs.clock(),
        tag=tag,
        pinned=pinned,
        metadata=metadata,
        cause=cause,
        state=described,
    )
    service.fs.sync()
    return checkpoint


def documents(service: Service, checkpoint: str) -> tuple[Checkpoint, list[state.Document]]:
    """The state documents that a checkpoint carries."""
    found = service.find(checkpoint)
    return found, state.documents(found)


def read_document(service: Service, checkpoint: str, name: str, offset: int, length: int) -> bytes:
    return state.read(service.fs, service.find(checkpoint), name, offset, length)


def unchanged_since(service: Service) -> Checkpoint | None:
    """The checkpoint that the workspace still equals, if there is one."""
    service.fs.flush()
    if service.has_unsaved():
        return None
    same = history.newest_state(service.fs)
    return None if same is None or same.is_moment else same


def has_unsaved(service: Service) -> bool:
    """Whether anything changed since the checkpoint that the head stands on."""
    head = service.fs.head
    if head.dirty_inodes:
        return True
    return any(True for _ in service.fs.store.changes.walk(head.epoch))


# -- which stay, and what they are called ----------------------------------------------------------


def delete(service: Service, doomed: Sequence[Checkpoint]) -> None:
    """Delete checkpoints and free what only they held; where a daemon frees it, they are only
    hidden."""
    service.unannounced.deleted.update(item.id for item in doomed)
    if service.free_later is None:
        removal.delete(service.fs, doomed)
    else:
        removal.hide(service.fs, doomed)
        service.free_later()
    service.fs.sync()


def delete_named(
    service: Service, names: Sequence[str], *, tagged: bool = True
) -> list[Checkpoint]:
    """Delete the checkpoints that are named; all of them, or none if one is pinned or, unless
    ``tagged`` ones may go, has a tag."""
    doomed = list({found.id: found for found in map(service.find, names)}.values())
    for checkpoint in doomed:
        if checkpoint.pinned:
            raise CheckpointPinned(checkpoint.id)
    kept = [item for item in doomed if item.tag and not tagged]
    if kept:
        reason = ", ".join(f"checkpoint {item.id} is tagged {item.tag!r}" for item in kept)
        raise NotConfirmed(reason, "deleted", dry_run=False)
    service.delete(doomed)
    return doomed


def keep_newest(service: Service, most: int) -> list[int]:
    """Delete the oldest checkpoints of the line beyond so many, other than tagged and pinned ones,
    those that `undo` and `redo` go to, and those that forks stand on. Returns the numbers of what
    went."""
    bases = service.fs.store.forks.bases
    entries = (history.undoable(service.fs), history.redoable(service.fs))
    needed = {entry.before for entry in entries if entry is not None}
    found = [item for item in history.of_line(service.fs) if item.fork == service.fs.line]
    excess = max(0, len(found) - max(most, 1))
    kept = {item.id for item in found if item.epoch in bases} | needed
    free = [item for item in found[:-1] if not (item.tag or item.pinned or item.id in kept)]
    doomed = free[:excess]
    if doomed:
        service.delete(doomed)
    return [item.id for item in doomed]


def tag(service: Service, checkpoint: str, tag: str, *, move: bool = False) -> Checkpoint:
    """Give a checkpoint a tag; with an empty one, take its tag away."""
    store, found = service.fs.store, service.find(checkpoint)
    changed = (
        references.set_tag(store, found, tag, move=move)
        if tag
        else references.remove_tag(store, found)
    )
    service.fs.commit()
    return changed


def pin(service: Service, names: Sequence[str], *, pinned: bool = True) -> list[Checkpoint]:
    """Keep checkpoints from expiring and from being deleted, or no longer."""
    found = [service.find(name) for name in names]
    changed = [references.set_pinned(service.fs.store, item, pinned=pinned) for item in found]
    service.fs.commit()
    return changed


# -- verbs -----------------------------------------------------------------------------------------


def do_save(
    call: Call,
    message: str,
    tag: str,
    pin: bool,
    metadata: dict[str, str],
    state: list[JsonObject],
    allow_empty: bool,
    max_checkpoints: int | None,
) -> JsonObject:
    service = call.service
    if max_checkpoints is not None and max_checkpoints < 1:
        raise malformed("save", f"{max_checkpoints} checkpoints cannot be kept")
    wanted = allow_empty or tag or pin or metadata or state
    if not wanted and (same := service.unchanged_since()) is not None:
        return {**wire.checkpoint(same), "changed": False}
    with _opened(service, state) as documents:
        saved = service.save(
            message,
            tag=tag,
            pinned=pin,
            metadata=metadata,
            cause=call.cause,
            documents=documents,
        )
    record = {**wire.checkpoint(saved), "changed": True}
    if saved.tag:
        record["reference"] = reference(saved)
    if max_checkpoints is not None:
        record["pruned"] = service.keep_newest(max_checkpoints)
    return record


@contextmanager
def _opened(service: Service, staged: list[JsonObject]) -> Iterator[list[state.Draft]]:
    """The documents that a save is to keep."""
    with ExitStack() as open_files:
        found = []
        for item in staged:
            data = open_files.enter_context(open_staged(service, item["file"]))
            found.append(state.Draft(require_name(item["name"]), item["json"], data))
        yield found


def open_staged(service: Service, name: str) -> BinaryIO:
    """What a client handed in under that name."""
    path = _staged(service, name)
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _staged(service: Service, name: str) -> Path:
    if not _STAGED.fullmatch(name):
        raise malformed("save", f"{name!r} is no staged document")
    return service.fs.store.path / name


def do_state_stage(call: Call, data: str, file: str) -> JsonObject:
    """Add a piece to a document for a client that cannot write to the store, or begin one."""
    store = call.service.fs.store.path
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    if not file:
        sweep(store)
        flags |= os.O_CREAT | os.O_EXCL
    path = _staged(call.service, file or new_name())
    try:
        piece = b64decode(data, validate=True)
    except ValueError as error:
        raise malformed("save", f"a document is no base64 ({error})") from error
    with open(os.open(path, flags, 0o600), "ab", buffering=0) as staged:
        if os.fstat(staged.fileno()).st_size + len(piece) > SIZE_MAX:
            raise malformed("save", f"a document is larger than {SIZE_MAX >> 20} MiB")
        staged.write(piece)
    return {"file": path.name}


def do_state_unstage(call: Call, file: str) -> JsonObject:
    _staged(call.service, file).unlink(missing_ok=True)
    return {}


def do_state(call: Call, checkpoint: str) -> JsonObject:
    found, carried = call.service.documents(checkpoint)
    described = [{"name": item.name, "json": item.is_json, "bytes": item.size} for item in carried]
    return {"checkpoint": found.id, "documents": described}


def do_state_read(call: Call, checkpoint: str, name: str, offset: int, length: int) -> JsonObject:
    wanted = min(max(0, length), _PIECE_MAX)
    data = call.service.read_document(checkpoint, name, max(0, offset), wanted)
    return {"base64": b64encode(data).decode()}


def do_tag(call: Call, checkpoint: str, tag: str, move: bool) -> JsonObject:
    service = call.service
    was = service.find(checkpoint)
    changed = service.tag(str(was.id), tag, move=move)
    more = {"was": was.tag, "reference": reference(changed)}
    return {"checkpoints": [wire.checkpoint(changed) | more]}


def reference(checkpoint: Checkpoint) -> str:
    """What names a checkpoint by its tag: the tag, unless that reads like something else."""
    tag = checkpoint.tag
    return references.safe_tag(tag) if tag and references.is_reserved(tag) else tag


def do_pin(call: Call, checkpoints: list[str]) -> JsonObject:
    return _all(call.service.pin(checkpoints))


def do_unpin(call: Call, checkpoints: list[str]) -> JsonObject:
    return _all(call.service.pin(checkpoints, pinned=False))


def do_delete(call: Call, checkpoints: list[str], tagged: bool) -> Steps[JsonObject]:
    service = call.service
    deleted = service.delete_named(checkpoints, tagged=tagged)
    on_progress = call.on_progress

    def watch(done: int) -> None:
        if on_progress is not None:
            on_progress({"phase": "free", "files": done})

    yield from removal.freeing(service.fs, watch)
    with suppress(Interrupted):
        yield
    service.fs.sync()
    return _all(deleted)


def _all(checkpoints: list[Checkpoint]) -> JsonObject:
    return {"checkpoints": [wire.checkpoint(item) for item in checkpoints]}


# -- verbs of agents that work in steps ------------------------------------------------------------


def do_mark(
    call: Call,
    kind: str,
    message: str,
    ran: str,
    metadata: dict[str, str],
    weak: bool,
    with_subagents: bool,
    writes: list[bytes],
) -> JsonObject:
    """A checkpoint of now. ``changed`` tells whether a new one was taken.

    ``ran`` is the command that it is about, which follows the message as far as it may go into
    history. ``writes`` are the files that a tool is about to write; ``refuse`` tells whether it
    has to leave that, because of ``collisions``.
    """
    service = call.service
    if kind not in hook_checkpoints.KINDS:
        raise malformed("mark", f"{kind!r} is no kind of mark")
    message, metadata = _recorded(message, ran, metadata, service.record_command())
    if with_subagents:
        at_work = hook_checkpoints.subagents_of(service.fs.store)
        if names := at_work.names(metadata.get("session", "")):
            metadata[hook_checkpoints.SUBAGENT] = names
    if ran and kind == "hook":
        call_id = metadata.get(hook_checkpoints.TOOL_USE) or metadata.get("tool", "")
        command = commands.shown(ran, service.record_command())
        begun = runs.tool_runs_of(service.fs.store)
        begun.began(metadata.get("session", ""), call_id, command, service.fs.clock)
    met, refuse = ([], False) if weak or kind != "hook" else _announced(service, metadata, writes)
    if met:
        metadata[collisions.COLLISION] = "\n".join(item["message"] for item in met)
    same = service.unchanged_since()
    found = hook_checkpoints.mark(
        service.fs, kind, message, same, metadata=metadata, cause=call.cause, weak=weak
    )
    service.fs.commit()
    changed = same is None or found.id != same.id
    return {**wire.checkpoint(found), "changed": changed, "collisions": met, "refuse": refuse}


def _announced(
    service: Service, metadata: dict[str, str], paths: list[bytes]
) -> tuple[list[JsonObject], bool]:
    """Note what a tool is about to do: write these files, or run a command. Returns the collisions
    of that, and whether it is refused, so that it will not happen."""
    setting, session = service.on_collision(), metadata.get("session", "")
    if setting == collisions.OFF or not session:
        return [], False
    known, now_ns = collisions.collisions_of(service.fs), service.fs.clock()
    call = metadata.get(hook_checkpoints.TOOL_USE) or metadata.get("tool", "")
    if not paths:
        known.runs(session, call, now_ns)
        return [], False
    service.fs.flush()
    found = list(map(wire.collision, known.of(service.fs, session, paths)))
    refuse = bool(found) and setting == collisions.REFUSE
    if not refuse:
        known.writes(session, call, paths, now_ns)
    return found, refuse


def do_read(call: Call, reader: str, paths: list[bytes]) -> JsonObject:
    """A session has read files, as its hook says; ``count`` of them were noted."""
    fs, wanted = call.service.fs, call.service.on_collision() != collisions.OFF
    if wanted and reader:
        collisions.collisions_of(fs).read(reader, paths, fs.clock())
    return {"count": len(paths) if wanted and reader else 0}


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
    found = [_with_result(fs, item) for item in results]
    fs.commit()
    return {"checkpoints": [item.id for item in found if item is not None]}


def _with_result(fs: Filesystem, item: dict[str, str]) -> Checkpoint | None:
    """The checkpoint before a tool, which says now how that ended, and the command that it ran."""
    found = hook_checkpoints.record_result(fs.store, **item)
    begun = runs.tool_runs_of(fs.store)
    call_id = item["tool_use_id"] or item["tool"]
    run = begun.ended(item["session"], call_id, item["result"], fs.clock)
    known = collisions.collisions_of(fs)
    known.ended(item["session"], call_id, fs.clock(), well=item["result"] == "ok")
    return found if found is None or run is None else runs.record_run(fs.store, found, run)


def do_ran(call: Call, checkpoint: str, ran: str, exit_code: int, duration_ms: int) -> JsonObject:
    """A command was run on a checkpoint's state."""
    service = call.service
    found = service.find(checkpoint)
    command = commands.shown(ran, service.record_command())
    run = Run(command, exit_code, duration_ms, service.fs.clock())
    described = runs.record_run(service.fs.store, found, run)
    service.fs.sync()
    return wire.checkpoint(described)


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
    return {"name": name, "checkpoint": number, "current": tasks.current(fs)}


def do_task_finish(call: Call, name: str) -> JsonObject:
    """``checkpoint`` is where it ends; null if it was not the current one, or not open."""
    fs = call.service.fs
    ends = tasks.finish(fs, name, call.cause)
    fs.commit()
    number = ends.id if ends else None
    return {"name": name, "checkpoint": number, "current": tasks.current(fs)}


def do_task_start(call: Call, name: str) -> JsonObject:
    fs = call.service.fs
    earlier = tasks.tasks(fs).get(name)
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
    record = {"name": name, "checkpoint": ends.id, "current": tasks.current(fs)}
    return record | wire.checkpoint(ends)


def do_task_list(call: Call) -> JsonObject:
    fs = call.service.fs
    known = {checkpoint.id: checkpoint for checkpoint in call.service.checkpoints()}
    found = tasks.tasks(fs).values()
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
    ends = {
        "before": None if done.before is None else done.before.id,
        "after": None if done.after is None else done.after.id,
    }
    changed_any = done.before is not None
    return {"dry_run": False, **wire.revert_plan(done.plan), **ends, "changed": changed_any}
