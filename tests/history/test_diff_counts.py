"""Counts that are remembered, and when they are not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptfs.history import removal
from ckptfs.history.checkpoints import checkpoints
from ckptfs.history.diff import compare
from ckptfs.history.diff.compare import Counts, count_checkpoint
from tests.history.edits import Edits, edits


def counted(work: Edits) -> list[Counts]:
    return compare.counts_of(work.fs, checkpoints(work.store))


def plant(work: Edits) -> None:
    work.mkdir("d")
    work.put("d/f", b"1")
    work.link("d/f", "g")
    work.save()
    work.put("d/f", b"2")
    work.save()
    work.remove("g")
    work.put("h")
    work.save()


def test_a_checkpoint_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with edits(tmp_path / "store") as work:
        plant(work)
        expected = [Counts(3, 0, 0), Counts(0, 2, 0), Counts(1, 0, 1)]
        assert counted(work) == expected
        assert expected == [count_checkpoint(work.fs, c.epoch) for c in checkpoints(work.store)]
        monkeypatch.setattr(compare, "_count_epoch", None)
        assert counted(work) == expected


def test_deleting_the_checkpoint_before_invalidates_a_count(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        plant(work)
        counted(work)
        removal.delete(work.fs, checkpoints(work.store)[:2])
        assert counted(work) == [Counts(3, 0, 0)]
        assert len(compare._load_counts(work.store)) == 1


def test_forgotten_counts_are_counted_again(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        plant(work)
        counted(work)
        compare.forget_counts(work.store)
        assert compare._load_counts(work.store) == {}
        assert len(counted(work)) == 3
