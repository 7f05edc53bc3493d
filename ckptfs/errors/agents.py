"""Those who work in a workspace: authors, tasks, teams, and the settings of coding agents."""

from __future__ import annotations

from collections.abc import Sequence

from ckptfs.errors.base import AnyPath, CkptfsError, shell, show
from ckptfs.errors.workspace import WorkspaceError


class AuthorUnknown(WorkspaceError):
    """Nobody who goes by that changed anything."""

    kind = "author-unknown"
    exit_code = 74

    def __init__(self, wanted: str, checkpoint: int | str, known: Sequence[str] = ()) -> None:
        super().__init__(
            f"Cannot restore what {wanted!r} changed: no session, process or command of that name "
            f"changed anything since checkpoint {checkpoint}. Nothing was changed.",
            hint=f"These did: {'; '.join(known)}."
            if known
            else "`ckptfs log PATH` names who changed a file.",
        )


class TaskUnknown(WorkspaceError):
    kind = "task-unknown"
    exit_code = 75

    def __init__(self, name: str, reason: str) -> None:
        deed = f"revert the task {name!r}" if name else "end a task"
        super().__init__(
            f"Cannot {deed}: {reason}. Nothing was changed.",
            hint="`ckptfs task list` shows the tasks.",
        )


class TaskInvalid(WorkspaceError):
    kind = "task-invalid"
    exit_code = 76

    def __init__(self, name: str, reason: str, deed: str = "start a task") -> None:
        super().__init__(
            f"Cannot {deed} {name!r}: {reason}. Nothing was changed.",
            hint="A task has a short name on one line; `ckptfs task list` shows them.",
        )


class TaskConflict(WorkspaceError):
    """Others changed what the task changed."""

    kind = "task-conflict"
    exit_code = 77

    def __init__(self, name: str, paths: Sequence[str]) -> None:
        super().__init__(
            f"Cannot revert the task {name!r}: others changed the same after it: "
            f"{', '.join(paths)}. Nothing was changed.",
            hint="--force takes these back, too, to what they were before the task; "
            "`ckptfs undo` would bring them again.",
        )


class TeamError(CkptfsError):
    """A team of agents, or a snapshot of one."""

    kind = "team"


class TeamUnknown(TeamError):
    kind = "team-unknown"
    exit_code = 80

    def __init__(self, name: str, data_dir: AnyPath) -> None:
        super().__init__(
            f"There is no team {name!r} in {show(data_dir)}. Nothing was changed.",
            hint="A team has teams/NAME/config.json there; --data-dir names another directory.",
        )


class TeamInvalid(TeamError):
    """A name or a file from outside that cannot be used as it is."""

    kind = "team-invalid"
    exit_code = 81

    def __init__(self, what: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot use {what}: {reason}. Nothing was changed.",
            hint=hint or "Put it right, or name another data directory with --data-dir.",
        )


class SnapshotUnknown(TeamError):
    kind = "snapshot-unknown"
    exit_code = 82

    def __init__(self, team: str, name: str, reason: str = "there is none") -> None:
        super().__init__(
            f"Cannot find snapshot {name!r} of team {team!r}: {reason}. Nothing was changed.",
            hint=f"`ckptfs team snapshots {shell(team)}` lists them.",
        )


class TeamBusy(TeamError):
    kind = "team-busy"
    exit_code = 83

    def __init__(self, team: str, reason: str) -> None:
        super().__init__(
            f"Cannot go on with team {team!r}: {reason}. Nothing was changed.",
            hint="Try again in a moment.",
        )


class TeamRestoreFailed(TeamError):
    """One member could not be restored, so none was."""

    kind = "team-restore-failed"
    exit_code = 84

    def __init__(self, team: str, member: str, reason: str, *, undone: bool = True) -> None:
        after = "Every other member is as it was." if undone else "It is half done."
        retry = (
            "The next `ckptfs team snapshot`, `restore` or `snapshot-delete` of this team "
            "finishes it or takes it back."
        )
        super().__init__(
            f"Cannot restore team {team!r}: {member}: {reason.rstrip('.')}. {after}",
            hint=f"Put {member} right and try again." if undone else retry,
        )


class AgentSettingsInvalid(CkptfsError):
    """The settings of a coding agent are not such that a hook could be put into them."""

    kind = "agent-settings-invalid"
    exit_code = 79

    def __init__(self, path: AnyPath, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot edit {show(path)}: {reason}. Nothing was changed.",
            hint=hint or "Put that in order first, or edit the file yourself (docs/AGENTS.md).",
        )
