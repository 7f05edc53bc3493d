"""Putting the hook into an agent's settings and taking it out: from one text to another.

What is there already stays, comments included; to install twice is to install once; and to
uninstall leaves what others put there. Reads and writes no file.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from ckptfs.errors import AgentSettingsInvalid
from ckptfs.hook import jsonc
from ckptfs.hook.agents import Agent, Group, group_of, is_ours
from ckptfs.hook.jsonc import Value

_BEGIN = "# >>> ckptfs hook: `ckptfs hook uninstall codex` removes this"
_END = "# <<< ckptfs hook"

#: The first line of our opencode plugin, by which it is known.
PLUGIN_MARK = "// ckptfs hook:"


def installed(agent: Agent, path: Path, text: str, command: str) -> str:
    """The settings with the hook in them."""
    if path.suffix == ".js":
        _require_own_plugin(path, text)
        return _plugin().replace('"COMMAND"', json.dumps(command))
    if path.suffix == ".toml":
        return _installed_toml(agent, path, text, command)
    return _installed_json(agent, path, text or "{}\n", command)


def uninstalled(path: Path, text: str) -> str:
    """The settings without it; empty if nothing else was in them."""
    if path.suffix == ".js":
        _require_own_plugin(path, text)
        return ""
    if path.suffix == ".toml":
        _toml(path, text)
        without = _without_block(text)
        return without if _toml(path, without) or without.strip() else ""
    return _uninstalled_json(path, text) if text.strip() else text


# -- JSON ------------------------------------------------------------------------------------------


def _installed_json(agent: Agent, path: Path, text: str, command: str) -> str:
    hooks = _json(path, text).get("hooks")
    if hooks is None:
        text = jsonc.append(text, _json(path, text), {}, "hooks")
    for event in agent.events:
        text = _with_event(path, text, event, group_of(agent, event, command))
    return text


def _with_event(path: Path, text: str, event: str, wanted: Group) -> str:
    found = _hooks(path, text).get(event)
    if found is None:
        return jsonc.append(text, _hooks(path, text), [wanted], event)
    for item in found.value.items:
        if _ours_in(item.value.plain):
            if item.value.plain == wanted:
                return text
            if len(item.value.plain["hooks"]) == 1:
                return jsonc.replace(text, item.value, wanted)
            break  # beside others': taken out there, and put in a group of its own
    text = _without_ours(path, text, event)
    found = _hooks(path, text).get(event)
    if found is None:
        return jsonc.append(text, _hooks(path, text), [wanted], event)
    return jsonc.append(text, found.value, wanted)


def _uninstalled_json(path: Path, text: str) -> str:
    if _json(path, text).get("hooks") is None:
        return text
    before = text
    for event in [str(item.key) for item in _hooks(path, text).items]:
        text = _without_ours(path, text, event)
    root = _json(path, text)
    hooks = root.get("hooks")
    if text != before and hooks is not None and jsonc.is_blank(text, hooks.value):
        text = jsonc.remove(text, root, hooks)
    return "" if text != before and text.strip() == "{}" else text


def _without_ours(path: Path, text: str, event: str) -> str:
    """Take ours out of one event until there is none; an event without any goes, too."""
    while (found := _hooks(path, text).get(event)) is not None:
        shorter = _take_out(text, found.value)
        if shorter is None:
            return text
        text = shorter
        left = _hooks(path, text).get(event)
        if left is not None and jsonc.is_blank(text, left.value):
            text = jsonc.remove(text, _hooks(path, text), left)
    return text


def _take_out(text: str, groups: Value) -> str | None:
    for item in groups.items:
        if not _ours_in(item.value.plain):
            continue
        hooks = item.value.get("hooks")
        assert hooks is not None
        if len(hooks.value.items) == 1:
            return jsonc.remove(text, groups, item)
        ours = next(hook for hook in hooks.value.items if _is_our_hook(hook.value.plain))
        return jsonc.remove(text, hooks.value, ours)
    return None


def _ours_in(group: Any) -> bool:
    hooks = group.get("hooks") if isinstance(group, dict) else None
    return isinstance(hooks, list) and any(map(_is_our_hook, hooks))


def _is_our_hook(hook: Any) -> bool:
    return isinstance(hook, dict) and is_ours(hook.get("command"))


def _json(path: Path, text: str) -> Value:
    try:
        root = jsonc.parse(text)
    except jsonc.Malformed as error:
        raise AgentSettingsInvalid(path, f"it is not valid JSON ({error})") from error
    if not isinstance(root.plain, dict):
        raise AgentSettingsInvalid(path, "it holds no JSON object")
    return root


def _hooks(path: Path, text: str) -> Value:
    found = _json(path, text).get("hooks")
    if found is None or not isinstance(found.value.plain, dict):
        raise AgentSettingsInvalid(path, '"hooks" in it is no object')
    for item in found.value.items:
        if not isinstance(item.value.plain, list) and item.key not in ("enabled", "disabled"):
            raise AgentSettingsInvalid(path, f'"hooks.{item.key}" in it is no list')
    return found.value


# -- TOML ------------------------------------------------------------------------------------------


def _installed_toml(agent: Agent, path: Path, text: str, command: str) -> str:
    _toml(path, text)
    kept = _without_block(text)
    before = _toml(path, kept)
    block = _block(agent, command)
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
    for event in agent.events:
        if after["hooks"][event].pop() != group_of(agent, event, command):
            raise AgentSettingsInvalid(path, f"hooks.{event} in it is not as expected")
        if not after["hooks"][event]:
            del after["hooks"][event]
    if not after["hooks"] and "hooks" not in before:
        del after["hooks"]
    if after != before:
        raise AgentSettingsInvalid(path, "adding to it would change other settings")
    return new


def _block(agent: Agent, command: str) -> str:
    lines = [_BEGIN]
    for event in agent.events:
        group = group_of(agent, event, command)
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


# -- opencode --------------------------------------------------------------------------------------


def _plugin() -> str:
    return Path(__file__).with_name("opencode.js").read_text()


def _require_own_plugin(path: Path, text: str) -> None:
    if text and not text.startswith(PLUGIN_MARK):
        raise AgentSettingsInvalid(path, "it is another plugin of that name")
