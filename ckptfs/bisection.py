"""Searching for the first bad one of a row whose beginning is good and whose end is bad.

Knows nothing of what is tested: it is given a function that tests some of the row and says of each
whether it is good, bad or could not be tested. Several are tested at a time if that is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

GOOD, BAD, SKIPPED = "good", "bad", "skipped"

#: Tests some places of the row, side by side, and returns the verdict of each.
Test = Callable[[Sequence[int]], dict[int, str]]


class Found(NamedTuple):
    """The first bad one is one of ``suspects``: several only if those between could not be tested.
    ``tested`` are the verdicts that were asked for."""

    suspects: list[int]
    tested: dict[int, str]


def first_bad(count: int, test: Test, *, at_once: int = 1) -> Found:
    """Search a row of so many, of which the first is good and the last is bad."""
    good, bad = 0, count - 1
    verdicts: dict[int, str] = {}
    while True:
        skipped = {place for place, verdict in verdicts.items() if verdict == SKIPPED}
        places = _next_places(good, bad, skipped, at_once)
        if not places:
            return Found(list(range(good + 1, bad + 1)), verdicts)
        verdicts.update(test(places))
        good = max([good, *_with(verdicts, GOOD, good, bad)])
        bad = min([bad, *(place for place in _with(verdicts, BAD, good, bad))])


def _with(verdicts: dict[int, str], wanted: str, good: int, bad: int) -> Iterable[int]:
    """The places between the ends with a verdict. A good one behind a bad one counts for nothing:
    what broke there was mended, and broke again."""
    first = min((place for place, each in verdicts.items() if each == BAD), default=bad)
    return [
        place
        for place, verdict in verdicts.items()
        if verdict == wanted and good < place < bad and (wanted == BAD or place < first)
    ]


def _next_places(good: int, bad: int, skipped: set[int], count: int) -> list[int]:
    """Places that cut what lies between the ends into equal parts, past those that cannot be
    tested."""
    free = [place for place in range(good + 1, bad) if place not in skipped]
    count = min(count, len(free))
    return [free[(number * len(free)) // (count + 1)] for number in range(1, count + 1)]
