"""`ckptfs hook install` and `uninstall`, and what was installed at work."""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptfs.agents.events import Event
from ckptfs.agents.table import AGENTS, commands_in
from tests.hooks.conftest import Agent, Case
from tests.support.mounting import ckptfs, scratch, succeed


class Home:
    """A home directory of its own, and a project in it."""

    def __init__(self, base: Path) -> None:
        self.project = base / "project"
        self.project.mkdir()
        self.base = base
        self.bin = base / "bin"
        self.bin.mkdir()
        #: Without whatever agents are on the machine that runs the tests.
        self.env = {
            "HOME": str(base),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "XDG_DATA_HOME": str(base / "data"),
            "XDG_CONFIG_HOME": str(base / "config"),
            **dict.fromkeys((agent.moved for agent in AGENTS.values() if agent.moved), ""),
        }
        self.env["XDG_CONFIG_HOME"] = str(base / "config")

    def hook(self, *words: str) -> subprocess.CompletedProcess[str]:
        return ckptfs("hook", *words, env=self.env, cwd=self.project)

    def json(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(succeed(self.hook(*words, "--json")).stdout)
        return found

    def files(self) -> dict[str, bytes]:
        """Everything in the project and at home, but what ckptfs keeps for itself."""
        found = (path for path in self.base.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.base)): path.read_bytes()
            for path in found
            if not path.is_relative_to(self.base / "data")
        }


@pytest.fixture
def home() -> Iterator[Home]:
    with scratch() as base:
        yield Home(base)


@pytest.mark.parametrize("scope", ["--project", "--user"])
@pytest.mark.parametrize("name", AGENTS)
def test_a_hook_is_installed_shown_and_removed_again(home: Home, name: str, scope: str) -> None:
    before = home.files()
    tried = home.hook("install", name, scope, "--dry-run")
    assert tried.returncode == 0 and home.files() == before
    done = home.json("install", name, scope, "--yes")
    assert done["changed"] and done["path"] == done["paths"][-1]
    for path in map(Path, done["paths"]):
        assert f"+++ {path}" in tried.stdout and path.is_file()
        assert os.access(path, os.X_OK) is AGENTS[name].runs_files
    assert len(home.files()) == len(before) + len(done["paths"])
    again = home.json("install", name, scope, "--yes")
    assert again["changed"] is False and again["path"] == done["path"]
    gone = home.hook("uninstall", name, scope, "--yes")
    assert gone.returncode == 0 and home.files() == before


def test_a_folder_that_was_ours_goes_with_it_and_one_with_more_in_it_stays(home: Home) -> None:
    plugin = home.project / ".agents" / "plugins" / "ckptfs"
    home.json("install", "goose", "--yes")
    assert (plugin / "hooks").is_dir()
    home.json("uninstall", "goose", "--yes")
    assert not plugin.exists() and plugin.parent.is_dir()
    home.json("install", "goose", "--yes")
    (plugin / "notes").write_text("mine")
    home.json("uninstall", "goose", "--yes")
    assert [path.name for path in plugin.iterdir()] == ["notes"]


def test_of_several_files_all_are_written_or_none(home: Home) -> None:
    folder = home.project / ".clinerules" / "hooks"
    folder.mkdir(parents=True)
    (folder / "PostToolUse").write_text("#!/bin/sh\necho mine\n")
    before = home.files()
    done = home.hook("install", "cline", "--yes")
    assert done.returncode == 79 and "PostToolUse" in done.stderr
    assert home.files() == before


def test_the_hook_goes_into_the_users_own_settings_if_asked(home: Home) -> None:
    assert home.hook("install", "claude", "--user", "--yes").returncode == 0
    assert (home.project.parent / ".claude" / "settings.json").exists()


def test_with_yes_it_is_one_line(home: Home) -> None:
    done = home.hook("install", "claude", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_without_a_terminal_it_wants_yes(home: Home) -> None:
    done = home.hook("install", "claude")
    assert done.returncode == 47 and "--yes" in done.stderr
    assert "+++" in done.stderr  # what it would have done is shown
    assert not (home.project / ".claude").exists()


@pytest.mark.parametrize("answer, there", [("y", True), ("n", False), ("", False)])
def test_at_a_terminal_it_asks(home: Home, answer: str, there: bool) -> None:
    master, slave = pty.openpty()
    os.write(master, answer.encode() + b"\n")
    subprocess.run(
        [sys.executable, "-m", "ckptfs", "hook", "install", "claude"],
        stdin=slave,
        capture_output=True,
        env={**os.environ, **home.env},
        cwd=home.project,
        timeout=60,
    )
    os.close(master)
    os.close(slave)
    assert (home.project / ".claude" / "settings.json").exists() is there


def test_mode_and_link_of_the_file_stay(home: Home) -> None:
    real = home.project.parent / "dotfiles.json"
    real.write_text('{"model": "x"}')
    real.chmod(0o600)
    (home.project / ".claude").mkdir()
    link = home.project / ".claude" / "settings.json"
    link.symlink_to(real)
    assert home.hook("install", "claude", "--yes").returncode == 0
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    assert "hooks" in json.loads(real.read_text())
    assert os.listdir(link.parent) == ["settings.json"]


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b'{"hooks": 1}'])
def test_broken_settings_stay_as_they_are(home: Home, content: bytes) -> None:
    path = home.project / ".gemini" / "settings.json"
    path.parent.mkdir()
    path.write_bytes(content)
    for action in ("install", "uninstall"):
        done = home.hook(action, "gemini", "--yes")
        assert done.returncode == 79 and str(path) in done.stderr, done.stderr
    assert path.read_bytes() == content


def test_settings_that_are_a_directory_are_refused(home: Home) -> None:
    (home.project / ".claude" / "settings.json").mkdir(parents=True)
    assert home.hook("install", "claude", "--yes").returncode == 79


@pytest.mark.parametrize(
    "words",
    [
        ("install",),
        ("install", "emacs"),
        ("install", "claude", "--all"),
        ("install", "--all"),
        ("uninstall",),
        ("status", "claude"),
        ("plugin",),
    ],
)
def test_words_that_make_no_sense_are_refused(home: Home, words: tuple[str, ...]) -> None:
    before = home.files()
    assert home.hook(*words).returncode == 2
    assert home.files() == before


# -- the agents of this machine --------------------------------------------------------------------


def have(home: Home, *names: str) -> None:
    """Put the commands of agents on this machine."""
    for name in names:
        command = home.bin / AGENTS[name].commands[0]
        command.write_text("#!/bin/sh\n")
        command.chmod(0o755)


def test_who_names_no_agent_is_told_which_are_there(home: Home) -> None:
    assert "None was found on this machine" in home.hook("install").stderr
    have(home, "cursor", "goose")
    done = home.hook("install")
    assert done.returncode == 2
    assert "On this machine there are cursor, goose." in done.stderr
    assert "kiro" in done.stderr  # the hint names all


def test_all_means_those_that_are_there(home: Home) -> None:
    have(home, "codex", "qwen", "cline")
    done = home.json("install", "--all", "--yes")
    assert [item["agent"] for item in done["agents"]] == ["codex", "qwen", "cline"]
    assert all(item["changed"] for item in done["agents"])
    assert home.hook("install", "--all", "--yes").stdout.count("is as it should be") == 9
    home.json("uninstall", "--all", "--yes")
    assert not any(name.startswith("project/") for name in home.files())


def test_the_status_tells_what_is_installed_where(home: Home) -> None:
    have(home, "claude", "droid", "kiro", "gemini")
    home.json("install", "claude", "--yes")
    home.json("install", "claude", "--user", "--yes")
    settings = home.base / ".claude" / "settings.json"
    settings.write_text(settings.read_text().replace('"timeout": 10', '"timeout": 3'))
    home.json("install", "droid", "--yes")
    hooks = home.project / ".factory" / "hooks.json"
    words = json.loads(hooks.read_text())["Stop"][0]["hooks"][0]["command"].removesuffix(
        " --agent droid"
    )
    hooks.write_text(hooks.read_text().replace(words, "/old/ckptfs hook"))
    (home.project / ".gemini").mkdir()
    (home.project / ".gemini" / "settings.json").write_text("{")
    found = {item["agent"]: item for item in home.json("status")["agents"]}
    scopes = ("project", "user")
    states = {name: [item[scope]["state"] for scope in scopes] for name, item in found.items()}
    assert states == {
        "claude": ["current", "outdated"],
        "gemini": ["unreadable", "none"],
        "droid": ["other", "none"],
        "kiro": ["none", "none"],
    }
    assert found["droid"]["project"]["command"] == "/old/ckptfs hook"
    assert "not valid JSON" in found["gemini"]["project"]["reason"]
    assert found["claude"]["user"]["path"] == str(settings)
    shown = home.hook("status").stdout.splitlines()
    assert shown[0].split() == ["agent", "project", "user", "last", "call"]
    assert shown[1].split() == ["claude", "current", "outdated", "never"]
    assert any(line.startswith("droid   other: /old/ckptfs hook  none") for line in shown)


@pytest.mark.parametrize("name", AGENTS)
def test_what_was_just_installed_is_current(home: Home, name: str) -> None:
    have(home, name)
    home.json("install", name, "--yes", "--project")
    (found,) = home.json("status")["agents"]
    assert (found["project"]["state"], found["user"]["state"]) == ("current", "none")
    assert found["project"]["path"] == home.json("install", name, "--yes", "--project")["path"]


def test_the_status_tells_who_called_last(home: Home) -> None:
    have(home, "qwen")
    assert home.json("status")["agents"][0]["last_call_ns"] is None
    before = time.time_ns()
    done = subprocess.run(
        [sys.executable, "-m", "ckptfs", "hook", "--agent", "qwen"],
        input=b'{"hook_event_name": "Notification"}',
        env={**os.environ, **home.env},
        check=True,
        capture_output=True,
    )
    assert done.stdout == b"{}\n"
    last = home.json("status")["agents"][0]["last_call_ns"]
    assert abs(last - before) < 60e9
    assert "never" not in home.hook("status").stdout


@pytest.mark.parametrize("scope", ["--project", "--user"])
def test_the_status_has_what_is_installed_for_an_agent_that_is_not_here(
    home: Home, scope: str
) -> None:
    home.json("install", "claude", "--yes", scope)
    (found,) = home.json("status")["agents"]
    assert (found["agent"], found[scope.lstrip("-")]["state"]) == ("claude", "current")


def test_without_any_agent_the_status_says_so(home: Home) -> None:
    assert home.hook("status").stdout == "No agent was found on this machine.\n"


# -- at work ---------------------------------------------------------------------------------------


#: By agent, the event whose hook is run, and a recorded input of it.
CALLS = {
    "claude": ("PreToolUse", "claude-bash"),
    "codex": ("PreToolUse", "codex-bash"),
    "gemini": ("BeforeTool", "gemini-shell"),
    "cursor": ("preToolUse", "cursor-shell"),
    "copilot": ("PreToolUse", "copilot-bash"),
    "antigravity": ("PreInvocation", "antigravity-invocation"),
    "qwen": ("PreToolUse", "qwen-shell"),
    "cline": ("PreToolUse", "cline-write"),
    "goose": ("PreToolUse", "goose-shell"),
    "droid": ("PreToolUse", "droid-execute"),
    "windsurf": ("pre_write_code", "windsurf-write"),
    "kiro": ("PreToolUse", "kiro-write"),
}


def command_in(name: str, path: Path, event: str) -> str:
    """The command of one event, found in the settings as the agent finds it."""
    if AGENTS[name].runs_files:
        return str(path.with_name(event))
    found = (
        tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())
    )
    for key in AGENTS[name].shape.at:
        found = found[key]
    items = [item for item in found if item["trigger"] == event] if name == "kiro" else found[event]
    (command,) = (command for command in commands_in(items[0]) if command)
    return str(command)


@pytest.mark.parametrize("name", CALLS)
def test_the_installed_command_takes_a_checkpoint(
    agent: Agent, transcript: Path, name: str
) -> None:
    work, (event, recorded) = agent.work, CALLS[name]
    installed = ckptfs("hook", "install", name, "--yes", "--json", env=work.env, cwd=work.path)
    command = command_in(name, Path(json.loads(succeed(installed).stdout)["path"]), event)
    case = Case(recorded, agent, transcript)
    agent.change()
    # Cursor hands the input over in this way; the others' pipes come to the same.
    script = f"{command} <<'CURSOR_HOOK_EOF'\n{json.dumps(case.fields['input'])}\nCURSOR_HOOK_EOF\n"
    if AGENTS[name].guard:
        script = f"({command}) <<'EOF'\n{json.dumps(case.fields['input'])}\nEOF\n"
    done = subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, **work.env},
        cwd="/",
        capture_output=True,
        timeout=60,
    )
    said = b"" if name in ("droid", "kiro") else b"{}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, b"")
    found = agent.checkpoints()[0]
    assert (found["message"], found["metadata"]["agent"]) == (case.fields["message"], name)


@pytest.mark.parametrize("name", ["copilot", "kiro"])
def test_a_hook_whose_ckptfs_is_gone_forbids_nothing(home: Home, name: str) -> None:
    path = Path(home.json("install", name, "--yes")["path"])
    command = command_in(name, path, "PreToolUse").replace(sys.executable, "/gone/python")
    done = subprocess.run(["sh", "-c", command], input=b"{}", capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"") and b"/gone/python" in done.stderr


#: Stands in for opencode: loads the plugin as its two versions do, and runs a tool.
HOST = """
import { pathToFileURL } from "node:url"
const [path, version, directory, tool, args] = process.argv.slice(2)
const plugin = (await import(pathToFileURL(path))).default
const input = JSON.parse(args)
if (version === "1") {
  await plugin.setup({ agent: {}, command: {} })
  const hooks = await plugin.server({ directory, client: {}, project: {} })
  await hooks["tool.execute.before"]({ tool, sessionID: "s1", callID: "c1" }, { args: input })
} else {
  let before
  await plugin.setup({
    tool: { hook: async (name, call) => { if (name === "execute.before") before = call } },
    session: { get: async ({ sessionID }) => ({ id: sessionID, location: { directory } }) },
  })
  await before({ tool, sessionID: "s2", messageID: "m", id: "c2", input })
}
"""

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


class Opencode:
    """The plugin as it was installed, outside of the workspace, and what runs it."""

    def __init__(self, agent: Agent, place: Path) -> None:
        self._agent = agent
        work = agent.work
        installed = ckptfs(
            "hook", "install", "opencode", "--yes", "--project", env=work.env, cwd=work.path
        )
        assert installed.returncode == 0
        self.plugin = place / "ckptfs.mjs"
        shutil.copy(work.path / ".opencode/plugins/ckptfs.js", self.plugin)
        self._host = place / "host.mjs"
        self._host.write_text(HOST)

    def use(self, tool: str, args: object, where: Path | None = None, version: str = "1") -> None:
        """Have a tool used in a directory of the workspace, or elsewhere. That must end well."""
        work = self._agent.work
        words = [self.plugin, version, where or work.path, tool, json.dumps(args)]
        ran = subprocess.run(
            ["node", self._host, *words],
            start_new_session=True,
            env={**os.environ, **work.env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ran.returncode, ran.stderr) == (0, "")

    def calls_instead(self, command: str) -> None:
        """Put another command in the place of `ckptfs hook`."""
        text = self.plugin.read_text()
        (line,) = [one for one in text.splitlines() if one.startswith("const COMMAND_LINE")]
        self.plugin.write_text(text.replace(line, f"const COMMAND_LINE = {json.dumps(command)}"))


@pytest.fixture
def opencode(agent: Agent, tmp_path: Path) -> Opencode:
    return Opencode(agent, tmp_path)


@needs_node
@pytest.mark.parametrize("version", ["1", "2"])
def test_the_opencode_plugin_takes_a_checkpoint(
    agent: Agent, opencode: Opencode, version: str
) -> None:
    """By the control file: nothing is started."""
    opencode.calls_instead("exit 1")
    agent.change()
    opencode.use("bash", {"command": f"as plugin {version}"}, version=version)
    found = agent.checkpoints()[0]
    assert (found["kind"], found["message"]) == ("mark", f"bash: as plugin {version}")
    assert "node" in found["cause"]["command"]


@needs_node
@pytest.mark.parametrize(
    "tool, args, message",
    [
        ("bash", {"command": "make  test\n"}, "bash: make test"),
        ("edit", {"filePath": "WORK/src/app.py", "oldString": "a"}, "edit: src/app.py"),
        ("write", {"filePath": "/etc/hosts"}, "write: /etc/hosts"),
        ("shell", {"cmd": ["ls", "-l"]}, "shell: ls -l"),
        (
            "apply_patch",
            {"command": "*** Update File: a.c\n-x\n+y\n*** Add File: b.c\n"},
            "apply_patch: a.c, b.c",
        ),
        ("bash", {"command": "x" * 300}, "bash: " + "x" * 191 + "..."),
        ("patch", None, "patch"),
        ("", {}, "a tool"),
    ],
)
def test_the_opencode_plugin_has_the_words_of_the_hook(
    agent: Agent, opencode: Opencode, tool: str, args: object, message: str
) -> None:
    work = str(agent.work.path)
    given = json.loads(json.dumps(args).replace("WORK", work))
    opencode.use(tool, given)
    assert agent.checkpoints()[0]["message"] == message


@needs_node
def test_the_opencode_plugin_finds_the_workspace_above(agent: Agent, opencode: Opencode) -> None:
    deep = agent.work.path / "some/where"
    deep.mkdir(parents=True, exist_ok=True)
    opencode.use("bash", {"command": "from below"}, where=deep)
    assert agent.checkpoints()[0]["message"] == "bash: from below"


@needs_node
@pytest.mark.parametrize("tool", ["read", "Grep", "todowrite", "webfetch", "mcp_ckptfs_list"])
def test_the_opencode_plugin_lets_tools_be_that_only_read(
    agent: Agent, opencode: Opencode, tool: str
) -> None:
    assert not Event({"hook_event_name": "PreToolUse", "tool_name": tool}).kind
    before = agent.checkpoints()
    opencode.use(tool, {"filePath": "a"})
    assert agent.checkpoints() == before


@needs_node
def test_without_a_control_file_the_opencode_plugin_calls_the_hook(
    opencode: Opencode, tmp_path: Path
) -> None:
    """A file that somebody put there is none, and is left alone."""
    (tmp_path / ".checkpoints").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".checkpoints/.mark").symlink_to(tmp_path / "victim")
    opencode.calls_instead(f"cat > {shlex.quote(str(tmp_path))}/sent")
    opencode.use("bash", {"command": "make"}, where=tmp_path)
    sent = json.loads((tmp_path / "sent").read_text())
    assert (sent["hook_event_name"], sent["tool_use_id"]) == ("PreToolUse", "c1")
    assert (sent["cwd"], sent["tool_input"]) == (str(tmp_path), {"command": "make"})
    (tmp_path / ".checkpoints/.mark").unlink()
    (tmp_path / ".checkpoints/.mark").write_text("precious")
    opencode.use("bash", {"command": "make test"}, where=tmp_path)
    assert json.loads((tmp_path / "sent").read_text())["tool_input"] == {"command": "make test"}
    assert (tmp_path / ".checkpoints/.mark").read_text() == "precious"
    assert (tmp_path / "victim").read_text() == "precious"


def test_what_lies_in_the_project_is_not_run_by_the_hook(home: Home) -> None:
    """An agent calls the hook in the project, perhaps outside of the sandbox of its tools."""
    succeed(home.hook("install", "claude", "--yes"))
    settings = json.loads((home.project / ".claude" / "settings.json").read_text())
    command = settings["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    planted, ran = home.project / "json.py", home.base / "ran"
    planted.write_text(f"open({str(ran)!r}, 'w').close()\n")
    subprocess.run(
        ["sh", "-c", command],
        input=b'{"hook_event_name": "PreToolUse", "tool_name": "Bash"}',
        env={**os.environ, **home.env},
        cwd=home.project,
        check=True,
        capture_output=True,
    )
    assert not ran.exists()
