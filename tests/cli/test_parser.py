"""What can be typed, and where."""

from __future__ import annotations

import pytest

from ckptfs.cli.verbs import make_parser
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


def test_mount_has_defaults() -> None:
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


def test_options_stand_anywhere_among_the_words_of_a_verb() -> None:
    restore = make_parser().parse_args("restore 5 --if-unchanged t a --dry-run b".split())
    assert (restore.checkpoint, restore.paths) == ("5", ["a", "b"])
    assert (restore.token, restore.dry_run) == ("t", True)
    diff = make_parser().parse_args("diff 1 --stat 2 -- --stat".split())
    assert (diff.refs, diff.stat, diff.paths) == (["1", "2"], True, ["--stat"])
    tag = make_parser().parse_args("tag 5 --move -w d t".split())
    assert (tag.checkpoint, tag.tag, tag.move, tag.workspace) == ("5", "t", True, "d")


def test_what_stands_behind_two_dashes_is_no_option() -> None:
    assert make_parser().parse_args(["restore", "5", "--", "--force"]).paths == ["--force"]


def test_a_negative_number_is_no_option() -> None:
    assert make_parser().parse_args(["rewind", "--force", "-1"]).steps == -1


def test_an_unknown_option_among_words_is_named() -> None:
    with pytest.raises(UsageError, match="--nope"):
        make_parser().parse_args("restore 5 --nope q".split())


def test_a_mistyped_option_is_answered_with_the_nearest_and_the_help_of_its_verb() -> None:
    with pytest.raises(UsageError, match="`ckptfs save` has no option --tga") as caught:
        make_parser().parse_args(["save", "--tga", "x"])
    assert caught.value.hint == "Did you mean --tag? `ckptfs save --help` lists them."


def test_a_mistyped_option_is_told_before_what_else_is_missing() -> None:
    with pytest.raises(UsageError, match="no option --forse"):
        make_parser().parse_args(["restore", "--forse"])
