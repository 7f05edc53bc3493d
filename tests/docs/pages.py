"""What the pages hold: blocks of text that is typed or printed, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: All pages of the project.
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "bench/README.md",
        ROOT / "ckptfs/fuse/server/README.md",
    ],
    key=lambda page: str(page.relative_to(ROOT)),
)

_FENCE = re.compile(r"^( *)```")
_ITEM = re.compile(r"^( *)([-*]|\d+\.) ")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Block(NamedTuple):
    """Lines that stand in a page as they are typed or printed."""

    #: The number of its first line in the page, from 0.
    start: int
    #: How far it is indented in the page.
    indent: int
    lines: list[str]

    @property
    def end(self) -> int:
        return self.start + len(self.lines)


def blocks(text: str) -> Iterator[Block]:
    """The indented and the fenced blocks of a page, in order."""
    lines = text.splitlines()
    at = depth = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
            yield _block(lines, at + 1, end, len(fence[1]))
            at = end + 1
            continue
        depth = _depth(lines, at, depth)
        if _begins_block(lines, at, depth):
            end = _end_of_block(lines, at, depth + 4)
            yield _block(lines, at, end, depth + 4)
            at = end
            continue
        at += 1


def _block(lines: list[str], start: int, end: int, indent: int) -> Block:
    return Block(start, indent, [line[indent:] for line in lines[start:end]])


def _depth(lines: list[str], at: int, depth: int) -> int:
    """How far the text of the list item is indented that line `at` is in."""
    line = lines[at]
    item = _ITEM.match(line)
    if item:
        return len(item[0])
    return 0 if line and not line.startswith(" ") else depth


def _begins_block(lines: list[str], at: int, depth: int) -> bool:
    return lines[at].startswith(" " * (depth + 4)) and (at == 0 or not lines[at - 1].strip())


def _end_of_block(lines: list[str], at: int, indent: int) -> int:
    end = at
    for number in range(at, len(lines)):
        if lines[number].startswith(" " * indent):
            end = number + 1
        elif lines[number].strip():
            break
    return end


# -- headings and links ----------------------------------------------------------------------------

_HEADING = re.compile(r"^#{1,6} +(.*?)\s*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def prose(text: str) -> str:
    """A page without its blocks."""
    lines = text.splitlines()
    for block in blocks(text):
        lines[block.start : block.end] = [""] * len(block.lines)
    return "\n".join(lines)


def links(text: str) -> list[str]:
    """The targets of a page's links and pictures."""
    return _LINK.findall(re.sub(r"`[^`]*`", "", prose(text)))


def anchors(text: str) -> set[str]:
    """What a link can name behind `#`, as GitHub and our site make it of headings."""
    found: dict[str, int] = {}
    for line in prose(text).splitlines():
        heading = _HEADING.match(line)
        if heading:
            anchor = anchor_of(heading[1])
            found[anchor] = found.get(anchor, -1) + 1
    return {f"{name}-{n}" if n else name for name, last in found.items() for n in range(last + 1)}


def anchor_of(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
