"""Merging three texts by their lines, with conflict markers as git's zdiff3 style has them.

Both sides are compared with the base by patience diff (`ckptfs.textdiff`). Where their changes
overlap or touch, and do not say the same, there is a conflict: the lines of both sides, without
those that they begin and end with in common. Works on bytes that others read, with the standard
library only.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from ckptfs.textdiff import Region, common_blocks, is_text, regions, split_lines

Lines = list[bytes]

_MARK = 7

#: Programs that merge texts, which the setting `merge.driver` knows by name.
KNOWN_DRIVERS = ("git", "mergiraf")


def driver_words(command: str) -> list[str]:
    """The words of a command that merges texts; empty if it is. Raises ValueError."""
    words = shlex.split(command)
    known = not words or words in ([name] for name in KNOWN_DRIVERS)
    if not known and not all(mark in command for mark in ("%O", "%A", "%B")):
        names = ", ".join(KNOWN_DRIVERS)
        raise ValueError(f"{names} or a command with %O, %A and %B is wanted")
    return words


class Labels(NamedTuple):
    """What the three sides are called behind their markers."""

    ours: bytes
    base: bytes
    theirs: bytes


class Chunk(NamedTuple):
    """A part of the result: ``ours`` are its lines, unless ``is_conflict``."""

    ours: Lines
    base: Lines
    theirs: Lines
    is_conflict: bool


def can_merge(*sides: bytes) -> bool:
    """Whether these are texts that are short enough to be merged by lines."""
    return all(map(is_text, sides))


def merge(base: bytes, ours: bytes, theirs: bytes) -> list[Chunk]:
    """The three texts as the chunks of one."""
    o, a, b = split_lines(base), split_lines(ours), split_lines(theirs)
    return list(_without_common_ends(_chunks(o, a, b)))


def has_conflicts(chunks: list[Chunk]) -> bool:
    return any(chunk.is_conflict for chunk in chunks)


def text_of(chunks: list[Chunk], labels: Labels) -> bytes:
    """The merged text, with markers around what conflicts."""
    end = b"\r\n" if _ends_with_cr(chunks) else b"\n"
    lines: Lines = []
    for chunk in chunks:
        lines += _marked(chunk, labels, end) if chunk.is_conflict else chunk.ours
    return b"".join(lines)


# -- chunks ----------------------------------------------------------------------------------------


class _Side:
    """One side: its lines, and where it differs from the base, from the first such place on."""

    def __init__(self, base: Lines, lines: Lines) -> None:
        self.lines = lines
        self._hunks = list(regions(common_blocks(base, lines), len(base), len(lines)))
        self._next = 0
        #: How far the side is ahead of the base in what was passed.
        self._shift = 0

    @property
    def hunk(self) -> Region | None:
        return self._hunks[self._next] if self._next < len(self._hunks) else None

    def take(self) -> None:
        """Pass the next hunk."""
        hunk = self._hunks[self._next]
        self._shift = hunk.new_end - hunk.old_end
        self._next += 1

    def at(self, base: int) -> int:
        """Where a line of the base, behind all hunks that were passed, is on this side."""
        return base + self._shift


def _chunks(base: Lines, ours: Lines, theirs: Lines) -> Iterator[Chunk]:
    sides = (_Side(base, ours), _Side(base, theirs))
    done = 0
    while hunks := [side.hunk for side in sides if side.hunk is not None]:
        start = min(hunk.old for hunk in hunks)
        if start > done:
            same = base[done:start]
            yield Chunk(same, same, same, is_conflict=False)
        starts = [side.at(start) for side in sides]
        changed, end = _take_overlapping(sides, start)
        a, b = (side.lines[at : side.at(end)] for side, at in zip(sides, starts, strict=True))
        yield _decided(a, base[start:end], b, changed)
        done = end
    if done < len(base):
        yield Chunk(base[done:], base[done:], base[done:], is_conflict=False)


def _take_overlapping(sides: tuple[_Side, _Side], start: int) -> tuple[list[bool], int]:
    """Pass the hunks that overlap or touch each other from ``start`` on. Which sides have some, and
    where they end in the base."""
    changed, end = [False, False], start
    grown = True
    while grown:
        grown = False
        for number, side in enumerate(sides):
            while side.hunk is not None and side.hunk.old <= end:
                end = max(end, side.hunk.old_end)
                side.take()
                changed[number] = grown = True
    return changed, end


def _decided(a: Lines, o: Lines, b: Lines, changed: list[bool]) -> Chunk:
    if a == b or not changed[1]:
        return Chunk(a, o, b, is_conflict=False)
    if not changed[0]:
        return Chunk(b, o, b, is_conflict=False)
    return Chunk(a, o, b, is_conflict=True)


def _without_common_ends(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Take lines that both sides of a conflict begin or end with out of it."""
    for chunk in chunks:
        if not chunk.is_conflict:
            yield chunk
            continue
        a, b = chunk.ours, chunk.theirs
        first = _common(a, b)
        last = _common(a[first:][::-1], b[first:][::-1])
        end_a, end_b = len(a) - last, len(b) - last
        if first:
            yield Chunk(a[:first], [], a[:first], is_conflict=False)
        yield Chunk(a[first:end_a], chunk.base, b[first:end_b], is_conflict=True)
        if last:
            yield Chunk(a[end_a:], [], a[end_a:], is_conflict=False)


def _common(a: Lines, b: Lines) -> int:
    """How many lines both begin with."""
    count = 0
    for mine, its in zip(a, b, strict=False):
        if mine != its:
            break
        count += 1
    return count


# -- markers ---------------------------------------------------------------------------------------


def _ends_with_cr(chunks: list[Chunk]) -> bool:
    """Whether the text's lines end as those of Windows do."""
    first = next((line for chunk in chunks for line in (*chunk.ours, *chunk.theirs)), b"")
    return first.endswith(b"\r\n")


def _marked(chunk: Chunk, labels: Labels, end: bytes) -> Iterator[bytes]:
    yield _marker(b"<", labels.ours, end)
    yield from _ended(chunk.ours, end)
    yield _marker(b"|", labels.base, end)
    yield from _ended(chunk.base, end)
    yield _marker(b"=", b"", end)
    yield from _ended(chunk.theirs, end)
    yield _marker(b">", labels.theirs, end)


def _marker(sign: bytes, label: bytes, end: bytes) -> bytes:
    return sign * _MARK + (b" " + label if label else b"") + end


def _ended(lines: Lines, end: bytes) -> Iterator[bytes]:
    """The lines, the last of them with a newline too: a marker follows."""
    for line in lines:
        yield line if line.endswith(b"\n") else line + end
