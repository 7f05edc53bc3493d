"""`make docs`: every page is in the site, and every link in it leads to a place that is there."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, name_of
from tests.docs.site import address_of, build, groups


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.targets += [value for key in ("href", "src") if (value := found.get(key))]
        self.ids += [value for value in [found.get("id")] if value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build(out)
    return out


def test_every_link_leads_to_a_file_and_a_place_in_it(site: Path) -> None:
    pages = {file: _Page(file.read_text()) for file in site.rglob("*.html")}
    broken = []
    for file, page in pages.items():
        for target in page.targets:
            name, _, anchor = target.partition("#")
            leads_to = (file.parent / name).resolve() if name else file
            if "://" in target:
                continue
            if not leads_to.is_file() or (anchor and anchor not in pages[leads_to].ids):
                broken.append(f"{file.relative_to(site)}: {target}")
    assert not broken


def test_every_page_is_in_the_site_and_in_its_bar(site: Path) -> None:
    listed = sorted(name for pages in groups().values() for name in pages)
    assert listed == sorted(name_of(page) for page in PAGES)
    for page in PAGES:
        assert (
            f'<a href="{Path(address_of(page)).name}" aria-current="page">'
            in (site / address_of(page)).read_text()
        )


def test_an_identifier_stands_once_in_a_page(site: Path) -> None:
    for file in site.rglob("*.html"):
        ids = _Page(file.read_text()).ids
        assert len(ids) == len(set(ids)), file


def test_what_prepares_a_session_is_not_shown(site: Path) -> None:
    for file in site.rglob("*.html"):
        assert "session\nmkdir" not in file.read_text()
