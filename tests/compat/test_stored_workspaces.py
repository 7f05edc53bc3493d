"""Workspaces of every released format: they open, show what they showed, and can be compacted.
Those of formats that were never released are refused by name."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from ckptfs import errors
from ckptfs.fs import Filesystem
from ckptfs.history import checkpoints, removal, seal
from ckptfs.model import BLOCK_SIZE
from ckptfs.service import Service
from ckptfs.store import Store, check, repair
from ckptfs.store.format import FORMAT_VERSION, UNRELEASED_FORMATS, pack_u32, unpack_u32
from tests.compat.history import State, states
from tests.direct import Ticks, get, put, shown

HERE = Path(__file__).parent
STORED = sorted(HERE.glob("format-*.tar.xz"))


def unpacked(stored: Path, path: Path) -> Path:
    path.mkdir(mode=0o700)
    with tarfile.open(stored) as files:
        for name in files.getnames():
            file = files.extractfile(name)
            assert file is not None
            (path / name).write_bytes(file.read())
            (path / name).chmod(0o600)
    return path


@pytest.fixture(params=STORED, ids=lambda path: path.name.partition(".")[0])
def stored(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def kept(stored: Path) -> list[State]:
    """What its checkpoints showed when it was made."""
    return states(int(stored.name.partition(".")[0].removeprefix("format-")))


@pytest.fixture
def old(stored: Path, tmp_path: Path) -> Iterator[Filesystem]:
    fs = Filesystem(Store.open(unpacked(stored, tmp_path / "store")), Ticks())
    yield fs
    fs.commit()
    assert check(fs.store) == []
    fs.store.close()


def files(fs: Filesystem, epoch: int) -> State:
    nodes, view = shown(fs, fs.view_of(epoch)).nodes, fs.view_of(epoch)
    return {path.decode(): get(fs, path, view) for path in nodes if path not in (b"", b"src")}


def everything(fs: Filesystem) -> list[State]:
    return [files(fs, checkpoint.epoch) for checkpoint in checkpoints(fs.store)]


def test_there_is_one_of_the_format_of_today() -> None:
    assert HERE / f"format-{FORMAT_VERSION}.tar.xz" in STORED


def test_it_shows_what_it_showed(old: Filesystem, kept: list[State]) -> None:
    assert check(old.store) == []
    assert everything(old) == kept


def test_it_goes_on(old: Filesystem, kept: list[State]) -> None:
    put(old, b"new", b"1")
    removal.delete(old, checkpoints(old.store)[2:4])
    assert everything(old) == kept[:2] + kept[4:]


def test_it_can_be_compacted(old: Filesystem, kept: list[State]) -> None:
    Service(old).compact()
    assert old.store.packed.used
    assert everything(old) == kept


def test_the_one_of_format_5_has_blocks_that_are_kept_by_two_others(tmp_path: Path) -> None:
    store = Store.open(unpacked(HERE / "format-5.tar.xz", tmp_path / "store"))
    assert any(len(store.blocks.differs_from(key)) == 2 for key in store.blocks.keys())
    store.close()


def version_of(path: Path) -> int:
    with lmdb.open(str(path), max_dbs=64, lock=False, readonly=True) as env:
        meta = env.open_db(b"meta", create=False)
        with env.begin() as txn:
            return unpack_u32(bytes(txn.get(b"format", db=meta) or b""))


def test_a_store_of_format_4_stays_one_until_a_block_is_kept_by_two_others(tmp_path: Path) -> None:
    """So that the release that made it can go on with it as long as that can be."""
    path = unpacked(HERE / "format-4.tar.xz", tmp_path / "store")
    fs = Filesystem(Store.open(path), Ticks())
    put(fs, b"large", random.Random(1).randbytes(20 * BLOCK_SIZE))
    seal(fs, "auto", "", fs.clock())
    Service(fs).compact()
    fs.store.close()
    assert version_of(path) == 4
    fs = Filesystem(Store.open(path), Ticks())
    put(fs, b"large", b"half" * (BLOCK_SIZE // 8) + get(fs, b"large"))
    seal(fs, "auto", "", fs.clock())
    Service(fs).compact()
    fs.store.close()
    assert version_of(path) == 5


@pytest.mark.parametrize("version", sorted(UNRELEASED_FORMATS))
def test_a_store_from_before_the_first_release_is_refused_by_name(
    tmp_path: Path, version: int
) -> None:
    """By a repair, too: it would take records of another layout for damaged ones."""
    path = unpacked(STORED[0], tmp_path / "store")
    with lmdb.open(str(path), max_dbs=64, lock=False) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.put(b"format", pack_u32(version), db=meta)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    for refused in (Store.open, repair.repair):
        with pytest.raises(errors.StoreVersionUnknown, match=f"is version {version}") as caught:
            refused(path)
        hint = caught.value.hint or ""
        assert "ckptfs export" in hint and "ckptfs forget DIR" in hint
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
