"""The note that a running daemon leaves in its store, and whether that daemon still lives.

``<store>/daemon.json`` is written when a daemon takes the store, again whenever its state
changes, and removed when it ends in order. A daemon that fails leaves the reason in it, and one
that was killed leaves it behind as it was, so a note counts only while the process that wrote it
runs: a pid alone may be another process's by now, hence the start time of the process beside it.
Where the process cannot be seen, since it is in another pid namespace, or its note cannot, the
socket and the mount tell whether it lives.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptfs import locating
from ckptfs.config import Workspace, data_dir, open_directory, write_atomically
from ckptfs.errors import (
    DestinationInvalid,
    MountedByOther,
    OverlappingTrees,
    RefusedInSandbox,
    SourceMissing,
)
from ckptfs.locating import start_ticks as start_ticks

if TYPE_CHECKING:
    from ckptfs.control_file import Mount

#: The states of a daemon, in the order it goes through them.
SCANNING = "scanning"
SERVING = "serving"
#: Still mounted; the lower directory is being brought up to date.
UNMOUNTING = "unmounting"
DETACHED = "waiting for the last open file"
#: No longer served; if it was unmounted from outside, the lower directory is in sight already.
WRITING_BACK = "writing back"
#: It ended by a failure, which its note has.
FAILED = "failed"


class Daemon(NamedTuple):
    """A daemon as its note describes it."""

    pid: int
    #: Field 22 of /proc/PID/stat: clock ticks since boot when the process began.
    start_ticks: int
    state: str
    workspace: str
    started_ns: int
    version: str
    options: dict[str, Any]


def publish(workspace: Workspace, daemon: Daemon) -> None:
    """Write or replace the note."""
    note = {**daemon._asdict(), "pid_namespace": locating.pid_namespace()}
    _replace(workspace, json.dumps(note).encode() + b"\n")


def update(workspace: Workspace, daemon: Daemon) -> None:
    """Replace the note by one with another state, where the disk has room for that."""
    with suppress(OSError):
        publish(workspace, daemon)


def withdraw(workspace: Workspace) -> None:
    """Remove the note, and what is known of a failure before."""
    # One that stays counts for nothing when its process has ended.
    with suppress(OSError), _note_in(workspace) as note:
        note.unlink()
    forget_failure(workspace)


@contextmanager
def _note_in(workspace: Workspace) -> Iterator[Path]:
    """The place of the note in the store itself, by a descriptor: another user that may rename in
    the store's path could else have root write to another directory of root's."""
    fd = open_directory(workspace.store)
    try:
        owner = os.fstat(fd).st_uid
        if owner not in {os.geteuid(), *locating.trusted_owners()}:
            raise PermissionError(errno.EPERM, "it is another user's", str(workspace.store))
        pinned = Path(f"/proc/self/fd/{fd}")
        yield (pinned if pinned.exists() else workspace.store) / workspace.daemon.name
    finally:
        os.close(fd)


def _replace(workspace: Workspace, data: bytes) -> None:
    with _note_in(workspace) as note:
        write_atomically(note, data)


def record_failure(workspace: Workspace, daemon: Daemon, reason: str) -> None:
    """Leave behind why the daemon ended: in its note; where that cannot be written, over the old
    one, which has its place on the disk; else in the user's data or runtime directory."""
    note = {**daemon._asdict(), "state": FAILED, "reason": reason, "failed_ns": time.time_ns()}
    data = json.dumps(note).encode() + b"\n"
    elsewhere = (partial(_write_anew, place) for place in _elsewhere(workspace))
    for write in (partial(_replace, workspace), partial(_overwrite, workspace), *elsewhere):
        try:
            write(data)
        except OSError:
            continue
        break


def _overwrite(workspace: Workspace, data: bytes) -> None:
    with _note_in(workspace) as note:
        fd = os.open(note, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "r+b") as file:
        file.write(data)
        file.truncate()


def _write_anew(place: Path, data: bytes) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(place, data)


def _elsewhere(workspace: Workspace) -> list[Path]:
    """Where a failure is noted if not in the store: places that are the user's own."""
    name = f"{locating.digest(os.fsencode(workspace.store))}.json"
    places = [data_dir() / "failures" / name]
    if os.path.isabs(runtime := os.environ.get("XDG_RUNTIME_DIR", "")):
        places.append(Path(runtime) / "ckptfs" / "failures" / name)
    return places


def forget_failure(workspace: Workspace) -> None:
    for place in _elsewhere(workspace):
        with suppress(OSError):
            place.unlink(missing_ok=True)


def living(workspace: Workspace) -> Daemon | None:
    """The daemon that owns this workspace's store right now, if there is one."""
    note: dict[str, Any] | None = locating.note_of(str(workspace.store))
    if note is None or not all(field in note for field in Daemon._fields):
        return _seen_by_mount(workspace)
    return Daemon(*(note[field] for field in Daemon._fields))


def _seen_by_mount(workspace: Workspace) -> Daemon | None:
    """The daemon of a mount that is served although nothing else is seen of it, as in a sandbox
    without the store. Of the daemon itself nothing is known then."""
    from ckptfs import control_file  # late: where there is a note, it is not needed

    mount = control_file.mount_at(str(workspace.path))
    if mount is None or not mount.is_of(str(workspace.store)) or not control_file.is_alive(mount):
        return None
    return Daemon(0, 0, SERVING, str(workspace.path), 0, "", {})


def foreign_mount(workspace: Workspace) -> Mount | None:
    """The mount that covers the workspace's directory although it is another user's, or of another
    store: then neither the store nor what is seen there tells what this workspace is now."""
    from ckptfs import control_file  # late: where there is a daemon, it is not needed

    mount = control_file.foreign_mount(str(workspace.path), str(workspace.store))
    return None if mount is None or is_dead(workspace.path) else mount


def require_uncovered(workspace: Workspace) -> None:
    """Raises `MountedByOther`."""
    mount = foreign_mount(workspace)
    if mount is not None:
        user = mounted_by(mount)
        raise MountedByOther(workspace.path, user, mount.known_store, str(workspace.store))


def mounted_by(mount: Mount) -> str:
    """What to call the other user who mounted it; empty if it was this one."""
    from ckptfs import control_file

    if control_file.is_own(mount):
        return ""
    if mount.owner is None:
        return "another user"
    name = locating.user_name(mount.owner)
    return name if name.startswith("user ") else f"user {name}"


def require_store(workspace: Workspace) -> Path:
    """The store, for a verb that needs its files. Raises `RefusedInSandbox` where only the mount is
    seen."""
    if not workspace.store.is_dir() and living(workspace) is not None:
        raise RefusedInSandbox("see the settings", "the store, which has them, is not seen there")
    return workspace.store


def store_is_gone(workspace: Workspace) -> bool:
    """Whether there is nothing where the store was. In a sandbox it may just not be seen."""
    try:
        os.stat(workspace.store)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def left_behind(workspace: Workspace) -> dict[str, Any] | None:
    """What the last daemon noted, if it did not end in order: killed, with the machine, or by a
    failure, which then stands there."""
    for place in (*_elsewhere(workspace), workspace.daemon):
        try:
            note = json.loads(place.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(note, dict):
            return note if living(workspace) is None else None
    return None


def wait_for_failure(workspace: Workspace, seconds: float) -> str:
    """Why the last daemon failed, if it says so in that time: it does so last of all."""
    deadline = time.monotonic() + seconds
    while not (reason := str((left_behind(workspace) or {}).get("reason", ""))):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return reason


def why_gone(workspace: Workspace) -> str:
    """What became of a daemon whose mountpoint is dead, as the reason of an error."""
    note = left_behind(workspace) or {}
    if note.get("state") != FAILED:
        return "it died"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(note.get("failed_ns", 0) / 1e9))
    return f"it ended at {when}. {str(note.get('reason', '')).rstrip('.')}"


def is_dead(path: Path) -> bool:
    """Whether the FUSE server behind this mountpoint is gone."""
    try:
        # Not stat: the kernel may answer that from its cache long after the server died.
        os.statvfs(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def wait_for_end(daemon: Daemon, seconds: float) -> bool:
    """Wait until the daemon's process has ended; say whether it has."""
    import select  # late: hardly ever needed

    if not daemon.pid:
        return False  # it is known by its mount alone
    try:
        process = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return True
    try:
        if start_ticks(daemon.pid) != daemon.start_ticks:
            return True
        return bool(select.select([process], [], [], seconds)[0])
    finally:
        os.close(process)


def own_start_ticks() -> int:
    ticks = start_ticks(os.getpid())
    return 0 if ticks is None else ticks


# -- other directories that a workspace is filled from or written to -------------------------------


def check_source(source: Path) -> None:
    if not source.exists():
        raise SourceMissing(source)
    if not source.is_dir():
        raise SourceMissing(source, "it is not a directory")
    if not os.access(source, os.R_OK | os.X_OK):
        raise SourceMissing(source, "you may not read it")


def check_dest(dest: Path) -> None:
    """The place of something new: absent or an empty directory."""
    if not dest.exists():
        if not dest.parent.is_dir():
            raise DestinationInvalid(dest, "its parent directory does not exist")
        if not os.access(dest.parent, os.W_OK | os.X_OK):
            raise DestinationInvalid(dest, "you may not write there")
    elif not dest.is_dir():
        raise DestinationInvalid(dest, "it is not a directory")
    elif os.listdir(dest):
        raise DestinationInvalid(dest)


def check_names_apart(tree: Path, target: Workspace) -> None:
    """Neither in the other, by their names."""
    for other in (target.path, target.store):
        if tree.is_relative_to(other) or other.is_relative_to(tree):
            raise OverlappingTrees(tree, other)


def check_apart(tree: Path, target: Workspace) -> None:
    """Neither in the other, by whatever way it is reached."""
    check_names_apart(tree, target)
    if living(target) is not None:
        existing = next(path for path in (tree, *tree.parents) if path.exists())
        # The mount may be reachable by another way too, such as a bind mount.
        if os.stat(existing).st_dev == os.stat(target.path).st_dev:
            raise OverlappingTrees(tree, target.path)
