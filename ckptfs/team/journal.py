"""The note of a team restore that is under way: enough to finish it or to take it back.

It is on disk before anything changes and gone when everything has. The phase `members` means that
workspaces are being restored: whoever finds it takes back what was restored. The phase `state`
means that all of them are, and only the team's files are left to be written: whoever finds it
finishes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ckptfs.errors import TeamInvalid
from ckptfs.team.bundles import sync_directory, write_durably

MEMBERS = "members"
STATE = "state"


@dataclass(frozen=True)
class Step:
    """One workspace that is to be restored."""

    workspace: str
    store: str
    checkpoint: int
    #: The checkpoint of the state before.
    before: int
    #: How many restores its log had; a later one with our command is ours.
    restores: int


@dataclass(frozen=True)
class Journal:
    snapshot: str
    before: str
    command: str
    phase: str
    steps: list[Step]


def write(path: Path, journal: Journal) -> None:
    write_durably(path, json.dumps(asdict(journal)).encode())


def read(path: Path) -> Journal | None:
    try:
        record = json.loads(path.read_bytes())
        return Journal(**{**record, "steps": [Step(**step) for step in record["steps"]]})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise TeamInvalid(f"the journal {path}", f"it is damaged ({error})") from error


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_directory(path.parent)
