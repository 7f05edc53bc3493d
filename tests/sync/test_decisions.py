"""Both sides changed: the table of docs/design/in-place.md, row by row."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import pytest

from ckptfs.sync.decide import Action, Side, decide
from tests.support.trees import File, Link, Same, tree
from tests.sync.pair import Pair
from tests.sync.test_write_back import settled

START = {"f": "start", "d": {"g": "inside"}, "other": "x"}


@pytest.fixture
def started(pair: Pair) -> Pair:
    pair.plant(START)  # type: ignore[arg-type]
    pair.scan()
    return pair


def test_every_pair_of_sides_has_an_action() -> None:
    for lower, store in itertools.product(Side, Side):
        assert isinstance(decide(lower, store), Action)


def test_a_stale_directory_is_not_newer_than_the_store(started: Pair) -> None:
    """The daemon died before the write-back: the lower directory is older than the store."""
    started.write("f", "newer")
    started.remove("d")
    started.write("new", "never written back")
    started.mkdir("dir")
    before = started.stored()
    started.reopen(commit=True)
    result = started.scan()
    assert not result.changed and not result.conflicts
    assert started.stored() == before
    started.write_back()
    settled(started)


def test_a_file_that_both_sides_edited_is_kept_twice(started: Pair) -> None:
    started.write("f", "store")
    (started.lower / "f").write_text("below")
    result = started.scan()
    assert result.conflicts == ((b"f", b"f.below"),)
    assert started.read("f") == b"store" and started.read("f.below") == b"below"
    # The next scan knows about it.
    assert started.scan().conflicts == ()
    started.write_back()
    assert tree(started.lower) == {**START, "f": "store", "f.below": "below"}
    settled(started)


def test_each_further_conflict_gets_a_further_name(started: Pair) -> None:
    for number, kept in ((1, b"f.below"), (2, b"f.below-2"), (3, b"f.below-3")):
        started.write("f", f"store {number}")
        (started.lower / "f").write_text(f"below {number}")
        assert started.scan().conflicts == ((b"f", kept),)
    started.write_back()
    settled(started)


def test_a_free_name_is_free_on_both_sides(started: Pair) -> None:
    started.write("f", "store")
    started.write("f.below", "the user's own, in the store")
    started.plant({"f": "below", "f.below-2": "the user's own, below"})
    assert started.scan().conflicts == ((b"f", b"f.below-3"),)
    started.write_back()
    settled(started)


def test_a_second_version_of_the_longest_name_is_cut_to_fit(pair: Pair) -> None:
    name = "n" * 255
    pair.plant({name: "start"})
    pair.scan()
    pair.write(name, "store")
    (pair.lower / name).write_text("below")
    (conflict,) = pair.scan().conflicts
    assert conflict.kept_as == b"n" * 249 + b".below"
    pair.write_back()
    settled(pair)


def test_equal_files_that_both_sides_made_are_no_conflict(started: Pair) -> None:
    """As after a write-back that ended before the ledger was written."""
    started.write("f", "same")
    started.touch("f", 5)
    started.write("n", "new")
    started.touch("n", 6)
    started.plant({"f": File("same", mtime_ns=5), "n": File("new", mtime_ns=6)})
    result = started.scan()
    assert not result.conflicts and not result.changed
    result = started.write_back()
    # Only the root's time is still to be brought down.
    assert not result.changed
    settled(started)


def test_an_edit_of_a_lower_file_wins_over_a_deletion_in_the_store(started: Pair) -> None:
    started.remove("f")
    started.remove("d")
    (started.lower / "f").write_text("worth keeping")
    (started.lower / "d/g").write_text("this too")
    (started.lower / "d/h").write_text("and this")
    result = started.scan()
    assert set(result.conflicts) == {(b"f", b"f"), (b"d/g", b"d/g")}
    assert started.names() == {".", "f", "d", "d/g", "d/h", "other"}
    started.write_back()
    settled(started)


def test_a_touch_of_a_lower_file_does_not_win_over_a_deletion_in_the_store(started: Pair) -> None:
    """A copy of the directory, or a chmod, is no edit: what was deleted stays deleted."""
    started.remove("f")
    os.utime(started.lower / "f", ns=(1, 1))
    (started.lower / "f").chmod(0o600)
    result = started.scan()
    assert not result.conflicts and not result.changed
    started.write_back()
    assert not (started.lower / "f").exists()
    settled(started)


def test_an_edit_in_the_store_wins_over_a_deletion_of_the_lower_file(started: Pair) -> None:
    started.write("f", "edited")
    started.write("d/new", "added")
    (started.lower / "f").unlink()
    (started.lower / "d/g").unlink()
    (started.lower / "d").rmdir()
    result = started.scan()
    assert not result.conflicts and result.deleted == 1
    assert started.names() == {".", "f", "d", "d/new", "other"}
    started.write_back()
    settled(started)


def test_an_empty_directory_of_the_store_is_not_deleted(started: Pair) -> None:
    started.mkdir("d/fresh")
    (started.lower / "d/g").unlink()
    (started.lower / "d").rmdir()
    started.scan()
    assert started.names() == {".", "f", "d", "d/fresh", "other"}
    started.write_back()
    settled(started)


def test_what_both_sides_deleted_is_forgotten(started: Pair) -> None:
    started.remove("d")
    (started.lower / "d/g").unlink()
    (started.lower / "d").rmdir()
    assert not started.scan().changed
    started.write_back()
    settled(started)


# -- attributes ------------------------------------------------------------------------------------


def test_attributes_of_one_side_and_content_of_the_other_are_merged(started: Pair) -> None:
    started.chmod("f", 0o600)
    (started.lower / "f").write_text("edited below")
    started.write("d/g", "edited in the store")
    (started.lower / "d/g").chmod(0o755)
    result = started.scan()
    assert not result.conflicts
    started.write_back()
    assert (started.lower / "f").read_text() == "edited below"
    assert (started.lower / "f").stat().st_mode & 0o7777 == 0o600
    assert (started.lower / "d/g").read_text() == "edited in the store"
    assert (started.lower / "d/g").stat().st_mode & 0o7777 == 0o755
    settled(started)


def test_the_mode_of_the_store_wins_where_both_sides_changed_it(started: Pair) -> None:
    started.chmod("f", 0o600)
    started.chmod("d", 0o700)
    (started.lower / "f").chmod(0o666)
    (started.lower / "d").chmod(0o777)
    assert not started.scan().conflicts
    started.write_back()
    assert (started.lower / "f").stat().st_mode & 0o777 == 0o600
    assert (started.lower / "d").stat().st_mode & 0o777 == 0o700
    settled(started)


# -- types -----------------------------------------------------------------------------------------

EDITS: dict[str, Callable[[Pair], object]] = {
    "file": lambda pair: pair.write("t", "in the store"),
    "dir": lambda pair: (pair.mkdir("t"), pair.write("t/i", "in the store")),
    "link": lambda pair: pair.symlink("t", "in/the/store"),
}

TREES = {"file": "below", "dir": {"i": "below", "j": "below"}, "link": Link("below")}


@pytest.mark.parametrize("start", [None, *TREES])
@pytest.mark.parametrize("store", [None, *EDITS])
@pytest.mark.parametrize("lower", [None, *TREES])
def test_every_combination_of_types_keeps_what_both_sides_have(
    pair: Pair, start: str | None, store: str | None, lower: str | None
) -> None:
    """Whatever each side turns a name into, both versions are there afterwards, on both sides."""
    if start is not None:
        pair.plant({"t": {"file": "s", "dir": {"i": "s", "k": "s"}, "link": Link("s")}[start]})  # type: ignore[dict-item]
    pair.scan()
    if start is not None:
        pair.remove("t")
        os.rename(pair.lower / "t", pair.root / "aside")
    if store is not None:
        EDITS[store](pair)
    if lower is not None:
        pair.plant({"t": TREES[lower]})  # type: ignore[dict-item]
    result = pair.scan()
    pair.write_back()
    settled(pair)
    contents = {entry.content for entry in pair.stored().values()} - {b"", b"s"}
    assert (b"in the store" in contents or b"in/the/store" in contents) == (store is not None)
    assert (b"below" in contents) == (lower is not None)
    beside = [conflict for conflict in result.conflicts if conflict.path != conflict.kept_as]
    assert bool(beside) == (store is not None and lower is not None)


# -- moves -----------------------------------------------------------------------------------------


def test_an_edit_in_a_lower_directory_that_the_store_moved_comes_in_at_the_new_place(
    started: Pair,
) -> None:
    started.rename("d", "moved")
    (started.lower / "d/g").write_text("edited below")
    (started.lower / "d/new").write_text("new below")
    result = started.scan()
    assert not result.conflicts
    assert started.read("moved/g") == b"edited below"
    assert started.read("moved/new") == b"new below"
    started.write_back()
    settled(started)


def test_a_directory_that_the_store_moved_survives_a_deletion_of_the_lower_one(
    started: Pair,
) -> None:
    started.rename("d", "moved")
    (started.lower / "d/g").unlink()
    (started.lower / "d").rmdir()
    started.scan()
    assert started.read("moved/g") == b"inside"
    started.write_back()
    settled(started)


def test_a_new_lower_directory_does_not_merge_with_one_that_the_store_moved_there(
    started: Pair,
) -> None:
    started.rename("d", "moved")
    (started.lower / "moved").mkdir()
    (started.lower / "moved/h").write_text("another directory")
    result = started.scan()
    assert result.conflicts == ((b"moved", b"moved.below"),)
    started.write_back()
    assert tree(started.lower) == {
        "f": "start",
        "moved": {"g": "inside"},
        "moved.below": {"h": "another directory"},
        "other": "x",
    }
    settled(started)


def test_edits_find_their_directory_after_a_deletion_and_a_move_over_it(pair: Pair) -> None:
    pair.plant({"x": {"a": "1"}, "y": {"b": "2"}})
    pair.scan()
    pair.remove("x")
    pair.rename("y", "x")
    (pair.lower / "x/a").write_text("edited")
    (pair.lower / "y/b").write_text("edited too")
    result = pair.scan()
    assert [conflict.path for conflict in result.conflicts] == [b"x/a"]
    assert pair.read("x/a") == b"edited" and pair.read("x/b") == b"edited too"
    pair.write_back()
    settled(pair)


# -- hard links ------------------------------------------------------------------------------------


def test_hard_links_that_both_sides_edited_are_kept_twice(pair: Pair) -> None:
    pair.plant({"a": "start", "b": Same("a")})
    pair.scan()
    pair.write("a", "store")
    (pair.lower / "b").write_text("below")
    result = pair.scan()
    assert {conflict.path for conflict in result.conflicts} == {b"a", b"b"}
    pair.write_back()
    settled(pair)
    assert pair.read("a") == pair.read("b") == b"store"


def test_an_edit_of_a_lower_file_reaches_its_links_in_the_store(started: Pair) -> None:
    started.link("f", "f2")
    with (started.lower / "f").open("a") as file:
        file.write("ed below")
    assert not started.scan().conflicts
    assert started.read("f2") == b"started below"
    started.write_back()
    settled(started)


@pytest.mark.parametrize("new", ["a", "z"])
def test_a_mode_of_the_store_reaches_a_lower_file_that_was_linked_meanwhile(
    started: Pair, new: str
) -> None:
    """Whichever name comes first, the store's mode reaches the lower file."""
    started.chmod("f", 0o600)
    os.link(started.lower / "f", started.lower / new)
    assert not started.scan().conflicts
    started.write_back()
    assert (started.lower / new).stat().st_mode & 0o777 == 0o600
    settled(started)


def test_attributes_of_a_linked_lower_file_are_no_edit_of_its_other_name(pair: Pair) -> None:
    """Attributes given to one lower name show under the other: that is no edit of the user's."""
    pair.plant({"a": "x"})
    pair.scan()
    pair.link("a", "b")
    pair.touch("a", 573)
    pair.symlink("d", "store's own")
    os.link(pair.lower / "a", pair.lower / "d")
    result = pair.write_back()
    assert result.conflicts == ((b"d", b"d.below"),) and not result.skipped
    settled(pair)
