"""`.checkpoints` is deleted from deliberately or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import Workspace

pytestmark = pytest.mark.needs_mount


def numbers(work: Workspace) -> list[str]:
    return [name for name in os.listdir(work.path / ".checkpoints") if name.isdecimal()]


@pytest.fixture
def work(own_mount: Workspace) -> Workspace:
    """Three checkpoints of nothing and one with a file."""
    for name in ("one", "two"):
        (own_mount.path / ".checkpoints" / name).mkdir()
    (own_mount.path / "file").touch()
    (own_mount.path / ".checkpoints" / "three").mkdir()
    return own_mount


def _rm(path: Path) -> None:
    subprocess.run(["rm", "-rf", path], capture_output=True, check=False)


def _find(path: Path) -> None:
    subprocess.run(["find", path, "-delete"], capture_output=True, check=False)


def _rmtree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("remove", [_rm, _find, _rmtree])
def test_deleting_all_of_it_deletes_nothing(
    work: Workspace, remove: Callable[[Path], None]
) -> None:
    before = numbers(work)
    assert len(before) == 4
    remove(work.path / ".checkpoints")
    assert numbers(work) == before


def test_rmdir_of_one_deletes_it(work: Workspace) -> None:
    subprocess.run(["rmdir", ".checkpoints/0"], cwd=work.path, check=True)
    # A shell that lists them for the pattern is not the one that deletes.
    subprocess.run("rmdir .checkpoints/[12]", shell=True, cwd=work.path, check=True)
    assert numbers(work) == ["3"]


def test_a_process_does_not_delete_what_it_stands_in(work: Workspace) -> None:
    inside = work.path / ".checkpoints"
    done = subprocess.run(["rmdir", "0"], cwd=inside, capture_output=True, text=True)
    assert "not permitted" in done.stderr
    assert "0" in numbers(work)


@pytest.mark.parametrize("name", ["5", "latest", "now", "yesterday", "@-1"])
def test_a_name_that_means_something_else_saves_nothing(own_mount: Workspace, name: str) -> None:
    before = numbers(own_mount)
    with pytest.raises(OSError, match=r"Invalid argument|File exists"):
        (own_mount.path / ".checkpoints" / name).mkdir()
    assert numbers(own_mount) == before
