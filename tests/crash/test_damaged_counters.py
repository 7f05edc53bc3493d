"""Counters in which a bit flipped: `check` and `mount` tell, and `check --repair` puts them right.

And a number that is large costs nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from ckptfs import history
from ckptfs.errors import StoreCorrupt
from ckptfs.fs import Filesystem
from ckptfs.history import compression, forks
from ckptfs.model import INO_MAX
from ckptfs.store import Store, check, repair
from ckptfs.store import format as fmt
from ckptfs.store.format import META_NAMES
from ckptfs.store.metadata import COUNTERS
from tests.direct import Ticks, get, put
from tests.support.mounting import HAVE_FUSE, Workspace, scratch

#: Every counter, and the table that it is in.
_ALL = [(b"meta", name) for name in sorted(META_NAMES - {b"format", b"journal"})]
_ALL += [(b"facts", name) for name in COUNTERS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which every counter has been used."""
    path = tmp_path_factory.mktemp("counters") / "store"
    store = Store.create(path)
    fs = Filesystem(store, Ticks())
    fs.signing = fs.authorship.of("me", {"pid": 1, "command": "me", "session": ""})
    for number in range(3):
        put(fs, b"file %d" % number, b"%d" % number)
        history.seal(fs, "manual", "", 0)
    fs.unlink(fs.head, 1, b"file 2")
    compression.compress(fs)
    compression.repack(fs)
    forks.create(fs, "fork")
    fs.commit()
    assert check(store) == []
    store.close()
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def _records(path: Path, table: bytes) -> dict[bytes, bytes]:
    with lmdb.open(str(path), max_dbs=32) as env:
        db = env.open_db(table)
        with env.begin() as txn:
            return {bytes(key): bytes(value) for key, value in txn.cursor(db)}


def _put(path: Path, table: bytes, name: bytes, value: bytes | None) -> None:
    with lmdb.open(str(path), max_dbs=32) as env:
        db = env.open_db(table)
        with env.begin(write=True) as txn:
            if value is None:
                txn.delete(name, db=db)
            else:
                txn.put(name, value, db=db)


def _flips(record: bytes, step: int = 1) -> Iterator[bytes]:
    for bit in range(0, 8 * len(record), step):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


@pytest.mark.parametrize(("table", "name"), _ALL)
def test_every_bit_of_a_counter_is_noticed(path: Path, table: bytes, name: bytes) -> None:
    whole = _records(path, table)[name]
    for flipped in _flips(whole, step=5):
        _put(path, table, name, flipped)
        with pytest.raises(StoreCorrupt, match=name.decode()):
            Store.open(path)


@pytest.mark.parametrize(("table", "name"), _ALL)
def test_a_repair_gives_a_counter_its_number_back(path: Path, table: bytes, name: bytes) -> None:
    whole = _records(path, table)[name]
    _put(path, table, name, next(_flips(whole, step=13)))
    assert repair.repair(path).left == []
    assert _records(path, table)[name] == whole


@pytest.mark.parametrize("damaged", [b"\x55" * 12, None], ids=["damaged", "lost"])
@pytest.mark.parametrize(("table", "name"), _ALL)
def test_a_repair_counts_anew_what_cannot_be_told(
    path: Path, table: bytes, name: bytes, damaged: bytes | None
) -> None:
    _put(path, table, name, damaged)
    assert repair.repair(path).left == []
    store = Store.open(path)
    try:
        fs = Filesystem(store, Ticks())
        following = store.ids.next_ids()
        assert get(fs, b"file 1") == b"1"
        put(fs, b"new", b"new")
        history.seal(fs, "manual", "", 0)
        assert check(store) == []
        assert max(following) < 1 << 20, "it is about as many as there are"
    finally:
        store.close()


@pytest.mark.parametrize("name", sorted(META_NAMES))
def test_a_bit_of_a_name_is_noticed_and_put_right(path: Path, name: bytes) -> None:
    _put(path, b"meta", b"journal", fmt.pack_journal_key(bytes(range(16))))
    before = _records(path, b"meta")
    flipped = name[:-1] + bytes((name[-1] ^ 1,))
    _put(path, b"meta", flipped, before[name])
    _put(path, b"meta", name, None)
    if name == b"format":
        return  # then it is no store
    with pytest.raises(StoreCorrupt, match="record"):
        Store.open(path)
    assert repair.repair(path).left == []
    after = _records(path, b"meta")
    del before[b"journal"]  # nothing is left that needs it
    assert after == before


def test_a_damaged_key_of_the_journal_is_noticed(path: Path) -> None:
    """What was synced is in the journal alone: with a key that is damaged nothing of it would be
    found."""
    store = Store.open(path)
    fs = Filesystem(store, Ticks())
    for number in range(3):
        put(fs, b"synced %d" % number, b"%d" % number)
        fs.sync()
    store.close(commit=False)
    assert (path / "journal").exists()
    key = _records(path, b"meta")[b"journal"]
    data = bytearray((path / "data.mdb").read_bytes())
    flipped = bytes((key[0] ^ 1,)) + key[1:]
    assert data.count(key)
    (path / "data.mdb").write_bytes(data.replace(key, flipped))
    with pytest.raises(StoreCorrupt, match="key of its journal"):
        Store.open(path)
    assert repair.repair(path).left == []
    store = Store.open(path)
    assert get(Filesystem(store, Ticks()), b"synced 2") == b"2"
    store.close()


# -- mounted ---------------------------------------------------------------------------------------


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")
def test_a_flipped_counter_is_not_mounted_and_repaired_by_the_cli() -> None:
    with scratch() as base:
        workspace = Workspace(base, "--no-write-back")
        workspace.mount()
        (workspace.path / "file").write_text("1")
        workspace.umount()
        whole = _records(workspace.store, b"meta")[b"next_ino"]
        _put(workspace.store, b"meta", b"next_ino", whole[:3] + b"\x40" + whole[4:])
        checked = workspace.cli("check", "--deep", "--store", workspace.store)
        assert checked.returncode == 3 and "next_ino" in checked.stdout
        assert "next_ino" in workspace.try_to_mount().stderr
        workspace.cli("check", "--repair", "--store", workspace.store)
        workspace.mount()
        (workspace.path / "new").write_text("2")
        assert (workspace.path / "file").read_text() == "1"
        workspace.umount()


@pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")
def test_large_inode_numbers_take_no_memory() -> None:
    with scratch() as base:
        workspace = Workspace(base, "--no-write-back")
        workspace.mount()
        workspace.umount()
        _put(workspace.store, b"meta", b"next_ino", fmt.pack_number(INO_MAX - 1_000))
        workspace.mount()
        assert workspace.pid is not None
        before = _resident_kib(workspace.pid)
        for number in range(100):
            (workspace.path / f"file {number}").write_text("1")
        assert _resident_kib(workspace.pid) - before < 64 << 10
        workspace.umount()
