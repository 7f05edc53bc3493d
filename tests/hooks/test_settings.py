"""An agent's settings with the hook in them, and out again: as texts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfs.errors import AgentSettingsInvalid
from ckptfs.hook import jsonc
from ckptfs.hook.agents import AGENTS, is_ours, settings_of
from ckptfs.hook.settings import installed, uninstalled

JSON, TOML, PLUGIN = Path("/s/settings.json"), Path("/s/config.toml"), Path("/s/ckptfs.js")
COMMAND = "/opt/ckptfs hook"


def put(text: str, name: str = "claude", path: Path = JSON, command: str = COMMAND) -> str:
    return installed(AGENTS[name], path, text, command)


def commands(text: str) -> list[str]:
    hooks = jsonc.parse(text).plain["hooks"]
    return [hook["command"] for groups in hooks.values() for g in groups for hook in g["hooks"]]


# -- JSON ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["claude", "gemini", "codex"])
@pytest.mark.parametrize("text", ["", "{}", "{}\n", '{"model": "x"}\n', '{\n\t"a": [1, 2]\n}\n'])
def test_every_event_gets_it_and_the_rest_stays(name: str, text: str) -> None:
    found = json.loads(put(text, name))
    hooks = found.pop("hooks")
    assert found == json.loads(text or "{}")
    assert set(hooks) == set(AGENTS[name].events)
    assert all(group["hooks"][0]["command"] == COMMAND for (group,) in hooks.values())


@pytest.mark.parametrize("name", ["claude", "gemini", "codex"])
def test_to_install_twice_is_to_install_once(name: str) -> None:
    once = put('{"x": 1}', name)
    assert put(once, name) == once


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "model": "x"\n}\n',
        '{"model":"x","permissions":{"allow":["Bash(ls:*)"]}}',
        '{\n  // mine\n  "theme": "dark", // so\n  "n": [1, /* two */ 2,],\n}\n',
        '{\r\n  "a": 1\r\n}\r\n',
        '{\n  "hooks": {\n    "Stop": [\n      {"hooks": [{"command": "beep"}]}\n    ]\n  }\n}\n',
    ],
)
@pytest.mark.parametrize("name", ["claude", "gemini"])
def test_to_uninstall_gives_the_very_same_text_back(name: str, text: str) -> None:
    text = text.replace("Stop", "AfterAgent") if name == "gemini" else text
    assert uninstalled(JSON, put(text, name)) == text


def test_what_was_not_there_before_is_not_there_after() -> None:
    assert uninstalled(JSON, put("")) == ""
    assert uninstalled(JSON, "") == ""


def test_without_the_hook_nothing_is_touched() -> None:
    for text in ('{"a":   1}', '{"hooks": {}}', "{}", '{"hooks": {"Stop": []}}'):
        assert uninstalled(JSON, text) == text


def test_hooks_of_others_stay_where_they_are() -> None:
    theirs = {"matcher": "Bash", "hooks": [{"type": "command", "command": "lint"}]}
    text = json.dumps({"hooks": {"PreToolUse": [theirs], "Notification": [theirs]}}, indent=4)
    with_ours = put(text)
    hooks = json.loads(with_ours)["hooks"]
    assert hooks["PreToolUse"][0] == theirs and len(hooks["PreToolUse"]) == 2
    assert hooks["Notification"] == [theirs]
    assert json.loads(uninstalled(JSON, with_ours)) == json.loads(text)


def test_an_old_one_is_brought_up_to_date() -> None:
    text = put("{}", command="/old/place/ckptfs hook")
    assert set(commands(put(text))) == {COMMAND}


def test_one_that_shares_a_group_with_others_gets_one_of_its_own() -> None:
    both = [{"type": "command", "command": c} for c in ("lint", "ckptfs hook", "test")]
    text = json.dumps({"hooks": {"PreToolUse": [{"matcher": "*", "hooks": both}]}})
    new = put(text)
    assert commands(new).count(COMMAND) == len(AGENTS["claude"].events)
    assert "ckptfs hook" not in commands(new)
    group = json.loads(uninstalled(JSON, new))["hooks"]["PreToolUse"]
    assert group == [{"matcher": "*", "hooks": [both[0], both[2]]}]


def test_comments_and_the_style_of_indentation_stay() -> None:
    text = '{\n    // do not touch\n    "hooks": {\n        /* none yet */\n    }\n}\n'
    new = put(text)
    assert "// do not touch" in new and "/* none yet */" in new
    assert '\n        "SessionStart": [\n            {\n' in new
    assert uninstalled(JSON, new).count("/* none yet */") == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "null",
        '{"a": 1} x',
        '{"a" 1}',
        '{"a": 1 "b": 2}',
        '{"a": nope}',
        '{"a": "x}',
        '{"a": /* x }',
        "[" * 200,
        '{"hooks": {}, "hooks": {}}',
        '{"hooks": []}',
        '{"hooks": "x"}',
        '{"hooks": {"Stop": {}}}',
    ],
)
def test_broken_settings_are_refused(text: str) -> None:
    with pytest.raises(AgentSettingsInvalid, match="Nothing was changed"):
        put(text)


def test_the_place_of_the_trouble_is_told() -> None:
    with pytest.raises(AgentSettingsInvalid, match="line 3, column 8"):
        put('{\n  "a": 1,\n  "b": ,\n}')


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
SETTINGS = st.dictionaries(st.text(max_size=5).filter(lambda key: key != "hooks"), VALUES)


@settings(max_examples=40)
@given(SETTINGS, st.sampled_from([None, 1, 2, 4, "\t"]), st.sampled_from(["claude", "gemini"]))
def test_any_settings_survive(mine: dict[str, object], indent: int | str, name: str) -> None:
    text = json.dumps(mine, indent=indent, ensure_ascii=False)
    new = put(text, name)
    found = json.loads(new)
    del found["hooks"]
    assert found == mine
    assert put(new, name) == new
    assert uninstalled(JSON, new) == ("" if text.strip() == "{}" else text)


@given(st.text(alphabet='{}[]":,/*\\n \t\n1x', max_size=40), st.sampled_from([JSON, TOML]))
def test_any_text_is_taken_or_refused(text: str, path: Path) -> None:
    try:
        new = put(text, "codex", path)
    except AgentSettingsInvalid:
        return
    assert put(new, "codex", path) == new


# -- TOML ------------------------------------------------------------------------------------------

CODEX = """\
# my settings
model = "gpt-5.3-codex"  # the good one

[mcp_servers.docs]
command = "docs"

[[hooks.PreToolUse]]
matcher = "^Bash$"
[[hooks.PreToolUse.hooks]]
type = "command"
command = "lint"
"""


@pytest.mark.parametrize("text", ["", "# only a comment\n", CODEX, "a = 1", "[features]\nx=1\n\n"])
def test_codex_config_keeps_every_line(text: str) -> None:
    new = put(text, "codex", TOML)
    assert new.startswith(text)
    hooks = tomllib.loads(new)["hooks"]
    assert all(groups[-1]["hooks"][0]["command"] == COMMAND for groups in hooks.values())
    assert put(new, "codex", TOML) == new
    assert uninstalled(TOML, new).rstrip("\n") == text.rstrip("\n")


def test_codex_config_with_text_behind_ours_keeps_it() -> None:
    new = put(CODEX, "codex", TOML) + "\n[tui]\ntheme = 'x'\n"
    again = put(new, "codex", TOML, "/new/ckptfs hook")
    assert tomllib.loads(again)["tui"] == {"theme": "x"} and "/new/ckptfs" in again
    assert tomllib.loads(uninstalled(TOML, again)) == {
        **tomllib.loads(CODEX),
        "tui": {"theme": "x"},
    }


@pytest.mark.parametrize(
    "text", ["a = ", "[x", "hooks = 3", "hooks = {PreToolUse = []}", "hooks.Stop = [{hooks=[]}]"]
)
def test_codex_config_that_cannot_be_added_to_is_refused(text: str) -> None:
    with pytest.raises(AgentSettingsInvalid, match="Nothing was changed"):
        put(text, "codex", TOML)


# -- the rest --------------------------------------------------------------------------------------


def test_another_plugin_of_that_name_is_not_replaced() -> None:
    with pytest.raises(AgentSettingsInvalid, match="another plugin"):
        put("export default {}\n", "opencode", PLUGIN)
    ours = put("", "opencode", PLUGIN)
    assert put(ours, "opencode", PLUGIN) == ours and uninstalled(PLUGIN, ours) == ""


@pytest.mark.parametrize(
    "command, ours",
    [
        ("ckptfs hook", True),
        ("'/a b/ckptfs' hook", True),
        ("/usr/bin/python3 -m ckptfs hook", True),
        ("ckptfs save", False),
        ("mything hook", False),
        ("hook", False),
        ("'", False),
        (None, False),
    ],
)
def test_our_own_command_is_known(command: str | None, ours: bool) -> None:
    assert is_ours(command) is ours


def test_where_the_settings_are(tmp_path: Path) -> None:
    home = {"HOME": "/h"}
    found = {name: str(settings_of(agent, None, home)) for name, agent in AGENTS.items()}
    assert found == {
        "claude": "/h/.claude/settings.json",
        "codex": "/h/.codex/config.toml",
        "gemini": "/h/.gemini/settings.json",
        "opencode": "/h/.config/opencode/plugins/ckptfs.js",
    }
    moved = {**home, "CODEX_HOME": "/c", "CLAUDE_CONFIG_DIR": "/l", "XDG_CONFIG_HOME": "/x"}
    assert str(settings_of(AGENTS["codex"], None, moved)) == "/c/config.toml"
    assert str(settings_of(AGENTS["claude"], None, moved)) == "/l/settings.json"
    assert str(settings_of(AGENTS["opencode"], None, moved)) == "/x/opencode/plugins/ckptfs.js"
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "hooks.json").write_text("{}")
    assert settings_of(AGENTS["codex"], tmp_path, home).name == "hooks.json"
