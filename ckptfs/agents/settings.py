"""The hook in an agent's settings, and the plugin folder: texts made from texts.

Installing keeps everything that is there, comments included, and installing twice is installing
once. Uninstalling leaves what others put there. Reads and writes no settings file.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

from ckptfs.agents import jsonc
from ckptfs.agents.jsonc import Value
from ckptfs.agents.table import AGENTS, Agent, Item, Keys, caller_of, command_of, commands_in
from ckptfs.errors import AgentSettingsInvalid

_BEGIN = "# >>> ckptfs hook: `ckptfs hook uninstall codex` removes this"
_END = "# <<< ckptfs hook"

#: By what our own files are known: the opencode plugin, and a script that Cline runs.
PLUGIN_MARK = "// ckptfs hook:"
SCRIPT_MARK = "#!/bin/sh\n# ckptfs hook:"


def installed(agent: Agent, path: Path, text: str, command: str) -> str:
    """The settings with the hook in them. ``command`` is how this ckptfs is called."""
    whole = _whole(agent, path, command)
    if whole is not None:
        _require_own(path, text)
        return whole
    if path.suffix == ".toml":
        return _installed_toml(agent, path, text, command)
    return _installed_json(agent, path, text if text.strip() else "{}\n", command)


def uninstalled(agent: Agent, path: Path, text: str) -> str:
    """The settings without it; empty if nothing else was in them."""
    if not text.strip():
        return text
    if _whole(agent, path, "") is not None:
        return "" if _is_own(path, text) else text
    if path.suffix == ".toml":
        _toml(path, text)
        without = _without_block(text)
        return without if _toml(path, without) or without.strip() else ""
    return _uninstalled_json(agent, path, text)


def callers(agent: Agent, path: Path, text: str) -> set[str]:
    """How ckptfs is called by what of ours is in the settings; empty if nothing is."""
    if _whole(agent, path, "") is not None:
        return _callers_in_words(text) if text and _is_own(path, text) else set()
    if path.suffix == ".toml":
        groups = _toml(path, text).get("hooks", {}) if text.strip() else {}
    else:
        groups = _object(path, text, agent.shape.at) if text.strip() else {}
    lists = groups.values() if isinstance(groups, dict) else [groups]
    items = (item for found in lists if isinstance(found, list) for item in found)
    called = (caller_of(command) for item in items for command in commands_in(item))
    return {caller for caller in called if caller}


def _callers_in_words(text: str) -> set[str]:
    """Of a file that is ours: in its strings, or behind the word that runs a command."""
    run = (line.removeprefix("exec ") for line in text.splitlines() if line.startswith("exec "))
    called = map(caller_of, (*jsonc.strings_in(text), *run))
    return {caller for caller in called if caller}


def _object(path: Path, text: str, keys: Keys) -> Any:
    found = _at(_json(path, text), keys)
    return {} if found is None else found.plain


# -- JSON ------------------------------------------------------------------------------------------


def _installed_json(agent: Agent, path: Path, text: str, command: str) -> str:
    for key, value in agent.shape.beside.items():
        if _json(path, text).get(key) is None:
            text = jsonc.append(text, _json(path, text), value, key)
    wanted = _wanted(agent, command)
    for keys in _lists(agent, path, _json(path, text)):
        if keys not in wanted:
            text = _without_ours(agent, path, text, keys)
    for keys, items in wanted.items():
        text = _with_items(agent, path, text, keys, items)
    return text


def _wanted(agent: Agent, command: str) -> dict[Keys, list[Item]]:
    """By where a list stands, what of ours is to be in it."""
    found: dict[Keys, list[Item]] = {}
    for event in agent.events:
        keys = (*agent.shape.at, event) if agent.shape.by_event else agent.shape.at
        found.setdefault(keys, []).append(agent.shape.item(agent, event, command))
    return found


def _lists(agent: Agent, path: Path, root: Value) -> list[Keys]:
    """Where lists of hooks stand."""
    found = _at(root, agent.shape.at)
    if found is None:
        return []
    form = dict if agent.shape.by_event else list
    if not isinstance(found.plain, form):
        kind = "object" if agent.shape.by_event else "list"
        raise AgentSettingsInvalid(path, f'"{".".join(agent.shape.at)}" in it is no {kind}')
    if not agent.shape.by_event:
        return [agent.shape.at]
    inside = [item for item in found.items if isinstance(item.value.plain, list)]
    return [(*agent.shape.at, str(item.key)) for item in inside]


def _with_items(agent: Agent, path: Path, text: str, keys: Keys, wanted: list[Item]) -> str:
    text = _with_objects(path, text, keys[:-1])
    found = _at(_json(path, text), keys)
    if found is None:
        return _append_member(path, text, keys, wanted)
    if not isinstance(found.plain, list):
        raise AgentSettingsInvalid(path, f'"{".".join(keys)}" in it is no list')
    ours = [item.value for item in found.items if _has_ours(item.value.plain)]
    if [value.plain for value in ours] == wanted:
        return text
    if len(ours) == len(wanted) and all(_is_all_ours(value.plain) for value in ours):
        for old, new in reversed(list(zip(ours, wanted, strict=True))):
            text = text if old.plain == new else jsonc.replace(text, old, new)
        return text
    # Beside others', or of another number: taken out there, and put in behind.
    text = _with_objects(path, _without_ours(agent, path, text, keys), keys[:-1])
    found = _at(_json(path, text), keys)
    if found is None:
        return _append_member(path, text, keys, wanted)
    for item in wanted:
        found = _at(_json(path, text), keys)
        assert found is not None
        text = jsonc.append(text, found, item)
    return text


def _with_objects(path: Path, text: str, keys: Keys) -> str:
    """See that there are objects on the way to a list."""
    for depth in range(1, len(keys) + 1):
        found = _at(_json(path, text), keys[:depth])
        if found is None:
            text = _append_member(path, text, keys[:depth], {})
        elif not isinstance(found.plain, dict):
            raise AgentSettingsInvalid(path, f'"{".".join(keys[:depth])}" in it is no object')
    return text


def _append_member(path: Path, text: str, keys: Keys, new: Any) -> str:
    within = _at(_json(path, text), keys[:-1])
    assert within is not None
    return jsonc.append(text, within, new, keys[-1])


def _uninstalled_json(agent: Agent, path: Path, text: str) -> str:
    before = text
    for keys in _lists(agent, path, _json(path, text)):
        text = _without_ours(agent, path, text, keys)
    if text == before:
        return text
    text = _without_blank(path, text, agent.shape.at)
    root = _json(path, text)
    nothing_else = root.plain == {**agent.shape.beside} or not root.plain
    return "" if nothing_else and not jsonc.has_comment(text) else text


def _without_ours(agent: Agent, path: Path, text: str, keys: Keys) -> str:
    """Take ours out of one list until there is none; a list without any goes, too."""
    while (found := _at(_json(path, text), keys)) is not None:
        shorter = _take_out(text, found)
        if shorter is None:
            return text
        text = _without_blank(path, shorter, keys)
    return text


def _without_blank(path: Path, text: str, keys: Keys) -> str:
    """Take an object or list out that has nothing in it."""
    found = _at(_json(path, text), keys) if keys else None
    if found is None or not jsonc.is_blank(text, found):
        return text
    within = _at(_json(path, text), keys[:-1])
    member = within.get(keys[-1]) if within else None
    return jsonc.remove(text, within, member) if within and member else text


def _take_out(text: str, items: Value) -> str | None:
    for item in items.items:
        if not _has_ours(item.value.plain):
            continue
        if _is_all_ours(item.value.plain):
            return jsonc.remove(text, items, item)
        hooks = item.value.get("hooks")
        assert hooks is not None
        ours = next(hook for hook in hooks.value.items if _has_ours(hook.value.plain))
        return jsonc.remove(text, hooks.value, ours)
    return None


def _has_ours(item: Any) -> bool:
    return any(caller_of(command) for command in commands_in(item))


def _is_all_ours(item: Any) -> bool:
    hooks = item.get("hooks")
    return all(map(_has_ours, hooks)) if isinstance(hooks, list) else True


def _at(root: Value, keys: Keys) -> Value | None:
    for key in keys:
        found = root.get(key) if isinstance(root.plain, dict) else None
        if found is None:
            return None
        root = found.value
    return root


def _json(path: Path, text: str) -> Value:
    try:
        root = jsonc.parse(text)
    except jsonc.Malformed as error:
        raise AgentSettingsInvalid(path, f"it is not valid JSON ({error})") from error
    if not isinstance(root.plain, dict):
        raise AgentSettingsInvalid(path, "it holds no JSON object")
    return root


# -- TOML ------------------------------------------------------------------------------------------


def _installed_toml(agent: Agent, path: Path, text: str, command: str) -> str:
    _toml(path, text)
    kept = _without_block(text)
    before = _toml(path, kept)
    groups = {event: agent.shape.item(agent, event, command) for event in agent.events}
    block = _block(groups)
    gap = "\n" if kept and not kept.endswith("\n\n") else ""
    new = (kept if not kept or kept.endswith("\n") else kept + "\n") + gap + block
    try:
        after = tomllib.loads(new)
    except tomllib.TOMLDecodeError as error:
        raise AgentSettingsInvalid(
            path,
            "its hooks are written in a form that nothing can be added to",
            hint="Write them as [[hooks.EVENT]] tables, or move them to hooks.json beside it.",
        ) from error
    for event, group in groups.items():
        if after["hooks"][event].pop() != group:
            raise AgentSettingsInvalid(path, f"hooks.{event} in it is not as expected")
        if not after["hooks"][event]:
            del after["hooks"][event]
    if not after["hooks"] and "hooks" not in before:
        del after["hooks"]
    if after != before:
        raise AgentSettingsInvalid(path, "adding to it would change other settings")
    return new


def _block(groups: dict[str, Item]) -> str:
    lines = [_BEGIN]
    for event, group in groups.items():
        lines.append(f"[[hooks.{event}]]")
        if "matcher" in group:
            lines.append(f"matcher = {json.dumps(group['matcher'])}")
        lines.append(f"[[hooks.{event}.hooks]]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in group["hooks"][0].items()]
    return "\n".join([*lines, _END, ""])


def _without_block(text: str) -> str:
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 or end < begin:
        return text
    before, after = text[:begin], text[end + len(_END) :].removeprefix("\n")
    if before.endswith("\n\n"):
        before = before[:-1]
    return before + after


def _toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).splitlines()[0]
        raise AgentSettingsInvalid(path, f"it is not valid TOML ({reason})") from error


# -- files that are ours as a whole ----------------------------------------------------------------


def _whole(agent: Agent, path: Path, command: str) -> str | None:
    """The text of a file that has nothing but ours in it; None if it is shared with others."""
    if path.suffix == ".js":
        plugin = Path(__file__).with_name("opencode.js").read_text()
        return plugin.replace('"COMMAND"', json.dumps(command))
    if agent.runs_files:
        undo = f"`ckptfs hook uninstall {agent.name}` removes it."
        return f"{SCRIPT_MARK} {undo}\nexec {command_of(agent, path.name, command)}\n"
    if path.name == "plugin.json":
        about = "Checkpoints of the workspace before each tool that may write."
        manifest = {"name": "ckptfs", "version": "1.0.0", "description": about}
        return json.dumps(manifest, indent=2) + "\n"
    return None


def _require_own(path: Path, text: str) -> None:
    if text and not _is_own(path, text):
        what = "plugin" if path.suffix else "hook"
        raise AgentSettingsInvalid(
            path,
            f"it is another {what} of that name",
            hint="" if path.suffix else "Let it call `ckptfs hook` with its own input.",
        )


def _is_own(path: Path, text: str) -> bool:
    if path.suffix != ".json":
        return text.startswith((PLUGIN_MARK, SCRIPT_MARK))
    return bool(_json(path, text).plain.get("name") == "ckptfs")


# -- the plugin folder -----------------------------------------------------------------------------
#
# Claude Code and Codex both load it, from a folder that is its own marketplace: hooks, the MCP
# server and a skill.

PLUGIN_NAME = "ckptfs"
_ABOUT = "Checkpoints of the workspace before each tool that may write, and tools to look back."
_OWNER = {"name": "the ckptfs authors"}

#: Claude's events; what Codex does not have it passes over. The tools of both.
_PLUGIN_TOOLS = "^(Bash|PowerShell|Monitor|Edit|MultiEdit|Write|NotebookEdit|apply_patch|mcp__.*)$"

_README = f"""\
# {PLUGIN_NAME}

{_ABOUT}

It works in a directory that was mounted with `ckptfs mount DIR`; elsewhere it does nothing. The
hooks take a checkpoint before each tool that may write and note how the tool ended, the MCP server
gives the model tools to compare and restore, and the skill tells it when to use them. Made by
`ckptfs hook plugin DIR`: run that again after an upgrade of ckptfs.
"""


def plugin_files(program: list[str], version: str) -> dict[str, str]:
    """By their names in the folder, what is in the plugin's files. ``program`` calls ckptfs."""
    manifest = {
        "name": PLUGIN_NAME,
        "version": version,
        "description": _ABOUT,
        "author": _OWNER,
        "license": "MIT",
        "keywords": ["checkpoint", "undo", "history"],
    }
    listed = {"name": PLUGIN_NAME, "source": "./", "description": _ABOUT, "version": version}
    server = {"command": program[0], "args": [*program[1:], "mcp"]}
    return {
        ".claude-plugin/plugin.json": _json_text(manifest),
        ".claude-plugin/marketplace.json": _json_text(
            {"name": PLUGIN_NAME, "owner": _OWNER, "description": _ABOUT, "plugins": [listed]}
        ),
        "hooks/hooks.json": _json_text({"description": _ABOUT, "hooks": _plugin_hooks(program)}),
        ".mcp.json": _json_text({"mcpServers": {PLUGIN_NAME: server}}),
        "skills/ckptfs/SKILL.md": Path(__file__).with_name("skill.md").read_text(),
        "README.md": _README,
    }


def _plugin_hooks(program: list[str]) -> dict[str, Any]:
    claude = AGENTS["claude"]
    asked = {
        event: on._replace(tools=_PLUGIN_TOOLS) if on.tools else on
        for event, on in claude.events.items()
    }
    agent = claude._replace(events=asked)
    command = shlex.join([*program, "hook"])
    return {event: [agent.shape.item(agent, event, command)] for event in asked}


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def is_our_plugin(manifest: str) -> bool:
    """Whether a folder's plugin.json is that of an earlier one of ours."""
    try:
        found = json.loads(manifest)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("name") == PLUGIN_NAME
