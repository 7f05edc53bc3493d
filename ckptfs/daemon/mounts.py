"""The kernel's mounts: what is mounted where, which processes keep it, and taking it away.

Reads the mount table and links in /proc, which never ask the mounted file systems themselves, so a
hung one cannot hang us. Processes of other users are invisible. Knows no store and no daemon.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckptfs import mountinfo
from ckptfs.config import Workspace, open_directory
from ckptfs.control.runtime import check_dest
from ckptfs.control.runtime import is_dead as is_dead
from ckptfs.control_file import FSTYPE

if TYPE_CHECKING:
    from ctypes import CDLL

#: The longest source that every way to mount takes: fsconfig(2) wants it below 256 bytes.
_SOURCE_MAX = 255
#: What may mean something in a FUSE option, as a comma does, which ends it, or is no ASCII.
_UNSAFE = rb"[^A-Za-z0-9/._+=@%~-]"

_MNT_DETACH = 2
_MNT_EXPIRE = 4
_UMOUNT_NOFOLLOW = 8
#: open_tree(2) has one number on every architecture; neither libc nor Python has a word for it.
_OPEN_TREE = 428
_OPEN_TREE_CLONE = 1
_AT_EMPTY_PATH = 0x1000


class Mount(NamedTuple):
    """One line of the mount table."""

    path: Path
    fstype: str
    source: str
    #: Of the mount and of its file system.
    options: frozenset[str] = frozenset()
    #: Major and minor number of the file system: all mounts of one file system have the same.
    device: str = ""
    #: The number of this mount in its table, and of the mount that it stands on.
    number: str = ""
    parent: str = ""
    #: ``shared:N``, ``master:N`` and the like: where mounts and unmounts propagate.
    propagation: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        return self.fstype == FSTYPE

    @property
    def store(self) -> str:
        """Of one of ours, the store's path, or nothing if it was too long for the mount table."""
        store, _ = mountinfo.split_source(self.source)
        return store if store.startswith("/") else ""

    @property
    def line(self) -> int:
        """Of one of ours, 0 if it is the workspace itself, else the number of a fork."""
        return mountinfo.split_source(self.source)[1]


def source_option(store: Path) -> str:
    """What `mount`, `findmnt` and `df` show as the source, as the value of a FUSE option.

    It tells which store is behind a mount, also to those who do not know the workspace. pyfuse3
    takes ASCII only, and libfuse makes a byte of ``\\ooo``. It is there to be read, so a path that
    could keep a mount from being made is left out.
    """
    path = os.fsencode(store)
    if len(path) > _SOURCE_MAX:
        return "ckptfs"
    return re.sub(_UNSAFE, lambda found: b"\\%03o" % found[0][0], path).decode("ascii")


def mount_at(path: Path) -> Mount | None:
    """What covers exactly this resolved path, topmost, or None."""
    found = [mount for mount in all_mounts() if mount.path == path]
    return found[-1] if found else None


def is_read_only(path: Path) -> bool:
    """Whether the kernel lets nothing be changed at this resolved path, which is a mountpoint."""
    mount = mount_at(path)
    return mount is not None and "ro" in mount.options


def mount_around(path: Path) -> Mount | None:
    """What the directory above this resolved path is on."""
    around = [mount for mount in all_mounts() if mount.path in path.parents]
    # The deepest; of several at one place the last one made, which covers the others.
    return max(reversed(around), key=lambda mount: len(mount.path.parts), default=None)


def mounts_below(path: Path) -> list[Mount]:
    """Everything that is mounted below this resolved path."""
    return [mount for mount in all_mounts() if path in mount.path.parents]


def all_mounts() -> list[Mount]:
    return parse_mountinfo(Path("/proc/self/mountinfo").read_bytes())


def parse_mountinfo(table: bytes) -> list[Mount]:
    """The mounts of a /proc/PID/mountinfo, in the order they were made."""
    return [
        Mount(
            Path(entry.path),
            entry.fstype,
            entry.source,
            frozenset(entry.options),
            entry.device,
            entry.number,
            entry.parent,
            entry.propagation,
        )
        for entry in mountinfo.entries(table)
    ]


def clear_forks(store: Path) -> None:
    """Take away the mounts of a store's forks that a daemon left when it died; not those that
    something else was mounted over."""
    for mount in reversed(all_mounts()):
        if mount.is_ours and mount.line and mount.store == str(store):
            with suppress(OSError):
                unmount(uncovered(mount.device, mount.path), detach=True)
                leave(store, mount.path)
    with suppress(OSError):
        os.rmdir(Workspace(store, store).forks)


def leave(store: Path, path: Path) -> None:
    """Leave no mountpoint of ours behind; a directory that its user chose stays."""
    if path.is_relative_to(store):
        remove_point(path)


def place_of(device: str, usual: Path) -> Path:
    """Where a file system is mounted: the usual place, or the one that it was moved to with a
    directory above it. The usual one, too, if it is mounted nowhere."""
    found = [mount.path for mount in all_mounts() if mount.device == device]
    return usual if usual in found or not found else found[0]


def uncovered(device: str, path: Path) -> Path:
    """The path, where an unmount of it would take this file system away, and no other that was
    mounted over it. Raises OSError, EBUSY."""
    mount = mount_at(path)
    if mount is None or mount.device != device:
        raise OSError(errno.EBUSY, "something else is mounted there", str(path))
    return path


def unmount(path: Path, *, detach: bool = False) -> None:
    """Take the topmost mount away. Raises OSError, with EBUSY if something still uses it.

    ``detach`` takes it out of the tree even then; the rest of it ends with its last user.
    """
    if os.geteuid() == 0:
        _umount2(path, _UMOUNT_NOFOLLOW | (_MNT_DETACH if detach else 0))
    else:
        _fusermount(path, detach=detach)


def make_point(path: Path) -> None:
    """Make a directory to mount something on, if there is none. Raises DestinationInvalid."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o755, exist_ok=True)
    check_dest(path)


def remove_point(path: Path) -> None:
    """Remove the directory that something was mounted on, if it is empty."""
    with suppress(OSError):
        os.rmdir(path)


def is_covered(path: Path) -> bool:
    """Whether one of ours covers this resolved path, dead or alive."""
    mount = mount_at(path)
    return mount is not None and mount.is_ours


def is_busy(path: Path) -> bool:
    """Whether an unmount of the topmost mount would be refused now. Only root can ask the kernel
    that; for others it is never busy."""
    if os.geteuid() != 0:
        return False
    try:
        # Asked for the first time, the kernel only marks a mount that is not in use, and forgets
        # the mark as soon as a path lookup passes through it.
        _umount2(path, _UMOUNT_NOFOLLOW | _MNT_EXPIRE)
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def open_lower(path: Path) -> int | None:
    """A descriptor of the directory that a mount covers, without taking the mount away. None where
    that cannot be had: only root can, and only of one mount on an ordinary directory."""

    if sum(mount.path == path for mount in all_mounts()) != 1:
        return None
    libc = _libc()
    try:
        around = open_directory(path.parent)
    except OSError:
        return None
    try:
        # A clone of the mount around it, alone: nothing is mounted on its directories.
        flags = _OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC
        tree = libc.syscall(_OPEN_TREE, around, b"", flags)
    finally:
        os.close(around)
    if tree < 0:
        return None
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path.name, flags, dir_fd=tree)
    except OSError:
        return None
    finally:
        os.close(tree)


@cache
def _libc() -> CDLL:
    import ctypes  # late, like all that only a change of mounts needs

    return ctypes.CDLL(None, use_errno=True)


def sync_filesystem(path: Path) -> None:
    """Push everything the kernel still holds for this file system to its server."""
    import ctypes

    syncfs = _libc().syncfs
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The kernel reports an old write's error to the next sync as well; its writer got it.
        if syncfs(descriptor) != 0 and syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)


def fusermount() -> str | None:
    """The helper by which users without privileges mount and unmount."""
    import shutil

    return shutil.which("fusermount3")


def _umount2(path: Path, flags: int) -> None:
    import ctypes

    libc = _libc()
    around = open_directory(path.parent)
    try:
        pinned = f"/proc/self/fd/{around}"
        place = os.path.join(pinned, path.name) if os.path.exists(pinned) else path
        if libc.umount2(os.fsencode(place), flags) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(around)


def _fusermount(path: Path, *, detach: bool) -> None:
    import subprocess

    program = fusermount()
    if program is None:
        raise OSError(errno.ENOENT, "fusermount3 is not installed", "fusermount3")
    command = [program, "-u", *(["-z"] if detach else []), "--", os.fspath(path)]
    done = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode == 0:
        return
    said = os.fsdecode(done.stderr).strip()
    number = errno.EBUSY if "busy" in said.lower() else errno.EPERM
    raise OSError(number, said or os.strerror(number), str(path))


# -- processes that keep a mount busy --------------------------------------------------------------

#: More than this many names do not help anyone.
NAMED_MAX = 5


def holders(mountpoint: Path, *, but: int = 0, device: int | None = None) -> list[str]:
    """The processes that use something below the mountpoint, as "name (PID)".

    ``but`` is the one that wants to know: it holds at most what it inherited. With ``device``, that
    of the mount, only those count that an unmount in this namespace would meet: the same names may
    lead to the lower directory, or to a copy of the mount. That asks the mounted file system.
    """
    own = namespace_of("self")
    found = [
        f"{command_of(pid)} ({pid})"
        for pid in processes()
        if pid not in (os.getpid(), but)
        and (device is None or namespace_of(pid) == own)
        and any(
            _lies_in(path, mountpoint) and (device is None or _device_of(link) == device)
            for link, path in _used(pid)
        )
    ]
    return shortened(found)


def holders_by_mount(mountpoints: Iterable[Path], *, but: int = 0) -> dict[Path, list[str]]:
    """The same of several mountpoints, with one look at all processes; only those in use."""
    wanted = {str(path): path for path in mountpoints}
    found: dict[Path, list[str]] = {}
    for pid in processes():
        if pid not in (os.getpid(), but):
            for point in {_point_of(path, wanted) for _, path in _used(pid)} - {""}:
                found.setdefault(wanted[point], []).append(f"{command_of(pid)} ({pid})")
    return {path: shortened(users) for path, users in found.items()}


def _point_of(path: str, mountpoints: Container[str]) -> str:
    """The mountpoint that a path lies in, or nothing."""
    while path not in mountpoints:
        above = os.path.dirname(path)
        if above == path or not above:
            return ""
        path = above
    return path


def shortened(found: list[str]) -> list[str]:
    """The first of them, and how many more there are."""
    if len(found) > NAMED_MAX:
        return [*found[:NAMED_MAX], f"{len(found) - NAMED_MAX} more"]
    return found


def is_inside(pid: int, directory: Path) -> bool:
    """Whether a process has something open at or below a directory, or stands there. One that
    cannot be looked at is not."""
    base = f"/proc/{pid}"
    try:
        links = [f"{base}/cwd", *(f"{base}/fd/{number}" for number in os.listdir(f"{base}/fd"))]
    except OSError:
        return False
    return any(_lies_in(path, directory) for _, path in _targets(links))


def processes() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def namespace_of(pid: int | str) -> str:
    """What tells a mount namespace from others; nothing where it may not be known."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _used(pid: int) -> Iterator[tuple[str, str]]:
    """What a process has open: links in /proc, and where they lead."""
    base = f"/proc/{pid}"
    links = [f"{base}/cwd", f"{base}/root", f"{base}/exe"]
    for folder in (f"{base}/fd", f"{base}/map_files"):
        try:
            links.extend(f"{folder}/{name}" for name in os.listdir(folder))
        except OSError:
            continue  # it ended meanwhile, or is not ours to look at
    yield from _targets(links)


def _targets(links: Iterable[str]) -> Iterator[tuple[str, str]]:
    for link in links:
        try:
            yield link, os.readlink(link)
        except OSError:
            continue


def _device_of(link: str) -> int:
    try:
        return os.stat(link).st_dev
    except OSError:
        return 0


def _lies_in(path: str, mountpoint: Path) -> bool:
    top = str(mountpoint)
    return path == top or path.startswith(top + "/")


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() or "process"
    except OSError:
        return "process"


# -- copies of a mount in other mount namespaces ---------------------------------------------------

#: The kinds of propagation that bring an unmount along.
_RECEIVING = ("shared", "master", "propagate_from")


class Copies:
    """The copies of one mount of this process's namespace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        table = all_mounts()
        mount = next((each for each in reversed(table) if each.path == path), None)
        self.device = "" if mount is None else mount.device
        self._groups = _groups_around(mount, table)

    @property
    def device_number(self) -> int:
        major, _, minor = self.device.partition(":")
        return os.makedev(int(major), int(minor)) if minor else 0

    def is_mounted(self) -> bool:
        """Whether the mount still covers its directory."""
        mount = mount_at(self._path)
        return mount is not None and mount.device == self.device

    def elsewhere(self) -> list[Path]:
        """Where else the file system is mounted in this namespace."""
        found = [mount.path for mount in all_mounts() if mount.device == self.device]
        return [path for path in found if path != self._path]

    def holders(self) -> list[str]:
        """The processes, as "name (PID)", in namespaces whose copy would outlive an unmount."""
        return [f"{command_of(pid)} ({pid})" for pid in self._processes()]

    def users(self, *, but: int = 0) -> list[str]:
        """Those of them that have something of it open. Asks the mounted file system."""
        device = self.device_number
        return [
            f"{command_of(pid)} ({pid})"
            for pid in self._processes()
            if pid != but and any(_device_of(link) == device for link, _ in _used(pid))
        ]

    def _processes(self) -> Iterator[int]:
        own = namespace_of("self")
        survives = {own: False, "": False}
        for pid in processes():
            namespace = namespace_of(pid)
            if namespace not in survives:
                survives[namespace] = self._survives(_table_of(pid))
            if survives[namespace]:
                yield pid

    def _survives(self, table: list[Mount]) -> bool:
        by_number = {mount.number: mount for mount in table}
        copies = [mount for mount in table if mount.device == self.device]
        return any(not self._follows(by_number.get(copy.parent)) for copy in copies)

    def _follows(self, around: Mount | None) -> bool:
        """Whether an unmount here reaches what stands on a mount there."""
        return around is not None and any(
            kind in _RECEIVING and group in self._groups
            for kind, _, group in (word.partition(":") for word in around.propagation)
        )


def _groups_around(mount: Mount | None, table: list[Mount]) -> set[str]:
    """The peer groups to which the mount around this one tells what happens on it."""
    around = next((other for other in table if mount and other.number == mount.parent), None)
    words = [] if around is None else [word.partition(":") for word in around.propagation]
    return {group for kind, _, group in words if kind == "shared"}


def _table_of(pid: int) -> list[Mount]:
    try:
        return parse_mountinfo(Path(f"/proc/{pid}/mountinfo").read_bytes())
    except OSError:
        return []
