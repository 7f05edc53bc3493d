"""References: what people write to name a checkpoint, and the checkpoint that it names.

One grammar for every verb. In this order, so that no tag can take the meaning of a number, a word
or a time away:

    @, now          the workspace as it is
    @-2             two checkpoints back in the lineage of the workspace
    latest          the newest checkpoint
    @ok, @ok:pytest the newest checkpoint whose last run, or last run of that program, passed
    12              the checkpoint of that number
    14:05, "10 minutes ago", yesterday, 2026-11-16 14:05
                    what stood then: the newest checkpoint that is not after that time, or, if
                    that is one which a restore of everything left, the one that it went to
    idea-2, main    a fork, or the main line, as it is
    release-1       the checkpoint with that tag, as it was given or in its safe form

A tag is stored as it was typed. Two checkpoints cannot have tags with the same safe form, since
`.checkpoints/` has one link for each.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from itertools import islice
from typing import NamedTuple

from ckptfs.errors import CheckpointUnknown, TagInvalid, TagTaken
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import (
    Checkpoint,
    checkpoints,
    describe,
    lineage,
    numbered,
    of_line,
    way_back,
    without_moments,
)
from ckptfs.history.restore import log
from ckptfs.history.runs import newest_passed
from ckptfs.model import MAIN_LINE, Epoch
from ckptfs.store import Store

NOW = ("@", "now")
LATEST = "latest"
_PASSED = re.compile(r"@ok(?::(.+))?", re.DOTALL)

#: A safe tag is at most this many bytes, well below what a file name may have.
SAFE_TAG_BYTES = 200
_SAFE_MARKS = "._-+="
#: Put before a tag that would otherwise read as something else.
_SAFE_PREFIX = "tag-"

#: No checkpoint has a number of more digits.
_DIGITS_MAX = 18
_BACK = re.compile(r"@-(\d{1,18})", re.ASCII)

#: How many checkpoints an error proposes, and how many of the newest it looks through.
_NEAR_MAX = 3
_NEAR_AMONG = 1000
_MESSAGE_MAX = 40


class Reference(NamedTuple):
    """What a text names: a checkpoint, or, if that is None, a line as it is: the one of that
    number, or else the one that is asked."""

    text: str
    checkpoint: Checkpoint | None
    line: int | None = None

    def epoch(self, fs: Filesystem) -> Epoch:
        """The epoch to view."""
        if self.checkpoint is not None:
            return self.checkpoint.epoch
        return (fs.head if self.line is None else fs.store.heads[self.line]).epoch


def resolve(fs: Filesystem, text: str, now_ns: int, tz: tzinfo | None = None) -> Reference:
    """What ``text`` names. Without ``tz`` times are local. Raises CheckpointUnknown."""
    store = fs.store
    name = text.strip()
    word = name.casefold()
    if word in NOW or (back := _back(name)) == 0:
        return Reference(text, None)
    if back is not None:
        return Reference(text, _steps_back(fs, name, back))
    if word == LATEST:
        return Reference(text, _latest(of_line(fs)))
    if passed := _PASSED.fullmatch(name):
        return Reference(text, _passed(of_line(fs), name, passed[1] or ""))
    if _is_number(name):
        return Reference(text, _numbered(store, name))
    at_ns = parse_time(name, now_ns, tz)
    if at_ns is not None:
        return Reference(text, _standing_at(fs, name, at_ns))
    if (line := _line(store, name)) is not None:
        return Reference(text, None, line)
    return Reference(text, _tagged(without_moments(store), name))


def resolve_checkpoint(
    fs: Filesystem, text: str, now_ns: int, tz: tzinfo | None = None
) -> Checkpoint:
    """The same for verbs that need a checkpoint, not the workspace as it is."""
    found = resolve(fs, text, now_ns, tz)
    if found.checkpoint is None:
        what = "the workspace" if found.line is None else "a line of work"
        raise CheckpointUnknown(text, reason=f"{text} is {what} as it is, not a checkpoint")
    return found.checkpoint


def is_reserved(text: str) -> bool:
    """Whether a text already means something other than a tag."""
    word = text.strip().casefold()
    if not word or word == LATEST or word in NOW or word.startswith("@") or word.isdecimal():
        return True
    return parse_time(word, _SOME_NS, UTC) is not None


#: Whether a text is a time does not depend on the time of the question, so any will do.
_SOME_NS = 1_700_000_000_000_000_000


def safe_tag(raw: str) -> str:
    """A tag as one component of a path: no separators, no control characters, nothing hidden, and
    nothing that reads as a number or another reference."""
    text = unicodedata.normalize("NFC", raw)
    kept = "".join(char if char.isalnum() or char in _SAFE_MARKS else "-" for char in text)
    kept = _cut(kept.lstrip(".-"), SAFE_TAG_BYTES - len(_SAFE_PREFIX)).rstrip("-")
    if not kept or is_reserved(kept):
        return (_SAFE_PREFIX + kept).rstrip("-")
    return kept


def _cut(text: str, size: int) -> str:
    """As much of a text as fits, never half a character."""
    return text.encode()[:size].decode("utf-8", "ignore")


# -- one kind of reference each --------------------------------------------------------------------


def _back(name: str) -> int | None:
    found = _BACK.fullmatch(name)
    return int(found[1]) if found else None


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _steps_back(fs: Filesystem, name: str, steps: int) -> Checkpoint:
    found = next(islice(way_back(fs), steps - 1, None), None)
    if found is not None:
        return found
    way = lineage(fs)
    count = "no checkpoint" if not way else f"only {len(way)} checkpoint{'s'[: len(way) > 1]}"
    near = [f"@-{len(way)}"] if way else []
    raise CheckpointUnknown(name, near, f"There is no {name}: {count} before now")


def _latest(known: Sequence[Checkpoint]) -> Checkpoint:
    if not known:
        raise CheckpointUnknown(LATEST, reason="There is no checkpoint yet")
    return known[-1]


def _passed(known: Sequence[Checkpoint], name: str, program: str) -> Checkpoint:
    found = newest_passed(reversed(known), program.strip())
    if found is None:
        of = f"of {program.strip()} " if program.strip() else ""
        reason = f"There is no checkpoint whose last run {of}passed"
        raise CheckpointUnknown(name, reason=reason)
    return found


def _numbered(store: Store, name: str) -> Checkpoint:
    number = int(name) if len(name) <= _DIGITS_MAX else 10**_DIGITS_MAX
    found = numbered(store, number)
    if found is not None:
        return found
    known = checkpoints(store)
    below = [item for item in known if item.id < number][-1:]
    above = [item for item in known if item.id > number][:1]
    raise CheckpointUnknown(name, _names(below + above))


def _standing_at(fs: Filesystem, name: str, at_ns: int) -> Checkpoint:
    """The newest checkpoint that is not after a time. A restore of everything seals the state that
    it leaves, so where that is the newest, what stood from then on is the one restored."""
    newest = _not_after(of_line(fs, moments=True), name, at_ns)
    left = (entry for entry in log(fs) if entry.before == newest.id)
    entry = next((entry for entry in left if not entry.paths or entry.after is not None), None)
    if entry is None or entry.time_ns > at_ns:
        return newest
    number = entry.target if entry.after is None else entry.after
    found = numbered(fs.store, number)
    if found is None:
        reason = f"At {name} checkpoint {number} stood, which a restore had gone to; it is deleted"
        raise CheckpointUnknown(name, _names([newest]), reason)
    return found


def _not_after(known: Sequence[Checkpoint], name: str, at_ns: int) -> Checkpoint:
    old_enough = [item for item in known if item.time_ns <= at_ns]
    if not old_enough:
        reason = f"There is no checkpoint as old as {name}"
        raise CheckpointUnknown(name, _names(known[:1]), reason)
    return max(old_enough, key=lambda item: (item.time_ns, item.id))


def _line(store: Store, name: str) -> int | None:
    """The line of that name. No fork has a tag's name, but a tag may be called as the main line."""
    found = next((fork.number for fork in store.forks if fork.name == name), None)
    if found is None and name == "main" and store.forks:
        is_tag = any(item.tag == name for item in without_moments(store))
        return None if is_tag else MAIN_LINE
    return found


def _tagged(known: Sequence[Checkpoint], name: str) -> Checkpoint:
    tagged = [item for item in known if item.tag]
    found = [item for item in tagged if item.tag.strip() == name]
    if not found:
        found = [item for item in tagged if safe_tag(item.tag) == name]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = " and ".join(str(item.id) for item in found)
        reason = f"Checkpoint {name} is ambiguous: {numbers} have that tag"
        raise CheckpointUnknown(name, [str(item.id) for item in found], reason)
    raise CheckpointUnknown(name or '""', _similar(known, name))


# -- near matches ----------------------------------------------------------------------------------


def _similar(known: Sequence[Checkpoint], name: str) -> list[str]:
    """References that look like ``name``, or whose checkpoint's tag or message does."""
    by_text: dict[str, str] = {word: word for word in (LATEST, "yesterday", "today")}
    for item in known[-_NEAR_AMONG:]:
        (shown,) = _names([item])
        by_text.update({text.casefold(): shown for text in _texts(item)})
    wanted = name.casefold()
    close = difflib.get_close_matches(wanted, by_text, n=_NEAR_MAX)
    containing = [text for text in by_text if len(wanted) > 2 and wanted in text]
    return list(dict.fromkeys(by_text[text] for text in [*close, *reversed(containing)]))[
        :_NEAR_MAX
    ]


def _texts(item: Checkpoint) -> Iterable[str]:
    texts = (item.tag, safe_tag(item.tag) if item.tag else "", item.message)
    return filter(None, (*texts, item.message.removeprefix("before: ")))


def _names(items: Iterable[Checkpoint]) -> list[str]:
    """Checkpoints as an error proposes them: the number, with its tag or message."""
    return [f"{item.id} ({label})" if (label := _label(item)) else str(item.id) for item in items]


def _label(item: Checkpoint) -> str:
    if item.tag:
        return f"tag {item.tag}"
    message = item.message
    return message if len(message) <= _MESSAGE_MAX else message[: _MESSAGE_MAX - 1] + "…"


#: Longer ones are messages.
TAG_MAX = 200

#: Categories of characters that control a terminal or break a line instead of being shown.
_ACTING = frozenset({"Cc", "Cs", "Zl", "Zp"})


def clean_tag(raw: str) -> str:
    """A tag as it is stored. Raises TagInvalid for text that cannot be seen and typed again."""
    tag = raw.strip()
    if not tag:
        raise TagInvalid(raw, "it is empty")
    if len(tag) > TAG_MAX:
        raise TagInvalid(raw, f"it is longer than {TAG_MAX} characters")
    if any(unicodedata.category(char) in _ACTING for char in tag):
        raise TagInvalid(raw, "it has control characters or bytes that are not text")
    return tag


def require_plain_tag(tag: str) -> None:
    """Refuse a tag that is another kind of reference."""
    if is_reserved(tag):
        raise TagInvalid(tag, "it reads like a number, a time or another reference")


def require_free_tag(store: Store, tag: str, *, but: int | None = None) -> None:
    """Refuse a tag that another checkpoint has, in this form or in one that looks the same, or that
    is a fork's name."""
    safe = safe_tag(tag).casefold()
    if any(fork.name in (tag, safe_tag(tag)) for fork in store.forks):
        raise TagInvalid(tag, "a fork has that name")
    for other in checkpoints(store):
        if other.id != but and other.tag and safe_tag(other.tag).casefold() == safe:
            raise TagTaken(tag, other.id)


def set_tag(store: Store, checkpoint: Checkpoint, raw: str, *, move: bool = False) -> Checkpoint:
    """Give the checkpoint a tag in place of its own. With ``move`` another checkpoint that has the
    tag loses it."""
    tag = clean_tag(raw)
    if move:
        _take_away(store, tag)
    require_free_tag(store, tag, but=checkpoint.id)
    return _redescribed(store, checkpoint, tag=tag)


def remove_tag(store: Store, checkpoint: Checkpoint) -> Checkpoint:
    return _redescribed(store, checkpoint, tag="")


def set_pinned(store: Store, checkpoint: Checkpoint, *, pinned: bool) -> Checkpoint:
    """A pinned checkpoint neither expires nor is deleted."""
    return _redescribed(store, checkpoint, pinned=pinned)


def _take_away(store: Store, tag: str) -> None:
    for other in checkpoints(store):
        if other.tag and safe_tag(other.tag).casefold() == safe_tag(tag).casefold():
            remove_tag(store, other)


def _redescribed(store: Store, checkpoint: Checkpoint, **fields: str | bool) -> Checkpoint:
    changed = dataclasses.replace(checkpoint, **fields)  # type: ignore[arg-type]
    describe(store, changed)
    return changed


# -- time expressions ------------------------------------------------------------------------------
#
# Pure: the current time and the time zone are parameters.

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
