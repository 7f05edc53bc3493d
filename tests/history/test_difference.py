"""What a restore changes is found beforehand, while programs go on: nothing of that is missed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history import Checkpoint, checkpoints, difference, preparing, purge, restore
from ckptfs.history.diff.changed import changed_between
from ckptfs.model import ROOT_INO, Ino
from ckptfs.service import Service
from tests.direct import assert_clean, shown
from tests.history.edits import Edits, edits
from tests.support.effort import lines_of


def _change(work: Edits, rng: random.Random) -> None:
    """One change of a small tree, of any kind."""
    path, other = (f"d{rng.randrange(3)}/{rng.randrange(6)}" for _ in range(2))
    parent, name = work.place(path)
    there = work.fs.seek(work.fs.head, parent, name) is not None
    what = rng.choice(["put", "write", "remove", "move", "link", "mode", "xattr", "save"])
    if what == "put" or not there:
        work.put(path, rng.randbytes(rng.choice((10, 5_000))))
    elif what == "write":
        work.write(path, rng.randrange(3_000), b"some bytes")
    elif what == "remove":
        work.remove(path)
    elif what == "move" and other != path:
        work.move(path, other)
    elif what == "link":
        target = work.place(other)
        if work.fs.seek(work.fs.head, *target) is None:
            work.link(path, other)
    elif what == "mode":
        work.change(path, mode=0o100600 + rng.randrange(64))
    elif what == "xattr":
        work.fs.setxattr(work.fs.head, work.at(path).ino, b"user.a", rng.randbytes(3))
    elif what == "save":
        work.save("meanwhile")


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Edits]:
    with edits(tmp_path / "store") as made:
        for top in range(3):
            made.mkdir(f"d{top}")
            for number in range(6):
                made.put(f"d{top}/{number}", b"%d" % number * 3_000)
        made.save("first")
        yield made
        assert_clean(made.fs)


def _prepare(work: Edits, target: Checkpoint) -> Iterator[None]:
    """Give way wherever that can be."""
    steps = preparing(work.fs, target)
    while True:
        with interrupts.sliced(lambda: True):
            if interrupts.resume(steps) is not None:
                return
        yield


@pytest.mark.parametrize("seed", range(30))
def test_what_changes_while_it_is_found_is_not_missed(work: Edits, seed: int) -> None:
    rng = random.Random(seed)
    first = checkpoints(work.store)[0]
    for _ in range(60):
        _change(work, rng)
    before = shown(work.fs, work.fs.view_of(first.epoch))
    for _ in _prepare(work, first):
        _change(work, rng)
    for _ in range(rng.randrange(4)):
        _change(work, rng)
    work.fs.flush()
    goal = work.store.view(first.epoch)
    wanted = changed_between(work.store, work.fs.head, goal)
    found = difference.take(work.fs, first)
    assert (found.inodes, found.entries) == (wanted.inodes, wanted.entries)
    assert found.names == _names(work.fs, first, wanted.inodes)
    restore(work.fs, first)
    assert shown(work.fs, work.fs.head) == before


def _names(fs: Filesystem, target: Checkpoint, inodes: set[Ino]) -> dict[Ino, list[object]]:
    """The names at the checkpoint of the files that the head has, too."""
    goal, found = fs.view_of(target.epoch), {}
    for ino in inodes:
        try:
            fs.getattr(fs.head.bare, ino)
            inode = fs.getattr(goal, ino)
        except OSError:
            continue
        if inode.is_file and inode.nlink:
            found[ino] = list(fs.places_of(goal, inode))
    return found


def test_a_restore_that_was_prepared_compares_nothing_twice(
    work: Edits, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = checkpoints(work.store)[0]
    for top in range(3):
        work.remove(f"d{top}")
    interrupts.finish(preparing(work.fs, first))
    compared = []
    monkeypatch.setattr(difference.Difference, "_compare_entry", compared.append)
    monkeypatch.setattr(difference.Difference, "_compare_inode", compared.append)
    assert Service(work.fs).restore(str(first.id)) is not None
    assert work.at("d1/3").size == 3_000 and not compared


def test_directories_that_the_kernel_knows_are_not_read_in_the_step(
    work: Edits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel drops files that are not open, but it keeps their directories."""
    first = checkpoints(work.store)[0]
    made = {work.mkdir(f"new {number}") for number in range(100)}
    monkeypatch.setattr(work.fs, "can_ask", True)
    monkeypatch.setattr(work.fs, "is_used", made.__contains__)
    interrupts.finish(preparing(work.fs, first))
    # To read one takes a hundred lines.
    assert lines_of(lambda: restore(work.fs, first)) < 30 * len(made)
    assert work.fs.seek(work.fs.head, ROOT_INO, b"new 7") is None


def test_what_was_prepared_for_another_head_is_found_anew(work: Edits) -> None:
    service, first = Service(work.fs), checkpoints(work.store)[0]
    work.put("d0/0", b"second")
    work.save("second")
    work.put("d0/1", b"third")
    interrupts.finish(preparing(work.fs, first))
    service.restore("0")
    work.put("d0/2", b"on another branch")
    found = difference.take(work.fs, first)
    assert found.inodes == {work.at("d0/2").ino}


def test_what_a_purge_takes_out_of_the_checkpoint_meanwhile_is_not_missed(work: Edits) -> None:
    first = checkpoints(work.store)[0]
    work.remove("d1")
    for number, _ in enumerate(_prepare(work, first)):
        if number == 1:
            purge.purge(work.fs, [b"d1/3"])
    found = difference.take(work.fs, first)
    assert (found.inodes, found.entries) == changed_between(
        work.store, work.fs.head, work.store.view(first.epoch)
    )


def test_nothing_is_noted_any_more_when_it_was_dropped(work: Edits) -> None:
    tables = (work.store.inodes, work.store.dirents, work.store.blockmap, work.store.xattrs)
    before = [table.touch for table in tables]
    interrupts.finish(preparing(work.fs, checkpoints(work.store)[0]))
    assert [table.touch for table in tables] != before
    difference.drop(work.fs)
    assert [table.touch for table in tables] == before
    steps = preparing(work.fs, checkpoints(work.store)[0])
    steps.close()
    assert [table.touch for table in tables] == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_follow_what_changes_and_end_in_any_order(work: Edits, order: tuple[int, int]) -> None:
    """As a merge that is planned, and a restore that is prepared meanwhile."""
    table, noted = work.store.inodes, [set[bytes](), set[bytes]()]
    before = table.touch
    ends = [table.follow(noted[0].add), table.follow(noted[1].add)]
    work.put("d1/3", b"both")
    work.fs.flush()
    assert noted[0] == noted[1] != set()
    first, last = order
    assert ends[first]()
    was = set(noted[first])
    work.put("new", b"the other one alone")
    work.fs.flush()
    assert noted[first] == was < noted[last]
    assert ends[last]() and not ends[last]()
    assert table.touch is before
