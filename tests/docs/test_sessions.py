"""Every `$` session of the pages does what the page says.

`CKPTFS_RECORD=1 pytest tests/docs/test_sessions.py` writes what is printed now into the pages.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, name_of
from tests.docs.sessions import Session, agrees, record, sessions, shell

_ALL = [
    (page, number, session)
    for page in PAGES
    for number, session in enumerate(sessions(page.read_text()))
]


@pytest.mark.parametrize(
    "page, number, session",
    [
        pytest.param(page, number, session, id=f"{name_of(page)}-{session.line + 1}")
        for page, number, session in _ALL
        if not session.not_run
    ],
)
def test_a_session_prints_what_its_page_says(page: Path, number: int, session: Session) -> None:
    with shell() as opened:
        if session.prepare:
            opened.run(session.prepare)
        printed = [opened.run(command.line) for command in session.commands]
    if os.environ.get("CKPTFS_RECORD"):
        record(page, number, printed)
        return
    for command, found in zip(session.commands, printed, strict=True):
        if not agrees(command.expected, found):
            # The lists are shown side by side.
            assert [command.line, *command.expected] == [command.line, *found]


def test_sessions_that_cannot_be_run_are_few_and_say_why() -> None:
    left_out = [session for _, _, session in _ALL if session.not_run]
    assert len(left_out) <= 1, [session.not_run for session in left_out]


def test_a_page_has_no_comment_that_means_nothing() -> None:
    for page in PAGES:
        text = page.read_text()
        assert text.count("<!-- session") == len(
            {session.line for session in sessions(text) if session.line or text.startswith("<!--")}
        ), f"{name_of(page)}: a comment `session` without a command behind it"


@pytest.mark.parametrize(
    "expected, printed, same",
    [
        (["a", "...", "d"], ["a", "b", "c", "d"], True),
        (["a", "...", "d"], ["a", "b", "c"], False),
        (["took 3 ms"], ["took 412 ms"], True),
        (["1  2026-11-16 05:01:12  auto"], ["1  2027-01-01 00:00:00  auto"], True),
        (["2 names changed"], ["3 names changed"], False),
        (["text ... end"], ["text and more end"], True),
        ([], [""], True),
        ([], ["a line too many"], False),
        (["a"], ["Waiting up to 3 s for other mount namespaces that have it: sh (1).", "a"], True),
    ],
)
def test_only_what_differs_from_run_to_run_may_differ(
    expected: list[str], printed: list[str], same: bool
) -> None:
    assert agrees(expected, printed) is same
