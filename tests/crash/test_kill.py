"""The daemon is killed at random moments of a load; what was acknowledged is there afterwards."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.harness import Trial
from tests.support.mounting import HAVE_FUSE, Workspace, scratch, succeed

pytestmark = [pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"), pytest.mark.timeout(0)]


def _rounds(count: int, seed: int) -> None:
    rng = random.Random(seed)
    with scratch() as base:
        workspace = Workspace(base, "--no-write-back")
        workspace.mount()
        try:
            trial = Trial(workspace, seed)
            for _ in range(count):
                trial.load(workspace.kill, rng.random() * rng.random() * 1.5)
                trial.ask()
            trial.close()
        finally:
            workspace.finish()


_MIB = 1 << 20


@pytest.mark.parametrize("piece", [_MIB, 100_000], ids=["stream", "pieces"])
def test_a_large_file_that_was_synced_is_whole(workspace: Workspace, piece: int) -> None:
    """The heap writes it meanwhile, and a stream is answered before it is stored at all."""
    data = os.urandom(20 * _MIB + 12_345)
    _write(workspace.path / "synced", data, piece, sync=True)
    _write(workspace.path / "not synced", data[::-1], piece, sync=False)
    workspace.kill()
    workspace.mount()
    assert (workspace.path / "synced").read_bytes() == data
    left = workspace.path / "not synced"
    assert not left.exists() or data[::-1].startswith(left.read_bytes())
    assert (workspace.store / "heap").stat().st_blocks * 512 > 19 * _MIB


def test_a_large_file_that_was_saved_is_whole(workspace: Workspace) -> None:
    data = os.urandom(5 * _MIB)
    _write(workspace.path / "file", data, _MIB, sync=False)
    succeed(workspace.cli("save", "-w", workspace.path, "large"))
    with (workspace.path / "file").open("r+b") as file:
        file.write(bytes(_MIB))
        os.fsync(file.fileno())
    workspace.kill()
    workspace.mount()
    assert (workspace.path / "file").read_bytes() == bytes(_MIB) + data[_MIB:]
    assert (workspace.path / ".checkpoints/1/file").read_bytes() == data


def _write(path: Path, data: bytes, piece: int, *, sync: bool) -> None:
    with path.open("wb", buffering=0) as file:
        for at in range(0, len(data), piece):
            file.write(data[at : at + piece])
        if sync:
            os.fsync(file.fileno())


def test_nothing_synced_is_lost_in_twenty_kills() -> None:
    _rounds(20, 1)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 12))
def test_nothing_synced_is_lost_in_two_hundred_kills(seed: int) -> None:
    _rounds(20, seed)
