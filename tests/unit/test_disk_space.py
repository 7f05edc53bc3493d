"""What a disk would really give: asked seldom, by size, and never in the way of others."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckptfs.store import disk_space
from ckptfs.store.disk_space import AHEAD, DiskSpace
from tests.support.errnos import fails

MIB = 1 << 20


class Quota(DiskSpace):
    """A disk that gives so much, whatever it says that it has; `asked` counts the questions."""

    def __init__(self, path: Path, grants: int) -> None:
        super().__init__(path)
        self._asks = True
        self.grants = grants
        self.asked = 0

    def disk(self) -> int:
        return 100 << 30

    def _grants(self, size: int) -> bool:
        self.asked += 1
        return size <= self.grants


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(disk_space.time, "monotonic", lambda: now[0])
    return now


def test_without_a_quota_the_disk_is_asked_once_a_second(
    tmp_path: Path, clock: list[float]
) -> None:
    quota = Quota(tmp_path, 1 << 40)
    for _ in range(100):
        assert quota.free() == 100 << 30
    assert quota.asked == 1 and not quota.limited
    clock[0] += 1.5
    quota.free()
    assert quota.asked == 2


def test_what_is_written_meanwhile_makes_it_ask_again(tmp_path: Path, clock: list[float]) -> None:
    quota = Quota(tmp_path, 1 << 40)
    quota.free()
    quota.written(AHEAD // 4)
    quota.free()
    assert quota.asked == 1
    quota.written(AHEAD // 2)
    quota.free()
    assert quota.asked == 2
    quota.free(waiting=AHEAD)
    assert quota.asked == 3


@pytest.mark.parametrize("grants", [0, 5 * MIB, 37 * MIB, 63 * MIB])
def test_a_quota_is_found_to_the_step(tmp_path: Path, clock: list[float], grants: int) -> None:
    quota = Quota(tmp_path, grants)
    assert grants - 2 * MIB <= quota.free() <= grants
    assert quota.limited and quota.asked < 8
    quota.written(MIB)
    assert quota.free() <= max(0, grants - MIB)
    clock[0] += 1.5
    quota.grants = 1 << 40
    assert quota.free() == 100 << 30 and not quota.limited


def test_a_real_disk_gives_and_keeps_nothing(tmp_path: Path) -> None:
    before = DiskSpace(tmp_path).disk()
    found = DiskSpace(tmp_path)
    assert found.free() > 0
    assert os.listdir(tmp_path) == []
    assert abs(found.disk() - before) < 16 * MIB


def test_a_store_that_is_gone_is_no_answer_to_another_question(tmp_path: Path) -> None:
    """Who removes a file must not hear that it is not there."""
    with fails(errno.EIO):
        DiskSpace(tmp_path / "gone").free()
