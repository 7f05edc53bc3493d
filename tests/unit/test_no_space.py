"""A full map and a full disk: ENOSPC, and nothing lost.

What was acknowledged stays, can be read and removed, and is committed; what was removed makes room.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from ckptfs.errors import StoreCorrupt, StoreFull, StoreUnwritten
from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, Attributes
from ckptfs.store import Store, check, disk_space
from ckptfs.store.directory import commit_error
from tests.direct import find, get, put
from tests.support.errnos import fails
from tests.support.mounting import scratch

MIB = 1 << 20
#: A few MiB beyond what the store holds in reserve.
SMALL = 24 * MIB
#: Bytes in an inode's leaf, and whole blocks.
SIZES = [1_500, BLOCK_SIZE]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a small disk")


class Full:
    """A file system filled with files of one size until the store refuses; ``files`` are those
    that were accepted."""

    def __init__(self, path: Path, **options: int) -> None:
        self._options = options
        self.fs = Filesystem(Store.create(path, **options))
        self.files: dict[bytes, bytes] = {}

    def fill(self, size: int, *, commit_every: int = 100, tag: bytes = b"file") -> int:
        """Add files until there is no space; return how many there was space for."""
        for number in range(1_000_000):
            name = b"%s %d" % (tag, number)
            data = os.urandom(size)
            try:
                put(self.fs, name, data)
            except OSError as full:
                assert full.errno == errno.ENOSPC
                self._discard(name)
                return number
            self.files[name] = data
            if number % commit_every == 0:
                self.fs.commit()
        raise AssertionError("the disk never filled")

    def _discard(self, name: bytes) -> None:
        """The file may have been made before its bytes were refused."""
        if self.fs.seek(self.fs.head, 1, name) is not None:
            self.remove(name)

    def remove(self, name: bytes) -> None:
        self.fs.unlink(self.fs.head, 1, name)
        self.files.pop(name, None)

    def assert_whole(self) -> None:
        """Everything accepted reads back, is committed, and survives a crash."""
        assert self._wrong() == []
        self.fs.commit()
        assert check(self.fs.store) == []
        self.fs.store.close(commit=False)
        self.fs = Filesystem(Store.open(self.fs.store.path, **self._options))
        assert self._wrong() == []
        names = {name for name, _ in self.fs.entries(self.fs.head, 1)}
        assert names == set(self.files)

    def _wrong(self) -> list[bytes]:
        return [name for name, data in self.files.items() if get(self.fs, name) != data]


Mount = Callable[..., Full]


@pytest.fixture
def small_map(memory: Path) -> Iterator[Full]:
    full = Full(memory / "store", map_size=SMALL)
    yield full
    full.fs.store.close(commit=False)


@pytest.fixture
def small_disk() -> Iterator[Mount]:
    with scratch() as base:
        made: list[Full] = []

        def mount(size: int = SMALL) -> Full:
            point = base / "disk"
            point.mkdir()
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", point], check=True
            )
            made.append(Full(point / "store"))
            return made[-1]

        yield mount
        for full in made:
            full.fs.store.close(commit=False)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("commit_every", [50, 1_000_000], ids=["commits", "one commit"])
def test_a_full_map_keeps_what_it_accepted(small_map: Full, size: int, commit_every: int) -> None:
    assert small_map.fill(size, commit_every=commit_every) > 20
    small_map.assert_whole()


def test_a_full_map_has_room_again_after_removing(small_map: Full) -> None:
    _make_room_and_fill_again(small_map)


@AS_ROOT
@pytest.mark.parametrize("size", SIZES)
def test_a_full_disk_keeps_what_it_accepted(small_disk: Mount, size: int) -> None:
    full = small_disk()
    assert full.fill(size) > 20
    full.assert_whole()


@AS_ROOT
def test_a_full_disk_has_room_again_after_removing(small_disk: Mount) -> None:
    _make_room_and_fill_again(small_disk())


def _make_room_and_fill_again(full: Full) -> None:
    fitted = full.fill(BLOCK_SIZE)
    for name in list(full.files)[::2]:
        full.remove(name)
    full.fs.commit()
    # LMDB uses the pages of a transaction again from the second one after it.
    full.fs.setattr(full.fs.head, 1, Attributes(mode=0o700))
    full.fs.commit()
    assert full.fill(BLOCK_SIZE, tag=b"again") >= fitted // 4
    full.assert_whole()


@AS_ROOT
def test_a_disk_smaller_than_the_reserve_takes_nothing(small_disk: Mount) -> None:
    full = small_disk(8 * MIB)
    with fails(errno.ENOSPC):
        put(full.fs, b"file", b"data")
    with fails(errno.ENOSPC):
        full.fs.mkdir(full.fs.head, 1, b"dir", 0o755, 0, 0)
    full.assert_whole()


@AS_ROOT
def test_what_takes_no_space_works_on_a_full_disk(small_disk: Mount) -> None:
    """Changing attributes, cutting, renaming over, removing; each with a commit that holds."""
    full = small_disk()
    fs = full.fs
    full.fill(BLOCK_SIZE)
    names = list(full.files)
    for name in names:
        fs.setattr(fs.head, find(fs, fs.head, name).ino, Attributes(mode=0o600, mtime_ns=1))
    fs.commit()
    for name in names[:10]:
        fs.setattr(fs.head, find(fs, fs.head, name).ino, Attributes(size=100))
        full.files[name] = full.files[name][:100]
        fs.commit()
    for name in names[10:20]:
        full.remove(name)
        fs.commit()
    full.assert_whole()
    fs = full.fs
    assert {find(fs, fs.head, name).mode & 0o777 for name in full.files} == {0o600}


@AS_ROOT
def test_a_refused_write_changes_nothing(small_disk: Mount) -> None:
    full = small_disk()
    fs = full.fs
    ino = put(fs, b"file", b"before")
    full.files[b"file"] = b"before"
    full.fill(BLOCK_SIZE)
    full.fill(BLOCK_SIZE // 4, tag=b"more")
    before = fs.getattr(fs.head, ino)
    with fails(errno.ENOSPC):
        fs.write(fs.head, ino, 3, bytes(MIB))
    with fails(errno.ENOSPC):
        fs.setxattr(fs.head, ino, b"user.a", bytes(60_000))
    assert fs.getattr(fs.head, ino) == before
    full.assert_whole()


def test_a_refused_write_does_not_stand_in_the_way_of_a_small_one(small_map: Full) -> None:
    fs = small_map.fs
    ino = put(fs, b"file", b"before")
    for _ in range(3):
        with fails(errno.ENOSPC):
            fs.write(fs.head, ino, 0, bytes(16 * MIB))
    fs.write(fs.head, ino, 0, b"after!")
    small_map.files[b"file"] = b"after!"
    small_map.assert_whole()


@pytest.mark.parametrize("synced", [False, True], ids=["unsynced", "synced"])
def test_short_writes_all_over_a_large_file_are_kept(memory: Path, synced: bool) -> None:
    """Each of them stores a block anew. Commits come when the store feels pressed, as the daemon
    makes them, and a page that one gave up can be used again by the one after the next."""
    full = Full(memory / "store", map_size=48 * MIB)
    data = bytearray(os.urandom(16 * MIB))
    ino = put(full.fs, b"file", bytes(data))
    full.fs.commit()
    for number in range(3 * len(data) // BLOCK_SIZE):
        if full.fs.store.pressed:
            full.fs.commit()
        place = number * (BLOCK_SIZE + 13) % len(data)
        full.fs.write(full.fs.head, ino, place, b"x")
        data[place : place + 1] = b"x"
        if synced:
            full.fs.sync()
    full.files[b"file"] = bytes(data)
    full.assert_whole()
    full.fs.store.close(commit=False)


@AS_ROOT
@pytest.mark.deep
def test_very_many_small_files_are_removed_from_a_full_disk(
    small_disk: Mount,
) -> None:
    """A removal writes too: every page of the tree that it touches is copied. So commits come when
    the store feels pressed, as the daemon makes them."""
    full = small_disk(48 * MIB)
    full.fill(100, commit_every=200)
    for name in list(full.files)[::2]:
        full.remove(name)
        if full.fs.store.pressed:
            full.fs.commit()
    full.assert_whole()


def test_a_quota_is_told_as_a_full_disk(memory: Path) -> None:
    """It is not known beforehand: the commit that meets it says so."""
    failed = lmdb.Error("mdb_txn_commit: whatever it says")
    failed.code = errno.EDQUOT
    assert isinstance(commit_error(memory, failed), StoreFull)
    assert isinstance(commit_error(memory, OSError(errno.EDQUOT, "of the heap")), StoreFull)


def test_a_disk_that_fails_is_not_told_as_damage(memory: Path) -> None:
    for number in (errno.EIO, errno.EFBIG, errno.EROFS):
        failed = lmdb.Error(f"mdb_txn_commit: {os.strerror(number)}")
        told = commit_error(memory, failed)
        assert isinstance(told, StoreUnwritten) and "damaged" not in told.message
    assert isinstance(commit_error(memory, lmdb.CorruptedError("page")), StoreCorrupt)
    # Also where the directory is gone, so that nobody can say how full its disk is.
    assert isinstance(commit_error(memory / "gone", failed), StoreUnwritten)


@AS_ROOT
def test_after_a_commit_that_failed_there_are_no_others(
    small_disk: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reserve is there so that this never happens; without it, nothing half done is stored."""
    full = small_disk()
    full.files[b"kept"] = b"before"
    put(full.fs, b"kept", b"before")
    full.fs.commit()
    monkeypatch.setattr(disk_space, "RESERVE", -(1 << 40))
    monkeypatch.setattr(disk_space, "_COMMIT_LEAVES", -(1 << 40))
    full.fs.store.commit()
    full.fs.store.charge()
    full.fs.store.commit()
    for number in range(SMALL // MIB + 8):
        put(full.fs, b"lost %d" % number, os.urandom(MIB))
    with pytest.raises(StoreFull):
        full.fs.commit()
    with pytest.raises(StoreFull):
        full.fs.store.commit()
    with fails(errno.EIO):
        full.fs.store.note()
    with fails(errno.EIO):
        put(full.fs, b"too late", b"x")
    full.fs.store.close(commit=False)
    monkeypatch.undo()
    full.fs = Filesystem(Store.open(full.fs.store.path))
    full.assert_whole()


@AS_ROOT
def test_what_was_deleted_is_ripe_after_one_commit(small_disk: Mount) -> None:
    """And then nothing more has to be committed before the next operation."""
    full = small_disk(64 * MIB)
    for number in range(24):
        put(full.fs, b"%d" % number, os.urandom(MIB))
    full.fs.commit()
    for number in range(24):
        full.remove(b"%d" % number)
    assert full.fs.store.pressed
    full.fs.commit()
    assert full.fs.store.reusable_bytes() > 16 * MIB
    assert not full.fs.store.pressed


def test_where_there_is_room_free_pages_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Full(tmp_path / "store")
    monkeypatch.setattr(disk_space, "_SCARCE", 0)
    monkeypatch.delattr(disk_space, "Pages")
    put(full.fs, b"file", os.urandom(MIB))
    full.fs.commit()
    full.fs.unlink(full.fs.head, 1, b"file")
    full.fs.commit()
    full.fs.store.close()
