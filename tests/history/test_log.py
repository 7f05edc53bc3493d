"""The history of one path."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptfs.history import Cause, seal
from ckptfs.history.log import history_of
from ckptfs.model import BLOCK_SIZE
from tests.history.edits import Edits, edits

Line = tuple[str, bytes, list[str]]


def told(work: Edits, path: bytes) -> list[Line]:
    """(message, path, kinds) of each version, newest first; what is not saved has no message."""
    return [
        (
            version.checkpoint.message if version.checkpoint else "",
            version.change.path,
            sorted(version.change.kinds),
        )
        for version in history_of(work.fs, path)
    ]


def test_a_path_is_listed_only_where_it_differs(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f", b"1")
        work.put("other", b"1")
        work.save("made")
        work.put("other", b"2")
        work.save("the other")
        work.put("f", b"2")
        work.save("written")
        work.change("f", mode=0o600)
        work.save("mode")
        work.change("f", mtime_ns=5)
        work.save("changed")
        work.put("f", b"3")
        assert told(work, b"f") == [
            ("", b"f", ["modified"]),
            ("mode", b"f", ["mode"]),
            ("written", b"f", ["modified"]),
            ("made", b"f", ["added"]),
        ]


def test_a_changed_block_under_the_same_times_is_found(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f", bytes(5 * BLOCK_SIZE))
        before = work.at("f")
        work.save("made")
        work.write("f", 3 * BLOCK_SIZE, b"!")
        work.change("f", mtime_ns=before.mtime_ns, ctime_ns=before.ctime_ns)
        work.save("written")
        work.save("nothing")
        assert told(work, b"f") == [
            ("written", b"f", ["modified"]),
            ("made", b"f", ["added"]),
        ]


def test_a_file_is_followed_over_renames(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.put("d/f", b"1")
        work.save("made")
        work.move("d/f", "g")
        work.save("moved")
        work.mkdir("e")
        work.move("g", "e/h")
        work.put("e/h", b"2")
        work.save("moved and written")
        work.move("e", "z")
        work.save("directory")
        expected = [
            ("directory", b"z/h", ["renamed"]),
            ("moved and written", b"e/h", ["modified", "renamed"]),
            ("moved", b"g", ["renamed"]),
            ("made", b"d/f", ["added"]),
        ]
        assert told(work, b"z/h") == expected
        assert told(work, b"g") == expected, "an older name leads to the same history"


def test_a_copy_that_took_its_place_is_followed(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f", b"the same bytes")
        work.save("made")
        work.put("g", b"the same bytes")
        work.remove("f")
        work.save("copied")
        assert told(work, b"g")[0] == ("copied", b"g", ["renamed", "times"])
        assert told(work, b"g")[1] == ("made", b"f", ["added"])


def test_a_file_that_an_editor_replaced_is_followed(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f", b"1")
        work.save("made")
        work.put("f~", b"2")
        work.move("f~", "f")
        work.save("edited")
        assert [line[0] for line in told(work, b"f")] == ["edited", "made"]


def test_a_file_replaced_in_a_renamed_directory_is_followed(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.put("d/f", b"1")
        work.save("made")
        work.remove("d/f")
        work.put("d/f", b"2")
        work.move("d", "e")
        work.save("both")
        expected = [("both", b"e/f", ["modified", "renamed"]), ("made", b"d/f", ["added"])]
        assert told(work, b"e/f") == told(work, b"d/f") == expected


def test_a_deleted_path_that_comes_again_is_one_history(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f", b"1")
        work.save("made")
        work.remove("f")
        work.save("removed")
        assert told(work, b"f") == [("removed", b"f", ["deleted"]), ("made", b"f", ["added"])]
        work.put("f", b"2")
        work.save("again")
        assert [line[2] for line in told(work, b"f")] == [["added"], ["deleted"], ["added"]]


def test_a_branch_that_a_restore_left_is_listed(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("kept", b"1")
        first = work.save("first")
        work.put("lost", b"1")
        work.save("second")
        work.go_back(first)
        assert told(work, b"lost") == [("second", b"lost", ["added"])]
        assert told(work, b"kept") == [("first", b"kept", ["added"])]


def test_a_directory_differs_when_something_below_does(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.mkdir("d/e")
        work.save("made")
        work.put("f", b"elsewhere")
        work.save("elsewhere")
        work.put("d/e/f", b"1")
        work.save("below")
        work.change("d", mode=0o700)
        work.save("itself")
        assert told(work, b"d") == [
            ("itself", b"d", ["mode"]),
            ("below", b"d", ["modified"]),
            ("made", b"d", ["added"]),
        ]


def test_a_path_that_never_existed_is_refused(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.save()
        with pytest.raises(FileNotFoundError):
            history_of(work.fs, b"nobody")


def test_automatic_checkpoints_name_the_likely_writer(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:

        def auto(message: str) -> None:
            seal(work.fs, "auto", message, work.fs.clock(), cause=Cause(command=message))

        work.put("f", b"1")
        work.save("by hand")
        work.put("f", b"2")
        auto("before: make")
        work.put("f", b"3")
        auto("before: rm")
        work.put("f", b"4")
        work.save("by hand")
        work.put("f", b"5")
        auto("after: tar")
        writers = [version.writer for version in history_of(work.fs, b"f")]
        assert [writer and writer.command for writer in writers] == [
            "after: tar",
            "before: rm",
            "before: make",
            None,
            None,
        ]
