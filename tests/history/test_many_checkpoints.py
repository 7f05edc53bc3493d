"""With very many checkpoints: what is kept of all of them is what their records say, and verbs do
no more than with few."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs import history
from ckptfs.history import Checkpoint, checkpoints, removal
from ckptfs.history.checkpoints import find, nearest, numbered, of_epoch
from ckptfs.history.expiry import expire
from ckptfs.history.retention import RetentionPolicy
from ckptfs.model import ROOT_INO, Epoch
from ckptfs.service import Service
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
    for epoch in records:
        view = store.view(epoch).bare
        assert view.inherited == ancestors(store, epoch)
        assert view.seen == view.inherited | {view.suffix}
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


def of_number(work: Edits, number: int) -> Checkpoint:
    return find(work.store, number)


def test_a_checkpoint_that_is_not_described_anew_is_the_same_object(work: Edits) -> None:
    work.save("first")
    first = nearest(work.store)
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
    return counted


@pytest.fixture
def grown(work: Edits) -> Callable[[int], Edits]:
    def grow(count: int) -> Edits:
        while len(checkpoints(work.store)) < count:
            work.put("file", b"%d" % len(checkpoints(work.store)))
            work.save()
        return work

    return grow


def test_verbs_do_no_more_with_many_checkpoints(grown: Callable[[int], Edits]) -> None:
    few, many = verbs_of(grown(FEW)), verbs_of(grown(MANY))
    more = {verb: many[verb] - few[verb] for verb in few}
    # Where a batch of records ends, and which it is, makes some lines of difference.
    assert all(lines < FEW for lines in more.values()), more


def test_letting_expire_what_cannot_takes_a_few_lines_for_each(
    grown: Callable[[int], Edits],
) -> None:
    policy = RetentionPolicy()
    few = lines_of(lambda: expire(grown(FEW).fs, policy))
    work = grown(MANY)
    many = lines_of(lambda: expire(work.fs, policy))
    assert many - few < 12 * (MANY - FEW)


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
