"""Work trees that agents ask for by a hook: forks of the workspace, else trees of git."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ckptfs.agents.worktrees import fork_name
from tests.hooks.conftest import RECORDINGS, Agent
from tests.support.mounting import ckptfs, succeed


def asked(where: Path, **given: str) -> dict[str, Any]:
    """What Claude Code sends."""
    record: dict[str, Any] = json.loads((RECORDINGS / "trees" / "claude.json").read_text())["input"]
    return {**record, "cwd": str(where), "transcript_path": "", **given}


def removed(path: str) -> dict[str, str]:
    return {"hook_event_name": "WorktreeRemove", "cwd": path, "worktree_path": path}


def forks(agent: Agent) -> list[str]:
    words = ("forks", "--json", "-w", str(agent.work.path))
    return [each["name"] for each in json.loads(succeed(agent.work.cli(*words)).stdout)["forks"]]


def test_a_work_tree_is_a_fork_beside_the_workspace(agent: Agent) -> None:
    work = agent.work.path
    (work / "src").mkdir(exist_ok=True)
    (work / "src" / "unsaved").write_text("not saved yet")
    made = agent.call(asked(work / "src", name="feature-x"))
    path = made.stdout.decode().splitlines()[-1]
    assert (path, made.stderr) == (f"{work}.forks/feature-x", b"")
    assert os.path.realpath(path) == path
    assert Path(path, "src", "unsaved").read_text() == "not saved yet"
    Path(path, "src", "there").write_text("work")
    assert not (work / "src" / "there").exists()
    again = agent.call(asked(work, name="feature-x"))
    assert again.stdout == made.stdout
    assert forks(agent) == ["feature-x"]
    other = agent.call(asked(work, name="feature/x")).stdout.decode().strip()
    assert other not in ("", path) and not Path(other, "src", "there").exists()
    agent.call(removed(other))
    gone = agent.call(removed(path))
    assert (gone.stdout, gone.stderr) == (b"", b"")
    assert forks(agent) == []
    assert not os.path.exists(path)
    states = [work / ".checkpoints" / str(number) / "src" for number in range(10)]
    assert [(state / "there").read_text() for state in states if (state / "there").exists()]


def test_an_agent_in_a_work_tree_gets_one_of_that(agent: Agent) -> None:
    work = agent.work.path
    outer = Path(os.fsdecode(agent.call(asked(work, name="outer")).stdout.strip()))
    (outer / "there").write_text("work")
    made = agent.call(asked(outer, name="inner"))
    inner = Path(os.fsdecode(made.stdout.strip()))
    assert (inner, made.stderr) == (Path(f"{outer}.forks/inner"), b"")
    assert (inner / "there").read_text() == "work"
    # The outer one ends first; then the inner one is known by its own mount.
    for path in (outer, inner):
        gone = agent.call(removed(str(path)))
        assert (gone.stdout, gone.stderr) == (b"", b"")
    assert forks(agent) == []
    assert not inner.parent.exists()


def test_where_nothing_is_mounted_git_makes_it(agent: Agent, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    made = agent.call(asked(repository, name="x"))
    path = made.stdout.decode().splitlines()[-1]
    assert path == f"{repository}/.claude/worktrees/x"
    assert Path(path, ".git").is_file()
    agent.call(removed(path))
    assert not os.path.exists(path)


def test_a_tree_of_git_that_is_asked_for_again_has_the_commits_that_it_had(
    agent: Agent, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    commit = [*identity, "commit", "-q", "--allow-empty", "-m"]
    subprocess.run(["git", "-C", repository, *commit, "first"], check=True)
    path = agent.call(asked(repository, name="x")).stdout.decode().strip()
    subprocess.run(["git", "-C", path, *commit, "not merged"], check=True)
    agent.call(removed(path))
    again = agent.call(asked(repository, name="x"))
    assert again.stdout.decode().strip() == path, again.stderr
    log = subprocess.run(["git", "-C", path, "log", "--format=%s"], capture_output=True, text=True)
    assert log.stdout.splitlines() == ["not merged", "first"]


def test_a_removed_fork_that_is_a_linked_worktree_is_none_for_git_any_more(agent: Agent) -> None:
    work = agent.work.path
    subprocess.run(["git", "init", "-q", work], check=True)
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    succeed(agent.work.cli("fork", "x", "--git", "--at", f"{work}.forks/x", "-w", str(work)))
    assert agent.call(removed(f"{work}.forks/x")).stderr == b""
    trees = subprocess.run([*git, "worktree", "list"], capture_output=True, check=True).stdout
    assert len(trees.splitlines()) == 1


def test_where_none_can_be_had_no_path_is_printed(agent: Agent, tmp_path: Path) -> None:
    done = agent.call(asked(tmp_path))
    assert done.stdout == b""
    assert b"no work tree was made: " in done.stderr
    done = agent.call(removed("relative"))
    assert (done.stdout, b"names no path" in done.stderr) == (b"", True)


@pytest.mark.parametrize("name", ["x", "a-b", "A.b_c"])
def test_a_name_that_a_fork_may_have_is_its_name(name: str) -> None:
    assert fork_name(name) == name


def test_two_names_are_two_forks() -> None:
    names = ["a b", "a-b", "a/b", "a-b-", ".a-b", "12", "tree-12", "..", "", "tree", "\udcff"]
    names += ["x" * 100, "x" * 101, "x" * 102]
    found = [fork_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(not re.search(r"[^A-Za-z0-9._-]|^[.0-9-]", name) for name in found)


def test_the_hook_is_installed_when_asked_for(agent: Agent) -> None:
    work = agent.work
    file = work.path / ".claude/settings.json"

    def hook(*words: str) -> subprocess.CompletedProcess[str]:
        return ckptfs("hook", *words, "--yes", env=work.env, cwd=work.path)

    succeed(hook("install", "claude"))
    assert "WorktreeCreate" not in file.read_text()
    succeed(hook("install", "claude", "--forks"))
    assert {"WorktreeCreate", "WorktreeRemove"} <= json.loads(file.read_text())["hooks"].keys()
    succeed(hook("uninstall", "claude"))
    assert not file.exists()
    refused = hook("install", "codex", "--forks")
    assert (refused.returncode, "it has none" in refused.stderr) == (2, True)


#: Stands in for opencode, which calls an adapter in this order.
HOST = """
import { pathToFileURL } from "node:url"
const [path, directory, name] = process.argv.slice(2)
const plugin = (await import(pathToFileURL(path))).default
const adapters = {}
const experimental_workspace = { register: (type, adapter) => { adapters[type] = adapter } }
await plugin.server({ directory, client: {}, project: {}, experimental_workspace })
const fork = adapters.ckptfs
const config = await fork.configure({ id: "wrk_1", type: "ckptfs", name, branch: null })
await fork.create(config, {})
const target = await fork.target(config)
if (process.argv[5]) await fork.remove(config)
console.log(JSON.stringify(target))
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_workspace_of_opencode_is_a_fork(agent: Agent, tmp_path: Path) -> None:
    work = agent.work
    words = ("hook", "install", "opencode", "--yes", "--project")
    succeed(ckptfs(*words, env=work.env, cwd=work.path))
    plugin = tmp_path / "ckptfs.mjs"
    shutil.copy(work.path / ".opencode/plugins/ckptfs.js", plugin)
    (tmp_path / "host.mjs").write_text(HOST)
    name = fork_name("opencode-an idea")
    for more, left in (([], [name]), (["remove"], [])):
        ran = subprocess.run(
            ["node", tmp_path / "host.mjs", plugin, work.path, "an idea", *more],
            env={**os.environ, **work.env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        place = f"{work.path}.forks/{name}"
        assert json.loads(ran.stdout) == {"type": "local", "directory": place}
        assert forks(agent) == left
