"""Taking restores back: which paths go back, and whether anything changed since."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptfs import interrupts
from ckptfs.errors import CheckpointUnknown, NotConfirmed, NothingToUndo, PathUnknown, TreeMoved
from ckptfs.history import Changed, checkpoints, lineage, preparing, restore_log, seal, tasks
from ckptfs.history.tasks import plan_revert, revert
from ckptfs.service import Service
from ckptfs.service.restore import head_undo
from ckptfs.service.service import perform
from ckptfs.store.format import block_entity
from tests.direct import assert_clean, shown
from tests.history.edits import Edits

Files = dict[str, str]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    """Checkpoint 0 has f and d/g; now f, d/g and e differ from it, which is checkpoint 1."""
    made = Edits(tmp_path / "store")
    made.mkdir("d")
    made.put("f", b"old")
    made.put("d/g", b"old")
    save(made)
    made.put("f", b"new")
    made.put("d/g", b"new")
    made.put("e", b"new")
    save(made)
    yield made
    assert_clean(made.fs)
    made.store.close()


def save(work: Edits) -> int:
    return seal(work.fs, "manual", "", work.fs.clock()).id


def files(work: Edits) -> Files:
    nodes = shown(work.fs, work.fs.head).nodes
    return {
        path.decode(): node.content.whole.decode()
        for path, node in nodes.items()
        if not node.mode & 0o40000
    }


NEW = {"f": "new", "d/g": "new", "e": "new"}


def test_undoing_a_restore_of_one_path_changes_only_that(work: Edits) -> None:
    service = Service(work.fs)
    service.restore("0", [b"f"])
    work.put("w1", b"work")
    save(work)
    work.put("d/g", b"work")
    with pytest.raises(NotConfirmed):
        service.undo(if_unchanged=True)
    assert service.plan_back("undo").modified == (b"f",)
    service.undo()
    assert files(work) == NEW | {"w1": "work", "d/g": "work"}
    work.put("w2", b"work")
    with pytest.raises(NotConfirmed):
        service.redo(if_unchanged=True)
    service.redo()
    assert files(work) == NEW | {"f": "old", "w1": "work", "d/g": "work", "w2": "work"}
    service.undo(if_unchanged=True)
    assert files(work) == NEW | {"w1": "work", "d/g": "work", "w2": "work"}


@pytest.mark.parametrize("paths", [None, [b"f"], [b"d"], [b"e", b"d/g"]])
def test_undo_and_redo_lead_back_and_forth(work: Edits, paths: list[bytes] | None) -> None:
    service = Service(work.fs)
    service.restore("0", paths)
    restored = files(work)
    for _ in range(2):
        save(work)  # of the same once more: that is no change
        service.undo(if_unchanged=True)
        assert files(work) == NEW
        service.redo(if_unchanged=True)
        assert files(work) == restored


def test_a_directory_that_was_made_on_the_way_goes_again(work: Edits) -> None:
    service = Service(work.fs)
    work.remove("d/g")
    work.remove("d")
    service.restore("0", [b"d/g"])
    service.undo(if_unchanged=True)
    assert b"d" not in shown(work.fs, work.fs.head).nodes
    service.redo(if_unchanged=True)
    assert files(work)["d/g"] == "old"


def _again(work: Edits) -> None:
    work.put("f", b"again")


def _beside(work: Edits) -> None:
    work.put("beside", b"")


def _gone(work: Edits) -> None:
    work.remove("f")


@pytest.mark.parametrize("change", [_again, _beside, _gone])
@pytest.mark.parametrize("paths", [None, [b"f"]])
def test_what_changed_since_is_noticed(
    work: Edits, paths: list[bytes] | None, change: Callable[[Edits], None]
) -> None:
    service = Service(work.fs)
    service.restore("0", paths)
    change(work)
    with pytest.raises(NotConfirmed) as refused:
        service.undo(if_unchanged=True)
    assert "changed since that restore" in str(refused.value)
    token = service.plan_back("undo").token
    work.put("late", b"")
    with pytest.raises(TreeMoved):
        service.undo(token=token)
    service.undo(token=service.plan_back("undo").token)
    assert files(work)["f"] == "new"
    assert ("late" in files(work)) == bool(paths)


def test_two_restores_are_taken_back_one_by_one(work: Edits) -> None:
    service = Service(work.fs)
    service.restore("0", [b"f"])
    service.restore("0")
    service.undo(if_unchanged=True)
    assert files(work) == NEW | {"f": "old"}
    service.undo(if_unchanged=True)
    assert files(work) == NEW
    with pytest.raises(NothingToUndo):
        service.undo()


def test_without_a_backup_there_is_no_undo(work: Edits) -> None:
    service = Service(work.fs)
    service.restore("0", [b"f"])
    work.put("f", b"edited")
    save(work)
    service.restore("0", backup=False)
    with pytest.raises(NothingToUndo):
        service.undo()
    assert files(work) == {"f": "old", "d/g": "old"}


def test_without_a_backup_it_is_told_what_changed(work: Edits) -> None:
    service = Service(work.fs)
    work.put("f", b"edited")
    save(work)
    before = [item.id for item in checkpoints(work.store)]
    done = perform(service, "restore", {"checkpoint": "0", "names": True, "backup": False})
    assert done["modified_paths"] == ["d/g", "f"]
    assert [item.id for item in checkpoints(work.store)] == before


@pytest.mark.parametrize("backup", [True, False])
def test_a_restore_stands_whatever_keeps_its_names_from_being_found(
    work: Edits, backup: bool
) -> None:
    before = [item.id for item in checkpoints(work.store)]
    target = work.fs.view_of(checkpoints(work.store)[0].epoch)
    entity = block_entity(work.at("f", target).content, 0)
    record = work.store.blockmap.get(target, entity)
    assert record is not None
    work.store.blockmap.rewrite(entity + target.suffix, b"?damaged")
    asked = {"checkpoint": "0", "names": True, "backup": backup}
    done = perform(Service(work.fs), "restore", asked)
    assert done["changed"]
    assert (done["added_paths"], done["modified_paths"], done["deleted_paths"]) == (None,) * 3
    work.store.blockmap.rewrite(entity + target.suffix, record)
    assert files(work) == {"f": "old", "d/g": "old"}
    assert ([item.id for item in checkpoints(work.store)] == before) is not backup


def test_a_revert_that_is_undone_can_be_made_again(work: Edits) -> None:
    service, fs = Service(work.fs), work.fs
    tasks.start(fs, "t")
    work.put("made", b"by the task")
    tasks.done(fs)
    for _ in range(2):
        revert(fs, "t", changed=Changed(set(), set()))
        assert files(work) == NEW
        assert tasks.tasks(work.fs)["t"].state == "reverted"
        service.undo(if_unchanged=True)
        assert "made" in files(work)
        assert tasks.tasks(work.fs)["t"].state == "done"
        assert plan_revert(fs, "t").paths == [b"made"]
    service.redo(if_unchanged=True)
    assert tasks.tasks(work.fs)["t"].state == "reverted"
    service.undo(if_unchanged=True)
    revert(fs, "t", changed=Changed(set(), set()))
    work.put("later", b"work")
    service.undo()
    assert files(work) == NEW | {"made": "by the task", "later": "work"}


def test_undoing_a_revert_keeps_what_the_task_did_after_it(work: Edits) -> None:
    service, fs = Service(work.fs), work.fs
    tasks.start(fs, "t")
    work.put("first", b"")
    revert(fs, "t", changed=Changed(set(), set()))
    tasks.start(fs, "t")
    work.put("second", b"")
    service.undo()
    assert files(work).keys() == {*NEW, "first", "second"}
    tasks.done(fs)
    assert plan_revert(fs, "t").paths == [b"first", b"second"]
    # The first revert changed the same path in a time that was not the task's.
    revert(fs, "t", force=True, changed=Changed(set(), set()))
    assert files(work) == NEW


def test_what_is_in_the_way_of_an_undo_is_named(work: Edits) -> None:
    service = Service(work.fs)
    service.restore("0", [b"d/g"])
    work.remove("d/g")
    work.remove("d")
    work.put("d", b"a file")
    for ask in (service.undo, lambda: service.plan_back("undo")):
        with pytest.raises(PathUnknown, match="a file is in the way"):
            ask()
    assert files(work)["d"] == "a file"


def test_the_kernel_is_asked_for_what_it_caches_before_a_restore_and_the_restore_runs_once(
    work: Edits,
) -> None:
    fs, service = work.fs, Service(work.fs)
    known = {work.at(path).ino for path in ("f", "d/g", "e")}
    fs.can_ask, fs.is_used = True, known.__contains__
    target = service.find("0")
    cached = interrupts.finish(preparing(fs, target))
    assert {name for _, name in cached} == {b"f", b"g", b"e"}
    # Those that are still known are open: the restore goes ahead and parts them from their names.
    restored = service.restore("0")
    assert restored is not None
    assert files(work) == {"f": "old", "d/g": "old"}
    assert len(service.restores()) == 1
    fs.can_ask, fs.is_used = False, fs.is_held


def test_taking_back_a_restore_makes_its_checkpoint_the_head_unless_others_changed(
    work: Edits,
) -> None:
    service = Service(work.fs)
    service.restore("0", [b"f"])
    head = head_undo(service)
    assert head is not None and head.id == service.restores()[-1].before
    work.put("w1", b"work")
    assert head_undo(service) is None


def test_a_step_of_a_rewind_is_one_that_differs(work: Edits) -> None:
    """Undo and redo leave checkpoints of states that others have."""
    service = Service(work.fs)
    service.restore("0")
    service.undo()
    work.put("f", b"newest")
    save(work)
    assert [item.id for item in lineage(work.fs)] == [4, 2, 1, 0]
    assert service.steps_back(1).id == 2
    assert service.steps_back(2).id == 0
    with pytest.raises(CheckpointUnknown, match="there are only 2 before now"):
        service.steps_back(3)


# -- failures half-way -----------------------------------------------------------------------------


class FailingClock:
    """A clock that fails once, at the reading of that number."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.readings = self.fails_at = 0

    def __call__(self) -> int:
        self.readings += 1
        if self.readings == self.fails_at:
            raise OSError(errno.EIO, "the clock has stopped")
        return self._clock()


def _restore_paths(service: Service) -> None:
    service.restore("0", [b"f", b"d", b"e"])


def _undo(service: Service) -> None:
    service.undo()


def _revert(service: Service) -> None:
    perform(service, "task_revert", {"name": "T"})


def _prepared(path: Path, deed: Callable[[Service], None]) -> Edits:
    work = Edits(path)
    work.mkdir("d")
    for data in (b"old", b"new"):
        for name in ("f", "d/g", "e"):
            work.put(name, data)
        save(work)
    service = Service(work.fs)
    if deed is _revert:
        perform(service, "task_start", {"name": "T"})
        for name in ("f", "d/g", "new"):
            work.put(name, b"task")
        perform(service, "task_done", {})
    if deed is _undo:
        service.restore("0", [b"f", b"d", b"e"])
        work.put("later", b"work")  # or all of it would be another head
    work.fs.clock = FailingClock(work.fs.clock)
    return work


def _state(work: Edits) -> object:
    return (
        shown(work.fs, work.fs.head),
        [item.id for item in checkpoints(work.store)],
        restore_log(work.fs),
        tasks.events(work.fs),
    )


@pytest.mark.parametrize(
    ("deed", "for_the_log"),
    [(_restore_paths, 1), (_undo, 1), (_revert, 3)],
    ids=["restore of paths", "undo", "task revert"],
)
def test_what_fails_half_way_has_not_happened(
    tmp_path: Path, deed: Callable[[Service], None], for_the_log: int
) -> None:
    """Each reading of the clock fails once, but for those when all is done."""
    counted = _prepared(tmp_path / "counted", deed)
    deed(Service(counted.fs))
    clock = counted.fs.clock
    assert isinstance(clock, FailingClock)
    readings = clock.readings - for_the_log
    done = _state(counted)
    counted.store.close()
    assert readings > 2

    work = _prepared(tmp_path / "store", deed)
    before = _state(work)
    assert before != done
    clock = work.fs.clock
    assert isinstance(clock, FailingClock)
    for number in range(1, readings + 1):
        clock.readings, clock.fails_at = 0, number
        with pytest.raises(OSError, match="the clock has stopped"):
            deed(Service(work.fs))
        assert _state(work) == before, number
    deed(Service(work.fs))
    assert _state(work) != before
    assert_clean(work.fs)
    work.store.close()
