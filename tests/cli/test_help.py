"""Help that helps: examples that can be typed, what an ID may be, the settings, 80 columns."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ckptfs.cli.verbs import VERBS, make_parser, parser_of
from ckptfs.cli.words.examples import EXAMPLES, GROUPS, SHORT_HELP
from ckptfs.history.settings import SETTINGS
from tests.cli.conftest import ScratchHome

CLI_PAGE = Path(__file__).parents[2] / "docs" / "CLI.md"


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


def test_the_help_of_all_has_every_verb_once_by_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert sorted(verb for verbs in GROUPS.values() for verb in verbs) == sorted(VERBS)
    shown = make_parser().format_help().splitlines()
    assert [line for line in shown if len(line) > 80] == []
    for title, verbs in GROUPS.items():
        at = shown.index(f"{title}:")
        assert shown[at + 1].split()[0] == verbs[0]


def test_the_reference_has_the_verbs_in_the_same_groups() -> None:
    table = CLI_PAGE.read_text().split("\n\n")[1]
    for title, verbs in GROUPS.items():
        links = ", ".join(f"[{verb}](#{verb})" for verb in verbs)
        assert f"| {title} | {links} |" in table


def test_the_help_of_a_verb_has_its_own_options_first() -> None:
    shown = parser_of("restore").format_help()
    usage, _, rest = shown.partition("\n\n")
    assert "--dry-run" in usage
    assert "--json" not in usage
    assert rest.index("--dry-run") < rest.index("for every verb:") < rest.index("--json")


@pytest.mark.parametrize("words", [["help"], ["help", "restore"]])
def test_help_may_be_typed_as_a_verb(words: list[str], place: ScratchHome) -> None:
    done = place.run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == place.run(*words[1:], "--help").stdout


@pytest.mark.parametrize("words", [["help", "restor"], ["restor", "--help"]])
def test_help_about_a_mistyped_verb_says_which_may_be_meant(
    words: list[str], place: ScratchHome
) -> None:
    done = place.run(*words)
    assert done.returncode == 2
    assert "`ckptfs restore`" in done.stderr


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
