from collections.abc import Iterator

import pytest

from bench.marks import Mark, marks
from bench.outcome import Figure, Outcome, Sample
from bench.registry import MICRO, REAL, WorkDirectory, Workload


def _steps(_place: WorkDirectory) -> Iterator[None]:
    yield


def _workload(name: str, kind: str) -> Workload:
    return Workload(name, name, "scene", _steps, None, False, (), kind)


ROWS = (
    _workload("untar", REAL),
    _workload("make", REAL),
    _workload("sqlite-wal", REAL),
    _workload("stat-warm", MICRO),
    _workload("create", MICRO),
)
SECONDS = {
    "ext4": (1.0, 1.0, 1.0, 1.0, 1.0),
    "ckptfs": (4.0, 1.0, 1.0, 1.0, 3.0),
    "bindfs": (5.0, 2.0, 2.0, 4.0, 3.0),
    "floor": (3.0, 1.0, 0.1, 1.0, 2.0),
}


def _outcome(*contestants: str) -> Outcome:
    outcome = Outcome(contestants, ROWS)
    for name in contestants:
        for row, seconds in zip(ROWS, SECONDS[name], strict=True):
            own = 0 if name == "ext4" else 40_000_000
            outcome.add(row.name, name, Sample(0, seconds, 0.0, own))
    return outcome


def _by_title(outcome: Outcome) -> dict[str, Mark]:
    return {mark.title: mark for mark in marks(outcome)}


def test_real_rows_have_a_mean_and_a_slowest() -> None:
    found = _by_title(_outcome("ext4", "ckptfs"))
    mean = found["real workloads, geometric mean against ext4"]
    assert mean.value == pytest.approx(4 ** (1 / 3))
    assert mean.verdict == "missed"
    slowest = found["real workloads, the slowest against ext4"]
    assert (slowest.value, slowest.verdict, slowest.note) == (4.0, "missed", "untar 4.00")


def test_where_a_mark_is_missed_the_note_has_the_floor_of_rows_that_do_not_sync() -> None:
    found = _by_title(_outcome("ext4", "ckptfs", "floor"))
    mean = found["real workloads, geometric mean against ext4"]
    assert mean.note == "3 rows (floor 1.73 over the 2 that do not sync)"
    slowest = found["real workloads, the slowest against ext4"]
    assert slowest.note == "untar 4.00 (floor 3.00)"
    assert found["4 KiB synced writes, the slowest against ext4"].note == "sqlite-wal"


def test_of_a_row_that_syncs_the_floor_says_nothing() -> None:
    outcome = _outcome("ext4", "ckptfs", "floor")
    outcome.samples["sqlite-wal", "ckptfs"] = [Sample(0, 3.0, 0.0)]
    slowest = _by_title(outcome)["4 KiB synced writes, the slowest against ext4"]
    assert slowest.note == "sqlite-wal 3.00"


def test_single_calls_are_held_against_bindfs_where_it_took_part() -> None:
    title = "single calls, geometric mean against bindfs"
    assert title not in _by_title(_outcome("ext4", "ckptfs"))
    found = _by_title(_outcome("ext4", "ckptfs", "bindfs"))[title]
    assert found.value == pytest.approx(0.5)
    assert found.verdict == "OK"


def test_synced_and_warm_rows_have_marks_of_their_own() -> None:
    found = _by_title(_outcome("ext4", "ckptfs"))
    assert found["4 KiB synced writes, the slowest against ext4"].note == "sqlite-wal"
    assert found["warm reads and stats, the slowest against ext4"].verdict == "OK"
    assert found["memory of the daemon after a row, the most"].value == 40.0


def test_figures_with_marks_are_among_them() -> None:
    outcome = Outcome(("ext4", "ckptfs"), ())
    outcome.figures = [
        Figure("browse", "grep", 1.3, "times", 1.2),
        Figure("save", "save", 0.1, "times"),
    ]
    assert [(mark.title, mark.verdict) for mark in marks(outcome)] == [("grep", "missed")]
