"""The harness on two plain directories, with workloads of its own."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import quiet, session
from bench.contestants import PlainDirectory
from bench.kit import NotToBeHad
from bench.outcome import Outcome
from bench.registry import WorkDirectory, Workload
from bench.runner import Run, run_workloads
from bench.scale import QUICK

SCALE = replace(QUICK, repeats=2)


def _write(place: WorkDirectory) -> Iterator[None]:
    assert not (place / "file").exists(), "every repetition has a fresh directory"
    yield
    (place / "file").write_text("written")


def _read(place: WorkDirectory) -> Iterator[None]:
    yield
    (place / "file").read_text()


def _fail_on_b(place: WorkDirectory) -> Iterator[None]:
    yield
    if place.root.is_relative_to(place.root.parents[1] / "b"):
        raise OSError("no luck")


def _workload(name: str, steps: object, *needs: str) -> Workload:
    return Workload(name, name, "scene", steps, None, False, needs)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    # A sync of the whole machine has no place in a unit test.
    monkeypatch.setattr(quiet, "settle", lambda _everyone: [])
    pair = [PlainDirectory("a", tmp_path / "a"), PlainDirectory("b", tmp_path / "b")]
    for each in pair:
        each.start()
    return Run(pair, SCALE, {}, Outcome(("a", "b"), ()), lambda _message: None)


def test_every_workload_is_sampled_in_every_repetition_by_everyone(run: Run) -> None:
    run_workloads(run, [_workload("write", _write), _workload("read", _read, "write")])
    assert not run.outcome.failures
    for key in (("write", "a"), ("write", "b"), ("read", "a"), ("read", "b")):
        assert [each.repetition for each in run.outcome.samples[key]] == [0, 1]
    assert all(not list(each.root.iterdir()) for each in run.contestants)


def test_scenes_that_take_long_are_repeated_less(run: Run) -> None:
    run.heavy_scenes = frozenset({"scene"})
    run.scale = replace(SCALE, heavy_repeats=1)
    run_workloads(run, [_workload("write", _write)])
    assert len(run.outcome.of("write", "a")) == 1


def test_rivals_sit_out_the_later_repetitions(run: Run, tmp_path: Path) -> None:
    rival = PlainDirectory("c", tmp_path / "c")
    rival.start()
    run.contestants = [*run.contestants, rival]
    run_workloads(run, [_workload("write", _write)])
    assert [len(run.outcome.of("write", each)) for each in "abc"] == [2, 2, 1]


class _Fragile(PlainDirectory):
    """Starts once, and never again after it was stopped."""

    stopped = False

    def start(self) -> None:
        if self.stopped:
            raise NotToBeHad("worn out")
        super().start()

    def stop(self) -> None:
        self.stopped = True

    def is_healthy(self) -> bool:
        return not (self.root / "scene-0" / "file").exists()


def _write_and_fail_on_c(place: WorkDirectory) -> Iterator[None]:
    yield
    (place / "file").write_text("written")
    if place.root.parent.name == "c":
        raise OSError("no luck")


def test_a_rival_that_does_not_come_back_is_left_out(run: Run, tmp_path: Path) -> None:
    rival = _Fragile("c", tmp_path / "c")
    rival.start()
    run.contestants = [*run.contestants, rival]
    run.scale = replace(SCALE, rival_repeats=2)
    run_workloads(run, [_workload("fragile", _write_and_fail_on_c)])
    assert run.outcome.skipped == {"c": "worn out"}
    assert len(run.outcome.of("fragile", "b")) == 2


def test_a_failure_stops_only_what_needs_it(run: Run) -> None:
    workloads = [
        _workload("flaky", _fail_on_b),
        _workload("after", _fail_on_b, "flaky"),
        _workload("write", _write),
    ]
    run_workloads(run, workloads)
    assert run.outcome.failures == {
        ("flaky", "b"): "OSError: no luck",
        ("after", "b"): "not run: it needs flaky",
    }
    assert len(run.outcome.of("flaky", "a")) == 2
    assert len(run.outcome.of("write", "b")) == 2


def test_a_run_that_was_killed_is_swept(tmp_path: Path) -> None:
    (tmp_path / "run-999999999" / "plain").mkdir(parents=True)
    (tmp_path / "run-1").mkdir()
    (tmp_path / "results").mkdir()
    session.sweep(tmp_path, lambda _message: None)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["results", "run-1"]
