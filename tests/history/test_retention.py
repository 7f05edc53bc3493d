"""The plan of what expires. Ages are hours before now; numbers count up with time."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ckptfs import history
from ckptfs.history import Checkpoint, upkeep
from ckptfs.history.retention import Decision, RetentionPolicy, judge
from ckptfs.model import Epoch
from tests.history.edits import edits

HOUR_NS = 3_600_000_000_000
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
    sizes = {key: limits.pop(key) for key in ("store_bytes", "free_bytes") if key in limits}
    limits = {"moments_max": 0} | limits
    return kept(judge(checkpoints, RetentionPolicy(**limits), NOW_NS, **sizes).all())


def test_nothing_to_decide() -> None:
    assert judge([], RetentionPolicy(), NOW_NS).all() == []


def test_all_of_the_last_hour_stay() -> None:
    assert decide(made(0, 0.1, 0.2, 0.9)) == [0, 1, 2, 3]


def test_then_the_newest_of_each_hour_of_the_clock() -> None:
    # Now is 12:30. At 10:10, 10:20 and 09:50, and one of just now.
    assert decide(made(0, 2 + 10 / 60, 2 + 20 / 60, 2 + 40 / 60)) == [0, 2, 3]


def test_then_the_newest_of_each_day() -> None:
    assert decide(made(0, 30, 31, 32, 54)) == [0, 3, 4]


def test_then_none() -> None:
    assert decide(made(0, 24 * 29, 24 * 31, 24 * 400)) == [2, 3]


def test_the_newest_stays_whatever_its_age() -> None:
    assert decide(made(24 * 400, 24 * 401)) == [1]


def test_saved_tagged_and_pinned_stay() -> None:
    for fields in ({"kind": "manual"}, {"tag": "t"}, {"pinned": True}):
        old = made(24 * 400, 24 * 401, 24 * 402, **fields)
        assert decide(old, max_checkpoints=1, max_bytes=1, store_bytes=2) == [0, 1, 2]


def test_of_an_hour_the_newest_mark_stays_before_what_took_itself() -> None:
    # At 10:00, 10:10 and 10:20 of a clock that shows 12:30, and one of just now.
    four = made(0, 2.5, 2.5 - 10 / 60, 2.5 - 20 / 60)
    four[0] = dataclasses.replace(four[0], kind="mark")
    four[1] = dataclasses.replace(four[1], kind="mark")
    verdicts = judge(four, RetentionPolicy(moments_max=0), NOW_NS)
    decisions = {item.id: item for item in verdicts.all()}
    assert kept(list(decisions.values())) == [1, 3]
    assert decisions[1].reason == "the newest mark of its hour"
    assert decisions[2].reason == "a newer or marked one of that hour stays"


def test_a_mark_expires_in_the_end() -> None:
    assert decide(made(0, 24 * 31, kind="mark")) == [1]


def test_what_undo_needs_stays() -> None:
    decisions = judge(made(0, 900, 901), RetentionPolicy(), NOW_NS, undo=[0]).all()
    assert decisions == [
        Decision(2, True, "the newest"),
        Decision(1, False, "older than 30 days"),
        Decision(0, True, "undo goes there"),
    ]


def test_too_many_the_oldest_go() -> None:
    assert decide(made(0, 5, 30, 54, 80), max_checkpoints=3) == [2, 3, 4]


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
    verdicts = judge(
        busy,
        RetentionPolicy(max_checkpoints=100, moments_max=0),
        NOW_NS,
        is_precious=lambda checkpoint: checkpoint.id in precious,
    )
    stay = kept(verdicts.all())
    assert len(stay) == 100
    assert precious <= set(stay)


def test_over_the_limit_of_bytes_a_quarter_goes() -> None:
    eight = made(0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    assert decide(eight, max_bytes=100, store_bytes=101) == [2, 3, 4, 5, 6, 7, 8]
    assert decide(eight, max_bytes=100, store_bytes=100) == list(range(9))
    assert decide(eight, min_free_bytes=100, free_bytes=99) == [2, 3, 4, 5, 6, 7, 8]


def test_over_the_limit_only_the_newest_is_left_in_the_end() -> None:
    left = made(0, 0.1, 0.2, 0.3)
    while True:
        stay = decide(left, max_bytes=1, store_bytes=2)
        if len(stay) == len(left):
            break
        left = [checkpoint for checkpoint in left if checkpoint.id in stay]
    assert [checkpoint.id for checkpoint in left] == [3]


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
    assert len(stay) <= max(limit, 1 + len(pinned & {c.id for c in everything}))
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


def test_where_room_is_short_moments_go_before_anything_else() -> None:
    steps = made(0, 0.5, 0.6)
    between = renumbered(moments_at(1, 2, 3, 4), 100)
    stay = decide([*steps, *between], moments_max=9, free_bytes=1, min_free_bytes=2)
    assert stay == [0, 1, 2, 101, 102, 103]
    assert decide(steps, free_bytes=1, min_free_bytes=2) == [1, 2]


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
        upkeep.prune(work.fs, RetentionPolicy(max_checkpoints=2))
        every = history.checkpoints(work.fs.store)
        assert len(every) == 6 and len(history.without_moments(work.fs.store)) == 2
        assert {item.metadata.get("kind") for item in every if item.is_moment} == {"auto"}
        upkeep.prune(work.fs, RetentionPolicy(max_checkpoints=2, moments_max=1))
        assert len(history.checkpoints(work.fs.store)) == 3


def test_a_file_that_is_rewritten_all_day_pushes_no_other_moment_out() -> None:
    noise = [replace(item, metadata={"lost": "cache.db"}) for item in moments_at(*range(1, 200))]
    (gem,) = moments_at(150.5, metadata={"lost": "src/app.py"})
    stay = decide([*noise, replace(gem, id=1000)], moments_max=5)
    assert len(stay) == 5 and 1000 in stay


def test_scratch_files_of_many_names_push_no_older_moment_out() -> None:
    noise = [
        replace(item, metadata={"lost": f"scratch{number}"})
        for number, item in enumerate(moments_at(*(1 + n / 50 for n in range(200))))
    ]
    (gem,) = moments_at(300, metadata={"lost": "src/app.py"})
    stay = decide([*noise, replace(gem, id=1000)], moments_max=20)
    assert len(stay) == 20 and 1000 in stay


def test_a_moment_that_holds_more_than_it_was_taken_for_stays() -> None:
    noise = [replace(item, metadata={"lost": "cache.db"}) for item in moments_at(*range(1, 200))]
    verdicts = judge(
        noise, RetentionPolicy(moments_max=5), NOW_NS, holds_more=lambda moment: moment.id == 77
    )
    assert 77 in kept(verdicts.all())


def test_a_moment_after_much_was_written_pushes_no_other_out() -> None:
    """What was written is still there: the moment does not hold it alone."""
    light = moments_at(10, 20, 30, bytes=100)
    heavy = replace(moments_at(5)[0], id=9, bytes=3 << 30)
    held = {9: 0}
    verdicts = judge([*light, heavy], RetentionPolicy(), NOW_NS, weigh=lambda m: held.get(m.id, 9))
    assert kept(verdicts.all()) == [0, 1, 2, 9]


def test_where_moments_hold_too_much_the_heaviest_goes() -> None:
    light = moments_at(10, 20, 30, bytes=100)
    heavy = replace(moments_at(5)[0], id=9, bytes=3 << 30)
    assert decide([*light, heavy], moments_max=9, moment_bytes=2 << 30) == [0, 1, 2]
