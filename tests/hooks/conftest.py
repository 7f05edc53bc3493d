"""Fixtures of the hook tests: a mounted workspace, and `ckptfs hook` run as an agent runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptfs import config
from ckptfs.control.client import Client
from tests.support.mounting import Workspace, succeed, workspace

#: Made from the sources, schemas and examples that the agents' makers publish; docs/AGENTS.md says
#: which of whom.
RECORDINGS = Path(__file__).parent / "recorded"


class Agent:
    """Calls the hook of one workspace."""

    def __init__(self, work: Workspace) -> None:
        self.work = work

    def call(self, given: object, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """One call. It must end well, whatever it is given."""
        data = given if isinstance(given, bytes) else json.dumps(given).encode()
        done = subprocess.run(
            [sys.executable, "-m", "ckptfs", "hook", *arguments],
            input=data,
            env={**os.environ, **self.work.env},
            cwd="/",
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0
        return done

    def send(self, given: object) -> subprocess.CompletedProcess[bytes]:
        """The same of an agent that wants one JSON object for an answer."""
        done = self.call(given)
        assert isinstance(json.loads(done.stdout), dict)
        assert done.stdout.count(b"\n") == 1
        return done

    def quietly(self, given: object, *arguments: str, answer: bytes = b"{}\n") -> None:
        """One call with nothing to complain about, and nothing to tell."""
        done = self.call(given, *arguments)
        assert (done.stdout, done.stderr) == (answer, b"")

    def checkpoints(self) -> list[dict[str, Any]]:
        """Newest first."""
        with Client(config.Workspace(self.work.path, self.work.store)) as client:
            listed: list[dict[str, Any]] = client.call("list")["checkpoints"]
        return listed[::-1]

    def change(self) -> None:
        """Do something in the workspace, so that there is something to save."""
        with (self.work.path / "changes").open("a") as file:
            file.write("more\n")


class Case:
    """A recorded input, with the paths of this run in it, and what is to become of it."""

    def __init__(self, name: str, agent: Agent, transcript: Path) -> None:
        text = (RECORDINGS / f"{name}.json").read_text()
        for mark, value in {
            "@CWD@": agent.work.path,
            "@TRANSCRIPT@": transcript,
            "@LENGTH@": transcript.stat().st_size,
        }.items():
            text = text.replace(mark, str(value))
        self.fields = json.loads(text)
        self._agent = agent

    def send(self) -> None:
        answer = self.fields.get("answer", {})
        said = b"" if answer is None else json.dumps(answer).encode() + b"\n"
        arguments = self.fields.get("arguments", [])
        self._agent.quietly(self.fields["input"], *arguments, answer=said)


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    # Without automatic checkpoints and expiry: what is there comes from the hook, and stays.
    with workspace("--no-write-back", "--auto", "off") as made:
        succeed(made.cli("config", "retention.automatic", "off", "-w", made.path))
        yield Agent(made)


@pytest.fixture
def own_agent() -> Iterator[Agent]:
    """For tests that stop, kill or unmount."""
    with workspace("--no-write-back") as made:
        yield Agent(made)


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "transcript.jsonl"
    path.write_text('{"type": "user"}\n' * 100)
    return path
