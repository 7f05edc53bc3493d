"""Which program a run was of, and how it ended."""

from __future__ import annotations

import pytest

from ckptfs.history.checkpoints import Checkpoint, Run
from ckptfs.history.runs import exit_code_of, last_run
from ckptfs.model import Epoch


def is_found(command: str, name: str) -> bool:
    checkpoint = Checkpoint(1, Epoch(1), "run", "", 0, runs=(Run(command, 0, 5, 6),))
    return last_run(checkpoint, name) is not None


@pytest.mark.parametrize(
    "command",
    [
        "pytest",
        ".venv/bin/pytest -q",
        "cd src && FAST=1 pytest -q | tail",
        "timeout 60 python3 -m pytest -x",
        "uv run pytest",
        "coverage run -m pytest",
        "sh -c 'make && pytest'",
    ],
)
def test_a_program_is_found_however_it_is_run(command: str) -> None:
    assert is_found(command, "pytest")


@pytest.mark.parametrize(
    "command", ["pip install pytest", "grep -rn pytest .", "rm -r pytest", "echo 'run pytest'"]
)
def test_a_command_that_only_names_a_program_is_no_run_of_it(command: str) -> None:
    assert not is_found(command, "pytest")


def test_a_name_of_several_words_is_how_a_command_begins() -> None:
    assert is_found("cd src; /usr/bin/make test", "make test")
    assert is_found("./check.sh --all", "./check.sh")
    assert not is_found("make clean test", "make test")


@pytest.mark.parametrize(
    ("result", "code"),
    [("ok", 0), ("failed", 1), ("failed (-9)", -9), ("failed (--5)", 1), ("interrupted", None)],
)
def test_the_words_of_a_result_are_an_exit_code(result: str, code: int | None) -> None:
    assert exit_code_of(result) == code
