"""Deleting checkpoints: those that stay read back exactly, and nothing else stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.history import checkpoints, removal, seal
from ckptfs.store import check
from ckptfs.store.format import pack_u64
from tests.direct import reopened, shown
from tests.history.edits import Edits
from tests.history.leftovers import leftovers

BIG = b"block" * 30_000


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    made = Edits(tmp_path / "store")
    yield made
    assert_tidy(made)
    made.store.close()


def assert_tidy(work: Edits) -> None:
    work.fs.commit()
    assert check(work.store) == []
    assert leftovers(work.store) == []


def save(work: Edits) -> int:
    return seal(work.fs, "manual", "", work.fs.clock()).id


def delete(work: Edits, *ids: int) -> None:
    """Delete checkpoints; those that stay, and the head, must look as before."""
    work.fs.flush()
    kept = [c for c in checkpoints(work.store) if c.id not in ids]
    before = [shown(work.fs, work.fs.view_of(c.epoch)) for c in kept]
    head = shown(work.fs, work.fs.head)
    removal.delete(work.fs, [c for c in checkpoints(work.store) if c.id in ids])
    assert checkpoints(work.store) == kept
    assert [shown(work.fs, work.fs.view_of(c.epoch)) for c in kept] == before
    assert shown(work.fs, work.fs.head) == head
    assert_tidy(work)


def blocks_held(work: Edits) -> int:
    return sum(1 for _ in work.store.blocks.keys())


def test_the_only_checkpoint_goes_into_the_head(work: Edits) -> None:
    work.put("kept", BIG)
    work.put("changed", b"old" * 1000)
    work.put("removed", b"removed" * 1000)
    save(work)
    work.put("changed", b"new" * 1000)
    work.remove("removed")
    delete(work, 0)
    assert list(work.store.epochs) == [work.fs.head.epoch]
    assert blocks_held(work) == 4  # three of `kept` and one of `changed`


def test_a_checkpoint_between_two_others_can_be_deleted(work: Edits) -> None:
    for number in range(3):
        work.put(f"only-{number}", b"%d" % number * 3000)
        work.put("all", b"%d" % number * 5000)
        save(work)
    delete(work, 1)


def test_blocks_that_the_deleted_epoch_allocated_are_listed_in_the_child(work: Edits) -> None:
    work.put("file", BIG)
    save(work)
    delete(work, 0)
    listed = list(work.store.changes.walk(work.fs.head.epoch, b"b"))
    assert listed == [pack_u64(work.at("file").content) + pack_u64(n) for n in range(3)]


def test_a_file_partly_overwritten_keeps_its_other_blocks(work: Edits) -> None:
    work.put("file", BIG)
    save(work)
    work.write("file", 70_000, b"x" * 10)
    save(work)
    work.write("file", 0, b"y" * 10)
    delete(work, 0)
    delete(work, 1)


def test_a_file_made_and_removed_between_leaves_nothing(work: Edits) -> None:
    work.put("base")
    save(work)
    work.put("short-lived", BIG)
    work.fs.setxattr(work.fs.head, work.at("short-lived").ino, b"user.a", b"1")
    save(work)
    work.remove("short-lived")
    save(work)
    delete(work, 1)
    assert blocks_held(work) == 0


def test_the_old_blocks_of_a_content_written_anew_are_freed(work: Edits) -> None:
    work.put("file", BIG)
    save(work)
    work.put("file", b"second" * 1000)
    save(work)
    delete(work, 0)
    assert blocks_held(work) == 1


def test_holes_in_an_inherited_content_stay_holes(work: Edits) -> None:
    work.put("file", BIG)
    save(work)
    work.change("file", size=10_000)
    work.change("file", size=200_000)
    save(work)
    work.write("file", 150_000, b"end")
    save(work)
    delete(work, 1)
    delete(work, 0)


def test_xattrs_and_links_move_to_the_child(work: Edits) -> None:
    ino = work.put("file", b"1")
    work.fs.setxattr(work.fs.head, ino, b"user.a", b"1")
    work.fs.setxattr(work.fs.head, ino, b"user.b", b"1")
    work.link("file", "second")
    save(work)
    work.fs.removexattr(work.fs.head, ino, b"user.a")
    work.fs.setxattr(work.fs.head, ino, b"user.c", b"2")
    work.remove("file")
    save(work)
    work.link("second", "third")
    save(work)
    work.remove("second")
    work.remove("third")
    save(work)
    for number in (1, 0, 3, 2):
        delete(work, number)


def test_an_epoch_with_two_children_waits_for_one_to_go(work: Edits) -> None:
    work.put("file", BIG)
    base = work.save()
    work.put("left", b"left" * 1000)
    work.remove("file")
    work.go_back(base)
    work.put("right", b"right" * 1000)
    delete(work, 0)
    assert base.epoch in work.store.epochs
    delete(work, 1)
    assert list(work.store.epochs) == [work.fs.head.epoch]


def test_a_hidden_epoch_without_children_goes_with_its_last_child(work: Edits) -> None:
    first = work.save()
    work.put("a", BIG)
    second = work.save()
    work.put("b", BIG[1:])
    work.go_back(second)
    work.put("c")
    work.go_back(first)
    delete(work, 1)
    assert second.epoch in work.store.epochs
    delete(work, 2, 3)
    assert set(work.store.epochs) == {first.epoch, work.fs.head.epoch}
    assert blocks_held(work) == 0


def test_all_checkpoints_can_be_deleted_at_once(work: Edits) -> None:
    for number in range(6):
        work.put(f"{number}", b"%d" % number * 4000)
        work.put("same", b"%d" % number * 100_000)
        if number > 2:
            work.remove(f"{number - 2}")
        save(work)
    delete(work, *range(6))
    assert list(work.store.epochs) == [work.fs.head.epoch]


def test_shared_blocks_are_released_once_each(work: Edits) -> None:
    work.put("a", BIG)
    work.put("b", BIG)
    save(work)
    work.put("c", BIG)
    save(work)
    work.remove("a")
    work.remove("b")
    delete(work, 0)
    delete(work, 1)
    assert blocks_held(work) == 3


def test_work_and_commits_may_come_between_steps(work: Edits) -> None:
    """Between two steps the head goes on changing what is being handed to it."""
    for number in range(200):
        work.put(f"{number}", b"%d " % number * 1000)
    save(work)
    removal.hide(work.fs, checkpoints(work.store))
    reaper = removal.Reaper(work.fs)
    steps = 0
    while not reaper.step(0):
        if steps < 50:
            work.put(f"{steps}", b"again" * 1000)
            work.remove(f"{199 - steps}")
            work.change(f"{100 + steps}", size=steps)
        work.fs.commit()
        assert steps % 8 or check(work.store) == []
        steps += 1
    assert steps > 5
    assert work.at("100").size == 0


def test_many_files_are_removed_with_commits_between(work: Edits) -> None:
    """More than one reading ahead gets: the walk goes on in another transaction."""
    for number in range(1000):
        work.put(f"{number}", b"%d" % number)
    save(work)
    removal.hide(work.fs, checkpoints(work.store))
    reaper = removal.Reaper(work.fs)
    while not reaper.step(0):
        work.fs.commit()
    assert list(work.store.epochs) == [work.fs.head.epoch]
    assert len(shown(work.fs, work.fs.head).nodes) == 1001


def test_a_file_may_be_truncated_between_two_of_its_blocks(work: Edits) -> None:
    work.put("file", b"".join(b"%d" % number * 65_536 for number in range(100))[:6_553_600])
    save(work)
    removal.hide(work.fs, checkpoints(work.store))
    reaper = removal.Reaper(work.fs)
    assert not reaper.step(0)
    work.change("file", size=0)
    work.write("file", 0, b"new")
    while not reaper.step():
        work.fs.commit()
    assert blocks_held(work) == 0


def test_a_crash_between_two_steps_loses_nothing(work: Edits, tmp_path: Path) -> None:
    for number in range(100):
        work.put(f"{number}", b"%d " % number * 1000)
    save(work)
    before = shown(work.fs, work.fs.head)
    removal.hide(work.fs, checkpoints(work.store))
    removal.Reaper(work.fs).step(0)
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    assert check(work.store) == []
    removal.reap(work.fs)
    assert shown(work.fs, work.fs.head) == before
