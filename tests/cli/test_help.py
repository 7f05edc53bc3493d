"""Help that helps: examples that can be typed, what an ID may be, the settings, 80 columns."""

from __future__ import annotations

import shlex

import pytest

from ckptfs.cli.verbs import VERBS, make_parser, parser_of
from ckptfs.cli.words.examples import EXAMPLES, SHORT_HELP
from ckptfs.history.settings import SETTINGS
from tests.cli.conftest import ScratchHome


def test_every_verb_has_examples() -> None:
    assert list(EXAMPLES) == list(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_examples_of_a_verb_can_be_typed(verb: str) -> None:
    for command, _ in EXAMPLES[verb]:
        program, *words = shlex.split(command)
        assert (program, words[0]) == ("ckptfs", verb)
        assert make_parser(words).parse_args(words).verb == verb


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_fits_a_terminal_of_80_columns(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = parser_of(verb).format_help()
    assert "\nExamples:\n" in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_help_says_what_an_id_may_be_where_one_can_stand() -> None:
    for verb in ("restore", "diff", "show", "pin", "exec", "export", "merge"):
        assert "An ID may be:" in parser_of(verb).format_help()
    for verb in ("mount", "team", "doctor"):
        assert "An ID may be:" not in parser_of(verb).format_help()


def test_the_help_of_config_lists_every_key_with_its_default() -> None:
    shown = parser_of("config").format_help()
    for name, setting in SETTINGS.items():
        assert f"  {name} = {setting.default or '(empty)'}\n      {setting.meaning}" in shown


def test_the_bare_command_says_where_to_begin(place: ScratchHome) -> None:
    done = place.run()
    assert (done.returncode, done.stdout, done.stderr) == (2, SHORT_HELP + "\n", "")
    for line in SHORT_HELP.splitlines():
        assert len(line) <= 80
        if line.startswith("  ckptfs "):
            words = shlex.split(line[2:].partition("   ")[0].partition("  ")[0])[1:]
            assert words == ["--help"] or make_parser(words).parse_args(words)


def test_the_manual_has_the_examples(place: ScratchHome) -> None:
    page = place.run("manual").stdout
    assert "ckptfs restore 12" in page.replace("\\-", "-")
    assert "An ID may be:" in page
    assert "ckptfs undo" in place.run("manual", "undo").stdout
