"""`ckptfs doctor`: whether this machine can serve workspaces, and what to do where it cannot.

It only looks: at the kernel, at FUSE, at limits and the clock, at the workspaces of this user, at
mounts that were left over, and at the hooks of coding agents. Of all stores it opens one, that of
the workspace at hand, as `check` does.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ckptfs import config
from ckptfs.cli import output
from ckptfs.connect import open_workspace
from ckptfs.control import runtime
from ckptfs.errors import CkptfsError, ProblemsFound, shell

OK, LOOK, WRONG = "ok", "to look at", "wrong"
_COLOURS = {OK: output.GREEN, LOOK: output.YELLOW, WRONG: output.RED}

_DEVICE = "/dev/fuse"
_FUSE_CONF = Path("/etc/fuse.conf")
#: A daemon has a file open for each file that programs have open, and some of its own.
_OPEN_FILES = 1024
#: Below this much free space `retention.min_free` lets checkpoints expire on most disks.
_FREE_BYTES = 1 << 30
_INOTIFY = Path("/proc/sys/fs/inotify")
#: With fewer, the watcher of one editor can be too much for a large workspace.
_WATCHES = 1 << 16
#: What fusermount3 allows where its settings do not say.
_MOUNT_MAX = 1000
#: A file that is so many seconds younger than now was written by another clock.
_AHEAD_S = 60
#: Of adjtimex(2): where the status stands in its structure, and the bit of a clock that is free.
_TIMEX_BYTES, _STATUS_AT, _UNSYNCHRONISED = 512, 40, 0x40


class Finding(NamedTuple):
    """``level`` is ok, to look at or wrong; ``advice`` is what to do, empty if all is well."""

    subject: str
    level: str
    text: str
    advice: str = ""


def doctor(args: Namespace) -> int:
    findings = list(_findings(args))
    wrong = any(item.level == WRONG for item in findings)
    record = {"findings": [item._asdict() for item in findings], "healthy": not wrong}
    output.result(record, "\n".join(_lines(findings)), as_json=args.json)
    return ProblemsFound.exit_code if wrong else 0


def _lines(findings: list[Finding]) -> Iterator[str]:
    for item in findings:
        level = output.painted(f"{item.level:<10}", _COLOURS[item.level])
        yield level + output.safe(f"  {item.subject:<12} {item.text}")
        if item.advice:
            yield output.safe(f"{'':<25}{item.advice}")


def _findings(args: Namespace) -> Iterator[Finding]:
    yield Finding("kernel", OK, f"{os.uname().sysname} {os.uname().release}")
    yield _device()
    yield _mounting()
    yield _other_users()
    yield _server()
    yield _free_space()
    yield _open_files()
    yield _watches()
    yield _mount_count()
    yield _clock()
    yield from _workspaces()
    yield from _at_hand(args)
    yield from _left_over()
    yield from _units()
    yield from _agents(args)


# -- FUSE ------------------------------------------------------------------------------------------


def _device() -> Finding:
    try:
        mode = os.stat(_DEVICE).st_mode & 0o777
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        advice = "sudo modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN"
        return Finding(_DEVICE, WRONG, "is not there", advice)
    except PermissionError:
        return Finding(
            _DEVICE, WRONG, f"you may not open it (mode {mode:o})", f"sudo chmod 666 {_DEVICE}"
        )
    except OSError as error:
        return Finding(_DEVICE, WRONG, f"cannot be opened: {error.strerror}", "sudo modprobe fuse")
    return Finding(_DEVICE, OK, f"can be opened (mode {mode:o})")


def _mounting() -> Finding:
    """root mounts by itself, others need a helper."""
    from ckptfs.daemon import mounts, preflight

    program = mounts.fusermount()
    if os.geteuid() == 0:
        if not preflight.has_capability(preflight.CAP_SYS_ADMIN):
            advice = "start the container with --cap-add SYS_ADMIN"
            return Finding("mounting", WRONG, "this container may not mount", advice)
        return Finding("mounting", OK, "root mounts without a helper")
    if program is None:
        advice = "install it, on Debian and Ubuntu: sudo apt install fuse3"
        return Finding("mounting", WRONG, "fusermount3 is not installed", advice)
    return Finding("mounting", OK, f"by {program}")


def _other_users() -> Finding:
    from ckptfs.daemon import preflight

    if os.geteuid() == 0:
        return Finding("allow-other", OK, "root may use --allow-other")
    if preflight.user_allow_other(_FUSE_CONF):
        return Finding("allow-other", OK, f"allowed by {_FUSE_CONF}")
    text = f"root only; the line user_allow_other in {_FUSE_CONF} allows it to you, too"
    return Finding("allow-other", OK, text)


def _server() -> Finding:
    from ckptfs.fuse.server import binding

    module, reason = binding.load()
    if module is None:
        what = (
            "install a C compiler and Python's headers (Debian: gcc, python3-dev), then ckptfs anew"
        )
        return Finding("server", LOOK, f"portable, which is slower: {reason}", what)
    return Finding("server", OK, "the compiled server is built and can be loaded")


# -- the machine -----------------------------------------------------------------------------------


def _free_space() -> Finding:
    place = config.data_dir()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{output.bytes_text(free)} free for stores at {place}"
    if free < _FREE_BYTES:
        return Finding("disk", LOOK, text, "make room; `ckptfs compact` gives free room back")
    return Finding("disk", OK, text)


def _open_files() -> Finding:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = "no limit" if most == resource.RLIM_INFINITY else f"at most {most:,}"
    if most != resource.RLIM_INFINITY and most < _OPEN_FILES:
        return Finding("open files", LOOK, text, f"raise the hard limit: ulimit -n {_OPEN_FILES}")
    return Finding("open files", OK, text)


def _watches() -> Finding:
    """Editors and build tools watch the files of a workspace, each with a watch."""
    try:
        most, instances = (
            int((_INOTIFY / name).read_text())
            for name in ("max_user_watches", "max_user_instances")
        )
    except (OSError, ValueError):
        return Finding("inotify", OK, "its limits cannot be told here")
    text = f"at most {most:,} watches and {instances:,} instances a user"
    if most < _WATCHES:
        advice = f"sudo sysctl fs.inotify.max_user_watches={_WATCHES * 8}"
        return Finding("inotify", LOOK, f"{text}: few for a large workspace", advice)
    return Finding("inotify", OK, text)


def _mount_count() -> Finding:
    """A workspace takes a FUSE mount, each of its forks another; fusermount3 limits how many users
    other than root may have."""
    from ckptfs.daemon import mounts

    count = sum(1 for mount in mounts.all_mounts() if mount.fstype.startswith("fuse"))
    if os.geteuid() == 0:
        return Finding("fuse mounts", OK, f"{count:,}; root has no limit")
    most = mount_max(_FUSE_CONF)
    text = f"{count:,} of at most {most:,}"
    if count > most * 9 // 10:
        advice = f"the line mount_max = {most * 2} in {_FUSE_CONF}"
        return Finding("fuse mounts", LOOK, text, advice)
    return Finding("fuse mounts", OK, text)


def mount_max(conf: Path) -> int:
    """How many FUSE mounts fusermount3 allows, by its settings."""
    try:
        lines = conf.read_text(errors="replace").splitlines()
    except OSError:
        return _MOUNT_MAX
    for line in reversed(lines):
        name, equals, value = line.partition("=")
        if name.strip() == "mount_max" and equals and value.strip().isdecimal():
            return int(value)
    return _MOUNT_MAX


def _clock() -> Finding:
    ahead = [item for item in config.known() if _is_ahead(item)]
    if ahead:
        text = f"it is behind what {ahead[0].store} was written at"
        advice = "set the clock; checkpoints are found by their times"
        return Finding("clock", WRONG, text, advice)
    state = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.CDLL(None).adjtimex(state) < 0:
        return Finding("clock", OK, "whether it is synchronised cannot be told here")
    if int.from_bytes(state.raw[_STATUS_AT : _STATUS_AT + 4], "little") & _UNSYNCHRONISED:
        advice = "timedatectl set-ntp true; on one machine alone it does no harm"
        return Finding("clock", LOOK, "not synchronised", advice)
    return Finding("clock", OK, "synchronised")


def _is_ahead(workspace: config.Workspace) -> bool:
    try:
        written = (workspace.store / "data.mdb").stat().st_mtime
    except OSError:
        return False
    return written > time.time() + _AHEAD_S


# -- workspaces and agents -------------------------------------------------------------------------


def _workspaces() -> Iterator[Finding]:
    known = sorted(config.known())
    troubled = [found for item in known if (found := _trouble(item)) is not None]
    yield from troubled
    if not troubled:
        count = output.count_text(len(known), "workspace", "workspaces")
        yield Finding("workspaces", OK, f"{count}, none in disorder")


def _trouble(workspace: config.Workspace) -> Finding | None:
    path = workspace.path
    if runtime.living(workspace) is not None:
        return None
    if not (workspace.store / "data.mdb").exists():
        text = f"{path}: its store {workspace.store} is gone"
        return Finding("workspace", LOOK, text, f"ckptfs forget {shell(path)}")
    if runtime.left_behind(workspace) is not None:
        text = f"{path}: its daemon is gone ({runtime.why_gone(workspace)})"
        return Finding("workspace", WRONG, text, f"ckptfs mount {shell(path)}, or ckptfs umount")
    return None


def _at_hand(args: Namespace) -> Iterator[Finding]:
    """The workspace that is named, or around the current directory: how it is served, and whether
    its store is whole."""
    from ckptfs.cli.store import look
    from ckptfs.cli.workspace import find_workspace

    try:
        workspace = find_workspace(args)
    except (CkptfsError, OSError):
        return  # `doctor` is for machines without one, too
    where = f"-w {shell(workspace.path)}"
    try:
        if runtime.living(workspace) is not None:
            yield from _served(workspace, where)
        problems = look(workspace, deep=False)["problems"]
    except CkptfsError as error:
        yield Finding("store", LOOK, f"cannot be checked: {error.message}", error.hint)
        return
    if problems:
        text = f"{workspace.store} is damaged: {problems[0]['message']}"
        advice = f"ckptfs check {where} tells all of it; docs/OPERATIONS.md, Recovery"
        yield Finding("store", WRONG, text, advice)
        return
    text = f"no damage in {workspace.store}; `ckptfs check --deep` reads the bytes, too"
    yield Finding("store", OK, text)


def _served(workspace: config.Workspace, where: str) -> Iterator[Finding]:
    with open_workspace(workspace) as session:
        record = session.call("status")
    if record["server"] == "portable":
        text = f"{workspace.path}: by the portable path, which is slower: {record['server_reason']}"
        yield Finding("served", LOOK, text, "make setup, then mount it again")
    else:
        yield Finding("served", OK, f"{workspace.path}: by the compiled server")
    if record["room"] is not None:
        advice = f"ckptfs status --space {where}"
        yield Finding("room", LOOK, output.disk_space_text(record["room"]), advice)


def _left_over() -> Iterator[Finding]:
    """Mounts of ours behind which no daemon is."""
    from ckptfs.daemon import mounts

    ours = [mount.path for mount in mounts.all_mounts() if mount.is_ours]
    dead = [path for path in ours if mounts.is_dead(path)]
    for path in dead:
        yield Finding(
            "mount", WRONG, f"{path}: no daemon serves it", f"ckptfs umount {shell(path)}"
        )
    if not dead:
        count = output.count_text(len(ours), "mount", "mounts")
        yield Finding("mounts", OK, f"{count} of ckptfs, of all users, none left over")


def _units() -> Iterator[Finding]:
    """What mounts workspaces at login and boot."""
    from ckptfs.cli import units

    found = units.installed()
    troubled = [item for item in map(_unit_trouble, found) if item is not None]
    yield from troubled
    if not troubled:
        count = output.count_text(len(found), "unit", "units")
        text = f"{count} of systemd, in order" if found else "none; `ckptfs service install DIR`"
        yield Finding("units", OK, text)


def _unit_trouble(path: Path) -> Finding | None:
    from ckptfs.cli import units

    program, workspace = units.named_in(path)
    system = "" if path.is_relative_to(config.settings_file().parents[1]) else " --system"
    if program and not os.access(program, os.X_OK):
        advice = f"ckptfs service install {shell(workspace)}{system}"
        return Finding("unit", WRONG, f"{path.name} calls {program}, which is not there", advice)
    if workspace and not os.path.isdir(workspace):
        advice = f"ckptfs service remove {shell(workspace)}{system}"
        return Finding("unit", LOOK, f"{path.name} mounts {workspace}, which is not there", advice)
    return None


def _agents(args: Namespace) -> Iterator[Finding]:
    from ckptfs.agents.table import found
    from ckptfs.cli.agents import hooks_of, project_of

    try:
        project = project_of(args)
    except CkptfsError as error:
        yield Finding("agents", LOOK, error.message, error.hint)
        return
    here = found()
    if not here:
        yield Finding("agents", OK, "none was found on this machine")
    for agent in here:
        states = {hooks_of(agent, project)[scope]["state"] for scope in ("project", "user")}
        install = f"ckptfs hook install {agent.name}"
        if "current" in states:
            yield Finding(agent.name, OK, "its hook is installed")
        elif states == {"none"}:
            yield Finding(agent.name, OK, f"no hook; {install}")
        else:
            states.discard("none")
            text = f"its hook is {' and '.join(sorted(states))}"
            yield Finding(agent.name, LOOK, text, f"ckptfs hook status; {install}")
