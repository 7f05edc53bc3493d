"""Packed records: history reads as before, the workspace does not need them, and whatever changes
history finds them awake."""

from __future__ import annotations

import random

import pytest

from ckptfs.fs import Filesystem
from ckptfs.history import checkpoints, compression, purge, removal, restore, seal
from ckptfs.store import Store, check
from ckptfs.store.format import GONE, pack_u64
from tests.direct import Node, crashed, get, reopened, shown
from tests.history.edits import Edits
from tests.history.leftovers import leftovers

NAMES = ["a", "b", "c", "d/a", "d/b"]


def save(work: Edits) -> int:
    return seal(work.fs, "manual", "", work.fs.clock()).id


def standing(work: Edits) -> int:
    """How many records are in the versioned tables themselves."""
    store = work.store
    return sum(
        store._txn.stat(store._dbs[name])["entries"] for name in (b"inodes", b"dirents", b"changes")
    )


def resting_records(work: Edits) -> int:
    return sum(len(chunk.keys) for _, _, chunk in work.store.packed.chunks())


def test_only_what_the_workspace_has_stays_in_the_tables(work: Edits) -> None:
    for version in range(10):
        work.put("kept", b"%d" % version)
        work.put(f"gone-{version}", b"")
        save(work)
        work.remove(f"gone-{version}")
    save(work)
    before = [shown(work.fs, work.fs.view_of(c.epoch)) for c in checkpoints(work.store)]
    head = shown(work.fs, work.fs.head)
    compression.pack_records(work.fs)
    assert standing(work) == 3  # the root, the file, and its name
    assert resting_records(work) > 80
    assert shown(work.fs, work.fs.head) == head
    after = [shown(work.fs, work.fs.view_of(c.epoch)) for c in checkpoints(work.store)]
    assert after == before
    assert compression.unpack_records(work.fs)
    assert not work.store.packed.used


def test_the_workspace_goes_on_without_reading_packed_records(work: Edits) -> None:
    work.put("a", b"1")
    save(work)
    work.put("a", b"2")
    save(work)
    compression.pack_records(work.fs)
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
    compression.pack_records(work.fs)
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
    compression.pack_records(work.fs)
    removal.delete(work.fs, [c for c in checkpoints(work.store) if c.id == newest])
    assert get(work.fs, b"a") == b"2"
    work.remove("a")
    assert work.store.dirents.own(work.fs.head, pack_u64(1) + b"a\0") == GONE
    save(work)
    compression.pack_records(work.fs)
    assert b"a" not in shown(work.fs, work.fs.view_of(checkpoints(work.store)[-1].epoch)).nodes


def test_a_restore_can_go_back_to_packed_records(work: Edits) -> None:
    work.put("a", b"1")
    first = save(work)
    work.put("a", b"2")
    work.put("b", b"2")
    save(work)
    compression.pack_records(work.fs)
    assert not compression.head_reads_packed(work.fs)
    restore(work.fs, next(c for c in checkpoints(work.store) if c.id == first))
    assert compression.head_reads_packed(work.fs)
    assert get(work.fs, b"a") == b"1"
    work.put("b", b"3")
    work.remove("a")
    save(work)
    assert {*shown(work.fs, work.fs.head).nodes} == {b"", b"b"}
    compression.pack_records(work.fs)
    assert not compression.head_reads_packed(work.fs)
    assert {*shown(work.fs, work.fs.head).nodes} == {b"", b"b"}


def test_unpacking_goes_on_after_a_restart(work: Edits) -> None:
    for version in range(5):
        work.put("a", b"%d" % version)
        save(work)
    compression.pack_records(work.fs, chunk_bytes=1)
    work.fs.commit()
    records = resting_records(work)
    assert not compression.unpack_records(work.fs, 0)
    work.fs = crashed(work.fs)
    work.store = work.fs.store
    assert work.store.anchor == work.fs.head.epoch
    assert resting_records(work) == records
    while not compression.unpack_records(work.fs, 0):
        work.fs.commit()
    work.fs = reopened(work.fs)
    work.store = work.fs.store
    assert [get(work.fs, b"a", work.fs.view_of(c.epoch)) for c in checkpoints(work.store)] == [
        b"%d" % version for version in range(5)
    ]


def test_on_a_full_disk_everything_stays_as_it_is(work: Edits) -> None:
    for version in range(5):
        work.put("a", b"%d" % version)
        save(work)
    compression.pack_records(work.fs)
    work.fs.commit()
    records = resting_records(work)
    path, size = work.store.path, work.store.size_bytes()
    work.store.close()
    work.store = Store.open(path, map_size=size + (16 << 20))
    work.fs = Filesystem(work.store, work.fs.clock)
    assert compression.unpack_records(work.fs)
    compression.pack_records(work.fs)
    assert resting_records(work) == records
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
    compression.pack_records(work.fs)
    purge.purge(work.fs, [b"secret-name"])
    compression.pack_records(work.fs)
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
    compression.pack_records(work.fs)
    purge.purge(work.fs, [b"d/e"])
    first = work.fs.view_of(checkpoints(work.store)[0].epoch)
    assert work.at("d", first).nlink == 2


def test_the_anchor_moves_to_the_epoch_that_takes_its_place(work: Edits) -> None:
    for version in range(3):
        work.put("a", b"%d" % version)
        save(work)
    compression.pack_records(work.fs)
    save(work)
    anchor = checkpoints(work.store)[-1]
    assert anchor.epoch == work.store.anchor
    removal.delete(work.fs, [anchor])
    assert work.store.anchor == work.fs.head.epoch
    assert not compression.head_reads_packed(work.fs)


class Life:
    """A history in which records are packed and unpacked all the time."""

    def __init__(self, work: Edits, seed: int) -> None:
        self.work = work
        self.chance = random.Random(seed)
        self.taken: dict[int, dict[bytes, Node]] = {}
        self.head: dict[bytes, Node] = {}
        work.mkdir("d")

    def step(self) -> None:
        before = shown(self.work.fs, self.work.fs.head).nodes
        deeds = (self.put, self.put, self.remove, self.move, self.save, self.save)
        others = (self.pack, self.pack, self.unpack, self.delete, self.hide, self.reap)
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
        compression.pack_records(self.work.fs, self.chance.choice([1, 300, 100_000]))

    def unpack(self) -> None:
        compression.unpack_records(self.work.fs, 0)

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
