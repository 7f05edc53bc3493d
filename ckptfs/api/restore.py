"""A restore for programs, with its state documents and its event, and the command to run after it.

The command lets an agent rewind itself and learn what changed. It gets the restore as one JSON
object on stdin and runs in the workspace. The restore has happened whatever becomes of it: a
failure is reported, never more. Which command it is stands in the settings of the user who runs it,
and is read here, by that user's own process: a daemon is not asked.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ckptfs import config
from ckptfs.api.events import CheckpointEvent
from ckptfs.api.values import RestoreResult, restore_of
from ckptfs.api.workspace import Sessions
from ckptfs.control import transfer
from ckptfs.service.arguments import JsonObject

#: Seconds that the command may take.
PATIENCE = 60.0
#: How much of what it said goes into the reason of its failure.
_SAID_MAX = 500

DONE = "done"

#: The setting, by its section and its key, and the file in a store that may have it.
_SECTION, _KEY = "hooks", "on_restore"
_FILE = "config.toml"


def restore(
    sessions: Sessions,
    op: str,
    asked: JsonObject,
    *,
    dry_run: bool,
    on_restore: Sequence[str] | None,
) -> RestoreResult:
    """Restore, or say what it would do. ``on_restore`` stands for the workspace's setting."""
    with sessions.session() as session:
        if dry_run:
            record = session.call("plan", asked)
        else:
            record = session.call(op, {**asked, **sessions.caller(), "names": True})
        wanted = asked.get("state", True) and record["state_names"]
        found = transfer.fetch(session, str(record["checkpoint"])) if wanted else {}
    if dry_run:
        return restore_of(record, found, dry_run=True)
    restored = {**record, "workspace": str(sessions.workspace.path), "state": found}
    # The session is over: the command may ask the workspace itself.
    store = sessions.workspace.store
    command = command_of(store) if on_restore is None else Command(on_restore)
    wanted = command and is_news(restored, found)
    restored["hook"] = run(command, restored, sessions.workspace.path) if wanted else ""
    result = restore_of(restored, found, dry_run=False)
    sessions.emit(CheckpointEvent.CHECKPOINT_RESTORED, restored, result.checkpoint_id)
    return result


# -- the command after it --------------------------------------------------------------------------


class Command(NamedTuple):
    """The words of the command, or none; or why the one that is set is not run."""

    words: Sequence[str] = ()
    refused: str = ""

    def __bool__(self) -> bool:
        return bool(self.words or self.refused)


def command_of(store: Path) -> Command:
    """What the settings want to be run: those of the store, or else of the user who asks. Settings
    that make no sense want nothing: `ckptfs config` tells what is wrong."""
    refused = ""
    for file in (store / _FILE, config.settings_file()):
        try:
            text, reason = _setting(file)
            if text is None:
                continue
            if not reason:
                return Command(shlex.split(text))
            refused = refused or f"it was not run, since {reason}"
        except (OSError, ValueError):
            pass
    return Command(refused=refused)


def _setting(file: Path) -> tuple[str | None, str]:
    """The command that a file sets, None if it sets none, and why it is not run."""
    opened, reason = config.open_settings(file)
    with opened:
        hooks = tomllib.load(opened).get(_SECTION, {})
    text = hooks.get(_KEY) if isinstance(hooks, dict) else None
    return (None if text is None else str(text)), reason


def is_news(restore: dict[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether there is anything to tell: files that changed, or documents to go back to."""
    return bool(restore["changed"] or state)


def run(wanted: Command, restore: dict[str, Any], workspace: Path) -> str:
    """Run it to its end; "done", or why it failed or was not run."""
    if wanted.refused:
        return wanted.refused
    command = wanted.words
    try:
        done = subprocess.run(
            list(command),
            input=payload(restore),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=workspace,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within {PATIENCE:.0f} seconds and was killed"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"{command[0]} could not be run ({reason.lower()})"
    if done.returncode == 0:
        return DONE
    said = done.stderr.decode(errors="replace").strip()[-_SAID_MAX:]
    return f"{command[0]} ended with {done.returncode}" + (f": {said}" if said else "")


def payload(restore: dict[str, Any]) -> bytes:
    """The restore as JSON; bytes in it are {"base64": ...}."""
    return json.dumps(restore, default=_encoded).encode() + b"\n"


def _encoded(value: object) -> Any:
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} is not JSON")
