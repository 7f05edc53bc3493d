"""Restoring a snapshot of a team: all workspaces and all files, or none.

Everything that can be refused is refused before anything changes. Then the workspaces are restored
one by one; if one fails, those before it are taken back. The team's files follow when all are done.

The journal is on disk before anything changes and gone when everything has. Its phase `members`
means that workspaces are being restored: the next command that changes something takes back what
was restored. The phase `state` means that all of them are, and only the team's files are left: the
next command finishes. The journal is obeyed, so it stands in the caller's own state directory; and
still only workspaces of the caller's registry are touched.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ckptfs.config import Workspace
from ckptfs.connect import open_workspace
from ckptfs.control.client import PATIENCE_SHORT
from ckptfs.errors import CkptfsError, TeamInvalid, TeamRestoreFailed, TreeMoved
from ckptfs.team import files, members, snapshots, trust
from ckptfs.team.files import DataDir
from ckptfs.team.members import TeamWorkspace
from ckptfs.team.snapshots import Part, Snapshot

JsonObject = dict[str, Any]

# -- the journal -----------------------------------------------------------------------------------

MEMBERS = "members"
STATE = "state"

_NAME = "journal.json"


@dataclass(frozen=True)
class MemberRestore:
    """One workspace that is to be restored."""

    workspace: str
    store: str
    checkpoint: int
    #: The checkpoint of the state before.
    before: int
    #: How many restores its log had before; a later one with our command is ours.
    restores: int


@dataclass(frozen=True)
class Journal:
    snapshot: str
    before: str
    command: str
    phase: str
    steps: list[MemberRestore]


def _write_journal(private: int, journal: Journal) -> None:
    """``private`` is a descriptor of the directory that it is in."""
    trust.write(private, _NAME, json.dumps(asdict(journal)).encode())


def read_journal(private: int) -> Journal | None:
    try:
        record = json.loads(trust.read(private, _NAME, f"the journal {_NAME}"))
        return Journal(**{**record, "steps": [MemberRestore(**step) for step in record["steps"]]})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TeamInvalid(f"the journal {_NAME}", f"it is damaged ({error})") from error


def _remove_journal(private: int) -> None:
    trust.remove(private, _NAME)


# -- restoring -------------------------------------------------------------------------------------


class Restore:
    def __init__(self, data_dir: DataDir, snapshot: Snapshot) -> None:
        self._data_dir = data_dir
        self._snapshot = snapshot
        self._team = snapshot.meta.team
        self.places = [
            TeamWorkspace(part.members, _workspace(part)) for part in snapshot.meta.parts
        ]

    # -- before ------------------------------------------------------------------------------------

    def plan(self) -> JsonObject:
        """What the restore changes, by member and by file."""
        parts = []
        for part, place in zip(self._snapshot.meta.parts, self.places, strict=True):
            planned = _call(place.workspace, "plan", {"checkpoint": str(part.checkpoint)})
            kinds = {
                kind: planned[kind] for kind in ("added_paths", "modified_paths", "deleted_paths")
            }
            parts.append(
                {
                    "members": part.members,
                    "workspace": part.workspace,
                    "checkpoint": part.checkpoint,
                    "token": planned["token"],
                    **kinds,
                }
            )
        state = files.plan(self._data_dir, self._team, self._snapshot.files)
        return {
            "team": self._team,
            "snapshot": self._snapshot.meta.id,
            "members": parts,
            "team_files": {
                "added_paths": state.added,
                "modified_paths": state.modified,
                "deleted_paths": state.deleted,
                "held": state.held,
            },
        }

    def require_unchanged(self, plan: JsonObject) -> None:
        """Refuse if a workspace moved on since the plan was shown."""
        if [part["token"] for part in self.plan()["members"]] != [
            part["token"] for part in plan["members"]
        ]:
            raise TreeMoved

    # -- the restore -------------------------------------------------------------------------------

    def restore(self, before: Snapshot, private: int) -> list[str]:
        """Restore. ``before`` is the state to go back to on a failure, ``private`` the directory
        of the journal. Returns the messages that were left to the processes that hold them."""
        note = self._note(before)
        _write_journal(private, note)
        try:
            for step in note.steps:
                self._restore_one(step, note.command)
        except BaseException as error:
            self._give_up(private, note, error)
            raise
        _write_journal(private, replace(note, phase=STATE))
        try:
            held = files.restore(self._data_dir, self._team, self._snapshot.files).held
        except (CkptfsError, OSError) as error:
            raise TeamRestoreFailed(self._team, "its files", str(error), undone=False) from error
        _remove_journal(private)
        return held

    def _note(self, before: Snapshot) -> Journal:
        snapshot, meta = self._snapshot.meta, before.meta
        earlier = {part.workspace: part.checkpoint for part in meta.parts}
        steps = [
            MemberRestore(
                part.workspace,
                part.store,
                part.checkpoint,
                earlier[part.workspace],
                len(_call(_workspace(part), "restores")["restores"]),
            )
            for part in snapshot.parts
        ]
        command = f"ckptfs team restore {snapshot.team} {snapshot.id}"
        return Journal(snapshot.id, meta.id, command, MEMBERS, steps)

    def _restore_one(self, step: MemberRestore, command: str) -> None:
        asked = {"checkpoint": str(step.checkpoint), "command": command}
        try:
            _call(members.resolve(step.workspace, step.store), "restore", asked)
        except CkptfsError as error:
            raise TeamRestoreFailed(self._team, step.workspace, str(error)) from error

    def _give_up(self, private: int, note: Journal, error: BaseException) -> None:
        """Take back what was restored; on a failure that is left to the next command."""
        try:
            _take_back(note)
        except CkptfsError as worse:
            raise TeamRestoreFailed(self._team, "taking back", str(worse), undone=False) from error
        _remove_journal(private)

    # -- after an interruption ---------------------------------------------------------------------

    @staticmethod
    def recover(data_dir: DataDir, directory: int | None, private: int, team: str) -> None:
        """Finish or take back a restore that did not end."""
        note = read_journal(private)
        if note is None:
            return
        try:
            if note.phase == STATE:
                snapshot = snapshots.load(directory, team, note.snapshot)
                files.restore(data_dir, team, snapshot.files)
            else:
                _take_back(note)
        except (CkptfsError, OSError) as error:
            raise TeamRestoreFailed(team, "an earlier restore", str(error), undone=False) from error
        _remove_journal(private)


def _take_back(note: Journal) -> None:
    """Restore the state before of every workspace that this restore reached."""
    for step in note.steps:
        workspace = members.resolve(step.workspace, step.store)
        log = _call(workspace, "restores")["restores"][step.restores :]
        if _is_reached(log, step, note.command):
            asked = {"checkpoint": str(step.before), "command": f"{note.command}: taken back"}
            _call(workspace, "restore", asked)


def _is_reached(log: Sequence[JsonObject], step: MemberRestore, command: str) -> bool:
    return any(
        entry["checkpoint"] == step.checkpoint and entry["command"] == command for entry in log
    ) and not any(entry["command"] == f"{command}: taken back" for entry in log)


def _workspace(part: Part) -> Workspace:
    """The workspace of a snapshot's part, if it is still what it was."""
    return members.resolve(part.workspace, part.store, part.members)


def _call(workspace: Workspace, op: str, args: JsonObject | None = None) -> JsonObject:
    with open_workspace(workspace, patience=PATIENCE_SHORT) as session:
        return session.call(op, args)
