import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from bench import compare
from bench.kit import Kit, NotToBeHad
from bench.outcome import Comparison, Outcome, Sample
from bench.registry import WorkDirectory, Workload
from bench.scale import QUICK
from bench.stats import Spread


def _steps(_place: WorkDirectory) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("low", "middle", "high", "word"),
    [
        (1.10, 1.2, 1.3, "slower"),
        (1.02, 1.2, 1.3, ""),
        (0.70, 0.8, 0.9, "faster"),
        (0.70, 0.8, 0.99, ""),
    ],
)
def test_only_what_every_repetition_shows_is_a_change(
    low: float, middle: float, high: float, word: str
) -> None:
    assert compare.change(Spread(middle, low, high)) == word


def test_without_a_repetition_there_is_no_change() -> None:
    assert compare.change(None) == ""


def test_a_change_is_a_percentage() -> None:
    assert compare.percent_text(Spread(1.2, 1.0, 1.4)) == "+20 %"
    assert compare.percent_text(Spread(0.5, 0.5, 0.5)) == "-50 %"


def test_the_table_names_the_revision_and_the_change() -> None:
    row = Workload("untar", "untar", "tree", _steps, 2.5, False, ())
    outcome = Outcome(("v1 (abc)", "ckptfs"), (row,))
    for repetition in range(2):
        outcome.add("untar", "v1 (abc)", Sample(repetition, 1.0, 0.0))
        outcome.add("untar", "ckptfs", Sample(repetition, 2.0, 0.0))
    columns = {"v1 (abc)": [0.001] * 8, "ckptfs": [0.09, *[0.0005] * 7]}
    outcome.comparisons = [Comparison("save", "verbs", "save", "s", columns)]
    out = io.StringIO()
    compare.print_changes(Console(file=out, width=160), outcome, QUICK, {})
    assert "beside v1 (abc)" in out.getvalue()
    rows = {
        cells[0]: cells[1:6]
        for line in out.getvalue().splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│").split("│")]) > 5
    }
    assert rows["untar"] == ["1.00 s", "2.00 s", "+100 %", "2.00 to 2.00", "slower"]
    assert rows["save"] == ["1 ms", "500 µs", "-50 %", "0.50 to 0.50", "faster"]


def test_a_revision_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotToBeHad, match="no revision no-such-revision"):
        compare.build(Kit(tmp_path, False, lambda _message: None), "no-such-revision")
    assert list(tmp_path.iterdir()) == []


def test_the_note_tells_how_many_checkpoints_a_row_had_at_least() -> None:
    row = Workload("untar", "untar", "tree", _steps, 2.5, False, ())
    outcome = Outcome(("ckptfs --auto off", "ckptfs"), (row,))
    assert compare.taken_text(outcome, row) == ""
    outcome.add("untar", "ckptfs", Sample(0, 1.0, 0.0, checkpoints=3))
    assert compare.taken_text(outcome, row) == "3 checkpoints taken"
    outcome.add("untar", "ckptfs", Sample(1, 1.0, 0.0, checkpoints=1))
    assert compare.taken_text(outcome, row) == "1 checkpoint taken"


def test_a_comparison_tells_of_rows_that_were_left_out() -> None:
    outcome = Outcome(("ckptfs --auto off", "ckptfs"), ())
    outcome.skipped = {"npm-ci": "npm: there is no npm here"}
    out = io.StringIO()
    compare.print_changes(Console(file=out, width=160), outcome, QUICK, {})
    assert "without npm-ci: npm: there is no npm here" in out.getvalue()
