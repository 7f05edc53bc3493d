"""What reaches the screen: nothing that could act on a terminal, and JSON that everyone reads."""

from __future__ import annotations

import json
import os
from base64 import b64decode

import pytest

from ckptfs.cli import output
from ckptfs.cli.progress import progress
from ckptfs.errors import CkptfsError, MountpointMissing


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain name.txt", "plain name.txt"),
        ("grüße 日本 🙂", "grüße 日本 🙂"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\tc\r", "a\\x0ab\\x09c\\x0d"),
        ("\x7f\x9b31m", "\\x7f\\x9b31m"),
        ("evil\u202egnp.exe", "evil\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        (os.fsdecode(b"caf\xe9"), "caf\\xe9"),
        (12, "12"),
    ],
)
def test_control_characters_become_visible(text: object, shown: str) -> None:
    assert output.safe(text) == shown


def test_errors_are_shown_safely(capsys: pytest.CaptureFixture[str]) -> None:
    output.failure(MountpointMissing("/tmp/\x1b[31mred"), as_json=False)
    shown = capsys.readouterr()
    assert "\x1b" not in shown.err
    assert "\\x1b[31mred" in shown.err
    assert shown.out == ""


def test_an_error_for_a_program_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    output.failure(MountpointMissing("/x"), as_json=True)
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "mountpoint-missing"
    assert error["exit_code"] == 20


def test_an_error_without_hint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.failure(CkptfsError("It failed."), as_json=False)
    assert capsys.readouterr().err == "ckptfs: It failed.\n"


def test_json_has_exact_bytes_beside_replaced_text() -> None:
    record = output.portable({"path": os.fsdecode(b"caf\xe9"), "n": 1, "list": [{"p": "\udcff"}]})
    assert record["path"] == "caf\ufffd"
    assert b64decode(record["path_b64"]) == b"caf\xe9"
    assert b64decode(record["list"][0]["p_b64"]) == b"\xff"
    json.dumps(record, ensure_ascii=False).encode("utf-8")


def test_json_leaves_ordinary_strings_alone() -> None:
    record = {"path": "grüße", "deep": {"a": [1, "b", None]}, "flag": True}
    assert output.portable(record) == record


def test_a_result_is_for_machines_or_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    output.result({"id": 1}, "Saved.", as_json=True)
    output.result({"id": 1}, "Saved.", as_json=False)
    output.result({"id": 1}, "", as_json=False)
    assert capsys.readouterr().out == '{"id": 1}\nSaved.\n'


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (9 << 40, "9.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_sizes_have_the_unit_that_people_read(count: int, text: str) -> None:
    assert output.bytes_text(count) == text


def test_there_is_no_progress_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Reading") as show:
        assert show is None
    assert capsys.readouterr().err == ""


def passed(**changes: object) -> output.JsonObject:
    plain = {"added": 0, "modified": 0, "deleted": 0, "unchanged": 5, "bytes": 0}
    lists = {"conflicts": [], "skipped": [], "conflict_count": 0, "skipped_count": 0}
    return {**plain, **lists, **changes}


def test_counts_name_only_what_happened() -> None:
    assert output.changes_text(passed()) == "nothing"
    assert output.changes_text(passed(added=1200, deleted=1)) == "1,200 added, 1 deleted"


def test_what_was_copied_is_told_with_its_size() -> None:
    assert output.copied_text(passed(added=1, bytes=2048)) == "1 entry, 2.0 KiB"
    assert output.copied_text(passed(added=2)) == "2 entries, 0 B"


def test_remarks_name_conflicts_and_omissions() -> None:
    record = passed(
        conflicts=[{"path": "a", "kept_as": "a.conflict"}, {"path": "b", "kept_as": "b"}],
        conflict_count=2,
        skipped=[{"path": "\x1bdev", "reason": "not allowed"}],
        skipped_count=1,
    )
    assert list(output.remarks(record)) == [
        "a changed on both sides; the version from outside is kept as a.conflict.",
        "b was deleted in the workspace and changed outside; it was kept.",
        "Left out \\x1bdev: not allowed.",
    ]


def test_remarks_do_not_flood_the_screen() -> None:
    skipped = [{"path": str(n), "reason": "r"} for n in range(1000)]
    lines = list(output.remarks(passed(skipped=skipped, skipped_count=5000)))
    assert len(lines) == output.NAMED_MAX + 1
    assert "4,990 more" in lines[-1]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("short", ["short"]),
        ("one two three four five six", ["one two three four", "five six"]),
        ("  indented words go on so", ["  indented words go", "  on so"]),
        ("name  a value of words", ["name  a value of", "      words"]),
        ("x" * 30, ["x" * 30]),
        ("\x1b[31mckptfs:\x1b[m eleven char", ["\x1b[31mckptfs:\x1b[m eleven char"]),
    ],
)
def test_lines_are_broken_between_words(line: str, shown: list[str]) -> None:
    assert list(output._broken(line, 20)) == shown
