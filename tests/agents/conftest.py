"""Fixtures of the tests for agents: one mounted workspace a module."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.mounting import Workspace, ckptfs, succeed, workspace


class Desk:
    """A mounted workspace and the command line in it."""

    def __init__(self, work: Workspace) -> None:
        self.work = work
        self.path = work.path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return ckptfs(*words, env=self.work.env, cwd=self.path)

    def ok(self, *words: str) -> str:
        return succeed(self.run(*words)).stdout

    def json(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ok(*words, "--json"))
        return found

    def checkpoints(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.json("list")["checkpoints"]
        return listed

    def files(self) -> dict[str, str]:
        found = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_text() for path in found}

    def clear(self) -> None:
        for path in sorted(self.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


@pytest.fixture(scope="module")
def shared_desk() -> Iterator[Desk]:
    with workspace("--no-write-back", "--auto", "off") as made:
        yield Desk(made)


@pytest.fixture
def desk(shared_desk: Desk) -> Desk:
    """Empty at the beginning of each test; the history goes on."""
    shared_desk.clear()
    shared_desk.work.quiet()
    return shared_desk
