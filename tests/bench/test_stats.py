import pytest

from bench.stats import Spread, mean_ratio, paired_ratio, spread, verdict_at_least, verdict_at_most


def test_spread_is_the_median_and_both_ends() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_ratio_is_taken_within_each_repetition() -> None:
    # The second repetition was slow for both: the ratio does not show it.
    assert paired_ratio([2.0, 20.0, 3.0], [1.0, 10.0, 1.0]) == Spread(2.0, 2.0, 3.0)


def test_ratio_refuses_sides_of_different_length() -> None:
    with pytest.raises(ValueError, match="as many repetitions"):
        paired_ratio([1.0, 2.0], [1.0])


def test_ratio_refuses_nothing() -> None:
    with pytest.raises(ValueError, match="as many repetitions"):
        paired_ratio([], [])


@pytest.mark.parametrize(
    ("value", "mark", "word"), [(1.5, 1.5, "OK"), (1.51, 1.5, "above"), (9.0, None, "")]
)
def test_a_verdict_of_at_most_follows_the_bounds(
    value: float, mark: float | None, word: str
) -> None:
    assert verdict_at_most(value, mark) == word


@pytest.mark.parametrize(
    ("value", "mark", "word"), [(250.0, 250.0, "OK"), (249.0, 250.0, "below"), (0.0, None, "")]
)
def test_a_verdict_of_at_least_follows_the_bounds(
    value: float, mark: float | None, word: str
) -> None:
    assert verdict_at_least(value, mark) == word


def test_half_and_double_make_one() -> None:
    assert mean_ratio([0.5, 2.0]) == pytest.approx(1.0)
