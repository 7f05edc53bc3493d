"""Merging: what both lines did, against plain expectations, and random lives against themselves."""

from __future__ import annotations

import random
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptfs import textmerge
from ckptfs.history import checkpoints, merge, removal, undoable
from ckptfs.history.checkpoints import Checkpoint, of_epoch
from ckptfs.history.diff.changed import Changed
from ckptfs.history.merge_steps import MARKERS, OURS, THEIRS, UNRESOLVED, MergePlan
from ckptfs.history.undo import take_back
from ckptfs.model import ROOT_INO
from ckptfs.store import View, check
from ckptfs.store.format import CorruptRecord, block_entity, unpack_mapping
from ckptfs.store.tables import record as record_of
from tests.history.edits import Edits
from tests.history.random_edits import edit_at_random

LABELS = textmerge.Labels(b"ours", b"base", b"theirs")

Tree = dict[bytes, tuple[object, ...]]


class Lines:
    """A workspace with another line that parted from it: `theirs` is its state, once it is left."""

    def __init__(self, edits: Edits) -> None:
        self.edits = edits
        self.base: View
        self.theirs: Checkpoint

    def part(self) -> None:
        """From here on what is done is theirs."""
        self.base = self.edits.save()

    def come_back(self) -> None:
        """From here on what is done is ours."""
        self.theirs = self._checkpoint(self.edits.save())
        self.edits.go_back(self.base)

    def _checkpoint(self, view: View) -> Checkpoint:
        found = of_epoch(self.edits.store, view.epoch)
        assert found is not None
        return found

    def plan(self, resolution: str = UNRESOLVED, paths: tuple[bytes, ...] = ()) -> MergePlan:
        theirs = merge.of_checkpoint(self.theirs)
        return merge.plan_merge(self.edits.fs, theirs, lambda _: resolution, LABELS, paths)

    def merge(self, resolution: str = UNRESOLVED) -> MergePlan:
        plan = self.plan(resolution)
        self.carry_out(plan)
        return plan

    def carry_out(self, plan: MergePlan) -> None:
        assert not plan.unresolved
        changed = Changed(set(), set())
        fs = self.edits.fs
        merge.merge(fs, merge.of_checkpoint(self.theirs), plan, whole=True, changed=changed)
        assert check(self.edits.store) == []

    def kinds(self, resolution: str = UNRESOLVED) -> set[tuple[bytes, str]]:
        return {(found.path, found.kind) for found in self.plan(resolution).conflicts}

    def tree(self, view: View | None = None) -> Tree:
        fs = self.edits.fs
        view = fs.head if view is None else view
        found: Tree = {}
        pending = [(b"", ROOT_INO)]
        while pending:
            path, ino = pending.pop()
            for name, inode in fs.entries(view, ino):
                below = path + b"/" + name if path else name
                if inode.is_dir:
                    found[below] = ("directory", inode.mode)
                    pending.append((below, inode.ino))
                elif inode.is_link:
                    found[below] = ("link", inode.target)
                else:
                    data = bytes(fs.read(view, inode.ino, 0, inode.size))
                    found[below] = ("file", inode.mode, data)
        return found

    def text(self, path: bytes) -> bytes:
        inode = self.edits.at(path)
        return bytes(self.edits.fs.read(self.edits.fs.head, inode.ino, 0, inode.size))


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    edits = Edits(tmp_path / "store")
    yield Lines(edits)
    edits.store.close()


def numbered(*changes: tuple[int, bytes]) -> bytes:
    """A text of ten lines, some of them changed."""
    texts = {number: b"line %d\n" % number for number in range(10)}
    return b"".join({**texts, **dict(changes)}.values())


# -- what only one side changed --------------------------------------------------------------------


def test_what_only_they_changed_is_taken_and_what_only_we_changed_stays(lines: Lines) -> None:
    work = lines.edits
    for name in ("theirs", "ours", "gone", "kept"):
        work.put(name, name.encode())
    work.mkdir("directory")
    lines.part()
    work.put("theirs", b"changed there")
    work.remove("gone")
    work.mkdir("directory/new")
    work.put("directory/new/file", b"made there")
    work.symlink("link", b"kept")
    lines.come_back()
    work.put("ours", b"changed here")
    work.put("directory/mine", b"made here")
    lines.merge()
    assert lines.text(b"theirs") == b"changed there"
    assert lines.text(b"ours") == b"changed here"
    assert lines.text(b"directory/new/file") == b"made there"
    assert lines.text(b"directory/mine") == b"made here"
    assert work.at("link").target == b"kept"
    assert b"gone" not in lines.tree()


def test_lines_that_both_changed_apart_from_each_other_are_merged(lines: Lines) -> None:
    lines.edits.put("text", numbered())
    lines.part()
    lines.edits.put("text", numbered((2, b"theirs\n")))
    lines.come_back()
    lines.edits.put("text", numbered((7, b"ours\n")))
    lines.merge()
    assert lines.text(b"text") == numbered((2, b"theirs\n"), (7, b"ours\n"))


def test_what_they_put_into_a_directory_goes_where_we_moved_it(lines: Lines) -> None:
    work = lines.edits
    work.mkdir("old")
    work.put("old/file", numbered())
    lines.part()
    work.put("old/added", b"there")
    work.put("old/file", numbered((1, b"theirs\n")))
    lines.come_back()
    work.move("old", "new")
    lines.merge()
    assert lines.text(b"new/added") == b"there"
    assert lines.text(b"new/file") == numbered((1, b"theirs\n"))
    assert b"old" not in lines.tree()


def test_a_file_that_they_moved_keeps_what_we_changed_in_it(lines: Lines) -> None:
    work = lines.edits
    work.mkdir("directory")
    work.put("file", numbered())
    lines.part()
    work.move("file", "directory/moved")
    lines.come_back()
    work.put("file", numbered((4, b"ours\n")))
    lines.merge()
    assert lines.text(b"directory/moved") == numbered((4, b"ours\n"))
    assert b"file" not in lines.tree()


def test_names_that_they_exchanged_are_exchanged(lines: Lines) -> None:
    work = lines.edits
    work.put("a", b"a")
    work.put("b", b"b")
    lines.part()
    work.move("a", "c")
    work.move("b", "a")
    work.move("c", "b")
    lines.come_back()
    lines.merge()
    assert (lines.text(b"a"), lines.text(b"b")) == (b"b", b"a")
    assert set(lines.tree()) == {b"a", b"b"}


def test_a_directory_that_they_removed_stays_for_what_we_put_into_it(lines: Lines) -> None:
    work = lines.edits
    work.mkdir("directory")
    work.put("directory/old", b"old")
    lines.part()
    work.remove("directory")
    lines.come_back()
    work.put("directory/ours", b"ours")
    lines.merge()
    assert set(lines.tree()) == {b"directory", b"directory/ours"}


def test_a_directory_that_we_removed_comes_back_for_what_they_put_into_it(lines: Lines) -> None:
    work = lines.edits
    work.mkdir("directory")
    work.put("directory/old", b"old")
    lines.part()
    work.put("directory/theirs", b"theirs")
    lines.come_back()
    work.remove("directory")
    lines.merge()
    assert set(lines.tree()) == {b"directory", b"directory/theirs"}


def test_a_mode_of_theirs_and_bytes_of_ours_come_together(lines: Lines) -> None:
    work = lines.edits
    work.put("script", b"old", mode=0o644)
    lines.part()
    work.change("script", mode=stat.S_IFREG | 0o755)
    lines.come_back()
    work.put("script", b"new")
    lines.merge()
    assert (stat.S_IMODE(work.at("script").mode), lines.text(b"script")) == (0o755, b"new")


def test_a_file_with_several_names_is_rewritten_under_all_of_them(lines: Lines) -> None:
    work = lines.edits
    work.put("one", b"old")
    work.link("one", "two")
    lines.part()
    work.put("one", b"new")
    lines.come_back()
    lines.merge()
    assert (lines.text(b"one"), lines.text(b"two"), work.at("one").nlink) == (b"new", b"new", 2)


def test_one_name_of_several_that_they_replaced_leaves_the_others(lines: Lines) -> None:
    work = lines.edits
    work.put("one", b"old")
    work.link("one", "two")
    lines.part()
    work.remove("one")
    work.put("one", b"new")
    lines.come_back()
    lines.merge()
    assert (lines.text(b"one"), lines.text(b"two")) == (b"new", b"old")


def test_what_comes_by_a_merge_is_newer_than_what_was_built_here(lines: Lines) -> None:
    work = lines.edits
    work.put("source", b"old")
    work.put("emptied", b"old")
    lines.part()
    work.put("source", b"new")
    work.put("emptied")
    work.put("added", b"new")
    lines.come_back()
    work.put("built", b"of the old source")
    lines.merge()
    assert work.at("source").mtime_ns > work.at("built").mtime_ns
    assert work.at("emptied").mtime_ns > work.at("built").mtime_ns
    assert work.at("added").mtime_ns > work.at("built").mtime_ns


# -- conflicts -------------------------------------------------------------------------------------


def conflict_content(lines: Lines) -> bytes:
    lines.edits.put("it", numbered())
    lines.part()
    lines.edits.put("it", numbered((5, b"theirs\n")))
    lines.come_back()
    lines.edits.put("it", numbered((5, b"ours\n")))
    return b"it"


def test_a_conflict_changes_nothing_and_is_listed(lines: Lines) -> None:
    path = conflict_content(lines)
    before = lines.tree()
    plan = lines.plan()
    assert [(found.path, found.kind) for found in plan.unresolved] == [(path, "content")]
    assert lines.tree() == before


def test_markers_show_all_three_sides(lines: Lines) -> None:
    path = conflict_content(lines)
    lines.merge(MARKERS)
    marked = b"<<<<<<< ours\nours\n||||||| base\nline 5\n=======\ntheirs\n>>>>>>> theirs\n"
    assert lines.text(path) == numbered((5, marked))


@pytest.mark.parametrize(("resolution", "wins"), [(OURS, b"ours\n"), (THEIRS, b"theirs\n")])
def test_one_side_can_be_taken(lines: Lines, resolution: str, wins: bytes) -> None:
    path = conflict_content(lines)
    lines.merge(resolution)
    assert lines.text(path) == numbered((5, wins))


def test_what_is_no_text_is_never_marked_up(lines: Lines) -> None:
    work = lines.edits
    work.put("image", b"\0old")
    lines.part()
    work.put("image", b"\0theirs")
    lines.come_back()
    work.put("image", b"\0ours")
    assert lines.kinds() == {(b"image", "binary")}
    lines.merge(MARKERS)
    assert (lines.text(b"image"), lines.text(b"image~%d" % lines.theirs.id)) == (
        b"\0ours",
        b"\0theirs",
    )


def test_two_files_of_one_name_conflict_unless_they_are_alike(lines: Lines) -> None:
    work = lines.edits
    work.put("else", b"")
    lines.part()
    work.put("new", b"theirs\n")
    work.put("same", b"same\n")
    lines.come_back()
    work.put("new", b"ours\n")
    work.put("same", b"same\n")
    assert lines.kinds() == {(b"new", "added")}
    lines.merge(MARKERS)
    assert b"ours\n" in lines.text(b"new") and b"theirs\n" in lines.text(b"new")


@pytest.mark.parametrize(
    ("resolution", "left"), [(OURS, set()), (THEIRS, {b"file"}), (MARKERS, {b"file"})]
)
def test_what_we_deleted_and_they_changed_is_a_conflict(
    lines: Lines, resolution: str, left: set[bytes]
) -> None:
    lines.edits.put("file", b"old")
    lines.part()
    lines.edits.put("file", b"theirs")
    lines.come_back()
    lines.edits.remove("file")
    assert lines.kinds() == {(b"file", "deleted here")}
    lines.merge(resolution)
    assert set(lines.tree()) == left


@pytest.mark.parametrize(
    ("resolution", "left"), [(OURS, {b"file"}), (THEIRS, set()), (MARKERS, {b"file"})]
)
def test_what_they_deleted_and_we_changed_is_a_conflict(
    lines: Lines, resolution: str, left: set[bytes]
) -> None:
    lines.edits.put("file", b"old")
    lines.part()
    lines.edits.remove("file")
    lines.come_back()
    lines.edits.put("file", b"ours")
    assert lines.kinds() == {(b"file", "deleted there")}
    lines.merge(resolution)
    assert set(lines.tree()) == left


@pytest.mark.parametrize(
    ("resolution", "left"),
    [(OURS, {b"new", b"new/file"}), (THEIRS, set()), (MARKERS, {b"new", b"new/file"})],
)
def test_a_directory_that_they_deleted_and_we_moved_is_a_conflict(
    lines: Lines, resolution: str, left: set[bytes]
) -> None:
    lines.edits.mkdir("old")
    lines.edits.put("old/file", b"old")
    lines.part()
    lines.edits.remove("old")
    lines.come_back()
    lines.edits.move("old", "new")
    assert lines.kinds() == {(b"new", "deleted there")}
    lines.merge(resolution)
    assert set(lines.tree()) == left


@pytest.mark.parametrize(("resolution", "name"), [(OURS, b"ours"), (THEIRS, b"theirs")])
def test_two_new_names_for_one_file_are_a_conflict(
    lines: Lines, resolution: str, name: bytes
) -> None:
    lines.edits.put("file", b"old")
    lines.part()
    lines.edits.move("file", "theirs")
    lines.come_back()
    lines.edits.move("file", "ours")
    assert lines.kinds() == {(b"ours", "renamed")}
    lines.merge(resolution)
    assert set(lines.tree()) == {name}


def test_directories_that_would_be_in_each_other_stay_where_they_are(lines: Lines) -> None:
    work = lines.edits
    work.mkdir("a")
    work.mkdir("b")
    lines.part()
    work.move("a", "b/a")
    lines.come_back()
    work.move("b", "a/b")
    assert {kind for _, kind in lines.kinds()} == {"renamed"}
    lines.merge(THEIRS)
    assert set(lines.tree()) == {b"a", b"a/b"}


@pytest.mark.parametrize("resolution", [OURS, THEIRS, MARKERS])
def test_a_file_that_became_a_directory_there_and_changed_here(
    lines: Lines, resolution: str
) -> None:
    work = lines.edits
    work.put("it", b"old")
    lines.part()
    work.remove("it")
    work.mkdir("it")
    work.put("it/file", b"theirs")
    lines.come_back()
    work.put("it", b"ours")
    assert (b"it", "type") in lines.kinds()
    lines.merge(resolution)
    tree = lines.tree()
    if resolution == THEIRS:
        assert tree[b"it/file"][2] == b"theirs"
    else:
        assert tree[b"it"][2] == b"ours"
    if resolution == MARKERS:
        assert tree[b"it~%d/file" % lines.theirs.id][2] == b"theirs"


# -- again, and back -------------------------------------------------------------------------------


def test_a_second_merge_takes_only_what_is_new(lines: Lines) -> None:
    path = conflict_content(lines)
    lines.merge(OURS)
    again = lines.plan()
    assert not again and not again.conflicts
    work = lines.edits
    ours, before = lines.base, lines.theirs
    lines.base = work.save()
    # Their line goes on.
    work.go_back(work.fs.view_of(before.epoch))
    work.put("new", b"new")
    lines.theirs = lines._checkpoint(work.save())
    work.go_back(lines.base)
    assert ours.epoch != lines.base.epoch
    plan = lines.merge()
    assert [step.path for step in plan.makes] == [b"new"]
    assert lines.text(path) == numbered((5, b"ours\n"))


def test_a_merge_is_undone_and_then_counts_for_nothing(lines: Lines) -> None:
    conflict_content(lines)
    before = lines.tree()
    lines.merge(THEIRS)
    entry = undoable(lines.edits.fs)
    assert entry is not None and entry.kind == "merge"
    take_back(lines.edits.fs, entry, "undo", changed=Changed(set(), set()))
    assert lines.tree() == before
    assert lines.kinds() == {(b"it", "content")}


def test_a_merge_is_remembered_when_its_checkpoints_are_deleted(lines: Lines) -> None:
    conflict_content(lines)
    lines.merge(OURS)
    work = lines.edits
    theirs = lines.theirs.epoch
    merged = [each for each in checkpoints(work.store) if each.epoch != theirs]
    removal.delete(work.fs, merged)
    removal.reap(work.fs)
    assert not lines.plan().conflicts


# -- against git, and against itself ---------------------------------------------------------------


def test_texts_are_merged_as_git_does(tmp_path: Path) -> None:
    rng = random.Random(1)
    conflicts = 0
    for _ in range(150):
        base = [b"line %d\n" % number for number in range(rng.randint(0, 25))]
        sides = [b"".join(each) for each in (base, _edited(rng, base), _edited(rng, base))]
        for name, data in zip(("base", "ours", "theirs"), sides, strict=True):
            (tmp_path / name).write_bytes(data)
        labels = ("-L", "ours", "-L", "base", "-L", "theirs")
        command = ["git", "merge-file", "-p", "--zdiff3", *labels, "ours", "base", "theirs"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True)
        chunks = textmerge.merge(*sides)
        assert textmerge.has_conflicts(chunks) == (done.returncode != 0)
        assert textmerge.text_of(chunks, LABELS) == done.stdout
        conflicts += textmerge.has_conflicts(chunks)
    assert 20 < conflicts < 130


def _edited(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    lines = list(lines)
    for _ in range(rng.randint(0, 3)):
        at = rng.randint(0, len(lines))
        kind = rng.random()
        if kind < 0.4:
            lines[at:at] = [b"new %d\n" % rng.randint(0, 30) for _ in range(rng.randint(1, 3))]
        elif kind < 0.7:
            del lines[at : at + rng.randint(1, 3)]
        else:
            lines[at : at + 1] = [b"changed %d\n" % rng.randint(0, 5)]
    return lines


def deep(seed: int) -> Any:
    return pytest.param(seed, marks=pytest.mark.deep)


@pytest.mark.parametrize("seed", [*range(40), *(deep(seed) for seed in range(40, 1_500))])
def test_random_lines_are_merged(lines: Lines, seed: int) -> None:
    rng = random.Random(seed)
    work = lines.edits
    edit_at_random(work, rng, 25, b"base")
    lines.part()
    base = lines.tree()
    for number in range(rng.randint(0, 10)):
        edit_at_random(work, rng, 1, b"theirs %d" % number)
    lines.come_back()
    theirs = lines.tree(work.fs.view_of(lines.theirs.epoch))
    for number in range(0 if seed % 4 == 0 else rng.randint(0, 10)):
        edit_at_random(work, rng, 1, b"ours %d" % number)
    ours = lines.tree()
    conflicts = lines.plan().unresolved
    assert lines.tree() == ours
    resolution = rng.choice([OURS, THEIRS, MARKERS])
    lines.merge(resolution)
    if ours == base:
        assert not conflicts and lines.tree() == theirs
    if theirs == base:
        assert lines.tree() == ours
    kept = texts(lines.tree())
    if not conflicts or resolution != OURS:
        assert texts(theirs) - texts(base) <= kept
    if not conflicts or resolution != THEIRS:
        assert texts(ours) - texts(base) <= kept
    again = lines.plan()
    assert not again and not again.conflicts
    entry = undoable(work.fs)
    assert entry is not None
    take_back(work.fs, entry, "undo", changed=Changed(set(), set()))
    assert lines.tree() == ours


def texts(tree: Tree) -> set[bytes]:
    """The lines of all files."""
    files = [each[2] for each in tree.values() if each[0] == "file"]
    return {line for data in files if isinstance(data, bytes) for line in data.splitlines()}


def test_what_they_moved_into_a_directory_that_was_a_link_is_no_conflict(lines: Lines) -> None:
    lines.edits.symlink(b"c", b"elsewhere")
    lines.edits.put(b"d", b"moved")
    lines.part()
    lines.edits.remove(b"c")
    lines.edits.mkdir(b"c")
    lines.edits.move(b"d", b"c/d")
    lines.come_back()
    assert not lines.kinds()
    lines.merge()
    assert lines.tree() == lines.tree(lines.edits.fs.view_of(lines.theirs.epoch))


def test_a_directory_of_theirs_that_is_a_file_here_is_one_conflict(lines: Lines) -> None:
    lines.part()
    lines.edits.mkdir(b"it")
    for name in (b"it/a", b"it/b", b"it/c"):
        lines.edits.put(name, b"theirs")
    lines.come_back()
    lines.edits.put(b"it", b"ours")
    assert [found.path for found in lines.plan().conflicts] == [b"it"]


# -- names that cross ------------------------------------------------------------------------------


def test_what_we_put_into_their_way_goes_back_to_where_they_have_it(lines: Lines) -> None:
    for name in (b"one", b"two"):
        lines.edits.put(name, b"base")
    lines.part()
    lines.edits.put(b"taken", b"theirs")
    lines.edits.put(b"dir", b"theirs")
    lines.edits.put(b"one", b"theirs, one")
    lines.come_back()
    lines.edits.move(b"one", b"taken")
    lines.edits.mkdir(b"dir")
    lines.edits.move(b"two", b"dir/two")
    assert lines.kinds() == {(b"taken", "added"), (b"dir", "added")}
    plan = lines.merge(THEIRS)
    assert {path: each[2] for path, each in lines.tree().items()} == {
        b"dir": b"theirs",
        b"one": b"theirs, one",
        b"taken": b"theirs",
        b"two": b"base",
    }
    assert plan.paths() == ([b"one", b"two"], [b"dir", b"taken"], [b"dir/two"])


def test_both_sides_of_a_name_that_we_moved_something_to_are_kept(lines: Lines) -> None:
    lines.edits.put(b"one", numbered())
    lines.part()
    lines.edits.put(b"one", numbered((1, b"theirs\n")))
    lines.edits.put(b"two", b"new\n")
    lines.come_back()
    lines.edits.move(b"one", b"two")
    lines.edits.put(b"two", numbered((8, b"ours\n")))
    lines.merge(MARKERS)
    assert lines.text(b"two") == numbered((1, b"theirs\n"), (8, b"ours\n"))
    assert lines.text(b"two~%d" % lines.theirs.id) == b"new\n"


@pytest.mark.parametrize("resolution", [OURS, THEIRS, MARKERS])
def test_a_directory_that_they_replaced_by_another_holds_something_of_ours(
    lines: Lines, resolution: str
) -> None:
    for path in (b"old", b"new"):
        lines.edits.mkdir(path)
        lines.edits.put(path + b"/file", path)
    lines.part()
    lines.edits.remove(b"old")
    lines.edits.move(b"new", b"old")
    lines.come_back()
    lines.edits.put(b"old/ours", b"ours")
    assert lines.kinds() == {(b"old", "added")}
    lines.merge(resolution)
    files = {path for path, each in lines.tree().items() if each[0] == "file"}
    beside = b"old~%d/file" % lines.theirs.id
    assert (
        files
        == {
            OURS: {b"old/ours", b"new/file"},
            THEIRS: {b"old/file"},
            MARKERS: {b"old/ours", beside},
        }[resolution]
    )


def test_what_they_moved_into_what_comes_back_comes_once(lines: Lines) -> None:
    lines.edits.mkdir(b"dir")
    lines.edits.put(b"moved", b"base")
    lines.part()
    lines.edits.move(b"dir", b"there")
    lines.edits.move(b"moved", b"there/moved")
    lines.come_back()
    lines.edits.remove(b"dir")
    lines.edits.put(b"moved", b"ours")
    lines.merge(THEIRS)
    assert set(lines.tree()) == {b"there", b"there/moved"}
    assert lines.text(b"there/moved") == b"ours"


def test_what_they_moved_away_is_not_in_the_way_of_what_they_put_there(lines: Lines) -> None:
    lines.edits.mkdir(b"dir")
    lines.edits.put(b"dir/x", b"x")
    lines.edits.put(b"file", b"base")
    lines.part()
    lines.edits.move(b"file", b"moved")
    lines.edits.move(b"dir", b"file")
    lines.come_back()
    lines.edits.remove(b"dir")
    lines.edits.put(b"file", b"ours")
    lines.merge(THEIRS)
    assert set(lines.tree()) == {b"file", b"file/x", b"moved"}
    assert lines.text(b"moved") == b"ours"


def test_what_both_moved_alike_is_one_file_whatever_came_to_its_old_name(lines: Lines) -> None:
    lines.edits.put(b"old", numbered())
    lines.part()
    lines.edits.move(b"old", b"new")
    lines.edits.put(b"new", numbered((1, b"theirs\n")))
    lines.edits.put(b"old", b"another")
    lines.come_back()
    lines.edits.move(b"old", b"new")
    lines.edits.put(b"new", numbered((8, b"ours\n")))
    lines.merge()
    assert lines.text(b"new") == numbered((1, b"theirs\n"), (8, b"ours\n"))
    assert lines.text(b"old") == b"another"


def test_what_goes_out_of_the_way_of_a_directory_may_go_into_it(lines: Lines) -> None:
    lines.edits.put(b"file", b"base")
    lines.part()
    lines.edits.mkdir(b"dir")
    lines.edits.move(b"file", b"dir/file")
    lines.come_back()
    lines.edits.move(b"file", b"dir")
    lines.edits.put(b"dir", b"ours")
    lines.merge(THEIRS)
    assert lines.text(b"dir/file") == b"ours"


def test_what_a_merge_did_is_told_by_the_paths_that_it_has_now(lines: Lines) -> None:
    for path in (b"a", b"b"):
        lines.edits.mkdir(path)
        lines.edits.put(path + b"/file", b"base")
    lines.edits.mkdir(b"stays")
    lines.edits.put(b"stays/gone", b"base")
    lines.part()
    lines.edits.move(b"a", b"theirs")
    lines.edits.put(b"theirs/file", b"theirs")
    lines.edits.put(b"b/new", b"theirs")
    lines.edits.remove(b"stays")
    lines.come_back()
    lines.edits.move(b"b", b"ours")
    lines.edits.put(b"stays/ours", b"ours")
    lines.edits.put(b"ours/new", b"ours")
    assert lines.kinds() == {(b"ours/new", "added")}
    lines.edits.remove(b"ours/new")
    plan = lines.merge()
    modified = [b"theirs/file"]
    assert plan.paths() == ([b"ours/new", b"theirs"], modified, [b"a", b"stays/gone"])


def test_a_merge_by_paths_goes_by_what_they_are_called_here(lines: Lines) -> None:
    lines.edits.mkdir(b"dir")
    lines.edits.put(b"dir/file", b"base")
    lines.part()
    lines.edits.put(b"dir/file", b"theirs")
    lines.edits.put(b"dir/new", b"theirs")
    lines.edits.put(b"other", b"theirs")
    lines.come_back()
    lines.edits.move(b"dir", b"moved")
    assert lines.plan(paths=(b"moved/file",)).paths() == ([], [b"moved/file"], [])
    assert lines.plan(paths=(b"moved",)).paths() == ([b"moved/new"], [b"moved/file"], [])


# -- files with several names ----------------------------------------------------------------------


def names_of(lines: Lines) -> set[frozenset[bytes]]:
    """The names of each file."""
    found: dict[int, set[bytes]] = {}
    for path, each in lines.tree().items():
        if each[0] == "file":
            found.setdefault(lines.edits.at(path).ino, set()).add(path)
    return {frozenset(names) for names in found.values()}


def test_two_files_of_theirs_do_not_become_one_of_ours(lines: Lines) -> None:
    lines.edits.put(b"base", b"base\n")
    lines.part()
    for name in (b"one", b"two", b"link"):
        lines.edits.put(name, b"theirs " + name + b"\n")
    lines.come_back()
    lines.edits.put(b"one", b"ours\n")
    lines.edits.link(b"one", b"two")
    lines.edits.link(b"base", b"link")
    lines.merge(MARKERS)
    for name in (b"one", b"two"):
        assert b"ours\n" in lines.text(name) and b"theirs " + name in lines.text(name)
    assert lines.text(b"base") == b"base\n"
    assert b"base\n" in lines.text(b"link") and b"theirs link" in lines.text(b"link")


def test_names_that_they_gave_other_files_leave_the_file_with_those_that_they_kept(
    lines: Lines,
) -> None:
    lines.edits.put(b"a", b"base")
    for name in (b"b", b"c", b"d"):
        lines.edits.link(b"a", name)
    lines.part()
    for name in (b"a", b"d"):
        lines.edits.remove(name)
        lines.edits.put(name, b"base" if name == b"d" else b"alone")
    lines.edits.put(b"b", b"both")
    lines.edits.link(b"b", b"e")
    lines.come_back()
    plan = lines.merge()
    assert {path: each[2] for path, each in lines.tree().items()} == {
        b"a": b"alone",
        b"b": b"both",
        b"c": b"both",
        b"d": b"base",
        b"e": b"both",
    }
    assert names_of(lines) == {frozenset({b"a"}), frozenset({b"b", b"c", b"e"}), frozenset({b"d"})}
    assert not plan.conflicts


def test_a_name_that_they_added_is_one_of_our_file_only_if_it_is_theirs(lines: Lines) -> None:
    lines.edits.put(b"a", b"base")
    lines.edits.put(b"x", b"base")
    lines.edits.link(b"x", b"y")
    lines.part()
    lines.edits.link(b"a", b"further")
    lines.edits.remove(b"x")
    lines.edits.put(b"x", b"theirs")
    lines.edits.link(b"y", b"z")
    lines.come_back()
    lines.edits.put(b"a", b"ours")
    lines.edits.remove(b"y")
    lines.merge()
    assert lines.text(b"further") == b"ours"
    assert (lines.text(b"x"), lines.text(b"z")) == (b"theirs", b"base")
    assert names_of(lines) == {frozenset({b"a", b"further"}), frozenset({b"x"}), frozenset({b"z"})}


def test_a_name_beside_ours_has_what_they_did(lines: Lines) -> None:
    lines.edits.put(b"a", b"base")
    lines.edits.link(b"a", b"d")
    lines.edits.symlink(b"b", b"elsewhere")
    lines.part()
    lines.edits.remove(b"b")
    lines.edits.link(b"a", b"b")
    lines.edits.put(b"a", b"theirs")
    lines.edits.remove(b"d")
    lines.come_back()
    lines.edits.remove(b"b")
    lines.edits.link(b"a", b"b")
    lines.edits.remove(b"a")
    lines.merge(MARKERS)
    assert (lines.text(b"b"), lines.text(b"a")) == (b"base", b"theirs")
    assert lines.text(b"b~%d" % lines.theirs.id) == b"theirs"


def test_a_further_name_that_both_made_is_no_conflict(lines: Lines) -> None:
    lines.edits.put(b"a", numbered())
    lines.part()
    for changed in ((1, b"theirs\n"), (8, b"ours\n")):
        lines.edits.link(b"a", b"b")
        lines.edits.put(b"a", numbered(changed))
        if changed[0] == 1:
            lines.come_back()
    lines.merge()
    assert lines.text(b"b") == numbered((1, b"theirs\n"), (8, b"ours\n"))
    assert names_of(lines) == {frozenset({b"a", b"b"})}


# -- rights ----------------------------------------------------------------------------------------


def run_by(lines: Lines, path: bytes) -> tuple[int, int, bytes]:
    """Who owns a program, its mode, and its bytes."""
    inode = lines.edits.at(path)
    return inode.uid, stat.S_IMODE(inode.mode), lines.text(path)


@pytest.mark.parametrize("changes_bytes", [False, True])
def test_set_id_bits_of_theirs_never_meet_an_owner_of_ours(
    lines: Lines, changes_bytes: bool
) -> None:
    lines.edits.put(b"program", b"base")
    lines.edits.change(b"program", uid=1000, mode=0o755)
    lines.part()
    if changes_bytes:
        lines.edits.put(b"program", b"theirs")
    lines.edits.change(b"program", mode=0o4755)
    lines.come_back()
    lines.edits.change(b"program", uid=0)
    lines.merge()
    assert run_by(lines, b"program") == (0, 0o755, b"theirs" if changes_bytes else b"base")


def test_set_id_bits_of_ours_never_meet_bytes_of_theirs(lines: Lines) -> None:
    lines.edits.put(b"program", numbered())
    lines.edits.fs.setxattr(lines.edits.fs.head, lines.edits.at(b"program").ino, b"user.a", b"a")
    lines.part()
    lines.edits.put(b"program", numbered((1, b"theirs\n")))
    lines.come_back()
    ino = lines.edits.at(b"program").ino
    lines.edits.change(b"program", mode=0o4755)
    lines.edits.fs.setxattr(lines.edits.fs.head, ino, b"security.capability", b"all")
    lines.merge()
    assert run_by(lines, b"program") == (0, 0o755, numbered((1, b"theirs\n")))
    assert lines.edits.fs.listxattr(lines.edits.fs.head, ino) == [b"user.a"]


def test_a_program_that_is_theirs_as_a_whole_keeps_its_set_id_bits(lines: Lines) -> None:
    lines.edits.put(b"built", b"base", mode=0o4755)
    lines.edits.put(b"described", b"same")
    lines.part()
    lines.edits.put(b"built", b"theirs")
    lines.edits.change(b"described", uid=7, mode=0o4755)
    lines.come_back()
    lines.edits.put(b"other", b"ours")
    lines.merge()
    assert run_by(lines, b"built") == (0, 0o4755, b"theirs")
    assert run_by(lines, b"described") == (7, 0o4755, b"same")


# -- damage ----------------------------------------------------------------------------------------


def blocks_of(lines: Lines, paths: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Where the block map has the only block of files of theirs, and that block's key."""
    fs = lines.edits.fs
    view, found = fs.view_of(lines.theirs.epoch), []
    for path in paths:
        entity = block_entity(lines.edits.at(path, view).content, 0)
        record = fs.store.blockmap.get(view, entity) or b""
        found.append((entity + view.suffix, unpack_mapping(record).key))
    return found


@pytest.mark.parametrize("damaged", ["record", "count"])
@pytest.mark.parametrize("exist", [False, True])
def test_a_merge_that_meets_damage_leaves_no_block_counted(
    lines: Lines, exist: bool, damaged: str
) -> None:
    work, store = lines.edits, lines.edits.store
    paths = (b"d/a", b"d/b", b"d/c")
    work.mkdir(b"d")
    for path in paths if exist else ():
        work.put(path, b"base")
    lines.part()
    for path in paths:
        work.put(path, path * 1_000)
    lines.come_back()
    blocks = blocks_of(lines, paths)
    last, key = blocks[-1]
    record = record_of(store.blockmap, last)
    assert record is not None
    if damaged == "record":
        store.blockmap.rewrite(last, b"?damaged")
    else:
        store.blocks._refs.put(key, b"?")
    with pytest.raises(CorruptRecord) as raised:
        lines.merge()
    if damaged == "record" and not exist:
        assert raised.value.filename == b"d/c"
    store.blockmap.rewrite(last, record)
    store.blocks._refs.delete(key)
    removal.reap(work.fs)
    assert [store.blocks.uses(key) for _, key in blocks] == [1, 1, 1]
    assert check(store) == []
    lines.merge()
    assert lines.text(b"d/c") == b"d/c" * 1_000
