"""A plugin for agents that read Claude's plugin format: hooks, the MCP server and a skill.

Claude Code and Codex both take it, from a folder that is its own marketplace. Makes texts; writes
no file.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from ckptfs.hook.agents import AGENTS

NAME = "ckptfs"
_ABOUT = "Checkpoints of the workspace before each tool that may write, and tools to look back."
_OWNER = {"name": "the ckptfs authors"}

#: Claude's events; what Codex does not have it passes over. The tools of both.
_TOOLS = "^(Bash|PowerShell|Monitor|Edit|MultiEdit|Write|NotebookEdit|apply_patch|mcp__.*)$"

_README = f"""\
# {NAME}

{_ABOUT}

It works in a directory that was mounted with `ckptfs mount DIR`; elsewhere it does nothing. The
hooks take a checkpoint before each tool that may write and note how the tool ended, the MCP server
gives the model tools to compare and restore, and the skill tells it when to use them. Made by
`ckptfs hook plugin DIR`: run that again after an upgrade of ckptfs.
"""


def files(program: list[str], version: str) -> dict[str, str]:
    """By their names in the folder, what is in the plugin's files. ``program`` calls ckptfs."""
    manifest = {
        "name": NAME,
        "version": version,
        "description": _ABOUT,
        "author": _OWNER,
        "license": "MIT",
        "keywords": ["checkpoint", "undo", "history"],
    }
    listed = {"name": NAME, "source": "./", "description": _ABOUT, "version": version}
    server = {"command": program[0], "args": [*program[1:], "mcp"]}
    return {
        ".claude-plugin/plugin.json": _text(manifest),
        ".claude-plugin/marketplace.json": _text(
            {"name": NAME, "owner": _OWNER, "description": _ABOUT, "plugins": [listed]}
        ),
        "hooks/hooks.json": _text({"description": _ABOUT, "hooks": _hooks(program)}),
        ".mcp.json": _text({"mcpServers": {NAME: server}}),
        "skills/ckptfs/SKILL.md": Path(__file__).with_name("skill.md").read_text(),
        "README.md": _README,
    }


def _hooks(program: list[str]) -> dict[str, Any]:
    claude = AGENTS["claude"]
    asked = {
        event: on._replace(tools=_TOOLS) if on.tools else on for event, on in claude.events.items()
    }
    agent = claude._replace(events=asked)
    command = shlex.join([*program, "hook"])
    return {event: [agent.shape.item(agent, event, command)] for event in asked}


def _text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def is_ours(manifest: str) -> bool:
    """Whether a folder's plugin.json is that of an earlier one of ours."""
    try:
        found = json.loads(manifest)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("name") == NAME
