"""The figures about several clients at once."""

from pathlib import Path

from bench.clients import _clients_found, _crowd, _crowded_found, _for_a_while, _together
from bench.outcome import Comparison, Figure
from bench.report import figure_verdict


def _figures(found: object) -> dict[str, Figure]:
    return {each.name: each for each in found if isinstance(each, Figure)}  # type: ignore[attr-defined]


def test_clients_are_compared_with_one_client_of_the_same_repetition() -> None:
    ours = {1: [10.0, 100.0, 10.0], 2: [20.0, 100.0, 30.0], 4: [1.0] * 3, 8: [10.0, 100.0, 10.0]}
    found = _figures(_clients_found({"disk": ours, "ckptfs": ours, "floor": ours}))
    assert found["clients-2"].value == 2.0
    assert found["clients-2"].note == "disk 2.00, floor 2.00"
    assert [figure_verdict(found[name]) for name in ("clients-2", "clients-8")] == ["OK", "below"]


def test_every_client_makes_its_files(tmp_path: Path) -> None:
    assert _together(tmp_path / "root", 3, 7) > 0
    assert len(list((tmp_path / "root").glob("*/*"))) == 21


def test_on_a_crowded_machine_all_that_clients_made_counts(tmp_path: Path) -> None:
    with _crowd(2):
        rate = _for_a_while(tmp_path / "root", 2, 0.2)
    made = [len(list((tmp_path / "root" / name).iterdir())) for name in ("0", "1")]
    assert min(made) > 0
    assert 0 < rate <= sum(made) / 0.2


def test_creates_on_a_crowded_machine_are_compared_with_the_disk() -> None:
    rates = {"disk": {1: [10.0], 4: [20.0]}, "ckptfs": {1: [5.0], 4: [5.0]}}
    found = list(_crowded_found(rates))
    assert {name: each.value for name, each in _figures(found).items()} == {
        "crowded-1": 0.5,
        "crowded-4": 0.25,
    }
    assert sum(isinstance(each, Comparison) for each in found) == 2
