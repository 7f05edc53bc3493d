"""With very many checkpoints: what is kept of all of them is what their records say, and verbs do
no more than with few."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs import history, interrupts
from ckptfs.fuse.history_dir import HistoryDirectory
from ckptfs.fuse.nodes import Nodes
from ckptfs.history import Checkpoint, checkpoints, expiry, removal, seal, space
from ckptfs.history.authors import attribution_of
from ckptfs.history.checkpoints import LOST, MOMENT, find, nearest, numbered, of_epoch
from ckptfs.history.expiry import decide, expire, heaviest, insight
from ckptfs.history.retention import Figures, MinFree, RetentionPolicy, judge
from ckptfs.history.space import weigher
from ckptfs.model import ROOT_INO, Epoch
from ckptfs.service import Service
from ckptfs.service.service import perform
from ckptfs.store import Store
from ckptfs.store.format import NO_EPOCH, suffix_of
from tests.direct import reopened
from tests.history.edits import Edits
from tests.support.effort import lines_of

FEW, MANY = 20, 220

# -- what is kept is what the records say ----------------------------------------------------------


def ancestors(store: Store, epoch: Epoch) -> set[bytes]:
    found = set()
    while (epoch := store.epochs[epoch].parent) != NO_EPOCH:
        found.add(suffix_of(epoch))
    return found


def assert_kept(store: Store) -> None:
    tree, records = store.epoch_tree, store.epochs
    assert tree.unsealed == {epoch for epoch, record in records.items() if not record.sealed}
    assert tree.hidden == {e for e, record in records.items() if record.sealed and not record.info}
    for epoch in (NO_EPOCH, *records):
        assert tree.children(epoch) == {e for e, item in records.items() if item.parent == epoch}
    excluded = {store.excluded.suffix} if store.excluded else set()
    for epoch in records:
        view = store.view(epoch).bare
        above = ancestors(store, epoch)
        assert set(view.inherited) == above
        assert {*view.seen} - excluded == {*above, view.suffix}
        for other in records:
            assert (suffix_of(other) in view.seen) == (suffix_of(other) in {*above, view.suffix})
    told = {epoch: record.info for epoch, record in records.items() if record.info}
    found = checkpoints(store)
    assert [item.id for item in found] == sorted(info["id"] for info in told.values())
    assert {item.epoch: item.message for item in found} == {
        epoch: info.get("message", "") for epoch, info in told.items()
    }
    assert all(numbered(store, item.id) is of_epoch(store, item.epoch) is item for item in found)


def save(work: Edits, which: int) -> None:
    work.put("file", b"%d" % which)
    work.save(f"{which}")


def restore(work: Edits, which: int) -> None:
    history.restore(work.fs, chosen(work, which))


def hide(work: Edits, which: int) -> None:
    removal.hide(work.fs, [chosen(work, which)])


def delete(work: Edits, which: int) -> None:
    removal.delete(work.fs, [chosen(work, which)])


def reap(work: Edits, which: int) -> None:
    removal.reap(work.fs)


def rename(work: Edits, which: int) -> None:
    history.describe(work.store, dataclasses.replace(chosen(work, which), message=f"now {which}"))


def reopen(work: Edits, which: int) -> None:
    work.fs = reopened(work.fs)
    work.store = work.fs.store


def chosen(work: Edits, which: int) -> Checkpoint:
    known = checkpoints(work.store)
    return known[which % len(known)]


NEED_ONE: tuple[Callable[[Edits, int], None], ...] = (restore, hide, delete, rename)
STEPS = st.sampled_from((save, save, reap, reopen, *NEED_ONE))


@given(st.lists(st.tuples(STEPS, st.integers(0, 40)), max_size=25))
def test_the_epoch_tree_is_what_the_records_say(
    steps: list[tuple[Callable[[Edits, int], None], int]],
) -> None:
    with tempfile.TemporaryDirectory(prefix="ckptfs-test-") as path:
        work = Edits(Path(path) / "store")
        for step, which in steps:
            if step in NEED_ONE and not checkpoints(work.store):
                continue
            step(work, which)
            assert_kept(work.store)
        work.store.close()


def test_a_view_that_was_looked_at_forgets_what_is_removed(work: Edits) -> None:
    views = [work.save(f"{number}") for number in range(4)]
    removal.delete(work.fs, [of_number(work, 1)])
    assert suffix_of(views[1].epoch) not in work.store.view(views[3].epoch).seen
    assert suffix_of(views[1].epoch) not in work.fs.head.seen
    assert work.store.view(views[3].epoch) is views[3], "it is as good as before"


def test_all_views_of_a_lineage_share_one_set_of_suffixes(grown: Callable[[int], Edits]) -> None:
    work = grown(FEW)
    lines = [work.store.view(item.epoch).line for item in checkpoints(work.store)]
    assert all(line is work.fs.head.line for line in lines)


def test_the_views_of_a_branch_share_what_lies_aside_of_the_head(
    grown: Callable[[int], Edits],
) -> None:
    work = grown(FEW)
    aside = checkpoints(work.store)[FEW // 2 + 1 :]
    history.restore(work.fs, checkpoints(work.store)[FEW // 2])
    reopen(work, 0)
    (line,) = {work.store.view(item.epoch).line for item in aside}
    # And what the restore saved, and limbo; but not the rest of history once more.
    assert len(line.suffixes) <= len(aside) + 2


def of_number(work: Edits, number: int) -> Checkpoint:
    return find(work.store, number)


def test_a_checkpoint_that_is_not_described_anew_is_the_same_object(work: Edits) -> None:
    work.save("first")
    first = nearest(work.fs)
    work.save("second")
    assert checkpoints(work.store)[0] is first


# -- and verbs do no more than with few ------------------------------------------------------------


def verbs_of(work: Edits) -> dict[str, int]:
    """How much each verb does, after a change, with the checkpoints that there are."""
    service, counted = Service(work.fs), {}

    def take(name: str, action: Callable[[], object]) -> None:
        counted[name] = lines_of(action)

    for _ in range(2):  # the first time, more is looked for
        work.put("file", b"changed")
        take("diff", lambda: service.diff("", ""))
        take("save", lambda: service.save("more"))
        take("list", lambda: service.listed(limit=10))
        work.put("file", b"changed again")
        take("restore", lambda: service.restore("latest"))
        doomed = [str(item.id) for item in service.checkpoints()[-2:]]
        service.delete_named(doomed)
        work.put("file", b"and again")
        take("diff after a delete", lambda: service.diff("latest", ""))
        oldest = str(service.checkpoints()[0].id)
        take("find", partial(service.find, oldest))
        take("find the last", partial(service.find, "@-1"))
    return counted


@pytest.fixture
def grown(work: Edits) -> Callable[[int], Edits]:
    def grow(count: int) -> Edits:
        while (number := len(checkpoints(work.store))) < count:
            work.put("file", b"%d" % number)
            kind = "manual" if number % 2 else "auto"
            history.seal(work.fs, kind, "", work.fs.clock())
        return work

    return grow


def test_verbs_do_no_more_with_many_checkpoints(grown: Callable[[int], Edits]) -> None:
    few, many = verbs_of(grown(FEW)), verbs_of(grown(MANY))
    more = {verb: many[verb] - few[verb] for verb in few}
    # Where a batch of records ends, and which it is, makes some lines of difference.
    assert all(lines < FEW for lines in more.values()), more


def test_hooks_do_no_more_after_many_tasks(work: Edits) -> None:
    service = Service(work.fs)

    def work_on(name: str) -> None:
        perform(service, "task_announce", {"name": name, "message": ""})
        work.put("file", name.encode())
        mark = {
            "kind": "hook",
            "message": "Edit",
            "metadata": {"session": "s", "tool_use_id": name},
        }
        perform(service, "mark", mark)
        perform(service, "task_finish", {"name": name})

    def grow(count: int) -> int:
        for number in range(count):
            work_on(f"{count} {number}")
        # The least of three: what happens by the clock, as a commit a second, is no growth.
        return min(lines_of(partial(work_on, f"{count} once more {turn}")) for turn in range(3))

    few, many = grow(FEW), grow(MANY)
    assert many - few < FEW


def weights_of(work: Edits, found: list[Checkpoint]) -> list[int]:
    weigh = weigher(work.store)
    return [interrupts.at_once(weigh(item)) for item in found]


def test_what_is_sealed_is_weighed_once(work: Edits) -> None:
    for number in range(3):
        for name in range(MANY):
            work.put(f"{name}", b"%d" % number * 100)
        work.save(f"{number}")
    found = checkpoints(work.store)
    weights: list[list[int]] = []

    def weigh() -> None:
        weights.append(weights_of(work, found))

    first, again = lines_of(weigh), lines_of(weigh)
    assert weights[0] == weights[1] and weights[0][1] >= 100 * MANY
    assert again < first / 20
    removal.delete(work.fs, [found[2]])
    assert weights_of(work, found[1:2]) > [0], "what is after it now is the head's"


def test_one_look_weighs_so_much_only(work: Edits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "_LOOKED_AT", 2)
    for number in range(4):
        save(work, number)
    found = checkpoints(work.store)[:-1]

    def weighed() -> int:
        return sum(weight > 0 for weight in weights_of(work, found))

    looks = [weighed() for _ in range(3)]
    assert 0 < looks[0] < looks[-1] == 3


#: Moments expire by their bytes; and the disk is short of more than history holds.
HEAVY = RetentionPolicy(moment_bytes=1_000)
SHORT = RetentionPolicy(min_free=MinFree(1 << 60, None), keep_all_ns=0)


def weigh_in_steps(work: Edits, policy: RetentionPolicy, meanwhile: Callable[[], object]) -> int:
    """Have expire what does, giving way wherever that can be; how often that was."""
    steps, count = expiry.expiring(work.fs, policy), 0
    while True:
        with interrupts.sliced(lambda: True):
            if isinstance(interrupts.resume(steps), interrupts.Ended):
                return count
        count += 1
        meanwhile()


def make_moments(work: Edits) -> None:
    for turn in range(3):
        for number in range(MANY):
            work.put(f"{number}", b"%d %d" % (turn, number) * 300)
        seal(work.fs, MOMENT, f"{turn}", work.fs.clock(), metadata={LOST: "0"})
    for number in range(MANY):
        work.remove(f"{number}")
    work.save("after")


@pytest.mark.parametrize("policy, left", [(HEAVY, 0), (SHORT, 3)])
def test_programs_go_on_while_history_is_weighed(
    work: Edits, policy: RetentionPolicy, left: int
) -> None:
    make_moments(work)
    written = iter(range(10_000))
    count = weigh_in_steps(work, policy, lambda: work.put("other", b"%d" % next(written)))
    assert count > 2 * MANY // space._STRIDE
    assert sum(item.is_moment for item in checkpoints(work.store)) == left


def test_what_is_pinned_while_history_is_weighed_stays(work: Edits) -> None:
    make_moments(work)
    first, *_ = checkpoints(work.store)
    service = Service(work.fs)
    weigh_in_steps(work, HEAVY, lambda: service.pin([f"{first.id}"]))
    (stays,) = (item for item in checkpoints(work.store) if item.id == first.id)
    assert stays.pinned


@pytest.mark.parametrize("step", range(1, 9))
def test_a_fork_of_what_is_weighed_may_come_at_any_step(work: Edits, step: int) -> None:
    """It gives an epoch a second child."""
    make_moments(work)
    epochs, steps = [item.epoch for item in checkpoints(work.store)], iter(range(10_000))

    def fork() -> None:
        if next(steps) == step:
            for epoch in epochs:
                work.store.add_fork(f"fork-{epoch}", epoch, 0)

    assert weigh_in_steps(work, SHORT, fork) > step
    assert [item.epoch for item in checkpoints(work.store)] == epochs


def test_nothing_expires_by_settings_that_changed_while_history_was_weighed(work: Edits) -> None:
    make_moments(work)
    before = checkpoints(work.store)
    steps = expiry.expiring(work.fs, HEAVY, holds=lambda: False)
    assert interrupts.at_once(steps) == expiry.Outcome([], None)
    assert checkpoints(work.store) == before


@pytest.mark.parametrize("freed, gone", [(0, 2), (2_900_000, 1)])
def test_no_more_goes_than_the_disk_lacks_at_the_end(work: Edits, freed: int, gone: int) -> None:
    """While history is weighed somebody makes space on the disk."""
    for turn in range(7):
        for number in range(MANY):
            work.put(f"{number}", os.urandom(2_000_000 // MANY))
        seal(work.fs, "auto", f"{turn}", work.fs.clock())
        work.fs.clock.now_ns += 1_000_000_000  # type: ignore[attr-defined]
    free, policy = [0], RetentionPolicy(min_free=MinFree(3_000_000, None), keep_all_ns=0)
    work.store.spare_bytes = lambda: free[0]
    before = len(checkpoints(work.store))

    def free_some() -> None:
        free[0] = freed

    weigh_in_steps(work, policy, free_some)
    assert before - len(checkpoints(work.store)) == gone


def test_pruning_gives_way_while_history_is_weighed(work: Edits) -> None:
    make_moments(work)
    steps, count = expiry.pruning(work.fs, HEAVY), 0
    while not work.store.epoch_tree.hidden:
        with interrupts.sliced(lambda: True):
            assert not isinstance(interrupts.resume(steps), interrupts.Ended)
        count += 1
    assert count > 2 * MANY // space._STRIDE
    steps.close()


def test_freeing_many_epochs_looks_at_each_a_few_times(work: Edits) -> None:
    def freed(count: int) -> int:
        for number in range(count):
            work.put("file", b"%d" % number)
            work.save(f"{number}")
        removal.hide(work.fs, checkpoints(work.store)[:-1])
        return lines_of(lambda: removal.reap(work.fs))

    freed(2)
    few, many = freed(FEW), freed(MANY)
    assert many < 1.5 * few * MANY / FEW


def test_letting_expire_what_cannot_takes_a_few_lines_for_each(
    grown: Callable[[int], Edits],
) -> None:
    policy = RetentionPolicy()
    few = lines_of(lambda: expire(grown(FEW).fs, policy))
    work = grown(MANY)
    many = lines_of(lambda: expire(work.fs, policy))
    assert many - few < 12 * (MANY - FEW)


def test_letting_expire_looks_at_no_checkpoint_that_was_saved_by_hand(work: Edits) -> None:
    def grow(count: int) -> int:
        for number in range(count):
            work.put("file", b"%d" % number)
            work.save()
        checkpoints(work.store)  # what is new is decoded when it is first asked for
        return lines_of(lambda: expire(work.fs, RetentionPolicy(max_checkpoints=5)))

    for number in range(8):
        work.put("file", b"%d" % number)
        history.seal(work.fs, "auto", "", work.fs.clock())
    grow(1)
    few, many = grow(FEW), grow(MANY)
    assert many - few < FEW


def overviews_of(work: Edits) -> dict[str, int]:
    """How much each verb does that looks at all checkpoints."""
    service = Service(work.fs)
    crowded = RetentionPolicy(max_checkpoints=4, keep_all_ns=10**15, moments_max=4)
    short = Figures(free_bytes=0, disk_bytes=1 << 40)
    directory = HistoryDirectory(work.fs, Nodes(work.fs), str.encode)

    def listing() -> None:
        after = b""
        while page := list(islice(directory.entries(after), 4)):
            after = page[-1][0]

    def weigh() -> None:
        policy = RetentionPolicy(keep_all_ns=0)
        judge(checkpoints(work.store), policy, 1 << 61, short, insight=insight(work.fs))

    return {
        "list": lines_of(lambda: perform(service, "list", {"moments": True})),
        "list --path": lines_of(lambda: service.listed(path=b"file")),
        "log": lines_of(lambda: service.path_log(b"file")),
        "log of what is gone": lines_of(lambda: service.path_log(b"gone")),
        "ls -l .checkpoints": lines_of(listing),
        "choosing what expires": lines_of(lambda: decide(work.fs, crowded)),
        "weighing what to delete": lines_of(weigh),
        "weighing all": lines_of(lambda: heaviest(work.fs, 3)),
    }


def test_verbs_about_all_checkpoints_take_as_long_as_there_are_many(
    grown: Callable[[int], Edits],
) -> None:
    """Four times as many lines for four times as many; quadratic ones would be sixteen times."""
    grown(1).put("gone", b"soon")
    grown(2).remove("gone")
    few, many = overviews_of(grown(60)), overviews_of(grown(240))
    times = {verb: round(many[verb] / few[verb], 1) for verb in few}
    assert all(ratio < 6 for ratio in times.values()), times


def test_asking_whose_changes_they_are_looks_at_the_versions_of_each_file(work: Edits) -> None:
    once = work.put("once", b"made")

    def grow(count: int) -> tuple[int, int]:
        for number in range(len(checkpoints(work.store)), count):
            command = {"pid": number, "command": f"command {number}"}
            work.fs.signing = work.fs.authorship.of((number, ""), command)
            work.put("file", b"%d" % number)
            work.save()
        reopen(work, 0)
        epochs = list(work.store.epochs)
        noted = attribution_of(work.fs, epochs)
        return (
            lines_of(lambda: attribution_of(work.fs, epochs)),
            lines_of(lambda: noted.has_unknown(work.fs, once)),
        )

    few, many = grow(60), grow(240)
    assert many[0] < 4.5 * few[0]
    assert many[1] == few[1]


def test_the_history_of_a_file_that_did_not_change_looks_into_no_state(
    grown: Callable[[int], Edits],
) -> None:
    work = grown(1)
    work.put("other", b"never changed again")
    work = grown(MANY)
    service = Service(work.fs)
    changed, same = (lines_of(partial(service.path_log, name)) for name in (b"file", b"other"))
    assert 4 * same < changed


# -- and what was deleted a while ago can still be had ---------------------------------------------


def test_a_checkpoint_that_was_asked_for_outlives_automatic_ones(
    grown: Callable[[int], Edits],
) -> None:
    """Every tenth checkpoint is a mark, and there is room for half of all."""
    work, policy = grown(1), RetentionPolicy(max_checkpoints=50)
    for number in range(100):
        work.put("file", b"%d" % number)
        work.fs.clock.now_ns += 1_000_000_000  # type: ignore[attr-defined]
        kind = "auto" if number % 10 else "mark"
        history.seal(work.fs, kind, str(number), work.fs.clock())
        expire(work.fs, policy)
    left = [item.message for item in checkpoints(work.store) if item.kind == "mark"]
    assert left == [str(number) for number in range(0, 100, 10)]


def test_what_came_before_a_deletion_outlives_what_came_before_edits(
    grown: Callable[[int], Edits],
) -> None:
    """A file is made and removed, and then a log is written to by hundreds of commands, each of
    which takes a checkpoint; and they expire as they come."""
    work, policy = grown(1), RetentionPolicy(max_checkpoints=50, moments_max=0)
    before = min(item.id for item in checkpoints(work.store))
    second = 1_000_000_000
    for number in range(400):
        if number == 20:
            work.put("precious", b"bytes")
        if number == 21:
            work.remove("precious")
        work.put("file", b"%d" % number)
        work.fs.clock.now_ns += second  # type: ignore[attr-defined]
        history.seal(work.fs, "auto", "", work.fs.clock())
        expire(work.fs, policy)
    left = checkpoints(work.store)
    assert len([item for item in left if item.kind == "auto"]) <= 50
    assert before in {item.id for item in left}
    views = [work.fs.view_of(item.epoch) for item in left]
    assert any(work.fs.seek(view, ROOT_INO, b"precious") for view in views)
