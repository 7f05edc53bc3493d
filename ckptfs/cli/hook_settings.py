"""`ckptfs hook install` and `uninstall`: an agent's settings, changed with everything else kept."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import sys
from argparse import Namespace
from pathlib import Path

from ckptfs import config
from ckptfs.cli import place, screen
from ckptfs.cli.hook import call
from ckptfs.errors import AgentSettingsInvalid, NotConfirmed, UsageError, WorkspaceUnknown
from ckptfs.hook import settings
from ckptfs.hook.agents import AGENTS, settings_of

#: Settings above this size are nobody's settings.
_SIZE_MAX = 16 << 20


def hook(args: Namespace) -> int:
    if args.action is None:
        call()
    if args.agent is None:
        raise UsageError(f"Cannot {args.action} a hook: name one of {', '.join(AGENTS)}.")
    agent = AGENTS[args.agent]
    # Through a link, so that the link stays and what it leads to is changed.
    path = config.resolve(settings_of(agent, None if args.user else _project(args)))
    old = _read(path)
    if args.action == "install":
        new = settings.installed(agent, path, old, _command())
    else:
        new = settings.uninstalled(path, old)
    record = {
        "agent": agent.name,
        "path": str(path),
        "changed": new != old,
        "dry_run": args.dry_run,
        "diff": _diff(path, old, new),
    }
    if new == old or args.dry_run:
        text = record["diff"] if new != old else f"{screen.safe(path)} is as it should be."
        screen.result(record, str(text).rstrip("\n"), as_json=args.json)
        return 0
    if not args.json:
        screen.note("\n".join(map(screen.safe, str(record["diff"]).expandtabs().splitlines())))
    if not args.yes:
        _confirm(args.action)
    _write(path, old, new)
    done = "Installed the hook for" if args.action == "install" else "Removed the hook from"
    text = f"{done} {agent.title}: {screen.safe(path)}."
    screen.result(record, f"{text} {agent.then}" if new else text, as_json=args.json)
    return 0


def _project(args: Namespace) -> Path:
    """The workspace that we are in or that is named; else the directory."""
    try:
        return place.workspace(args).path
    except WorkspaceUnknown:
        return config.resolve(args.workspace) if args.workspace else place.here()


def _command() -> str:
    """How an agent calls us: by name if that is found where an agent looks, else by path."""
    own = os.path.realpath(sys.argv[0])
    if os.path.basename(own) != "ckptfs" or not os.access(own, os.X_OK):
        return f"{shlex.quote(sys.executable)} -m ckptfs hook"
    found = shutil.which("ckptfs")
    if found is not None and os.path.realpath(found) == own:
        return "ckptfs hook"
    return f"{shlex.quote(os.path.abspath(sys.argv[0]))} hook"


def _read(path: Path) -> str:
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


def _diff(path: Path, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), str(path), str(path)
    )
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def _confirm(action: str) -> None:
    deed = f"{action}ed"
    if not sys.stdin.isatty():
        raise NotConfirmed("there is no terminal to ask at", deed, option="--yes")
    screen.note("Go ahead? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("it was not confirmed", deed, option="--yes")


def _write(path: Path, old: str, new: str) -> None:
    """In one step, and with the mode and owner that the file had."""
    if _read(path) != old:
        raise AgentSettingsInvalid(path, "somebody changed it meanwhile", hint="Try again.")
    if not new:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("x", encoding="utf-8", newline="") as file:
            if path.exists():
                _like(file.fileno(), path)
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise AgentSettingsInvalid(path, (error.strerror or str(error)).lower()) from error


def _like(descriptor: int, path: Path) -> None:
    was = path.stat()
    if (was.st_uid, was.st_gid) != (os.geteuid(), os.getegid()) and os.geteuid() == 0:
        os.fchown(descriptor, was.st_uid, was.st_gid)
    os.fchmod(descriptor, was.st_mode & 0o7777)
