"""The pages have what the code declares: a heading for each verb, a row for each setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckptfs.cli.verbs import VERBS
from ckptfs.history.settings import SETTINGS
from tests.docs.pages import PAGES, ROOT, blocks, name_of, prose
from tests.docs.reference import PAGE, wrapped_page
from tests.docs.wrap import too_wide

CLI = (ROOT / "docs/CLI.md").read_text()
#: The sections of CLI.md that are about all verbs.
_GENERAL = {"Which checkpoint", ".checkpoints", "Where things are", "JSON", "Ctrl-C", "Exit codes"}


def _headings(text: str) -> list[str]:
    return re.findall(r"^## (.*)$", prose(text), re.MULTILINE)


def _section(heading: str) -> str:
    return CLI.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_verb_has_a_heading_and_every_heading_a_verb() -> None:
    assert sorted(_headings(CLI)) == sorted([*VERBS, *_GENERAL])


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_an_example_or_a_page_that_has_one(verb: str) -> None:
    section = _section(verb)
    shown = any(verb in line for block in blocks(section) for line in block.lines)
    assert shown or "](agents/" in section or "](API.md" in section


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_prose_is_wrapped(page: Path) -> None:
    assert not too_wide(page), "`.venv/bin/python -m tests.docs.wrap` wraps it"


def test_every_setting_has_a_row_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (?:`(.*?)`)? ?\|", _section("config"), re.MULTILINE)
    declared = [(name, setting.default) for name, setting in SETTINGS.items()]
    assert sorted(rows) == sorted(declared)


def test_the_figures_of_the_readme_are_those_of_the_benchmark() -> None:
    costs = (ROOT / "README.md").read_text().partition("\n## What it costs\n")[2]
    measured = (ROOT / "docs/BENCHMARKS.md").read_text()
    rows = [line for line in costs.partition("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    figures = [figure for row in rows for figure in re.findall(r"[\d.]*\d(?: [kMm]?[sB])?", row)]
    assert len(figures) > 15
    assert [figure for figure in figures if figure not in measured] == []


def test_the_reference_of_the_api_is_what_the_code_says() -> None:
    assert PAGE.read_text() == wrapped_page(), (
        "`.venv/bin/python -m tests.docs.reference` writes it"
    )
