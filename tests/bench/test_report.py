import io
import json
from collections.abc import Iterator

import pytest
from rich.console import Console

from bench.outcome import Comparison, Figure, Outcome, Sample
from bench.registry import WorkDirectory, Workload
from bench.report import as_json, number_text, print_report, seconds_text
from bench.scale import QUICK


def _steps(_place: WorkDirectory) -> Iterator[None]:
    yield


UNTAR = Workload("untar", "untar {scale.tree_files:,} files", "tree", _steps, 2.5, False, ())
STAT = Workload("stat-cold", "stat, cold", "micro", _steps, None, True, ())


def _outcome() -> Outcome:
    outcome = Outcome(("ext4", "ckptfs"), (UNTAR, STAT))
    for repetition, (plain, ours) in enumerate([(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)]):
        outcome.add("untar", "ext4", Sample(repetition, plain, 0.0))
        outcome.add("untar", "ckptfs", Sample(repetition, ours, 0.5, 30_000_000))
    return outcome


def _printed(outcome: Outcome) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=200), outcome, QUICK, {"kernel": "Linux [9]"})
    return out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000_012, "12 µs"),
        (0.0123, "12.3 ms"),
        (0.5, "500 ms"),
        (1.234, "1.23 s"),
        (61.0, "61.00 s"),
    ],
)
def test_seconds_are_written_in_a_fitting_unit(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(0.123_4, "0.123"), (15_234.6, "15,235"), (0, "0")])
def test_numbers_are_written_for_people(value: float, text: str) -> None:
    assert number_text(value) == text


def _row(text: str, start: str) -> list[str]:
    line = next(each for each in text.splitlines() if start in each)
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_a_row_has_medians_ratio_spread_mark_and_verdict() -> None:
    row = _row(_printed(_outcome()), "untar 2,000 files")
    assert row[1:] == [
        *("1.00 s", "3.00 s", "500 ms", "30 MB", "3.00", "2.00 to 4.00", "2.5", "above", "")
    ]


def test_facts_stand_on_top_as_they_are() -> None:
    assert _printed(_outcome()).splitlines()[0] == "kernel:      Linux [9]"


def test_only_repetitions_that_both_finished_are_compared() -> None:
    outcome = _outcome()
    outcome.add("stat-cold", "ext4", Sample(0, 1.0, 0.0))
    outcome.add("stat-cold", "ext4", Sample(1, 2.0, 0.0))
    outcome.add("stat-cold", "ckptfs", Sample(1, 3.0, 0.0))
    ratio = outcome.ratio("stat-cold", "ckptfs")
    assert ratio is not None
    assert ratio.median == 1.5


def test_a_failed_row_says_so_and_why() -> None:
    outcome = _outcome()
    outcome.failures["stat-cold", "ckptfs"] = "OSError: [Errno 5] no luck"
    assert outcome.failed
    assert _row(_printed(outcome), "stat, cold")[-2:] == [
        "failed",
        "ckptfs: OSError: [Errno 5] no luck",
    ]


def test_notes_are_shown_once() -> None:
    outcome = _outcome()
    for repetition in range(3):
        outcome.add("stat-cold", "ext4", Sample(repetition, 1.0, 0.0, 0, ("not cold",)))
    assert _row(_printed(outcome), "stat, cold")[-1] == "not cold"


def test_figures_are_judged_by_their_kind_of_mark() -> None:
    outcome = _outcome()
    outcome.figures = [
        Figure("import", "import", 14_000, "files/s", 15_000, True),
        Figure("idle", "idle CPU", 0.1, "%", 0.5),
    ]
    text = _printed(outcome)
    assert _row(text, "import")[1:4] == ["14,000 files/s", "at least 15,000", "below"]
    assert _row(text, "idle CPU")[1:4] == ["0.1 %", "at most 0.5", "OK"]


def test_json_has_every_sample() -> None:
    data = json.loads(json.dumps(as_json(_outcome(), QUICK, {"kernel": "9"})))
    row = data["rows"][0]["contestants"]["ckptfs"]
    assert [each["seconds"] for each in row["samples"]] == [2.0, 3.0, 4.0]
    assert row["ratio"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert row["verdict"] == "above"
    assert data["rows"][1]["contestants"]["ckptfs"]["ratio"] is None


def test_rivals_have_a_column_with_their_ratio() -> None:
    outcome = _outcome()
    outcome.contestants = ("ext4", "ckptfs", "bindfs")
    outcome.add("untar", "bindfs", Sample(0, 6.0, 0.0))
    outcome.aside = Outcome(("ext4", "juicefs"), (UNTAR,))
    outcome.aside.add("untar", "ext4", Sample(0, 0.1, 0.0))
    outcome.aside.add("untar", "juicefs", Sample(0, 4.0, 0.0))
    assert _row(_printed(outcome), "untar 2,000 files")[-3:] == ["6.00", "40.00", ""]


def test_a_rival_may_fail_without_failing_the_run() -> None:
    outcome = _outcome()
    outcome.contestants = ("ext4", "ckptfs", "bindfs")
    outcome.failures["untar", "bindfs"] = "no luck"
    assert not outcome.failed


def test_comparisons_stand_side_by_side() -> None:
    outcome = _outcome()
    columns = {"ckptfs": [0.001, 0.003], "git": [0.2]}
    outcome.comparisons = [
        Comparison("save", "History", "save", "s", columns),
        Comparison("size", "History", "size", "MB", {"ckptfs": [1.5]}),
    ]
    assert _row(_printed(outcome), "│ save")[1:] == ["2 ms", "200 ms", ""]
    assert _row(_printed(outcome), "│ size")[1:] == ["1.5 MB", "", ""]


def test_who_was_left_out_is_named() -> None:
    outcome = _outcome()
    outcome.skipped["borg"] = "not installed, and installing it needs root"
    assert "without borg: not installed" in _printed(outcome)
