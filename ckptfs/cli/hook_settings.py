"""`ckptfs hook install` and `uninstall`: an agent's settings, changed with everything else kept."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ckptfs import config
from ckptfs.agents import settings
from ckptfs.agents.hook import call
from ckptfs.agents.table import AGENTS, Agent, files_of, found
from ckptfs.cli import place, screen
from ckptfs.cli.screen import JsonObject
from ckptfs.errors import AgentSettingsInvalid, NotConfirmed, UsageError, WorkspaceUnknown

#: Settings above this size are nobody's settings.
_SIZE_MAX = 16 << 20


class SettingsEdit(NamedTuple):
    """A settings file, as it is and as it shall be."""

    path: Path
    old: str
    new: str

    @property
    def diff(self) -> str:
        old, new = (text.splitlines(keepends=True) for text in (self.old, self.new))
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def hook(args: Namespace) -> int:
    if args.action is None:
        call(args.agent or "", args.event or "")
    if args.action == "status":
        from ckptfs.cli.hook_status import status

        return status(args)
    if args.action == "plugin":
        from ckptfs.cli.hook_plugin import plugin

        return plugin(args)
    return _change(args, _meant(args))


def _meant(args: Namespace) -> list[Agent]:
    """The agents that are named, or all that are on this machine."""
    here = found()
    if args.all and args.subject is None:
        if not here:
            raise UsageError(f"Cannot {args.action} a hook: no agent was found on this machine.")
        return here
    if args.subject in AGENTS and not args.all:
        return [AGENTS[args.subject]]
    raise UsageError(_which(args, here), hint=f"The agents are {', '.join(AGENTS)}.")


def _which(args: Namespace, here: list[Agent]) -> str:
    if args.subject is not None:
        problem = "--all stands for them" if args.all else "there is no such agent"
        return f"Cannot {args.action} a hook for {args.subject!r}: {problem}."
    if not here:
        return f"Cannot {args.action} a hook: name an agent. None was found on this machine."
    names = ", ".join(agent.name for agent in here)
    return (
        f"Cannot {args.action} a hook: name an agent, or --all. On this machine there "
        f"{'is' if len(here) == 1 else 'are'} {names}."
    )


def _change(args: Namespace, agents: list[Agent]) -> int:
    project = None if args.user else project_of(args)
    planned = [(agent, _changes(agent, project, args.action)) for agent in agents]
    records = [_record(agent, changes, args) for agent, changes in planned]
    different = [change for _, changes in planned for change in changes if change.new != change.old]
    record = records[0] if args.subject else {"agents": records}
    if args.dry_run or not different:
        text = "".join(change.diff for change in different) or _unchanged(planned)
        screen.result(record, text.rstrip("\n"), as_json=args.json)
        return 0
    if not args.json:
        shown = "".join(change.diff for change in different).expandtabs()
        screen.note("\n".join(map(screen.safe, shown.splitlines())))
    if not args.yes:
        _confirm(args.action)
    for agent, changes in planned:
        _write_all(agent, changes)
    done = [_done(args.action, agent, changes) for agent, changes in planned]
    screen.result(record, "\n".join(filter(None, done)), as_json=args.json)
    return 0


def _changes(agent: Agent, project: Path | None, action: str) -> list[SettingsEdit]:
    changes = []
    for named in files_of(agent, project):
        # Through a link, so that the link stays and what it leads to is changed.
        path = config.resolve(named)
        old = read(path)
        if action == "install":
            new = settings.installed(agent, path, old, command())
        else:
            new = settings.uninstalled(agent, path, old)
        changes.append(SettingsEdit(path, old, new))
    return changes


def _write_all(agent: Agent, changes: list[SettingsEdit]) -> None:
    """All files of an agent or none: what was written before one that fails goes back."""
    written: list[SettingsEdit] = []
    try:
        for change in changes:
            write(change, executable=agent.runs_files)
            written.append(change)
    except AgentSettingsInvalid:
        for path, old, new in reversed(written):
            write(SettingsEdit(path, new, old), executable=agent.runs_files)
        raise
    if agent.project.endswith("/ckptfs"):  # a folder of our own
        for folder in sorted({change.path.parent for change in changes}, reverse=True):
            with suppress(OSError):
                folder.rmdir()  # only if it is empty


def _record(agent: Agent, changes: list[SettingsEdit], args: Namespace) -> JsonObject:
    return {
        "agent": agent.name,
        "path": str(changes[-1].path),
        "paths": [str(change.path) for change in changes],
        "changed": any(change.new != change.old for change in changes),
        "dry_run": args.dry_run,
        "diff": "".join(change.diff for change in changes if change.new != change.old),
    }


def _unchanged(planned: list[tuple[Agent, list[SettingsEdit]]]) -> str:
    paths = [screen.safe(change.path) for _, changes in planned for change in changes]
    return "\n".join(f"{path} is as it should be." for path in paths)


def _done(action: str, agent: Agent, changes: list[SettingsEdit]) -> str:
    """What was done for one agent; the last of its files is the one that it reads."""
    if all(change.new == change.old for change in changes):
        return ""
    path = screen.safe(changes[-1].path)
    if action == "install":
        return f"Installed the hook for {agent.title}: {path}. {agent.then}"
    return f"Removed the hook from {agent.title}: {path}."


def project_of(args: Namespace) -> Path:
    """The workspace that we are in or that is named; else the directory."""
    try:
        return place.workspace(args).path
    except WorkspaceUnknown:
        return config.resolve(args.workspace) if args.workspace else place.here()


def program() -> list[str]:
    """How an agent calls us: by name if that is found where an agent looks, else by path."""
    own = os.path.realpath(sys.argv[0])
    if os.path.basename(own) != "ckptfs" or not os.access(own, os.X_OK):
        # -P: an agent calls it in the workspace, and Python would look for its modules there first.
        return [sys.executable, "-P", "-m", "ckptfs"]
    named = shutil.which("ckptfs")
    if named is not None and os.path.realpath(named) == own:
        return ["ckptfs"]
    return [os.path.abspath(sys.argv[0])]


def command() -> str:
    return shlex.join([*program(), "hook"])


def read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_SIZE_MAX + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise AgentSettingsInvalid(path, (error.strerror or str(error)).lower()) from error
    if len(content) > _SIZE_MAX:
        raise AgentSettingsInvalid(path, "it is too large for settings")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise AgentSettingsInvalid(path, "it is not UTF-8") from error


def _confirm(action: str) -> None:
    deed = f"{action}ed"
    if not sys.stdin.isatty():
        raise NotConfirmed("there is no terminal to ask at", deed, option="--yes")
    screen.note("Go ahead? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("it was not confirmed", deed, option="--yes")


def write(change: SettingsEdit, *, executable: bool = False) -> None:
    """In one step, and with the mode and owner that the file had."""
    path, old, new = change
    if new == old:
        return
    if read(path) != old:
        raise AgentSettingsInvalid(path, "somebody changed it meanwhile", hint="Try again.")
    try:
        if new:
            _replace(path, new, executable)
        else:
            path.unlink()
    except OSError as error:
        raise AgentSettingsInvalid(path, (error.strerror or str(error)).lower()) from error


def _replace(path: Path, new: str, executable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("x", encoding="utf-8", newline="") as file:
            if path.exists():
                _like(file.fileno(), path)
            if executable:
                os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o777 | 0o111)
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _like(descriptor: int, path: Path) -> None:
    was = path.stat()
    if (was.st_uid, was.st_gid) != (os.geteuid(), os.getegid()) and os.geteuid() == 0:
        os.fchown(descriptor, was.st_uid, was.st_gid)
    os.fchmod(descriptor, was.st_mode & 0o777)
