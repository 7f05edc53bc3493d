"""`ckptfs hook install` and `uninstall`, and what was installed at work."""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.hook.events import matters, tool_message
from tests.hooks.conftest import Agent
from tests.support.mounting import ckptfs, scratch


class Home:
    """A home directory of its own, and a project in it."""

    def __init__(self, base: Path) -> None:
        self.project = base / "project"
        self.project.mkdir()
        self.env = {
            "HOME": str(base),
            "XDG_DATA_HOME": str(base / "data"),
            "XDG_CONFIG_HOME": str(base / "config"),
        }

    def hook(self, *words: str) -> subprocess.CompletedProcess[str]:
        return ckptfs("hook", *words, env=self.env, cwd=self.project)


@pytest.fixture
def home() -> Iterator[Home]:
    with scratch() as base:
        yield Home(base)


PLACES = {
    "claude": ".claude/settings.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "opencode": ".opencode/plugins/ckptfs.js",
}


@pytest.mark.parametrize("name", PLACES)
def test_installed_shown_and_gone_again(home: Home, name: str) -> None:
    path = home.project / PLACES[name]
    tried = home.hook("install", name, "--dry-run")
    assert tried.returncode == 0 and f"+++ {path}" in tried.stdout and not path.exists()
    done = home.hook("install", name, "--yes")
    assert done.returncode == 0 and f"+++ {path}" in done.stderr and "hook" in path.read_text()
    again = json.loads(home.hook("install", name, "--yes", "--json").stdout)
    assert again["changed"] is False and again["path"] == str(path)
    gone = home.hook("uninstall", name, "--yes")
    assert gone.returncode == 0 and not path.exists()


def test_the_users_own_settings(home: Home) -> None:
    assert home.hook("install", "claude", "--user", "--yes").returncode == 0
    assert (home.project.parent / ".claude" / "settings.json").exists()


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


def test_settings_that_are_a_directory(home: Home) -> None:
    (home.project / ".claude" / "settings.json").mkdir(parents=True)
    assert home.hook("install", "claude", "--yes").returncode == 79


@pytest.mark.parametrize("words", [("install",), ("install", "emacs"), ("remove", "claude")])
def test_words_that_make_no_sense(home: Home, words: tuple[str, ...]) -> None:
    assert home.hook(*words).returncode == 2


# -- at work ---------------------------------------------------------------------------------------


def test_the_installed_command_takes_a_checkpoint(agent: Agent) -> None:
    work = agent.work
    installed = ckptfs("hook", "install", "claude", "--yes", env=work.env, cwd=work.path)
    assert installed.returncode == 0
    settings = json.loads((work.path / ".claude" / "settings.json").read_text())
    (group,) = settings["hooks"]["PreToolUse"]
    given = {
        "hook_event_name": "PreToolUse",
        "cwd": str(work.path),
        "tool_name": "Bash",
        "tool_input": {"command": "as installed"},
    }
    done = subprocess.run(
        group["hooks"][0]["command"],
        shell=True,
        input=json.dumps(given).encode(),
        env={**os.environ, **work.env},
        cwd=work.path,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}\n", b"")
    assert agent.checkpoints()[0]["message"] == "Bash: as installed"


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
        installed = ckptfs("hook", "install", "opencode", "--yes", env=work.env, cwd=work.path)
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
    assert tool_message(tool, given, work) == message
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
    assert not matters({"hook_event_name": "PreToolUse", "tool_name": tool})
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
