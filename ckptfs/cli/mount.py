"""`ckptfs mount` and `ckptfs umount`: start a daemon, end one, clean up after one that died.

For mount(8) `helper` does the same, so that lines of fstab(5) with the type fuse.ckptfs work:

    mount.fuse.ckptfs STORE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]

It translates to `ckptfs mount`, and is silent if all went well. umount(8) has no such helper: it
asks statfs(2) for the type, which for every file system of FUSE is fuse.
"""

from __future__ import annotations

import getopt
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.progress import progress
from ckptfs.cli.workspace import exact_workspace, named_directory
from ckptfs.config import Workspace
from ckptfs.control import runtime
from ckptfs.control.client import PATIENCE, PATIENCE_SHORT, Client
from ckptfs.daemon import preflight
from ckptfs.daemon.launch import Announcer, launch
from ckptfs.errors import (
    CkptfsError,
    ControlError,
    DaemonGone,
    DaemonSilent,
    MountFailed,
    NotMounted,
    StoreGone,
    StoreMissing,
    UsageError,
    shell,
)


def mount(args: Namespace) -> int:
    plan = preflight.plan(_request(args))
    if args.foreground:
        _run_daemon(plan, _ForegroundAnnouncer(plan, as_json=args.json))
        return 0
    with progress("Reading", at_once=False) as show:
        started = launch(
            lambda announcer: _run_daemon(plan, announcer), show, ended=lambda: _died(plan)
        )
    _stat_root(plan)
    _say(plan, started, as_json=args.json)
    return 0


def start(workspace: Workspace) -> None:
    """Mount a workspace that is known, to unmount it in order."""
    request = preflight.MountRequest(str(workspace.path), str(workspace.store), auto="off")
    plan = preflight.plan(request)
    launch(lambda announcer: _run_daemon(plan, announcer), None, ended=lambda: _died(plan))


def _stat_root(plan: preflight.Plan) -> None:
    """Stat the root once: until then the kernel assumes that uid 0 owns it, and refuses its
    owner's chmod."""
    with suppress(OSError):
        plan.workspace.path.stat()


def _request(args: Namespace) -> preflight.MountRequest:
    directory = named_directory(args)
    if directory is None:
        raise UsageError("Cannot mount: no directory is named.")
    if args.no_mount:
        raise UsageError(
            "Cannot mount with --no-mount.", hint="`ckptfs save -w DIR --no-mount` needs no mount."
        )
    flags = preflight.parse_options(preflight.split_options(args.options))
    return preflight.MountRequest(
        directory=directory,
        store=args.store,
        source=args.source,
        xattrs=args.xattrs,
        allow_other=args.allow_other or flags.allow_other,
        write_back=args.write_back,
        auto=_policy(args.auto),
        exclude=_patterns(args.exclude),
        flags=flags.kernel,
    )


def _policy(words: str) -> str:
    """The policy for automatic checkpoints, refused here if it makes no sense."""
    from ckptfs.history.auto import parse_policy

    parse_policy(words)
    return words


def _patterns(patterns: list[str]) -> tuple[str, ...]:
    """Exclude patterns, refused here if one makes no sense."""
    if patterns:
        from ckptfs.history.settings import patterns_text, require_valid

        for pattern in patterns:
            # As typed, for the words of the error; only a comma would make two of it.
            typed = pattern if "," not in pattern else patterns_text([pattern])
            require_valid("exclude.patterns", typed)
    return tuple(patterns)


def _run_daemon(plan: preflight.Plan, announcer: Announcer) -> None:
    # Late, and in the daemon only: LMDB and trio have no business in the process that forks.
    from ckptfs.daemon.lifecycle import run_daemon

    run_daemon(plan, announcer)


def _died(plan: preflight.Plan) -> CkptfsError:
    return MountFailed(
        plan.workspace.path,
        "the daemon ended without a word",
        hint=f"It may have been killed. Its log is {plan.workspace.log}.",
    )


class _ForegroundAnnouncer:
    """Prints what a daemon in the background would report to its parent."""

    def __init__(self, plan: preflight.Plan, *, as_json: bool) -> None:
        self._plan = plan
        self._as_json = as_json
        self.is_ready = False
        self.progress = None

    def ready(self, record: JsonObject) -> None:
        self.is_ready = True
        _say(self._plan, record, as_json=self._as_json)


#: Of a scan that goes on behind the mount.
_COMPARING = "comparing it with the directory"


def _say(plan: preflight.Plan, started: JsonObject, *, as_json: bool) -> None:
    workspace, scan = plan.workspace, started["scan"]
    record = {
        "workspace": str(workspace.path),
        "store": str(workspace.store),
        "mounted": True,
        "pid": started["pid"],
        "log": str(workspace.log),
        "scan": scan,
        "room": started["room"],
        "server": started["server"],
        "server_reason": started["server_reason"],
        "forks_not_mounted": started["forks_not_mounted"],
        "history_lost": plan.history_lost,
        "daemon_died": plan.covered_by_dead,
        "moved_from": None if plan.moved_from is None else str(plan.moved_from),
    }
    how = " read-only" if plan.read_only else ""
    brought = f"brought in: {output.changes_text(scan)}" if scan else _COMPARING
    human = f"Mounted {output.safe(workspace.path)}{how}; {brought}."
    output.result(record, human, as_json=as_json)
    sys.stdout.flush()
    if scan is None:
        output.note("Until that has ended, changes and most commands wait; `ckptfs status` tells.")
    for line in (*(output.remarks(scan) if scan else ()), *_remarks(plan)):
        output.note(line)
    if started["server"] == "portable":
        output.note(f"Served by {output.portable_text(started['server_reason'])}.")
    for fork in started["forks_not_mounted"]:
        output.note(output.unmounted_fork_text(fork))
    if started["room"] is not None:
        output.note(f"Room is short: {output.disk_space_text(started['room'])}.")


def _reason(plan: preflight.Plan) -> str:
    return f": {output.safe(plan.failure).rstrip('.')}" if plan.failure else ""


def _remarks(plan: preflight.Plan) -> Iterator[str]:
    workspace = plan.workspace
    if plan.auto == "off":
        yield f"Automatic checkpoints are off: {output.NOTHING_KEPT}."
    if plan.covered_by_dead:
        yield f"The last daemon had died{_reason(plan)}. Everything that reached the store is kept."
    if plan.history_lost:
        yield (
            f"The store of this workspace, {output.safe(workspace.store)}, was gone, and its "
            "history with it. A new history begins."
        )
    if plan.moved_from is not None:
        yield (
            f"This directory was {output.safe(plan.moved_from)}; its history goes on "
            f"({output.safe(workspace.store)})."
        )
    with suppress(OSError):  # the current directory is gone
        if Path(os.getcwd()).is_relative_to(workspace.path):
            yield "Your shell still stands in the lower directory. To enter the mount: cd ."


# -- umount ----------------------------------------------------------------------------------------

_LOOK_AGAIN = 0.2
#: Seconds after which some process evidently still uses a mount that was detached.
_DETACHED_PATIENCE = 2.0
#: A daemon that says nothing and has done nothing for so many times `PATIENCE_SHORT` hangs.
_IDLE_LOOKS = 3


def umount(args: Namespace) -> int:
    workspace = exact_workspace(args)
    if workspace.line:
        raise UsageError(
            f"Cannot unmount {workspace.path}: it is a fork, which is mounted as long as its "
            "workspace is. Nothing was changed.",
            hint="To end it: ckptfs fork --delete NAME",
        )
    with progress("Writing back", at_once=False) as show:
        ended = _end(workspace, args, show)
    _say_ended(workspace, ended, as_json=args.json)
    return 0


@contextmanager
def _interruptible(workspace: Workspace) -> Iterator[None]:
    """Say that the daemon goes on with its work when the user stops waiting for it."""
    try:
        yield
    except KeyboardInterrupt:
        if (daemon := runtime.living(workspace)) is not None:
            raise KeyboardInterrupt(
                f"The daemon (process {daemon.pid}) goes on unmounting; `ckptfs status -w "
                f"{workspace.path}` tells."
            ) from None
        raise


def _end(workspace: Workspace, args: Namespace, show: output.Show | None) -> JsonObject:
    daemon = runtime.living(workspace)
    if daemon is None:
        if runtime.store_is_gone(workspace):
            return _end_without_store(workspace, args)
        return _finish_without_daemon(workspace, args, show)
    if daemon.state == runtime.DETACHED and not args.force:
        daemon = _now_or_soon(workspace, daemon)
    if daemon.state in (runtime.UNMOUNTING, runtime.WRITING_BACK):
        with _interruptible(workspace):
            return _await_end(workspace, daemon, args, show)
    return _ask(workspace, daemon, args, show)


def _now_or_soon(workspace: Workspace, detached: runtime.Daemon) -> runtime.Daemon:
    """The state of a detached daemon, a moment later: often no file is open any more, and it is
    about to end."""
    deadline = time.monotonic() + _DETACHED_PATIENCE
    while not runtime.wait_for_end(detached, _LOOK_AGAIN):
        now = runtime.living(workspace)
        if now is not None and (now.state != runtime.DETACHED or time.monotonic() > deadline):
            return now
    return detached._replace(state=runtime.WRITING_BACK)  # it has, and has ended since


def _ask(
    workspace: Workspace, daemon: runtime.Daemon, args: Namespace, show: output.Show | None
) -> JsonObject:
    detached = daemon.state == runtime.DETACHED
    if daemon.state != runtime.SERVING and not (detached and args.force):
        later = "Try again in a moment; `ckptfs status` tells when it is done."
        raise ControlError(
            f"Cannot unmount {workspace.path}: its daemon ({daemon.pid}) is {daemon.state}. "
            "Nothing was changed.",
            hint="--force ends it for programs that still have files open." if detached else later,
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
            client.send_request("umount", wishes, progress=True)
            if show is not None:
                show({})
            ended = _follow(client, daemon, args, show)
        if ended is None:
            return _finish_without_daemon(workspace, args, show)
        if not ended.get("detached"):
            client.wait_for_end()
    return {"daemon": "ended", **ended}


def _follow(
    client: Client, daemon: runtime.Daemon, args: Namespace, show: output.Show | None
) -> JsonObject | None:
    """What became of it. With --force a daemon that hangs is killed, and the answer is None."""
    heard = time.monotonic()
    looks = [_activity_of(daemon.pid)]

    def hear(record: JsonObject) -> None:
        nonlocal heard
        heard = time.monotonic()
        if names := record.get("waiting_for"):
            output.note(
                f"Waiting up to {record['seconds']:.0f} s for other mount namespaces that have it: "
                f"{output.safe(', '.join(names))}."
            )
        elif show is not None:
            show(record)

    while True:
        try:
            return client.receive_result(on_progress=hear, patience=PATIENCE_SHORT)
        except DaemonSilent:
            looks.append(_activity_of(daemon.pid))
            if args.force and _hangs(looks):
                _kill(daemon)
                return None
            if time.monotonic() - heard > PATIENCE:
                raise


def _activity_of(pid: int) -> tuple[bytes, ...]:
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
    output.note(f"The daemon (process {daemon.pid}) does not answer; it is killed.")
    with suppress(ProcessLookupError):
        os.kill(daemon.pid, signal.SIGKILL)
    if not runtime.wait_for_end(daemon, PATIENCE_SHORT):
        raise DaemonGone(daemon.workspace, f"process {daemon.pid} does not end when it is killed")


def _await_end(
    workspace: Workspace, daemon: runtime.Daemon, args: Namespace, show: output.Show | None
) -> JsonObject:
    """Wait for an unmount that another process asked for. If the daemon refused that one, ask
    again."""
    deadline = time.monotonic() + PATIENCE
    while not runtime.wait_for_end(daemon, _LOOK_AGAIN):
        now = runtime.living(workspace)
        if now is not None and now.state == runtime.SERVING != daemon.state:
            return _ask(workspace, now, args, show)
        if time.monotonic() > deadline:
            raise DaemonGone(workspace.path, f"process {daemon.pid} does not end")
    if runtime.left_behind(workspace) is not None:
        return _finish_without_daemon(workspace, args, show)
    return {"daemon": "ended before"}


def _finish_without_daemon(
    workspace: Workspace, args: Namespace, show: output.Show | None
) -> JsonObject:
    """The daemon is dead: write back what it did not, and clear its mount. The mount goes last
    where the directory under it can be reached: until then that directory is out of date."""
    from ckptfs.daemon import mounts

    runtime.require_uncovered(workspace)
    died = runtime.left_behind(workspace) is not None
    mount = mounts.mount_at(workspace.path)
    dead = mount is not None and mount.is_ours and mounts.is_dead(workspace.path)
    covered = mounts.open_lower(workspace.path) if dead and args.write_back else None
    if dead and covered is None:
        if args.write_back and not args.force:
            return _remount_and_unmount(workspace, args, show)
        mounts.unmount(workspace.path, detach=True)
    ended = _write_back_without_daemon(workspace, args, show, covered) if args.write_back else None
    if covered is not None:
        mounts.unmount(workspace.path, detach=True)
        os.close(covered)
    mounts.clear_forks(workspace.store)
    runtime.withdraw(workspace)
    if ended is None and not dead:
        raise NotMounted(workspace.path)
    daemon = "dead" if dead or died else "ended before"
    return {"daemon": daemon, "cleared": dead, **(ended or {"write_back": None})}


def _end_without_store(workspace: Workspace, args: Namespace) -> JsonObject:
    """The store was deleted or moved away. A daemon that still serves notices: it brings the
    directory up to date and ends. What a dead mount covers cannot be brought up to date any more,
    so only --force or --no-write-back take it away."""
    from ckptfs.daemon import mounts

    mounted = mounts.is_covered(workspace.path)
    if mounted:
        output.note(
            f"Its store {output.safe(workspace.store)} is gone; waiting for its daemon to bring "
            "the directory up to date."
        )
        mounted = not preflight.wait_for_storeless(
            workspace, PATIENCE_SHORT if args.force else PATIENCE
        )
    if mounted and (args.force or not args.write_back):
        mounts.unmount(workspace.path, detach=True)
        return {"daemon": "dead", "cleared": True, "store_gone": True}
    if reason := runtime.wait_for_failure(workspace, 0.0):
        gone = StoreGone(workspace.store)
        gone.message = reason
        raise gone
    uncovers = f"`ckptfs umount --force {shell(workspace.path)}` uncovers the directory as it is."
    raise StoreMissing(workspace.store, hint=uncovers if mounted else None)


def _remount_and_unmount(
    workspace: Workspace, args: Namespace, show: output.Show | None
) -> JsonObject:
    """Only root reaches what a mount covers. For other users a new daemon takes the place of the
    dead one, and is then asked to unmount."""
    start(workspace)
    daemon = runtime.living(workspace)
    if daemon is None:
        raise DaemonGone(workspace.path)
    return {**_ask(workspace, daemon, args, show), "daemon": "dead", "cleared": True}


def _write_back_without_daemon(
    workspace: Workspace, args: Namespace, show: output.Show | None, covered: int | None
) -> JsonObject | None:
    from ckptfs.daemon.lifecycle import write_back_without_daemon

    return write_back_without_daemon(workspace, show, covered=covered, force=args.force)


def _say_ended(workspace: Workspace, ended: JsonObject, *, as_json: bool) -> None:
    path = output.safe(workspace.path)
    written: JsonObject | None = ended.get("write_back")
    record = {
        "workspace": str(workspace.path),
        "mounted": False,
        "write_back": None,
        "cut_off": [],
        **ended,
    }
    output.result(record, "\n".join(_sentences(path, ended, written)), as_json=as_json)
    if cut_off := record["cut_off"]:
        output.note(
            "It was still mounted in other mount namespaces (containers, sandboxes), and ended for "
            f"them, too: {output.safe(', '.join(cut_off))}."
        )
    if written is not None:
        for line in output.remarks(written):
            output.note(line)


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
        return [f"{first} Another process had asked for it; the lower directory is written back."]
    if written is None:
        return [f"{first} The lower directory was left as it is."]
    return [f"{first} Written back: {output.changes_text(written)}."]


# -- for mount(8) ----------------------------------------------------------------------------------

#: mount(8): what to end with if the words make no sense, and if it failed.
_USAGE, _FAILED = 1, 32

#: Sources that name no store: then the workspace has its own, or a new one.
_NO_STORE = ("none", "ckptfs", "")
#: Options of `ckptfs mount` that a list may have, and what they are called there.
_OWN = {
    "xattrs": "--xattrs",
    "noxattrs": "--no-xattrs",
    "no_write_back": "--no-write-back",
    "auto=": "--auto",
    "exclude=": "--exclude",
    "trust_owner=": "--trust-owner",
}
#: mount(8) has let the user in, and has put what these imply into the list.
_OF_MOUNT = frozenset({"user", "users", "owner", "group"})


def helper() -> int:
    """The program mount.fuse.ckptfs; ends with the codes that mount(8) has."""
    try:
        code = _mount(sys.argv[1:])
    except CkptfsError as error:
        output.failure(error, as_json=False)
        code = error.exit_code
    if code == UsageError.exit_code:
        return _USAGE
    return _FAILED if code else 0


def _mount(argv: Sequence[str]) -> int:
    given, words = _parsed(argv)
    if len(words) != 2:
        raise UsageError("Cannot mount: mount.fuse.ckptfs takes a store and a directory.")
    source, directory = words
    listed = [word for name, text in given if name == "-o" for word in text.split(",") if word]
    switches = {name for name, _ in given}
    if "-f" in switches:
        return 0
    if "remount" in listed:
        return _remount(directory, listed)
    words, rest = _translated(listed, sloppy="-s" in switches)
    if source not in _NO_STORE and os.path.realpath(source) != os.path.realpath(directory):
        words += ["--store", source]
    return _quietly(["mount", directory, *words, "-o", ",".join(rest)], loud="-v" in switches)


def _translated(listed: Sequence[str], *, sloppy: bool) -> tuple[list[str], list[str]]:
    """Words for the command line, and the options that stay one list. ``sloppy`` is mount's -s:
    leave out what is not known."""
    from ckptfs.daemon import preflight

    words: list[str] = []
    rest: list[str] = []
    for option in listed:
        name, equals, value = option.partition("=")
        own = _OWN.get(name + equals)
        if own is not None:
            words += [own, value] if equals else [own]
        elif option not in _OF_MOUNT and (preflight.is_known_option(option) or not sloppy):
            rest.append(option)
    return words, rest


def _remount(directory: str, listed: Sequence[str]) -> int:
    """The kernel's own: what is not in the list stays as it is."""
    from ckptfs.config import resolve
    from ckptfs.daemon import mounts, preflight

    mount = mounts.mount_at(resolve(directory))
    if mount is None or not mount.is_ours:
        raise UsageError(f"Cannot remount {directory}: no workspace is mounted there.")
    words = preflight.flags_after(mount.options, listed)
    command = ["mount", "-i", "-o", ",".join(["remount", *words]), "--", directory]
    return subprocess.run(command, check=False).returncode


def _parsed(argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    try:
        given, words = getopt.gnu_getopt(list(argv), "sfnvN:o:t:")
    except getopt.GetoptError as error:
        raise UsageError(f"Cannot understand what mount(8) asks for: {error}.") from error
    if any(name == "-N" for name, _ in given):
        raise UsageError(
            "Cannot mount in another namespace. Nothing was changed.",
            hint="Enter it first: nsenter --mount=NAMESPACE ckptfs mount DIR",
        )
    return given, words


def _quietly(words: list[str], *, loud: bool) -> int:
    """Run a verb; mount(8) says nothing if all is well, unless it is asked to."""
    if not loud:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    from ckptfs.cli.entry import run

    return run(words)
