"""The figures about upkeep: waits of a prober, the sizes of a day."""

from pathlib import Path

import pytest

from bench.outcome import Comparison, Figure
from bench.prober import Waits, percentile, probing
from bench.report import figure_verdict
from bench.upkeep import Verb, _day_found, _points, _waits_found


def _figures(found: object) -> dict[str, Figure]:
    return {each.name: each for each in found if isinstance(each, Figure)}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("share", "value"), [(0.5, 51.0), (0.99, 100.0), (0.0, 1.0)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], share) == value


def test_the_prober_tells_how_long_each_of_its_calls_took(tmp_path: Path) -> None:
    directory = tmp_path / "probed"
    with probing(directory) as waits:
        while len(list(directory.iterdir())) < 3:
            pass
    assert len(waits.seconds) >= 8
    assert all(seconds > 0 for seconds in waits.seconds)
    assert waits.longest == max(waits.seconds)


def test_a_prober_that_fails_is_no_result(tmp_path: Path) -> None:
    directory = tmp_path / "file"
    directory.touch()
    with pytest.raises(ValueError, match="Expecting value"), probing(directory):
        pass


def test_the_longest_wait_beside_a_check_is_held_to_a_mark() -> None:
    verb = Verb("check", "check", "check", {})
    found = list(_waits_found(verb, Waits([0.001]), Waits([0.001, 0.2]), "note"))
    assert figure_verdict(_figures(found)["waits-check"]) == "above"
    comparison = next(each for each in found if isinstance(each, Comparison))
    assert comparison.columns["longest beside"] == [200.0]


def test_the_slowest_calls_beside_a_delete_are_held_to_twice_those_without() -> None:
    verb = Verb("delete", "delete", "delete", {})
    found = _figures(_waits_found(verb, Waits([0.001]), Waits([0.003]), "note"))
    assert found["waits-delete"].value == pytest.approx(3.0)
    assert figure_verdict(found["waits-delete"]) == "above"


def test_a_store_is_compared_with_compact_and_with_git() -> None:
    sizes = {
        "after 10 tool calls": {"ckptfs": 9.0, "git": 5.0},
        "after a minute of idleness": {"ckptfs": 3.0},
        "after compact, after gc": {"ckptfs": 2.0, "git": 4.0},
    }
    found = _figures(_day_found(sizes))
    assert (found["day"].value, found["day-git"].value) == (1.5, 0.75)
    assert figure_verdict(found["day"]) == "above"


def test_a_day_is_looked_at_at_even_points_and_at_its_end() -> None:
    assert _points(60, 6) == [10, 20, 30, 40, 50, 60]
    assert _points(3, 6) == [1, 2, 3]
