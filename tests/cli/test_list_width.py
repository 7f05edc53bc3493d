"""`ckptfs list` on a terminal: a line each, cut in the middle of its remarks."""

from __future__ import annotations

import pytest

from ckptfs.cli.checkpoints import _lines
from ckptfs.cli.diff import _version_line
from ckptfs.cli.output import JsonObject, cut_middle

CHECKPOINT: JsonObject = {
    "id": 7,
    "time_ns": 0,
    "kind": "auto",
    "message": "before: " + "x" * 200 + " the end",
    "runs": [],
    "tag": "",
    "pinned": False,
    "metadata": {},
    "cause": {},
    "added": 1,
    "modified": 0,
    "deleted": 0,
}


def test_a_line_fits_the_terminal_and_keeps_both_ends() -> None:
    (line,) = _lines([CHECKPOINT], 80)
    assert len(line) == 80
    assert "before: xx" in line
    assert line.endswith("the end")


def test_a_pipe_gets_the_whole_line() -> None:
    (line,) = _lines([CHECKPOINT])
    assert "…" not in line
    assert len(line) > 200


@pytest.mark.parametrize("width", [1, 2, 5, 9])
def test_a_cut_text_has_the_width(width: int) -> None:
    assert len(cut_middle("abcdefghij", width)) == width
    assert cut_middle("abcdefghij", 10) == "abcdefghij"


def test_how_a_run_ended_is_never_cut_away() -> None:
    run = {"command": "sh -c 'rm -r build'", "exit_code": 1, "duration_ms": 7}
    message = f"after: {run['command']} " + "y" * 100
    (line,) = _lines([{**CHECKPOINT, "message": message, "runs": [run]}], 80)
    assert len(line) == 80
    assert "after:" in line and line.endswith(" (exit code 1, 7 ms)")


def test_a_command_of_ours_is_not_named_as_who_did_it() -> None:
    (line,) = _lines([CHECKPOINT | {"cause": {"command": "ckptfs restore 3"}, "message": "m"}])
    assert line.endswith("m")
    (line,) = _lines([CHECKPOINT | {"cause": {"command": "-bash"}, "message": "m"}])
    assert line.endswith("m  by bash")


def test_a_version_names_path_and_program_whole_and_cuts_the_message() -> None:
    version = {
        "path": "src/app.py",
        "kinds": [],
        "status": "M",
        "writer": {"command": "/usr/bin/python3 -m black " + "x" * 100},
        "saved": CHECKPOINT,
    }
    line = _version_line(version, 80)
    assert len(line) == 80
    assert "src/app.py  by black  before" in line
    assert line.endswith("end")
