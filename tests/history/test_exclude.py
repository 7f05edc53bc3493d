"""What is kept out of history: in no checkpoint, in no diff, and left alone by every restore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.errors import PathUnknown
from ckptfs.fs import Filesystem
from ckptfs.fs.renames import RENAME_EXCHANGE
from ckptfs.history import excluded, purge
from ckptfs.history.diff import compare
from ckptfs.history.diff.tree import compare_views
from ckptfs.service import Service
from ckptfs.store import Store, check
from tests.direct import get, shown
from tests.history.edits import Edits, edits

PATTERNS = ("*.log", "cache/", "/top", "!keep.log")


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    with edits(tmp_path / "store") as work:
        excluded.apply(work.fs, PATTERNS)
        yield work


def paths(work: Edits, *, history_only: bool = False) -> set[str]:
    head = work.fs.head
    view = head.bare if history_only else head
    return {path.decode() for path in shown(work.fs, view).nodes if path}


def save(work: Edits) -> history.Checkpoint:
    return history.seal(work.fs, "manual", "", work.fs.clock())


def checkpoint_paths(work: Edits, checkpoint: history.Checkpoint) -> set[str]:
    view = work.fs.view_of(checkpoint.epoch)
    return {path.decode() for path in shown(work.fs, view).nodes if path}


def changes(work: Edits) -> int:
    """How many records the head's epoch has written."""
    work.fs.flush()
    return sum(1 for _ in work.store.changes.walk(work.fs.head.epoch))


def test_excluded_files_are_in_the_workspace_and_in_no_checkpoint(work: Edits) -> None:
    work.mkdir("d")
    work.mkdir("d/cache")
    for path in ("a.log", "d/b.log", "keep.log", "d/cache/x", "top", "d/top", "plain"):
        work.put(path, path.encode())
    point = save(work)
    assert paths(work) == {
        *("a.log", "d", "d/b.log", "d/cache", "d/cache/x", "d/top", "keep.log", "plain", "top")
    }
    assert checkpoint_paths(work, point) == {"d", "d/top", "keep.log", "plain"}
    assert get(work.fs, b"d/cache/x") == b"d/cache/x"


def test_changes_of_excluded_files_are_no_changes_of_history(work: Edits) -> None:
    work.put("a.log", b"1")
    work.mkdir("cache")
    save(work)
    assert changes(work) == 0
    work.put("a.log", b"other")
    work.put("cache/x", b"2" * 100_000)
    work.put("new.log", b"3")
    work.remove("a.log")
    work.change("cache", mode=0o700)
    assert changes(work) == 0
    assert compare_views(work.fs, work.fs.view_of(1), work.fs.head) == []


def test_the_directory_of_excluded_files_shows_their_changes(work: Edits) -> None:
    directory = work.mkdir("d")
    before = work.at("d")
    work.mkdir("d/cache")
    after = work.at("d")
    assert after.nlink == before.nlink + 1
    assert after.mtime_ns > before.mtime_ns
    assert work.fs.getattr(work.fs.head.bare, directory) == before
    work.fs = _reopened(work)
    assert work.at("d") == after
    work.change("d", mtime_ns=5)
    assert work.at("d").mtime_ns == 5
    work.remove("d/cache")
    assert work.at("d").nlink == before.nlink
    work.remove("d")


def _reopened(work: Edits, *, commit: bool = True) -> Filesystem:
    if commit:
        work.fs.commit()
    clock, path = work.fs.clock, work.store.path
    work.store.close(commit=False)
    work.store = Store.open(path)
    return Filesystem(work.store, clock)


def test_the_blocks_of_excluded_files_are_freed_at_once(work: Edits) -> None:
    work.put("a.log", bytes(range(256)) * 1000)
    work.mkdir("cache")
    work.put("cache/x", b"y" * 100_000)
    save(work)
    assert any(True for _ in work.store.blocks.keys())
    work.remove("a.log")
    work.remove("cache")
    work.fs.commit()
    assert not any(True for _ in work.store.blocks.keys())
    assert work.store.excluded is not None
    assert work.store.excluded.inodes == 0


def test_restores_leave_excluded_files_alone(work: Edits) -> None:
    work.put("plain", b"1")
    first = save(work)
    work.mkdir("cache")
    work.put("cache/x", b"kept")
    work.put("a.log", b"kept, too")
    work.put("plain", b"2")
    history.restore(work.fs, first)
    assert get(work.fs, b"plain") == b"1"
    assert get(work.fs, b"cache/x") == b"kept"
    assert get(work.fs, b"a.log") == b"kept, too"
    service = Service(work.fs)
    service.undo()
    assert get(work.fs, b"plain") == b"2"
    assert get(work.fs, b"cache/x") == b"kept"
    service.redo()
    assert paths(work) == {"plain", "cache", "cache/x", "a.log"}


def test_no_diff_shows_and_no_restore_changes_what_was_excluded_since_a_checkpoint(
    work: Edits,
) -> None:
    """Also a directory and what is below it: no diff with now has it, no restore changes it."""
    work.mkdir("mods")
    work.put("mods/a.js", b"1")
    work.put("mods/b.js", b"1")
    work.put("plain", b"1")
    first = save(work)
    excluded.apply(work.fs, ("mods/",))
    service = Service(work.fs)
    assert service.diff("", "").changes == []
    assert compare.unsaved_counts(work.fs) == (0, 0, 0)
    assert service.diff(str(first.id), "").file_pairs(work.fs) == []
    assert service.restore(str(first.id)) is None
    for pattern in (b"mods", b"mods/a.js", b"mods/*.js", b"m*"):
        with pytest.raises(PathUnknown, match="excluded from history"):
            service.restore(str(first.id), [pattern])
    work.put("plain", b"2")
    restored = service.restore(str(first.id))
    assert restored is not None
    assert {name for _, name in restored.changed.entries} == {b"plain"}
    work.put("plain", b"3")
    service.restore(str(first.id), [b"*"])
    assert get(work.fs, b"plain") == b"1"
    # Deleted, it is no other: what a pattern of now matches does not come back by its path.
    work.remove("mods/a.js")
    work.remove("mods/b.js")
    work.remove("mods")
    for pattern in (b"mods", b"mods/*.js"):
        with pytest.raises(PathUnknown, match="excluded from history"):
            service.restore(str(first.id), [pattern])
    assert service.restore(str(first.id), [b"*"]) is None
    assert paths(work) == {"plain"}


def test_a_restore_takes_away_what_would_move_to_an_excluded_path(work: Edits) -> None:
    work.mkdir("d")
    work.put("d/file", b"1")
    point = save(work)
    work.move("d", "moved")
    excluded.apply(work.fs, ("/d",))
    work.mkdir("d")
    assert history.plan(work.fs, point, []).deleted == (b"moved",)
    assert Service(work.fs).restore(str(point.id)) is not None
    assert paths(work) == {"d"}


def test_a_file_in_the_way_of_a_restored_path_is_named(work: Edits) -> None:
    work.mkdir("d")
    work.put("d/f", b"1")
    first = save(work)
    work.remove("d/f")
    work.remove("d")
    work.put("d", b"a file")
    for ask in (Service(work.fs).plan_restore, Service(work.fs).restore):
        with pytest.raises(PathUnknown, match="a file is in the way"):
            ask(str(first.id), [b"d/f"])


def test_the_directories_of_excluded_files_are_made_again(work: Edits) -> None:
    first = save(work)
    work.mkdir("a")
    work.mkdir("a/b")
    work.put("a/b/x.log", b"kept")
    work.put("a/b/gone", b"")
    ino = work.at("a/b").ino
    plan = history.plan(work.fs, first, [])
    assert plan.deleted == (b"a/b/gone",)
    history.restore(work.fs, first)
    assert paths(work) == {"a", "a/b", "a/b/x.log"}
    assert work.at("a/b").ino == ino


def test_a_directory_that_was_made_anew_takes_excluded_files_in(work: Edits) -> None:
    work.mkdir("d")
    first = save(work)
    work.remove("d")
    work.mkdir("d")
    work.put("d/x.log", b"kept")
    work.mkdir("d/cache")
    work.put("d/cache/y", b"kept")
    history.restore(work.fs, first)
    assert paths(work) == {"d", "d/x.log", "d/cache", "d/cache/y"}
    assert work.at("d").nlink == 3


def test_a_directory_of_excluded_files_gets_another_name_where_a_file_comes_back(
    work: Edits,
) -> None:
    work.put("d", b"a file")
    first = save(work)
    work.remove("d")
    work.mkdir("d")
    work.put("d/x.log", b"kept")
    history.restore(work.fs, first)
    assert get(work.fs, b"d") == b"a file"
    assert get(work.fs, b"d.excluded/x.log") == b"kept"


def test_excluded_files_move_along_with_their_directory(work: Edits) -> None:
    work.mkdir("d")
    work.put("d/x.log", b"one")
    first = save(work)
    work.move("d", "e")
    history.restore(work.fs, first)
    assert paths(work) == {"d", "d/x.log"}
    work.move("d", "e")
    work.mkdir("d")
    work.put("d/x.log", b"two")
    history.restore(work.fs, first)
    assert get(work.fs, b"d/x.log") == b"one"
    assert get(work.fs, b"d/x.log-2") == b"two"


def test_restoring_paths_leaves_excluded_files_alone(work: Edits) -> None:
    work.mkdir("d")
    work.put("d/plain", b"1")
    first = save(work)
    work.put("d/plain", b"2")
    work.put("d/x.log", b"kept")
    work.mkdir("e")
    work.put("e/x.log", b"kept")
    work.put("e/plain", b"")
    plan = history.plan(work.fs, first, [b"d", b"e"])
    assert (plan.added, plan.modified, plan.deleted) == ((), (b"d/plain",), (b"e/plain",))
    changed = history.Changed(set(), set())
    history.restore_paths(work.fs, first, [b"d", b"e"], changed=changed)
    assert paths(work) == {"d", "d/plain", "d/x.log", "e", "e/x.log"}
    assert get(work.fs, b"d/plain") == b"1"


# -- across the border ----------------------------------------------------------------------------


def test_an_excluded_file_that_is_renamed_out_is_an_ordinary_one(work: Edits) -> None:
    ino = work.put("tmp.log", b"z" * 70_000)
    work.put("goal", b"old")
    first = save(work)
    work.move("tmp.log", "goal")
    assert (work.at("goal").ino, get(work.fs, b"goal")) == (ino, b"z" * 70_000)
    second = save(work)
    assert checkpoint_paths(work, second) == {"goal"}
    history.restore(work.fs, first)
    assert get(work.fs, b"goal") == b"old"
    assert paths(work) == {"goal"}


def test_a_file_that_is_renamed_in_leaves_history(work: Edits) -> None:
    ino = work.put("plain", b"z" * 70_000)
    first = save(work)
    work.move("plain", "plain.log")
    work.write("plain.log", 0, b"new")
    second = save(work)
    assert checkpoint_paths(work, first) == {"plain"}
    assert checkpoint_paths(work, second) == set()
    assert work.at("plain.log").ino == ino
    history.restore(work.fs, first)
    assert get(work.fs, b"plain") == b"z" * 70_000
    assert get(work.fs, b"plain.log")[:4] == b"newz"
    assert work.at("plain").ino != ino == work.at("plain.log").ino
    history.restore(work.fs, second)
    assert paths(work) == {"plain.log"}


def test_a_directory_crosses_with_all_that_is_below(work: Edits) -> None:
    work.mkdir("d")
    work.mkdir("d/sub")
    work.put("d/sub/f", b"1")
    work.put("d/sub/x.log", b"2")
    work.link("d/sub/f", "d/twin")
    first = save(work)
    work.move("d", "cache")
    assert checkpoint_paths(work, save(work)) == set()
    assert paths(work) == {"cache", "cache/sub", "cache/sub/f", "cache/sub/x.log", "cache/twin"}
    assert work.at("cache/twin") == work.at("cache/sub/f")
    work.put("cache/sub/f", b"changed")
    history.restore(work.fs, first)
    assert get(work.fs, b"d/sub/f") == b"1"
    assert work.at("d/twin").ino == work.at("d/sub/f").ino != work.at("cache/sub/f").ino
    assert get(work.fs, b"cache/twin") == b"changed"
    work.move("cache", "plain")
    last = checkpoint_paths(work, save(work))
    assert last >= {"plain", "plain/sub", "plain/sub/f", "plain/sub/x.log", "plain/twin"}


def test_files_and_directories_can_be_exchanged_across_the_border(work: Edits) -> None:
    work.put("a.log", b"log")
    work.put("plain", b"plain")
    work.mkdir("cache")
    work.mkdir("d")
    work.put("cache/x", b"x")
    work.put("d/y", b"y")
    first = save(work)
    work.move("a.log", "plain", RENAME_EXCHANGE)
    work.move("d", "cache", RENAME_EXCHANGE)
    second = save(work)
    assert get(work.fs, b"a.log") == b"plain"
    assert checkpoint_paths(work, second) == {"plain", "d", "d/x"}
    history.restore(work.fs, first)
    assert get(work.fs, b"plain") == b"plain"
    assert get(work.fs, b"a.log") == b"plain"
    assert paths(work) == {"a.log", "plain", "cache", "cache/y", "d", "d/y"}


def test_no_file_is_on_both_sides(work: Edits) -> None:
    work.put("plain")
    work.put("a.log")
    work.mkdir("d")
    work.mkdir("cache")
    for source, goal in (("plain", "b.log"), ("a.log", "b"), ("plain", "cache/plain")):
        with pytest.raises(OSError, match="cross-device"):
            work.link(source, goal)
    work.link("plain", "twin")
    work.link("a.log", "twin.log")
    for source, goal in (("twin", "twin2.log"), ("twin.log", "twin3")):
        with pytest.raises(OSError, match="cross-device"):
            work.move(source, goal)
    work.link("plain", "d/third")
    with pytest.raises(OSError, match="cross-device"):
        work.move("d", "cache/d")


# -- other patterns --------------------------------------------------------------------------------


def test_patterns_that_come_later_exclude_what_is_there(work: Edits) -> None:
    work.mkdir("build")
    ino = work.put("build/out", b"1")
    work.put("a.log", b"log")
    first = save(work)
    changed = excluded.apply(work.fs, ("build/",))
    assert not changed.entries
    second = save(work)
    assert checkpoint_paths(work, second) == {"a.log"}
    assert work.at("build/out").ino == ino
    work.put("build/out", b"2")
    history.restore(work.fs, first)
    assert get(work.fs, b"build/out") == b"2"
    excluded.apply(work.fs, ())
    assert checkpoint_paths(work, save(work)) == {"build", "build/out"}
    assert work.store.excluded is not None
    assert work.store.excluded.inodes == 0


def test_what_comes_back_under_an_excluded_name_is_excluded(work: Edits) -> None:
    work.mkdir("build")
    work.put("build/out", b"1")
    first = save(work)
    work.remove("build")
    excluded.apply(work.fs, ("build/",))
    service = Service(work.fs)
    service.restore(str(first.id))
    assert get(work.fs, b"build/out") == b"1"
    assert paths(work, history_only=True) == set()
    service.undo()  # it is excluded, so it stays
    assert get(work.fs, b"build/out") == b"1"


def test_an_excluded_file_does_not_get_the_extended_attributes_that_it_had_in_history(
    work: Edits,
) -> None:
    work.put("a", b"1")
    work.mkdir("d")
    bare = work.save()
    for path in ("a", "d"):
        work.fs.setxattr(work.fs.head, work.at(path).ino, b"user.tag", b"1")
    tagged = history.seal(work.fs, "manual", "", work.fs.clock())
    work.go_back(bare)
    excluded.apply(work.fs, ("a", "d"))
    history.restore(work.fs, tagged)
    for path in ("a", "d"):
        assert work.fs.listxattr(work.fs.head, work.at(path).ino) == []


def test_patterns_part_hard_links(work: Edits) -> None:
    work.mkdir("build")
    work.put("build/a", b"1")
    work.link("build/a", "build/b")
    work.link("build/a", "c")
    changed = excluded.apply(work.fs, ("build/",))
    assert {name for _, name in changed.entries} == {b"a", b"b"}
    assert work.at("build/a") == work.at("build/b") != work.at("c")
    assert (work.at("build/a").nlink, work.at("c").nlink) == (2, 1)
    assert get(work.fs, b"c") == get(work.fs, b"build/a") == b"1"
    assert checkpoint_paths(work, save(work)) == {"c"}


def test_excluded_files_outlive_an_end_and_a_crash(work: Edits) -> None:
    work.mkdir("cache")
    work.put("cache/x", b"kept")
    work.fs = _reopened(work)
    assert get(work.fs, b"cache/x") == b"kept"
    work.put("a.log", b"committed")
    work.fs.commit()
    work.put("b.log", b"not committed")
    work.fs = _reopened(work, commit=False)
    assert paths(work) == {"cache", "cache/x", "a.log"}
    work.put("b.log", b"")
    assert checkpoint_paths(work, save(work)) == set()


def test_an_excluded_file_deleted_while_open_outlives_a_restore(work: Edits) -> None:
    first = save(work)
    ino = work.put("a.log", b"still there")
    work.put("plain")
    work.fs.hold(ino)
    work.remove("a.log")
    history.restore(work.fs, first)
    assert bytes(work.fs.read(work.fs.head, ino, 0, 100)) == b"still there"
    work.fs.drop(ino)
    assert work.store.excluded is not None
    assert work.store.excluded.inodes == 0


def test_deleting_checkpoints_does_not_touch_excluded_files(work: Edits) -> None:
    work.put("plain", b"1")
    work.put("a.log", b"1" * 70_000)
    points = [save(work)]
    work.move("plain", "plain.log")
    points.append(save(work))
    Service(work.fs).delete(points)
    assert paths(work) == {"a.log", "plain.log"}
    assert get(work.fs, b"plain.log") == b"1"


def test_purge_finds_excluded_files(work: Edits) -> None:
    work.mkdir("cache")
    work.put("cache/secret", b"hunter2 " * 1000)
    work.put("plain")
    save(work)
    service = Service(work.fs)
    assert service.plan_purge([b"cache/secret"]).live_paths == [b"cache/secret"]
    service.purge([b"cache"])
    assert paths(work) == {"plain"}
    work.fs.commit()
    assert b"hunter2" not in (work.store.path / "data.mdb").read_bytes()


def test_a_purge_takes_an_excluded_directory_and_not_the_one_that_a_restore_brought_back(
    work: Edits,
) -> None:
    work.mkdir("a")
    work.put("a/file", b"1")
    point = save(work)
    work.move("a", "cache")
    history.restore(work.fs, point)
    purge.purge(work.fs, [b"cache"])
    assert paths(work) == {"a", "a/file"}
    assert work.at("").nlink == 3
    assert check(work.store) == []


def test_space_counts_excluded_files_as_live(work: Edits) -> None:
    work.put("a.log", b"q" * 70_000)
    save(work)
    space = Service(work.fs).space()
    assert (space.live_bytes, space.history_bytes, space.shared_bytes) == (70_000, 0, 0)
