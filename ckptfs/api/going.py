"""Going back, and what comes with it: the state documents, the command after it, the event."""

from __future__ import annotations

from collections.abc import Sequence

from ckptfs.api import after
from ckptfs.api.asking import Asking
from ckptfs.api.events import CheckpointEvent
from ckptfs.api.values import JsonObject, RestoreResult, restore_of
from ckptfs.control import transfer


def go(
    asking: Asking,
    op: str,
    asked: JsonObject,
    *,
    dry_run: bool,
    on_restore: Sequence[str] | None,
) -> RestoreResult:
    """Restore, or say what it would do. ``on_restore`` stands for the workspace's setting."""
    with asking.session() as session:
        if dry_run:
            record = session.call("plan", asked)
        else:
            record = session.call(op, {**asked, **asking.caller(), "names": True})
        wanted = asked.get("state", True) and record["state"]
        found = transfer.fetch(session, str(record["checkpoint"])) if wanted else {}
    if dry_run:
        return restore_of(record, found, dry_run=True)
    told = {**record, "workspace": str(asking.workspace.path), "state": found}
    # The session is over: the command may ask the workspace itself.
    store = asking.workspace.store
    command = after.command_of(store) if on_restore is None else after.Command(on_restore)
    wanted = command and after.is_news(told, found)
    told["hook"] = after.run(command, told, asking.workspace.path) if wanted else ""
    result = restore_of(told, found, dry_run=False)
    asking.emit(CheckpointEvent.CHECKPOINT_RESTORED, told, result.checkpoint_id)
    return result
