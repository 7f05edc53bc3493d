"""`ckptfs hook install` and `uninstall`, and what was installed at work."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
const [path, version, directory] = process.argv.slice(2)
const plugin = (await import(pathToFileURL(path))).default
const args = { command: "as plugin" }
if (version === "1") {
  await plugin.setup({ agent: {}, command: {} })
  const hooks = await plugin.server({ directory, client: {}, project: {} })
  await hooks["tool.execute.before"]({ tool: "bash", sessionID: "s1", callID: "c1" }, { args })
} else {
  let before
  await plugin.setup({
    tool: { hook: async (name, call) => { if (name === "execute.before") before = call } },
    session: { get: async ({ sessionID }) => ({ id: sessionID, location: { directory } }) },
  })
  await before({ tool: "bash", sessionID: "s2", messageID: "m", id: "c2", input: args })
}
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("version", ["1", "2"])
def test_the_opencode_plugin_takes_a_checkpoint(agent: Agent, tmp_path: Path, version: str) -> None:
    work = agent.work
    done = ckptfs("hook", "install", "opencode", "--yes", env=work.env, cwd=work.path)
    assert done.returncode == 0
    plugin = tmp_path / "ckptfs.mjs"
    plugin.write_bytes((work.path / ".opencode" / "plugins" / "ckptfs.js").read_bytes())
    (tmp_path / "host.mjs").write_text(HOST)
    agent.change()
    ran = subprocess.run(
        ["node", tmp_path / "host.mjs", plugin, version, work.path],
        env={**os.environ, **work.env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    found = agent.checkpoints()[0]
    assert found["message"] == "bash: as plugin"
    assert found["metadata"]["tool_use_id"] == f"c{version}"
    assert found["metadata"]["agent"] == "opencode"
