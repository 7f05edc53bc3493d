"""Counts that are remembered, and when they are not believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptfs.history import removal
from ckptfs.history.checkpoints import checkpoints
from ckptfs.history.diff import compare
from ckptfs.history.diff.compare import Counts, count_checkpoint
from ckptfs.history.upkeep import finish
from ckptfs.model import Epoch
from tests.history.edits import Edits, edits


def counted(work: Edits) -> list[Counts]:
    return compare.counts_of(work.fs, checkpoints(work.store))


def cached(work: Edits) -> list[str]:
    """The epochs whose counts the store has."""
    spans = work.store.metadata.walk(b"counts")
    return [epoch for _, record in spans for epoch in json.loads(record)]


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
        assert len(cached(work)) == 1


def test_what_was_counted_when_idle_is_not_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with edits(tmp_path / "store") as work:
        plant(work)
        monkeypatch.setattr(compare, "_COUNTING_S", 60.0)
        finish(work.fs, compare.counting_steps(work.fs, set()))
        monkeypatch.setattr(compare, "_count_epoch", None)
        assert counted(work) == [Counts(3, 0, 0), Counts(0, 2, 0), Counts(1, 0, 1)]


def test_checkpoints_that_go_between_two_steps_of_counting_leave_nothing(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        for number in range(60):
            work.put("file", b"%d" % number)
            work.save()
        steps = compare.counting_steps(work.fs, set())
        next(steps)
        compare.forget_counts(work.store)
        removal.delete(work.fs, checkpoints(work.store)[10:30])
        left = {str(checkpoint.epoch) for checkpoint in checkpoints(work.store)}
        finish(work.fs, steps)
        assert {*cached(work)} < left
        # The first one after the gap is counted against the last one before it.
        assert counted(work) == [Counts(1, 0, 0), *[Counts(0, 1, 0)] * 39]


def test_a_checkpoint_that_takes_long_to_count_is_left_to_those_who_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with edits(tmp_path / "store") as work:
        plant(work)
        for number in range(500):
            work.put(f"d/{number}", b"%d" % number)
        work.save()
        monkeypatch.setattr(compare, "_COUNTING_S", 0.0)
        too_large: set[Epoch] = set()
        finish(work.fs, compare.counting_steps(work.fs, too_large))
        large = checkpoints(work.store)[-1].epoch
        assert large in too_large and str(large) not in cached(work)
        assert counted(work)[-1] == Counts(500, 0, 0)


def test_forgotten_counts_are_counted_again(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        plant(work)
        counted(work)
        compare.forget_counts(work.store)
        assert cached(work) == []
        assert len(counted(work)) == 3


def test_a_list_of_the_newest_reads_and_writes_the_counts_of_a_few(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        for number in range(2 * compare._SPAN):
            work.put("f", b"%d" % number)
            work.save()
        counted(work)
        names = {name for name, _ in work.store.metadata.walk(b"counts")}
        assert len(names) == 3
        before = dict(work.store.metadata.walk(b"counts"))
        work.put("f", b"more")
        work.save()
        compare.counts_of(work.fs, checkpoints(work.store)[-1:])
        after = dict(work.store.metadata.walk(b"counts"))
        assert len([name for name in after if after[name] != before.get(name)]) == 1


def test_counts_of_deleted_checkpoints_go_with_time(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        for number in range(compare._SPAN):
            work.put("f", b"%d" % number)
            work.save()
        counted(work)
        removal.delete(work.fs, checkpoints(work.store))
        for number in range(8):
            work.put("f", b"more %d" % number)
            work.save()
            counted(work)
        assert len(cached(work)) == 8


def test_what_was_counted_elsewhere_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with edits(tmp_path / "store") as work:
        plant(work)
        new: compare.NewCounts = {}
        expected = compare.counts_of(work.fs, checkpoints(work.store), new)
        compare.forget_counts(work.store)
        compare.keep_counts(work.fs, new, compare.times_forgotten(work.store))
        monkeypatch.setattr(compare, "_count_epoch", None)
        assert counted(work) == expected


def test_what_was_counted_before_history_was_changed_is_not_kept(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        plant(work)
        before = compare.times_forgotten(work.store)
        stale = {str(checkpoint.epoch): [0, 9, 9, 9] for checkpoint in checkpoints(work.store)}
        compare.forget_counts(work.store)
        compare.keep_counts(work.fs, stale, before)
        assert cached(work) == []
