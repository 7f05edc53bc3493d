"""The journal: what was synced is there after a crash, and nothing else is."""

from __future__ import annotations

import errno
import mmap
import os
import random
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from ckptfs import connect, errors, history
from ckptfs.fs import Filesystem
from ckptfs.history import removal
from ckptfs.model import BLOCK_SIZE, Attributes
from ckptfs.service import Service
from ckptfs.store import Store, blocks, check, compaction, journal, journal_format, repair
from ckptfs.store.blocks import Buffer
from ckptfs.store.disk_space import StoreSpace
from ckptfs.store.format import TABLES, dirent_entity
from tests.direct import Life, Ticks, crashed, find, get, new_filesystem, put, shown

_STEP = journal_format.STEP


def synced(fs: Filesystem, *names: bytes) -> None:
    """Make a file at a time, and sync each. The first sync is a commit."""
    for name in names:
        put(fs, name, name * 100)
        fs.sync()


def file_of(store: Store) -> Path:
    return store.path / journal_format.FILE


def commits(fs: Filesystem) -> int:
    return int(fs.store._env.info()["last_txnid"])


def names(fs: Filesystem) -> list[bytes]:
    return sorted(name for name, _ in fs.entries(fs.head, 1))


def test_a_sync_after_a_sync_is_no_commit_and_survives_a_crash(life: Life) -> None:
    fs = life.fs
    synced(fs, b"a")
    assert not file_of(fs.store).exists(), "who syncs once needs no journal"
    before = commits(fs)
    synced(fs, b"b", b"c")
    assert commits(fs) == before
    put(fs, b"not synced", b"x")
    after = life.crash()
    assert names(after) == [b"a", b"b", b"c"]
    assert get(after, b"c") == b"c" * 100


def test_verbs_that_follow_each_other_are_no_commits_and_survive_a_crash(life: Life) -> None:
    service = Service(life.fs)
    put(life.fs, b"a", b"1")
    first = service.save("first")
    before = commits(life.fs)
    put(life.fs, b"b", b"2")
    second = service.save("second")
    put(life.fs, b"c", b"3")
    restored = service.restore(str(first.id))
    service.delete_named([str(second.id)])
    assert restored is not None
    assert commits(life.fs) == before
    after = life.crash()
    assert names(after) == [b"a"]
    assert [item.id for item in history.checkpoints(after.store)] == [first.id, restored.before.id]


def test_a_sync_without_a_change_writes_nothing(memory: Path) -> None:
    with new_filesystem(memory / "store") as fs:
        synced(fs, b"a", b"b")
        before = file_of(fs.store).read_bytes()
        for _ in range(3):
            fs.sync()
        assert file_of(fs.store).read_bytes() == before


def test_an_orderly_end_leaves_no_journal(memory: Path) -> None:
    fs = Filesystem(Store.create(memory / "store"), Ticks())
    synced(fs, b"a", b"b")
    assert file_of(fs.store).exists()
    fs.store.close()
    assert not file_of(fs.store).exists()


def test_no_other_user_can_read_it(memory: Path) -> None:
    with new_filesystem(memory / "store") as fs:
        synced(fs, b"a", b"b")
        assert file_of(fs.store).stat().st_mode & 0o777 == 0o600


def test_what_follows_an_earlier_commit_is_passed_over(life: Life) -> None:
    fs = life.fs
    synced(fs, b"a", b"b", b"c")
    fs.unlink(fs.head, 1, b"b")
    fs.commit()
    after = life.crash()
    assert names(after) == [b"a", b"c"]


def test_the_next_commit_begins_it_anew(life: Life) -> None:
    fs = life.fs
    synced(fs, b"a", b"b", b"c", b"d")
    fs.commit()
    synced(fs, b"e")
    after = life.crash()
    assert names(after) == [b"a", b"b", b"c", b"d", b"e"]


def test_after_a_while_without_a_sync_the_first_is_a_commit(memory: Path) -> None:
    with new_filesystem(memory / "store") as fs:
        synced(fs, b"a", b"b")
        for name in (b"c", b"d"):
            put(fs, name, b"x")
            fs.commit()
        before = commits(fs)
        synced(fs, b"e")
        assert commits(fs) == before + 1


def test_more_than_a_batch_can_hold_is_committed(life: Life) -> None:
    fs = life.fs
    synced(fs, b"a", b"b")
    before = commits(fs)
    many = [b"m%02d" % number for number in range(20)]
    for name in many:
        put(fs, name, os.urandom(60_000))
    fs.sync()
    assert commits(fs) == before + 1
    synced(fs, b"c")
    assert commits(fs) == before + 1
    after = life.crash()
    assert names(after) == [b"a", b"b", b"c", *many]


def test_a_full_journal_is_followed_by_a_commit(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SIZE_MAX", 2 << 20)
    fs = life.fs
    synced(fs, b"a")
    before = commits(fs)
    for number in range(100):
        put(fs, b"%d" % number, os.urandom(50_000))
        fs.sync()
    assert before < commits(fs) < before + 10
    assert file_of(fs.store).stat().st_size <= 2 << 20
    shows = shown(fs, fs.head)
    after = life.crash()
    assert shown(after, after.head) == shows


def test_without_a_place_for_it_every_sync_is_a_commit(memory: Path) -> None:
    with new_filesystem(memory / "store") as fs:
        file_of(fs.store).mkdir()
        before = commits(fs)
        synced(fs, b"a", b"b", b"c")
        assert commits(fs) == before + 3
        file_of(fs.store).rmdir()


def test_a_sync_after_a_failed_commit_is_refused(memory: Path) -> None:
    fs = Filesystem(Store.create(memory / "store"), Ticks())
    synced(fs, b"a", b"b")
    put(fs, b"c", b"c")
    fs.flush()
    fs.store.fail()
    with pytest.raises(errors.StoreUnwritten):
        fs.sync()
    after = crashed(fs)
    assert names(after) == [b"a", b"b"]
    after.store.close()


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("plenty", [True, False])
def test_what_was_synced_outlives_a_commit_that_fails(
    memory: Path, monkeypatch: pytest.MonkeyPatch, plenty: bool
) -> None:
    fs = Filesystem(Store.create(memory / "store"), Ticks())
    put(fs, b"large", os.urandom(3 << 20))
    synced(fs, b"a", b"b")
    put(fs, b"more", os.urandom(3 << 20))
    monkeypatch.setattr(StoreSpace, "has_plenty", lambda space, size: plenty)
    with (
        no_file_longer_than((fs.store.path / "data.mdb").stat().st_size),
        pytest.raises(errors.StoreError),
    ):
        fs.sync()
    after = crashed(fs)
    assert names(after) == [b"a", b"b", b"large"]
    assert check(after.store) == []
    after.store.close()


# -- parts of blocks -------------------------------------------------------------------------------


def large(fs: Filesystem) -> int:
    """A file of several blocks that stands in a commit, with a journal from here on."""
    put(fs, b"large", os.urandom(3 * BLOCK_SIZE))
    synced(fs, b"a", b"b")
    return find(fs, fs.head, b"large").ino


def edited(fs: Filesystem, ino: int, *places: int) -> int:
    """Write a few bytes at each place, and sync; return how much longer the journal is for it."""
    before = fs.store._journal._end
    for place in places:
        fs.write(fs.head, ino, place, os.urandom(50))
    fs.sync()
    return fs.store._journal._end - before


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([100], id="within a block"),
        pytest.param([0, BLOCK_SIZE - 50], id="at both ends"),
        pytest.param([100, BLOCK_SIZE + 100, 200], id="a block twice"),
        pytest.param([3 * BLOCK_SIZE], id="behind the end"),
        pytest.param([3 * BLOCK_SIZE + 2_500], id="further behind the end"),
    ],
)
def test_edits_of_blocks_survive_a_crash(life: Life, places: list[int]) -> None:
    fs = life.fs
    ino = large(fs)
    for _ in range(5):
        edited(fs, ino, *places)
    before = get(fs, b"large")
    assert get(life.crash(), b"large") == before


def test_of_a_block_only_the_edit_is_written(memory: Path) -> None:
    with new_filesystem(memory / "store") as fs:
        ino = large(fs)
        assert edited(fs, ino, 100) == _STEP
        assert edited(fs, ino, 100, BLOCK_SIZE + 100) == _STEP
        fs.commit()
        edited(fs, ino, 100)
        assert edited(fs, ino, 200) == _STEP


def test_a_block_that_others_have_is_told_by_as_well(life: Life) -> None:
    fs = life.fs
    data = os.urandom(BLOCK_SIZE)
    for name in (b"one", b"two"):
        put(fs, name, data)
    synced(fs, b"a", b"b")
    one, two = (find(fs, fs.head, name).ino for name in (b"one", b"two"))
    assert edited(fs, one, 10) == edited(fs, two, 20) == _STEP
    fs.unlink(fs.head, 1, b"one")
    fs.sync()
    before = get(fs, b"two")
    after = life.crash()
    assert get(after, b"two") == before
    assert check(after.store) == []


def key_of_the_only_block(fs: Filesystem) -> bytes:
    fs.flush()
    (key,) = fs.store.blocks.keys()
    return key


def test_a_block_that_was_stored_in_another_way_meanwhile_is_not_told_by(life: Life) -> None:
    fs = life.fs
    synced(fs, b"a", b"b")
    ino = put(fs, b"file", b"to be compressed " * 3_000)
    fs.sync()
    fs.store.blocks.encode(key_of_the_only_block(fs))
    fs.sync()
    for place in (100, 200):
        edited(fs, ino, place)
    before = get(fs, b"file")
    after = life.crash()
    assert get(after, b"file") == before
    assert check(after.store, deep=True) == []


def test_a_block_whose_digest_another_has_is_told_with_its_own_seed(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = life.fs
    digest = fs.store.blocks.digest

    def one_for_all(data: Buffer, seed: int) -> bytes:
        return digest(data, seed) if seed else b"the same for all"

    fs.store.blocks.digest = one_for_all
    monkeypatch.setattr(blocks, "xxh3_128_digest", one_for_all)
    synced(fs, b"a", b"b")
    ino = put(fs, b"file", os.urandom(10_000))
    fs.sync()
    edited(fs, ino, 100)
    before = get(fs, b"file")
    after = life.crash()
    assert get(after, b"file") == before
    after.unlink(after.head, 1, b"file")


def test_a_change_that_is_listed_is_not_listed_again(memory: Path) -> None:
    with new_filesystem(memory / "store") as fs:
        ino = large(fs)
        edited(fs, ino, 100)
        place = fs.store._journal._end
        edited(fs, ino, 200)
        batch = journal_format._batch_at(
            memoryview(file_of(fs.store).read_bytes()), place, fs.store._journal.key
        )
        assert batch is not None
        tables = {TABLES[table] for table, _, _ in journal_format._changes(batch.body, len(TABLES))}
        assert tables == {b"inodes", b"pieces"}


# -- damage ----------------------------------------------------------------------------------------


def damaged(memory: Path, damage: Callable[[bytearray], None]) -> Path:
    """A store that was not closed, with four batches in its journal, changed like that."""
    fs = Filesystem(Store.create(memory / "store"), Ticks())
    synced(fs, b"a", b"b", b"c", b"d", b"e")
    fs.store.close(commit=False)
    file = file_of(fs.store)
    data = bytearray(file.read_bytes())
    damage(data)
    file.write_bytes(data)
    return fs.store.path


def torn(data: bytearray) -> None:
    data[3 * _STEP + 100 : 4 * _STEP] = bytes(_STEP - 100)


def cut_short(data: bytearray) -> None:
    del data[3 * _STEP + 20 :]


def emptied(data: bytearray) -> None:
    data.clear()


@pytest.mark.parametrize(
    ("damage", "left"), [(torn, b"abcd"), (cut_short, b"abcd"), (emptied, b"a")]
)
def test_a_batch_that_was_not_written_whole_is_none(
    memory: Path, damage: Callable[[bytearray], None], left: bytes
) -> None:
    fs = Filesystem(Store.open(damaged(memory, damage)), Ticks())
    assert b"".join(names(fs)) == left
    assert check(fs.store) == []
    fs.store.close()


def flipped(data: bytearray) -> None:
    data[_STEP + 100] ^= 1


def test_a_damaged_batch_before_others_is_told(memory: Path) -> None:
    path = damaged(memory, flipped)
    data = (path / "data.mdb").read_bytes()
    with pytest.raises(errors.StoreCorrupt, match="journal"):
        Store.open(path)
    assert (path / "data.mdb").read_bytes() == data
    repaired = repair.repair(path)
    assert repaired.kept_as.with_suffix(".journal").exists()
    fs = Filesystem(Store.open(path), Ticks())
    assert names(fs) == [b"a", b"b"], "what came before the damage"
    assert check(fs.store) == []
    fs.store.close()


def foreign(data: bytearray, change: journal_format.Change) -> None:
    """A second batch that is whole by its digest, with such a change."""
    with mmap.mmap(-1, 2 * _STEP) as buffer:
        (follows,) = struct.unpack_from("<Q", data, 8)
        length = journal_format.pack(buffer, b"k" * 16, follows, 1, [change])
        data[_STEP : _STEP + length] = buffer[:length]
        data[_STEP + length :] = bytes(len(data) - _STEP - length)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ((200, b"key", b"value"), "its journal has records that make no sense"),
        (
            (TABLES.index(b"blocks"), b"key", journal_format.Delta(b"no such block", 2, b"x")),
            "its journal has a delta of a record that is not there",
        ),
    ],
)
def test_changes_that_cannot_be_made_are_told(
    memory: Path, monkeypatch: pytest.MonkeyPatch, change: journal_format.Change, fault: str
) -> None:
    monkeypatch.setattr(journal, "new_key", lambda: b"k" * 16)
    path = damaged(memory, lambda data: foreign(data, change))
    with pytest.raises(errors.StoreCorrupt, match="journal"):
        Store.open(path)
    repaired = repair.repair(path)
    assert fault in repaired.unreadable
    fs = Filesystem(Store.open(path), Ticks())
    assert names(fs) == [b"a", b"b"]
    fs.store.close()


def test_bytes_of_a_file_that_look_like_a_batch_are_none(memory: Path) -> None:
    """A commit leaves in the file what was synced before it; anybody may have written that."""
    fs = Filesystem(Store.create(memory / "store"), Ticks())
    synced(fs, b"a", b"b")
    start = 9_000
    for name in (b"1", b"2"):
        fs.commit()
        synced(fs, b"-")
        fs.unlink(fs.head, 1, b"-")
        fs.commit()
        crafted = _crafted(fs)
        put(fs, name, os.urandom(start) + crafted + os.urandom(50_000))
        fs.sync()
        at = file_of(fs.store).read_bytes().index(crafted)
        start += -at % _STEP  # where a batch could begin, the second time
    assert at == 3 * _STEP
    fs.commit()
    put(fs, b"c", os.urandom(2 * _STEP))
    fs.sync()
    after = crashed(fs)
    assert names(after) == [b"1", b"2", b"a", b"b", b"c"]
    after.store.close()


def _crafted(fs: Filesystem) -> bytes:
    """What would remove a file if it were the second batch after the next commit."""
    gone = [(TABLES.index(b"dirents"), dirent_entity(1, b"a") + fs.head.suffix, None)]
    with mmap.mmap(-1, 2 * _STEP) as buffer:
        journal_format.pack(buffer, bytes(16), commits(fs) + 1, 1, gone)
        return bytes(buffer[:200])


def test_a_data_file_that_is_older_than_its_journal_is_told(memory: Path) -> None:
    """As by a disk that says that it wrote what it did not."""
    fs = Filesystem(Store.create(memory / "store"), Ticks())
    synced(fs, b"a", b"b")
    data = fs.store.path / "data.mdb"
    older = data.read_bytes()
    fs.commit()
    synced(fs, b"c")
    fs.store.close(commit=False)
    page = max((0, 1), key=lambda n: _commit_of(data.read_bytes(), n)) * _STEP
    data.write_bytes(
        data.read_bytes()[:page] + older[page : page + _STEP] + data.read_bytes()[page + _STEP :]
    )
    with pytest.raises(errors.StoreCorrupt, match="older than its journal"):
        Store.open(fs.store.path)


def _commit_of(data: bytes, page: int) -> int:
    """The number of the commit in one of LMDB's two first pages."""
    (number,) = struct.unpack_from("<Q", data, page * _STEP + 144)
    return int(number)


def test_a_repair_that_is_interrupted_leaves_no_journal_to_the_new_file(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = damaged(memory, lambda data: None)
    before = (path / journal_format.FILE).read_bytes()
    repair.repair(path)
    (path / journal_format.FILE).write_bytes(before)
    new = bytearray(before)
    with lmdb.open(os.fspath(path), readonly=True, lock=False, max_dbs=64) as env:
        struct.pack_into("<Q", new, 8, env.info()["last_txnid"])
    (path / journal_format.FILE).write_bytes(new)
    fs = Filesystem(Store.open(path), Ticks())
    assert names(fs) == [b"a", b"b", b"c", b"d", b"e"]
    assert check(fs.store) == []
    fs.store.close()


def test_a_journal_that_cannot_be_read_is_told_and_the_store_let_go(memory: Path) -> None:
    path = damaged(memory, lambda data: None)
    (path / journal_format.FILE).rename(path / "aside")
    (path / journal_format.FILE).mkdir()
    for _ in range(2):
        with pytest.raises(errors.StoreUntrusted, match="directory"):
            Store.open(path)
    (path / journal_format.FILE).rmdir()
    (path / "aside").rename(path / journal_format.FILE)
    fs = Filesystem(Store.open(path), Ticks())
    assert names(fs) == [b"a", b"b", b"c", b"d", b"e"]
    fs.store.close()


def test_forgetting_a_store_takes_its_journal(memory: Path) -> None:
    path = damaged(memory, lambda data: None)
    assert connect.remove_store(path) == []
    assert not path.exists()


def test_a_compaction_that_cannot_remove_it_changes_nothing(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = life.fs
    synced(fs, b"a", b"b")

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(compaction, "sync", fail)
        with pytest.raises(errors.CompactFailed):
            fs.store.compact()
    synced(fs, b"c", b"d")
    assert names(life.crash()) == [b"a", b"b", b"c", b"d"]


def test_after_a_commit_that_ends_lmdb_nothing_is_accepted(memory: Path) -> None:
    """The page that says what is current could not be written."""
    fs = Filesystem(Store.create(memory / "store"), Ticks())
    synced(fs, b"a", b"b")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, _of_the_first_pages(fs.store))
    os.close(full)
    put(fs, b"c", b"c")
    with pytest.raises(errors.StoreError):
        fs.commit()
    for accept in (fs.store.note, fs.store.charge):
        with pytest.raises(OSError, match=r"Cannot|damaged|full"):
            accept()
    for end in (fs.store.sync, fs.store.close):
        with pytest.raises(errors.StoreError):
            end()
    after = Filesystem(Store.open(fs.store.path), Ticks())
    assert names(after) == [b"a", b"b"]
    after.store.close()


def _of_the_first_pages(store: Store) -> int:
    """LMDB's descriptor for them, which waits for the disk."""
    for link in Path("/proc/self/fd").iterdir():
        if os.readlink(link) == os.fspath(store.path / "data.mdb"):
            flags = next(
                line
                for line in Path(f"/proc/self/fdinfo/{link.name}").read_text().splitlines()
                if line.startswith("flags")
            )
            if int(flags.split()[1], 8) & os.O_DSYNC:
                return int(link.name)
    raise AssertionError("LMDB has no such descriptor")


def test_a_journal_that_others_may_write_to_is_refused(memory: Path) -> None:
    path = damaged(memory, lambda data: None)
    (path / journal_format.FILE).chmod(0o660)
    with pytest.raises(errors.StoreExposed):
        Store.open(path)


def test_a_repair_takes_what_was_synced(memory: Path) -> None:
    path = damaged(memory, lambda data: None)
    repair.repair(path)
    fs = Filesystem(Store.open(path), Ticks())
    assert names(fs) == [b"a", b"b", b"c", b"d", b"e"]
    fs.store.close()


# -- bytes that must go ----------------------------------------------------------------------------


def test_what_was_purged_is_not_in_it(life: Life) -> None:
    secret = b"a secret that was synced"
    fs = life.fs
    synced(fs, b"a", b"b")
    put(fs, b"key", secret)
    fs.sync()
    assert secret in file_of(fs.store).read_bytes()
    Service(fs).purge([b"key"])
    assert not any(secret in file.read_bytes() for file in fs.store.path.iterdir())
    before = commits(fs)
    synced(fs, b"c", b"d")
    assert commits(fs) == before + 1
    after = life.crash()
    assert names(after) == [b"a", b"b", b"c", b"d"]


# -- every change of every table -------------------------------------------------------------------


def records(path: Path) -> dict[bytes, list[tuple[bytes, bytes]]]:
    """Everything in a store's file that nobody has open."""
    with lmdb.open(os.fspath(path), max_dbs=len(TABLES), readonly=True, lock=False) as env:
        tables = {name: env.open_db(name, create=False) for name in TABLES}
        with env.begin() as txn:
            return {name: list(txn.cursor(db)) for name, db in tables.items()}


class Work:
    """Changes of all kinds."""

    def __init__(self, fs: Filesystem, seed: int) -> None:
        self.fs = fs
        self.service = Service(fs)
        self.random = random.Random(seed)

    def step(self) -> None:
        names = "write write overwrite overwrite_more cut remove rename save back look".split()
        getattr(self, self.random.choice(names))()

    def some(self) -> bytes:
        found = names(self.fs)
        return self.random.choice(found) if found else b""

    def write(self) -> None:
        name = b"f%d" % self.random.randrange(20)
        if name in names(self.fs):
            self.fs.unlink(self.fs.head, 1, name)
        put(self.fs, name, self.random.randbytes(self.random.choice([5, 1_500, 9_000, 150_000])))

    def overwrite(self) -> None:
        if name := self.some():
            ino = find(self.fs, self.fs.head, name).ino
            offset = self.random.randrange(100_000)
            self.fs.write(self.fs.head, ino, offset, self.random.randbytes(4096))

    def overwrite_more(self) -> None:
        """As a database does, so that the journal has several pieces of one block."""
        if name := self.some():
            ino = find(self.fs, self.fs.head, name).ino
            for _ in range(self.random.randint(1, 6)):
                offset = self.random.randrange(3) * BLOCK_SIZE + self.random.randrange(9_000)
                self.fs.write(self.fs.head, ino, offset, self.random.randbytes(700))
                self.fs.sync()

    def cut(self) -> None:
        if name := self.some():
            size = self.random.choice([0, 4_000, 70_000])
            self.fs.setattr(
                self.fs.head, find(self.fs, self.fs.head, name).ino, Attributes(size=size)
            )

    def look(self) -> None:
        """Which puts what waits into the transaction, in the middle of everything."""
        self.fs.flush()

    def remove(self) -> None:
        if name := self.some():
            self.fs.unlink(self.fs.head, 1, name)

    def rename(self) -> None:
        if name := self.some():
            self.fs.rename(self.fs.head, 1, name, 1, b"r%d" % self.random.randrange(9))

    def save(self) -> None:
        self.service.save("", tag=f"t{self.random.randrange(10**9)}")

    def back(self) -> None:
        if found := history.checkpoints(self.fs.store):
            history.restore(self.fs, self.random.choice(found))
            if self.random.random() < 0.3:
                removal.delete(self.fs, [self.random.choice(found)])


@pytest.mark.parametrize("seed", range(12))
def test_a_store_is_the_same_by_its_journal_as_by_its_commits(memory: Path, seed: int) -> None:
    """At many a sync, what a crash would leave is opened, and compared with what a commit makes."""
    with new_filesystem(memory / "store") as fs:
        work = Work(fs, seed)
        compared = 0
        for _ in range(60):
            for _ in range(work.random.randint(1, 3)):
                work.step()
            before = commits(fs)
            fs.sync()
            if commits(fs) != before or not fs.store.dirty or work.random.random() < 0.5:
                continue  # or the next sync adds another batch
            left, whole = memory / "left", memory / "whole"
            for place in (left, whole):
                shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(fs.store.path, left)
            fs.store.commit()
            shutil.copytree(fs.store.path, whole)
            Store.open(left).close()
            assert records(left) == records(whole)
            compared += 1
            fs.store._journal.want()  # as if the next sync followed at once
            put(fs, b"more", b"")
            fs.unlink(fs.head, 1, b"more")
            fs.commit()
        assert compared > 5
