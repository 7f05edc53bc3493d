"""Two agents' sessions in one workspace: who is about to write over another's change is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptfs import config
from ckptfs.agents import collisions
from ckptfs.control.client import Client
from tests.hooks.conftest import Agent
from tests.support.mounting import succeed


class Session:
    """One session of Claude Code, as its hooks report it."""

    def __init__(self, agent: Agent, name: str, kind: str = "claude") -> None:
        self.agent, self.name, self.kind = agent, name, kind
        self.calls = 0

    def hook(self, event: str, tool: str, given: dict[str, str], **more: Any) -> dict[str, Any]:
        record = {
            "agent": self.kind,
            "session_id": self.name,
            "cwd": str(self.agent.work.path),
            "hook_event_name": event,
            "tool_name": tool,
            "tool_input": given,
            "tool_use_id": f"{self.name}{self.calls}",
            **more,
        }
        answer: dict[str, Any] = json.loads(self.agent.call(record).stdout)
        return answer

    def read(self, file: Path) -> None:
        self.calls += 1
        file.read_text()
        assert self.hook("PostToolUse", "Read", {"file_path": str(file)}) == {}

    def edit(self, file: Path, text: str) -> dict[str, Any]:
        """Write a file, unless the hook forbids it; what the hook said before."""
        self.calls += 1
        said = self.hook("PreToolUse", "Edit", {"file_path": str(file)})
        if "deny" not in json.dumps(said):
            file.write_text(text)
            self.hook("PostToolUse", "Edit", {"file_path": str(file)}, tool_response={"ok": True})
        return said

    def run(self, file: Path, text: str) -> None:
        """A command that changes a file, which no hook names."""
        self.calls += 1
        given = {"command": f"./generate > {file}"}
        assert self.hook("PreToolUse", "Bash", given) == {}
        file.write_text(text)
        self.hook("PostToolUse", "Bash", given, tool_response={"exit_code": 0})


@pytest.fixture
def file(agent: Agent) -> Iterator[Path]:
    found = agent.work.path / "src/a.ts"
    found.parent.mkdir(exist_ok=True)
    found.write_text("first")
    yield found
    set_collisions(agent, "tell")


@pytest.fixture
def sessions(agent: Agent, request: pytest.FixtureRequest) -> tuple[Session, Session]:
    """Of this test alone: what earlier tests' sessions did is not theirs."""
    return Session(agent, f"A-{request.node.name}"), Session(agent, f"B-{request.node.name}")


def set_collisions(agent: Agent, value: str) -> None:
    succeed(agent.work.cli("config", "collisions", value, "-w", agent.work.path))


def told(sessions: tuple[Session, Session]) -> str:
    one, other = sessions
    return f"src/a.ts: changed by session {other.name} since session {one.name} read it"


def test_a_write_over_what_another_session_changed_is_told(
    agent: Agent, file: Path, sessions: tuple[Session, Session]
) -> None:
    one, other = sessions
    one.read(file)
    other.edit(file, "theirs")
    with Client(config.Workspace(agent.work.path, agent.work.store)) as client:
        events = client.watch()
        said = one.edit(file, "mine")
        happened = [next(events), next(events)]
    context = said["hookSpecificOutput"]
    assert context["hookEventName"] == "PreToolUse"
    assert context["additionalContext"].startswith(told(sessions))
    assert "permissionDecision" not in context
    newest = agent.checkpoints()[0]
    assert newest["metadata"]["collision"] == told(sessions)
    assert [item["event"] for item in happened] == ["checkpoint_created", "collision"]
    assert happened[1]["checkpoint"] == newest["id"]
    assert happened[1]["data"]["collisions"][0]["path"] == "src/a.ts"
    assert file.read_text() == "mine"
    assert one.edit(file, "again") == {}  # it knows the file now
    assert "collision" not in agent.checkpoints()[0]["metadata"]


def test_a_change_by_a_command_of_another_session_is_told(
    file: Path, sessions: tuple[Session, Session]
) -> None:
    one, other = sessions
    one.read(file)
    other.run(file, "generated")
    assert told(sessions) in json.dumps(one.edit(file, "mine"))


def test_refused_until_the_file_is_read_again(
    agent: Agent, file: Path, sessions: tuple[Session, Session]
) -> None:
    set_collisions(agent, "refuse")
    one, other = sessions
    one.read(file)
    other.edit(file, "theirs")
    for _ in range(2):
        said = one.edit(file, "mine")["hookSpecificOutput"]
        assert said["permissionDecision"] == "deny"
        assert said["permissionDecisionReason"].startswith(told(sessions))
        assert file.read_text() == "theirs"
    one.read(file)
    assert one.edit(file, "both") == {}
    assert file.read_text() == "both"


def test_off_tells_nothing(agent: Agent, file: Path, sessions: tuple[Session, Session]) -> None:
    set_collisions(agent, "off")
    one, other = sessions
    one.read(file)
    other.edit(file, "theirs")
    assert one.edit(file, "mine") == {}


def test_what_is_no_collision(file: Path, sessions: tuple[Session, Session]) -> None:
    one, other = sessions
    other.edit(file, "theirs")
    assert one.edit(file, "never read") == {}
    one.read(file)
    one.run(file, "by a command of its own")
    assert one.edit(file, "mine") == {}
    file.write_text("by a person's editor")
    assert one.edit(file, "mine") == {}
    other.edit(file.with_name("b.ts"), "another file")
    assert one.edit(file, "mine") == {}


def test_a_write_that_failed_has_changed_nothing(
    file: Path, sessions: tuple[Session, Session]
) -> None:
    one, other = sessions
    one.read(file)
    other.calls += 1
    given = {"file_path": str(file)}
    other.hook("PreToolUse", "Edit", given)
    other.hook("PostToolUseFailure", "Edit", given, error="old_string was not found")
    file.write_text("by a person's editor")
    assert one.edit(file, "mine") == {}


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        ("gemini", {"decision": "deny"}),
        ("cursor", {"permission": "deny"}),
        ("copilot", {"permissionDecision": "deny"}),
        ("cline", {"cancel": True}),
        ("goose", {}),
    ],
)
def test_each_agent_is_refused_in_its_own_words(
    agent: Agent,
    file: Path,
    sessions: tuple[Session, Session],
    kind: str,
    refusal: dict[str, object],
) -> None:
    set_collisions(agent, "refuse")
    one, other = sessions
    one.kind = kind
    one.read(file)
    other.edit(file, "theirs")
    one.calls += 1
    said = one.hook("PreToolUse", "Edit", {"file_path": str(file)})
    assert said.items() >= refusal.items()
    assert bool(said) == bool(refusal)


@pytest.mark.parametrize("refuse", [False, True], ids=["tell", "refuse"])
@pytest.mark.parametrize(
    ("agent", "tells"),
    [("claude", "model"), ("qwen", "model"), ("codex", "model"), ("droid", "people")],
)
def test_an_agent_is_told_in_the_form_that_it_takes(agent: str, tells: str, refuse: bool) -> None:
    found = {"collisions": [{"message": "a.py: changed by B"}], "refuse": refuse}
    said = json.loads(collisions.answer(agent, "PreToolUse", found))
    own = said.get("hookSpecificOutput", {})
    if refuse:
        assert own["permissionDecision"] == "deny"
        assert "a.py: changed by B" in own["permissionDecisionReason"]
    elif tells == "model":
        assert "a.py: changed by B" in own["additionalContext"]
        assert "permissionDecision" not in own
    else:
        assert "a.py: changed by B" in said["systemMessage"]
        assert own == {}
