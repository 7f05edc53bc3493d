"""References: one grammar, and errors that help."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs import history
from ckptfs.errors import CheckpointUnknown
from ckptfs.fs import Filesystem
from ckptfs.history import Checkpoint
from ckptfs.history.references import (
    SAFE_TAG_BYTES,
    is_reserved,
    resolve,
    resolve_checkpoint,
    safe_tag,
)
from tests.direct import new_filesystem

MINUTE = 60_000_000_000
NOON = int(datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()) * 1_000_000_000
NOW = NOON + 180 * MINUTE


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Filesystem]:
    with new_filesystem(tmp_path / "store") as fs:
        yield fs


def save(fs: Filesystem, minute: int, message: str = "", tag: str = "") -> Checkpoint:
    return history.seal(fs, "manual", message, NOON + minute * MINUTE, tag=tag)


def number(fs: Filesystem, text: str) -> int | None:
    found = resolve(fs, text, NOW, UTC).checkpoint
    return None if found is None else found.id


def refusal(fs: Filesystem, text: str) -> CheckpointUnknown:
    with pytest.raises(CheckpointUnknown) as caught:
        resolve(fs, text, NOW, UTC)
    assert caught.value.message.endswith("Nothing was changed.")
    return caught.value


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filesystem]:
    """Checkpoints 0 to 4, taken at 12:00, 12:30, 13:00, 13:30 and 14:00. Only to be read."""
    with new_filesystem(tmp_path_factory.mktemp("five") / "store") as fs:
        for index in range(5):
            save(fs, 30 * index)
        yield fs


@pytest.mark.parametrize(
    "text, expected",
    [
        ("@", None),
        ("now", None),
        ("@-0", None),
        ("@-1", 4),
        ("@-2", 3),
        ("@-5", 0),
        ("latest", 4),
        ("LATEST", 4),
        ("0", 0),
        (" 3 ", 3),
        ("003", 3),
        ("13:00", 2),
        ("13:29", 2),
        ("13:30:00", 3),
        ("2026-11-16 12:59", 1),
        ("90 minutes ago", 3),
        ("0 seconds ago", 4),
        ("2030-01-01", 4),
    ],
)
def test_every_kind_of_reference_names_its_checkpoint(
    five: Filesystem, text: str, expected: int | None
) -> None:
    assert number(five, text) == expected


def test_a_reference_gives_the_epoch_to_view(five: Filesystem) -> None:
    store = five.store
    assert resolve(five, "@", NOW, UTC).epoch(five) == store.head.epoch
    assert resolve(five, "1", NOW, UTC).epoch(five) == history.find(store, 1).epoch


def test_steps_back_follow_the_way_that_led_here(fs: Filesystem) -> None:
    for minute in range(4):
        save(fs, minute)
    history.restore(fs, history.find(fs.store, 1))
    assert number(fs, "@-1") == 1
    assert number(fs, "@-2") == 0
    assert number(fs, "latest") == 4  # what the restore saved


def test_a_moment_is_looked_for_among_all_checkpoints_by_time(fs: Filesystem) -> None:
    for minute in (0, 60, 30):  # the clock was set back in between
        save(fs, minute)
    assert number(fs, "12:45") == 2
    assert number(fs, "13:00") == 1


def restore(
    fs: Filesystem, minute: int, target: int, monkeypatch: pytest.MonkeyPatch, **taking_back: Any
) -> None:
    monkeypatch.setattr(fs, "clock", lambda: NOON + minute * MINUTE)
    history.restore(fs, history.find(fs.store, target), **taking_back)


def test_a_time_after_a_restore_is_what_the_restore_brought(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(fs, 5), save(fs, 10)
    restore(fs, 15, 0, monkeypatch)  # leaves 2
    assert number(fs, "12:14") == 1
    assert number(fs, "12:16") == 0
    (undone,) = history.restore_log(fs)
    restore(fs, 20, 2, monkeypatch, kind="undo", takes_back=undone)  # leaves 3
    assert number(fs, "12:19") == 0
    assert number(fs, "12:21") == 2
    save(fs, 30)
    assert number(fs, "12:31") == 4


def test_a_time_at_which_a_deleted_checkpoint_stood_is_refused(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = save(fs, 5), save(fs, 10)
    restore(fs, 15, 0, monkeypatch)
    fs.store.describe_epoch(first.epoch, {})
    assert "checkpoint 0 stood" in refusal(fs, "12:16").message


# -- tags ------------------------------------------------------------------------------------------


def test_a_tag_as_it_was_given_and_in_its_safe_form(fs: Filesystem) -> None:
    save(fs, 0, tag="release/1.0 beta")
    save(fs, 1, tag="../../etc")
    assert number(fs, "release/1.0 beta") == 0
    assert number(fs, "release-1.0-beta") == 0
    assert number(fs, "../../etc") == 1


@pytest.mark.parametrize("tag", ["0", "latest", "Latest", "@", "@-1", "now", "12:00", "yesterday"])
def test_a_tag_does_not_take_another_meaning_away(fs: Filesystem, tag: str) -> None:
    save(fs, -60 * 24 * 7)
    meant = number(fs, tag) if tag != "@" else None
    tagged = save(fs, -1, tag=tag)
    save(fs, -1)
    assert tagged.id != number(fs, tag)
    assert meant is None or number(fs, tag) in (meant, 2)
    assert number(fs, safe_tag(tag)) == tagged.id


def test_a_tag_on_two_checkpoints_is_ambiguous(fs: Filesystem) -> None:
    for minute in range(3):
        save(fs, minute, tag="" if minute == 1 else "good")
    error = refusal(fs, "good")
    assert "ambiguous: 0 and 2" in error.message
    assert error.near == ("0", "2")


def test_two_tags_of_one_safe_form_are_ambiguous_only_in_that_form(fs: Filesystem) -> None:
    save(fs, 0, tag="a/b")
    save(fs, 1, tag="a b")
    save(fs, 2, tag="a+b")
    assert number(fs, "a/b") == 0
    assert number(fs, "a b") == 1
    assert "ambiguous" in refusal(fs, "a-b").message


@given(st.text(st.characters() | st.sampled_from("./-@:0129\0\n\x1b\u202e\udc80"), max_size=300))
def test_a_safe_tag_is_a_harmless_name(raw: str) -> None:
    safe = safe_tag(raw)
    assert safe and len(safe.encode()) <= SAFE_TAG_BYTES
    assert not safe.startswith((".", "-")) and not is_reserved(safe)
    assert all(char.isalnum() or char in "._-+=" for char in safe)
    assert safe_tag(safe) == safe


@pytest.mark.parametrize(
    "raw, safe",
    [
        ("release-1.0", "release-1.0"),
        ("before the big refactoring", "before-the-big-refactoring"),
        ("año", "año"),
        ("a/../b", "a-..-b"),
        (".git", "git"),
        ("-rf", "rf"),
        ("12", "tag-12"),
        ("\uff12\uff14", "tag-\uff12\uff14"),
        ("latest", "tag-latest"),
        ("2026-11-16", "tag-2026-11-16"),
        ("..", "tag"),
        ("\x1b]0;x\x07", "0-x"),
    ],
)
def test_tags_have_the_safe_forms_of_the_table(raw: str, safe: str) -> None:
    assert safe_tag(raw) == safe


# -- what is not there -----------------------------------------------------------------------------


def test_an_unknown_number_names_its_neighbours(five: Filesystem) -> None:
    assert refusal(five, "7").near == ("4",)
    assert "There is no checkpoint 7." in refusal(five, "7").message
    assert refusal(five, "9" * 5000).near == ("4",)


def test_a_deleted_number_names_its_neighbours(fs: Filesystem) -> None:
    save(fs, 0, message="first")
    middle = save(fs, 1)
    save(fs, 2, tag="good")
    fs.store.describe_epoch(middle.epoch, {})
    assert refusal(fs, "1").near == ("0 (first)", "2 (tag good)")


def test_a_misspelt_tag_names_the_right_one(fs: Filesystem) -> None:
    save(fs, 0, tag="release-1")
    save(fs, 1, message="before: rm -rf build")
    assert refusal(fs, "relaese-1").near == ("0 (tag release-1)",)
    assert "Did you mean 0 (tag release-1)?" in refusal(fs, "relaese-1").hint
    assert refusal(fs, "rm -rf biuld").near == ("1 (before: rm -rf build)",)
    assert refusal(fs, "build").near == ("1 (before: rm -rf build)",)
    assert refusal(fs, "lastest").near == ("latest",)
    assert refusal(fs, "zzzz").near == ()


def test_going_too_far_back_names_the_furthest(five: Filesystem) -> None:
    error = refusal(five, "@-6")
    assert "only 5 checkpoints before now" in error.message
    assert error.near == ("@-5",)


def test_a_time_before_the_first_checkpoint_names_the_oldest(five: Filesystem) -> None:
    error = refusal(five, "2026-11-16 11:00")
    assert "as old as 2026-11-16 11:00" in error.message
    assert error.near == ("0",)


def test_with_no_checkpoint_nothing_but_now_is_there(fs: Filesystem) -> None:
    for text in ("latest", "@-1", "0", "12:00", "x", "", "@1", "@--", "-1", "1.5"):
        assert refusal(fs, text).near == ()
    assert number(fs, "@") is None


def test_now_is_not_a_checkpoint(five: Filesystem) -> None:
    assert resolve_checkpoint(five, "latest", NOW, UTC).id == 4
    with pytest.raises(CheckpointUnknown, match="@ is the workspace as it is"):
        resolve_checkpoint(five, "@", NOW, UTC)
