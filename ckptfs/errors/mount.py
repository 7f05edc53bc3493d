"""Mounting: the directory to mount on, what the machine allows, and the daemon that serves it."""

from __future__ import annotations

from collections.abc import Sequence

from ckptfs.errors.base import AnyPath, CkptfsError, shell, show


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
            hint="The log may say more." if hint is None else hint,
        )


class NoFuse(MountError):
    kind = "no-fuse"
    exit_code = 31

    def __init__(self, path: AnyPath, reason: str = "this machine has no /dev/fuse") -> None:
        super().__init__(
            f"Cannot mount {show(path)}: {reason}. Nothing was changed.",
            hint="Load the module with `sudo modprobe fuse`; in a container, start it with "
            "--device /dev/fuse --cap-add SYS_ADMIN.",
        )


class NoFusermount(MountError):
    kind = "no-fusermount"
    exit_code = 32

    def __init__(self, path: AnyPath) -> None:
        super().__init__(
            f"Cannot mount {show(path)}: the program fusermount3 is not installed. "
            "Nothing was changed.",
            hint="Install it, on Debian and Ubuntu with `sudo apt install fuse3`.",
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
        """``inside`` is False for one who is in no sandbox, and does not know the store."""
        where = "from inside a sandbox" if inside else "where the store is not known"
        hint = _IN_SANDBOX.get(verb, "Do it outside of the sandbox.")
        if not inside:
            hint = (
                "Run it with the HOME and XDG_DATA_HOME that the workspace was mounted with. "
                "umount(8) and `fusermount3 -u` unmount it with any."
            )
        super().__init__(f"Cannot {verb} {where}: {reason}. Nothing was changed.", hint=hint)


class ProtocolMismatch(ControlError):
    kind = "protocol-mismatch"
    exit_code = 62

    def __init__(self, found: object, supported: int) -> None:
        super().__init__(
            f"Cannot talk to the daemon: it speaks protocol {found!r} and this ckptfs speaks "
            f"{supported}. Nothing was changed.",
            hint="Unmount with the ckptfs that mounted, then mount again with this one.",
        )


class PeerUntrusted(CkptfsError):
    """No `ControlError`: whoever waits for a daemon must not wait for this to pass."""

    kind = "peer-untrusted"
    exit_code = 63

    def __init__(self, path: AnyPath, socket: AnyPath, uid: int) -> None:
        super().__init__(
            f"Cannot ask the daemon of {show(path)}: user {uid} listens at {show(socket)}, who may "
            "not speak for this store. Nothing was sent and nothing was changed.",
            hint="See who can write to the store's directory, then unmount and mount again.",
        )
