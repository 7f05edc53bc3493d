"""The search of `ckptfs bisect`, on rows of which the answer is known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from ckptfs.bisection import BAD, GOOD, SKIPPED, first_bad


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_the_first_bad_one_is_found_in_few_rounds(at_once: int) -> None:
    for count in range(2, 60):
        for first in range(1, count):
            rounds = 0

            def test(places: Sequence[int], first: int = first) -> dict[int, str]:
                nonlocal rounds
                rounds += 1
                assert len(set(places)) == len(places) <= at_once
                return {place: BAD if place >= first else GOOD for place in places}

            assert first_bad(count, test, at_once=at_once).suspects == [first]
            assert rounds <= math.ceil(math.log(count, at_once + 1)) + 1


def test_those_that_cannot_be_tested_are_passed_over() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        count = rng.randint(2, 40)
        first = rng.randint(1, count - 1)
        broken = {rng.randint(1, count) for _ in range(rng.randint(0, 10))} - {count - 1}

        def test(
            places: Sequence[int], first: int = first, broken: set[int] = broken
        ) -> dict[int, str]:
            verdicts = {place: BAD if place >= first else GOOD for place in places}
            return verdicts | {place: SKIPPED for place in places if place in broken}

        found = first_bad(count, test, at_once=rng.choice([1, 2]))
        assert first in found.suspects
        assert set(found.suspects[:-1]) <= broken
