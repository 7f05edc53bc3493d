"""The heap: blocks of large files beside the data file, on a store without a kernel."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.errors import StoreCorrupt, StoreError, StoreUnwritten
from ckptfs.fs import Filesystem
from ckptfs.history import checkpoints, compression, removal
from ckptfs.model import BLOCK_SIZE, Ino
from ckptfs.service import Service
from ckptfs.store import Store, aio, check, data_file, heap
from ckptfs.store import format as fmt
from ckptfs.store import repair as repairing
from ckptfs.store.check import Problem
from ckptfs.store.pages import Pages
from ckptfs.store.repair import repair
from tests.direct import Life, Ticks, find, get, put
from tests.support.errnos import fails

#: Blocks at the beginning of a file that are not in the heap.
SMALL = 4
LARGE = SMALL + 20


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """On a real disk: past the page cache is what this is about."""
    found = Life(tmp_path / "store")
    yield found
    found.end()


@pytest.fixture(autouse=True, params=["orders", "without"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel's own asynchronous I/O, and as where there is none."""
    if request.param == "without":
        monkeypatch.setattr(aio, "_CALLS", {})
        monkeypatch.setattr(aio, "_idle", [])
    else:
        queue = aio.acquire_queue()
        assert queue is not None
        aio.release_queue(queue)


def noise(blocks: float, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(int(blocks * BLOCK_SIZE))


def file_of(store: Store) -> Path:
    return store.path / heap.FILE


def slots(store: Store) -> list[int]:
    return sorted(slot for _, slot in store.blocks.slots() if slot is not None)


def used_bytes(store: Store) -> int:
    return file_of(store).stat().st_blocks * 512


def append(fs: Filesystem, name: bytes, data: bytes) -> None:
    inode = find(fs, fs.head, name)
    fs.write(fs.head, inode.ino, inode.size, data)


# -- what goes there -------------------------------------------------------------------------------


def test_a_large_file_is_there_and_reads_back(life: Life) -> None:
    data = noise(LARGE + 0.3)
    put(life.fs, b"large", data)
    assert slots(life.fs.store) == list(range(LARGE - SMALL))
    assert get(life.fs, b"large") == data
    after = life.reopen()
    assert get(after, b"large") == data
    assert file_of(after.store).stat().st_size == (LARGE - SMALL) * BLOCK_SIZE
    assert file_of(after.store).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("blocks", [0.2, 1, SMALL, SMALL + 0.9])
def test_small_files_are_not(life: Life, blocks: float) -> None:
    put(life.fs, b"small", noise(blocks))
    assert slots(life.fs.store) == []
    life.fs.commit()
    assert not file_of(life.fs.store).exists()


def test_what_comes_in_short_writes_is_there_too(life: Life) -> None:
    data = noise(LARGE)
    ino = put(life.fs, b"large")
    for start in range(0, len(data), 10_240):
        life.fs.write(life.fs.head, ino, start, data[start : start + 10_240])
    assert len(slots(life.fs.store)) == LARGE - SMALL
    assert get(life.reopen(), b"large") == data


def test_what_is_edited_is_not_any_more(life: Life) -> None:
    data = bytearray(noise(LARGE))
    ino = put(life.fs, b"large", bytes(data))
    life.fs.commit()
    place = 10 * BLOCK_SIZE + 5
    life.fs.write(life.fs.head, ino, place, b"edited")
    data[place : place + 6] = b"edited"
    life.fs.commit()
    assert slots(life.fs.store) == [s for s in range(LARGE - SMALL) if s != 10 - SMALL]
    assert get(life.reopen(), b"large") == bytes(data)


def test_equal_blocks_are_there_once(life: Life) -> None:
    block = noise(1)
    put(life.fs, b"large", block * LARGE)
    put(life.fs, b"again", block * LARGE)
    assert len(slots(life.fs.store)) <= 1
    assert get(life.reopen(), b"again") == block * LARGE


def test_blocks_that_share_a_digest_stay_apart(life: Life) -> None:
    blocks = life.fs.store.blocks
    real = blocks.digest
    blocks.digest = lambda data, seed: real(bytes([seed]), 0)
    first, second = noise(1, 1), noise(1, 2)
    keys = [blocks.add_large(first), blocks.add_large(second)]
    assert [bytes(blocks.read(key)) for key in keys] == [first, second]
    for key in keys:
        blocks.release(key)


def test_readers_in_a_row_and_anywhere_get_the_right_bytes(life: Life) -> None:
    """Two files written in turns, so that their blocks lie between each other's."""
    files = {b"a": noise(60, 1), b"b": noise(60, 2)}
    for name in files:
        put(life.fs, name)
    for start in range(0, 60 * BLOCK_SIZE, 3 * BLOCK_SIZE):
        for name, data in files.items():
            append(life.fs, name, data[start : start + 3 * BLOCK_SIZE])
    fs = life.reopen()
    rng = random.Random(3)
    places = dict.fromkeys(files, 0)
    for _ in range(400):
        name = rng.choice(list(files))
        if rng.random() < 0.2:
            places[name] = rng.randrange(60 * BLOCK_SIZE)
        start, size = places[name], rng.choice([100, BLOCK_SIZE, 5 * BLOCK_SIZE])
        ino = find(fs, fs.head, name).ino
        assert bytes(fs.read(fs.head, ino, start, size)) == files[name][start : start + size]
        places[name] = (start + size) % (60 * BLOCK_SIZE)


def test_more_than_can_be_under_way_at_once(life: Life) -> None:
    data = noise(40 * 16)
    assert len(data) > 2 * aio.SEGMENT * aio.DEPTH
    put(life.fs, b"large", data)
    append(life.fs, b"large", noise(3, 5))
    assert get(life.fs, b"large") == data + noise(3, 5)
    assert get(life.reopen(), b"large") == data + noise(3, 5)


# -- what was not committed ------------------------------------------------------------------------


def test_what_was_not_committed_is_cut_off(life: Life) -> None:
    put(life.fs, b"kept", noise(LARGE, 1))
    life.fs.commit()
    put(life.fs, b"lost", noise(LARGE, 2))
    fs = life.crash()
    assert [name for name, _ in fs.entries(fs.head, 1)] == [b"kept"]
    assert file_of(fs.store).stat().st_size == (LARGE - SMALL) * BLOCK_SIZE
    put(fs, b"next", noise(LARGE, 3))
    assert get(fs, b"kept") == noise(LARGE, 1)
    assert get(fs, b"next") == noise(LARGE, 3)


def test_a_sync_that_goes_into_the_journal_has_them_too(life: Life) -> None:
    for name in (b"a", b"b"):
        put(life.fs, name, b"x")
        life.fs.sync()
    assert life.fs.store._journal.is_open
    put(life.fs, b"large", noise(LARGE))
    before = int(life.fs.store._env.info()["last_txnid"])
    life.fs.sync()
    assert int(life.fs.store._env.info()["last_txnid"]) == before
    assert get(life.crash(), b"large") == noise(LARGE)


def test_a_write_that_fails_ends_the_store_and_what_was_committed_stays(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = life.fs
    put(fs, b"kept", noise(LARGE, 1))
    fs.commit()
    put(fs, b"lost", noise(LARGE, 2))

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreUnwritten):  # the disk failed: nothing says that it is damaged
            fs.commit()
    with fails(errno.EIO):
        put(fs, b"more", b"x")
    # What is committed is older than what was read a moment ago.
    for read in (lambda: get(fs, b"kept"), lambda: list(fs.entries(fs.head, 1))):
        with fails(errno.EIO):
            read()
    after = life.crash()
    assert [name for name, _ in after.entries(after.head, 1)] == [b"kept"]
    assert get(after, b"kept") == noise(LARGE, 1)


# -- letting go ------------------------------------------------------------------------------------


def test_what_is_deleted_gives_its_room_back(life: Life) -> None:
    fs = life.fs
    put(fs, b"a", noise(LARGE, 1))
    put(fs, b"b", noise(LARGE, 2))
    fs.commit()
    before = used_bytes(fs.store)
    fs.unlink(fs.head, 1, b"a")
    assert list(fs.store.heap.freed()) == list(range(LARGE - SMALL))
    commits = int(fs.store._env.info()["last_txnid"])
    fs.commit()
    # Two: a repair may go back by one.
    assert int(fs.store._env.info()["last_txnid"]) == commits + 2
    assert used_bytes(fs.store) < before - (LARGE - SMALL - 1) * BLOCK_SIZE
    assert not fs.store.dirty
    assert get(fs, b"b") == noise(LARGE, 2)
    put(fs, b"c", b"x")
    fs.commit()
    assert list(fs.store.heap.freed()) == []


def test_room_that_takes_long_to_give_back_is_given_back_in_parts(life: Life) -> None:
    """Where holes are given no time, one is made after each commit."""
    fs, store = life.fs, life.fs.store
    for number in range(7):
        put(fs, b"%d" % number, noise(LARGE, number))
    fs.commit()
    full = used_bytes(store)
    for number in range(0, 7, 2):
        fs.unlink(fs.head, Ino(1), b"%d" % number)
    store.heap.punching_s = 0.0
    fs.commit()
    sizes = [used_bytes(store)]
    for _ in removal.giving_back(fs):
        sizes.append(used_bytes(store))
        assert check(store) == []
    part = (LARGE - SMALL) * BLOCK_SIZE
    assert [round((full - size) / part) for size in sizes] == [1, 2, 3, 4]
    assert not store.heap.is_waiting
    assert all(get(fs, b"%d" % number) == noise(LARGE, number) for number in (1, 3, 5))


def test_a_checkpoint_keeps_what_the_workspace_deleted(life: Life) -> None:
    fs = life.fs
    put(fs, b"a", noise(LARGE, 1))
    history.seal(fs, "manual", "", 0)
    fs.unlink(fs.head, 1, b"a")
    fs.commit()
    (kept,) = checkpoints(fs.store)
    assert get(fs, b"a", fs.view_of(kept.epoch)) == noise(LARGE, 1)
    before = used_bytes(fs.store)
    removal.delete(fs, [kept])
    fs.commit()
    fs.commit()
    assert slots(fs.store) == []
    assert used_bytes(fs.store) < before - (LARGE - SMALL - 1) * BLOCK_SIZE


def test_room_that_was_not_given_back_before_a_crash_is_after_it(life: Life) -> None:
    fs = life.fs
    put(fs, b"a", noise(LARGE, 1))
    fs.commit()
    before = used_bytes(fs.store)
    with fs.store.heap.held():
        fs.unlink(fs.head, 1, b"a")
        fs.commit()
        fs.commit()
        assert used_bytes(fs.store) == before
    after = life.crash()
    put(after, b"c", b"x")
    after.commit()
    assert used_bytes(after.store) < before - (LARGE - SMALL - 1) * BLOCK_SIZE
    put(after, b"d", b"x")
    after.commit()
    assert list(after.store.heap.freed()) == []


def test_holes_that_cannot_be_made_are_tried_again(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = life.fs
    put(fs, b"a", noise(LARGE, 1))
    fs.commit()
    before = used_bytes(fs.store)

    def refuse(fd: int, mode: int, offset: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(heap, "fallocate", refuse)
        fs.unlink(fs.head, 1, b"a")
        fs.commit()
        fs.commit()
        assert not fs.store.dirty  # and not again and again
        Service(fs).compact()
    assert used_bytes(fs.store) == before
    put(fs, b"b", b"x")
    fs.commit()
    assert used_bytes(fs.store) < before - (LARGE - SMALL - 1) * BLOCK_SIZE


def test_a_repair_that_goes_back_to_the_commit_before_finds_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest state cannot be read: its root is overwritten. It ended before the commit that
    follows one that lets go of slots."""
    monkeypatch.setattr(heap.Heap, "is_waiting", False)
    life = Life(tmp_path / "store")
    put(life.fs, b"a", noise(LARGE, 1))
    put(life.fs, b"b", b"x")
    life.fs.commit()
    life.fs.unlink(life.fs.head, 1, b"a")
    life.fs.commit()
    store = life.fs.store
    life.fs.store.close(commit=False)
    with closing(Pages(store.path / "data.mdb")) as pages:
        root, size = pages.metas[0].main.root, pages.metas[0].page_size
    with (store.path / "data.mdb").open("r+b") as file:
        file.seek(root * size)
        file.write(bytes(size))
    repair(store.path)
    life.fs = Filesystem(Store.open(store.path), Ticks())
    assert get(life.fs, b"a") == noise(LARGE, 1)
    life.end()


def test_a_repair_that_is_broken_off_leaves_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path / "store")
    put(life.fs, b"a", noise(LARGE, 1))
    life.fs.commit()
    life.fs.store.close()

    def broken_off(store: Store) -> list[Problem]:
        for key, _ in list(store.blocks.slots()):
            store.blocks.erase(key)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repairing, "make_consistent", broken_off)
        with pytest.raises(KeyboardInterrupt):
            repair(tmp_path / "store")
    life.fs = Filesystem(Store.open(tmp_path / "store"), Ticks())
    assert get(life.fs, b"a") == noise(LARGE, 1)
    life.end()


def test_a_repair_makes_no_holes_in_what_others_name(tmp_path: Path) -> None:
    """Of two that name one slot the one that is wrong goes, and what the other has stays."""
    life = Life(tmp_path / "store")
    put(life.fs, b"a", noise(LARGE, 1))
    put(life.fs, b"b", noise(LARGE, 2))
    blocks = life.fs.store.blocks
    right, slot = next((key, slot) for key, slot in blocks.slots() if slot == LARGE)
    wrong = next(key for key, slot in blocks.slots() if slot == 1)
    record = blocks._blocks.get(wrong) or b""
    blocks._blocks.put(wrong, record[: fmt.BLOCK_HEADER] + fmt.pack_number(slot or 0))
    life.fs.commit()
    life.fs.store.close()
    repair(tmp_path / "store")
    life.fs = fs = Filesystem(Store.open(tmp_path / "store"), Ticks())
    for name in (b"c", b"d"):
        put(fs, name, b"x")
        fs.commit()
    assert get(fs, b"b") == noise(LARGE, 2)
    with fails(errno.EIO):
        get(fs, b"a")
    fs.unlink(fs.head, 1, b"a")
    life.end()
    assert right


@pytest.mark.parametrize("damage", [None, bytes(12), fmt.pack_number(3)[:-1]])
def test_a_number_of_slots_that_is_lost_or_damaged_cuts_nothing_off(
    tmp_path: Path, damage: bytes | None
) -> None:
    life = Life(tmp_path / "store")
    put(life.fs, b"a", noise(LARGE, 1))
    life.fs.commit()
    if damage is None:
        life.fs.store._meta.delete(b"next_slot")
    else:
        life.fs.store._meta.put(b"next_slot", damage)
    life.fs.store._txn.commit()
    life.fs.store._begin()
    life.fs.store.close(commit=False)
    with pytest.raises(StoreCorrupt, match="next_slot"):
        Store.open(tmp_path / "store")
    repair(tmp_path / "store")
    life.fs = Filesystem(Store.open(tmp_path / "store"), Ticks())
    assert get(life.fs, b"a") == noise(LARGE, 1)
    put(life.fs, b"b", noise(LARGE, 2))
    assert get(life.fs, b"a") == noise(LARGE, 1)
    life.end()


def test_what_was_there_before_the_first_commit_goes(life: Life) -> None:
    put(life.fs, b"lost", noise(LARGE, 2))
    assert file_of(life.fs.store).exists()
    fs = life.crash()
    assert not file_of(fs.store).exists()


def test_a_heap_that_is_no_file_is_told(tmp_path: Path) -> None:
    life = Life(tmp_path / "store")
    put(life.fs, b"a", noise(LARGE, 1))
    life.fs.commit()
    life.fs.store.close()
    file_of(life.fs.store).rename(tmp_path / "elsewhere")
    file_of(life.fs.store).mkdir()
    with pytest.raises(StoreError, match="directory"):
        Store.open(tmp_path / "store")


def test_a_slot_that_is_freed_wrongly_is_left_alone(life: Life) -> None:
    """A bit that flipped in the table must not make a hole of somebody's bytes."""
    fs = life.fs
    put(fs, b"a", noise(LARGE, 1))
    fs.store.heap._table.put(fmt.pack_u64(3), fmt.pack_number(2))
    fs.store.heap._table.put(fmt.pack_u64(4), bytes(12))
    fs.commit()
    assert {problem.invariant for problem in check(fs.store)} == {"heap"}
    after = life.reopen()
    assert get(after, b"a") == noise(LARGE, 1)
    for slot in (3, 4):
        after.store.heap._table.delete(fmt.pack_u64(slot))


def test_compact_finds_what_nothing_names(life: Life) -> None:
    fs = life.fs
    put(fs, b"a", noise(LARGE, 1))
    put(fs, b"b", noise(LARGE, 2))
    fs.commit()
    before = used_bytes(fs.store)
    fs.unlink(fs.head, 1, b"a")
    for slot in range(LARGE - SMALL):  # forgotten
        fs.store.heap._table.delete(fmt.pack_u64(slot))
    fs.store.heap._freed.clear()
    Service(fs).compact()
    assert used_bytes(fs.store) < before - (LARGE - SMALL - 1) * BLOCK_SIZE
    assert get(fs, b"b") == noise(LARGE, 2)


def test_what_compresses_leaves_it(life: Life) -> None:
    fs = life.fs
    text = b"".join(b"line %d of many\n" % number for number in range(200_000))
    put(fs, b"text", text)
    put(fs, b"noise", noise(LARGE))
    history.seal(fs, "manual", "", 0)
    whole = len(text) // BLOCK_SIZE + LARGE - 2 * SMALL
    assert len(slots(fs.store)) == whole
    fs.unlink(fs.head, 1, b"text")
    fs.unlink(fs.head, 1, b"noise")
    compression.compress(fs)
    fs.commit()
    assert len(slots(fs.store)) == LARGE - SMALL
    (kept,) = checkpoints(fs.store)
    after = life.reopen()
    view = after.view_of(kept.epoch)
    assert get(after, b"text", view) == text
    assert get(after, b"noise", view) == noise(LARGE)


def test_compact_leaves_what_does_not_compress_where_it_is(life: Life) -> None:
    fs = life.fs
    put(fs, b"noise", noise(LARGE))
    history.seal(fs, "manual", "", 0)
    fs.unlink(fs.head, 1, b"noise")
    Service(fs).compact()
    assert slots(fs.store) == list(range(LARGE - SMALL))
    (kept,) = checkpoints(fs.store)
    assert get(fs, b"noise", fs.view_of(kept.epoch)) == noise(LARGE)


# -- damage ----------------------------------------------------------------------------------------


def _spoil(store: Store, slot: int) -> None:
    with file_of(store).open("r+b") as file:
        file.seek(slot * BLOCK_SIZE + 17)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))


def test_a_damaged_slot_is_an_error_for_its_reader(life: Life) -> None:
    put(life.fs, b"a", noise(LARGE, 1))
    put(life.fs, b"b", noise(LARGE, 2))
    life.fs.commit()
    _spoil(life.fs.store, 3)
    fs = life.reopen()
    with fails(errno.EIO):
        get(fs, b"a")
    assert get(fs, b"b") == noise(LARGE, 2)
    assert {problem.invariant for problem in check(fs.store)} == {"blocks"}
    ino = find(fs, fs.head, b"a").ino
    fs.write(fs.head, ino, (SMALL + 3) * BLOCK_SIZE, noise(LARGE, 1)[(SMALL + 3) * BLOCK_SIZE :])
    assert get(fs, b"a") == noise(LARGE, 1)


@pytest.mark.parametrize("left", [None, 0, 5 * BLOCK_SIZE + 100])
def test_a_heap_that_is_gone_or_short_costs_only_large_files(life: Life, left: int | None) -> None:
    put(life.fs, b"small", b"small")
    put(life.fs, b"large", noise(LARGE))
    life.fs.commit()
    path = file_of(life.fs.store)
    life.fs.store.close()
    if left is None:
        path.unlink()
    else:
        os.truncate(path, left)
    fs = life.fs = Filesystem(Store.open(life.fs.store.path), Ticks())
    assert get(fs, b"small") == b"small"
    with fails(errno.EIO):
        get(fs, b"large")
    assert "heap" in {problem.invariant for problem in check(fs.store, deep=False)}
    put(fs, b"next", noise(LARGE, 4))
    fs.commit()
    assert get(fs, b"next") == noise(LARGE, 4)
    fs.unlink(fs.head, 1, b"large")


def test_a_record_that_does_not_say_where_it_is(life: Life) -> None:
    fs = life.fs
    put(fs, b"large", noise(LARGE))
    fs.commit()
    key, slot = next(iter(fs.store.blocks.slots()))
    record = bytearray(fs.store.blocks._blocks.get(key) or b"")
    record[9] ^= 1
    fs.store.blocks._blocks.put(key, bytes(record))
    with fails(errno.EIO):
        get(fs, b"large")
    assert "heap" in {problem.invariant for problem in check(fs.store)}
    fs.unlink(fs.head, 1, b"large")
    assert slot not in set(fs.store.heap.freed())


def test_two_blocks_in_one_slot_are_noticed(life: Life) -> None:
    fs = life.fs
    put(fs, b"large", noise(LARGE))
    (one, _), (_, slot) = list(fs.store.blocks.slots())[:2]
    record = fs.store.blocks._blocks.get(one) or b""
    fs.store.blocks._blocks.put(one, record[: fmt.BLOCK_HEADER] + fmt.pack_number(slot or 0))
    assert "heap" in {problem.invariant for problem in check(fs.store)}
    fs.store.blocks._blocks.put(one, record)


# -- where it is of no use -------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_without_room_or_holes_the_data_file_has_them(
    life: Life, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    def refuse(fd: int, mode: int, offset: int, length: int) -> None:
        raise OSError(refused, os.strerror(refused))

    monkeypatch.setattr(heap, "fallocate", refuse)
    put(life.fs, b"large", noise(LARGE))
    assert slots(life.fs.store) == []
    assert get(life.reopen(), b"large") == noise(LARGE)


def test_on_a_disk_that_is_nearly_full_it_is_left_alone(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = life.fs.store
    put(life.fs, b"a", noise(LARGE, 1))
    count = len(slots(store))
    assert count
    monkeypatch.setattr(store.heap, "_spare", lambda size: False)
    put(life.fs, b"b", noise(200, 2))  # more than is reserved
    assert count < len(slots(store)) < count + 200 - SMALL
    assert get(life.fs, b"b") == noise(200, 2)


def test_a_heap_works_without_direct_access_to_the_disk(memory: Path) -> None:
    """Where a file system knows no way past the page cache, or has only lately learned it."""
    life = Life(memory / "store")
    put(life.fs, b"large", noise(LARGE))
    assert get(life.reopen(), b"large") == noise(LARGE)
    life.end()


# -- as a whole ------------------------------------------------------------------------------------


def test_a_backup_has_it_and_its_holes(life: Life, tmp_path: Path) -> None:
    fs = life.fs
    put(fs, b"a", noise(LARGE, 1))
    put(fs, b"b", noise(LARGE, 2))
    fs.commit()
    fs.unlink(fs.head, 1, b"a")
    fs.commit()
    fs.commit()
    fs.store.backup(tmp_path / "backup")
    copy = Filesystem(Store.open(tmp_path / "backup"), Ticks())
    try:
        assert check(copy.store) == []
        assert get(copy, b"b") == noise(LARGE, 2)
        assert used_bytes(copy.store) < (LARGE + SMALL) * BLOCK_SIZE
        assert file_of(copy.store).stat().st_mode & 0o777 == 0o600
    finally:
        copy.store.close()


def test_a_backup_that_was_killed_is_no_store(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(life.fs, b"a", noise(LARGE, 1))
    life.fs.commit()

    def killed(directory: Path, dest: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(data_file, "copy_heap", killed)
    with pytest.raises(KeyboardInterrupt):
        life.fs.store.backup(tmp_path / "backup")
    assert list((tmp_path / "backup").iterdir()) == []


def test_its_size_is_the_stores(life: Life) -> None:
    fs = life.fs
    put(fs, b"small", b"x")
    fs.commit()
    before = fs.store.size_bytes()
    put(fs, b"large", noise(LARGE))
    fs.commit()
    assert fs.store.size_bytes() >= before + (LARGE - SMALL) * BLOCK_SIZE
    assert dict(fs.store.blocks.sizes())[next(iter(fs.store.blocks.slots()))[0]] == BLOCK_SIZE


def test_few_bytes_that_make_a_whole_block_are_not_counted_out(life: Life) -> None:
    """A block that is zeros but for its end takes its room, and what was charged were few bytes."""
    fs = life.fs
    ino = put(fs, b"sparse")
    for number in range(SMALL, SMALL + 50):
        fs.write(fs.head, ino, (number + 1) * BLOCK_SIZE - 8, b"%8d" % number)
    fs.flush()
    assert len(slots(fs.store)) == 50
    assert fs.store.dirty_bytes > 0


def test_reserved_space_is_counted_as_written(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(life.fs.store._space.disk, "written", told.append)
    put(life.fs, b"large", noise(LARGE))
    assert sum(told) == file_of(life.fs.store).stat().st_size


def test_what_was_set_aside_is_given_back_in_a_pause(life: Life) -> None:
    fs = life.fs
    put(fs, b"large", noise(LARGE))
    fs.commit()
    end = len(slots(fs.store)) * BLOCK_SIZE
    assert file_of(fs.store).stat().st_size > end
    fs.store.heap.trim()
    assert file_of(fs.store).stat().st_size == end
    append(fs, b"large", noise(LARGE, 2))
    assert get(life.reopen(), b"large") == noise(LARGE) + noise(LARGE, 2)


def test_equal_blocks_are_compared_on_their_way(life: Life) -> None:
    data = b"".join(noise(1, number // 2) for number in range(40))
    put(life.fs, b"pairs", noise(SMALL, 99) + data)
    assert len(slots(life.fs.store)) == 20
    assert get(life.reopen(), b"pairs") == noise(SMALL, 99) + data


def test_what_it_takes_is_not_for_the_commit_to_write(life: Life) -> None:
    fs = life.fs
    put(fs, b"large", noise(SMALL))
    before = fs.store.dirty_bytes
    append(fs, b"large", noise(LARGE, 1))
    assert fs.store.dirty_bytes - before < LARGE * 2048


def test_random_files_survive_crashes_and_checkpoints(tmp_path: Path) -> None:
    """Large files made, appended to, edited and removed, with checkpoints that come and go."""
    rng = random.Random(7)
    life = Life(tmp_path / "machine")
    wanted: dict[bytes, bytes] = {}
    committed: dict[bytes, bytes] = {}
    for step in range(150):
        fs = life.fs
        name = b"f%d" % rng.randrange(4)
        action = rng.randrange(9)
        if action < 3:
            data = noise(rng.choice([2.5, 6, 9.7]), step)
            put(fs, name, data)  # in place of what was there
            wanted[name] = data + wanted.get(name, b"")[len(data) :]
        elif action == 3 and name in wanted:
            wanted[name] += noise(rng.choice([1, 3.3]), step)
            append(fs, name, wanted[name][find(fs, fs.head, name).size :])
        elif action == 4 and name in wanted:
            place = rng.randrange(len(wanted[name]) + 1)
            fs.write(fs.head, find(fs, fs.head, name).ino, place, b"x" * 3000)
            data = wanted[name]
            wanted[name] = data[:place] + b"x" * 3000 + data[place + 3000 :]
        elif action == 5 and name in wanted:
            fs.unlink(fs.head, Ino(1), name)
            del wanted[name]
        elif action == 6:
            history.seal(fs, "manual", "", fs.clock())
            if len(found := checkpoints(fs.store)) > 2:
                removal.delete(fs, [rng.choice(found)])
                fs.commit()
                committed = dict(wanted)
        elif action == 7:
            fs.commit()
            committed = dict(wanted)
            if rng.random() < 0.3:
                life.reopen()
        elif action == 8 and rng.random() < 0.3:
            life.crash()
            wanted = dict(committed)
        if action != 8:
            assert {name: get(life.fs, name) for name in wanted} == wanted
    life.end()


def test_repair_keeps_what_is_in_it(tmp_path: Path) -> None:
    life = Life(tmp_path / "store")
    put(life.fs, b"a", noise(LARGE, 1))
    put(life.fs, b"gone", noise(LARGE, 2))
    life.fs.commit()
    life.fs.unlink(life.fs.head, 1, b"gone")
    put(life.fs, b"b", noise(LARGE, 3))
    life.fs.commit()
    _spoil(life.fs.store, 2)
    life.fs.store.close()
    size = file_of(life.fs.store).stat().st_size
    assert repair(tmp_path / "store").left == []
    assert file_of(life.fs.store).stat().st_size >= size
    life.fs = fs = Filesystem(Store.open(tmp_path / "store"), Ticks())
    assert get(fs, b"b") == noise(LARGE, 3)
    with fails(errno.EIO):
        get(fs, b"a")
    assert bytes(fs.read(fs.head, find(fs, fs.head, b"a").ino, 0, BLOCK_SIZE)) == noise(1, 1)
    put(fs, b"c", noise(LARGE, 4))
    assert get(fs, b"b") == noise(LARGE, 3)
    fs.unlink(fs.head, 1, b"a")
    life.end()
