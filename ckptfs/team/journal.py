"""The note of a team restore that is under way: enough to finish it or to take it back.

It is on disk before anything changes and gone when everything has. The phase `members` means that
workspaces are being restored: the next command that changes something takes back what was restored.
The phase `state` means that all of them are, and only the team's files are left to be written: the
next command finishes. It stands in the caller's own state directory, since it is obeyed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ckptfs.errors import TeamInvalid
from ckptfs.team import own

MEMBERS = "members"
STATE = "state"

_NAME = "journal.json"


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


def write(private: int, journal: Journal) -> None:
    """``private`` is the descriptor of the directory that it stands in."""
    own.write(private, _NAME, json.dumps(asdict(journal)).encode())


def read(private: int) -> Journal | None:
    try:
        record = json.loads(own.read(private, _NAME, f"the journal {_NAME}"))
        return Journal(**{**record, "steps": [Step(**step) for step in record["steps"]]})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TeamInvalid(f"the journal {_NAME}", f"it is damaged ({error})") from error


def remove(private: int) -> None:
    own.remove(private, _NAME)
