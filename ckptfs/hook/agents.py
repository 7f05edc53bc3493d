"""The coding agents that a hook can be put into: where their settings are, what is put there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ckptfs import config

Group = dict[str, Any]


class Agent(NamedTuple):
    """``events`` are those of interest, with the tools that may write where that is asked for.
    ``second`` is how many units of its timeouts a second has."""

    name: str
    title: str
    events: dict[str, str]
    second: int
    #: What a person has to do after the settings are changed.
    then: str


_HOOK_SECONDS = 10

AGENTS = {
    "claude": Agent(
        "claude",
        "Claude Code",
        {
            "SessionStart": "",
            "UserPromptSubmit": "",
            "PreToolUse": "^(Bash|PowerShell|Edit|MultiEdit|Write|NotebookEdit|mcp__.*)$",
            "SubagentStop": "",
            "Stop": "",
            "SessionEnd": "",
        },
        1,
        "Sessions that run already take it up after /hooks or a restart.",
    ),
    "codex": Agent(
        "codex",
        "Codex",
        {
            "SessionStart": "",
            "UserPromptSubmit": "",
            "PreToolUse": "^(Bash|apply_patch|Edit|Write|mcp__.*)$",
            "Stop": "",
        },
        1,
        "Codex asks you to trust new hooks: look at them with /hooks in Codex.",
    ),
    "gemini": Agent(
        "gemini",
        "Gemini CLI",
        {
            "SessionStart": "",
            "BeforeAgent": "",
            "BeforeTool": "^(run_shell_command|write_file|replace|mcp_.*)$",
            "AfterAgent": "",
            "SessionEnd": "",
        },
        1000,
        "Gemini CLI runs hooks of a project only in folders that you trust.",
    ),
    "opencode": Agent("opencode", "opencode", {}, 1, "opencode loads it when it starts."),
}


def group_of(agent: Agent, event: str, command: str) -> Group:
    """What stands in the settings for one event."""
    hook = {"type": "command", "command": command, "timeout": _HOOK_SECONDS * agent.second}
    matcher = agent.events[event]
    return {"matcher": matcher, "hooks": [hook]} if matcher else {"hooks": [hook]}


def is_ours(command: object) -> bool:
    """Whether a hook's command is `ckptfs hook`, wherever that ckptfs is."""
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return False
    if words[-1:] != ["hook"]:
        return False
    return os.path.basename(words[-2]) == "ckptfs" if len(words) == 2 else "ckptfs" in words


def settings_of(
    agent: Agent, project: Path | None, environ: Mapping[str, str] = os.environ
) -> Path:
    """The settings file of a project, or the user's own if there is no project."""
    if agent.name == "opencode":
        return _opencode(project, environ) / "plugins" / "ckptfs.js"
    folder = project / f".{agent.name}" if project else _of_user(agent, environ)
    if agent.name != "codex":
        return folder / "settings.json"
    # Codex reads both and warns if both have hooks; whichever is in use stays so.
    in_json = folder / "hooks.json"
    return in_json if in_json.exists() else folder / "config.toml"


_MOVED = {"claude": "CLAUDE_CONFIG_DIR", "codex": "CODEX_HOME"}


def _of_user(agent: Agent, environ: Mapping[str, str]) -> Path:
    moved = environ.get(_MOVED.get(agent.name, ""), "")
    return Path(moved) if os.path.isabs(moved) else Path(config.home(environ)) / f".{agent.name}"


def _opencode(project: Path | None, environ: Mapping[str, str]) -> Path:
    if project:
        return project / ".opencode"
    return config.settings_file(environ).parent.parent / "opencode"
