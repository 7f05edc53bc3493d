"""Workspaces: settings, history, trees in and out, and who works in one: authors, tasks, teams."""

from __future__ import annotations

from collections.abc import Sequence

from ckptfs.errors.base import AnyPath, CkptfsError, shell, show


class WorkspaceError(CkptfsError):
    """The workspace, or something in its history, is not there."""

    kind = "workspace"


class WorkspaceUnknown(WorkspaceError):
    kind = "workspace-unknown"
    exit_code = 40

    def __init__(
        self,
        path: AnyPath,
        *,
        above: bool = False,
        mounted: bool = False,
        missing: bool = False,
        store: str = "",
        user: str = "another user",
        hint: str | None = None,
    ) -> None:
        """``mounted`` is said of a workspace that is one, but not of this user's; ``store`` is
        what is known of where its history is, and ``user`` of who mounted it. ``missing`` is a path
        that does not exist."""
        what = f"{show(path)} is not a ckptfs workspace"
        if mounted:
            what = f"{show(path)} is a mounted ckptfs workspace, but not one of yours"
            where = f"Its store is {store}.\n" if store else ""
            hint = (
                f"{where}It was mounted by {user}: run ckptfs as that user (sudo -u), or, as root "
                "who trusts all of that store, with --trust-owner.\n"
                "umount(8) as root unmounts it too, and its daemon writes back."
            )
        elif missing:
            what = f"{show(path)} does not exist, and is no ckptfs workspace"
            hint = hint or "`ckptfs workspaces` lists those that there are."
        elif above:
            what = f"Neither {show(path)} nor a directory above it is a ckptfs workspace"
        super().__init__(
            f"{what}. Nothing was changed.",
            hint=hint or "Make one with `ckptfs mount DIR`, or name one with -w DIR.",
        )


class MountedByOther(WorkspaceError):
    """What stands in the workspace's directory now has another history."""

    kind = "mounted-by-other"
    exit_code = 39

    def __init__(self, path: AnyPath, user: str, store: str, own_store: AnyPath) -> None:
        """``user`` and ``store`` are what is known of the mount; the user is empty if it is the
        caller."""
        with_store = f"the store {show(store)}" if store else "another store"
        hint = f"To unmount it: umount {shell(path)}"
        if user:
            hint = f"Ask {user}, or unmount it as that user: ckptfs umount {shell(path)}"
        super().__init__(
            f"Cannot work on {show(path)}: {user or 'you'} mounted it with {with_store}, not with "
            f"this history, which is in {show(own_store)}. Nothing was changed.",
            hint=f"{hint}\nWhat is saved can be read meanwhile: list, show ID, diff ID ID.",
        )


class WorkspaceReadOnly(WorkspaceError):
    kind = "workspace-read-only"
    exit_code = 36

    def __init__(self, path: AnyPath, verb: str = "change it") -> None:
        super().__init__(
            f"Cannot {verb} in {show(path)}: it is mounted read-only. Nothing was changed.",
            hint=f"Mount it anew without `-o ro`, or: mount -o remount,rw {shell(path)}",
        )


class NotMounted(WorkspaceError):
    kind = "not-mounted"
    exit_code = 41

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Workspace {show(path)} is not mounted. Nothing was changed.",
            hint=f"Mount it with: ckptfs mount {shell(path)}",
        )


class WorkspaceNotEmpty(WorkspaceError):
    kind = "workspace-not-empty"
    exit_code = 43

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot import into {show(path)}: it already has content. Nothing was changed.",
            hint="Import into a new workspace, or copy into this one with cp -a.",
        )


class SettingInvalid(WorkspaceError):
    kind = "setting-invalid"
    exit_code = 71

    def __init__(self, setting: str, reason: str, where: AnyPath = "") -> None:
        place = f" in {show(where)}" if where else ""
        super().__init__(
            f"Cannot use the setting {setting}{place}: {reason}. Nothing was changed.",
            hint="`ckptfs config` lists the settings and their values.",
        )


class SyncError(CkptfsError):
    """A directory could not be brought into the store, or out of it."""

    kind = "sync"


class SourceMissing(SyncError):
    kind = "source-missing"
    exit_code = 50

    def __init__(self, path: AnyPath, reason: str = "it does not exist") -> None:
        super().__init__(
            f"Cannot import {show(path)}: {reason}. Nothing was changed.",
            hint="Name an existing, readable directory.",
        )


class DestinationInvalid(SyncError):
    kind = "destination-invalid"
    exit_code = 51

    def __init__(self, path: AnyPath, reason: str = "it is not empty") -> None:
        super().__init__(
            f"Cannot write to {show(path)}: {reason}. Nothing was changed.",
            hint="Name an absent or an empty directory.",
        )


class OverlappingTrees(SyncError):
    kind = "overlapping-trees"
    exit_code = 52

    def __init__(self, path: AnyPath, other: AnyPath) -> None:
        super().__init__(
            f"Cannot use {show(path)}: it overlaps with {show(other)}. Nothing was changed.",
            hint="Name a directory outside of it.",
        )


class Conflict(SyncError):
    """Both the store and the lower directory changed, and keeping both was not possible."""

    kind = "conflict"
    exit_code = 53


class WriteBackIncomplete(SyncError):
    """The workspace was not, or not cleanly, brought back into its directory."""

    kind = "write-back-incomplete"
    exit_code = 54

    def __init__(
        self, path: AnyPath, reason: str, *, hint: str | None = None, mounted: bool = False
    ) -> None:
        stays = " It stays mounted." if mounted else ""
        if hint is None:
            hint = f"Mount it again to go on: ckptfs mount {shell(path)}"
            if mounted:
                hint = (
                    "Put that right and unmount again. --force leaves out what cannot be written, "
                    "--no-write-back all of it."
                )
        super().__init__(
            f"Directory {show(path)} was not fully brought up to date: {reason}. "
            f"The store has everything.{stays}",
            hint=hint,
        )


# -- history ---------------------------------------------------------------------------------------


class CheckpointUnknown(WorkspaceError):
    kind = "checkpoint-unknown"
    exit_code = 42

    def __init__(
        self, name: str | int, near: Sequence[str] = (), reason: str | None = None
    ) -> None:
        """``near`` are references that may have been meant; ``reason`` is what is wrong where it
        is not plain absence, as a sentence without its end."""
        known = "`ckptfs list` shows the checkpoints there are."
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        super().__init__(
            f"{reason or f'There is no checkpoint {name}'}. Nothing was changed.",
            hint=meant + known,
        )
        self.near = tuple(near)


class CheckpointPinned(WorkspaceError):
    kind = "checkpoint-pinned"
    exit_code = 70

    def __init__(self, checkpoint: int | str) -> None:
        super().__init__(
            f"Cannot delete checkpoint {checkpoint}: it is pinned. Nothing was changed.",
            hint=f"Unpin it first: ckptfs unpin {checkpoint}",
        )


class NothingToUndo(WorkspaceError):
    kind = "nothing-to-undo"
    exit_code = 44

    def __init__(self, verb: str) -> None:
        super().__init__(
            f"Cannot {verb}: there is no {'undo' if verb == 'redo' else 'restore'} to take back. "
            "Nothing was changed.",
            hint="`ckptfs list` shows the checkpoints that you can restore.",
        )


class PathUnknown(WorkspaceError):
    kind = "path-unknown"
    exit_code = 45

    def __init__(
        self, path: AnyPath, reason: str, verb: str = "restore", *, hint: str | None = None
    ) -> None:
        super().__init__(
            f"Cannot {verb} {show(path)}: {reason}. Nothing was changed.",
            hint=hint or "`ls .checkpoints/ID` in the workspace shows what a checkpoint holds.",
        )


class TreeMoved(WorkspaceError):
    """What a dry run said no longer holds."""

    kind = "tree-moved"
    exit_code = 46

    def __init__(self, verb: str = "restore") -> None:
        super().__init__(
            f"Cannot {verb}: the workspace changed since the dry run, or the token is of none. "
            "Nothing was changed.",
            hint="Run it with --dry-run again and look at what it would do now.",
        )


class NotConfirmed(WorkspaceError):
    kind = "not-confirmed"
    exit_code = 47

    def __init__(
        self,
        reason: str,
        deed: str = "restored",
        *,
        option: str = "--force",
        dry_run: bool = True,
    ) -> None:
        """``dry_run`` says whether the verb has that option."""
        look = "; --dry-run says what it would do" if dry_run else ""
        super().__init__(
            f"Not {deed}: {reason}. Nothing was changed.",
            hint=f"{option} goes ahead without asking{look}.",
        )


class MergeConflict(WorkspaceError):
    """Both sides of a merge changed the same things, and the caller chose no resolution."""

    kind = "merge-conflict"
    exit_code = 90

    def __init__(self, paths: Sequence[str]) -> None:
        named = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        super().__init__(
            f"Cannot merge: both sides changed {named}. Nothing was changed.",
            hint="Say what becomes of conflicts: `markers`, `ours` or `theirs`.",
        )


class MergeDriverFailed(WorkspaceError):
    """The program that `merge.driver` names did not do its work."""

    kind = "merge-driver"
    exit_code = 95

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"Cannot merge {path}: {reason}. Nothing was changed.",
            hint="`ckptfs merge NAME --driver ''` merges without it; `ckptfs config merge.driver` "
            "says what it is.",
        )


class TagInvalid(WorkspaceError):
    kind = "tag-invalid"
    exit_code = 48

    def __init__(self, tag: str, reason: str) -> None:
        super().__init__(
            f"Cannot use {tag!r} as a tag: {reason}. Nothing was changed.",
            hint="A tag is a short text on one line.",
        )


class TagTaken(WorkspaceError):
    kind = "tag-taken"
    exit_code = 49

    def __init__(self, tag: str, holder: int | str) -> None:
        super().__init__(
            f"Cannot use {tag!r} as a tag: checkpoint {holder} has it, or one that would look the "
            "same as a file name. Nothing was changed.",
            hint=f"`ckptfs tag ID {tag!r} --move` gives it to checkpoint ID. To give it to "
            "a new one, save that without a tag first.",
        )


class ForkInvalid(WorkspaceError):
    kind = "fork-invalid"
    exit_code = 87

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"Cannot use {name!r} as a fork: {reason}. Nothing was changed.",
            hint="A fork's name is one component of a path, such as `idea-2`.",
        )


class ForkTaken(WorkspaceError):
    kind = "fork-taken"
    exit_code = 88

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"Cannot use {name!r} as a fork's name: {reason}. Nothing was changed.",
            hint="`ckptfs forks` and `ckptfs list` show the names that are taken.",
        )


class ForkUnknown(WorkspaceError):
    kind = "fork-unknown"
    exit_code = 89

    def __init__(self, name: str, near: Sequence[str] = ()) -> None:
        super().__init__(
            f"There is no fork {name!r}. Nothing was changed.",
            hint=f"Did you mean {' or '.join(near)}?" if near else "`ckptfs forks` lists them.",
        )


class ForkBusy(WorkspaceError):
    kind = "fork-busy"
    exit_code = 91

    def __init__(self, name: str, verb: str, users: Sequence[str] = ()) -> None:
        who = ", ".join(users) if users else "a process"
        use = "use" if len(users) > 1 else "uses"
        force = ", or add --force" if verb == "delete" else ""
        super().__init__(
            f"Cannot {verb} fork {name}: {who} still {use} it. Nothing was changed.",
            hint=f"Close the files and leave the directory{force}.",
        )


class ForksTooMany(WorkspaceError):
    kind = "forks-too-many"
    exit_code = 92

    def __init__(self, standing: int, limit: int) -> None:
        super().__init__(
            f"Cannot fork: {standing} forks stand already, and at most {limit} can. Nothing was "
            "changed.",
            hint="Delete some: ckptfs fork --delete NAME",
        )


class StateInvalid(WorkspaceError):
    """A document that cannot be kept with a checkpoint, or is not there."""

    kind = "state-invalid"
    exit_code = 72

    hint = "A document is bytes, or anything that JSON can say, under a name of its own."

    def __init__(self, name: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot use the state document {name!r}: {reason}. Nothing was changed.", hint=hint
        )


class StateNotWritten(WorkspaceError):
    """A restore is done, but a document of its checkpoint did not get where it was wanted."""

    kind = "state-not-written"
    exit_code = 73

    def __init__(self, path: AnyPath, reason: str, *, restored: bool = True) -> None:
        done = "The restore is done, but no" if restored else "The files stay as they are, and no"
        super().__init__(
            f"{done} state was written to {show(path)}: {reason}.",
            hint="`ckptfs restore ID --state-only --state-out FILE` tries again.",
        )


# -- authors, tasks, teams, and the settings of coding agents --------------------------------------


class AuthorUnknown(WorkspaceError):
    """No author of that name changed anything."""

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
            hint=hint or "Put that in order first, or edit it yourself (docs/agents/hooks.md).",
        )
