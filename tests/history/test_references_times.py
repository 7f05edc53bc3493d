"""Moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.history.references import parse_time

SECOND = 1_000_000_000
NOW = datetime(2026, 11, 16, 15, 0, 7, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * SECOND + 5


def utc(*fields: int) -> int:
    return int(datetime(*fields, tzinfo=UTC).timestamp()) * SECOND  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("14:05", utc(2026, 11, 16, 14, 5)),
        (" 14:05 ", utc(2026, 11, 16, 14, 5)),
        ("9:00", utc(2026, 11, 16, 9)),
        ("15:00", utc(2026, 11, 16, 15)),
        ("15:01", utc(2026, 11, 15, 15, 1)),
        ("2pm", utc(2026, 11, 16, 14)),
        ("12 am", utc(2026, 11, 16)),
        ("12:30pm", utc(2026, 11, 16, 12, 30)),
        ("2026-11-16", utc(2026, 11, 16)),
        ("2026-11-16 14:05", utc(2026, 11, 16, 14, 5)),
        ("2026-11-16T14:05", utc(2026, 11, 16, 14, 5)),
        ("2026-11-16T14:05+02:00", utc(2026, 11, 16, 12, 5)),
        ("2026-11-16 14:05 -0130", utc(2026, 11, 16, 15, 35)),
        ("2026-11-16 14:05:09.25", utc(2026, 11, 16, 14, 5, 9) + 250_000_000),
        ("today", utc(2026, 11, 16)),
        ("today 9:00", utc(2026, 11, 16, 9)),
        ("yesterday 14:05", utc(2026, 11, 15, 14, 5)),
        ("Yesterday at 2pm", utc(2026, 11, 15, 14)),
    ],
)
def test_clock_times_and_days_are_read(text: str, expected: int) -> None:
    assert parse_time(text, NOW_NS, UTC) == expected


@pytest.mark.parametrize(
    "text, back",
    [
        ("10 minutes ago", timedelta(minutes=10)),
        ("1 minute ago", timedelta(minutes=1)),
        ("10 MIN ago", timedelta(minutes=10)),
        ("10m ago", timedelta(minutes=10)),
        ("90s ago", timedelta(seconds=90)),
        ("an hour ago", timedelta(hours=1)),
        ("a  day ago", timedelta(days=1)),
        ("1h30m ago", timedelta(minutes=90)),
        ("2 days, 3 hours ago", timedelta(days=2, hours=3)),
        ("1 day and 1 hour ago", timedelta(days=1, hours=1)),
        ("2 weeks ago", timedelta(days=14)),
        ("yesterday", timedelta(days=1)),
        ("0 seconds ago", timedelta()),
    ],
)
def test_distances_from_now_are_exact(text: str, back: timedelta) -> None:
    assert parse_time(text, NOW_NS, UTC) == NOW_NS - int(back.total_seconds()) * SECOND


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "14",
        "25:00",
        "14:60",
        "14:05:61",
        "13pm",
        "0am",
        "2026-13-01",
        "2026-02-30",
        "ago",
        " ago",
        "a ago",
        "10 ago",
        "10 minutes",
        "ten minutes ago",
        "3 fortnights ago",
        "9999999999 days ago",
        "latest",
        "release-1",
        "2026-11-16-rc1",
        "14:05\x00",
    ],
)
def test_everything_else_is_no_moment(text: str) -> None:
    assert parse_time(text, NOW_NS, UTC) is None


def test_a_time_to_the_second_includes_that_second() -> None:
    """A list shows 14:05:09 for a checkpoint taken half a second later."""
    assert parse_time("14:05:09", NOW_NS, UTC) == utc(2026, 11, 16, 14, 5, 10) - 1


def test_the_second_of_now_is_not_in_the_future() -> None:
    assert parse_time("15:00:07", NOW_NS, UTC) == utc(2026, 11, 16, 15, 0, 8) - 1


def test_the_zone_decides_what_today_is() -> None:
    east = timezone(timedelta(hours=12))
    assert parse_time("today", NOW_NS, east) == utc(2026, 11, 16, 12)
    assert parse_time("yesterday 01:00", NOW_NS, east) == utc(2026, 11, 15, 13)


def test_yesterday_is_the_same_time_of_day_across_a_clock_change() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    after = datetime(2026, 10, 25, 12, tzinfo=berlin)
    expected = datetime(2026, 10, 24, 12, tzinfo=berlin)
    found = parse_time("yesterday", int(after.timestamp()) * SECOND, berlin)
    assert found == int(expected.timestamp()) * SECOND


def test_without_a_zone_times_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC-3")
    time.tzset()
    try:
        assert parse_time("14:05", NOW_NS) == utc(2026, 11, 16, 11, 5)
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.text(max_size=40))
def test_no_text_makes_it_fail(text: str) -> None:
    assert parse_time(text, NOW_NS, UTC) is None or isinstance(parse_time(text, NOW_NS, UTC), int)


@given(st.integers(0, 23), st.integers(0, 59))
def test_a_clock_time_alone_is_within_the_last_day(hour: int, minute: int) -> None:
    found = parse_time(f"{hour}:{minute:02}", NOW_NS, UTC)
    assert found is not None and NOW_NS - 86_400 * SECOND < found <= NOW_NS
