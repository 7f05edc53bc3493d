"""An agent's settings with the hook in them, and out again: as texts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfs.agents import jsonc
from ckptfs.agents.settings import callers, installed, uninstalled
from ckptfs.agents.table import AGENTS, caller_of, commands_in, files_of, found
from ckptfs.errors import AgentSettingsInvalid

JSON, TOML, PLUGIN = Path("/s/settings.json"), Path("/s/config.toml"), Path("/s/ckptfs.js")
COMMAND = "/opt/ckptfs hook"

#: Agents whose settings are JSON, those with a group for each event, and the others.
GROUPS = ["claude", "codex", "gemini", "qwen", "goose"]
OTHERS = ["cursor", "copilot", "antigravity", "droid", "windsurf", "kiro"]


def put(text: str, name: str = "claude", path: Path = JSON, command: str = COMMAND) -> str:
    return installed(AGENTS[name], path, text, command)


def take(text: str, name: str = "claude", path: Path = JSON) -> str:
    return uninstalled(AGENTS[name], path, text)


def commands(text: str, name: str = "claude") -> list[str]:
    """Every command in the settings, by the lists of hooks that this agent has."""
    lists = jsonc.parse(text).plain
    for key in AGENTS[name].shape.at:
        lists = lists[key]
    groups = lists.values() if isinstance(lists, dict) else [lists]
    items = [item for group in groups if isinstance(group, list) for item in group]
    return [str(command) for item in items for command in commands_in(item) if command]


# -- JSON ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("text", ["", "{}", "{}\n", '{"model": "x"}\n', '{\n\t"a": [1, 2]\n}\n'])
def test_every_event_gets_it_and_the_rest_stays(name: str, text: str) -> None:
    found = json.loads(put(text, name))
    hooks = found.pop("hooks")
    assert found == json.loads(text or "{}")
    assert set(hooks) == set(AGENTS[name].events)
    assert all(caller_of(command) == COMMAND for command in commands(put(text, name), name))


def test_what_comes_after_a_tool_does_not_hold_an_agent_up_that_can_go_on() -> None:
    for name in ("claude", "qwen"):
        hooks = json.loads(put("{}", name))["hooks"]
        in_background = {event for event, (group,) in hooks.items() if "async" in group["hooks"][0]}
        assert in_background == {"PostToolUse", "PostToolUseFailure"}


def test_timeouts_are_in_the_agents_unit() -> None:
    timeouts = {
        name: json.loads(put("{}", name))["hooks"]["Stop" if name != "gemini" else "AfterAgent"]
        for name in GROUPS
    }
    assert {name: group[0]["hooks"][0]["timeout"] for name, group in timeouts.items()} == {
        "claude": 10,
        "codex": 10,
        "goose": 10,
        "gemini": 10_000,
        "qwen": 10_000,
    }


#: What each agent has of ours in settings that were empty: the members beside, and one hook.
SHAPES: dict[str, tuple[dict[str, object], object]] = {
    "cursor": (
        {"version": 1},
        {"stop": [{"command": f"{COMMAND} --agent cursor", "timeout": 10}]},
    ),
    "copilot": (
        {"version": 1},
        {
            "Stop": [
                {"type": "command", "bash": f"{COMMAND} --agent copilot || true", "timeoutSec": 10}
            ]
        },
    ),
    "windsurf": (
        {},
        {"pre_run_command": [{"command": f"{COMMAND} --agent windsurf", "show_output": False}]},
    ),
    "antigravity": (
        {},
        {
            "Stop": [
                {
                    "type": "command",
                    "command": f"{COMMAND} --agent antigravity --event Stop",
                    "timeout": 10,
                }
            ]
        },
    ),
    "droid": (
        {},
        {
            "Stop": [
                {
                    "hooks": [
                        {"type": "command", "command": f"{COMMAND} --agent droid", "timeout": 10}
                    ]
                }
            ]
        },
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_hooks_stand_as_the_agent_reads_them(name: str) -> None:
    beside, hook = SHAPES[name]
    found = json.loads(put("", name))
    hooks = found
    for key in AGENTS[name].shape.at:
        hooks = found.pop(key)
    assert isinstance(hook, dict) and hook.items() <= hooks.items()
    assert set(hooks) - set(beside) == set(AGENTS[name].events)
    assert beside.items() <= {**found, **hooks}.items()


def test_hooks_of_kiro_are_one_list() -> None:
    found = json.loads(put("", "kiro"))
    assert found["version"] == "v1" and [hook["trigger"] for hook in found["hooks"]] == list(
        AGENTS["kiro"].events
    )
    assert found["hooks"][2] == {
        "name": "ckptfs PreToolUse",
        "trigger": "PreToolUse",
        "action": {
            "type": "command",
            "command": f"{COMMAND} --agent kiro --event PreToolUse || true",
        },
        "timeout": 10,
    }


def test_antigravity_is_never_asked_for_a_decision() -> None:
    assert "PreToolUse" not in AGENTS["antigravity"].events


@pytest.mark.parametrize("name", [*GROUPS, *OTHERS])
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
@pytest.mark.parametrize("name", GROUPS)
def test_to_uninstall_gives_the_very_same_text_back(name: str, text: str) -> None:
    text = text.replace("Stop", "AfterAgent") if name == "gemini" else text
    assert take(put(text, name), name) == text


#: Settings as people have them, with hooks of others and comments, by agent.
THEIRS = {
    "cursor": """\
{
  "version": 1, // the only one
  "hooks": {
    /* before everything */
    "preToolUse": [
      { "command": "./guard.sh", "matcher": "Shell" } // mine
    ],
    "afterTabFileEdit": [{ "command": "fmt" }]
  }
}
""",
    "copilot": """\
{
    "version": 1,
    "hooks": {
        "preToolUse": [
            { "type": "command", "bash": "./check.sh", "timeoutSec": 5 } // slow
        ],
        "Stop": [{ "type": "command", "bash": "say done" }]
    },
    "disableAllHooks": false
}
""",
    "antigravity": """\
{
  // formats
  "my-linter": {
    "PostToolUse": [{ "matcher": "run_command", "hooks": [{ "command": "lint" }] }]
  },
  "reminder": { "enabled": false, "PreInvocation": [{ "type": "command", "command": "remind" }] }
}
""",
    "droid": """\
{
  "hooksDisabled": false, // for now
  "PreToolUse": [
    { "matcher": "Execute", "hooks": [{ "type": "command", "command": "audit" }] }
  ]
}
""",
    "windsurf": """\
{
\t"hooks": {
\t\t"pre_run_command": [
\t\t\t{ "command": "python3 guard.py", "show_output": true } /* team */
\t\t],
\t\t"post_write_code": [{ "command": "black ." }]
\t}
}
""",
    "kiro": """\
{
  "version": "v1",
  "hooks": [
    { "name": "lint", "trigger": "PostFileSave", "action": { "command": "lint" } } // ok
  ]
}
""",
    "qwen": """\
{
  // mine
  "model": { "name": "q" },
  "hooks": { "Stop": [{ "hooks": [{ "command": "x" }] }], "disabled": [] }
}
""",
}


@pytest.mark.parametrize("name", THEIRS)
def test_of_settings_with_hooks_of_others_and_comments_every_character_comes_back(
    name: str,
) -> None:
    text = THEIRS[name]
    new = put(text, name)
    theirs = [command for command in commands(new, name) if not caller_of(command)]
    if name != "antigravity":  # which has its own object
        assert theirs == commands(text, name)
    assert len(commands(new, name)) - len(theirs) == len(AGENTS[name].events)
    assert put(new, name) == new and take(new, name) == text
    for line in text.splitlines():
        assert line.partition("//")[2] in new


@pytest.mark.parametrize("name", [*GROUPS, *OTHERS])
def test_what_was_not_there_before_is_not_there_after(name: str) -> None:
    assert take(put("", name), name) == ""
    assert take("", name) == ""


@pytest.mark.parametrize("name", [*GROUPS, *OTHERS])
def test_an_older_or_another_one_is_replaced_as_a_whole(name: str) -> None:
    old = put("", name, command="/old/place/ckptfs hook").replace("10", "7")
    assert callers(AGENTS[name], JSON, old) == {"/old/place/ckptfs hook"}
    assert put(old, name) == put("", name)


def test_an_event_that_is_no_longer_asked_for_goes() -> None:
    hook = {"type": "command", "command": "ckptfs hook", "timeout": 10}
    theirs = {"hooks": [{"type": "command", "command": "theirs"}]}
    old = json.dumps(
        {"hooks": {"Notification": [{"hooks": [hook]}, theirs], "Setup": [{"hooks": [hook]}]}}
    )
    hooks = json.loads(put(old))["hooks"]
    assert hooks["Notification"] == [theirs] and "Setup" not in hooks


def test_without_the_hook_nothing_is_touched() -> None:
    for text in ('{"a":   1}', '{"hooks": {}}', "{}", '{"hooks": {"Stop": []}}'):
        assert take(text) == text


def test_hooks_of_others_stay_where_they_are() -> None:
    theirs = {"matcher": "Bash", "hooks": [{"type": "command", "command": "lint"}]}
    text = json.dumps({"hooks": {"PreToolUse": [theirs], "Notification": [theirs]}}, indent=4)
    with_ours = put(text)
    hooks = json.loads(with_ours)["hooks"]
    assert hooks["PreToolUse"][0] == theirs and len(hooks["PreToolUse"]) == 2
    assert hooks["Notification"] == [theirs]
    assert json.loads(take(with_ours)) == json.loads(text)


def test_an_old_one_is_brought_up_to_date() -> None:
    text = put("{}", command="/old/place/ckptfs hook")
    assert set(commands(put(text))) == {COMMAND}


def test_one_that_shares_a_group_with_others_gets_one_of_its_own() -> None:
    both = [{"type": "command", "command": c} for c in ("lint", "ckptfs hook", "test")]
    text = json.dumps({"hooks": {"PreToolUse": [{"matcher": "*", "hooks": both}]}})
    new = put(text)
    assert commands(new).count(COMMAND) == len(AGENTS["claude"].events)
    assert "ckptfs hook" not in commands(new)
    group = json.loads(take(new))["hooks"]["PreToolUse"]
    assert group == [{"matcher": "*", "hooks": [both[0], both[2]]}]


def test_comments_and_the_style_of_indentation_stay() -> None:
    text = '{\n    // do not touch\n    "hooks": {\n        /* none yet */\n    }\n}\n'
    new = put(text)
    assert "// do not touch" in new and "/* none yet */" in new
    assert '\n        "SessionStart": [\n            {\n' in new
    assert take(new).count("/* none yet */") == 1


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
@given(SETTINGS, st.sampled_from([None, 1, 2, 4, "\t"]), st.sampled_from([*GROUPS, "windsurf"]))
def test_any_settings_survive(mine: dict[str, object], indent: int | str, name: str) -> None:
    text = json.dumps(mine, indent=indent, ensure_ascii=False)
    new = put(text, name)
    kept = json.loads(new)
    del kept["hooks"]
    assert kept == mine
    assert put(new, name) == new
    assert take(new, name) == ("" if text.strip() == "{}" else text)


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
    assert take(new, "codex", TOML).rstrip("\n") == text.rstrip("\n")


def test_codex_config_with_text_behind_ours_keeps_it() -> None:
    new = put(CODEX, "codex", TOML) + "\n[tui]\ntheme = 'x'\n"
    again = put(new, "codex", TOML, "/new/ckptfs hook")
    assert tomllib.loads(again)["tui"] == {"theme": "x"} and "/new/ckptfs" in again
    assert tomllib.loads(take(again, "codex", TOML)) == {
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
    assert put(ours, "opencode", PLUGIN) == ours and take(ours, "opencode", PLUGIN) == ""
    assert take("export default {}\n", "opencode", PLUGIN) == "export default {}\n"
    assert callers(AGENTS["opencode"], PLUGIN, ours) == {COMMAND}


def test_a_script_of_that_name_that_is_not_ours_stays() -> None:
    path, theirs = Path("/s/PreToolUse"), "#!/bin/sh\necho mine\n"
    with pytest.raises(AgentSettingsInvalid, match="another hook") as caught:
        put(theirs, "cline", path)
    assert "ckptfs hook" in caught.value.hint
    assert take(theirs, "cline", path) == theirs
    ours = put("", "cline", path)
    assert ours.startswith("#!/bin/sh\n") and ours.endswith(f"\nexec {COMMAND} --agent cline\n")
    assert put(ours, "cline", path) == ours and take(ours, "cline", path) == ""
    assert callers(AGENTS["cline"], path, ours) == {COMMAND}


def test_another_plugin_of_goose_is_not_replaced() -> None:
    path, theirs = Path("/s/plugin.json"), '{"name": "theirs"}'
    with pytest.raises(AgentSettingsInvalid, match="another plugin"):
        put(theirs, "goose", path)
    assert take(theirs, "goose", path) == theirs
    assert json.loads(put("", "goose", path))["name"] == "ckptfs"


@pytest.mark.parametrize(
    "command, caller",
    [
        ("ckptfs hook", "ckptfs hook"),
        ("'/a b/ckptfs' hook", "'/a b/ckptfs' hook"),
        ("/usr/bin/python3 -m ckptfs hook", "/usr/bin/python3 -m ckptfs hook"),
        ("ckptfs hook --agent cursor", "ckptfs hook"),
        ("/x/ckptfs hook --agent kiro --event Stop || true", "/x/ckptfs hook"),
        ("ckptfs save", None),
        ("ckptfs hook install claude", None),
        ("ckptfs hook --other cursor", None),
        ("mything hook", None),
        ("hook", None),
        ("--agent x", None),
        ("|| true", None),
        ("'", None),
        ("", None),
        (None, None),
        (["ckptfs", "hook"], None),
    ],
)
def test_our_own_command_is_known(command: object, caller: str | None) -> None:
    assert caller_of(command) == caller


def test_the_settings_of_every_agent_are_where_it_reads_them(tmp_path: Path) -> None:
    home = {"HOME": "/h"}
    places = {
        name: [str(path) for path in files_of(agent, None, home)] for name, agent in AGENTS.items()
    }
    assert places.pop("cline")[2] == "/h/Documents/Cline/Hooks/PreToolUse"
    assert places.pop("goose") == [
        "/h/.agents/plugins/ckptfs/plugin.json",
        "/h/.agents/plugins/ckptfs/hooks/hooks.json",
    ]
    assert places == {
        "claude": ["/h/.claude/settings.json"],
        "codex": ["/h/.codex/config.toml"],
        "gemini": ["/h/.gemini/settings.json"],
        "opencode": ["/h/.config/opencode/plugins/ckptfs.js"],
        "cursor": ["/h/.cursor/hooks.json"],
        "copilot": ["/h/.copilot/hooks/ckptfs.json"],
        "antigravity": ["/h/.gemini/config/hooks.json"],
        "qwen": ["/h/.qwen/settings.json"],
        "droid": ["/h/.factory/hooks.json"],
        "windsurf": ["/h/.codeium/windsurf/hooks.json"],
        "kiro": ["/h/.kiro/hooks/ckptfs.json"],
    }
    moved = {
        **home,
        "CODEX_HOME": "/c",
        "CLAUDE_CONFIG_DIR": "/l",
        "XDG_CONFIG_HOME": "/x",
        "COPILOT_HOME": "/p",
        "QWEN_HOME": "relative",
    }
    assert files_of(AGENTS["codex"], None, moved) == [Path("/c/config.toml")]
    assert files_of(AGENTS["claude"], None, moved) == [Path("/l/settings.json")]
    assert files_of(AGENTS["opencode"], None, moved) == [Path("/x/opencode/plugins/ckptfs.js")]
    assert files_of(AGENTS["copilot"], None, moved) == [Path("/p/hooks/ckptfs.json")]
    assert files_of(AGENTS["qwen"], None, moved) == [Path("/h/.qwen/settings.json")]
    assert files_of(AGENTS["copilot"], tmp_path) == [tmp_path / ".github/hooks/ckptfs.json"]
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "hooks.json").write_text("{}")
    assert [path.name for path in files_of(AGENTS["codex"], tmp_path, home)] == ["hooks.json"]


def test_an_agent_is_found_by_its_command_or_by_what_it_keeps_at_home(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}
    assert found(env) == []
    (tmp_path / ".factory").mkdir()
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "agy"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert [agent.name for agent in found(env)] == ["antigravity", "droid"]
