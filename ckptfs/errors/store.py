"""Stores, the directory to mount on, what the machine allows, and the daemon that serves."""

from __future__ import annotations

from collections.abc import Sequence

from ckptfs.errors.base import AnyPath, CkptfsError, shell, show, spoken


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
            hint = (
                "Write its files into a directory with the ckptfs that made it: ckptfs export. To "
                "begin anew without its history: ckptfs forget DIR."
            )
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
                f"it for the programs that have them: ckptfs umount --force {shell(detached)}"
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
    """``above`` is the directory in which it cannot be made, if it is not there yet."""

    kind = "store-read-only"
    exit_code = 15

    def __init__(self, path: AnyPath, above: AnyPath | None = None) -> None:
        why = "it is read-only" if above is None else f"{show(above)} may not be written to"
        hint = "Check its permissions and whether its file system is mounted read-only."
        super().__init__(
            f"Cannot write to store {show(path)}: {why}. Nothing was changed.",
            hint=hint if above is None else "Name another place for it: --store DIR",
        )


class StoreFull(StoreError):
    kind = "store-full"
    exit_code = 16

    def __init__(self, path: AnyPath, reason: str = "no space is left") -> None:
        self.reason = reason
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

    def __init__(self, path: AnyPath, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"Cannot compact store {show(path)}: {reason}. No file was changed.",
            hint="Try again later.",
        )


class CompactFailed(StoreError):
    kind = "compact-failed"
    exit_code = 85

    def __init__(self, path: AnyPath, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"Cannot compact store {show(path)}: {reason}. The store is as it was.",
            hint="Try again; if it fails again, see: ckptfs check --deep",
        )


class PurgeUnfinished(StoreError):
    """What was purged is nowhere to be seen, and its bytes may be where they were."""

    kind = "purge-unfinished"
    exit_code = 86

    def __init__(self, path: AnyPath, reason: str) -> None:
        super().__init__(
            "Purged from the workspace and every checkpoint, but the bytes may still be in the "
            f"files of store {show(path)}, which could not be compacted: {reason}.",
            hint="When that is mended, `ckptfs compact` removes the bytes; so does the next mount.",
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


# -- mounting and the daemon -----------------------------------------------------------------------


class MountpointError(CkptfsError):
    """The directory cannot be mounted on, or not be unmounted."""

    kind = "mountpoint"


class MountpointMissing(MountpointError):
    kind = "mountpoint-missing"
    exit_code = 20

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {show(path)}: it does not exist. Nothing was changed.",
            hint=f"Create it first: mkdir -p {shell(path)}",
        )


class MountpointNotDirectory(MountpointError):
    kind = "mountpoint-not-directory"
    exit_code = 21

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {show(path)}: it is not a directory. Nothing was changed.",
            hint="Name a directory.",
        )


class MountpointNotEmpty(MountpointError):
    kind = "mountpoint-not-empty"
    exit_code = 22

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot fill {show(path)} with --from: it is not empty. Nothing was changed.",
            hint="Name an empty directory, or leave out --from to take this one over in place.",
        )


class AlreadyMounted(MountpointError):
    kind = "already-mounted"
    exit_code = 23

    def __init__(
        self, path: AnyPath, *, by: str = "ckptfs", pid: int | None = None, user: str = ""
    ) -> None:
        """``user`` is who mounted a workspace there, if it was not the caller."""
        daemon = f" (process {pid})" if pid is not None else ""
        hint = f"Unmount it first: umount {shell(path)}"
        if by == "ckptfs":
            hint = f"It is ready to use. To unmount it: ckptfs umount {shell(path)}"
        if user:
            by += f" of {user}"
            hint = f"Ask {user}, or unmount it as that user: ckptfs umount {shell(path)}"
        super().__init__(
            f"Cannot mount {show(path)}: {by}{daemon} is already mounted there. "
            "Nothing was changed.",
            hint=hint,
        )
        self.pid = pid


class MountpointInStore(MountpointError):
    kind = "mountpoint-in-store"
    exit_code = 24

    def __init__(self, path: AnyPath, store: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {show(path)}: it lies inside the store {show(store)}. "
            "Nothing was changed.",
            hint="Keep the workspace and its store apart.",
        )


class StoreInMountpoint(MountpointError):
    kind = "store-in-mountpoint"
    exit_code = 25

    def __init__(self, path: AnyPath, store: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {show(path)}: its store {show(store)} lies inside it and would be "
            "covered. Nothing was changed.",
            hint="Name a store outside of the workspace with --store.",
        )


class DangerousRoot(MountpointError):
    kind = "dangerous-root"
    exit_code = 26

    def __init__(self, path: AnyPath, what: str = "a directory the system needs") -> None:
        super().__init__(
            f"Cannot mount {show(path)}: it is {what}. Nothing was changed.",
            hint="Mount a directory of your own below it.",
        )


class NestedWorkspace(MountpointError):
    """A mounted workspace inside another one: what happens in the inner one is in no checkpoint of
    the outer, whose restore could take the inner's mountpoint away."""

    kind = "nested-workspace"
    exit_code = 28

    def __init__(self, path: AnyPath, other: AnyPath, *, inside: bool = True) -> None:
        where = f"is inside {show(other)}" if inside else f"has {show(other)} inside"
        hint = "It is part of that workspace's history already; nothing more is needed."
        super().__init__(
            f"Cannot mount {show(path)}: it {where}, a workspace that is mounted. "
            "Nothing was changed.",
            hint=hint if inside else f"Unmount that one first: ckptfs umount {shell(other)}",
        )


class MountpointBusy(MountpointError):
    kind = "mountpoint-busy"
    exit_code = 27

    def __init__(
        self, path: AnyPath, users: Sequence[str] = (), *, also_at: Sequence[str] = ()
    ) -> None:
        who = ", ".join(users) if users else "a process"
        use = "use" if len(users) > 1 else "uses"
        reason = f"{who} still {use} it"
        hint = "Close the files and leave the directory, or detach it with --lazy."
        if also_at:
            reason = f"it is also mounted at {', '.join(also_at)}"
            hint = f"Unmount that first: umount {shell(also_at[0])}. --force ends it everywhere."
        super().__init__(f"Cannot unmount {show(path)}: {reason}. It stays mounted.", hint=hint)


class MountError(CkptfsError):
    """This machine or this user cannot mount."""

    kind = "mount"


class MountFailed(MountError):
    kind = "mount-failed"
    exit_code = 30

    def __init__(self, path: AnyPath, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot mount {show(path)}: {reason}. It is not mounted.",
            hint="The log may say more, and `ckptfs doctor`." if hint is None else hint,
        )


class NoFuse(MountError):
    kind = "no-fuse"
    exit_code = 31

    def __init__(self, path: AnyPath, reason: str = "this machine has no /dev/fuse") -> None:
        super().__init__(
            f"Cannot mount {show(path)}: {reason}. Nothing was changed.",
            hint="Load the module with `sudo modprobe fuse`; in a container, start it with "
            "--device /dev/fuse --cap-add SYS_ADMIN. `ckptfs doctor` says what else is missing.",
        )


class NoFusermount(MountError):
    kind = "no-fusermount"
    exit_code = 32

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {show(path)}: the program fusermount3 is not installed. "
            "Nothing was changed.",
            hint="Install it, on Debian and Ubuntu with `sudo apt install fuse3`. "
            "`ckptfs doctor` says what else is missing.",
        )


class NoPermission(MountError):
    kind = "no-permission"
    exit_code = 33

    def __init__(self, path: AnyPath, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"Cannot mount {show(path)}: {reason}. Nothing was changed.",
            hint="Use a directory that you own." if hint is None else hint,
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
            f"Lost the daemon of {show(path)}: {reason}. What it had stored is kept.",
            hint=f"`ckptfs mount {shell(path)}` or `ckptfs umount {shell(path)}` "
            "brings it in order.",
        )


class DaemonSilent(ControlError):
    """The daemon is there and does not answer."""

    kind = "daemon-silent"
    exit_code = 65

    def __init__(self, path: AnyPath, seconds: float = 0.0, log: AnyPath = "") -> None:
        super().__init__(
            f"Cannot reach the daemon of {show(path)}: it has not answered for {seconds:.0f} "
            "seconds. What it was asked for may still happen.",
            hint=f"Its log is {show(log)}. If it hangs, `ckptfs umount --force {shell(path)}` ends "
            "it.",
        )


class ReaderEnded(ControlError):
    """The process that the daemon had a verb carried out in is gone."""

    kind = "reader-ended"
    exit_code = 67

    def __init__(self, verb: str, reason: str, *, started: bool = True) -> None:
        #: Whether there was such a process: what ended it might end the daemon, too.
        self.started = started
        super().__init__(
            f"Cannot {verb}: the process that read the store for it {reason}. Nothing was changed, "
            "and the mount goes on.",
            hint="Try again. If that happens each time, the store may be damaged: `ckptfs check` "
            "tells. The daemon's log may say more.",
        )


#: What to do in a sandbox instead of a verb that reaches beyond the workspace.
_IN_SANDBOX = {
    "export": "Copy it from the workspace's `.checkpoints` instead: cp -a .checkpoints/ID DEST",
    "import": "Copy the files into the workspace, or import them outside of the sandbox.",
    "reach the daemon": "Bind the workspace into the sandbox so that it can be written to.",
}


class RefusedInSandbox(ControlError):
    """A verb that reaches beyond the workspace, asked for from where only the workspace is seen."""

    kind = "refused-in-sandbox"
    exit_code = 66

    def __init__(
        self, verb: str, reason: str = "it reaches beyond the workspace", *, inside: bool = True
    ) -> None:
        """``inside`` is False for a caller outside of a sandbox that does not know the store."""
        where = "from inside a sandbox" if inside else "where the store is not known"
        hint = _IN_SANDBOX.get(verb, "Do it outside of the sandbox.")
        if not inside:
            hint = (
                "Run it with the HOME and XDG_DATA_HOME that the workspace was mounted with. "
                "umount(8) and `fusermount3 -u` unmount it with any."
            )
        words = f"Cannot {spoken(verb)} {where}: {reason}. Nothing was changed."
        super().__init__(words, hint=hint)


class ProtocolMismatch(ControlError):
    kind = "protocol-mismatch"
    exit_code = 62

    def __init__(self, found: object, supported: int) -> None:
        super().__init__(
            f"Client and daemon are of different versions: one speaks protocol {found!r}, the "
            f"other {supported}. Nothing was changed.",
            hint="Unmount with the ckptfs that mounted, then mount again with this one.",
        )


class PeerUntrusted(CkptfsError):
    """No `ControlError`: code that waits for a daemon must not wait for this to pass."""

    kind = "peer-untrusted"
    exit_code = 63

    def __init__(self, path: AnyPath, socket: AnyPath, uid: int) -> None:
        super().__init__(
            f"Cannot ask the daemon of {show(path)}: user {uid} listens at {show(socket)}, who may "
            "not speak for this store. Nothing was sent and nothing was changed.",
            hint="See who can write to the store's directory, then unmount and mount again.",
        )
