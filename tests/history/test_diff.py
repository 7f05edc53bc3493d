"""What differs between two views: the cases that people meet, one by one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ckptfs.fs.renames import RENAME_EXCHANGE
from ckptfs.history import plan, removal
from ckptfs.history.checkpoints import checkpoints, empty_view
from ckptfs.history.diff.compare import Counts, count_changes, count_checkpoint
from ckptfs.history.diff.tree import Change, compare_views
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import View
from tests.history.edits import Edits, edits
from tests.history.replay import verify

Lines = dict[str, str]


def line(change: Change) -> str:
    words = " ".join(sorted(change.kinds))
    return f"{words} from {change.old_path!r}" if "renamed" in change.kinds else words


def told(work: Edits, a: View, b: View | None = None) -> Lines:
    changes = verify(work.fs, a, b or work.fs.head)
    return {change.path.decode("latin-1"): line(change) for change in changes}


def test_each_kind_of_change_is_named(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        for name in ("bytes", "mode", "owner", "xattr", "times", "type", "goes", "moves", "same"):
            work.put(name, b"content of " + name.encode())
        work.symlink("link", b"here")
        work.mkdir("dir")
        saved = work.save()
        work.write("bytes", 0, b"C")
        work.change("mode", mode=0o600)
        work.change("owner", uid=12)
        work.fs.setxattr(work.fs.head, work.at("xattr").ino, b"user.k", b"v")
        work.change("times", mtime_ns=1)
        work.remove("type")
        work.symlink("type", b"x")
        work.remove("goes")
        work.move("moves", "moved")
        work.remove("link")
        work.symlink("link", b"there")
        work.put("comes", b"")
        work.put("dir/\xff", b"")
        assert told(work, saved) == {
            "bytes": "modified",
            "mode": "mode",
            "owner": "owner",
            "xattr": "xattr",
            "times": "times",
            "type": "type",
            "goes": "deleted",
            "moved": "renamed from b'moves'",
            "link": "target times",
            "comes": "added",
            "dir/\xc3\xbf": "added",
        }
        assert count_changes(compare_views(work.fs, saved, work.fs.head)) == Counts(2, 7, 1)


def test_a_renamed_directory_is_one_change(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.mkdir("d/e")
        for number in range(20):
            work.put(f"d/e/{number}", b"x%d" % number)
        saved = work.save()
        work.move("d", "z")
        work.write("z/e/7", 0, b"!")
        assert told(work, saved) == {"z": "renamed from b'd'", "z/e/7": "modified"}
        [modified] = [c for c in compare_views(work.fs, saved, work.fs.head) if c.path == b"z/e/7"]
        assert modified.source == b"d/e/7"


def test_a_deleted_tree_lists_its_files(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.mkdir("d/e")
        work.put("d/e/f", b"1")
        saved = work.save()
        work.remove("d")
        assert told(work, saved) == {"d": "deleted", "d/e": "deleted", "d/e/f": "deleted"}
        assert told(work, work.fs.head, saved) == {"d": "added", "d/e": "added", "d/e/f": "added"}


def test_removed_and_made_again_is_the_same_directory(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.mkdir("d/e")
        work.put("d/e/f", b"1")
        work.put("d/e/g", b"1")
        saved = work.save()
        work.remove("d")
        work.mkdir("d")
        work.mkdir("d/e")
        work.put("d/e/f", b"2")
        assert told(work, saved) == {"d/e/f": "modified", "d/e/g": "deleted"}


def test_replaced_by_rename_is_modified(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f", b"1")
        saved = work.save()
        work.move("f", "f~")
        work.put("f", b"2")
        assert told(work, saved) == {"f": "modified", "f~": "added"}


def test_directories_that_change_places_are_both_renamed(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("a")
        work.mkdir("b")
        work.put("a/x", b"1")
        saved = work.save()
        work.move("a", "b", RENAME_EXCHANGE)
        assert told(work, saved) == {"a": "renamed from b'b'", "b": "renamed from b'a'"}


def test_a_change_of_a_hard_link_is_shown_under_each_name(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.put("one", b"1")
        work.link("one", "d/two")
        work.link("one", "three")
        saved = work.save()
        work.write("one", 0, b"2")
        work.link("one", "four")
        work.remove("three")
        assert told(work, saved) == {
            "one": "modified",
            "d/two": "modified",
            "four": "modified renamed from b'three'",
        }


def test_copied_and_removed_is_renamed_if_the_bytes_are_the_same(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.put("d/first", b"x" * 5000)
        work.put("d/second", b"x" * 5000)
        work.put("d/empty", b"")
        saved = work.save()
        work.mkdir("e")
        for name in ("second", "first", "empty"):
            work.put(f"e/{name}", b"" if name == "empty" else b"x" * 5000)
            work.remove(f"d/{name}")
        assert told(work, saved) == {
            "e": "added",
            "e/first": "renamed times from b'd/first'",
            "e/second": "renamed times from b'd/second'",
            "e/empty": "added",
            "d/empty": "deleted",
        }


def test_a_hole_is_as_good_as_zeros(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f", bytes(2 * BLOCK_SIZE) + b"end")
        saved = work.save()
        mtime_ns = work.at("f").mtime_ns
        work.put("f", b"")
        work.write("f", 2 * BLOCK_SIZE, b"end")
        work.change("f", mtime_ns=mtime_ns)
        assert told(work, saved) == {}


def test_written_back_is_no_change(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f", b"1" * 100_000)
        mtime_ns = work.at("f").mtime_ns
        saved = work.save()
        work.write("f", 70_000, b"2")
        other = work.save()
        work.write("f", 70_000, b"1")
        work.change("f", mtime_ns=mtime_ns)
        assert told(work, saved) == {}
        assert told(work, other) == {"f": "modified"}


def test_a_file_with_a_new_inode_number_is_no_change(tmp_path: Path) -> None:
    """A restore gives a file that is held open a new inode with the same bytes."""
    with edits(tmp_path / "store") as work:
        work.put("f", b"1")
        saved = work.save()
        work.fs.renumber(work.fs.head, work.at("f").ino)
        assert told(work, saved) == {}
        work.move("f", "g")
        assert told(work, saved) == {"g": "renamed from b'f'"}


def test_an_unlinked_file_that_is_open_is_deleted(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        ino = work.put("f", b"1")
        work.fs.hold(ino)
        saved = work.save()
        work.remove("f")
        assert told(work, saved) == {"f": "deleted"}
        nameless = work.save()
        work.fs.drop(ino)
        assert told(work, nameless) == {}


def test_a_change_of_the_root_itself_is_shown(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        saved = work.save()
        work.change("", mode=0o700)
        assert told(work, saved) == {".": "mode"}


def test_special_files_are_compared_by_type_and_device(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        fs = work.fs
        fs.mknod(fs.head, *work.place("fifo"), stat.S_IFIFO | 0o644, 0, 0)
        fs.mknod(fs.head, *work.place("dev"), stat.S_IFCHR | 0o644, 0, 0, 259)
        saved = work.save()
        work.remove("fifo")
        work.put("fifo", b"")
        work.remove("dev")
        fs.mknod(fs.head, *work.place("dev"), stat.S_IFCHR | 0o644, 0, 0, 260)
        assert told(work, saved) == {"fifo": "type", "dev": "modified"}


def test_a_tree_deeper_than_the_stack_is_compared(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        saved = work.save()
        parent = 1
        for _ in range(1500):
            parent = work.fs.mkdir(work.fs.head, parent, b"d", 0o755, 0, 0).ino
        changes = compare_views(work.fs, saved, work.fs.head)
        assert len(changes) == 1500
        assert len(compare_views(work.fs, work.fs.head, saved)) == 1500
        assert len(changes[-1].path) == 2999


def test_a_dry_run_of_a_restore_tells_the_same(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        for name in ("stays", "changes", "goes", "moves"):
            work.put(name, name.encode())
        work.save()
        work.put("changes", b"!")
        work.remove("goes")
        work.move("moves", "moved")
        work.put("new", b"new")
        [target] = checkpoints(work.store)
        found = plan(work.fs, target, [])
        assert found.modified == (b"changes",)
        assert found.added == (b"goes", b"moves")
        assert found.deleted == (b"moved", b"new")


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f")
        for number in range(200):
            work.write("f", number * BLOCK_SIZE, b"%d" % number * 5000)
        saved = work.save()
        work.write("f", 100 * BLOCK_SIZE, b"!")
        work.fs.flush()
        read: list[bytes] = []
        original = work.store.blocks.read

        def counted(key: bytes) -> object:
            read.append(key)
            return original(key)

        monkeypatch.setattr(work.store.blocks, "read", counted)
        assert len(compare_views(work.fs, saved, work.fs.head)) == 1
        assert len(read) <= 2


def test_a_checkpoint_is_counted_against_the_one_it_came_from(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.mkdir("d")
        work.put("d/f", b"1")
        first = work.save()
        work.put("g", b"1")
        work.put("d/f", b"2")
        second = work.save()
        work.remove("g")
        third = work.save()
        assert count_checkpoint(work.fs, first.epoch) == Counts(2, 0, 0)
        assert count_checkpoint(work.fs, second.epoch) == Counts(1, 1, 0)
        assert count_checkpoint(work.fs, third.epoch) == Counts(0, 0, 1)
        assert len(verify(work.fs, empty_view(), second)) == 3


def test_deleting_a_checkpoint_between_changes_no_comparison(tmp_path: Path) -> None:
    with edits(tmp_path / "store") as work:
        work.put("f", b"1")
        first = work.save()
        work.put("g", b"2" * 5000)
        middle = work.save()
        work.write("g", 0, b"3")
        third = work.save()
        before = told(work, first, third)
        doomed = [found for found in checkpoints(work.store) if found.epoch == middle.epoch]
        removal.hide(work.fs, doomed)
        assert count_checkpoint(work.fs, third.epoch) == Counts(1, 0, 0)
        removal.reap(work.fs)
        third = work.fs.view_of(third.epoch)
        assert told(work, first, third) == before == {"g": "added"}
        assert count_checkpoint(work.fs, third.epoch) == Counts(1, 0, 0)
