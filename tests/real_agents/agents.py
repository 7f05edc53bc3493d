"""The agents: how each is started without a person, what its settings are, what its tools are
called.

Every agent has a home of its own in a temporary directory and a dummy key. Whatever would reach
for the network besides the model (telemetry, updates, catalogues) is switched off.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tests.real_agents import anthropic_messages, gemini_content, openai_chat, openai_responses
from tests.real_agents.script import Call, Edit, Run, Step, Write

#: `make test-deep` installs them there.
INSTALLED = Path(__file__).parents[2] / ".venv" / "agents"
_MODULES = INSTALLED / "node_modules"
_MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_NODE = _MODULES / f"node-linux-{_MACHINE}" / "bin" / "node"

_PROMPT = "Do what has to be done."
_KEY = "dummy"

Translate = Callable[[Step, Path], Call]


class Surroundings(NamedTuple):
    """Where an agent runs: its workspace, and the address of the stand-in for its model."""

    workspace: Path
    url: str


class Agent(NamedTuple):
    """``hook`` is its name for `ckptfs hook install`, ``package`` the npm package it comes in.
    ``settings`` are texts by their paths below the directory that holds home and workspace."""

    name: str
    #: As the table in docs/AGENTS.md has it.
    title: str
    hook: str
    #: What its hooks call the tools for the three kinds of steps.
    hook_tools: dict[type[Step], str]
    package: str
    program: tuple[Path, ...]
    arguments: tuple[str, ...]
    wire: ModuleType
    environment: Callable[[Surroundings], dict[str, str]]
    settings: Callable[[Surroundings], dict[str, str]]
    translate: Translate
    #: The command that destroys everything.
    removal: str = "rm -rf src"

    def command(self, hooked: bool) -> list[str]:
        return [*map(str, self.program), *self.arguments, *(_TRUST.get(self.hook, ()) * hooked)]

    def is_installed(self) -> bool:
        return all(path.exists() for path in self.program)

    def version(self) -> str:
        found: str = json.loads((_MODULES / self.package / "package.json").read_text())["version"]
        return found


#: What makes an agent run hooks that nobody was there to look at.
_TRUST = {"codex": ("--dangerously-bypass-hook-trust",)}


def _json(**settings: Any) -> str:
    return json.dumps(settings, indent=2) + "\n"


def _nothing(_: Surroundings) -> dict[str, str]:
    return {}


# -- Claude Code -----------------------------------------------------------------------------------


def _claude_environment(place: Surroundings) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": _KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        # As root it refuses to go without asking, unless it is told that it is shut in.
        "IS_SANDBOX": "1",
    }


def _claude_tools(step: Step, workspace: Path) -> Call:
    match step:
        case Run(command):
            return Call("Bash", {"command": command, "description": "A step"})
        case Write(path, text):
            return Call("Write", {"file_path": str(workspace / path), "content": text})
        case Edit(path, old, new):
            given = {"file_path": str(workspace / path), "old_string": old, "new_string": new}
            return Call("Edit", given)


# -- Codex -----------------------------------------------------------------------------------------

_UNBOUND = "--dangerously-bypass-approvals-and-sandbox"
_SANDBOX = "--sandbox=workspace-write"

#: Models of which Codex knows how they are to be given their tools: one by one, or (code mode) as
#: functions of a JavaScript program that is the only tool.
_DIRECT, _CODE = "gpt-5.5", "gpt-6.1-sol"


def _codex_settings(place: Surroundings) -> dict[str, str]:
    text = f"""\
model_provider = "stand-in"
check_for_update_on_startup = false

[model_providers.stand-in]
name = "stand-in"
base_url = "{place.url}/v1"
env_key = "STAND_IN_KEY"
wire_api = "responses"

[analytics]
enabled = false

[features]
apps = false
plugins = false

[sandbox_workspace_write]
exclude_slash_tmp = true
exclude_tmpdir_env_var = true

[projects."{place.workspace}"]
trust_level = "trusted"
"""
    return {"home/.codex/config.toml": text}


def _codex_tools(step: Step, workspace: Path) -> Call:
    match step:
        case Run(command):
            return Call("exec_command", {"cmd": command})
        case Write(path, text):
            added = "".join(f"+{line}\n" for line in text.splitlines())
            return Call("apply_patch", _patch(f"*** Add File: {path}\n{added}"))
        case Edit(path, old, new):
            return Call("apply_patch", _patch(f"*** Update File: {path}\n@@\n-{old}\n+{new}\n"))


def _codex_code(step: Step, workspace: Path) -> Call:
    inner = _codex_tools(step, workspace)
    program = f"text(await tools.{inner.tool}({json.dumps(inner.arguments)}))"
    return Call("exec", program)


def _patch(body: str) -> str:
    return f"*** Begin Patch\n{body}*** End Patch\n"


def _codex(name: str, title: str, model: str, tools: Translate, bounds: str) -> Agent:
    return Agent(
        name=name,
        title=title,
        hook="codex",
        hook_tools={Write: "apply_patch", Edit: "apply_patch", Run: "Bash"},
        package="@openai/codex",
        program=(_NODE, _MODULES / "@openai" / "codex" / "bin" / "codex.js"),
        arguments=("exec", _PROMPT, "--skip-git-repo-check", "-m", model, bounds),
        wire=openai_responses,
        environment=lambda _: {"STAND_IN_KEY": _KEY},
        settings=_codex_settings,
        translate=tools,
        # It refuses "rm -f" in every mode: "Use a safer approach".
        removal="rm -r src",
    )


# -- opencode --------------------------------------------------------------------------------------


def _opencode_settings(place: Surroundings) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "stand-in",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": _KEY},
        "models": {"scripted": {"name": "scripted", "tool_call": True}},
    }
    text = _json(
        provider={"stand-in": provider},
        model="stand-in/scripted",
        small_model="stand-in/scripted",
        autoupdate=False,
        share="disabled",
        permission="allow",
    )
    return {"config/opencode/opencode.json": text}


def _opencode_environment(_: Surroundings) -> dict[str, str]:
    return {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        # It would install what plugins may need, ours does not, and fill the workspace with it.
        "npm_config_offline": "true",
    }


def _opencode_tools(step: Step, workspace: Path) -> Call:
    match step:
        case Run(command):
            return Call("bash", {"command": command, "description": "A step"})
        case Write(path, text):
            return Call("write", {"filePath": str(workspace / path), "content": text})
        case Edit(path, old, new):
            given = {"filePath": str(workspace / path), "oldString": old, "newString": new}
            return Call("edit", given)


# -- Gemini CLI and Qwen Code, which descends from it ----------------------------------------------


def _gemini_settings(place: Surroundings) -> dict[str, str]:
    text = _json(
        security={"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        privacy={"usageStatisticsEnabled": False},
        telemetry={"enabled": False},
        general={"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    )
    return {"home/.gemini/settings.json": text}


def _gemini_environment(place: Surroundings) -> dict[str, str]:
    return {"GOOGLE_GEMINI_BASE_URL": place.url, "GEMINI_API_KEY": _KEY}


def _gemini_tools(step: Step, workspace: Path) -> Call:
    match step:
        case Run(command):
            return Call("run_shell_command", {"command": command, "description": "A step"})
        case Write(path, text):
            return Call("write_file", {"file_path": str(workspace / path), "content": text})
        case Edit(path, old, new):
            given = {"file_path": str(workspace / path), "old_string": old, "new_string": new}
            return Call("replace", {**given, "instruction": "A step"})


def _qwen_settings(place: Surroundings) -> dict[str, str]:
    text = _json(
        security={"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        privacy={"usageStatisticsEnabled": False},
        telemetry={"enabled": False},
        general={"enableAutoUpdate": False, "disableAutoUpdate": True},
    )
    return {"home/.qwen/settings.json": text}


def _qwen_environment(place: Surroundings) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{place.url}/v1",
        "OPENAI_API_KEY": _KEY,
        "OPENAI_MODEL": "scripted",
    }


def _qwen_tools(step: Step, workspace: Path) -> Call:
    match step:
        case Run(command):
            given = {"command": command, "description": "A step", "is_background": False}
            return Call("run_shell_command", given)
        case Edit(path, old, new):
            given = {"file_path": str(workspace / path), "old_string": old, "new_string": new}
            return Call("edit", given)
        case _:
            return _gemini_tools(step, workspace)


AGENTS = (
    Agent(
        name="claude",
        title="Claude Code",
        hook="claude",
        hook_tools={Write: "Write", Edit: "Edit", Run: "Bash"},
        package="@anthropic-ai/claude-code",
        program=(_MODULES / "@anthropic-ai" / f"claude-code-linux-{_MACHINE}" / "claude",),
        arguments=("-p", _PROMPT, "--dangerously-skip-permissions"),
        wire=anthropic_messages,
        environment=_claude_environment,
        settings=_nothing,
        translate=_claude_tools,
    ),
    _codex("codex", "Codex", _DIRECT, _codex_tools, _UNBOUND),
    _codex("codex-code", "Codex, code mode", _CODE, _codex_code, _UNBOUND),
    _codex("codex-sandbox", "Codex, sandbox", _DIRECT, _codex_tools, _SANDBOX),
    Agent(
        name="opencode",
        title="opencode",
        hook="opencode",
        hook_tools={Write: "write", Edit: "edit", Run: "bash"},
        package="opencode-ai",
        program=(_MODULES / f"opencode-linux-{_MACHINE}" / "bin" / "opencode",),
        arguments=("run", _PROMPT),
        wire=openai_chat,
        environment=_opencode_environment,
        settings=_opencode_settings,
        translate=_opencode_tools,
    ),
    Agent(
        name="gemini",
        title="Gemini CLI",
        hook="gemini",
        hook_tools={Write: "write_file", Edit: "replace", Run: "run_shell_command"},
        package="@google/gemini-cli",
        program=(_NODE, _MODULES / "@google" / "gemini-cli" / "bundle" / "gemini.js"),
        arguments=("--yolo", "-m", "gemini-2.5-pro", "-p", _PROMPT),
        wire=gemini_content,
        environment=_gemini_environment,
        settings=_gemini_settings,
        translate=_gemini_tools,
    ),
    Agent(
        name="qwen",
        title="Qwen Code",
        hook="qwen",
        hook_tools={Write: "write_file", Edit: "edit", Run: "run_shell_command"},
        package="@qwen-code/qwen-code",
        program=(_NODE, _MODULES / "@qwen-code" / "qwen-code" / "cli-entry.js"),
        arguments=("--yolo", "-p", _PROMPT),
        wire=openai_chat,
        environment=_qwen_environment,
        settings=_qwen_settings,
        translate=_qwen_tools,
    ),
)
