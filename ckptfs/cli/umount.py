"""`ckptfs umount`: ask the daemon and wait for the end; finish alone for one that died."""

from __future__ import annotations

import os
from argparse import Namespace

from ckptfs.cli import place, report, screen
from ckptfs.cli.screen import Record
from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.control.client import PATIENCE, Client
from ckptfs.errors import ControlError, DaemonGone, NotMounted


def umount(args: Namespace) -> int:
    workspace = place.exact_workspace(args)
    daemon = runtime.living(workspace)
    with screen.progress("Writing back") as show:
        if daemon is None:
            ended = _finish_alone(workspace, show, write_back=args.write_back)
        elif daemon.state == runtime.WRITING_BACK:
            ended = _await_end(workspace, daemon)
        else:
            ended = _ask(workspace, daemon, args, show)
    _say(workspace, ended, as_json=args.json)
    return 0


def _ask(
    workspace: Workspace, daemon: runtime.Daemon, args: Namespace, show: screen.Show | None
) -> Record:
    detached = daemon.state == runtime.DETACHED and args.force
    if daemon.state != runtime.SERVING and not detached:
        raise ControlError(
            f"Cannot unmount {workspace.path}: its daemon ({daemon.pid}) is {daemon.state}. "
            "Nothing was changed.",
            hint="Try again in a moment; `ckptfs status` tells when it is done.",
        )
    os.chdir("/")  # or we ourselves would keep it busy
    wishes = {"lazy": args.lazy, "force": args.force, "write_back": args.write_back}
    try:
        client = Client(workspace)
    except DaemonGone:
        return _await_end(workspace, daemon)
    with client:
        ended = client.call("umount", wishes, progress=show)
        if not ended.get("detached"):
            client.wait_for_end()
    return {"daemon": "ended", **ended}


def _await_end(workspace: Workspace, daemon: runtime.Daemon) -> Record:
    """Somebody unmounted before us: there is only the end to wait for."""
    if not runtime.wait_for_end(daemon, PATIENCE):
        raise DaemonGone(workspace.path, f"process {daemon.pid} does not end")
    return {"daemon": "ended before"}


def _finish_alone(workspace: Workspace, show: screen.Show | None, *, write_back: bool) -> Record:
    """The daemon is dead: clear what it left mounted, then do what it had still to do."""
    from ckptfs.daemon import mounts

    mount = mounts.mount_at(workspace.path)
    dead = mount is not None and mount.is_ours and mounts.is_dead(workspace.path)
    if dead:
        mounts.unmount(workspace.path, detach=True)
    ended = _write_back_alone(workspace, show) if write_back else None
    runtime.withdraw(workspace)
    if ended is None and not dead:
        raise NotMounted(workspace.path)
    return {"daemon": "dead", "cleared": dead, **(ended or {"write_back": None})}


def _write_back_alone(workspace: Workspace, show: screen.Show | None) -> Record | None:
    from ckptfs.daemon.life import write_back_alone

    return write_back_alone(workspace, show)


def _say(workspace: Workspace, ended: Record, *, as_json: bool) -> None:
    path = screen.safe(workspace.path)
    written: Record | None = ended.get("write_back")
    record = {"workspace": str(workspace.path), "mounted": False, "write_back": None, **ended}
    screen.result(record, "\n".join(_sentences(path, ended, written)), as_json=as_json)
    if written is not None:
        for line in report.remarks(written):
            screen.note(line)


def _sentences(path: str, ended: Record, written: Record | None) -> list[str]:
    if ended.get("detached"):
        return [
            f"Detached {path}. Its daemon ends and writes back when the last open file is closed."
        ]
    first = f"Unmounted {path}."
    if ended["daemon"] == "dead":
        first = f"The daemon of {path} had died. Everything that reached the store is kept."
        if ended["cleared"]:
            first += " The dead mountpoint is cleared."
    elif ended["daemon"] == "ended before":
        return [f"{first} Somebody else had asked for it; the directory below is written back."]
    if written is None:
        return [f"{first} The directory below was left as it is."]
    return [f"{first} Written back: {report.counts(written)}."]
