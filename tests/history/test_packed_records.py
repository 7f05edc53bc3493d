"""Packed records: history reads as before, the workspace does not need them, and whatever changes
history finds them awake."""

from __future__ import annotations

import random

import pytest

from ckptfs.fs import Filesystem
from ckptfs.history import checkpoints, packing, purge, removal, restore, seal
from ckptfs.history.upkeep import Worker, finish
from ckptfs.model import ROOT_INO
from ckptfs.store import Store, check
from ckptfs.store.format import GONE, pack_u64
from ckptfs.store.pending import Read
from tests.direct import Node, crashed, get, reopened, shown
from tests.history.edits import Edits, take_a_step
from tests.history.leftovers import leftovers

NAMES = ["a", "b", "c", "d/a", "d/b"]


def save(work: Edits) -> int:
    return seal(work.fs, "manual", "", work.fs.clock()).id


def in_tables(work: Edits) -> int:
    """How many records are in the versioned tables themselves."""
    store = work.store
    return sum(
        store._txn.stat(store._dbs[name])["entries"] for name in (b"inodes", b"dirents", b"changes")
    )


def packed_records(work: Edits) -> int:
    return sum(len(chunk.keys) for _, _, chunk in work.store.packed.chunks())


def live(work: Edits, name: str, versions: int) -> None:
    """A file that changes with each checkpoint, beside one that comes and goes."""
    for version in range(versions):
        work.put(name, b"%d" % version)
        work.put(f"gone-{version}", b"")
        save(work)
        work.remove(f"gone-{version}")
    save(work)


def test_only_what_the_workspace_has_stays_in_the_tables(work: Edits) -> None:
    live(work, "kept", 10)
    before = [shown(work.fs, work.fs.view_of(c.epoch)) for c in checkpoints(work.store)]
    head = shown(work.fs, work.fs.head)
    packing.pack_records(work.fs)
    assert in_tables(work) == 3  # the root, the file, and its name
    assert packed_records(work) > 80
    assert shown(work.fs, work.fs.head) == head
    after = [shown(work.fs, work.fs.view_of(c.epoch)) for c in checkpoints(work.store)]
    assert after == before


def test_the_workspace_goes_on_without_reading_packed_records(work: Edits) -> None:
    work.put("a", b"1")
    save(work)
    work.put("a", b"2")
    save(work)
    packing.pack_records(work.fs)
    for _, _, chunk in work.store.packed.chunks():
        chunk.keys.clear()
        chunk.values.clear()
    work.put("a", b"3")
    work.put("b", b"4")
    work.remove("a")
    assert set(shown(work.fs, work.fs.head).nodes) == {b"", b"b"}
    work.store.packed._decoded.clear()
    first, second = (work.fs.view_of(c.epoch) for c in checkpoints(work.store))
    assert (get(work.fs, b"a", first), get(work.fs, b"a", second)) == (b"1", b"2")


def test_a_packed_tombstone_goes_on_hiding_a_name(work: Edits) -> None:
    """Its tombstone is packed beside what it hides, and hides it for ever."""
    work.put("a", b"1")
    save(work)
    work.remove("a")
    gone = save(work)
    packing.pack_records(work.fs)
    work.put("a", b"2")
    work.remove("a")
    save(work)
    assert work.fs.seek(work.fs.head, 1, b"a") is None
    removal.delete(work.fs, [c for c in checkpoints(work.store) if c.id == gone])
    for view in (work.fs.view_of(checkpoints(work.store)[-1].epoch), work.fs.head):
        assert b"a" not in shown(work.fs, view).nodes


def test_the_newest_checkpoint_can_be_deleted(work: Edits) -> None:
    """The head takes its records over; where it drops them, older ones must stay hidden."""
    work.put("a", b"1")
    save(work)
    work.put("a", b"2")
    newest = save(work)
    packing.pack_records(work.fs)
    removal.delete(work.fs, [c for c in checkpoints(work.store) if c.id == newest])
    assert get(work.fs, b"a") == b"2"
    work.remove("a")
    assert work.store.dirents.own(work.fs.head, pack_u64(1) + b"a\0") == GONE
    save(work)
    packing.pack_records(work.fs)
    assert b"a" not in shown(work.fs, work.fs.view_of(checkpoints(work.store)[-1].epoch)).nodes


def test_a_restore_can_go_back_to_packed_records(work: Edits) -> None:
    work.put("a", b"1")
    first = save(work)
    work.put("a", b"2")
    work.put("b", b"2")
    save(work)
    packing.pack_records(work.fs)
    assert not packing.head_reads_packed(work.fs)
    restore(work.fs, next(c for c in checkpoints(work.store) if c.id == first))
    assert packing.head_reads_packed(work.fs)
    assert get(work.fs, b"a") == b"1"
    work.put("b", b"3")
    work.remove("a")
    save(work)
    assert {*shown(work.fs, work.fs.head).nodes} == {b"", b"b"}
    packing.pack_records(work.fs)
    assert not packing.head_reads_packed(work.fs)
    assert {*shown(work.fs, work.fs.head).nodes} == {b"", b"b"}


def test_unpacking_after_a_restore_goes_on_after_a_restart(work: Edits) -> None:
    for version in range(5):
        work.put("a", b"%d" % version)
        work.put(f"gone-{version}", b"")
        save(work)
        work.remove(f"gone-{version}")
    packing.pack_records(work.fs, chunk_bytes=1)
    restore(work.fs, checkpoints(work.store)[1])
    work.fs.commit()
    assert not Worker(work.fs, packing.unpacking_steps(work.fs)).step(0)
    work.fs = crashed(work.fs)
    work.store = work.fs.store
    assert packing.head_reads_packed(work.fs)
    packing.unpack_needed(work.fs)
    assert not packing.head_reads_packed(work.fs)
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    assert get(work.fs, b"a") == b"1"
    assert [get(work.fs, b"a", work.fs.view_of(c.epoch)) for c in checkpoints(work.store)][:5] == [
        b"%d" % version for version in range(5)
    ]


def test_packing_that_began_before_a_restore_leaves_what_was_unpacked_for_it(work: Edits) -> None:
    live(work, "old", 3)
    old = checkpoints(work.store)[0]
    work.remove("old")
    live(work, "new", 3)
    packing.pack_records(work.fs, 1)
    live(work, "newer", 3)
    begun = packing.packing_steps(work.fs, 1)
    next(begun)
    restore(work.fs, old)
    restored = shown(work.fs, work.fs.head)
    packing.unpack_needed(work.fs)
    finish(work.fs, begun)
    assert shown(work.fs, work.fs.head) == restored
    assert check(work.store) == []


def test_unpacking_that_was_left_for_another_head_does_not_go_on_when_that_comes_back(
    work: Edits,
) -> None:
    live(work, "old", 3)
    old = checkpoints(work.store)[0]
    work.remove("old")
    live(work, "new", 3)
    packing.pack_records(work.fs, 1)
    restore(work.fs, old)
    left = packing.unpacking_steps(work.fs)
    while work.store.packed.versions(work.store.inodes.kind, pack_u64(ROOT_INO)):
        next(left)  # inodes are the last, and the root is the first of them
    before = restore(work.fs, checkpoints(work.store)[-1]).before
    packing.pack_records(work.fs, 1)
    restore(work.fs, before)
    restored = shown(work.fs, work.fs.head)
    finish(work.fs, left)
    assert shown(work.fs, work.fs.head) == restored
    assert check(work.store) == []


def test_after_a_restore_only_what_the_workspace_needs_is_unpacked(work: Edits) -> None:
    live(work, "a", 50)
    packing.pack_records(work.fs)
    before = packed_records(work)
    restore(work.fs, checkpoints(work.store)[40])
    packing.unpack_needed(work.fs)
    assert not packing.head_reads_packed(work.fs)
    # All versions of the inode and of the name, and those of the root.
    assert before - packed_records(work) < 120
    assert get(work.fs, b"a") == b"40"


def test_new_records_join_those_that_are_packed(work: Edits) -> None:
    """The chunks that nothing new belongs to stay as they are, byte for byte."""
    for number in range(300):
        work.put(f"{number:03}", b"")
    for version in range(20):
        for number in range(300):
            work.put(f"{number:03}", b"%d" % version)
        save(work)
    packing.pack_records(work.fs, chunk_bytes=20_000)
    before = dict(work.store.packed._table.walk())
    for version in range(5):
        work.put("150", b"again %d" % version)
        save(work)
    packing.pack_records(work.fs, chunk_bytes=20_000)
    after = dict(work.store.packed._table.walk())
    assert len(before) > 20
    changed = [name for name in {*before, *after} if before.get(name) != after.get(name)]
    assert 0 < len(changed) < 8
    assert check(work.store) == []


def test_on_a_full_disk_everything_stays_as_it_is(work: Edits) -> None:
    for version in range(5):
        work.put("a", b"%d" % version)
        save(work)
    packing.pack_records(work.fs)
    work.fs.commit()
    records = packed_records(work)
    path, size = work.store.path, work.store.size_bytes()
    work.store.close()
    work.store = Store.open(path, map_size=size + (16 << 20))
    work.fs = Filesystem(work.store, work.fs.clock)
    packing.unpack_needed(work.fs)
    packing.pack_records(work.fs)
    assert packed_records(work) == records
    # To delete takes no room that is asked for.
    removal.delete(work.fs, checkpoints(work.store)[:2])
    assert [get(work.fs, b"a", work.fs.view_of(c.epoch)) for c in checkpoints(work.store)] == [
        b"2",
        b"3",
        b"4",
    ]


def test_purged_names_are_in_no_packed_record(work: Edits) -> None:
    work.put("secret-name", b"secret bytes")
    work.put("other", b"1")
    save(work)
    work.remove("secret-name")
    work.put("other", b"2")
    save(work)
    packing.pack_records(work.fs)
    purge.purge(work.fs, [b"secret-name"])
    packing.pack_records(work.fs)
    for _, _, chunk in work.store.packed.chunks():
        assert not any(b"secret" in part for part in (*chunk.keys, *chunk.values))
    first = work.fs.view_of(checkpoints(work.store)[0].epoch)
    assert get(work.fs, b"other", first) == b"1"


def test_purging_a_directory_changes_the_packed_records_of_its_parent(work: Edits) -> None:
    work.mkdir("d")
    work.mkdir("d/e")
    work.put("d/e/file", b"1")
    save(work)
    work.change("d", mode=0o700)
    save(work)
    packing.pack_records(work.fs)
    purge.purge(work.fs, [b"d/e"])
    first = work.fs.view_of(checkpoints(work.store)[0].epoch)
    assert work.at("d", first).nlink == 2


def test_the_anchor_moves_to_the_epoch_that_takes_its_place(work: Edits) -> None:
    for version in range(3):
        work.put("a", b"%d" % version)
        save(work)
    packing.pack_records(work.fs)
    save(work)
    anchor = checkpoints(work.store)[-1]
    assert anchor.epoch == work.store.anchor
    removal.delete(work.fs, [anchor])
    assert work.store.anchor == work.fs.head.epoch
    assert not packing.head_reads_packed(work.fs)


class Life:
    """A history in which records are packed and unpacked all the time."""

    def __init__(self, work: Edits, seed: int) -> None:
        self.work = work
        self.chance = random.Random(seed)
        self.upkeep: Worker | None = None
        self.taken: dict[int, dict[bytes, Node]] = {}
        self.head: dict[bytes, Node] = {}
        work.mkdir("d")

    def step(self) -> None:
        before = shown(self.work.fs, self.work.fs.head).nodes
        deeds = (self.put, self.put, self.remove, self.move, self.save, self.save)
        others = (self.pack, *[self.make_smaller_a_little] * 4, self.delete, self.hide, self.reap)
        quiet = (*others, self.save, self.reopen)
        deed = self.chance.choice((*deeds, *others, self.back, self.reopen))
        deed()
        if deed in quiet:
            assert shown(self.work.fs, self.work.fs.head).nodes == before
        self.look()

    def put(self) -> None:
        data = self.chance.choice([b"x", b"yy" * 1_500, b"z" * 70_000])
        self.work.put(self.chance.choice(NAMES), data)

    def _present(self) -> list[str]:
        nodes = shown(self.work.fs, self.work.fs.head).nodes
        return [name for name in NAMES if name.encode() in nodes]

    def remove(self) -> None:
        if names := self._present():
            self.work.remove(self.chance.choice(names))

    def move(self) -> None:
        if names := self._present():
            self.work.move(self.chance.choice(names), self.chance.choice(NAMES))

    def save(self) -> None:
        number = save(self.work)
        self.taken[number] = shown(self.work.fs, self.work.fs.head).nodes

    def pack(self) -> None:
        packing.pack_records(self.work.fs, self.chance.choice([1, 300, 100_000]))

    def make_smaller_a_little(self) -> None:
        """The steps of background work, with whatever else happens between them."""
        self.upkeep = take_a_step(self.work.fs, self.upkeep)

    def _some(self) -> list[removal.Checkpoint]:
        known = checkpoints(self.work.store)
        chosen = self.chance.sample(known, min(len(known), self.chance.randrange(1, 3)))
        for checkpoint in chosen:
            del self.taken[checkpoint.id]
        return chosen

    def delete(self) -> None:
        removal.delete(self.work.fs, self._some())
        assert leftovers(self.work.store) == []

    def hide(self) -> None:
        removal.hide(self.work.fs, self._some())

    def reap(self) -> None:
        removal.Reaper(self.work.fs).step(0)

    def back(self) -> None:
        if known := checkpoints(self.work.store):
            done = restore(self.work.fs, self.chance.choice(known))
            number = done.before.id
            epoch = next(c.epoch for c in checkpoints(self.work.store) if c.id == number)
            self.taken[number] = shown(self.work.fs, self.work.fs.view_of(epoch)).nodes

    def reopen(self) -> None:
        self.upkeep = None
        self.work.fs = reopened(self.work.fs)
        self.work.store = self.work.fs.store

    def look(self) -> None:
        fs = self.work.fs
        fs.commit()
        assert check(fs.store) == []
        for checkpoint in checkpoints(fs.store):
            seen = shown(fs, fs.view_of(checkpoint.epoch)).nodes
            assert seen == self.taken[checkpoint.id], checkpoint.id


@pytest.mark.parametrize("seed", range(30))
def test_random_lives_read_the_same_when_records_are_packed(work: Edits, seed: int) -> None:
    life = Life(work, seed)
    for _ in range(40):
        life.step()
    removal.reap(work.fs)


def thirty_packed_files(work: Edits) -> list[bytes]:
    """The inodes of files that only history has, all of them in one chunk."""
    for number in range(30):
        work.put(f"f{number}", b"%d" % number)
    save(work)
    for number in range(30):
        work.remove(f"f{number}")
    save(work)
    packing.pack_records(work.fs)
    return [ino for ino in packed_inodes(work) if ino != pack_u64(ROOT_INO)]


def packed_inodes(work: Edits) -> list[bytes]:
    store = work.store
    names = list(store.packed.names(store.inodes.kind))
    return [entity for name in names for entity in store.packed.entities(name)]


def test_a_chunk_that_files_go_from_one_by_one_is_written_once(work: Edits) -> None:
    """With a commit between two of them; when the second goes, all move back to their table."""
    first, second, *_ = inodes = thirty_packed_files(work)
    assert len(inodes) >= 30
    work.store.packed.unpack(work.store.inodes.kind, first)
    work.fs.commit()
    assert packed_inodes(work).count(first) == 0
    assert packed_inodes(work).count(second) == 1
    work.store.packed.unpack(work.store.inodes.kind, second)
    assert packed_inodes(work) == []
    packing.pack_records(work.fs)
    assert set(inodes) <= set(packed_inodes(work))
    work.store.packed.unpack(work.store.inodes.kind, first)
    work.fs.commit()
    assert packed_inodes(work).count(second) == 1


def test_a_purge_does_not_compress_packed_records_between_its_steps(work: Edits) -> None:
    (first, *_) = thirty_packed_files(work)
    packed = work.store.packed
    packed.unpack(work.store.inodes.kind, first)
    (name,) = packed.names(work.store.inodes.kind)
    chunk = Read("rest", name, exact=True)
    assert packed.holds(chunk)
    work.store.pending.flush_tables()
    assert packed.holds(chunk)
    work.store.pending.flush()
    assert not packed.holds(chunk)
