"""Fixtures of the API's tests: a data directory of one's own, and workspaces in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import CheckpointConfig, CheckpointService
from tests.support.mounting import ckptfs as run_cli
from tests.support.mounting import is_mounted, scratch, succeed

PLAIN = CheckpointConfig(mount=False)


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A scratch directory that this process and every command find their data in."""
    with scratch() as path:
        monkeypatch.setenv("XDG_DATA_HOME", str(path / "data"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(path / "config"))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(path / "run"))
        (path / "run").mkdir(mode=0o700)
        yield path
        if is_mounted(path / "work"):
            succeed(run_cli("umount", path / "work"))


@pytest.fixture
def work(base: Path) -> Path:
    """The directory of a workspace to be."""
    path = base / "work"
    path.mkdir()
    return path


@pytest.fixture
def plain(work: Path) -> Iterator[CheckpointService]:
    """A service on a plain directory; its store is whole at the end."""
    with CheckpointService(work, config=PLAIN) as service:
        yield service
        assert service.check() == []


@pytest.fixture
def mounted(work: Path) -> Iterator[CheckpointService]:
    """A service on a mounted workspace; its store is whole at the end."""
    config = CheckpointConfig(auto_checkpoint=False, unmount_on_close=True)
    with CheckpointService(work, config=config) as service:
        assert service.mounted
        yield service
        assert service.check() == []
