"""Workspaces, their settings, and the directories that go into one or come out of it."""

from __future__ import annotations

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
