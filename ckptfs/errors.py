"""Every error that is not a plain ``OSError`` of a file-system operation.

Each class owns three things: ``kind`` (stable, for machines), ``exit_code`` (what the command
line ends with) and the words. A message names the failed thing first, then says what is
unchanged; the hint says what to do. Nothing here prints, and nothing here knows who raises.

    CkptfsError                     1
    ├── UsageError                  2
    ├── ProblemsFound               3
    ├── SystemRefused               4
    ├── StoreError
    │   ├── StoreMissing           10
    │   ├── NotAStore              11
    │   ├── StoreVersionUnknown    12
    │   ├── StoreInUse             13
    │   ├── StoreUnreadable        14
    │   ├── StoreReadOnly          15
    │   ├── StoreFull              16
    │   ├── StoreCorrupt           17
    │   ├── StoreUnwritten         34
    │   ├── StoreExposed           29
    │   ├── BackupFailed           18
    │   └── StoreBusy              19
    ├── MountpointError
    │   ├── MountpointMissing      20
    │   ├── MountpointNotDirectory 21
    │   ├── MountpointNotEmpty     22
    │   ├── AlreadyMounted         23
    │   ├── MountpointInStore      24
    │   ├── StoreInMountpoint      25
    │   ├── DangerousRoot          26
    │   ├── MountpointBusy         27
    │   └── NestedWorkspace        28
    ├── MountError
    │   ├── MountFailed            30
    │   ├── NoFuse                 31
    │   ├── NoFusermount           32
    │   └── NoPermission           33
    ├── WorkspaceError
    │   ├── WorkspaceUnknown       40
    │   ├── NotMounted             41
    │   ├── CheckpointUnknown      42
    │   ├── WorkspaceNotEmpty      43
    │   ├── NothingToUndo          44
    │   ├── PathUnknown            45
    │   ├── TreeMoved              46
    │   ├── NotConfirmed           47
    │   ├── TagInvalid             48
    │   ├── TagTaken               49
    │   ├── CheckpointPinned       70
    │   ├── SettingInvalid         71
    │   ├── StateInvalid           72
    │   ├── StateNotWritten        73
    │   ├── AuthorUnknown          74
    │   ├── TaskUnknown            75
    │   ├── TaskInvalid            76
    │   └── TaskConflict           77
    ├── SyncError
    │   ├── SourceMissing          50
    │   ├── DestinationInvalid     51
    │   ├── OverlappingTrees       52
    │   ├── Conflict               53
    │   └── WriteBackIncomplete    54
    ├── TeamError
    │   ├── TeamUnknown            80
    │   ├── TeamInvalid            81
    │   ├── SnapshotUnknown        82
    │   ├── TeamBusy               83
    │   └── TeamRestoreFailed      84
    ├── ExtraMissing               78
    ├── AgentSettingsInvalid       79
    └── ControlError               60
        ├── DaemonGone             61
        └── ProtocolMismatch       62

130 is an interrupt from the keyboard; 1 is a fault in ckptfs itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypedDict

#: A path as any layer has it; decoded only when it goes into a sentence.
AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class ErrorRecord(TypedDict):
    """An error as it travels through the start-up pipe, the socket and ``--json``."""

    kind: str
    message: str
    hint: str
    exit_code: int


class CkptfsError(Exception):
    """The root. ``hint`` may be given for one error or stand on the class for all of its kind."""

    kind: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def record(self) -> ErrorRecord:
        return {
            "kind": self.kind,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(CkptfsError):
    """The command line itself makes no sense."""

    kind = "usage"
    exit_code = 2
    hint = "See `ckptfs --help`."


def no_paths(verb: str) -> UsageError:
    """For a list of paths that is there and empty: who made it did not mean everything."""
    return UsageError(
        f"Cannot {verb}: the list of paths is empty. Nothing was changed.",
        hint="Leave the list out to mean everything.",
    )


class ProblemsFound(CkptfsError):
    """`ckptfs check` looked and found something."""

    kind = "problems-found"
    exit_code = 3

    def __init__(self, store: AnyPath, count: int) -> None:
        problems = "1 problem" if count == 1 else f"{count} problems"
        super().__init__(
            f"Store {_show(store)} has {problems}. Nothing was changed.",
            hint="`ckptfs check --repair`, unmounted, saves all that is whole and keeps the rest.",
        )


class SystemRefused(CkptfsError):
    """The operating system said no, and nobody on the way knew better words for it."""

    kind = "system-refused"
    exit_code = 4

    def __init__(self, what: str, error: OSError) -> None:
        where = f" ({_show(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        reason = (error.strerror or str(error)).lower()
        super().__init__(
            f"Cannot {what}: {reason}{where}.",
            hint="Check the path, its permissions and the space on its disk.",
        )


class StoreError(CkptfsError):
    """The store cannot be used."""

    kind = "store"


class StoreMissing(StoreError):
    kind = "store-missing"
    exit_code = 10

    def __init__(self, path: AnyPath, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot open store {_show(path)}: it does not exist. Nothing was changed.",
            hint="`ckptfs mount DIR` makes a store for a new workspace; with --store STORE it "
            "takes one that was moved."
            if hint is None
            else hint,
        )


class NotAStore(StoreError):
    kind = "not-a-store"
    exit_code = 11

    def __init__(self, path: AnyPath, reason: str = "it is not a ckptfs store") -> None:
        super().__init__(
            f"Cannot open store {_show(path)}: {reason}. Nothing was changed.",
            hint="Name an empty or absent directory for a new store, or an existing store.",
        )


class StoreVersionUnknown(StoreError):
    kind = "store-version-unknown"
    exit_code = 12

    def __init__(self, path: AnyPath, found: int, supported: int | str) -> None:
        super().__init__(
            f"Cannot open store {_show(path)}: its format is version {found} and this ckptfs "
            f"reads version {supported}. Nothing was changed.",
            hint="Use the ckptfs release that wrote it, or a newer one.",
        )
        self.found = found
        self.supported = supported


class StoreInUse(StoreError):
    kind = "store-in-use"
    exit_code = 13

    def __init__(self, path: AnyPath, pid: int | None = None) -> None:
        who = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"Cannot open store {_show(path)}: {who} is using it. Nothing was changed.",
            hint="Unmount its workspace first with `ckptfs umount DIR`.",
        )
        self.pid = pid


class StoreUnreadable(StoreError):
    kind = "store-unreadable"
    exit_code = 14

    def __init__(self, path: AnyPath, reason: str = "permission denied") -> None:
        super().__init__(
            f"Cannot read store {_show(path)}: {reason}. Nothing was changed.",
            hint="Check who owns the store and its files.",
        )


class StoreReadOnly(StoreError):
    kind = "store-read-only"
    exit_code = 15

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot write to store {_show(path)}: it is read-only. Nothing was changed.",
            hint="Check its permissions and whether its file system is mounted read-only.",
        )


class StoreFull(StoreError):
    kind = "store-full"
    exit_code = 16

    def __init__(self, path: AnyPath, reason: str = "no space is left") -> None:
        super().__init__(
            f"Cannot write to store {_show(path)}: {reason}. What was stored before is intact.",
            hint="Free space on the disk that holds the store and try again.",
        )


class StoreCorrupt(StoreError):
    kind = "store-corrupt"
    exit_code = 17

    def __init__(self, path: AnyPath, reason: str) -> None:
        super().__init__(
            f"Store {_show(path)} is damaged: {reason}. Nothing was changed.",
            hint="`ckptfs check --deep --store DIR` lists what is wrong; --repair saves the rest.",
        )


class StoreUnwritten(StoreError):
    kind = "store-unwritten"
    exit_code = 34

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot write to store {_show(path)}: a change could not be put into it. It is as it "
            "was last committed; what came after that is lost.",
            hint="The log tells what went wrong. Mount again to go on from there.",
        )


class StoreExposed(StoreError):
    kind = "store-exposed"
    exit_code = 29

    def __init__(self, path: AnyPath, name: str = "it") -> None:
        super().__init__(
            f"Cannot trust store {_show(path)}: others can write to {name}. Nothing was changed.",
            hint=f"If you trust what is in it: chmod -R go-rwx {_shell(path)}",
        )


class BackupFailed(StoreError):
    kind = "backup-failed"
    exit_code = 18

    def __init__(self, path: AnyPath, reason: str) -> None:
        super().__init__(
            f"Cannot make a backup at {_show(path)}: {reason}. The store is unchanged.",
            hint="Name an absent or empty directory on a disk with room for all of the store.",
        )


class StoreBusy(StoreError):
    kind = "store-busy"
    exit_code = 19

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot compact store {_show(path)}: a backup of it is being made. "
            "Nothing was changed.",
            hint="Try again when it is done.",
        )


class MountpointError(CkptfsError):
    """The directory cannot be mounted on, or not be unmounted."""

    kind = "mountpoint"


class MountpointMissing(MountpointError):
    kind = "mountpoint-missing"
    exit_code = 20

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {_show(path)}: it does not exist. Nothing was changed.",
            hint=f"Create it first: mkdir -p {_shell(path)}",
        )


class MountpointNotDirectory(MountpointError):
    kind = "mountpoint-not-directory"
    exit_code = 21

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {_show(path)}: it is not a directory. Nothing was changed.",
            hint="Name a directory.",
        )


class MountpointNotEmpty(MountpointError):
    kind = "mountpoint-not-empty"
    exit_code = 22

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot fill {_show(path)} with --from: it is not empty. Nothing was changed.",
            hint="Name an empty directory, or leave out --from to take this one over in place.",
        )


class AlreadyMounted(MountpointError):
    kind = "already-mounted"
    exit_code = 23

    def __init__(self, path: AnyPath, *, by: str = "ckptfs", pid: int | None = None) -> None:
        daemon = f" (process {pid})" if pid is not None else ""
        hint = f"Unmount it first: umount {_shell(path)}"
        if by == "ckptfs":
            hint = f"It is ready to use. To unmount it: ckptfs umount {_shell(path)}"
        super().__init__(
            f"Cannot mount {_show(path)}: {by}{daemon} is already mounted there. "
            "Nothing was changed.",
            hint=hint,
        )
        self.pid = pid


class MountpointInStore(MountpointError):
    kind = "mountpoint-in-store"
    exit_code = 24

    def __init__(self, path: AnyPath, store: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {_show(path)}: it lies inside the store {_show(store)}. "
            "Nothing was changed.",
            hint="Keep the workspace and its store apart.",
        )


class StoreInMountpoint(MountpointError):
    kind = "store-in-mountpoint"
    exit_code = 25

    def __init__(self, path: AnyPath, store: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {_show(path)}: its store {_show(store)} lies inside it and would be "
            "covered. Nothing was changed.",
            hint="Name a store outside of the workspace with --store.",
        )


class DangerousRoot(MountpointError):
    kind = "dangerous-root"
    exit_code = 26

    def __init__(self, path: AnyPath, what: str = "a directory the system needs") -> None:
        super().__init__(
            f"Cannot mount {_show(path)}: it is {what}. Nothing was changed.",
            hint="Mount a directory of your own below it.",
        )


class NestedWorkspace(MountpointError):
    """A mounted workspace inside another one: what happens in the inner one is in no checkpoint of
    the outer, whose restore could take the inner's mountpoint away."""

    kind = "nested-workspace"
    exit_code = 28

    def __init__(self, path: AnyPath, other: AnyPath, *, inside: bool = True) -> None:
        where = f"is inside {_show(other)}" if inside else f"has {_show(other)} inside"
        hint = "It is part of that workspace's history already; nothing more is needed."
        super().__init__(
            f"Cannot mount {_show(path)}: it {where}, a workspace that is mounted. "
            "Nothing was changed.",
            hint=hint if inside else f"Unmount that one first: ckptfs umount {_shell(other)}",
        )


class MountpointBusy(MountpointError):
    kind = "mountpoint-busy"
    exit_code = 27

    def __init__(self, path: AnyPath, users: Sequence[str] = ()) -> None:
        who = ", ".join(users) if users else "a process"
        use = "use" if len(users) > 1 else "uses"
        super().__init__(
            f"Cannot unmount {_show(path)}: {who} still {use} it. It stays mounted.",
            hint="Close the files and leave the directory, or detach it with --lazy.",
        )


class MountError(CkptfsError):
    """This machine or this user cannot mount."""

    kind = "mount"


class MountFailed(MountError):
    kind = "mount-failed"
    exit_code = 30

    def __init__(self, path: AnyPath, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot mount {_show(path)}: {reason}. It is not mounted.",
            hint="The log may say more." if hint is None else hint,
        )


class NoFuse(MountError):
    kind = "no-fuse"
    exit_code = 31

    def __init__(self, path: AnyPath, reason: str = "this machine has no /dev/fuse") -> None:
        super().__init__(
            f"Cannot mount {_show(path)}: {reason}. Nothing was changed.",
            hint="Load the module with `sudo modprobe fuse`; in a container, start it with "
            "--device /dev/fuse --cap-add SYS_ADMIN.",
        )


class NoFusermount(MountError):
    kind = "no-fusermount"
    exit_code = 32

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {_show(path)}: the program fusermount3 is not installed. "
            "Nothing was changed.",
            hint="Install it, on Debian and Ubuntu with `sudo apt install fuse3`.",
        )


class NoPermission(MountError):
    kind = "no-permission"
    exit_code = 33

    def __init__(self, path: AnyPath, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot mount {_show(path)}: {reason}. Nothing was changed.",
            hint="Use a directory that you own." if hint is None else hint,
        )


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
        hint: str | None = None,
    ) -> None:
        """``mounted`` is said of a workspace that is one, but not of this user's."""
        what = f"{_show(path)} is not a ckptfs workspace"
        if mounted:
            what = f"{_show(path)} is a mounted ckptfs workspace, but not one of yours"
            hint = (
                "Another user, or one with another HOME or XDG_DATA_HOME, mounted it; set these to "
                "what they were then.\nfusermount3 -u unmounts it too, and its daemon writes back."
            )
        elif above:
            what = f"Neither {_show(path)} nor a directory above it is a ckptfs workspace"
        super().__init__(
            f"{what}. Nothing was changed.",
            hint=hint or "Make one with `ckptfs mount DIR`, or name one with -w DIR.",
        )


class NotMounted(WorkspaceError):
    kind = "not-mounted"
    exit_code = 41

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Workspace {_show(path)} is not mounted. Nothing was changed.",
            hint=f"Mount it with: ckptfs mount {_shell(path)}",
        )


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


class WorkspaceNotEmpty(WorkspaceError):
    kind = "workspace-not-empty"
    exit_code = 43

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot import into {_show(path)}: it already has content. Nothing was changed.",
            hint="Import into a new workspace, or copy into this one with cp -a.",
        )


class NothingToUndo(WorkspaceError):
    kind = "nothing-to-undo"
    exit_code = 44

    def __init__(self, verb: str) -> None:
        super().__init__(
            f"Cannot {verb}: there is no restore to {verb}. Nothing was changed.",
            hint="`ckptfs list` shows the checkpoints that you can restore.",
        )


class PathUnknown(WorkspaceError):
    kind = "path-unknown"
    exit_code = 45

    def __init__(
        self, path: AnyPath, reason: str, verb: str = "restore", *, hint: str | None = None
    ) -> None:
        super().__init__(
            f"Cannot {verb} {_show(path)}: {reason}. Nothing was changed.",
            hint=hint or "`ls .checkpoints/ID` in the workspace shows what a checkpoint holds.",
        )


class TreeMoved(WorkspaceError):
    """What a dry run said no longer holds."""

    kind = "tree-moved"
    exit_code = 46

    def __init__(self) -> None:
        super().__init__(
            "Cannot restore: the workspace changed since the dry run, or the token is of none. "
            "Nothing was changed.",
            hint="Run it with --dry-run again and look at what it would do now.",
        )


class NotConfirmed(WorkspaceError):
    kind = "not-confirmed"
    exit_code = 47

    def __init__(self, reason: str, deed: str = "restored", *, option: str = "--force") -> None:
        super().__init__(
            f"Not {deed}: {reason}. Nothing was changed.",
            hint=f"{option} goes ahead without asking; --dry-run says what it would do.",
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


class CheckpointPinned(WorkspaceError):
    kind = "checkpoint-pinned"
    exit_code = 70

    def __init__(self, checkpoint: int | str) -> None:
        super().__init__(
            f"Cannot delete checkpoint {checkpoint}: it is pinned. Nothing was changed.",
            hint=f"Unpin it first: ckptfs unpin {checkpoint}",
        )


class SettingInvalid(WorkspaceError):
    kind = "setting-invalid"
    exit_code = 71

    def __init__(self, setting: str, reason: str, where: AnyPath = "") -> None:
        place = f" in {_show(where)}" if where else ""
        super().__init__(
            f"Cannot use the setting {setting}{place}: {reason}. Nothing was changed.",
            hint="`ckptfs config` lists the settings and their values.",
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


class ExtraMissing(CkptfsError):
    """A part of ckptfs that needs a package which is installed on demand."""

    kind = "extra-missing"
    exit_code = 78

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"Cannot start {what}: the Python package {package} is not installed here.",
            hint=f"Install it with: {sys.executable} -m pip install 'ckptfs[{extra}]'",
        )


class AgentSettingsInvalid(CkptfsError):
    """The settings of a coding agent are not such that a hook could be put into them."""

    kind = "agent-settings-invalid"
    exit_code = 79

    def __init__(self, path: AnyPath, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot edit {_show(path)}: {reason}. Nothing was changed.",
            hint=hint or "Put that in order first, or edit the file yourself (docs/AGENTS.md).",
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
            f"{done} state was written to {_show(path)}: {reason}.",
            hint="`ckptfs restore ID --state-only --state-out FILE` tries again.",
        )


class SyncError(CkptfsError):
    """A directory could not be brought into the store, or out of it."""

    kind = "sync"


class SourceMissing(SyncError):
    kind = "source-missing"
    exit_code = 50

    def __init__(self, path: AnyPath, reason: str = "it does not exist") -> None:
        super().__init__(
            f"Cannot import {_show(path)}: {reason}. Nothing was changed.",
            hint="Name an existing, readable directory.",
        )


class DestinationInvalid(SyncError):
    kind = "destination-invalid"
    exit_code = 51

    def __init__(self, path: AnyPath, reason: str = "it is not empty") -> None:
        super().__init__(
            f"Cannot write to {_show(path)}: {reason}. Nothing was changed.",
            hint="Name an absent or an empty directory.",
        )


class OverlappingTrees(SyncError):
    kind = "overlapping-trees"
    exit_code = 52

    def __init__(self, path: AnyPath, other: AnyPath) -> None:
        super().__init__(
            f"Cannot use {_show(path)}: it overlaps with {_show(other)}. Nothing was changed.",
            hint="Name a directory outside of it.",
        )


class Conflict(SyncError):
    """Both the store and the directory below changed, and keeping both was not possible."""

    kind = "conflict"
    exit_code = 53


class WriteBackIncomplete(SyncError):
    """The workspace is not mounted, and its directory is not fully current."""

    kind = "write-back-incomplete"
    exit_code = 54

    def __init__(self, path: AnyPath, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Directory {_show(path)} was not fully brought up to date: {reason}. "
            "The store has everything.",
            hint=hint or f"Mount it again to go on: ckptfs mount {_shell(path)}",
        )


class TeamError(CkptfsError):
    """A team of agents, or a snapshot of one."""

    kind = "team"


class TeamUnknown(TeamError):
    kind = "team-unknown"
    exit_code = 80

    def __init__(self, name: str, data_dir: AnyPath) -> None:
        super().__init__(
            f"There is no team {name!r} in {_show(data_dir)}. Nothing was changed.",
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
            hint=f"`ckptfs team snapshots {_shell(team)}` lists them.",
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
        retry = "The next `ckptfs team` command about this team finishes it or takes it back."
        super().__init__(
            f"Cannot restore team {team!r}: {member}: {reason.rstrip('.')}. {after}",
            hint=f"Put {member} right and try again." if undone else retry,
        )


class ControlError(CkptfsError):
    """The daemon answered with something that is no answer."""

    kind = "control"
    exit_code = 60


class DaemonGone(ControlError):
    kind = "daemon-gone"
    exit_code = 61

    def __init__(self, path: AnyPath, reason: str = "it ended before it answered") -> None:
        super().__init__(
            f"Lost the daemon of {_show(path)}: {reason}. What it had stored is kept.",
            hint=f"`ckptfs mount {_shell(path)}` or `ckptfs umount {_shell(path)}` "
            "brings it in order.",
        )


class ProtocolMismatch(ControlError):
    kind = "protocol-mismatch"
    exit_code = 62

    def __init__(self, found: object, supported: int) -> None:
        super().__init__(
            f"Cannot talk to the daemon: it speaks protocol {found!r} and this ckptfs speaks "
            f"{supported}. Nothing was changed.",
            hint="Unmount with the ckptfs that mounted, then mount again with this one.",
        )


def from_record(record: ErrorRecord) -> CkptfsError:
    """The error that ``record`` was made from, for raising on the other side of a socket.

    The words are taken as they are; a kind this version does not know becomes a plain
    `CkptfsError`, so an older client still shows what a newer daemon says.
    """
    found = _by_kind().get(record["kind"], CkptfsError)
    error = found.__new__(found)
    CkptfsError.__init__(error, record["message"], hint=record["hint"])
    return error


def every_error() -> Iterator[type[CkptfsError]]:
    """Every class of the tree, the root first."""
    pending: list[type[CkptfsError]] = [CkptfsError]
    while pending:
        cls = pending.pop(0)
        yield cls
        pending.extend(cls.__subclasses__())


def _by_kind() -> dict[str, type[CkptfsError]]:
    return {cls.kind: cls for cls in every_error()}


def _show(path: AnyPath) -> str:
    """A path for a sentence. Bytes that are no UTF-8 stay in it; the screen escapes them."""
    return os.fsdecode(path)


def _shell(path: AnyPath) -> str:
    """A path for a command to copy: quoted only when it must be, since most need no quotes."""
    text = _show(path)
    safe = all(char.isalnum() or char in "/._-+:@%,=" for char in text)
    return text if safe and text else "'" + text.replace("'", "'\"'\"'") + "'"
