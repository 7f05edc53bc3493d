"""A team of two agents with mounted workspaces, and its state in a data directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptfs.team import Team
from tests.support.mounting import ckptfs, is_mounted, scratch, succeed


class Crew:
    """The team ``red`` of alice and bob, and of carol, who has no workspace."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.data = base / "state"
        self.works = {name: base / name for name in ("alice", "bob")}
        self.team = Team("red", self.data)

    def begin(self) -> None:
        """Everything as at first, and mounted; what happened before is history."""
        shutil.rmtree(self.data, ignore_errors=True)
        for work in self.works.values():
            work.mkdir(exist_ok=True)
            if not is_mounted(work):
                succeed(ckptfs("mount", work, "--auto", "off"))
            for entry in work.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            (work / "file").write_text(f"{work.name} at first")
        members: list[dict[str, Any]] = [
            {"name": name, "workspace": str(work)} for name, work in self.works.items()
        ]
        config = {"name": "red", "members": [*members, {"name": "carol"}]}
        self.write("teams/red/config.json", config)
        self.write("tasks/red/task-1.json", {"id": 1, "subject": "build"})
        self.write("teams/red/events/evt-1.json", {"type": "start"})
        self.write("sessions/red/alice.json", {"session": "s"})
        self.write("costs/red/cost-1.json", {"cents": 3})
        self.write("teams/red/inboxes/alice/msg-1-aa.json", {"content": "hello"})

    def end(self) -> None:
        for work in self.works.values():
            if is_mounted(work):
                succeed(ckptfs("umount", work))
            succeed(ckptfs("check", "-w", work))

    def write(self, path: str, value: object) -> Path:
        full = self.data / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(value if isinstance(value, str) else json.dumps(value))
        return full

    def state(self) -> dict[str, str]:
        """Every file of the team that is none of ours."""
        found = (path for path in self.data.rglob("*") if path.is_file())
        named = {str(path.relative_to(self.data)): path.read_text() for path in found}
        return {name: text for name, text in named.items() if not name.startswith("ckptfs/")}

    def files(self, member: str) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.works[member].iterdir()}

    def everything(self) -> list[dict[str, str]]:
        return [self.state(), *(self.files(member) for member in self.works)]

    def mess_up(self) -> None:
        """Change something of every kind."""
        (self.works["alice"] / "file").write_text("changed")
        (self.works["bob"] / "file").unlink(missing_ok=True)
        (self.works["bob"] / "new").write_text("new")
        (self.data / "tasks/red/task-1.json").unlink(missing_ok=True)
        self.write("teams/red/events/evt-2.json", {"type": "later"})
        self.write("costs/red/cost-1.json", {"cents": 300})
        inbox = self.data / "teams/red/inboxes/alice"
        if (inbox / "msg-1-aa.json").exists():
            (inbox / "msg-1-aa.json").rename(inbox / "msg-1-aa.consumed")


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with scratch() as path, pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_DATA_HOME", str(path / "data"))
        patched.setenv("XDG_STATE_HOME", str(path / "local-state"))
        patched.setenv("XDG_CONFIG_HOME", str(path / "config"))
        patched.setenv("XDG_RUNTIME_DIR", str(path / "run"))
        (path / "run").mkdir(mode=0o700)
        yield path


@pytest.fixture(scope="module")
def mounted_crew(base: Path) -> Iterator[Crew]:
    """Mounted once for all tests of a module: that is what takes the time."""
    made = Crew(base)
    yield made
    made.end()


@pytest.fixture
def crew(mounted_crew: Crew) -> Crew:
    mounted_crew.begin()
    return mounted_crew
