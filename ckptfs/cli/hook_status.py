"""`ckptfs hook status`: which agents are here, what is installed, who called last."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from ckptfs import locating
from ckptfs.agents import settings
from ckptfs.agents.table import AGENTS, Agent, files_of, found
from ckptfs.cli import screen
from ckptfs.cli.hook_settings import command, project_of, read
from ckptfs.cli.screen import JsonObject
from ckptfs.errors import AgentSettingsInvalid, UsageError


def status(args: Namespace) -> int:
    if args.subject is not None:
        raise UsageError("Cannot show the status of hooks: it takes no name.")
    project = project_of(args)
    here = {agent.name for agent in found()}
    agents = [
        record
        for record in (_of_agent(agent, project) for agent in AGENTS.values())
        if record["agent"] in here or _is_installed(record)
    ]
    text = "\n".join(_lines(agents)) or "No agent was found on this machine."
    screen.result({"project": str(project), "agents": agents}, text, as_json=args.json)
    return 0


def _is_installed(record: JsonObject) -> bool:
    """Whether our hook is in the agent's settings, wherever the agent itself runs."""
    return any(
        record[scope]["state"] not in ("none", "unreadable") for scope in ("project", "user")
    )


def _of_agent(agent: Agent, project: Path) -> JsonObject:
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
        texts = [(path, read(path)) for path in paths]
        called = {caller for path, text in texts for caller in settings.callers(agent, path, text)}
        if not called:
            return record
        if called != {command()}:
            strange = sorted(called - {command()})[0]
            return {**record, "state": "other", "command": strange}
        same = all(settings.installed(agent, path, text, command()) == text for path, text in texts)
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
    called = "never" if last is None else screen.time_text(last)
    return agent["agent"], _state(agent["project"]), _state(agent["user"]), called


def _state(found: JsonObject) -> str:
    shown = f"other: {found['command']}" if found["state"] == "other" else found["state"]
    return screen.safe(shown)
