"""Times as people write them: "14:05", "2026-11-16 14:05", "10 minutes ago", "yesterday".

Pure: the time of now and the time zone are given, nothing is read. What a time is good for, a
reference to a checkpoint or the start of a list, is the caller's business.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo

_SECOND_NS = 1_000_000_000

_UNITS_S = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hr": 3600,
    "hour": 3600,
    "d": 86_400,
    "day": 86_400,
    "w": 7 * 86_400,
    "week": 7 * 86_400,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}

_AMOUNT = re.compile(r"(\d{1,9}|an?\b) ?([a-z]+?)s?(?:$|(?=[ ,\d]))[ ,]*(?:and )?")

_CLOCK = r"""
    (?P<hour>\d{1,2})
    (?: :(?P<minute>\d{2}) (?: :(?P<second>\d{2}) (?: [.,](?P<fraction>\d{1,9}) )? )? )?
    (?: [ ]?(?P<half>am|pm) )?
    (?: [ ]?(?P<zone>z|utc|[+-]\d{2}:?\d{2}) )?
"""
_DAY = r"(?P<day>today|yesterday|\d{4}-\d{2}-\d{2})"
_ABSOLUTE = re.compile(rf"(?: {_DAY} (?: (?:[ ]|t|[ ]at[ ]) {_CLOCK} )? )", re.VERBOSE)
_CLOCK_ALONE = re.compile(_CLOCK, re.VERBOSE)


def parse_time(text: str, now_ns: int, tz: tzinfo | None = None) -> int | None:
    """The moment that ``text`` means, in nanoseconds; None if it means none.

    Without ``tz`` it is local time. A clock time alone is the last one that is not after now; a
    date alone is its beginning; "yesterday" alone is one day before now. A time that is given to
    the second includes that whole second, as it was read from a list that shows no more.
    """
    words = " ".join(text.lower().split())
    try:
        if words.endswith(" ago"):
            return _ago(words.removesuffix(" ago"), now_ns)
        found = _ABSOLUTE.fullmatch(words)
        if found:
            return _on_day(found, now_ns, tz)
        found = _CLOCK_ALONE.fullmatch(words)
        if found and (found["minute"] or found["half"]):
            return _last_time(found, now_ns, tz)
    except (ValueError, OverflowError, OSError):
        pass  # no such hour, day or year
    return None


def _ago(amounts: str, now_ns: int) -> int | None:
    """Now less a sum such as "2 days 3 hours" or "1h30m"."""
    seconds = position = 0
    while position < len(amounts):
        found = _AMOUNT.match(amounts, position)
        if not found or found[2] not in _UNITS_S:
            return None
        count = int(found[1]) if found[1].isdecimal() else 1
        seconds += count * _UNITS_S[found[2]]
        position = found.end()
    return now_ns - seconds * _SECOND_NS if amounts else None


def _on_day(found: re.Match[str], now_ns: int, tz: tzinfo | None) -> int:
    zone = _zone(found, tz)
    now = _local(now_ns, zone)
    if found["day"] == "yesterday" and found["hour"] is None:
        return _ns(now - timedelta(days=1), zone) + now_ns % _SECOND_NS
    day = _day(found["day"], now.date())
    return _at(day, found, zone) if found["hour"] else _ns(datetime.combine(day, time()), zone)


def _last_time(found: re.Match[str], now_ns: int, tz: tzinfo | None) -> int:
    """Today's, unless that is still to come."""
    zone = _zone(found, tz)
    today = _local(now_ns, zone).date()
    at = _at(today, found, zone)
    if at // _SECOND_NS <= now_ns // _SECOND_NS:
        return at
    return _at(today - timedelta(days=1), found, zone)


def _day(text: str, today: date) -> date:
    if text == "today":
        return today
    if text == "yesterday":
        return today - timedelta(days=1)
    return date.fromisoformat(text)


def _at(day: date, found: re.Match[str], zone: tzinfo | None) -> int:
    clock = time(_hour(found), int(found["minute"] or 0), int(found["second"] or 0))
    ns = _ns(datetime.combine(day, clock), zone)
    if found["fraction"]:
        return ns + int(found["fraction"].ljust(9, "0"))
    return ns + _SECOND_NS - 1 if found["second"] else ns


def _hour(found: re.Match[str]) -> int:
    hour = int(found["hour"])
    if not found["half"]:
        return hour
    if not 1 <= hour <= 12:
        raise ValueError("no such hour")
    return hour % 12 + (12 if found["half"] == "pm" else 0)


def _zone(found: re.Match[str], tz: tzinfo | None) -> tzinfo | None:
    text = found["zone"]
    if not text:
        return tz
    if text in ("z", "utc"):
        return UTC
    offset = timedelta(hours=int(text[1:3]), minutes=int(text[-2:]))
    return timezone(-offset if text[0] == "-" else offset)


def _local(now_ns: int, zone: tzinfo | None) -> datetime:
    """Wall-clock time in the zone, to the second, without the zone in it."""
    return datetime.fromtimestamp(now_ns // _SECOND_NS, zone).replace(tzinfo=None)


def _ns(wall: datetime, zone: tzinfo | None) -> int:
    return int(wall.replace(tzinfo=zone).timestamp()) * _SECOND_NS
