"""What can be typed, and where."""

from __future__ import annotations

import pytest

from ckptfs.cli.parser import make_parser
from ckptfs.errors import UsageError


@pytest.mark.parametrize(
    "words",
    [
        ["-w", "d", "--json", "status"],
        ["status", "-w", "d", "--json"],
        ["--json", "status", "-w", "d"],
        ["-w", "d", "status", "--json"],
        ["--workspace=d", "status", "--json"],
    ],
)
def test_common_options_stand_before_or_after_the_verb(words: list[str]) -> None:
    args = make_parser().parse_args(words)
    assert (args.verb, args.workspace, args.json) == ("status", "d", True)


def test_common_options_have_defaults() -> None:
    args = make_parser().parse_args(["status"])
    assert (args.workspace, args.json) == (None, False)


def test_the_later_workspace_wins() -> None:
    assert make_parser().parse_args(["-w", "a", "status", "-w", "b"]).workspace == "b"


def test_mount_takes_everything() -> None:
    words = "mount d --store s --foreground --xattrs --allow-other --from f --no-write-back"
    args = make_parser().parse_args(words.split())
    assert (args.directory, args.store, args.source) == ("d", "s", "f")
    assert (args.foreground, args.xattrs, args.allow_other, args.write_back) == (
        True,
        True,
        True,
        False,
    )


def test_mount_defaults() -> None:
    args = make_parser().parse_args(["mount", "d"])
    assert (args.store, args.source, args.xattrs) == (None, None, None)
    assert (args.foreground, args.allow_other, args.write_back) == (False, False, True)


def test_xattrs_can_be_refused() -> None:
    assert make_parser().parse_args(["mount", "d", "--no-xattrs"]).xattrs is False


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        ["mount", "a", "b"],
        ["mount", "d", "--stor", "s"],
        ["mount", "d", "--store"],
        ["umount", "d", "--lazy", "--force"],
        ["import"],
        ["export"],
        ["status", "--bogus"],
        ["mount", ""],
        ["mount", "d", "--store", ""],
        ["-w", "", "status"],
    ],
)
def test_nonsense_is_a_usage_error(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        make_parser().parse_args(words)
    assert "\n" not in caught.value.message
    assert "--help" in caught.value.hint
