"""Damage to the heap: whoever needs the bytes gets EIO, nobody else notices, `check` names the
files, and a repair saves the rest.

What LMDB has is whole here, but for its records about the heap, so no trial needs a process of its
own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from ckptfs import errors, history
from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import Store, View, blockmap, check, heap
from ckptfs.store.format import BLOCK_HEADER, CODEC_HEAP, block_header, pack_number, pack_u64
from ckptfs.store.heap import Heap
from ckptfs.store.repair import repair
from tests.crash.test_repair import PAGE, Tree, tree
from tests.direct import Ticks, find, get, put
from tests.support.mounting import ckptfs

_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
#: The workspace, among the checkpoints by number.
HEAD = -1


class Made(NamedTuple):
    store: Path
    shown: dict[int, Tree]
    #: By slot: where, and what, has bytes in it.
    users: dict[int, set[tuple[int, bytes]]]

    def hit(self, slots: set[int]) -> set[tuple[int, bytes]]:
        return set().union(*(self.users[slot] for slot in slots))


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    """Two checkpoints and a head, which share blocks of large files and have some of their own."""
    with tempfile.TemporaryDirectory(prefix="ckptfs-heap-", dir=_MEMORY) as base:
        store = Store.create(Path(base) / "store")
        fs = Filesystem(store, Ticks())
        put(fs, b"small", b"text\n" * 10_000)
        for number in range(3):
            put(fs, b"large %d" % number, os.urandom(7 * BLOCK_SIZE + number))
        history.seal(fs, "manual", "", 0)
        inode = find(fs, fs.head, b"large 0")
        fs.write(fs.head, inode.ino, 5 * BLOCK_SIZE, os.urandom(BLOCK_SIZE))
        put(fs, b"copy", get(fs, b"large 2"))
        history.seal(fs, "manual", "", 0)
        fs.unlink(fs.head, 1, b"large 1")
        put(fs, b"short life", os.urandom(6 * BLOCK_SIZE))
        fs.commit()
        fs.unlink(fs.head, 1, b"short life")
        fs.commit()
        assert check(store) == []
        views = _views(fs)
        shown = {number: tree(fs, view) for number, view in views.items()}
        users = _users(fs, views)
        assert len(users) == 10 and list(store.heap.freed())
        store.close()
        yield Made(store.path, shown, users)


def _views(fs: Filesystem) -> dict[int, View]:
    return {c.id: fs.view_of(c.epoch) for c in history.checkpoints(fs.store)} | {HEAD: fs.head}


def _users(fs: Filesystem, views: dict[int, View]) -> dict[int, set[tuple[int, bytes]]]:
    slots = dict(fs.store.blocks.slots())
    found: dict[int, set[tuple[int, bytes]]] = {}
    for where, view in views.items():
        for name, inode in fs.entries(view, 1):
            for number in range(-(-inode.size // BLOCK_SIZE)):
                record = blockmap.find(fs.store, view, inode, number)
                slot = slots.get(record.key) if record else None
                if slot is not None:
                    found.setdefault(slot, set()).add((where, name))
    return found


@pytest.fixture
def path(made: Made) -> Iterator[Path]:
    """A copy of the store, to be damaged."""
    copy = made.store.with_name("damaged")
    shutil.copytree(made.store, copy)
    yield copy
    shutil.rmtree(copy)


# -- damages: each takes a slot and tells which slots have lost their bytes by it -----------------


def flip_a_bit(path: Path, slot: int, used: set[int]) -> set[int]:
    _change(path, slot * BLOCK_SIZE + 777, lambda data: bytes((data[0] ^ 4,)), 1)
    return {slot}


def lose_a_sector(path: Path, slot: int, used: set[int]) -> set[int]:
    _change(path, slot * BLOCK_SIZE + 512, lambda data: bytes(512), 512)
    return {slot}


def make_a_hole(path: Path, slot: int, used: set[int]) -> set[int]:
    _change(path, slot * BLOCK_SIZE, lambda data: bytes(BLOCK_SIZE), BLOCK_SIZE)
    return {slot}


def copy_over_another(path: Path, slot: int, used: set[int]) -> set[int]:
    """What is there is whole, but is not what belongs there."""
    other = max(used - {slot})
    data = _heap(path).read_bytes()[other * BLOCK_SIZE :][:BLOCK_SIZE]
    _change(path, slot * BLOCK_SIZE, lambda _: data, BLOCK_SIZE)
    return {slot}


def cut_between(path: Path, slot: int, used: set[int]) -> set[int]:
    os.truncate(_heap(path), slot * BLOCK_SIZE)
    return {other for other in used if other >= slot}


def cut_within(path: Path, slot: int, used: set[int]) -> set[int]:
    os.truncate(_heap(path), slot * BLOCK_SIZE + 1_000)
    return {other for other in used if other >= slot}


def lose_it(path: Path, slot: int, used: set[int]) -> set[int]:
    _heap(path).unlink()
    return set(used)


def _heap(path: Path) -> Path:
    return path / heap.FILE


def _change(path: Path, offset: int, change: Callable[[bytes], bytes], length: int) -> None:
    with _heap(path).open("r+b") as file:
        file.seek(offset)
        data = file.read(length)
        file.seek(offset)
        file.write(change(data))


IN_PLACE = [flip_a_bit, lose_a_sector, make_a_hole, copy_over_another]
SHORTER = [cut_between, cut_within, lose_it]
Damage = Callable[[Path, int, set[int]], set[int]]


# -- questions ------------------------------------------------------------------------------------


def _assert_all_else_is_there(fs: Filesystem, made: Made, hit: set[tuple[int, bytes]]) -> None:
    """Exactly these files cannot be read, and the others are what they were."""
    for number, view in _views(fs).items():
        bad: list[bytes] = []
        found = tree(fs, view, bad=bad)
        assert set(bad) == {name for where, name in hit if where == number}
        assert found == {n: data for n, data in made.shown[number].items() if n not in bad}


@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize("damage", [*IN_PLACE, *SHORTER])
def test_a_damaged_heap_costs_only_the_blocks_that_it_hit(
    made: Made, path: Path, damage: Damage, place: int
) -> None:
    lost = damage(path, sorted(made.users)[place], set(made.users))
    hit = made.hit(lost)
    with closing(Store.open(path)) as store:
        fs = Filesystem(store, Ticks())
        _assert_all_else_is_there(fs, made, hit)
        problems = check(store)
        assert len({problem.block for problem in problems if problem.block}) == len(lost)
        # How long the file is, is seen without reading it.
        assert bool(check(store, deep=False)) == (damage in SHORTER)
    repaired = repair(path)
    assert repaired.left == [] and repaired.unreadable == []
    with closing(Store.open(path)) as store:
        assert check(store) == []
        _assert_all_else_is_there(Filesystem(store, Ticks()), made, hit)


@pytest.mark.parametrize("damage", [flip_a_bit, cut_within, lose_it])
@pytest.mark.parametrize("repairing", [False, True], ids=["as it is", "repaired"])
def test_what_is_written_anew_is_whole(
    made: Made, path: Path, damage: Damage, repairing: bool
) -> None:
    """Also if it is the same bytes, whose digest names a block that is damaged."""
    damage(path, min(made.users), set(made.users))
    if repairing:
        repair(path)
    wanted = made.shown[1]
    with closing(Store.open(path)) as store:
        fs = Filesystem(store, Ticks())
        for name, data in wanted.items():
            put(fs, name, data)
            put(fs, b"new " + name, data[::-1])
        fs.commit()
    with closing(Store.open(path)) as store:
        fs = Filesystem(store, Ticks())
        for name, data in wanted.items():
            assert get(fs, name) == data
            assert get(fs, b"new " + name) == data[::-1]
        assert not repairing or check(store) == []


@pytest.mark.parametrize("damage", [flip_a_bit, cut_between, lose_it])
def test_the_command_names_the_files(made: Made, path: Path, damage: Damage) -> None:
    hit = made.hit(damage(path, min(made.users), set(made.users)))
    done = ckptfs("check", "--deep", "--store", path)
    assert done.returncode == errors.ProblemsFound.exit_code and "Traceback" not in done.stderr
    named = {line.split(":")[0].encode() for line in done.stdout.splitlines() if "lost" in line}
    assert named == {name for _, name in hit}
    assert ckptfs("check", "--repair", "--store", path).returncode == 0
    assert ckptfs("check", "--deep", "--store", path).returncode == 0


# -- what the data file says about the heap -------------------------------------------------------


def _flips(path: Path, record: bytes, *, after: int = 0, step: int = 1) -> Iterator[int]:
    """Flip bits of a record wherever it stands in the data file, or of so many bytes after it; what
    was done to the store meanwhile is undone."""
    whole = {name: (path / name).read_bytes() for name in ("data.mdb", heap.FILE)}
    start, stop = (len(record), len(record) + after) if after else (0, len(record))
    for bit in range(start * 8, stop * 8, step):
        data = bytearray(whole["data.mdb"])
        at = data.find(record)
        assert at > 0
        while at > 0:
            data[at + bit // 8] ^= 1 << bit % 8
            at = data.find(record, at + stop)
        (path / "data.mdb").write_bytes(data)
        (path / heap.FILE).write_bytes(whole[heap.FILE])
        yield bit


def test_a_flipped_bit_of_a_record_is_noticed(made: Made, path: Path) -> None:
    """The slot is no other one, and the bytes are not taken for something else."""
    slot = min(made.users)
    hit = made.users[slot]
    record = block_header(CODEC_HEAP, 0) + pack_number(slot)
    assert len(record) == BLOCK_HEADER + 12
    for bit in _flips(path, record, step=3):
        with closing(Store.open(path)) as store:
            _assert_all_else_is_there(Filesystem(store, Ticks()), made, hit)
            assert check(store)
        if bit % 8 == 0:
            repaired = repair(path)
            assert repaired.left == []
            repaired.kept_as.unlink()  # the next one in this second has the same name
            with closing(Store.open(path)) as store:
                _assert_all_else_is_there(Filesystem(store, Ticks()), made, hit)


def test_a_flipped_record_of_a_freed_slot_makes_no_hole_elsewhere(made: Made, path: Path) -> None:
    """No other slot becomes a hole for it."""
    with closing(Store.open(path)) as store:
        freed = next(store.heap.freed())
    assert freed is not None
    for _ in _flips(path, pack_u64(freed) + pack_number(freed), step=5):
        with closing(Store.open(path)) as store:
            fs = Filesystem(store, Ticks())
            assert check(store)
            put(fs, b"new", b"new")
            fs.commit()
            _assert_all_else_is_there(fs, _with(made, b"new", b"new"), set())


def _with(made: Made, name: bytes, data: bytes) -> Made:
    return made._replace(shown={**made.shown, HEAD: {**made.shown[HEAD], name: data}})


def test_a_flipped_counter_of_slots_cuts_nothing_off(made: Made, path: Path) -> None:
    """A number that is too low is noticed before the heap is cut behind it."""
    used = [
        (path / heap.FILE).read_bytes()[slot * BLOCK_SIZE :][:BLOCK_SIZE] for slot in made.users
    ]
    for _ in _flips(path, b"next_slot", after=8):
        try:
            with closing(Store.open(path)) as store:
                fs = Filesystem(store, Ticks())
                put(fs, b"new", bytes(6 * BLOCK_SIZE))
                fs.commit()
                _assert_all_else_is_there(fs, _with(made, b"new", bytes(6 * BLOCK_SIZE)), set())
        except errors.StoreError:
            pass
        left = (path / heap.FILE).read_bytes()
        assert [left[slot * BLOCK_SIZE :][:BLOCK_SIZE] for slot in made.users] == used
    assert repair(path).left == []
    with closing(Store.open(path)) as store:
        _assert_all_else_is_there(Filesystem(store, Ticks()), made, set())


def test_the_commit_before_still_has_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two that a data file has a repair takes the older one if the newest cannot be read. It
    ends before the commit that follows one that lets go of slots."""
    monkeypatch.setattr(Heap, "is_waiting", False)
    data = os.urandom(6 * BLOCK_SIZE)
    with closing(Store.create(tmp_path / "store")) as store:
        fs = Filesystem(store, Ticks())
        put(fs, b"large", data)
        fs.commit()
        fs.unlink(fs.head, 1, b"large")
        fs.commit()
        shutil.copytree(store.path, tmp_path / "copy")
    _break_newest_state(tmp_path / "copy/data.mdb")
    repaired = repair(tmp_path / "copy")
    assert any("newest state" in words for words in repaired.unreadable)
    with closing(Store.open(tmp_path / "copy")) as store:
        assert get(Filesystem(store, Ticks()), b"large") == data
        assert check(store) == []


def _break_newest_state(file: Path) -> None:
    """Of LMDB's two first pages, the one of the later transaction leads nowhere."""
    data = bytearray(file.read_bytes())
    newest = max((0, PAGE), key=lambda page: data[page + 144 : page + 152][::-1])
    data[newest + 128 : newest + 136] = pack_u64(1 << 20)[::-1]
    file.write_bytes(data)
