"""Which hooks of ours a workspace has in its own settings files: a restore to before their
installation takes them away, and says so. Only looks.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptfs.agents.table import Agent

#: The folders of agents in a project. Only where one of them is there, the table and what reads
#: settings is loaded, which takes as long as a short restore.
FOLDERS = (
    ".agents",
    ".claude",
    ".clinerules",
    ".codex",
    ".cursor",
    ".factory",
    ".gemini",
    ".github",
    ".kiro",
    ".opencode",
    ".qwen",
    ".windsurf",
)

#: A larger file is not a settings file.
_SIZE_MAX = 16 << 20


def hooks_in(workspace: Path) -> dict[str, str]:
    """The agents whose settings in a workspace call us, each with the file, as a path below it."""
    # By os.path, which says False of what cannot be looked at: there are no hooks to tell of.
    if not any(os.path.isdir(workspace / name) for name in FOLDERS):
        return {}
    from ckptfs.agents.table import AGENTS, files_of

    found = {}
    for agent in AGENTS.values():
        if os.path.isdir(workspace / agent.project):
            for path in files_of(agent, workspace):
                if _calls_us(agent, path):
                    found[agent.name] = str(path.relative_to(workspace))
    return found


def gone_text(gone: dict[str, str]) -> list[str]:
    """What to tell of hooks that a restore took away, a line an agent."""
    from ckptfs.agents.table import AGENTS

    return [
        f"The hook of {AGENTS[name].title} is gone: {path} was restored to before it was "
        f"installed. `ckptfs hook install {name}` puts it back, with --user where no restore "
        "reaches it."
        for name, path in gone.items()
    ]


def _calls_us(agent: Agent, path: Path) -> bool:
    from ckptfs.agents import settings
    from ckptfs.errors import AgentSettingsInvalid

    text = _read(path)
    try:
        return bool(text.strip() and settings.callers(agent, path, text))
    except AgentSettingsInvalid:
        return False


def _read(path: Path) -> str:
    """A text file; empty if it is anything else. Not waited for: a pipe of that name is none."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            return file.read(_SIZE_MAX).decode()
    except (OSError, UnicodeDecodeError):
        return ""
