"""Fixtures of the CLI tests: a place of one's own, and the command run in it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Workspace, ckptfs, scratch


class ScratchHome:
    """A scratch directory with a data directory in it that no other test sees."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.env = {
            "HOME": str(base / "home"),
            "XDG_DATA_HOME": str(base / "data"),
            "XDG_RUNTIME_DIR": str(base / "run"),
        }
        (base / "home").mkdir()
        (base / "run").mkdir(mode=0o700)

    def __truediv__(self, name: str) -> Path:
        return self.base / name

    def run(
        self, *words: str | Path, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return ckptfs(*words, env={**self.env, **env}, cwd=cwd or self.base)


@pytest.fixture
def place() -> Iterator[ScratchHome]:
    with scratch() as base:
        yield ScratchHome(base)


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    """A workspace with its own store, not mounted yet; at the end nothing of it is."""
    with scratch() as base:
        made = Workspace(base)
        made.path.mkdir()
        try:
            yield made
        finally:
            made.finish()
