"""Restores of the workspace, of some paths or of one author's changes; rewind, undo and redo."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ckptfs import history, interrupts
from ckptfs.errors import (
    CheckpointUnknown,
    CkptfsError,
    NotConfirmed,
    NothingToUndo,
    PathUnknown,
    TreeMoved,
    UsageError,
)
from ckptfs.history import Cause, Changed, Checkpoint, LogEntry, Plan, Restored, authors, excluded
from ckptfs.history.authors import LeftAlone
from ckptfs.history.paths import seek
from ckptfs.history.undo import has_moved_on, head_after, take_back, token_back
from ckptfs.history.undo import plan_back as plan_of
from ckptfs.service import wire
from ckptfs.service.arguments import JsonObject, given, malformed, nothing_in_the_way, paths_known
from ckptfs.store import View

if TYPE_CHECKING:
    from ckptfs.service.service import Call, Service

log = logging.getLogger(__name__)


def plan_restore(
    service: Service, checkpoint: str, patterns: Sequence[bytes] | None = None
) -> Plan:
    """What a restore would do, path by path."""
    target = service.find(checkpoint)
    with nothing_in_the_way():
        return history.plan(service.fs, target, _select(service, target, patterns))


def restore(
    service: Service,
    checkpoint: str,
    patterns: Sequence[bytes] | None = None,
    *,
    token: str = "",
    backup: bool = True,
    cause: Cause | None = None,
) -> Restored | None:
    """Make the workspace, or some paths of it, what it was at a checkpoint; None if it is.
    Without patterns it is all of it; an empty list of them is refused.

    What it is now is saved first, unless ``backup`` says otherwise. With the token of a plan it
    is refused if anything changed since.
    """
    target = service.find(checkpoint)
    service.fs.flush()
    with interrupts.stoppable():
        paths = _select(service, target, patterns)
        if token and history.token_of(service.fs, target.epoch, paths) != token:
            raise TreeMoved
        with nothing_in_the_way():
            differs = history.would_change(service.fs, target, paths)
    if not differs:
        return None
    if paths:
        restored = _restore_paths(service, target, paths, cause)
    else:
        restored = history.restore(service.fs, target, cause=cause)
        service.fs.sync()
        service.unannounced.changed.append(restored.changed)
    if not backup:
        service.delete([restored.before])
    return restored


def plan_selective(
    service: Service, checkpoint: str, patterns: Sequence[bytes] | None, wanted: str
) -> tuple[Plan, list[LeftAlone]]:
    """What a restore of one author's changes would do, and what it would leave alone."""
    target = service.find(checkpoint)
    paths = _select(service, target, patterns)
    choice = authors.choose(service.fs, target, wanted, paths)
    return choice.plan(service.fs, paths), choice.skipped


def restore_selective(
    service: Service,
    checkpoint: str,
    patterns: Sequence[bytes] | None,
    wanted: str,
    *,
    token: str = "",
    backup: bool = True,
    cause: Cause | None = None,
) -> tuple[Restored | None, list[LeftAlone]]:
    """Make what one author changed what it was at a checkpoint, and leave the rest alone."""
    target = service.find(checkpoint)
    service.fs.flush()
    with interrupts.stoppable():
        paths = _select(service, target, patterns)
        if token and authors.token(service.fs, target, paths, wanted) != token:
            raise TreeMoved
        choice = authors.choose(service.fs, target, wanted, paths)
    if not choice.mine:
        return None, choice.skipped
    changed = Changed(set(), set())
    # First: also if it fails, the kernel has to hear of it.
    service.unannounced.changed.append(changed)
    restored = authors.restore_choice(service.fs, choice, changed=changed, cause=cause)
    service.fs.sync()
    if not backup:
        service.delete([restored.before])
    return restored, choice.skipped


def acting(service: Service, cause: Cause) -> AbstractContextManager[None]:
    """Who is to be noted for what a verb changes."""
    return authors.acting(service.fs, cause)


def _restore_paths(
    service: Service, target: Checkpoint, paths: list[bytes], cause: Cause | None
) -> Restored:
    changed = Changed(set(), set())
    # First: also if it fails, the kernel has to hear of it.
    service.unannounced.changed.append(changed)
    restored = history.restore_paths(service.fs, target, paths, changed=changed, cause=cause)
    service.fs.sync()
    return restored


def _select(service: Service, target: Checkpoint, wanted: Sequence[bytes] | None) -> list[bytes]:
    patterns = given(wanted, "restore")
    service.fs.flush()
    for pattern in patterns:
        if excluded.is_excluded(service.fs, pattern):
            raise _kept_out(pattern, target)
    views = (service.fs.head, service.fs.view_of(target.epoch))
    reason = f"neither checkpoint {target.id} nor the workspace has it"
    with paths_known("restore", reason, named=b", ".join(patterns)):
        paths = history.select(service.fs, views, patterns)
        kept = [path for path in paths if not _is_kept_out(service, path, views)]
        for pattern in patterns if len(kept) < len(paths) else ():
            found = history.select(service.fs, views, [pattern])
            if all(_is_kept_out(service, path, views) for path in found):
                raise _kept_out(pattern, target)
    return kept


def _is_kept_out(service: Service, path: bytes, views: Iterable[View]) -> bool:
    """Whether a path is excluded, or would be if it were restored."""
    if excluded.is_excluded(service.fs, path):
        return True
    found = [seek(service.fs, view, path) for view in views]
    is_dir = any(inode is not None and inode.is_dir for inode in found)
    return excluded.would_be_excluded(service.fs, path, is_dir=is_dir)


def _kept_out(path: bytes, target: Checkpoint) -> PathUnknown:
    reason = f"it is excluded from history (`cp -a` from .checkpoints/{target.id} can copy it)"
    return PathUnknown(path, reason, verb="restore")


# -- in steps, and back again ----------------------------------------------------------------------


def steps_back(service: Service, steps: int) -> Checkpoint:
    """The checkpoint that `rewind` goes to. One step back is the newest that differs from now, the
    next one the newest before it that differs from it, and so on: what an undo or redo made of a
    state that another checkpoint has is no step."""
    if steps < 1:
        raise UsageError("Cannot rewind: N counts from 1. Nothing was changed.")
    fs, found, there = service.fs, None, 0
    fs.flush()
    with interrupts.stoppable():
        for item in history.lineage(fs):
            if found is None:
                differs = history.would_change(fs, item, [])
            else:
                differs = history.differ(fs.store, found, item)
            if differs:
                found, there = item, there + 1
            if there == steps:
                return item
    raise CheckpointUnknown(f"@-{steps}", reason=_too_far(steps, there))


def undo(
    service: Service, cause: Cause | None = None, *, token: str = "", if_unchanged: bool = False
) -> Restored:
    """Take back the last restore that is not taken back yet: all, or the paths that it was of.

    With ``if_unchanged`` it is refused if anything changed since that restore, with the token
    of a plan if anything did since then.
    """
    return _take_back(service, "undo", cause, token=token, if_unchanged=if_unchanged)


def redo(
    service: Service, cause: Cause | None = None, *, token: str = "", if_unchanged: bool = False
) -> Restored:
    """Take back the last undo; the rest as there."""
    return _take_back(service, "redo", cause, token=token, if_unchanged=if_unchanged)


def plan_back(service: Service, kind: str) -> Plan:
    """What `undo` or `redo` would do."""
    with nothing_in_the_way():
        return plan_of(service.fs, _to_take_back(service, kind))


def _head_back(service: Service, kind: str) -> Checkpoint | None:
    """The checkpoint that `undo` or `redo` makes the head; None if it changes some paths only."""
    service.fs.flush()
    return head_after(service.fs, _to_take_back(service, kind))


def restores(service: Service) -> list[LogEntry]:
    """Every restore, oldest first."""
    return history.restore_log(service.fs)


def _to_take_back(service: Service, kind: str) -> LogEntry:
    entry = history.undoable(service.fs) if kind == "undo" else history.redoable(service.fs)
    if entry is None:
        raise NothingToUndo(kind)
    return entry


def _take_back(
    service: Service, kind: str, cause: Cause | None, *, token: str, if_unchanged: bool
) -> Restored:
    entry, changed = _to_take_back(service, kind), Changed(set(), set())
    service.fs.flush()
    with interrupts.stoppable():
        if token and token_back(service.fs, entry) != token:
            raise TreeMoved
        if if_unchanged and has_moved_on(service.fs, entry):
            done, since = ("undone", "restore") if kind == "undo" else ("redone", "undo")
            raise NotConfirmed(f"the workspace changed since that {since}", done)
    # First: also if it fails, the kernel has to hear of it.
    service.unannounced.changed.append(changed)
    with nothing_in_the_way():
        restored = take_back(service.fs, entry, kind, changed=changed, cause=cause)
    service.fs.sync()
    service.unannounced.changed.append(restored.changed)
    return restored


def _too_far(steps: int, there: int) -> str:
    """Why a rewind of so many steps cannot be: what of the history lies before now."""
    wanted = "1 checkpoint" if steps == 1 else f"{steps} checkpoints"
    known = "none" if there == 0 else f"only {there}"
    return f"Cannot rewind {wanted}: there {'is' if there < 2 else 'are'} {known} before now"


# -- verbs -----------------------------------------------------------------------------------------


def do_plan(
    call: Call,
    checkpoint: str,
    back: str,
    steps: int | None,
    paths: list[bytes] | None,
    only: str,
    files: bool,
) -> JsonObject:
    """What `restore` would do; with ``back`` what `undo` or `redo`, with ``steps`` what `rewind`
    would."""
    service = call.service
    if not (checkpoint or back or steps is not None):
        raise malformed("plan", "the argument 'checkpoint' is missing")
    if not files:
        target = service.find(checkpoint)
        return _planned(target, Plan(target.id, (), (), (), ""), [])
    skipped: list[LeftAlone] = []
    if only:
        found, skipped = service.plan_selective(checkpoint, paths, only)
    elif back:
        found = service.plan_back(back)
    elif steps is not None:
        found = service.plan_restore(str(service.steps_back(steps).id))
    else:
        found = service.plan_restore(checkpoint, paths)
    return _planned(service.find(str(found.target)), found, skipped)


def _planned(target: Checkpoint, found: Plan, skipped: list[LeftAlone]) -> JsonObject:
    return {
        "checkpoint": found.target,
        "token": found.token,
        "added_paths": wire.names(found.added),
        "modified_paths": wire.names(found.modified),
        "deleted_paths": wire.names(found.deleted),
        "skipped": wire.skipped(skipped),
        "state_names": list(target.state),
    }


def do_restore(
    call: Call,
    checkpoint: str,
    paths: list[bytes] | None,
    token: str,
    backup: bool,
    files: bool,
    names: bool,
    only: str,
) -> JsonObject:
    service, cause = call.service, call.cause
    target = service.find(checkpoint).id
    restored, left = None, None
    keeps = backup or names  # the names are found from it
    if files and only:
        restored, left = service.restore_selective(
            str(target), paths, only, token=token, backup=keeps, cause=cause
        )
    elif files:
        restored = service.restore(str(target), paths, token=token, backup=keeps, cause=cause)
    record = wire.not_restored(target) if restored is None else wire.restored(restored)
    if left is not None:
        record["skipped"] = wire.skipped(left)
    record = _with_details(service, record, names=names)
    if restored is not None and keeps and not backup:
        service.delete([restored.before])
    return record


def head_restore(
    service: Service,
    checkpoint: str,
    paths: list[bytes] | None,
    files: bool,
    only: str,
    **_: object,
) -> Checkpoint | None:
    whole = files and not only and paths is None
    return service.find(checkpoint) if whole else None


def do_rewind(call: Call, steps: int, **wanted: Any) -> JsonObject:
    return do_restore(call, str(call.service.steps_back(steps).id), **wanted)


def head_rewind(service: Service, steps: int, **wanted: Any) -> Checkpoint | None:
    return head_restore(service, str(service.steps_back(steps).id), **wanted)


def do_undo(call: Call, token: str, if_unchanged: bool, names: bool) -> JsonObject:
    done = call.service.undo(call.cause, token=token, if_unchanged=if_unchanged)
    return _with_details(call.service, wire.restored(done), names=names)


def head_undo(service: Service, **_: object) -> Checkpoint | None:
    return _head_back(service, "undo")


def do_redo(call: Call, token: str, if_unchanged: bool, names: bool) -> JsonObject:
    done = call.service.redo(call.cause, token=token, if_unchanged=if_unchanged)
    return _with_details(call.service, wire.restored(done), names=names)


def head_redo(service: Service, **_: object) -> Checkpoint | None:
    return _head_back(service, "redo")


def _with_details(service: Service, record: JsonObject, *, names: bool) -> JsonObject:
    """A restore with what its checkpoint carries and, if asked for, the paths that changed. Which
    command to run after it, the client reads in its own user's settings: no client runs what an
    answer names."""
    record["state_names"] = list(service.find(str(record["checkpoint"])).state)
    if names:
        record |= _names_if_found(service, record["before"])
    return record


def _names_if_found(service: Service, before: int | None) -> JsonObject:
    """`changed_names` of a restore that is done, whatever keeps them from being found."""
    try:
        return changed_names(service, before)
    except (CkptfsError, OSError) as error:
        log.warning("restored, but what that changed cannot be told: %s", error)
        return wire.unknown_paths()


def changed_names(service: Service, before: int | None) -> JsonObject:
    """The names that a restore changed, from the checkpoint that undoes it, if anything changed."""
    changes = [] if before is None else service.diff(str(before), "").changes
    return wire.paths_by_change(changes)
