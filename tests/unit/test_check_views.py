"""`check` looks at each record once and finds what a look at every view would.

The views are gone through one by one here, as a second opinion: on histories with branches, deleted
checkpoints of which a part is left, and packed records, with one record or another damaged.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfs import history
from ckptfs.history import checkpoints, packing, removal
from ckptfs.model import Epoch
from ckptfs.store import Store, check, sweep
from ckptfs.store import format as fmt
from ckptfs.store.check import _problems, _shown, _view, versioned
from tests.history.edits import Edits
from tests.support.effort import lines_of

#: A history takes a quarter of a second.
EXAMPLES = 25
FEW, MANY = 30, 240
PATHS = ("a", "b", "d/a", "d/b", "d/e/a")


# -- random histories ------------------------------------------------------------------------------


def change_something(work: Edits, choose: random.Random) -> None:
    path = choose.choice(PATHS)
    with suppress(OSError):  # it is not there, or another is
        match choose.randrange(7):
            case 0 | 1:
                work.put(path, choose.choice((b"x", b"y" * 3_000, b"z" * 140_000)))
            case 2:
                work.change(path, size=choose.choice((0, 10, 65_536, 100_000)))
            case 3:
                work.remove(path)
            case 4:
                work.move(path, choose.choice(PATHS))
            case 5:
                work.link(path, choose.choice(PATHS))
            case 6:
                work.fs.setxattr(work.fs.head, work.at(path).ino, b"user.a", b"value")


def move_a_directory(work: Edits, choose: random.Random) -> None:
    """Into a younger one, which a ring of directories needs."""
    with suppress(OSError):
        work.mkdir("n")
        work.move("d/e", "n/e")
    if choose.random() < 0.5:
        with suppress(OSError):
            work.move("n/e", "d/e")


def a_history(path: Path, choose: random.Random) -> Edits:
    work = Edits(path)
    work.mkdir("d")
    work.mkdir("d/e")
    for _ in range(choose.randint(1, 12)):
        for _ in range(choose.randint(0, 5)):
            change_something(work, choose)
        match choose.randrange(8):
            case 0:
                move_a_directory(work, choose)
            case 1 if taken := checkpoints(work.store):
                history.restore(work.fs, choose.choice(taken))
            case 2 if taken := checkpoints(work.store):
                removal.hide(work.fs, [choose.choice(taken)])
                removal.Reaper(work.fs).step(0.0)
            case 3:
                packing.pack_records(work.fs)
        work.save("one more")
    if choose.random() < 0.5:
        half_remove(work, choose)
    work.fs.commit()
    return work


def half_remove(work: Edits, choose: random.Random) -> None:
    """Leave a deleted checkpoint with a part of its records handed over."""
    taken = checkpoints(work.store)
    children = work.store.epoch_tree.children
    removal.hide(work.fs, choose.sample(taken, min(3, len(taken))))
    for epoch in sorted(work.store.epoch_tree.hidden):
        if len(children(epoch)) == 1:
            (child,) = children(epoch)
            steps = removal._removal(work.store, epoch, child)
            for _ in range(choose.randint(0, 4)):
                next(steps, None)
            return


# -- damage ----------------------------------------------------------------------------------------


def damage(store: Store, choose: random.Random) -> None:
    """Lose a record, have it say what another one does, or put one where none was."""
    table = choose.choice([table for table in versioned(store) if table.count()])
    records = [(e + s, record) for e, s, record in table.versions(b"") if table.has_row(e + s)]
    if not records:
        return
    key, record = choose.choice(records)
    _, other = choose.choice(records)
    match choose.randrange(4):
        case 0:
            table.erase(key)
        case 1:
            table.rewrite(key, other)
        case 2:
            suffix = fmt.suffix_of(choose.choice(list(store.epochs)))
            table.rewrite(key[: -fmt.SUFFIX_SIZE] + suffix, choose.choice((b"", record, other)))
        case 3 if table is store.inodes and record:
            inode = fmt.unpack_inode(fmt.unpack_u64(key[:8]), record)
            what = choose.choice(("nlink", "size", "allocated", "parent", "content", "mode"))
            changed = inode._replace(**{what: max(getattr(inode, what) + choose.randint(-1, 2), 0)})
            table.rewrite(key, fmt.pack_inode(changed))
        case _:
            table.rewrite(key, record[:-1])


def in_every_view(store: Store) -> dict[Epoch, set[str]]:
    """Which invariants are broken in each view."""
    store.pending.flush()
    return {
        epoch: {item.invariant for item in _problems(_view, store, epoch)}
        for epoch in _shown(store)
    }


def view_above(store: Store, epoch: Epoch) -> Epoch:
    while (epoch := store.epochs[epoch].parent) != fmt.NO_EPOCH:
        if epoch in _shown(store):
            break
    return epoch


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32))
def test_what_a_look_at_every_view_finds_is_found_where_it_begins(seed: int) -> None:
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="ckptfs-check-") as root:
        work = a_history(Path(root) / "store", choose)
        with closing(_Uncommitted(work.store)):
            assert check(work.store) == []
            for _ in range(choose.randint(1, 2)):
                damage(work.store, choose)
            wanted = in_every_view(work.store)
            found = {(item.epoch, item.invariant) for item in check(work.store)}
            for epoch, broken in wanted.items():
                # What begins above may look different here, and is the same fault.
                if not wanted.get(view_above(work.store, epoch)):
                    assert {(epoch, invariant) for invariant in broken} <= found
            every = {item.epoch for item in check(work.store, every_view=True)}
            assert {epoch for epoch, broken in wanted.items() if broken} <= every


class _Uncommitted:
    """A store that is thrown away."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def close(self) -> None:
        self._store.close(commit=False)


# -- what the sums and regions could miss ----------------------------------------------------------


@pytest.fixture
def work(memory: Path) -> Iterator[Edits]:
    work = Edits(memory / "store")
    with closing(_Uncommitted(work.store)):
        yield work


def rewrite(work: Edits, epoch: Epoch, ino: int, **what: object) -> None:
    view = work.fs.view_of(epoch)
    inode = work.fs.getattr(view, ino)._replace(**what)
    work.store.inodes.put_unlisted(view.bare, fmt.inode_entity(ino), fmt.pack_inode(inode))


def views_with(work: Edits, invariant: str) -> set[Epoch]:
    return {item.epoch for item in check(work.store) if item.invariant == invariant}


def test_each_of_two_faults_in_one_lineage_is_found(work: Edits) -> None:
    first, second = work.put("a", b"1"), work.put("b", b"1")
    one = work.save("one").epoch
    work.put("a", b"22")
    work.put("b", b"22")
    two = work.save("two").epoch
    work.save("three")
    rewrite(work, one, first, nlink=2)
    rewrite(work, two, second, nlink=3)
    assert views_with(work, "nlink") == {one, two}


def test_a_fault_in_one_branch_is_not_told_of_another(work: Edits) -> None:
    ino = work.put("a", b"1")
    trunk = work.save("trunk")
    work.put("a", b"22")
    left = work.save("left").epoch
    work.go_back(trunk)
    work.put("a", b"333")
    right = work.save("right").epoch
    rewrite(work, left, ino, allocated=77)
    assert views_with(work, "allocated") == {left}
    rewrite(work, right, ino, allocated=77)
    assert views_with(work, "allocated") == {left, right}


def test_a_record_of_a_hidden_epoch_is_seen_in_the_views_below(work: Edits) -> None:
    ino = work.put("a", b"1")
    hidden = work.save("hidden")
    below = work.save("below").epoch
    removal.hide(work.fs, [hidden])
    rewrite(work, hidden.epoch, ino, nlink=2)
    assert views_with(work, "nlink") == {below}


def test_what_only_a_hidden_epoch_sees_is_of_no_concern(work: Edits) -> None:
    ino = work.put("a", b"1")
    hidden = work.save("hidden")
    work.put("a", b"22")
    work.save("below")
    removal.hide(work.fs, [hidden])
    rewrite(work, hidden.epoch, ino, nlink=2)
    assert views_with(work, "nlink") == set()


def test_a_ring_of_directories_that_a_later_epoch_closes(work: Edits) -> None:
    """The directory that stands in a younger one was moved there before."""
    older, younger = work.mkdir("older"), work.mkdir("younger")
    work.move("older", "younger/older")
    work.save("one")
    work.fs.flush()
    store, head = work.store, work.fs.head
    store.dirents.drop(head, fmt.dirent_entity(1, b"younger"))
    store.dirents.put(head, fmt.dirent_entity(older, b"younger"), fmt.pack_u64(younger))
    for ino, what in ((younger, {"parent": older}), (older, {"nlink": 3}), (1, {"nlink": 2})):
        inode = work.fs.getattr(head, ino)._replace(**what)
        store.inodes.put(head, fmt.inode_entity(ino), fmt.pack_inode(inode))
    assert views_with(work, "directories") == {head.epoch}


def test_blocks_that_come_and_go_are_counted_in_every_branch(work: Edits) -> None:
    ino = work.put("a", bytes(range(256)) * 1_024)
    trunk = work.save("trunk")
    work.change("a", size=10)
    work.save("short")
    work.go_back(trunk)
    work.write("a", 700_000, b"far behind")
    work.save("long")
    work.change("a", size=65_536)
    cut = work.save("cut").epoch
    assert check(work.store) == []
    rewrite(work, cut, ino, size=65_535)
    assert views_with(work, "size") == {cut}


def test_contents_that_do_not_fit_into_memory_are_looked_at_in_parts(
    work: Edits, monkeypatch: pytest.MonkeyPatch
) -> None:
    inodes = [work.put(f"f{number}", b"%d" % number * 4_000) for number in range(40)]
    epoch = work.save("one").epoch
    monkeypatch.setattr(sweep, "CLAIMS_MAX", 10)
    assert check(work.store) == []
    for ino in (inodes[0], inodes[20], inodes[39]):
        rewrite(work, epoch, ino, allocated=1)
    assert len([item for item in check(work.store) if item.invariant == "allocated"]) == 3


# -- growth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_a_check_of_many_checkpoints_looks_at_each_record_as_often_as_one_of_few(
    memory: Path, packed: bool
) -> None:
    efforts = []
    for count in (FEW, MANY):
        work = Edits(memory / f"store-{count}")
        for number in range(count):
            work.put(f"f{number % 10}", b"%d" % number)
            work.save("one more")
        if packed:
            packing.pack_records(work.fs)
        work.fs.commit()
        efforts.append(lines_of(partial(check, work.store, deep=False)) / count)
        work.store.close()
    few, many = efforts
    assert many < 1.5 * few
