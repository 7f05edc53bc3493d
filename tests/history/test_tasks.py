"""Tasks: whose a stretch of time is, and taking back one task's changes alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.errors import TaskConflict, TaskInvalid, TaskUnknown
from ckptfs.history import Changed, checkpoints, removal, restore, seal, tasks, undoable
from ckptfs.history.tasks import Reverted, plan_revert, revert
from ckptfs.service import Service
from tests.direct import assert_clean, get, reopened, shown
from tests.history.edits import Edits


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    made = Edits(tmp_path / "store")
    seal(made.fs, "mount", "first mount", made.fs.clock())
    yield made
    assert_clean(made.fs)
    made.store.close()


def undo(work: Edits, name: str, *, force: bool = False) -> Reverted:
    return revert(work.fs, name, force=force, changed=Changed(set(), set()))


def files(work: Edits) -> dict[bytes, bytes]:
    """Every file and what is in it; directories with a slash."""
    nodes = shown(work.fs, work.fs.head).nodes
    return {
        path + (b"/" if node.mode & 0o40000 else b""): node.content.whole
        for path, node in nodes.items()
        if path
    }


def state(work: Edits, name: str) -> str:
    return tasks.tasks(work.fs)[name].state


# -- whose a stretch is ----------------------------------------------------------------------------


def test_a_task_is_current_until_it_is_done(work: Edits) -> None:
    assert tasks.current(work.fs) == ""
    tasks.start(work.fs, "a")
    assert tasks.current(work.fs) == "a" and state(work, "a") == "current"
    tasks.done(work.fs, "fixed")
    assert tasks.current(work.fs) == "" and state(work, "a") == "done"
    assert tasks.tasks(work.fs)["a"].message == "fixed"


def test_the_one_started_last_is_current_and_the_one_before_goes_on(work: Edits) -> None:
    for name in ("a", "b", "c"):
        tasks.start(work.fs, name)
    assert tasks.current(work.fs) == "c" and state(work, "a") == "open"
    assert tasks.done(work.fs)[0] == "c"
    assert tasks.current(work.fs) == "b"
    tasks.start(work.fs, "a")  # takes it up again
    assert [tasks.done(work.fs)[0] for _ in range(2)] == ["a", "b"]
    with pytest.raises(TaskUnknown, match="no task is open"):
        tasks.done(work.fs)


def test_announced_tasks_are_current_in_the_order_of_their_announcement(work: Edits) -> None:
    begins = tasks.announce(work.fs, "a", "the first")
    assert begins is not None
    for name in ("b", "c", "b"):
        assert tasks.announce(work.fs, name) is None
    assert tasks.current(work.fs) == "a" and [state(work, n) for n in "bc"] == ["open"] * 2
    assert tasks.tasks(work.fs)["a"].message == "the first"
    assert tasks.finish(work.fs, "c") is None  # before its turn
    assert tasks.current(work.fs) == "a" and state(work, "c") == "done"
    ends = tasks.finish(work.fs, "a")
    assert ends is not None and tasks.current(work.fs) == "b"
    assert tasks.tasks(work.fs)["a"].stretches == [(begins.id, ends.id)]
    tasks.finish(work.fs, "b")
    assert tasks.current(work.fs) == "" and tasks.finish(work.fs, "b") is None


def test_what_is_announced_goes_before_what_a_person_started_and_behind_what_they_start_next(
    work: Edits,
) -> None:
    tasks.start(work.fs, "mine")
    for name in ("a", "b"):
        tasks.announce(work.fs, name)
    assert tasks.current(work.fs) == "a"
    tasks.start(work.fs, "urgent")
    tasks.announce(work.fs, "c")
    assert tasks.current(work.fs) == "urgent"
    order = [tasks.done(work.fs)[0] for _ in range(5)]
    assert order == ["urgent", "a", "b", "c", "mine"]


def test_a_finished_task_that_is_announced_again_is_taken_up_again(work: Edits) -> None:
    for _ in range(2):
        tasks.announce(work.fs, "a")
        tasks.finish(work.fs, "a")
    assert len(tasks.tasks(work.fs)["a"].stretches) == 2


def test_each_announced_task_is_reverted_on_its_own(work: Edits) -> None:
    for name in ("a", "b", "c"):
        tasks.announce(work.fs, name)
    for name in ("a", "b"):
        work.put(name, b"1")
        tasks.finish(work.fs, name)
    tasks.finish(work.fs, "c")
    undo(work, "a")
    assert set(files(work)) == {b"b"}
    tasks.announce(work.fs, "d")
    tasks.announce(work.fs, "e")
    tasks.finish(work.fs, "e")
    with pytest.raises(TaskUnknown, match="it changed nothing"):
        undo(work, "e")


def test_starting_the_current_task_again_changes_nothing(work: Edits) -> None:
    tasks.start(work.fs, "a")
    before = len(checkpoints(work.store))
    assert tasks.start(work.fs, "a") is None
    assert len(checkpoints(work.store)) == before


def test_checkpoints_belong_to_the_task_that_is_current(work: Edits) -> None:
    tasks.start(work.fs, "a")
    work.put("x", b"1")
    within = seal(work.fs, "auto", "", work.fs.clock())
    _, ends = tasks.done(work.fs)
    after = seal(work.fs, "auto", "", work.fs.clock())
    assert within.metadata == ends.metadata == {"task": "a"} and after.metadata == {}


def test_tasks_survive_the_end_of_the_process(work: Edits) -> None:
    tasks.start(work.fs, "a")
    work.put("x", b"1")
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    assert tasks.current(work.fs) == "a"
    undo(work, "a")
    assert files(work) == {}


@pytest.mark.parametrize("name", ["", " ", " a", "a\nb", "\x1b[2J", "x" * 101])
def test_a_name_is_a_short_line(work: Edits, name: str) -> None:
    with pytest.raises(TaskInvalid):
        tasks.start(work.fs, name)
    assert tasks.tasks(work.fs) == {}


# -- reverting -------------------------------------------------------------------------------------


def test_only_what_the_task_changed_goes_back(work: Edits) -> None:
    work.put("kept", b"old")
    work.put("gone", b"old")
    tasks.start(work.fs, "a")
    work.put("kept", b"new")
    work.put("made", b"new")
    work.remove("gone")
    tasks.done(work.fs)
    work.put("other", b"mine")
    undo(work, "a")
    assert files(work) == {b"kept": b"old", b"gone": b"old", b"other": b"mine"}
    assert state(work, "a") == "reverted"


def test_a_task_that_is_still_open_can_be_reverted_and_ends(work: Edits) -> None:
    tasks.start(work.fs, "a")
    work.put("x", b"1")
    undo(work, "a")
    assert files(work) == {} and tasks.current(work.fs) == ""


def test_another_tasks_files_are_left_alone(work: Edits) -> None:
    tasks.start(work.fs, "a")
    work.mkdir("d")
    work.put("d/a", b"a")
    tasks.start(work.fs, "b")
    work.put("d/b", b"b")
    tasks.done(work.fs)
    work.put("d/a2", b"a")
    tasks.done(work.fs)
    undo(work, "a")
    assert files(work) == {b"d/": b"", b"d/b": b"b"}
    undo(work, "b")
    assert files(work) == {b"d/": b""}


def test_a_revert_counts_as_no_other_tasks_change(work: Edits) -> None:
    work.put("x", b"0")
    tasks.start(work.fs, "outer")
    tasks.start(work.fs, "inner")
    work.put("x", b"1")
    tasks.done(work.fs)
    work.put("y", b"2")
    undo(work, "inner")
    assert tasks.current(work.fs) == "outer"
    assert plan_revert(work.fs, "outer").paths == [b"y"]


def test_the_same_file_changed_by_another_is_a_conflict_that_is_named(work: Edits) -> None:
    work.put("x", b"0")
    tasks.start(work.fs, "a")
    work.put("x", b"1")
    work.put("only", b"1")
    tasks.start(work.fs, "b")
    work.put("x", b"2")
    tasks.done(work.fs)
    before = files(work)
    with pytest.raises(TaskConflict, match=r"x \(task b\)\. Nothing"):
        undo(work, "a")
    assert files(work) == before and state(work, "a") == "current"
    undo(work, "a", force=True)
    assert files(work) == {b"x": b"0"}


def test_a_change_outside_of_any_task_is_in_the_way_too(work: Edits) -> None:
    tasks.start(work.fs, "a")
    work.put("x", b"1")
    tasks.done(work.fs)
    work.put("x", b"by hand")
    with pytest.raises(TaskConflict, match=r"after it: x\. Nothing"):
        undo(work, "a")


def test_what_another_changed_before_the_task_is_what_it_goes_back_to(work: Edits) -> None:
    work.put("x", b"0")
    tasks.start(work.fs, "a")
    tasks.start(work.fs, "b")
    work.put("x", b"b")
    tasks.start(work.fs, "a")
    work.put("x", b"a")
    undo(work, "a")
    assert files(work) == {b"x": b"b"}


def test_a_conflict_that_went_away_again_is_none(work: Edits) -> None:
    tasks.start(work.fs, "a")
    work.put("x", b"a")
    tasks.start(work.fs, "b")
    work.put("x", b"b")
    undo(work, "b")
    undo(work, "a")
    assert files(work) == {}


def test_a_renamed_directory_goes_back_and_takes_nothing_of_others_along(work: Edits) -> None:
    work.mkdir("old")
    work.put("old/f", b"f")
    tasks.start(work.fs, "a")
    work.move("old", "new")
    work.put("new/f", b"changed")
    tasks.done(work.fs)
    work.put("new/other", b"mine")
    with pytest.raises(TaskConflict, match="new/other"):
        undo(work, "a")
    work.remove("new/other")
    undo(work, "a")
    assert files(work) == {b"old/": b"", b"old/f": b"f"}


def test_a_file_in_a_directory_that_another_renamed_is_a_conflict(work: Edits) -> None:
    work.mkdir("old")
    tasks.start(work.fs, "a")
    work.put("old/f", b"f")
    tasks.start(work.fs, "b")
    work.move("old", "new")
    with pytest.raises(TaskConflict, match="old/f"):
        undo(work, "a")


def test_a_file_that_became_a_directory_with_something_of_others_is_a_conflict(work: Edits) -> None:
    work.put("z", b"file")
    tasks.start(work.fs, "a")
    work.remove("z")
    work.mkdir("z")
    tasks.done(work.fs)
    work.put("z/other", b"mine")
    with pytest.raises(TaskConflict, match="z/other"):
        undo(work, "a")
    work.remove("z/other")
    undo(work, "a")
    assert files(work) == {b"z": b"file"}


def test_stretches_are_taken_back_from_the_last_to_the_first(work: Edits) -> None:
    work.mkdir("d")
    work.put("d/x", b"old")
    work.put("y", b"old")
    tasks.start(work.fs, "a")
    work.put("d/x", b"new")
    work.remove("y")
    tasks.start(work.fs, "b")
    work.put("other", b"b")
    tasks.done(work.fs)
    work.move("d", "y")
    undo(work, "a")
    assert files(work) == {b"d/": b"", b"d/x": b"old", b"y": b"old", b"other": b"b"}


def test_a_directorys_mode_goes_back_without_what_is_in_it(work: Edits) -> None:
    work.mkdir("d")
    tasks.start(work.fs, "a")
    work.change("d", mode=0o700)
    tasks.done(work.fs)
    work.put("d/other", b"mine")
    undo(work, "a")
    assert work.at("d").mode & 0o777 == 0o755 and get(work.fs, b"d/other") == b"mine"


def test_a_restore_within_a_task_is_its_doing(work: Edits) -> None:
    work.put("x", b"0")
    start = seal(work.fs, "manual", "", work.fs.clock())
    work.put("mine", b"1")
    tasks.start(work.fs, "a")
    restore(work.fs, start)
    tasks.done(work.fs)
    assert files(work) == {b"x": b"0"}
    undo(work, "a")
    assert files(work) == {b"x": b"0", b"mine": b"1"}


def test_undo_takes_a_revert_back(work: Edits) -> None:
    tasks.start(work.fs, "a")
    work.put("x", b"1")
    tasks.done(work.fs)
    done = undo(work, "a")
    entry = undoable(work.fs)
    assert entry is not None and entry.before == done.before.id and entry.paths == ("x",)
    Service(work.fs).undo()
    assert files(work) == {b"x": b"1"}


def test_a_task_that_cannot_be_reverted_is_refused(work: Edits) -> None:
    with pytest.raises(TaskUnknown, match="no task of that name"):
        undo(work, "never")
    begins = tasks.start(work.fs, "a")
    work.put("x", b"1")
    undo(work, "a")
    with pytest.raises(TaskUnknown, match="reverted already"):
        undo(work, "a")
    begins = tasks.start(work.fs, "a")
    assert begins is not None
    removal.delete(work.fs, [begins])
    with pytest.raises(TaskInvalid, match=f"checkpoint {begins.id}.*was deleted"):
        undo(work, "a")


def test_a_revert_of_nothing_takes_no_checkpoint_and_leaves_the_task_as_it_is(
    work: Edits,
) -> None:
    tasks.start(work.fs, "idle")
    tasks.done(work.fs)
    work.put("other", b"not of the task")
    before = [item.id for item in checkpoints(work.store)]
    done = undo(work, "idle")
    assert (done.before, done.after, done.plan.paths) == (None, None, [])
    assert [item.id for item in checkpoints(work.store)] == before
    assert state(work, "idle") == "done" and undoable(work.fs) is None


def test_a_name_can_be_used_again_after_a_revert(work: Edits) -> None:
    for content in (b"1", b"2"):
        tasks.start(work.fs, "a")
        work.put("x", content)
        undo(work, "a")
    assert files(work) == {} and len(tasks.events(work.fs)) == 4
