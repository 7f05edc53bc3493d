"""Going back to a snapshot of a team: all workspaces and all files, or none.

Everything that can be refused is refused before anything changes. Then the workspaces are restored
one by one; if one fails, those before it are taken back. The team's files follow when all are done.
The journal says at every moment what a later command has to do if this one is killed. Workspaces
are those that the caller's registry knows, whatever a snapshot or a journal says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ckptfs.config import Workspace
from ckptfs.connect import open_workspace
from ckptfs.control.client import PATIENCE_SHORT
from ckptfs.errors import CkptfsError, TeamRestoreFailed, TreeMoved
from ckptfs.team import bundles, journal, members, putting
from ckptfs.team.bundles import Part, Snapshot
from ckptfs.team.files import DataDir
from ckptfs.team.journal import Journal, Step
from ckptfs.team.members import TeamWorkspace

JsonObject = dict[str, Any]


class Restoring:
    def __init__(self, data_dir: DataDir, snapshot: Snapshot) -> None:
        self._data_dir = data_dir
        self._snapshot = snapshot
        self._team = snapshot.meta.team
        self.places = [
            TeamWorkspace(part.members, _workspace(part)) for part in snapshot.meta.parts
        ]

    # -- before ------------------------------------------------------------------------------------

    def plan(self) -> JsonObject:
        """What would change, member by member and file by file."""
        parts = []
        for part, place in zip(self._snapshot.meta.parts, self.places, strict=True):
            planned = _call(place.workspace, "plan", {"checkpoint": str(part.checkpoint)})
            kinds = {
                kind: planned[kind] for kind in ("added_files", "modified_files", "deleted_files")
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
        state = putting.plan(self._data_dir, self._team, self._snapshot.files)
        return {
            "team": self._team,
            "snapshot": self._snapshot.meta.id,
            "members": parts,
            "team_files": {
                "added_files": state.added,
                "modified_files": state.modified,
                "deleted_files": state.deleted,
                "held": state.held,
            },
        }

    def require_unchanged(self, plan: JsonObject) -> None:
        """Refuse if a workspace moved on since the plan was shown."""
        if [part["token"] for part in self.plan()["members"]] != [
            part["token"] for part in plan["members"]
        ]:
            raise TreeMoved

    # -- doing it ----------------------------------------------------------------------------------

    def restore(self, before: Snapshot, private: int) -> list[str]:
        """Do it; ``before`` is the state to go back to if it fails, ``private`` where the journal
        stands. Returns the messages that were left to the processes that hold them."""
        note = self._note(before)
        journal.write(private, note)
        try:
            for step in note.steps:
                self._restore_one(step, note.command)
        except BaseException as error:
            self._give_up(private, note, error)
            raise
        journal.write(private, replace(note, phase=journal.STATE))
        try:
            held = putting.put(self._data_dir, self._team, self._snapshot.files).held
        except (CkptfsError, OSError) as error:
            raise TeamRestoreFailed(self._team, "its files", str(error), undone=False) from error
        journal.remove(private)
        return held

    def _note(self, before: Snapshot) -> Journal:
        snapshot, meta = self._snapshot.meta, before.meta
        earlier = {part.workspace: part.checkpoint for part in meta.parts}
        steps = [
            Step(
                part.workspace,
                part.store,
                part.checkpoint,
                earlier[part.workspace],
                len(_call(_workspace(part), "restores")["restores"]),
            )
            for part in snapshot.parts
        ]
        command = f"ckptfs team restore {snapshot.team} {snapshot.id}"
        return Journal(snapshot.id, meta.id, command, journal.MEMBERS, steps)

    def _restore_one(self, step: Step, command: str) -> None:
        asked = {"checkpoint": str(step.checkpoint), "command": command}
        try:
            _call(members.resolve(step.workspace, step.store), "restore", asked)
        except CkptfsError as error:
            raise TeamRestoreFailed(self._team, step.workspace, str(error)) from error

    def _give_up(self, private: int, note: Journal, error: BaseException) -> None:
        """Take back what was restored; what cannot be is left to the next command."""
        try:
            _take_back(note)
        except CkptfsError as worse:
            raise TeamRestoreFailed(self._team, "taking back", str(worse), undone=False) from error
        journal.remove(private)

    # -- after one that was killed -----------------------------------------------------------------

    @staticmethod
    def recover(data_dir: DataDir, snapshots: int | None, private: int, team: str) -> None:
        """Finish or take back a restore that did not come to its end."""
        note = journal.read(private)
        if note is None:
            return
        try:
            if note.phase == journal.STATE:
                snapshot = bundles.load(snapshots, team, note.snapshot)
                putting.put(data_dir, team, snapshot.files)
            else:
                _take_back(note)
        except (CkptfsError, OSError) as error:
            raise TeamRestoreFailed(team, "an earlier restore", str(error), undone=False) from error
        journal.remove(private)


def _take_back(note: Journal) -> None:
    """Put back every workspace that this restore reached; one that it did not stays as it is."""
    for step in note.steps:
        workspace = members.resolve(step.workspace, step.store)
        log = _call(workspace, "restores")["restores"][step.restores :]
        if _is_reached(log, step, note.command):
            asked = {"checkpoint": str(step.before), "command": f"{note.command}: taken back"}
            _call(workspace, "restore", asked)


def _is_reached(log: Sequence[JsonObject], step: Step, command: str) -> bool:
    return any(
        entry["checkpoint"] == step.checkpoint and entry["command"] == command for entry in log
    ) and not any(entry["command"] == f"{command}: taken back" for entry in log)


def _workspace(part: Part) -> Workspace:
    """The workspace of a snapshot's part, if it is still what it was."""
    return members.resolve(part.workspace, part.store, part.members)


def _call(workspace: Workspace, op: str, args: JsonObject | None = None) -> JsonObject:
    with open_workspace(workspace, patience=PATIENCE_SHORT) as session:
        return session.call(op, args)
