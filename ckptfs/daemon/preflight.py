"""Preflight checks of a mount: everything that can be checked before anything changes.

`plan` answers from paths, the mount table, permissions and the machine, in an order in which the
first error is the one to fix first. Checks that need the store or an uncovered directory are in
`check_directory`, which the daemon calls once it has both. Nothing here changes anything.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ckptfs import config, control_file, locating
from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.daemon import mounts
from ckptfs.errors import (
    AlreadyMounted,
    DangerousRoot,
    MountpointInStore,
    MountpointMissing,
    MountpointNotDirectory,
    MountpointNotEmpty,
    NestedWorkspace,
    NoFuse,
    NoFusermount,
    NoPermission,
    NotAStore,
    StoreInMountpoint,
    StoreInUse,
    StoreMissing,
    StoreReadOnly,
    StoreUnreadable,
    UsageError,
    reason_of,
)

#: Directories that the system or everything of a user lives in.
SYSTEM_ROOTS = frozenset(
    Path(path)
    for path in (
        "/ /bin /boot /dev /dev/shm /etc /home /lib /lib32 /lib64 /libx32 /media /mnt /opt /proc "
        "/root /run /run/lock /run/user /sbin /srv /sys /tmp /usr /usr/bin /usr/include /usr/lib "
        "/usr/lib64 /usr/libexec /usr/local /usr/local/bin /usr/local/lib /usr/sbin /usr/share "
        "/usr/src /var /var/cache /var/lib /var/log /var/mail /var/opt /var/run /var/spool "
        "/var/tmp"
    ).split()
)
#: Nothing below these is a place for files either.
KERNEL_TREES = (Path("/proc"), Path("/sys"), Path("/dev"))

#: Seconds that a mount waits for the daemon before it to end, by the state that one is in. One
#: that says it serves, though nothing is mounted, has not noticed yet.
ENDING_PATIENCE = {
    runtime.SERVING: 2.0,
    runtime.UNMOUNTING: 60.0,
    runtime.WRITING_BACK: 60.0,
}
_LOOK_AGAIN = 0.2
#: The same for one whose store is gone.
_GONE_PATIENCE = 10.0

CAP_SYS_ADMIN = 21

_HINT_WRITE = "Use one that you may write to (chmod u+w, if it is yours)."
_HINT_RO = "Use one that you may write to, or mount it read-only with `-o ro`."


class MountRequest(NamedTuple):
    """What the command line asks for, as it was typed."""

    directory: str
    store: str | None = None
    source: str | None = None
    #: None leaves the choice to the file system's default.
    xattrs: bool | None = None
    allow_other: bool = False
    write_back: bool = True
    #: When to take checkpoints by itself, as `ckptfs.history.auto.parse_policy` reads it.
    auto: str = "command"
    #: Patterns of what is to be kept out of history from now on.
    exclude: tuple[str, ...] = ()
    #: What the kernel is told that differs from its default: of ro, suid, dev and noexec.
    flags: frozenset[str] = frozenset()


class Plan(NamedTuple):
    """A mount that passed the rules."""

    workspace: Workspace
    source: Path | None
    xattrs: bool | None
    allow_other: bool
    write_back: bool
    #: A FUSE server died here; its mount has to go first.
    covered_by_dead: bool
    #: When to take checkpoints by itself.
    auto: str = "command"
    #: The workspace had this store before, and nothing is left of it.
    history_lost: bool = False
    #: Patterns to add to those that keep files out of history.
    exclude: tuple[str, ...] = ()
    #: Where the workspace was before it was moved here.
    moved_from: Path | None = None
    #: What the kernel is told that differs from its default: of ro, suid, dev and noexec.
    flags: frozenset[str] = frozenset()
    #: Why the last daemon failed, if it did.
    failure: str = ""
    #: The workspace did not have this store before: it may be a copy, or come from elsewhere.
    new_store: bool = False

    @property
    def read_only(self) -> bool:
        return "ro" in self.flags


def plan(request: MountRequest) -> Plan:
    """Check everything that can be checked from outside. Raises the first rule that is broken."""
    path = config.resolve(request.directory)
    check_not_dangerous(path)
    dead = check_not_mounted(path)
    check_not_nested(path)
    if not dead:
        check_is_directory(path)
    workspace = Workspace(path, choose_store(path, request.store))
    check_apart(path, workspace.store)
    check_unused(workspace)
    source = None if request.source is None else check_source(request.source, workspace)
    check_machine(path, allow_other=request.allow_other)
    check_flags(path, request.flags)
    check_store(workspace.store)
    check_registry(path)
    checked = Plan(
        workspace,
        source,
        request.xattrs,
        request.allow_other,
        request.write_back,
        dead,
        request.auto,
        is_history_lost(workspace),
        request.exclude,
        moved_from(workspace),
        request.flags,
        str((runtime.left_behind(workspace) or {}).get("reason", "")),
        new_store=not _had_store(workspace),
    )
    if not dead:
        check_directory(checked)
    return checked


def check_not_dangerous(path: Path) -> None:
    """Refuse the places whose loss from sight would break the machine or the user's login."""
    home = config.resolve(config.home())
    if path == home:
        raise DangerousRoot(path, "your home directory")
    if path in SYSTEM_ROOTS:
        raise DangerousRoot(path)
    if path in home.parents:
        raise DangerousRoot(path, "above your home directory")
    if any(path.is_relative_to(tree) for tree in KERNEL_TREES) and not path.is_relative_to(
        "/dev/shm"
    ):
        raise DangerousRoot(path, "part of the kernel's own file systems")


def check_not_mounted(path: Path) -> bool:
    """Refuse a path that is covered by a living mount; say whether a dead one covers it."""
    mount = mounts.mount_at(path)
    if mount is None:
        return False
    if not mount.is_ours:
        by = f"a file system of type {mount.fstype}"
        if mount.fstype.startswith("fuse") and mounts.is_dead(path):
            by = f"a dead file system of type {mount.fstype}"
        raise AlreadyMounted(path, by=by)
    # Ask the daemon's note before the mount itself: a stopped daemon would never answer.
    if user := _other_user(path):
        raise AlreadyMounted(path, user=user)
    workspace = config.lookup(path)
    daemon = runtime.living(workspace) if workspace is not None else None
    if workspace is not None and daemon is not None and _let_unmount(workspace, daemon):
        return check_not_mounted(path)
    if workspace is not None and daemon is None and runtime.store_is_gone(workspace):
        wait_for_storeless(workspace, _GONE_PATIENCE)
        if not mounts.is_covered(path):
            return False
    if daemon is not None or not mounts.is_dead(path):
        raise AlreadyMounted(path, pid=(daemon.pid or None) if daemon is not None else None)
    return True


def _other_user(path: Path) -> str:
    """Who, other than the caller, has a workspace mounted at this path."""
    mount = control_file.foreign_mount(str(path), "")
    return "" if mount is None else runtime.mounted_by(mount)


def _let_unmount(workspace: Workspace, daemon: runtime.Daemon) -> bool:
    """Wait for a daemon that is unmounting; whether it is something else by now."""
    waited = 0.0
    now: runtime.Daemon | None = daemon
    while now is not None and now.state == runtime.UNMOUNTING:
        if waited >= ENDING_PATIENCE[runtime.UNMOUNTING]:
            return False
        runtime.wait_for_end(now, _LOOK_AGAIN)
        waited += _LOOK_AGAIN
        now = runtime.living(workspace)
    return daemon.state == runtime.UNMOUNTING


def check_not_nested(path: Path) -> None:
    """Refuse a workspace inside of a mounted one, and one that would cover a mounted one."""
    around = mounts.mount_around(path)
    if around is not None and around.is_ours:
        raise NestedWorkspace(path, around.path, inside=True)
    for mount in mounts.mounts_below(path):
        if mount.is_ours:
            raise NestedWorkspace(path, mount.path, inside=False)


def check_is_directory(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except PermissionError as error:
        raise NoPermission(path, "you may not look at it") from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise MountpointMissing(path) from error
        reason = reason_of(error)
        raise NoPermission(path, f"it cannot be read ({reason})") from error
    if not stat.S_ISDIR(mode):
        raise MountpointNotDirectory(path)


def choose_store(path: Path, named: str | None) -> Path:
    """The store to use: the named one, else the one this workspace had last, under this path or
    before it was moved, else the default."""
    if named is not None:
        return config.resolve(named)
    default = config.default_store(path)
    known = config.registered(path)
    if known is None:
        before = None if (default / "data.mdb").exists() else config.moved(path)
        return _resolve_default(config.free_store(path)) if before is None else before.store
    if known.store == default:
        return _resolve_default(default)
    if not known.store.exists():
        # A new and empty history in its place would hide that something is missing.
        raise StoreMissing(
            known.store, hint="This workspace was last mounted with it. Name a store with --store."
        )
    return known.store


def _resolve_default(store: Path) -> Path:
    """A link in a default place leads to another only if the caller or root put it there: with HOME
    kept by sudo, the place is another user's. A link that stays is refused as no store."""
    place = config.resolve(store.parent) / store.name
    is_link = os.path.islink(place)
    if is_link and os.lstat(place).st_uid not in {0, os.geteuid(), *locating.trusted_owners()}:
        return place
    return config.resolve(place) if is_link else place


def moved_from(workspace: Workspace) -> Path | None:
    """Where the workspace was with this store, if it was moved."""
    if config.registered(workspace.path) is not None:
        return None
    before = config.moved(workspace.path)
    return before.path if before is not None and before.store == workspace.store else None


def _had_store(workspace: Workspace) -> bool:
    """Under this path, or before it was moved."""
    known = config.registered(workspace.path) or config.moved(workspace.path)
    return known is not None and known.store == workspace.store


def is_history_lost(workspace: Workspace) -> bool:
    """Whether the workspace is known by a store of which nothing is left."""
    known = config.registered(workspace.path)
    return (
        known is not None
        and known.store == workspace.store
        and not (known.store / "data.mdb").exists()
    )


def check_unused(workspace: Workspace) -> None:
    """Refuse a store that a daemon has, after letting one finish that is about to end.

    After umount(8), a new mount meets the daemon while it still writes back.
    """
    waited = 0.0
    while (daemon := runtime.living(workspace)) is not None:
        same = daemon.workspace == str(workspace.path)
        if not same or waited >= ENDING_PATIENCE.get(daemon.state, 0.0):
            detached = daemon.workspace if daemon.state == runtime.DETACHED else None
            raise StoreInUse(workspace.store, daemon.pid, detached=detached)
        runtime.wait_for_end(daemon, _LOOK_AGAIN)
        waited += _LOOK_AGAIN


def check_apart(path: Path, store: Path) -> None:
    if path.is_relative_to(store):
        raise MountpointInStore(path, store)
    if store.is_relative_to(path):
        raise StoreInMountpoint(path, store)


def check_source(named: str, workspace: Workspace) -> Path:
    """The directory of ``--from``: readable, and not overlapping with what it would fill."""
    source = config.resolve(named)
    runtime.check_source(source)
    runtime.check_names_apart(source, workspace)
    return source


def check_store(store: Path) -> None:
    """What can be said about a store without opening it; `Store.open` says the rest."""
    if not store.exists():
        nearest = next(parent for parent in store.parents if parent.exists())
        if not nearest.is_dir():
            raise NotAStore(store, f"{nearest} is not a directory")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise StoreReadOnly(store, nearest)
        return
    if not store.is_dir():
        raise NotAStore(store, "it is not a directory")
    data = store / "data.mdb"
    if not os.access(store, os.R_OK | os.X_OK):
        raise StoreUnreadable(store)
    if data.exists() and not os.access(data, os.R_OK):
        raise StoreUnreadable(store)
    if not os.access(store, os.W_OK) or (data.exists() and not os.access(data, os.W_OK)):
        raise StoreReadOnly(store)


def check_registry(path: Path) -> None:
    """Refuse if the registry cannot be written: without an entry no command finds the workspace."""
    registry = config.data_dir() / "workspaces"
    nearest = next(place for place in (registry, *registry.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise NoPermission(
            path,
            f"you may not write to {nearest}, where workspaces are noted",
            hint="Set XDG_DATA_HOME to a directory of your own.",
        )


def check_machine(path: Path, *, allow_other: bool) -> None:
    """Refuse where FUSE cannot work for this user."""
    if not os.path.exists("/dev/fuse"):
        raise NoFuse(path)
    if os.geteuid() != 0 and mounts.fusermount() is None:
        raise NoFusermount(path)
    _check_device(path)
    if os.geteuid() == 0:
        if not has_capability(CAP_SYS_ADMIN):
            raise NoPermission(
                path,
                "this container may not mount",
                hint="Start it with --cap-add SYS_ADMIN --device /dev/fuse.",
            )
    elif allow_other and not user_allow_other(Path("/etc/fuse.conf")):
        raise NoPermission(
            path,
            "--allow-other is not allowed on this machine",
            hint="Add the line user_allow_other to /etc/fuse.conf, or leave out --allow-other.",
        )


def check_flags(path: Path, flags: frozenset[str]) -> None:
    """Refuse what fusermount3 would leave out without a word."""
    unsafe = sorted(flags & {"suid", "dev"})
    if unsafe and os.geteuid() != 0:
        hint = f"Leave out {' and '.join(unsafe)}, or mount as root."
        raise NoPermission(path, f"only root may mount with {' and '.join(unsafe)}", hint=hint)


def check_directory(plan: Plan, reached_by: str | None = None) -> None:
    """Rules about the directory's own content and rights; it must not be covered, unless
    ``reached_by`` is another way to it."""
    path = plan.workspace.path
    where = path if reached_by is None else Path(reached_by)
    check_is_directory(where)
    if not os.access(where, os.R_OK | os.X_OK):
        raise NoPermission(path, "you may not read it")
    if not plan.read_only and not os.access(where, os.W_OK):
        # Without root a directory must be writable, whatever the mount is to be.
        hint = _HINT_RO if os.geteuid() == 0 else _HINT_WRITE
        raise NoPermission(path, "you may not write to it", hint=hint)
    if plan.source is not None and os.listdir(where):
        raise MountpointNotEmpty(path)


def has_capability(number: int) -> bool:
    """Whether this process holds a capability; root in a container often lacks some."""
    try:
        status = Path("/proc/self/status").read_text()
        effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
        return bool(int(effective.split()[1], 16) & (1 << number))
    except (OSError, StopIteration, ValueError, IndexError):
        return True  # unknown: let the mount itself answer


def user_allow_other(fuse_conf: Path) -> bool:
    try:
        lines = fuse_conf.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.partition("#")[0].strip() == "user_allow_other" for line in lines)


def _check_device(path: Path) -> None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise NoPermission(
                path,
                "you may not open /dev/fuse",
                hint="On most systems everyone may: sudo chmod 666 /dev/fuse",
            ) from error
        if error.errno in (errno.ENODEV, errno.ENXIO):
            raise NoFuse(path, "the kernel has no FUSE behind /dev/fuse") from error
        raise NoFuse(path, "/dev/fuse cannot be opened") from error


# -- a daemon whose store was deleted or moved away ------------------------------------------------
#
# Its note and its socket went with the store. Only the mount is left to show it, and the files of
# the store that it still has open. Any request to the mount makes it notice; then it brings the
# directory up to date and uncovers it.

_STORELESS_LOOK_AGAIN = 0.05
#: Seconds for which a dead mount may belong to a daemon that cannot be seen: where the store was
#: moved, the files that it has open have other names now. It says why it failed last of all.
_STORELESS_GRACE = 2.0


def wait_for_storeless(workspace: Workspace, seconds: float) -> bool:
    """Wait for the daemon of a mount whose store is gone; whether it has uncovered the directory.
    A mount whose daemon has died stays."""
    began = time.monotonic()
    while mounts.is_covered(workspace.path):
        waited = time.monotonic() - began
        if waited > seconds or (waited > _STORELESS_GRACE and not _is_at_work(workspace)):
            return False
        time.sleep(_STORELESS_LOOK_AGAIN)
    # After that it must not write anything into a store that is made anew.
    runtime.wait_for_failure(workspace, _STORELESS_GRACE)
    return True


def _is_at_work(workspace: Workspace) -> bool:
    return not mounts.is_dead(workspace.path) or bool(mounts.holders(workspace.store))


# -- mount options as mount(8) and fstab(5) write them ---------------------------------------------
#
# A mount has nosuid and nodev unless suid and dev are asked for

#: Each of these says whether a flag is given to the kernel; of two that differ the later one holds.
_OPTION_FLAGS = {
    "ro": ("ro", True),
    "rw": ("ro", False),
    "suid": ("suid", True),
    "nosuid": ("suid", False),
    "dev": ("dev", True),
    "nodev": ("dev", False),
    "noexec": ("noexec", True),
    "exec": ("noexec", False),
    # mount(8) takes suid and dev for what is so anyway, and does not hand them to its helper.
    "allow_suid": ("suid", True),
    "allow_dev": ("dev", True),
}
#: fstab(5): these let ordinary users mount, and imply the rest.
_FOR_USERS = {"user", "users", "owner", "group"}
_IMPLIED = ("noexec", "nosuid", "nodev")
#: What is so anyway, or is for mount(8) and the system's start and not for a file system.
_WITHOUT_EFFECT = {
    *("defaults", "async", "default_permissions", "noatime", "nodiratime", "relatime"),
    *("auto", "noauto", "nofail", "_netdev", "nouser", "noowner", "nogroup"),
}
_PREFIXES = ("x-", "X-", "comment=", "user=", "uhelper=", "helper=")
_ALLOW_OTHER = "allow_other"


class MountFlags(NamedTuple):
    """``kernel`` is what differs from the default there: of ro, suid, dev and noexec."""

    kernel: frozenset[str] = frozenset()
    allow_other: bool = False

    @property
    def read_only(self) -> bool:
        return "ro" in self.kernel


def split_options(lists: Iterable[str]) -> list[str]:
    """The single options of one or more lists with commas."""
    return [word for text in lists for word in text.split(",") if word]


def parse_options(words: Iterable[str]) -> MountFlags:
    """The options together. Raises `UsageError` that names one which is not known."""
    chosen = dict.fromkeys(("ro", "suid", "dev", "noexec"), False)
    allow_other = False
    for word in words:
        if not is_known_option(word):
            raise _unknown_option(word)
        for each in _IMPLIED if word in _FOR_USERS else (word,):
            if each in _OPTION_FLAGS:
                flag, wanted = _OPTION_FLAGS[each]
                chosen[flag] = wanted
        allow_other |= word == _ALLOW_OTHER
    return MountFlags(frozenset(flag for flag, wanted in chosen.items() if wanted), allow_other)


def flags_after(present: Iterable[str], words: Iterable[str]) -> list[str]:
    """The flags of a mount that has these ``present`` after a list of options was applied, each of
    them said: remount takes what is left out for its default."""
    held = {"ro": "ro" in (now := set(present)), "noexec": "noexec" in now}
    held |= {"suid": "nosuid" not in now, "dev": "nodev" not in now}
    held |= dict(_OPTION_FLAGS[word] for word in words if word in _OPTION_FLAGS)
    said = [word for word, meaning in _OPTION_FLAGS.items() if meaning in held.items()]
    return [word for word in said if not word.startswith("allow_")] + ["noatime"]


def is_known_option(word: str) -> bool:
    known = word in _OPTION_FLAGS or word in _FOR_USERS or word in _WITHOUT_EFFECT
    return known or word == _ALLOW_OTHER or word.startswith(_PREFIXES)


def _unknown_option(word: str) -> UsageError:
    hint = "docs/CLI.md lists the options there are."
    if word in ("atime", "strictatime", "diratime", "lazytime"):
        hint = "Reading a file changes nothing in a workspace, also not its access time."
    elif word == "remount":
        hint = "`mount -o remount,ro DIR` and `remount,rw` do that (docs/CLI.md)."
    return UsageError(
        f"Cannot mount with the option {word!r}: it is not known. Nothing was changed.", hint=hint
    )
