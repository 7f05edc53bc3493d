"""The coding agents that a hook can be put into: where their settings are, what is put there.

One row an agent. How a hook stands in its settings (`Shape`) is one of a few forms; what differs
beside that is where the file is, which events are asked for, and how long a second is.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ckptfs import config

Item = dict[str, Any]
Keys = tuple[str, ...]

#: How long an agent waits for a call that hangs; a call ends before that by itself.
_HOOK_SECONDS = 10
#: At the end of a session Codex waits no longer than this, and warns of more.
_LAST_SECONDS = 3


class On(NamedTuple):
    """An event that is asked for: for which tools, whether the agent goes on meanwhile, and how
    long it waits else."""

    tools: str = ""
    in_background: bool = False
    seconds: int = _HOOK_SECONDS


class Shape(NamedTuple):
    """How hooks stand in a settings file: ``item`` makes one, ``at`` leads to the object with the
    events, ``by_event`` is false if it is one list for all, ``beside`` is what the file needs."""

    item: Callable[[Agent, str, str], Item]
    at: Keys = ("hooks",)
    by_event: bool = True
    beside: Mapping[str, Any] = {}


class Agent(NamedTuple):
    """``events`` are those asked for. ``project`` and ``user`` are the folders of its settings in a
    project and in the home directory, ``files`` those in them. It is on this machine if one of
    ``commands`` is found, or something at one of ``signs`` in the home directory."""

    name: str
    title: str
    events: Mapping[str, On]
    shape: Shape
    project: str
    user: str
    files: tuple[str, ...]
    commands: tuple[str, ...]
    signs: tuple[str, ...]
    #: What a person has to do after the settings are changed.
    then: str
    #: The variable that names another folder in place of the first part of ``user``.
    moved: str = ""
    #: How many units of its timeouts a second has.
    second: int = 1
    #: Whether the command says whose hook it is. Not where other agents read the same settings and
    #: the input tells.
    says_agent: bool = True
    #: Events that the command names, because the input does not.
    says_event: frozenset[str] = frozenset()
    #: What ends the command: a hook that cannot be started must not forbid every tool.
    guard: str = ""
    #: Whether each event has a file of its own, which is run.
    runs_files: bool = False
    #: Why the hook goes into the user's own settings unless the project's are asked for.
    not_in_project: str = ""


# -- how a hook stands in the settings -------------------------------------------------------------


def command_of(agent: Agent, event: str, command: str) -> str:
    """The whole command of one hook. ``command`` is how this ckptfs is called."""
    words = [command]
    if agent.says_agent:
        words.append(f"--agent {agent.name}")
    if event in agent.says_event:
        words.append(f"--event {event}")
    return " ".join([*words, agent.guard]).rstrip()


def _timeout(agent: Agent, event: str) -> int:
    return agent.events[event].seconds * agent.second


def _hook(agent: Agent, event: str, command: str) -> Item:
    hook = {
        "type": "command",
        "command": command_of(agent, event, command),
        "timeout": _timeout(agent, event),
    }
    return {**hook, "async": True} if agent.events[event].in_background else hook


def _group(agent: Agent, event: str, command: str) -> Item:
    tools = agent.events[event].tools
    hooks = [_hook(agent, event, command)]
    return {"matcher": tools, "hooks": hooks} if tools else {"hooks": hooks}


def _of_cursor(agent: Agent, event: str, command: str) -> Item:
    tools = agent.events[event].tools
    item = {"command": command_of(agent, event, command), "timeout": _timeout(agent, event)}
    return {**item, "matcher": tools} if tools else item


def _of_copilot(agent: Agent, event: str, command: str) -> Item:
    bash = command_of(agent, event, command)
    return {"type": "command", "bash": bash, "timeoutSec": _timeout(agent, event)}


def _of_windsurf(agent: Agent, event: str, command: str) -> Item:
    return {"command": command_of(agent, event, command), "show_output": False}


def _of_kiro(agent: Agent, event: str, command: str) -> Item:
    action = {"type": "command", "command": command_of(agent, event, command)}
    name = f"ckptfs {event}"
    return {"name": name, "trigger": event, "action": action, "timeout": _timeout(agent, event)}


_GROUPS = Shape(_group)

#: The agents whose work trees a hook can make, and the events of it.
_TREE_EVENTS = {"claude": ("WorktreeCreate", "WorktreeRemove")}


def with_forks(agent: Agent) -> Agent | None:
    """The agent with a hook that makes its work trees forks; None if it has no such hook."""
    events = _TREE_EVENTS.get(agent.name)
    more = dict.fromkeys(events or (), On())
    return agent._replace(events={**agent.events, **more}) if more else None


# -- the agents ------------------------------------------------------------------------------------

_CLAUDE_TOOLS = "^(Bash|PowerShell|Monitor|Edit|MultiEdit|Write|NotebookEdit|mcp__.*)$"
#: After a tool also those that read, where the agent does not wait for the hook.
_CLAUDE_ENDED = _CLAUDE_TOOLS.replace("(", "(Read|NotebookRead|")
_CODEX_TOOLS = "^(Bash|apply_patch|Edit|Write|mcp__.*)$"
_GEMINI_TOOLS = "^(run_shell_command|write_file|replace|mcp_.*)$"
_QWEN_TOOLS = "^(run_shell_command|write_file|edit|notebook_edit|monitor|mcp__.*)$"
_QWEN_ENDED = _QWEN_TOOLS.replace("(", "(read_file|")
_CURSOR_TOOLS = "^(Shell|WriteShellStdin|Write|Delete|MCP:.*)$"
_DROID_TOOLS = "^(Execute|Script|Edit|MultiEdit|Create|Write|ApplyPatch|NotebookEdit|.*___.*)$"

_ALL = (
    Agent(
        "claude",
        "Claude Code",
        {
            "SessionStart": On(),
            "UserPromptSubmit": On(),
            "PreToolUse": On(_CLAUDE_TOOLS),
            "PostToolUse": On(_CLAUDE_ENDED, in_background=True),
            "PostToolUseFailure": On(_CLAUDE_TOOLS, in_background=True),
            "SubagentStop": On(),
            "TaskCreated": On(),
            "TaskCompleted": On(),
            "PreCompact": On(),
            "Stop": On(),
            "SessionEnd": On(seconds=_LAST_SECONDS),
        },
        _GROUPS,
        project=".claude",
        user=".claude",
        files=("settings.json",),
        commands=("claude",),
        signs=(".claude",),
        then="Sessions that run already take it up after /hooks or a restart.",
        moved="CLAUDE_CONFIG_DIR",
        says_agent=False,
    ),
    Agent(
        "codex",
        "Codex",
        # Nothing after a tool: Codex does not tell how it ended.
        {
            "SessionStart": On(),
            "UserPromptSubmit": On(),
            "PreToolUse": On(_CODEX_TOOLS),
            "SubagentStop": On(),
            "PreCompact": On(),
            "Stop": On(),
            "SessionEnd": On(seconds=_LAST_SECONDS),
        },
        _GROUPS,
        project=".codex",
        user=".codex",
        files=("config.toml",),
        commands=("codex",),
        signs=(".codex",),
        then="Codex asks you to trust new hooks: look at them with /hooks in Codex.",
        moved="CODEX_HOME",
        says_agent=False,
    ),
    Agent(
        "gemini",
        "Gemini CLI",
        {
            "SessionStart": On(),
            "BeforeAgent": On(),
            "BeforeTool": On(_GEMINI_TOOLS),
            "AfterTool": On(_GEMINI_TOOLS),
            "PreCompress": On(),
            "AfterAgent": On(),
            "SessionEnd": On(),
        },
        _GROUPS,
        project=".gemini",
        user=".gemini",
        files=("settings.json",),
        commands=("gemini",),
        signs=(".gemini/settings.json", ".gemini/oauth_creds.json"),
        then="Gemini CLI runs hooks of a project only in folders that you trust.",
        second=1000,
        says_agent=False,
    ),
    Agent(
        "opencode",
        "opencode",
        {},
        _GROUPS,
        project=".opencode/plugins",
        user=".config/opencode/plugins",
        files=("ckptfs.js",),
        commands=("opencode",),
        signs=(".config/opencode", ".local/share/opencode"),
        then="opencode loads it when it starts.",
        moved="XDG_CONFIG_HOME",
        not_in_project="beside a plugin in a project opencode installs thousands of files",
    ),
    Agent(
        "cursor",
        "Cursor",
        {
            "sessionStart": On(),
            "beforeSubmitPrompt": On(),
            "preToolUse": On(_CURSOR_TOOLS),
            "postToolUse": On(_CURSOR_TOOLS),
            "postToolUseFailure": On(_CURSOR_TOOLS),
            "subagentStart": On(),
            "subagentStop": On(),
            "preCompact": On(),
            "stop": On(),
            "sessionEnd": On(),
        },
        Shape(_of_cursor, beside={"version": 1}),
        project=".cursor",
        user=".cursor",
        files=("hooks.json",),
        commands=("cursor", "cursor-agent"),
        signs=(".cursor",),
        then="Cursor takes it up at once; its settings have a page for hooks.",
    ),
    Agent(
        "copilot",
        "Copilot (CLI, VS Code)",
        # With a capital letter, so that the input names the event, and VS Code takes them too.
        {
            "SessionStart": On(),
            "UserPromptSubmit": On(),
            "PreToolUse": On(),
            "PostToolUse": On(),
            "PostToolUseFailure": On(),
            "subagentStart": On(),
            "SubagentStop": On(),
            "PreCompact": On(),
            "Stop": On(),
            "SessionEnd": On(),
        },
        Shape(_of_copilot, beside={"version": 1}),
        project=".github/hooks",
        user=".copilot/hooks",
        files=("ckptfs.json",),
        commands=("copilot",),
        signs=(".copilot",),
        then="Copilot takes it up when it starts.",
        moved="COPILOT_HOME",
        says_event=frozenset({"subagentStart"}),
        guard="|| true",
    ),
    Agent(
        "antigravity",
        "Antigravity",
        # Not before a tool: there it waits for a decision, and takes every failure for a no.
        {"PreInvocation": On(), "Stop": On()},
        Shape(_hook, at=("ckptfs",)),
        project=".agents",
        user=".gemini/config",
        files=("hooks.json",),
        commands=("agy", "antigravity"),
        signs=(".gemini/antigravity-cli", ".gemini/antigravity", ".antigravity"),
        then="If agy does not run it from a project, install it with --user.",
        says_event=frozenset({"PreInvocation", "Stop"}),
    ),
    Agent(
        "qwen",
        "Qwen Code",
        {
            "SessionStart": On(),
            "UserPromptSubmit": On(),
            "PreToolUse": On(_QWEN_TOOLS),
            "PostToolUse": On(_QWEN_ENDED, in_background=True),
            "PostToolUseFailure": On(_QWEN_TOOLS, in_background=True),
            "SubagentStart": On(),
            "SubagentStop": On(),
            "PreCompact": On(),
            "Stop": On(),
            "SessionEnd": On(),
        },
        _GROUPS,
        project=".qwen",
        user=".qwen",
        files=("settings.json",),
        commands=("qwen",),
        signs=(".qwen",),
        then="Qwen Code runs hooks of a project only in folders that you trust.",
        moved="QWEN_HOME",
        second=1000,
    ),
    Agent(
        "cline",
        "Cline",
        {
            "TaskStart": On(),
            "UserPromptSubmit": On(),
            "PreToolUse": On(),
            "PostToolUse": On(),
            "PreCompact": On(),
            "TaskComplete": On(),
            "TaskCancel": On(),
        },
        _GROUPS,
        project=".clinerules/hooks",
        user="Documents/Cline/Hooks",
        files=(
            *("TaskStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PreCompact"),
            *("TaskComplete", "TaskCancel"),
        ),
        commands=("cline",),
        signs=(".cline", "Documents/Cline"),
        then="In VS Code, Cline has a switch for hooks in its settings.",
        runs_files=True,
    ),
    Agent(
        "goose",
        "goose",
        {
            "SessionStart": On(),
            "UserPromptSubmit": On(),
            "PreToolUse": On(),
            "PostToolUse": On(),
            "PostToolUseFailure": On(),
            "Stop": On(),
            "SessionEnd": On(),
        },
        _GROUPS,
        project=".agents/plugins/ckptfs",
        user=".agents/plugins/ckptfs",
        files=("plugin.json", "hooks/hooks.json"),
        commands=("goose",),
        signs=(".config/goose",),
        then="goose loads it when a session starts.",
    ),
    Agent(
        "droid",
        "Factory Droid",
        {
            "SessionStart": On(),
            "UserPromptSubmit": On(),
            "PreToolUse": On(_DROID_TOOLS),
            "PostToolUse": On(_DROID_TOOLS),
            "SubagentStop": On(),
            "PreCompact": On(),
            "Stop": On(),
            "SessionEnd": On(),
        },
        Shape(_group, at=()),
        project=".factory",
        user=".factory",
        files=("hooks.json",),
        commands=("droid",),
        signs=(".factory",),
        then="Droid takes it up at the next turn; /hooks shows it.",
    ),
    Agent(
        "windsurf",
        "Windsurf",
        # Nothing after a command: Windsurf does not tell how it ended.
        {
            "pre_user_prompt": On(),
            "pre_write_code": On(),
            "pre_run_command": On(),
            "pre_mcp_tool_use": On(),
            "post_cascade_response": On(),
        },
        Shape(_of_windsurf),
        project=".windsurf",
        user=".codeium/windsurf",
        files=("hooks.json",),
        commands=("windsurf",),
        signs=(".codeium/windsurf",),
        then="Windsurf takes it up when it starts.",
    ),
    Agent(
        "kiro",
        "Kiro",
        {
            "SessionStart": On(),
            "UserPromptSubmit": On(),
            "PreToolUse": On(),
            "PostToolUse": On(),
            "Stop": On(),
        },
        Shape(_of_kiro, by_event=False, beside={"version": "v1"}),
        project=".kiro/hooks",
        user=".kiro/hooks",
        files=("ckptfs.json",),
        commands=("kiro", "kiro-cli"),
        signs=(".kiro",),
        then="It needs the CLI 3 or the IDE 1; older ones have their hooks elsewhere.",
        says_event=frozenset(
            {"SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"}
        ),
        guard="|| true",
    ),
)

AGENTS = {agent.name: agent for agent in _ALL}


# -- whose a command is ----------------------------------------------------------------------------


def caller_of(command: object) -> str | None:
    """How ckptfs is called by a hook's command, wherever that ckptfs is; None if it is not ours."""
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return None
    if words[-2:] == ["||", "true"]:
        del words[-2:]
    while words[-2:-1] and words[-2] in ("--agent", "--event"):
        del words[-2:]
    if words[-1:] != ["hook"] or not any(map(_is_ckptfs, words[:-1])):
        return None
    return shlex.join(words)


def _is_ckptfs(word: str) -> bool:
    return os.path.basename(word) == "ckptfs"


def commands_in(item: Any) -> Iterator[object]:
    """Every command of one item in a list of hooks, in any of the shapes."""
    if not isinstance(item, dict):
        return
    yield from (item.get("command"), item.get("bash"))
    if isinstance(action := item.get("action"), dict):
        yield action.get("command")
    if isinstance(hooks := item.get("hooks"), list):
        for hook in hooks:
            yield from commands_in(hook)


# -- where they are --------------------------------------------------------------------------------


def files_of(
    agent: Agent, project: Path | None, environ: Mapping[str, str] = os.environ
) -> list[Path]:
    """The settings files of a project, or the user's own if there is no project."""
    folder = project / agent.project if project else _of_user(agent, environ)
    if agent.name == "codex" and (folder / "hooks.json").exists():
        # Codex reads both and warns if both have hooks; whichever is in use stays so.
        return [folder / "hooks.json"]
    return [folder / name for name in agent.files]


def _of_user(agent: Agent, environ: Mapping[str, str]) -> Path:
    moved = environ.get(agent.moved, "")
    if not os.path.isabs(moved):
        return Path(config.home(environ)) / agent.user
    return Path(moved).joinpath(*Path(agent.user).parts[1:])


def found(environ: Mapping[str, str] = os.environ) -> list[Agent]:
    """The agents that are on this machine: by their command, or by what they keep at home."""
    return [agent for agent in AGENTS.values() if _is_here(agent, environ)]


def _is_here(agent: Agent, environ: Mapping[str, str]) -> bool:
    home = Path(config.home(environ))
    kept = [_of_user(agent, environ), *(home / sign for sign in agent.signs)]
    called = (shutil.which(name, path=environ.get("PATH", "")) for name in agent.commands)
    return any(path.exists() for path in kept) or any(called)
