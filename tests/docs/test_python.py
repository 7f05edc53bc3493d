"""The Python programs of the pages run, and print what their comments say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, blocks, name_of
from tests.docs.sessions import shell

_PROGRAMS = [
    pytest.param("\n".join(block.lines), id=f"{name_of(page)}-{block.start}")
    for page in PAGES
    for block in blocks(page.read_text())
    if page.read_text().splitlines()[block.start - 1].strip() == "```python"
]


@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_program_prints_what_its_comments_say(program: str) -> None:
    said = re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert said
    with shell() as opened:
        Path(opened.home, "proj").mkdir()
        Path(opened.home, "example.py").write_text(program)
        assert opened.run("python example.py") == said
