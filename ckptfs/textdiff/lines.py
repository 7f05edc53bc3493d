"""Which lines two texts have in common: patience diff, with difflib for what is left.

Lines that occur once in both texts are anchors; between two of them the rest is compared on its
own. That keeps hunks at sensible borders, and costs time in proportion to the text where difflib
alone is quadratic. Pure: no I/O, no formats.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

#: Where there are no anchors, difflib compares what is left, as long as the products of the
#: lengths stay below this in all; a text of the same few lines over and over would take minutes.
WORK_MAX = 4_000_000


class Block(NamedTuple):
    """``length`` lines that are equal, from ``old`` in one text and ``new`` in the other."""

    old: int
    new: int
    length: int


class Region(NamedTuple):
    """A part of each text: lines ``old`` up to ``old_end``, and ``new`` up to ``new_end``."""

    old: int
    old_end: int
    new: int
    new_end: int

    @property
    def is_empty(self) -> bool:
        return self.old == self.old_end or self.new == self.new_end

    @property
    def work(self) -> int:
        return (self.old_end - self.old) * (self.new_end - self.new)


def split_lines(data: bytes) -> list[bytes]:
    """The lines with their newlines; only the last may lack one. A bare CR ends no line."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def common_blocks(a: Sequence[bytes], b: Sequence[bytes]) -> list[Block]:
    """Equal runs of lines, in order; neighbours are joined."""
    numbers: dict[bytes, int] = {}
    old = [numbers.setdefault(line, len(numbers)) for line in a]
    new = [numbers.setdefault(line, len(numbers)) for line in b]
    found: list[Block] = []
    left = WORK_MAX
    pending = [Region(0, len(old), 0, len(new))]
    while pending:
        region = _trim(old, new, pending.pop(), found)
        if region.is_empty:
            continue
        anchors = _anchors(old, new, region)
        if anchors:
            pending += _between(region, anchors)
        elif region.work <= left:
            left -= region.work
            found += _by_difflib(old, new, region)
    return _joined(sorted(found))


def _trim(old: list[int], new: list[int], region: Region, found: list[Block]) -> Region:
    """Take equal lines off both ends; note them as blocks."""
    i, i_end, j, j_end = region
    while i < i_end and j < j_end and old[i] == new[j]:
        i, j = i + 1, j + 1
    if i > region.old:
        found.append(Block(region.old, region.new, i - region.old))
    while i < i_end and j < j_end and old[i_end - 1] == new[j_end - 1]:
        i_end, j_end = i_end - 1, j_end - 1
    if i_end < region.old_end:
        found.append(Block(i_end, j_end, region.old_end - i_end))
    return Region(i, i_end, j, j_end)


def _anchors(old: list[int], new: list[int], region: Region) -> list[tuple[int, int]]:
    """Lines that occur once on both sides and stand in the same order: the most of them.

    Where there are none and the region is too large for difflib, lines that occur equally often on
    both sides serve, the first as the anchor of the first and so on.
    """
    mine = old[region.old : region.old_end]
    its = new[region.new : region.new_end]
    counts, counts_new = Counter(mine), Counter(its)
    sure = {line for line, count in counts.items() if count == 1 == counts_new[line]}
    if not sure and region.work > WORK_MAX:
        sure = {line for line, count in counts.items() if count == counts_new[line]}
    places: dict[int, list[int]] = {}
    for i, line in enumerate(mine, region.old):
        if line in sure:
            places.setdefault(line, []).append(i)
    firsts = {line: iter(found) for line, found in places.items()}
    pairs = [(next(firsts[line]), j) for j, line in enumerate(its, region.new) if line in sure]
    return _longest_increasing(pairs)


def _longest_increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs, ordered by their second, in which the first rises too."""
    tops: list[int] = []
    top_pairs: list[int] = []
    before: list[int] = []
    for index, (i, _) in enumerate(pairs):
        pile = bisect_left(tops, i)
        before.append(top_pairs[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(i)
            top_pairs.append(index)
        else:
            tops[pile] = i
            top_pairs[pile] = index
    found = []
    index = top_pairs[-1] if top_pairs else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]


def _between(region: Region, anchors: list[tuple[int, int]]) -> list[Region]:
    """The regions that the anchors cut; each begins with its anchor, which trimming takes off."""
    starts = [(region.old, region.new), *anchors]
    ends = [*anchors, (region.old_end, region.new_end)]
    return [Region(i, i_end, j, j_end) for (i, j), (i_end, j_end) in zip(starts, ends, strict=True)]


def _by_difflib(old: list[int], new: list[int], region: Region) -> list[Block]:
    from difflib import SequenceMatcher  # late: most texts have anchors enough

    i, i_end, j, j_end = region
    matcher = SequenceMatcher(None, old[i:i_end], new[j:j_end])
    return [
        Block(i + match.a, j + match.b, match.size)
        for match in matcher.get_matching_blocks()
        if match.size
    ]


def _joined(blocks: list[Block]) -> list[Block]:
    joined: list[Block] = []
    for block in blocks:
        last = joined[-1] if joined else Block(0, 0, 0)
        if (last.old + last.length, last.new + last.length) == (block.old, block.new) and joined:
            joined[-1] = last._replace(length=last.length + block.length)
        else:
            joined.append(block)
    return joined
