"""`ckptfs hook` and `ckptfs mcp`: hooks in the settings of coding agents, and tools for them.

Changing settings keeps everything else in them. What a hook calls is `ckptfs.agents.hook`.
"""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ckptfs import __version__, config, locating
from ckptfs.agents import settings
from ckptfs.agents.hook import call
from ckptfs.agents.settings import is_our_plugin, plugin_files
from ckptfs.agents.table import AGENTS, Agent, files_of, found, with_forks
from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.workspace import current_directory, find_workspace
from ckptfs.errors import (
    AgentSettingsInvalid,
    ExtraMissing,
    UsageError,
    WorkspaceUnknown,
    reason_of,
)

#: A larger file is not a settings file.
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
        return _status(args)
    if args.action == "plugin":
        return _plugin(args)
    return _change(args, _meant(args))


def _meant(args: Namespace) -> list[Agent]:
    """The agents that are named, or all that are on this machine."""
    here = found()
    if args.all and args.subject is None:
        return _all(args, here)
    if args.subject in AGENTS and not args.all:
        agent = AGENTS[args.subject]
        return [_with_forks(agent) if args.forks and args.action == "install" else agent]
    raise UsageError(_which(args, here), hint=f"The agents are {', '.join(AGENTS)}.")


def _all(args: Namespace, here: list[Agent]) -> list[Agent]:
    """All that are on this machine; to uninstall, all whose settings have our hook."""
    if args.action == "uninstall":
        project = project_of(args)
        ours = [agent for agent in AGENTS.values() if _is_installed(hooks_of(agent, project))]
        if not ours:
            raise UsageError(
                f"Cannot uninstall hooks: no agent has one, neither in {project} nor for you.",
                hint="`ckptfs hook status` shows where there are any; -w DIR names the project.",
            )
        return ours
    if not here:
        raise UsageError(
            "Cannot install hooks: no agent was found on this machine.",
            hint=f"Name the agent: {', '.join(AGENTS)}.",
        )
    return here


def _with_forks(agent: Agent) -> Agent:
    found = with_forks(agent)
    if found is None:
        raise UsageError(
            f"Cannot install a hook for the work trees of {agent.title}: it has none. "
            "Nothing was changed.",
            hint="Claude Code has one; for others, make a fork and start the agent there.",
        )
    return found


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
    planned = [(agent, _in_scope(agent, project, args)) for agent in agents]
    records = [_record(agent, changes, args) for agent, changes in planned]
    different = [change for _, changes in planned for change in changes if change.new != change.old]
    record = records[0] if args.subject else {"agents": records}
    if args.dry_run or not different:
        text = _patch(different) or _unchanged(planned)
        output.result(record, text, as_json=args.json, as_it_is=bool(different))
        return 0
    if not args.yes:
        if not args.json:
            print(_patch(different), file=sys.stderr)
        output.confirm("", "Go ahead?", f"{args.action}ed", option="--yes")
    for agent, changes in planned:
        _write_all(agent, changes)
    done = [_done(args.action, agent, changes) for agent, changes in planned]
    output.result(record, "\n".join(filter(None, done)), as_json=args.json)
    return 0


def _patch(changes: Sequence[SettingsEdit]) -> str:
    shown = "".join(change.diff for change in changes).expandtabs()
    return "\n".join(map(output.safe, shown.splitlines()))


def _in_scope(agent: Agent, project: Path | None, args: Namespace) -> list[SettingsEdit]:
    """What is to be changed for an agent: in the project's settings, or in the user's own where
    those of the project would cost too much. Such a hook is uninstalled from both."""
    if project is None or args.project or not agent.not_in_project:
        return _changes(agent, project, args.action)
    changes = _changes(agent, None, args.action)
    if args.action == "uninstall":
        return [*_changes(agent, project, args.action), *changes]
    output.note(
        f"In your own settings, for all projects: {agent.not_in_project}. "
        "--project puts it there all the same."
    )
    return changes


def _changes(agent: Agent, project: Path | None, action: str) -> list[SettingsEdit]:
    changes = []
    for named in files_of(agent, project):
        # Through a link, so that the link stays and what it leads to is changed.
        path = config.resolve(named)
        old = _read(path)
        if action == "install":
            new = settings.installed(agent, path, old, _command())
        else:
            new = settings.uninstalled(agent, path, old)
        changes.append(SettingsEdit(path, old, new))
    return changes


def _write_all(agent: Agent, changes: list[SettingsEdit]) -> None:
    """All files of an agent or none: what was written before one that fails goes back."""
    written: list[SettingsEdit] = []
    try:
        for change in changes:
            _write(change, executable=agent.runs_files)
            written.append(change)
    except AgentSettingsInvalid:
        for path, old, new in reversed(written):
            _write(SettingsEdit(path, new, old), executable=agent.runs_files)
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
    paths = [output.safe(change.path) for _, changes in planned for change in changes]
    return "\n".join(f"{path} is as it should be." for path in paths)


def _done(action: str, agent: Agent, changes: list[SettingsEdit]) -> str:
    """What was done for one agent; the last of its files is the one that it reads."""
    if all(change.new == change.old for change in changes):
        return ""
    # Where each event has a file of its own, the directory says it better.
    path = output.safe(changes[-1].path.parent if agent.runs_files else changes[-1].path)
    if action == "install":
        return f"Installed the hook for {agent.title}: {path}. {agent.then}"
    return f"Removed the hook from {agent.title}: {path}."


def project_of(args: Namespace) -> Path:
    """The workspace that we are in or that is named; else the directory."""
    try:
        return find_workspace(args).path
    except WorkspaceUnknown:
        return config.resolve(args.workspace) if args.workspace else current_directory()


def own_program() -> list[str]:
    """How to call us from anywhere: by path."""
    own = os.path.realpath(sys.argv[0])
    if os.path.basename(own) != "ckptfs" or not os.access(own, os.X_OK):
        # -P: an agent calls it in the workspace, and Python would look for its modules there first.
        return [sys.executable, "-P", "-m", "ckptfs"]
    return [os.path.abspath(sys.argv[0])]


def _program() -> list[str]:
    """How an agent calls us: by name if that is found where an agent looks, else by path."""
    named = shutil.which("ckptfs")
    if named is not None and os.path.realpath(named) == os.path.realpath(sys.argv[0]):
        return ["ckptfs"]
    return own_program()


def _command() -> str:
    return shlex.join([*_program(), "hook"])


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_SIZE_MAX + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise AgentSettingsInvalid(path, reason_of(error)) from error
    if len(content) > _SIZE_MAX:
        raise AgentSettingsInvalid(path, "it is too large for settings")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise AgentSettingsInvalid(path, "it is not UTF-8") from error


def _write(change: SettingsEdit, *, executable: bool = False) -> None:
    """In one step, and with the mode and owner that the file had."""
    path, old, new = change
    if new == old:
        return
    if _read(path) != old:
        raise AgentSettingsInvalid(path, "another process changed it meanwhile", hint="Try again.")
    try:
        if new:
            _replace(path, new, executable)
        else:
            path.unlink()
    except OSError as error:
        raise AgentSettingsInvalid(path, reason_of(error)) from error


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


# -- hook status -----------------------------------------------------------------------------------


def _status(args: Namespace) -> int:
    if args.subject is not None:
        raise UsageError("Cannot show the status of hooks: it takes no name.")
    project = project_of(args)
    here = {agent.name for agent in found()}
    agents = [
        record
        for record in (hooks_of(agent, project) for agent in AGENTS.values())
        if record["agent"] in here or _is_installed(record)
    ]
    text = "\n".join(_lines(agents)) or "No agent was found on this machine."
    output.result({"directory": str(project), "agents": agents}, text, as_json=args.json)
    return 0


def _is_installed(record: JsonObject) -> bool:
    """Whether our hook is in the agent's settings, wherever the agent itself runs."""
    return any(
        record[scope]["state"] not in ("none", "unreadable") for scope in ("project", "user")
    )


def hooks_of(agent: Agent, project: Path) -> JsonObject:
    return {
        "agent": agent.name,
        "title": agent.title,
        "project": _of_files(agent, files_of(agent, project)),
        "user": _of_files(agent, files_of(agent, None)),
        "last_call_ns": _last_call(agent),
    }


def _of_files(agent: Agent, paths: list[Path]) -> JsonObject:
    """``state`` is none, current, outdated, other (``command`` is how another ckptfs is called) or
    unreadable (``reason``)."""
    record: JsonObject = {"path": str(paths[-1]), "state": "none", "command": None, "reason": None}
    try:
        texts = [(path, _read(path)) for path in paths]
        called = {caller for path, text in texts for caller in settings.callers(agent, path, text)}
        if not called:
            return record
        if called != {_command()}:
            strange = sorted(called - {_command()})[0]
            return {**record, "state": "other", "command": strange}
        same = all(
            settings.installed(agent, path, text, _command()) == text for path, text in texts
        )
    except AgentSettingsInvalid as error:
        return {**record, "state": "unreadable", "reason": error.message}
    return {**record, "state": "current" if same else "outdated"}


def _last_call(agent: Agent) -> int | None:
    try:
        return os.stat(locating.hook_note(agent.name)).st_mtime_ns
    except OSError:
        return None


def _lines(agents: list[JsonObject]) -> list[str]:
    if not agents:
        return []
    rows = [("agent", "project", "user", "last call"), *map(_row, agents)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(agent: JsonObject) -> tuple[str, str, str, str]:
    last = agent["last_call_ns"]
    called = "never" if last is None else output.time_text(last)
    return agent["agent"], _state(agent["project"]), _state(agent["user"]), called


def _state(found: JsonObject) -> str:
    shown = f"other: {found['command']}" if found["state"] == "other" else found["state"]
    return output.safe(shown)


# -- hook plugin -----------------------------------------------------------------------------------


def _plugin(args: Namespace) -> int:
    if args.subject is None:
        raise UsageError("Cannot write the plugin: name a directory for it.")
    folder = config.resolve(args.subject)
    _require_own(folder)
    wanted = plugin_files(_program(), __version__)
    changes = [
        SettingsEdit(folder / name, _read(folder / name), text) for name, text in wanted.items()
    ]
    record = {
        "path": str(folder),
        "files": list(wanted),
        "changed": any(change.new != change.old for change in changes),
        "dry_run": args.dry_run,
    }
    if args.dry_run:
        text = _patch(changes) or f"{output.safe(folder)} is as it should be."
        output.result(record, text, as_json=args.json, as_it_is=True)
        return 0
    for change in changes:
        _write(change)
    output.result(record, _plugin_text(folder), as_json=args.json)
    return 0


def _require_own(folder: Path) -> None:
    """Nothing that others keep is mixed with it, or overwritten."""
    try:
        there = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AgentSettingsInvalid(folder, reason_of(error)) from error
    if there and not is_our_plugin(_read(folder / ".claude-plugin" / "plugin.json")):
        raise AgentSettingsInvalid(
            folder, "it is not empty, and no plugin of ours", hint="Name an empty directory."
        )


def _plugin_text(folder: Path) -> str:
    shown = output.safe(folder)
    return "\n".join(
        [
            f"Wrote the plugin to {shown}.",
            f"  Claude Code, once:  claude --plugin-dir {shown}",
            f"  Claude Code:        claude plugin marketplace add {shown}",
            "                      claude plugin install ckptfs@ckptfs",
            f"  Codex:              codex plugin marketplace add {shown}",
            "                      codex plugin add ckptfs@ckptfs",
        ]
    )


# -- mcp -------------------------------------------------------------------------------------------


def mcp(args: Namespace) -> int:
    workspace = find_workspace(args)
    try:
        from ckptfs.agents.mcp_server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "ckptfs":
            raise
        raise ExtraMissing("the MCP server", error.name or "mcp", "mcp") from error
    os.chdir("/")  # or we would keep the workspace from being unmounted
    make_server(workspace, read_only=args.read_only, commands=args.allow_commands).run("stdio")
    return 0
