"""A restore to before a hook was installed takes it away, and says so, with what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ckptfs.agents.own_hooks import FOLDERS, hooks_in
from ckptfs.agents.table import AGENTS
from tests.cli.conftest import ScratchHome, place
from tests.support.mounting import succeed

__all__ = ["place"]


@pytest.fixture
def work(place: ScratchHome) -> Path:
    """A plain directory with a checkpoint, and the hook of an agent that came after it."""
    path = place / "work"
    path.mkdir()
    (path / "file").write_text("one\n")
    succeed(place.run("save", "begin", "-w", path, "--no-mount"))
    succeed(place.run("hook", "install", "claude", "--yes", "-w", path))
    (path / "file").write_text("two\n")
    return path


def test_the_folders_are_those_of_the_agents() -> None:
    assert list(FOLDERS) == sorted({agent.project.split("/")[0] for agent in AGENTS.values()})


def test_a_restore_names_the_hook_that_it_took_away(place: ScratchHome, work: Path) -> None:
    assert hooks_in(work) == {"claude": ".claude/settings.json"}
    done = succeed(place.run("restore", "0", "--force", "-w", work))
    assert "The hook of Claude Code is gone: .claude/settings.json was restored" in done.stderr
    assert "`ckptfs hook install claude` puts it back" in done.stderr
    assert hooks_in(work) == {}
    undone = succeed(place.run("undo", "--json", "-w", work))
    assert json.loads(undone.stdout)["hooks_gone"] == []
    assert hooks_in(work) == {"claude": ".claude/settings.json"}


def test_a_program_reads_it_in_the_json(place: ScratchHome, work: Path) -> None:
    done = succeed(place.run("restore", "0", "--force", "--json", "-w", work))
    assert json.loads(done.stdout)["hooks_gone"] == ["claude"]


def test_a_hook_that_stays_is_not_mentioned(place: ScratchHome, work: Path) -> None:
    succeed(place.run("save", "with the hook", "-w", work))
    (work / "file").write_text("three\n")
    done = succeed(place.run("restore", "latest", "--force", "-w", work))
    assert "hook" not in done.stderr
    done = succeed(place.run("restore", "0", work / "file", "-w", work))
    assert "hook" not in done.stderr


def test_settings_of_others_are_no_hooks_of_ours(tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/settings.json").write_text('{"hooks": {"Stop": [{"command": "ls"}]}}')
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/hooks.json").write_text("{ broken")
    (tmp_path / ".codex").mkdir()
    os.mkfifo(tmp_path / ".codex/hooks.json")  # is not waited for
    assert hooks_in(tmp_path) == {}


def test_nothing_is_put_into_a_project_that_makes_an_agent_fill_it(place: ScratchHome) -> None:
    """opencode installs thousands of files beside a plugin that a project has."""
    path = place / "work"
    path.mkdir()
    done = succeed(
        place.run("hook", "install", "opencode", "--yes", "-w", path, XDG_CONFIG_HOME="")
    )
    assert "In your own settings, for all projects: beside a plugin" in done.stderr
    assert list(path.iterdir()) == []
    mine = place / "home/.config/opencode/plugins/ckptfs.js"
    assert mine.exists()
    succeed(place.run("hook", "install", "opencode", "--project", "--yes", "-w", path))
    assert (path / ".opencode/plugins/ckptfs.js").exists()
    succeed(place.run("hook", "uninstall", "opencode", "--yes", "-w", path, XDG_CONFIG_HOME=""))
    assert not mine.exists() and not (path / ".opencode/plugins/ckptfs.js").exists()
