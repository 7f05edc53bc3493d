"""Store to directory: adds, edits, deletes, moves, and doing nothing where nothing changed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from ckptfs.model import BLOCK_SIZE, Attributes
from ckptfs.sync.ledger import Ledger
from ckptfs.sync.lower import descend
from ckptfs.sync.results import Tally
from ckptfs.sync.write_back_state import WriteBackState
from tests.support.trees import Directory, Fifo, File, Link, Same, stats, tree
from tests.sync.pair import Pair

START = {
    "a": "one",
    "b": "two",
    "d": {"c": "three", "e": {"f": "four"}, "empty": {}},
    "l": Link("a"),
    "twin": Same("b"),
}


@pytest.fixture
def started(pair: Pair) -> Pair:
    pair.plant(START)  # type: ignore[arg-type]
    pair.scan()
    return pair


def settled(pair: Pair) -> None:
    """Both sides are equal, and neither pass finds anything to do."""
    pair.assert_equal()
    before = stats(pair.lower)
    result = pair.scan()
    assert not result.changed and not result.skipped and not result.conflicts
    result = pair.write_back()
    assert not result.changed and not result.skipped and not result.conflicts
    assert stats(pair.lower) == before
    pair.assert_equal()


def test_nothing_is_written_if_nothing_changed(started: Pair) -> None:
    before = stats(started.lower)
    result = started.write_back()
    assert not result.changed and result.bytes == 0
    assert stats(started.lower) == before
    settled(started)


def test_edits_are_written_back(started: Pair) -> None:
    started.write("a", "changed")
    started.write("d/e/f", "longer than it was before")
    started.chmod("d/c", 0o4711)
    started.touch("d/e", 99)
    result = started.write_back()
    assert (result.added, result.modified, result.deleted) == (0, 3, 0)
    assert (started.lower / "d/e").stat().st_mtime_ns == 99
    settled(started)


def test_new_entries_are_written_back(started: Pair) -> None:
    started.mkdir("new", 0o2770)
    started.mkdir("new/inner")
    started.write("new/inner/x", os.urandom(3 * BLOCK_SIZE + 5))
    started.write("new/empty", "")
    started.symlink("new/s", "any where")
    started.mknod("new/pipe", stat.S_IFIFO | 0o622)
    started.mknod("new/socket", stat.S_IFSOCK | 0o600)
    started.link("d/c", "new/c")
    assert started.write_back().added == 8
    settled(started)


def test_deletions_are_written_back(started: Pair) -> None:
    started.remove("a")
    started.remove("d")
    assert started.write_back().deleted == 6
    assert tree(started.lower) == {"b": "two", "l": Link("a"), "twin": "two"}
    settled(started)


@pytest.mark.parametrize("old", ["b", "d", "l"])
@pytest.mark.parametrize("new", ["file", "dir", "link", "pipe"])
def test_changes_of_type_are_written_back(started: Pair, old: str, new: str) -> None:
    started.remove(old)
    if new == "file":
        started.write(old, "now a file")
    elif new == "dir":
        started.mkdir(old)
        started.write(f"{old}/c", "in it")
    elif new == "link":
        started.symlink(old, "elsewhere")
    else:
        started.mknod(old, stat.S_IFIFO | 0o644)
    started.write_back()
    settled(started)


def test_content_that_did_not_change_is_not_written(started: Pair) -> None:
    before = (started.lower / "a").stat()
    started.write("a", "one")
    started.touch("a", before.st_mtime_ns)
    started.chmod("a", 0o600)
    result = started.write_back()
    assert result.bytes == 0 and result.modified == 1
    assert (started.lower / "a").stat().st_ino == before.st_ino
    settled(started)


def test_an_edit_with_the_old_mtime_is_written_back(started: Pair) -> None:
    mtime = started.inode("a").mtime_ns
    started.write("a", "eno")
    started.touch("a", mtime)
    started.write_back()
    assert (started.lower / "a").read_text() == "eno"
    settled(started)


def test_sparse_files_stay_sparse(pair: Pair) -> None:
    inode = pair.write("sparse", "x")
    head, fs = pair.fs.head, pair.fs
    fs.setattr(head, inode.ino, Attributes(size=1 << 36))
    fs.write(head, inode.ino, 1 << 35, b"middle")
    pair.write_back()
    seen = (pair.lower / "sparse").stat()
    assert seen.st_size == 1 << 36 and seen.st_blocks * 512 <= 4 * BLOCK_SIZE
    with (pair.lower / "sparse").open("rb") as file:
        file.seek(1 << 35)
        assert file.read(8) == b"middle\0\0"
    assert not pair.scan().changed


def test_user_xattrs_are_written_back(started: Pair) -> None:
    head, fs = started.fs.head, started.fs
    fs.setxattr(head, started.inode("a").ino, b"user.k", b"v")
    fs.setxattr(head, started.inode("d").ino, b"user.k", b"w")
    started.write_back()
    try:
        assert os.getxattr(started.lower / "a", "user.k") == b"v"
    except OSError:
        pytest.skip("no user xattrs here")
    assert os.getxattr(started.lower / "d", "user.k") == b"w"
    settled(started)
    fs.removexattr(head, started.inode("a").ino, b"user.k")
    fs.removexattr(head, started.inode("d").ino, b"user.k")
    started.write_back()
    assert os.listxattr(started.lower / "a") == os.listxattr(started.lower / "d") == []
    settled(started)


# -- hard links ------------------------------------------------------------------------------------


def test_an_edit_through_one_of_several_names_reaches_all(started: Pair) -> None:
    started.write("twin", "changed through the twin")
    started.write_back()
    assert (started.lower / "b").stat().st_ino == (started.lower / "twin").stat().st_ino
    settled(started)


def test_a_file_may_lose_one_of_its_names(started: Pair) -> None:
    started.remove("b")
    started.write_back()
    settled(started)


def test_hard_links_are_made_and_broken(started: Pair) -> None:
    started.link("a", "d/another")
    started.remove("twin")
    started.write("twin", "two")
    started.write_back()
    assert (started.lower / "b").stat().st_ino != (started.lower / "twin").stat().st_ino
    settled(started)
    started.remove("b")
    started.link("twin", "b")
    started.write_back()
    settled(started)


def test_a_name_moves_between_groups_of_links(pair: Pair) -> None:
    pair.plant({"a": "one", "b": Same("a"), "c": "two", "d": Same("c")})
    pair.scan()
    pair.remove("b")
    pair.link("c", "b")
    pair.write_back()
    settled(pair)


# -- moves -----------------------------------------------------------------------------------------


def lower_inos(pair: Pair, *paths: str) -> list[int]:
    return [(pair.lower / path).stat().st_ino for path in paths]


def test_a_moved_directory_is_moved_in_the_lower_directory(started: Pair) -> None:
    before = lower_inos(started, "d", "d/c", "d/e/f")
    started.rename("d", "moved")
    started.write("moved/c", "three")
    started.touch("moved/c", 3)
    result = started.write_back()
    assert result.bytes == 0
    assert lower_inos(started, "moved", "moved/c", "moved/e/f") == before
    settled(started)


def test_a_directory_may_be_moved_into_a_new_one_and_changed(started: Pair) -> None:
    inos = lower_inos(started, "d/e")
    started.mkdir("n")
    started.mkdir("n/m")
    started.rename("d/e", "n/m/e")
    started.write("n/m/e/f", "edited")
    started.write("n/m/e/g", "added")
    started.remove("d")
    started.write_back()
    assert lower_inos(started, "n/m/e") == inos
    settled(started)


def test_two_directories_may_exchange_their_names(pair: Pair) -> None:
    pair.plant({"a": {"one": "1"}, "b": {"two": "2"}})
    pair.scan()
    before = lower_inos(pair, "a", "b")
    pair.rename("a", "b", 2)
    pair.write_back()
    assert lower_inos(pair, "b", "a") == before
    settled(pair)


def test_a_directory_may_be_moved_out_of_its_child(pair: Pair) -> None:
    pair.plant({"a": {"b": {"c": {"f": "x"}}}})
    pair.scan()
    pair.rename("a/b/c", "c")
    pair.rename("a/b", "c/b")
    pair.rename("a", "c/b/a")
    result = pair.write_back()
    assert result.bytes == 0
    settled(pair)


def test_a_directory_may_be_moved_out_of_a_deleted_tree_over_another(pair: Pair) -> None:
    pair.plant({"old": {"keep": {"f": "x"}, "gone": {"g": "y"}}, "target": {"z": {"zz": "z"}}})
    pair.scan()
    pair.remove("target")
    pair.rename("old/keep", "target")
    pair.remove("old")
    assert pair.write_back().bytes == 0
    assert tree(pair.lower) == {"target": {"f": "x"}}
    settled(pair)


def test_a_file_may_take_the_name_of_a_moved_directory(pair: Pair) -> None:
    pair.plant({"a": {"f": "x"}})
    pair.scan()
    pair.rename("a", "z")
    pair.write("a", "a file")
    pair.write_back()
    settled(pair)


def test_a_directory_may_be_replaced_by_another_of_the_same_name(pair: Pair) -> None:
    pair.plant({"a": {"same": "x", "other": "y", "sub": {"s": "t"}}})
    pair.scan()
    pair.remove("a")
    pair.mkdir("a")
    pair.write("a/same", "x")
    pair.write("a/new", "z")
    pair.mkdir("a/sub")
    pair.write_back()
    settled(pair)


def test_many_moves_are_written_back(pair: Pair) -> None:
    pair.plant({f"d{n}": {"f": str(n)} for n in range(150)})
    pair.scan()
    for n in range(150):
        pair.rename(f"d{n}", f"e{n}")
    assert pair.write_back().bytes == 0
    settled(pair)


# -- what cannot be --------------------------------------------------------------------------------


def test_changes_of_the_lower_directory_under_the_mount_are_scanned_first(started: Pair) -> None:
    """A program that had its file open before the mount goes on writing to what is covered."""
    started.write("a", "from the store")
    started.remove("d")
    started.write("new", "from the store")
    (started.lower / "a").write_text("from below")
    (started.lower / "d/e/f").write_text("edited below")
    (started.lower / "new").write_text("also new below")
    result = started.write_back()
    assert set(result.conflicts) == {
        (b"a", b"a.below"),
        (b"d/e/f", b"d/e/f"),
        (b"new", b"new.below"),
    }
    assert not result.skipped
    assert tree(started.lower) == {
        "a": "from the store",
        "a.below": "from below",
        "b": "two",
        "d": {"e": {"f": "edited below"}},
        "l": Link("a"),
        "new": "from the store",
        "new.below": "also new below",
        "twin": "two",
    }
    settled(started)


def test_an_unreadable_entry_in_the_way_is_reported(started: Pair) -> None:
    """What cannot be brought in is not overwritten either."""
    foreign = started.lower / ".ckptfs-tmp-feed-1"
    foreign.mkdir()
    started.mkdir(foreign.name)
    result = started.write_back()
    assert {item.path for item in result.skipped} == {os.fsencode(foreign.name)}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")
def test_another_mount_in_the_lower_directory_is_left_alone(started: Pair) -> None:
    import subprocess

    started.write("d/new", "x")
    started.write("other", "y")
    subprocess.run(["mount", "-t", "tmpfs", "none", started.lower / "d"], check=True)
    try:
        result = started.write_back()
        assert os.listdir(started.lower / "d") == []
    finally:
        subprocess.run(["umount", started.lower / "d"], check=True)
    assert [item.path for item in result.skipped] == [b"d"]
    started.write_back()
    settled(started)


def test_a_write_back_reports_its_progress(started: Pair) -> None:
    told = []
    started.write("a", "x" * 100)
    started.write_back(progress=told.append)
    assert told[-1].bytes == 100 and told[-1].total_files is not None


def test_directories_keep_their_times(pair: Pair) -> None:
    pair.plant({"d": Directory({"f": File("x", mtime_ns=1), "p": Fifo()}, mode=0o555, mtime_ns=2)})
    pair.scan()
    pair.write("d/f", "y")
    pair.touch("d", 5)
    pair.write_back()
    assert (pair.lower / "d").stat().st_mtime_ns == 5
    settled(pair)


# Which of two directories the walk visits first is not ours to know, so both ways are tried.
either_way = pytest.mark.parametrize(("old", "new"), [("a", "b"), ("b", "a")])


@either_way
def test_a_directory_keeps_its_times_when_another_is_moved_out_of_it(
    pair: Pair, old: str, new: str
) -> None:
    pair.plant({"a": {"moved": {"f": "x"}}, "b": {"moved": {"f": "y"}}})
    pair.scan()
    pair.rename(f"{old}/moved", f"{new}/taken")
    pair.touch("a", 5)
    pair.touch("b", 7)
    pair.write_back()
    assert [(pair.lower / name).stat().st_mtime_ns for name in ("a", "b")] == [5, 7]
    settled(pair)


def test_the_root_keeps_its_times_when_a_directory_waits_in_it(pair: Pair) -> None:
    """A file took the name before the directory's new place was reached."""
    pair.plant({"d": {"x": {"f": "1"}}})
    pair.scan()
    pair.rename("d/x", "d/z")
    pair.write("d/x", "new")
    pair.write_back()
    pair.assert_equal()


@either_way
def test_a_moved_directory_is_made_anew_if_the_lower_one_is_gone(
    pair: Pair, old: str, new: str
) -> None:
    pair.plant({"a": {"p": {"m": {"f": "x"}}}, "b": {"p": {"m": {"f": "y"}}}})
    pair.scan()
    pair.rename(f"{old}/p/m", f"{new}/m")
    pair.remove(f"{old}/p")
    shutil.rmtree(pair.lower / old / "p")
    pair.write_back()
    assert (pair.lower / new / "m/f").is_file()
    settled(pair)


def test_a_moved_directory_takes_the_place_of_a_file(started: Pair) -> None:
    started.remove("a")
    started.rename("d", "a")
    started.write("a/c", "changed")
    started.write_back()
    settled(started)


def test_a_moved_directory_takes_the_place_of_a_dangling_link(started: Pair) -> None:
    started.remove("l")
    started.rename("d/e", "l")
    started.remove("d")
    started.write_back()
    settled(started)


def test_edits_right_after_a_pass_are_seen(memory_path: Path) -> None:
    """The clock of the store goes in ticks. An edit in the tick of the agreement must tell too."""
    pair = Pair(memory_path)
    pair.plant({"f": "0"})
    for number in range(1, 30):
        (pair.scan if number % 2 else pair.write_back)()
        inode = pair.inode("f")
        pair.fs.write(pair.fs.head, inode.ino, 0, str(number % 10).encode())
        pair.touch("f", 5)
        pair.write_back()
        assert (pair.lower / "f").read_text() == str(number % 10)
    pair.close()


def test_a_moved_directory_that_left_the_ledger_is_stale_and_no_failure(started: Pair) -> None:
    started.rename("d/e", "moved")
    ledger = Ledger(started.store)
    fd = os.open(started.lower, os.O_RDONLY | os.O_DIRECTORY)
    with descend(fd) as down:
        state = WriteBackState(started.fs, ledger, down, Tally(None, None), None)
        (ino,) = state.moved
        ledger.forget(*state.places.require(ino))
        with pytest.raises(OSError, match="it changed while it was looked at") as raised:
            state.park(ino)
    os.close(fd)
    assert raised.value.errno == errno.ESTALE
    assert (started.lower / "d/e/f").read_text() == "four"
