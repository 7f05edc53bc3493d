"""Stores: not there, not ours, in use, full, damaged, and what a check of one found."""

from __future__ import annotations

from ckptfs.errors.base import AnyPath, CkptfsError, shell, show


class StoreError(CkptfsError):
    """The store cannot be used."""

    kind = "store"


class StoreMissing(StoreError):
    kind = "store-missing"
    exit_code = 10

    def __init__(self, path: AnyPath, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot open store {show(path)}: it does not exist. Nothing was changed.",
            hint="`ckptfs mount DIR` makes a store for a new workspace; with --store STORE it "
            "takes one that was moved."
            if hint is None
            else hint,
        )


class NotAStore(StoreError):
    kind = "not-a-store"
    exit_code = 11

    def __init__(
        self, path: AnyPath, reason: str = "it is not a ckptfs store", *, hint: str | None = None
    ) -> None:
        super().__init__(
            f"Cannot open store {show(path)}: {reason}. Nothing was changed.",
            hint="Name an empty or absent directory for a new store, or an existing store."
            if hint is None
            else hint,
        )


class StoreVersionUnknown(StoreError):
    kind = "store-version-unknown"
    exit_code = 12

    def __init__(self, path: AnyPath, found: int, supported: int) -> None:
        if found in range(1, supported):
            hint = "Write its files into a directory with the ckptfs that made it: ckptfs export."
        else:
            hint = "Use the ckptfs release that wrote it, or a newer one."
        super().__init__(
            f"Cannot open store {show(path)}: its format is version {found} and this ckptfs "
            f"reads version {supported}. Nothing was changed.",
            hint=hint,
        )
        self.found = found
        self.supported = supported


class StoreInUse(StoreError):
    kind = "store-in-use"
    exit_code = 13

    def __init__(
        self, path: AnyPath, pid: int | None = None, *, detached: AnyPath | None = None
    ) -> None:
        """``detached`` is a workspace that was unmounted while files in it were open."""
        who = f"process {pid}" if pid is not None else "another process"
        hint = "Unmount its workspace first with `ckptfs umount DIR`."
        if detached is not None:
            hint = (
                f"{show(detached)} was unmounted while files in it were open. Close them, or end "
                f"it for whoever has them: ckptfs umount --force {shell(detached)}"
            )
        super().__init__(
            f"Cannot open store {show(path)}: {who} is using it. Nothing was changed.",
            hint=hint,
        )
        self.pid = pid


class StoreUnreadable(StoreError):
    kind = "store-unreadable"
    exit_code = 14

    def __init__(self, path: AnyPath, reason: str = "permission denied") -> None:
        super().__init__(
            f"Cannot read store {show(path)}: {reason}. Nothing was changed.",
            hint="Check who owns the store and its files.",
        )


class StoreReadOnly(StoreError):
    kind = "store-read-only"
    exit_code = 15

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot write to store {show(path)}: it is read-only. Nothing was changed.",
            hint="Check its permissions and whether its file system is mounted read-only.",
        )


class StoreFull(StoreError):
    kind = "store-full"
    exit_code = 16

    def __init__(self, path: AnyPath, reason: str = "no space is left") -> None:
        super().__init__(
            f"Cannot write to store {show(path)}: {reason}. What was stored before is intact.",
            hint="Free space on the disk that holds the store and try again.",
        )


class StoreCorrupt(StoreError):
    kind = "store-corrupt"
    exit_code = 17

    def __init__(self, path: AnyPath, reason: str) -> None:
        super().__init__(
            f"Store {show(path)} is damaged: {reason}. Nothing was changed.",
            hint="`ckptfs check --deep --store DIR` lists what is wrong; --repair saves the rest.",
        )


class StoreUnwritten(StoreError):
    kind = "store-unwritten"
    exit_code = 34

    def __init__(self, path: AnyPath, reason: str = "a change could not be put into it") -> None:
        super().__init__(
            f"Cannot write to store {show(path)}: {reason}. It is as it was last committed; what "
            "was not synced after that is lost.",
            hint="The log tells what went wrong. Mount again to go on from there.",
        )


class StoreGone(StoreError):
    """The store's files were deleted or moved away while it was open."""

    kind = "store-gone"
    exit_code = 38

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot write to store {show(path)}: it was deleted or moved away while it was in "
            "use. Its history went with it.",
            hint="If it was moved, mount with --store STORE; else a new history begins.",
        )


class StoreExposed(StoreError):
    kind = "store-exposed"
    exit_code = 29

    def __init__(self, path: AnyPath, name: str = "it") -> None:
        super().__init__(
            f"Cannot trust store {show(path)}: others can write to {name}. Nothing was changed.",
            hint=f"If you trust what is in it: chmod -R go-rwx {shell(path)}",
        )


class StoreUntrusted(StoreError):
    """It belongs to another user, or has files in it that ckptfs does not make."""

    kind = "store-untrusted"
    exit_code = 35

    def __init__(self, path: AnyPath, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot trust store {show(path)}: {reason}. Nothing was changed.",
            hint="ckptfs makes no such file. Find out who put it there before you use the store."
            if hint is None
            else hint,
        )

    @classmethod
    def owned_by(cls, path: AnyPath, uid: int, name: str) -> StoreUntrusted:
        """For a store of another user, who could make anything of the caller's files."""
        return cls(
            path,
            f"it belongs to {name}",
            hint=f"Use it as {name}. If you trust everything in it: --trust-owner {uid}",
        )


class BackupFailed(StoreError):
    kind = "backup-failed"
    exit_code = 18

    def __init__(self, path: AnyPath, reason: str) -> None:
        super().__init__(
            f"Cannot make a backup at {show(path)}: {reason}. The store is unchanged.",
            hint="Name an absent or empty directory on a disk with room for all of the store.",
        )


class StoreBusy(StoreError):
    kind = "store-busy"
    exit_code = 19

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot compact store {show(path)}: a backup of it is being made. "
            "Nothing was changed.",
            hint="Try again when it is done.",
        )


class ProblemsFound(CkptfsError):
    """`ckptfs check` looked and found something."""

    kind = "problems-found"
    exit_code = 3

    def __init__(self, store: AnyPath, count: int) -> None:
        problems = "1 problem" if count == 1 else f"{count} problems"
        super().__init__(
            f"Store {show(store)} has {problems}. Nothing was changed.",
            hint="`ckptfs check --repair`, unmounted, saves all that is whole and keeps the rest.",
        )
