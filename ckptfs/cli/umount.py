"""`ckptfs umount`: ask the daemon and wait for the end; finish alone for one that died."""

from __future__ import annotations

import os
import signal
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckptfs.cli import place, report, screen
from ckptfs.cli.screen import JsonObject
from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.control.client import PATIENCE, PATIENCE_SHORT, Client
from ckptfs.errors import (
    ControlError,
    DaemonGone,
    DaemonSilent,
    NotMounted,
    StoreGone,
    StoreMissing,
)
from ckptfs.errors.base import shell

_LOOK_AGAIN = 0.2
#: Seconds after which a daemon that was detached still has somebody who keeps it.
_DETACHED_PATIENCE = 2.0
#: A daemon that says nothing and has done nothing for so many times `PATIENCE_SHORT` hangs.
_IDLE_LOOKS = 3


def umount(args: Namespace) -> int:
    workspace = place.exact_workspace(args)
    with screen.progress("Writing back") as show:
        ended = _end(workspace, args, show)
    _say(workspace, ended, as_json=args.json)
    return 0


@contextmanager
def _interruptible(workspace: Workspace) -> Iterator[None]:
    """What was asked of a daemon goes on when nobody waits for it any more."""
    try:
        yield
    except KeyboardInterrupt:
        if (daemon := runtime.living(workspace)) is not None:
            screen.note(
                f"The daemon (process {daemon.pid}) goes on unmounting; `ckptfs status -w "
                f"{screen.safe(workspace.path)}` tells."
            )
        raise


def _end(workspace: Workspace, args: Namespace, show: screen.Show | None) -> JsonObject:
    daemon = runtime.living(workspace)
    if daemon is None:
        if runtime.store_is_gone(workspace):
            return _end_without_store(workspace, args)
        return _finish_alone(workspace, args, show)
    if daemon.state == runtime.DETACHED and not args.force:
        daemon = _now_or_soon(workspace, daemon)
    if daemon.state in (runtime.UNMOUNTING, runtime.WRITING_BACK):
        with _interruptible(workspace):
            return _await_end(workspace, daemon, args, show)
    return _ask(workspace, daemon, args, show)


def _now_or_soon(workspace: Workspace, detached: runtime.Daemon) -> runtime.Daemon:
    """What a daemon does that waited for the last open file: often nobody has one, and it is about
    to end."""
    deadline = time.monotonic() + _DETACHED_PATIENCE
    while not runtime.wait_for_end(detached, _LOOK_AGAIN):
        now = runtime.living(workspace)
        if now is not None and (now.state != runtime.DETACHED or time.monotonic() > deadline):
            return now
    return detached._replace(state=runtime.WRITING_BACK)  # it has, and has ended since


def _ask(
    workspace: Workspace, daemon: runtime.Daemon, args: Namespace, show: screen.Show | None
) -> JsonObject:
    detached = daemon.state == runtime.DETACHED
    if daemon.state != runtime.SERVING and not (detached and args.force):
        later = "Try again in a moment; `ckptfs status` tells when it is done."
        raise ControlError(
            f"Cannot unmount {workspace.path}: its daemon ({daemon.pid}) is {daemon.state}. "
            "Nothing was changed.",
            hint="--force ends it for whoever still has a file open." if detached else later,
        )
    os.chdir("/")  # or we ourselves would keep it busy
    wishes = {"lazy": args.lazy, "force": args.force, "write_back": args.write_back}
    try:
        client = Client(workspace)
    except DaemonGone:
        return _await_end(workspace, daemon, args, show)
    with client:
        with _interruptible(workspace):
            # The daemon tells how far it is, so a long silence means that it hangs.
            client.ask("umount", wishes, progress=True)
            ended = _hear(client, daemon, args, show)
        if ended is None:
            return _finish_alone(workspace, args, show)
        if not ended.get("detached"):
            client.wait_for_end()
    return {"daemon": "ended", **ended}


def _hear(
    client: Client, daemon: runtime.Daemon, args: Namespace, show: screen.Show | None
) -> JsonObject | None:
    """What became of it. With --force a daemon that hangs is killed, and the answer is None."""
    heard = time.monotonic()
    looks = [_look_at(daemon.pid)]

    def hear(record: JsonObject) -> None:
        nonlocal heard
        heard = time.monotonic()
        if names := record.get("waiting_for"):
            screen.note(
                f"Waiting up to {record['seconds']:.0f} s for other mount namespaces that have it: "
                f"{screen.safe(', '.join(names))}."
            )
        elif show is not None:
            show(record)

    while True:
        try:
            return client.hear(on_progress=hear, patience=PATIENCE_SHORT)
        except DaemonSilent:
            looks.append(_look_at(daemon.pid))
            if args.force and _hangs(looks):
                _kill(daemon)
                return None
            if time.monotonic() - heard > PATIENCE:
                raise


def _look_at(pid: int) -> tuple[bytes, ...]:
    """The state of a process, and the processor time that it has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ()
    return fields[0], fields[11], fields[12]


def _hangs(looks: list[tuple[bytes, ...]]) -> bool:
    """Whether a process was stopped, or has done nothing for several looks: one may be waiting for
    the disk."""
    if not looks[-1]:
        return False  # it cannot be seen from here
    return looks[-1][0] in b"Tt" or (
        len(looks) > _IDLE_LOOKS and len(set(looks[-_IDLE_LOOKS - 1 :])) == 1
    )


def _kill(daemon: runtime.Daemon) -> None:
    screen.note(f"The daemon (process {daemon.pid}) does not answer; it is killed.")
    with suppress(ProcessLookupError):
        os.kill(daemon.pid, signal.SIGKILL)
    if not runtime.wait_for_end(daemon, PATIENCE_SHORT):
        raise DaemonGone(daemon.workspace, f"process {daemon.pid} does not end when it is killed")


def _await_end(
    workspace: Workspace, daemon: runtime.Daemon, args: Namespace, show: screen.Show | None
) -> JsonObject:
    """Somebody unmounted before us: there is only the end to wait for. If it was refused to them,
    it is our turn."""
    deadline = time.monotonic() + PATIENCE
    while not runtime.wait_for_end(daemon, _LOOK_AGAIN):
        now = runtime.living(workspace)
        if now is not None and now.state == runtime.SERVING != daemon.state:
            return _ask(workspace, now, args, show)
        if time.monotonic() > deadline:
            raise DaemonGone(workspace.path, f"process {daemon.pid} does not end")
    if runtime.left_behind(workspace) is not None:
        return _finish_alone(workspace, args, show)
    return {"daemon": "ended before"}


def _finish_alone(workspace: Workspace, args: Namespace, show: screen.Show | None) -> JsonObject:
    """The daemon is dead: do what it had still to do, and clear what it left mounted. The mount
    goes last where we can reach what it covers, so that nobody takes that for current."""
    from ckptfs.daemon import mounts

    runtime.require_uncovered(workspace)
    died = runtime.left_behind(workspace) is not None
    mount = mounts.mount_at(workspace.path)
    dead = mount is not None and mount.is_ours and mounts.is_dead(workspace.path)
    covered = mounts.open_lower(workspace.path) if dead and args.write_back else None
    if dead and covered is None:
        if args.write_back and not args.force:
            return _mount_and_end(workspace, args, show)
        mounts.unmount(workspace.path, detach=True)
    ended = _write_back_alone(workspace, args, show, covered) if args.write_back else None
    if covered is not None:
        mounts.unmount(workspace.path, detach=True)
        os.close(covered)
    runtime.withdraw(workspace)
    if ended is None and not dead:
        raise NotMounted(workspace.path)
    daemon = "dead" if dead or died else "ended before"
    return {"daemon": daemon, "cleared": dead, **(ended or {"write_back": None})}


def _end_without_store(workspace: Workspace, args: Namespace) -> JsonObject:
    """The store was deleted or moved away. A daemon that still serves has met that by now: it
    brings the directory up to date and ends. A dead mount covers what nobody can bring up to date
    any more, so only --force or --no-write-back take it away."""
    from ckptfs.daemon import mounts, storeless

    mounted = mounts.is_covered(workspace.path)
    if mounted:
        screen.note(
            f"Its store {screen.safe(workspace.store)} is gone; waiting for its daemon to bring "
            "the directory up to date."
        )
        mounted = not storeless.let_end(workspace, PATIENCE_SHORT if args.force else PATIENCE)
    if mounted and (args.force or not args.write_back):
        mounts.unmount(workspace.path, detach=True)
        return {"daemon": "dead", "cleared": True, "store_gone": True}
    if reason := runtime.wait_for_failure(workspace, 0.0):
        gone = StoreGone(workspace.store)
        gone.message = reason
        raise gone
    uncovers = f"`ckptfs umount --force {shell(workspace.path)}` uncovers the directory as it is."
    raise StoreMissing(workspace.store, hint=uncovers if mounted else None)


def _mount_and_end(workspace: Workspace, args: Namespace, show: screen.Show | None) -> JsonObject:
    """Without root's rights nobody reaches what a mount covers: a new daemon takes the place of the
    dead one, and is then asked to unmount."""
    from ckptfs.cli.mount import start

    start(workspace)
    daemon = runtime.living(workspace)
    if daemon is None:
        raise DaemonGone(workspace.path)
    return {**_ask(workspace, daemon, args, show), "daemon": "dead", "cleared": True}


def _write_back_alone(
    workspace: Workspace, args: Namespace, show: screen.Show | None, covered: int | None
) -> JsonObject | None:
    from ckptfs.daemon.life import write_back_alone

    return write_back_alone(workspace, show, covered=covered, force=args.force)


def _say(workspace: Workspace, ended: JsonObject, *, as_json: bool) -> None:
    path = screen.safe(workspace.path)
    written: JsonObject | None = ended.get("write_back")
    record = {
        "workspace": str(workspace.path),
        "mounted": False,
        "write_back": None,
        "cut_off": [],
        **ended,
    }
    screen.result(record, "\n".join(_sentences(path, ended, written)), as_json=as_json)
    if cut_off := record["cut_off"]:
        screen.note(
            "It was still mounted in other mount namespaces (containers, sandboxes), and ended for "
            f"them, too: {screen.safe(', '.join(cut_off))}."
        )
    if written is not None:
        for line in report.remarks(written):
            screen.note(line)


def _sentences(path: str, ended: JsonObject, written: JsonObject | None) -> list[str]:
    if ended.get("detached"):
        return [
            f"Detached {path}. Its daemon ends and writes back when the last open file is closed."
        ]
    first = f"Unmounted {path}."
    if ended["daemon"] == "dead":
        first = f"The daemon of {path} had died. Everything that reached the store is kept."
        if ended.get("store_gone"):
            first = f"The daemon of {path} had died, and its store is gone."
        if ended["cleared"]:
            first += " The dead mountpoint is cleared."
    elif ended["daemon"] == "ended before" and written is not None:
        first = f"{path} was unmounted already."
    elif ended["daemon"] == "ended before":
        return [f"{first} Somebody else had asked for it; the lower directory is written back."]
    if written is None:
        return [f"{first} The lower directory was left as it is."]
    return [f"{first} Written back: {report.counts(written)}."]
