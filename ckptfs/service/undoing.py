"""Going back in steps: rewind, and taking back restores and undos."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfs import history, interrupts
from ckptfs.errors import CheckpointUnknown, NotConfirmed, NothingToUndo, TreeMoved, UsageError
from ckptfs.history import Cause, Changed, Checkpoint, LogEntry, Plan, Restored
from ckptfs.history.undo import has_moved_on, head_after, take_back, token_back
from ckptfs.history.undo import plan_back as plan_of
from ckptfs.service.refusals import nothing_in_the_way

if TYPE_CHECKING:
    from ckptfs.service.service import Service


def steps_back(service: Service, steps: int) -> Checkpoint:
    """The checkpoint that `rewind` goes to. One step back is the newest that differs from now:
    those that the workspace still equals do not count."""
    way = history.lineage(service.fs.store)
    service.fs.flush()
    with interrupts.stoppable():
        while way and not history.would_change(service.fs, way[0], []):
            way = way[1:]
    if steps < 1:
        raise UsageError("Cannot rewind: N counts from 1. Nothing was changed.")
    if steps > len(way):
        raise CheckpointUnknown(f"@-{steps}", reason=_too_far(steps, len(way)))
    return way[steps - 1]


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


def head_back(service: Service, kind: str) -> Checkpoint | None:
    """The checkpoint that `undo` or `redo` makes the head; None if it changes some paths only."""
    service.fs.flush()
    return head_after(service.fs, _to_take_back(service, kind))


def restores(service: Service) -> list[LogEntry]:
    """Every restore, oldest first."""
    return history.restore_log(service.fs.store)


def _to_take_back(service: Service, kind: str) -> LogEntry:
    store = service.fs.store
    entry = history.undoable(store) if kind == "undo" else history.redoable(store)
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
    service.unannounced.append(changed)  # first: also if it fails, the kernel has to hear of it
    with nothing_in_the_way():
        restored = take_back(service.fs, entry, kind, changed=changed, cause=cause)
    service.fs.sync()
    service.unannounced.append(restored.changed)
    return restored


def _too_far(steps: int, there: int) -> str:
    """Why a rewind of so many steps cannot be: what of the history lies before now."""
    wanted = "1 checkpoint" if steps == 1 else f"{steps} checkpoints"
    known = "none" if there == 0 else f"only {there}"
    return f"Cannot rewind {wanted}: there {'is' if there < 2 else 'are'} {known} before now"
