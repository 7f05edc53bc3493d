"""The command to run after a restore, so that an agent can rewind itself and be told what changed.

It gets the restore as one JSON object on stdin and runs in the workspace. The restore has happened
whatever becomes of it: a failure is told, never more.
"""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Seconds that the command may take.
PATIENCE = 60.0
#: How much of what it said goes into the reason of its failure.
_SAID_MAX = 500

DONE = "done"


def is_news(restore: dict[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether there is anything to tell: files that changed, or documents to go back to."""
    return bool(restore["changed"] or state)


def run(command: Sequence[str], restore: dict[str, Any], workspace: Path) -> str:
    """Run it to its end; "done", or why it failed."""
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
