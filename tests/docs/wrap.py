"""`python -m tests.docs.wrap`: wrap the paragraphs of the pages that have a line of more than 100.

Blocks, tables, headings and comments stay as they are.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from tests.docs.pages import PAGES, blocks, name_of

WIDTH = 100
#: Pages that a program writes.
GENERATED = {"docs/BENCHMARKS.md"}

_ITEM = re.compile(r"^( *)([-*]|\d+\.) ")
_FIXED = re.compile(r"^ *(\||#|<|```|$)")


def too_wide(page: Path) -> list[str]:
    """The lines of a page that could be wrapped and are not."""
    if name_of(page) in GENERATED:
        return []
    text = page.read_text()
    lines, prose = text.splitlines(), _wrappable(text)
    return [lines[at] for at in prose if len(lines[at]) > WIDTH and " " in lines[at].strip(" -")]


def wrapped(text: str) -> str:
    """A page with the paragraphs wrapped that have a line that is too long."""
    lines, prose = text.splitlines(), _wrappable(text)
    done: list[str] = []
    at = 0
    while at < len(lines):
        end = at + 1
        if at in prose:
            while end in prose and not _ITEM.match(lines[end]):
                end += 1
        paragraph = lines[at:end]
        wide = at in prose and any(len(line) > WIDTH for line in paragraph)
        done.extend(_wrapped(paragraph) if wide else paragraph)
        at = end
    return "\n".join(done) + "\n"


def _wrappable(text: str) -> set[int]:
    """The numbers of the lines that are prose."""
    fixed = {number for block in blocks(text) for number in range(block.start, block.end)}
    for comment in re.finditer(r"<!--.*?-->", text, re.DOTALL):
        first = text.count("\n", 0, comment.start())
        fixed.update(range(first, first + comment[0].count("\n") + 1))
    return {
        number
        for number, line in enumerate(text.splitlines())
        if number not in fixed and not _FIXED.match(line)
    }


def _wrapped(paragraph: list[str]) -> list[str]:
    item = _ITEM.match(paragraph[0])
    first = item[0] if item else re.match(" *", paragraph[0])[0]  # type: ignore[index]
    words = " ".join(line.strip() for line in [paragraph[0][len(first) :], *paragraph[1:]])
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    for each in PAGES:
        if too_wide(each):
            each.write_text(wrapped(each.read_text()))
