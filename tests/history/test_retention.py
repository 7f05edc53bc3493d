"""The plan of what expires. Ages are hours before now; numbers count up with time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs import history
from ckptfs.history import Checkpoint, expiry
from ckptfs.history.checkpoints import MOMENT
from ckptfs.history.retention import (
    Decision,
    Figures,
    Insight,
    MinFree,
    RetentionPolicy,
    Verdicts,
    candidates,
    judge,
)
from ckptfs.interrupts import Steps
from ckptfs.model import Epoch
from tests.history.edits import edits

SECOND_NS = 1_000_000_000
HOUR_NS = 3_600 * SECOND_NS
MIB = 1 << 20
#: Half past an hour, at noon.
NOW_NS = 19_700 * 24 * HOUR_NS + 12 * HOUR_NS + HOUR_NS // 2


def made(*ages_h: float, **fields: Any) -> list[Checkpoint]:
    oldest_first = sorted(ages_h, reverse=True)
    return [
        Checkpoint(
            **{
                "id": number,
                "epoch": Epoch(number + 1),
                "kind": "auto",
                "message": "",
                "time_ns": NOW_NS - int(age * HOUR_NS),
                **fields,
            }
        )
        for number, age in enumerate(oldest_first)
    ]


def kept(decisions: list[Decision]) -> list[int]:
    return sorted(decision.id for decision in decisions if decision.keep)


def decide(checkpoints: list[Checkpoint], **limits: Any) -> list[int]:
    """Which stay, where none becomes a moment unless that is asked for."""
    return kept(verdicts_on(checkpoints, **limits).all())


def verdicts_on(checkpoints: list[Checkpoint], **limits: Any) -> Verdicts:
    """The same with all that is known. What a checkpoint frees are its ``bytes``."""
    figures = Figures(**{key: limits.pop(key) for key in Figures._fields if key in limits})
    asked = {key: limits.pop(key) for key in Insight._fields if key in limits}
    asked |= {key: _in_steps(asked[key]) for key in ("weigh", "frees") if key in asked}
    if "min_free_bytes" in limits:
        limits["min_free"] = MinFree(limits.pop("min_free_bytes"), None)
    policy = RetentionPolicy(**{"moments_max": 0} | limits)
    return judge(checkpoints, policy, NOW_NS, figures, insight=Insight(**asked))


def _in_steps(answer: Callable[..., int]) -> Callable[..., Steps[int]]:
    def steps(*asked: Any) -> Steps[int]:
        yield from ()
        return answer(*asked)

    return steps


def by_age(*groups: list[Checkpoint]) -> list[Checkpoint]:
    """All of these, with numbers in the order of their times."""
    ordered = sorted((item for group in groups for item in group), key=attrgetter("time_ns"))
    return [replace(item, id=number) for number, item in enumerate(ordered)]


def test_without_checkpoints_there_is_nothing_to_decide() -> None:
    assert judge([], RetentionPolicy(), NOW_NS).all() == []


def test_all_of_the_last_hour_stay() -> None:
    assert decide(made(0, 0.1, 0.2, 0.9)) == [0, 1, 2, 3]


def test_of_older_ones_the_newest_of_each_hour_stays() -> None:
    # Now is 12:30. At 10:10, 10:20 and 09:50, and one of just now.
    assert decide(made(0, 2 + 10 / 60, 2 + 20 / 60, 2 + 40 / 60)) == [0, 2, 3]


def test_of_still_older_ones_the_newest_of_each_day_stays() -> None:
    assert decide(made(0, 30, 31, 32, 54)) == [0, 3, 4]


def test_of_the_oldest_none_stays() -> None:
    assert decide(made(0, 24 * 29, 24 * 31, 24 * 400)) == [2, 3]


def test_the_newest_stays_whatever_its_age() -> None:
    assert decide(made(24 * 400, 24 * 401)) == [1]


def test_saved_tagged_and_pinned_stay() -> None:
    for fields in ({"kind": "manual"}, {"tag": "t"}, {"pinned": True}):
        old = made(24 * 400, 24 * 401, 24 * 402, bytes=MIB, **fields)
        assert decide(old, max_checkpoints=1, max_bytes=1, store_bytes=2) == [0, 1, 2]


def test_in_an_hour_one_that_was_asked_for_is_preferred_to_automatic_ones() -> None:
    # At 10:00, 10:10 and 10:20 of a clock that shows 12:30, and one of just now.
    five = made(0, 2.5, 2.5 - 10 / 60, 2.5 - 20 / 60, 9)
    five[1] = dataclasses.replace(five[1], kind="mark")
    five[2] = dataclasses.replace(five[2], kind="mark")
    decisions = {item.id: item for item in verdicts_on(five).all()}
    assert kept(list(decisions.values())) == [0, 2, 4]
    assert decisions[2].reason == "the newest mark of its hour"
    assert decisions[3].reason == "a newer or marked one of that hour stays"


def test_one_that_was_asked_for_expires_in_the_end() -> None:
    assert decide(made(0, 24 * 31, kind="mark")) == [1]


def test_what_undo_needs_stays() -> None:
    decisions = judge(made(0, 900, 901), RetentionPolicy(), NOW_NS, undo=[0]).all()
    assert decisions == [
        Decision(2, True, "the newest"),
        Decision(1, False, "older than 30 days"),
        Decision(0, True, "undo goes there"),
    ]


def test_of_too_many_the_oldest_go_but_not_the_first() -> None:
    assert decide(made(0, 5, 30, 54, 80), max_checkpoints=3) == [0, 3, 4]
    assert decide(made(0, 5, 30, 54, 24 * 31), max_checkpoints=3) == [2, 3, 4]
    assert decide(made(0, 5, 30, 54), max_checkpoints=1) == [3], "a list of one is the newest"


def test_a_busy_hour_does_not_push_out_what_is_older() -> None:
    many = made(*(number / 1000 for number in range(300)), 5, 30, 54)
    stay = decide(many, max_checkpoints=100)
    assert len(stay) == 100
    assert stay[:3] == [0, 1, 2]


def test_a_busy_hour_is_thinned_and_not_cut_off() -> None:
    """The older, the further apart; the first of all and the newest stay."""
    busy = made(*(number / 2000 for number in range(1800)))
    stay = decide(busy, max_checkpoints=100)
    assert len(stay) == 100
    assert (stay[0], stay[-1]) == (0, 1799)
    ages = [1799 - number for number in stay]
    assert all(older - newer <= 1 + older // 8 for older, newer in pairwise(ages))


def test_what_stands_alone_outlives_what_comes_in_bursts() -> None:
    """A checkpoint before something was deleted, and then a hundred commands in a row."""
    alone, burst = [0.1, 0.05], [0.01 - number / 100_000 for number in range(300)]
    assert decide(made(*alone, *burst), max_checkpoints=100)[:2] == [0, 1]


def test_what_is_precious_outlives_its_neighbours() -> None:
    busy = made(*(number / 2000 for number in range(1800)))
    precious = {900, 1000, 1500}
    stay = decide(busy, max_checkpoints=100, is_precious=lambda item: item.id in precious)
    assert len(stay) == 100
    assert precious <= set(stay)


# -- limits of bytes -------------------------------------------------------------------------------


def test_over_the_limit_of_the_store_the_oldest_go_until_it_is_enough() -> None:
    nine = made(0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, bytes=MIB)
    assert decide(nine, max_bytes=100, store_bytes=100 + 3 * MIB) == [0, 4, 5, 6, 7, 8]
    assert decide(nine, max_bytes=100, store_bytes=100) == list(range(9))


def test_over_the_limit_of_the_store_goes_what_can_if_that_is_not_enough() -> None:
    six = made(0, 0.1, 0.2, 0.3, 0.4, 0.5, bytes=MIB)
    six[3] = replace(six[3], bytes=100)
    stay = decide(six, max_bytes=1, store_bytes=1 << 40)
    assert stay == [0, 1, 2, 3, 4, 5], "what is a millionth of it helps nobody"
    assert decide(six, max_bytes=1, store_bytes=100 * MIB) == [3, 5]


#: Of a disk of 1 GiB a twentieth is 51 MiB.
SHORT = {"disk_bytes": 1 << 30, "free_bytes": 48 * MIB}


def test_where_the_disk_is_short_the_oldest_go_until_it_is_enough() -> None:
    assert decide(made(0, 2, 3, 4, 5, 6, bytes=MIB), **SHORT) == [0, 5]
    assert decide(made(0, 2, 3, 4, 5, 6, bytes=2 * MIB), **SHORT) == [0, 3, 4, 5]


def test_a_small_disk_that_is_nearly_empty_is_not_short() -> None:
    all_of_them = made(0, 2, 3, 4, 5, 6, bytes=MIB)
    assert len(decide(all_of_them, disk_bytes=300 * MIB, free_bytes=250 * MIB)) == 6
    assert len(decide(all_of_them, disk_bytes=300 * MIB, free_bytes=14 * MIB)) == 5


def test_nothing_goes_for_the_disk_that_is_younger_than_keep_all() -> None:
    young = made(0, 0.1, 0.5, 0.9, bytes=100 * MIB)
    moments = made(0.2, 0.6, kind="moment", bytes=100 * MIB)
    both = by_age(young, moments)
    assert decide(both, moments_max=9, **SHORT) == list(range(6))
    assert len(decide(both, moments_max=9, keep_all_ns=0, **SHORT)) == 5


def test_nothing_goes_where_all_that_may_would_not_be_enough() -> None:
    little = made(0, 2, 3, 4, 5, bytes=MIB // 2)
    verdicts = verdicts_on(little, **SHORT)
    assert len(kept(verdicts.all())) == 5
    assert verdicts.shortage is not None and not verdicts.shortage.expiring
    assert len(decide(little, disk_bytes=1 << 30, free_bytes=50 * MIB)) == 2


def test_what_holds_nothing_does_not_go_for_space() -> None:
    five = made(0, 2, 3, 4, 5, bytes=100)
    five[2] = replace(five[2], bytes=10 * MIB)
    assert decide(five, **SHORT) == [0, 1, 3, 4]


def test_the_newest_state_before_a_deletion_stays() -> None:
    four = made(0, 2, 3, 4, bytes=5 * MIB)
    held = {2: 5 * MIB, 1: MIB}
    stay = decide(
        four,
        frees=lambda item, gone: held.get(item.id, 0),
        precedes_loss=lambda item: item.id in held,
        **SHORT,
    )
    assert stay == [0, 1, 2, 3]


def test_others_who_fill_the_disk_do_not_get_all_of_history_bit_by_bit() -> None:
    left = made(0, *range(2, 200), bytes=2 * MIB)
    given = 0
    for _ in range(100):
        verdicts = verdicts_on(left, max_checkpoints=1000, given_bytes=given, **SHORT)
        if verdicts.shortage is not None and verdicts.shortage.expiring:
            given += verdicts.shortage.expirable_bytes
        left = [item for item in left if verdicts.found[item.id][0]]
    assert given < 60 * MIB


@pytest.mark.parametrize(
    "min_free, disk, wanted",
    [
        (MinFree(), 300 * MIB, 15 * MIB),
        (MinFree(), 1 << 40, 512 * MIB),
        (MinFree(100, None), 1 << 40, 100),
        (MinFree(None, 10), 1000, 100),
        (MinFree(0, None), 1000, 0),
        (MinFree(None, None), 1000, 0),
    ],
)
def test_the_free_space_is_the_smaller_of_a_size_and_a_share(
    min_free: MinFree, disk: int, wanted: int
) -> None:
    assert min_free.of(disk) == wanted


# -- what counts, and the first of all -------------------------------------------------------------


def test_a_hundred_manual_saves_take_no_place_of_automatic_ones() -> None:
    automatic = made(*(number / 100 for number in range(50)))
    manual = made(*(number / 100 + 0.001 for number in range(150)), kind="manual")
    assert len(decide(by_age(automatic, manual))) == 200


KINDS = ("auto", "auto", "mark", "mount", "manual", "task")


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.booleans(), st.integers(0, 3000)), max_size=60),
    st.integers(2, 30),
)
def test_how_many_stay_does_not_depend_on_what_is_protected(
    drawn: list[tuple[str, bool, int]], limit: int
) -> None:
    """Any mix of saves: as many of those that may expire stay as if there were no others."""
    mixed = by_age(
        *(made(age / 3600, kind=kind, tag="t" if tagged else "") for kind, tagged, age in drawn)
    )
    may_expire = [item for item in mixed if not item.tag and item.kind not in ("manual", "task")]
    stay = set(decide(mixed, max_checkpoints=limit))
    assert {item.id for item in mixed} - {item.id for item in may_expire} <= stay
    assert len(stay & {item.id for item in may_expire}) == min(limit, len(may_expire))
    alone = decide(may_expire, max_checkpoints=limit)
    assert len(alone) == min(limit, len(may_expire))


@given(
    st.lists(st.floats(0, 24 * 29), min_size=1, max_size=60),
    st.integers(2, 30),
    st.booleans(),
)
def test_the_first_of_all_stays_as_long_as_the_days_do(
    ages: list[float], limit: int, demoting: bool
) -> None:
    everything = made(*ages)
    verdicts = verdicts_on(everything, max_checkpoints=limit, moments_max=9 if demoting else 0)
    assert verdicts.found[0][0] and 0 not in verdicts.demoted
    assert len(verdicts.found) - len(verdicts.expired()) - len(verdicts.demoted) <= limit


def test_the_first_of_all_goes_in_the_end() -> None:
    assert decide(made(0, 1, 24 * 31)) == [1, 2]


def test_the_first_of_all_goes_last_for_space() -> None:
    three = made(0, 2, 3, bytes=5 * MIB)
    assert decide(three, **SHORT) == [0, 2]
    assert decide(three[::2], **SHORT) == [2]


# -- clocks ----------------------------------------------------------------------------------------


def at(*times_h: float) -> list[Checkpoint]:
    """Automatic checkpoints with these ages, in the order of their numbers."""
    (one,) = made(0)
    return [
        replace(one, id=number, time_ns=NOW_NS - int(age * HOUR_NS))
        for number, age in enumerate(times_h)
    ]


def test_what_was_taken_while_the_clock_was_set_back_is_not_old() -> None:
    years = 24 * 365 * 50
    assert decide(at(0.6, 0.5, years, years - 0.1, years - 0.2, 0.1, 0)) == list(range(7))


def test_what_was_taken_while_the_clock_was_ahead_is_not_young_for_ever() -> None:
    ahead = at(24 * 40, 24 * 39, -24 * 900, -24 * 901, 24 * 38, 0)
    assert decide(ahead) == [5]


def test_a_clock_that_is_set_back_now_makes_nothing_expire() -> None:
    assert decide(at(-100, -90, -80, -70)) == [0, 1, 2, 3]


def test_a_busy_hour_is_thinned_evenly_also_where_the_clock_is_ahead() -> None:
    busy = at(24 * 3, *(-9 - number / 2000 for number in range(1800)))
    stay = decide(busy, max_checkpoints=100)
    assert len(stay) == 100
    assert all(older - newer <= 2 + older // 4 for older, newer in pairwise(1800 - n for n in stay))


def test_one_time_ahead_does_not_make_one_hour_of_all_that_came_after() -> None:
    days = [24.0 * day for day in range(20, 0, -1)]
    assert len(decide(at(24 * 21, 0.5, *days, 0))) == 23


@given(
    ages=st.lists(st.floats(0, 2000), max_size=60),
    pinned=st.sets(st.integers(0, 59)),
    limit=st.integers(0, 50),
)
def test_a_plan_carried_out_is_a_plan_fulfilled(
    ages: list[float], pinned: set[int], limit: int
) -> None:
    everything = [
        Checkpoint(**{**vars(checkpoint), "pinned": checkpoint.id in pinned})
        for checkpoint in made(*ages)
    ]
    policy = RetentionPolicy(max_checkpoints=limit, moments_max=0)
    decisions = judge(everything, policy, NOW_NS).all()
    assert [d.id for d in decisions] == sorted((c.id for c in everything), reverse=True)
    assert all(decision.reason for decision in decisions)
    stay = set(kept(decisions))
    assert {checkpoint.id for checkpoint in everything if checkpoint.pinned} <= stay
    assert len(stay) <= max(limit, 1) + len(pinned & {c.id for c in everything})
    left = [checkpoint for checkpoint in everything if checkpoint.id in stay]
    assert set(kept(judge(left, policy, NOW_NS).all())) == stay


# -- moments ---------------------------------------------------------------------------------------


def moments_at(*seconds_ago: float, **fields: Any) -> list[Checkpoint]:
    return made(*(age / 3600 for age in seconds_ago), kind="moment", **fields)


def renumbered(items: list[Checkpoint], by: int) -> list[Checkpoint]:
    return [replace(item, id=item.id + by) for item in items]


def test_moments_do_not_count_as_checkpoints() -> None:
    between = renumbered(moments_at(*range(1, 50)), 100)
    stay = decide([*made(0, 0.1, 0.2), *between], max_checkpoints=3, moments_max=100)
    assert stay == [0, 1, 2, *range(100, 149)]


def test_moments_go_when_they_are_old() -> None:
    assert decide(moments_at(10, 3500, 3700), moments_ns=HOUR_NS, moments_max=9) == [1, 2]


def test_of_too_many_moments_the_closest_together_go_first() -> None:
    found = moments_at(1, *(100 + number / 10 for number in range(50)), 500, 2000)
    stay = decide(found, moments_max=5)
    ages = {number: round((NOW_NS - found[number].time_ns) / 1e9) for number in stay}
    assert len(stay) == 5
    assert {1, 500} <= set(ages.values()), "what stands alone stays"


def test_of_too_many_bytes_moments_go_until_it_is_enough() -> None:
    found = moments_at(1, 2, 3, 4, 5, bytes=100)
    assert len(decide(found, moments_max=9, moment_bytes=250)) == 2
    assert 4 in decide(found, moments_max=9, moment_bytes=250), "the newest goes last"
    assert len(decide(found, moments_max=9, moment_bytes=0)) == 5, "0 is no limit"


def test_a_moment_that_was_named_stays() -> None:
    found = moments_at(1, 2, 90_000)
    found[0] = replace(found[0], tag="keep")
    found[1] = replace(found[1], pinned=True)
    assert decide(found, moments_max=0) == [0, 1]


def test_where_space_is_short_moments_go_before_anything_else() -> None:
    both = by_age(made(0, 5, 6, bytes=MIB), made(2, 3, 4, 7, kind="moment", bytes=MIB))
    short = {"free_bytes": 1, "min_free_bytes": MIB, "moments_max": 9}
    assert decide(both, **short) == [1, 2, 3, 4, 5, 6], "the oldest moment"
    steps = [item for item in both if item.kind == "auto"]
    assert decide(steps, **short) == [1, 6], "not the first"


def test_where_space_is_short_a_moment_goes_before_the_newest_of_its_path() -> None:
    lost = [
        replace(item, metadata={"lost": name})
        for item, name in zip(made(2, 3, 4, kind="moment", bytes=MIB), "abb", strict=True)
    ]
    assert decide(lost, free_bytes=1, min_free_bytes=MIB, moments_max=9) == [0, 2]


@given(st.lists(st.integers(0, 10_000), max_size=60, unique=True), st.integers(1, 20))
def test_moments_stay_within_their_number_and_spread(ages: list[int], most: int) -> None:
    found = moments_at(*ages)
    stay = decide(found, moments_max=most, moments_ns=100 * HOUR_NS)
    assert len(stay) == min(most, len(ages))
    if ages:
        assert found[-1].id in stay, "the newest"


def test_what_is_too_many_for_the_list_becomes_a_moment_while_it_is_young() -> None:
    found = made(0, 0.1, 0.2, 0.3, 30)
    verdicts = judge(found, RetentionPolicy(max_checkpoints=2, daily_ns=1), NOW_NS)
    assert sorted(verdicts.demoted) == [2, 3]
    assert [item.id for item in verdicts.expired()] == [0], "older than moments are kept"
    assert kept(verdicts.all()) == [1, 2, 3, 4]


def test_what_becomes_a_moment_is_carried_out(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        for number in range(6):
            work.put(f"file{number}", b"x")
            history.seal(work.fs, "auto", f"before: {number}", work.fs.clock())
        expiry.prune(work.fs, RetentionPolicy(max_checkpoints=2))
        every = history.checkpoints(work.fs.store)
        assert len(every) == 6 and len(history.without_moments(work.fs.store)) == 2
        assert {item.metadata.get("kind") for item in every if item.is_moment} == {"auto"}
        expiry.prune(work.fs, RetentionPolicy(max_checkpoints=2, moments_max=1))
        assert len(history.checkpoints(work.fs.store)) == 3


def test_a_file_that_is_rewritten_all_day_pushes_no_other_moment_out() -> None:
    noise = [replace(item, metadata={"lost": "cache.db"}) for item in moments_at(*range(1, 200))]
    (gem,) = moments_at(150.5, metadata={"lost": "src/app.py"})
    found = by_age(noise, [gem])
    stay = decide(found, moments_max=5)
    assert len(stay) == 5 and any(found[number].metadata == gem.metadata for number in stay)


def test_scratch_files_of_many_names_push_no_older_moment_out() -> None:
    noise = [
        replace(item, metadata={"lost": f"scratch{number}"})
        for number, item in enumerate(moments_at(*(1 + n / 50 for n in range(200))))
    ]
    (gem,) = moments_at(300, metadata={"lost": "src/app.py"})
    found = by_age(noise, [gem])
    stay = decide(found, moments_max=20)
    assert len(stay) == 20 and any(found[number].metadata == gem.metadata for number in stay)


def test_a_moment_that_holds_more_than_it_was_taken_for_stays() -> None:
    noise = [replace(item, metadata={"lost": "cache.db"}) for item in moments_at(*range(1, 200))]
    assert 77 in decide(noise, moments_max=5, holds_more=lambda moment: moment.id == 77)


def test_a_moment_after_much_was_written_pushes_no_other_out() -> None:
    """What was written is still there: the moment does not hold it alone."""
    light = moments_at(10, 20, 30, bytes=100)
    heavy = replace(moments_at(5)[0], id=9, bytes=3 << 30)
    held = {9: 0}
    stay = decide([*light, heavy], moments_max=9, weigh=lambda moment: held.get(moment.id, 9))
    assert stay == [0, 1, 2, 9]


def test_where_moments_hold_too_much_the_heaviest_goes() -> None:
    light = moments_at(10, 20, 30, bytes=100)
    heavy = replace(moments_at(5)[0], id=9, bytes=3 << 30)
    assert decide([*light, heavy], moments_max=9, moment_bytes=2 << 30) == [0, 1, 2]


# -- the same with fewer looked at -----------------------------------------------------------------

STEP_NS = st.sampled_from([1, 1, 2, 5, 60, 600]).map(lambda seconds: seconds * SECOND_NS)
KINDS = st.sampled_from(["auto", "auto", "auto", "manual", "mark", MOMENT, "tagged"])


@given(
    st.lists(st.tuples(KINDS, STEP_NS, st.booleans()), max_size=60),
    st.sampled_from([1, 2, 5, 10, 20]),
    st.sampled_from([60, 600, 3_600, 36_000]),
    st.sampled_from([0, 3, 1_000]),
)
def test_what_expires_is_the_same_if_only_what_may_is_judged(
    steps: list[tuple[str, int, bool]], most: int, keep_all_s: int, moments: int
) -> None:
    now_ns, every, precious = 10**18, [], set()
    for number, (kind, step_ns, is_precious) in enumerate(steps):
        now_ns += step_ns
        tag = "t" if kind == "tagged" else ""
        every.append(Checkpoint(number, Epoch(number + 1), kind, "", now_ns, tag))
        precious.update({number} if is_precious else ())
    policy = RetentionPolicy(most, keep_all_s * SECOND_NS, moments_max=moments)
    insight = Insight(is_precious=lambda item: item.id in precious)
    shown = [item for item in every if not item.is_moment]
    fewer = candidates([item for item in every if not item.protection], shown)
    whole = judge(every, policy, now_ns, insight=insight)
    quick = judge(fewer, policy, now_ns, insight=insight, among=shown)
    assert quick.expired() == whole.expired()
    assert quick.demoted == whole.demoted
