"""Touching files so that watchers hear of them, while others exchange what stands there; and
freeing what was touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptfs import interrupts
from ckptfs.daemon import watchers
from ckptfs.history import Changed
from ckptfs.model import Ino


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = outside / "file"
    path.write_text("not of the workspace")
    path.chmod(0o600)
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    (path / "dir").mkdir(parents=True)
    (path / "dir/file").touch()
    (path / "dir/file").chmod(0o4777)
    return path


def _state(path: Path) -> tuple[int, int, int]:
    seen = path.stat()
    return seen.st_mode, seen.st_mtime_ns, seen.st_ctime_ns


def test_no_link_is_followed(work: Path, victim: Path) -> None:
    before = _state(victim)
    (work / "to dir").symlink_to(victim.parent)
    (work / "to file").symlink_to(victim)
    watchers.touch(work, [b"to dir/file", b"to file"])
    assert _state(victim) == before


@pytest.mark.parametrize("exchanged", ["dir", "dir/file"])
@pytest.mark.parametrize("before_call", range(6))
def test_what_is_exchanged_meanwhile_is_not_touched(
    work: Path, victim: Path, exchanged: str, before_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a file of root's would get the mode of one that another user has in the workspace."""
    target = victim.parent if exchanged == "dir" else victim
    before, calls = _state(victim), 0

    def quickly(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **keywords: Any) -> Any:
            nonlocal calls
            if calls == before_call:
                (work / exchanged).rename(work / "aside")
                (work / exchanged).symlink_to(target)
            calls += 1
            return call(*args, **keywords)

        return made

    for name in ("chmod", "open", "fstat", "lstat"):
        monkeypatch.setattr(os, name, quickly(getattr(os, name)))
    watchers.touch(work, [b"dir/file"])
    monkeypatch.undo()
    assert (work / "aside").exists(), "it was never exchanged"
    assert _state(victim) == before


def test_what_was_changed_is_freed_piece_by_piece() -> None:
    inodes = {Ino(number) for number in range(1000)}
    changed = Changed(inodes, {(ino, b"name") for ino in inodes})
    with interrupts.sliced(lambda: True):
        slices = sum(1 for _ in watchers._let_go([changed]))
    assert slices > 20
    assert not changed.inodes and not changed.entries
