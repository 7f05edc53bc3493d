"""The figures about upkeep: waits of a prober, clients at once, the sizes of a day."""

from pathlib import Path

import pytest

from bench.outcome import Comparison, Figure
from bench.prober import Waits, percentile, probing
from bench.report import figure_verdict
from bench.upkeep import Verb, _clients_found, _day_found, _points, _together, _waits_found


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


def test_clients_are_compared_with_one_client_of_the_same_repetition() -> None:
    ours = {1: [10.0, 100.0, 10.0], 2: [20.0, 100.0, 30.0], 4: [1.0] * 3, 8: [10.0, 100.0, 10.0]}
    found = _figures(_clients_found({"ckptfs": ours, "disk": ours}))
    assert found["clients-2"].value == 2.0
    assert [figure_verdict(found[name]) for name in ("clients-2", "clients-8")] == ["OK", "below"]


def test_every_client_makes_its_files(tmp_path: Path) -> None:
    assert _together(tmp_path / "root", 3, 7) > 0
    assert len(list((tmp_path / "root").glob("*/*"))) == 21


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
