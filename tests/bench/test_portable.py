"""The figures of the portable path: ratios of rounds, held to a mark."""

from bench.outcome import Comparison, Figure
from bench.portable import PORTABLE, _found
from bench.report import figure_verdict


def test_a_figure_is_the_median_of_the_ratios_of_each_round() -> None:
    rows = ("untar", "grep", "git-status", "rm")
    times = {row: {"compiled": [1.0, 2.0, 4.0], "portable": [2.0, 2.0, 16.0]} for row in rows}
    found = list(_found(times, 1_000))
    figures = [each for each in found if isinstance(each, Figure)]
    assert [each.value for each in figures] == [2.0] * 4
    assert figures[0].note == "1.00 to 4.00"
    assert {figure_verdict(each) for each in figures} == {"OK"}
    assert len([each for each in found if isinstance(each, Comparison)]) == 4


def test_only_the_portable_path_has_the_compiled_server_switched_off() -> None:
    assert dict(PORTABLE.environment) == {"CKPTFS_SERVER": "off"}
