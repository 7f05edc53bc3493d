"""What errors say: the thing that was asked for, in the words it was asked in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ckptfs.cli.team import _count
from ckptfs.cli.verbs import VERBS, make_parser
from tests.cli.conftest import ScratchHome
from tests.support.mounting import succeed


@pytest.fixture
def plain(place: ScratchHome) -> ScratchHome:
    """A place with `proj`, a workspace that is not mounted, and `full`, a directory."""
    for name in ("proj", "full"):
        (place / name).mkdir()
        (place / name / "file").write_text("x")
    succeed(place.run("save", "-w", "proj", "--no-mount"))
    return place


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_a_count_of_one_has_a_singular_noun() -> None:
    told = [_count(1, "tasks"), _count(2, "tasks"), _count(1, "inboxes"), _count(1, "config")]
    assert told == ["1 task", "2 tasks", "1 inbox", "1 config"]


def test_only_what_is_missing_is_required(place: ScratchHome) -> None:
    assert refused(place.run("restore")).splitlines()[0].endswith("required: ID.")


def test_a_directory_above_home_is_called_that(place: ScratchHome) -> None:
    home = {"HOME": str(place / "home")}
    assert "above your home directory" in refused(place.run("mount", place.base, **home))


def test_a_refused_pattern_is_quoted_as_typed(plain: ScratchHome) -> None:
    assert refused(plain.run("mount", "proj", "--exclude", "[")).count("'['") == 2


def test_a_backup_is_no_export(plain: ScratchHome) -> None:
    assert f"Cannot write to {plain / 'full'}" in refused(plain.run("backup", "full", "-w", "proj"))


def test_ending_no_task_is_refused(plain: ScratchHome) -> None:
    assert "Cannot end a task:" in refused(plain.run("task", "done", "-w", "proj"))


def test_a_token_of_no_dry_run_is_refused(plain: ScratchHome) -> None:
    done = plain.run("restore", "0", "--if-unchanged", "zzz", "-w", "proj")
    assert "or the token is of none" in refused(done)


def test_a_long_value_keeps_the_columns(plain: ScratchHome) -> None:
    long = "node_modules/, *.log, build/"
    succeed(plain.run("config", "-w", "proj", "exclude.patterns", long))
    lines = succeed(plain.run("config", "-w", "proj")).stdout.splitlines()
    assert f"    {long}" in lines
    starts = {line.index(line[36:].lstrip()[:12], 36) for line in lines if line[0] != " "}
    assert starts == {36}


# -- the documents ---------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_has_the_form_of_a_verb_and_its_options(verb: str) -> None:
    reference = (ROOT / "docs/CLI.md").read_text()
    section = reference.partition(f"\n## {verb}\n")[2].partition("\n## ")[0]
    assert section.startswith(f"\n    ckptfs {verb}")
    (words,) = [
        action.choices[verb]
        for action in make_parser([verb])._actions
        if isinstance(action.choices, dict)
    ]
    general = reference.partition("\n## ")[0] + reference.partition("\n## JSON\n")[2]
    for action in words._actions:
        forms_of = action.option_strings
        known = not forms_of or any(option in section + general for option in forms_of)
        assert known or action.dest == "help", f"{verb} {forms_of}"
