"""What processes say to the daemon by the control files, without a kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.control.events import Hub
from ckptfs.daemon.housekeeping import AutoSave
from ckptfs.fs import Filesystem
from ckptfs.history import Cause, checkpoints
from ckptfs.history.auto import parse_policy
from ckptfs.service import Service
from tests.direct import new_filesystem, put


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Filesystem]:
    with new_filesystem(tmp_path / "store") as found:
        yield found


@pytest.fixture
def auto(fs: Filesystem, tmp_path: Path) -> AutoSave:
    return AutoSave(Service(fs), parse_policy("command"), Hub(tmp_path))


def test_a_mark_by_somebody_who_cannot_be_seen(fs: Filesystem, auto: AutoSave) -> None:
    put(fs, b"file", b"x")
    number = auto.mark(0, "from another namespace")
    (found,) = checkpoints(fs.store)
    assert (found.id, found.message, found.cause) == (number, "from another namespace", Cause())


def test_a_mark_that_is_taken_back(fs: Filesystem, auto: AutoSave) -> None:
    auto.mark(os.getpid(), "one")
    auto.take_back(auto.mark(os.getpid(), "tw"))
    auto.mark(os.getpid(), "two")
    assert [found.message for found in checkpoints(fs.store)] == ["one", "two"]
    auto.take_back(1)  # it is gone already


def test_a_step_has_a_name_until_the_next(auto: AutoSave) -> None:
    assert auto.step_of(os.getpid()) == ""
    auto.name_step(os.getpid(), "make test")
    assert auto.step_of(os.getpid()) == "make test"
