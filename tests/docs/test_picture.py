"""The picture of the README shows what its session prints today."""

from __future__ import annotations

from tests.docs.picture import PICTURE, Line, drawn, played, text_of
from tests.docs.sessions import agrees


def test_the_picture_has_what_the_session_prints() -> None:
    lines = played()
    shown = text_of(PICTURE.read_text())
    assert agrees(shown, [line.text for line in lines]), (
        "`.venv/bin/python -m tests.docs.picture` draws it anew"
    )


def test_what_is_drawn_can_be_read() -> None:
    lines = [
        Line("ls <a> & b", "command"),
        Line("    1  two  blanks", "output"),
        Line("", "output"),
    ]
    assert text_of(drawn(lines)) == [line.text for line in lines]
