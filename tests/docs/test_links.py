"""Links in the pages lead to a file that is there, and to a heading in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, anchors, links, name_of


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = [
        target
        for target in links(page.read_text())
        if "://" not in target and not target.startswith("mailto:") and not _leads(page, target)
    ]
    assert not broken


def _leads(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    return file.exists() and (not anchor or anchor in anchors(file.read_text()))


def test_there_are_links() -> None:
    assert sum(len(links(page.read_text())) for page in PAGES) > 50
