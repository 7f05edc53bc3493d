"""`ckptfs hook plugin`: the folder, and what the agents that read it make of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ckptfs.agents.settings import plugin_files
from ckptfs.agents.table import AGENTS, caller_of, commands_in
from ckptfs.cli.verbs import make_parser
from tests.hooks.conftest import Agent
from tests.support.mounting import ckptfs, succeed

NAMES = {
    ".claude-plugin/plugin.json",
    ".claude-plugin/marketplace.json",
    "hooks/hooks.json",
    ".mcp.json",
    "skills/ckptfs/SKILL.md",
    "README.md",
}


def parsed(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    succeed(ckptfs("hook", "plugin", tmp_path / "plugin"))
    return tmp_path / "plugin"


def test_the_folder_has_all_that_a_plugin_has(folder: Path) -> None:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == NAMES
    manifest, market = (
        parsed(folder, f".claude-plugin/{name}.json") for name in ("plugin", "marketplace")
    )
    (listed,) = market["plugins"]
    assert manifest["name"] == market["name"] == listed["name"] == "ckptfs"
    assert (listed["source"], listed["version"]) == ("./", manifest["version"])


def test_its_hooks_are_those_that_are_installed_and_the_tools_of_both_agents(folder: Path) -> None:
    hooks = parsed(folder, "hooks/hooks.json")["hooks"]
    assert set(hooks) == set(AGENTS["claude"].events) >= set(AGENTS["codex"].events)
    tools = re.compile(hooks["PreToolUse"][0]["matcher"])
    assert all(tools.search(name) for name in ("Bash", "Monitor", "apply_patch", "mcp__x__y"))
    assert not tools.search("Read")
    called = [
        command for groups in hooks.values() for group in groups for command in commands_in(group)
    ]
    assert all(caller_of(command) for command in called if command)


def test_its_server_is_ours(folder: Path) -> None:
    server = parsed(folder, ".mcp.json")["mcpServers"]["ckptfs"]
    done = subprocess.run([server["command"], *server["args"], "--help"], capture_output=True)
    assert done.returncode == 0 and b"Model Context Protocol" in done.stdout


def test_every_command_in_the_skill_can_be_typed(folder: Path) -> None:
    skill = (folder / "skills" / "ckptfs" / "SKILL.md").read_text()
    head, _, body = skill.removeprefix("---\n").partition("---\n")
    assert re.match(r"name: ckptfs\ndescription: .{50,1024}\n$", head)
    typed = [words for words in re.findall(r"`ckptfs ([^`]+)`", body) if not words[0].isupper()]
    assert len(typed) > 10
    for words in typed:
        line = words.replace("ID2", "2").replace("ID", "1").replace('"message"', "message")
        assert make_parser().parse_args(line.split()).verb == line.split()[0]


def test_it_is_brought_up_to_date_and_nothing_of_others_is_overwritten(folder: Path) -> None:
    hooks = folder / "hooks" / "hooks.json"
    hooks.write_text("{}")
    tried = succeed(ckptfs("hook", "plugin", folder, "--dry-run"))
    assert f"+++ {hooks}" in tried.stdout and hooks.read_text() == "{}"
    record = json.loads(succeed(ckptfs("hook", "plugin", folder, "--json")).stdout)
    assert record["changed"] and set(record["files"]) == NAMES and "PreToolUse" in hooks.read_text()
    assert not json.loads(succeed(ckptfs("hook", "plugin", folder, "--json")).stdout)["changed"]
    (folder / ".claude-plugin" / "plugin.json").write_text('{"name": "theirs"}')
    refused = ckptfs("hook", "plugin", folder)
    assert refused.returncode == 79 and "not empty" in refused.stderr
    assert parsed(folder, ".claude-plugin/plugin.json") == {"name": "theirs"}


def test_the_hook_of_the_plugin_takes_a_checkpoint(agent: Agent, folder: Path) -> None:
    hook = parsed(folder, "hooks/hooks.json")["hooks"]["PreToolUse"][0]["hooks"][0]
    agent.change()
    given = {
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "make"},
    }
    done = subprocess.run(
        hook["command"],
        shell=True,
        input=json.dumps({**given, "cwd": str(agent.work.path)}).encode(),
        env={**os.environ, **agent.work.env},
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}\n", b"")
    assert agent.checkpoints()[0]["message"] == "Bash: make"


def test_it_calls_ckptfs_as_it_was_called_itself() -> None:
    made = plugin_files(["/a b/python", "-m", "ckptfs"], "1.2.3")
    hook = json.loads(made["hooks/hooks.json"])["hooks"]["Stop"][0]["hooks"][0]
    assert hook["command"] == "'/a b/python' -m ckptfs hook"
    server = json.loads(made[".mcp.json"])["mcpServers"]["ckptfs"]
    assert server == {"command": "/a b/python", "args": ["-m", "ckptfs", "mcp"]}


# -- what the agents themselves say; they are fetched, so these take a while -----------------------


def fetched(package: str, command: str, base: Path) -> tuple[Path, dict[str, str]]:
    """An agent's command from npm, and an environment with a home of its own."""
    npm = shutil.which("npm")
    assert npm, f"npm is needed to fetch {package}"
    home = base / "home"
    (home / ".codex").mkdir(parents=True)
    env = {**os.environ, "HOME": str(home), "CODEX_HOME": str(home / ".codex")}
    prefix = base / "fetched"
    subprocess.run([npm, "install", "--prefix", prefix, package], env=env, check=True, timeout=280)
    return prefix / "node_modules" / ".bin" / command, env


@pytest.mark.deep
def test_claude_code_finds_nothing_wrong_with_it(folder: Path, tmp_path: Path) -> None:
    claude, env = fetched("@anthropic-ai/claude-code", "claude", tmp_path)
    command = [claude, "plugin", "validate", folder, "--strict"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def hooks_of_codex(codex: Path, env: dict[str, str], project: Path) -> dict[str, Any]:
    """What Codex lists for a project: its hooks, warnings and errors."""
    info = {"clientInfo": {"name": "ckptfs-test", "version": "1"}}
    asked: list[dict[str, Any]] = [
        {
            "id": 1,
            "method": "initialize",
            "params": {**info, "capabilities": {"experimentalApi": True}},
        },
        {"method": "initialized"},
        {"id": 2, "method": "hooks/list", "params": {"cwds": [str(project)]}},
    ]
    server = subprocess.Popen(
        [codex, "app-server"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with server:
        assert server.stdin and server.stdout
        for message in asked:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()
        answers = map(json.loads, server.stdout)
        answer = next(answer for answer in answers if answer.get("id") == 2)
        server.kill()
    (found,) = answer["result"]["data"]
    assert isinstance(found, dict)
    return found


@pytest.mark.deep
def test_codex_lists_the_hooks_of_the_plugin_and_those_that_are_installed(
    folder: Path, tmp_path: Path
) -> None:
    codex, env = fetched("@openai/codex", "codex", tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    succeed(ckptfs("hook", "install", "codex", "--user", "--yes", env=env, cwd=project))
    for words in (("marketplace", "add", str(folder)), ("add", "ckptfs@ckptfs")):
        subprocess.run([codex, "plugin", *words], env=env, check=True, timeout=120)
    found = hooks_of_codex(codex, env, project)
    assert (found["warnings"], found["errors"]) == ([], [])
    listed = {"user": set[str](), "plugin": set[str]()}
    for hook in found["hooks"]:
        assert caller_of(hook["command"])
        listed[hook["source"]].add(hook["eventName"].lower())
    wanted = {event.lower() for event in AGENTS["codex"].events}
    assert listed == {"user": wanted, "plugin": wanted | {"posttooluse"}}
