"""From timings to a verdict. Pure: numbers in, numbers out."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median


@dataclass(frozen=True)
class Spread:
    """The middle of what was seen, and its ends."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def paired_ratio(seconds: Sequence[float], baseline: Sequence[float]) -> Spread:
    """The ratio of each repetition to the baseline's of the same repetition.

    The two were taken seconds apart, so what disturbs the machine for a while disturbs both
    and drops out; a ratio of two medians would keep it.
    """
    if len(seconds) != len(baseline) or not seconds:
        raise ValueError("a ratio needs as many repetitions of one side as of the other")
    return spread([mine / theirs for mine, theirs in zip(seconds, baseline, strict=True)])


def mean_ratio(ratios: Sequence[float]) -> float:
    """The mean of ratios: half and double make one."""
    return geometric_mean(ratios)


def verdict_at_most(value: float, mark: float | None) -> str:
    if mark is None:
        return ""
    return "OK" if value <= mark else "above"


def verdict_at_least(value: float, mark: float | None) -> str:
    if mark is None:
        return ""
    return "OK" if value >= mark else "below"
