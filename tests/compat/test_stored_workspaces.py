"""Workspaces of every released format: they open, show what they showed, and can be compacted.
Those of formats that were never released are refused by name."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from ckptfs import errors
from ckptfs.fs import Filesystem
from ckptfs.history import checkpoints, removal
from ckptfs.service import Service
from ckptfs.store import Store, check, repair
from ckptfs.store.format import FORMAT_VERSION, UNRELEASED_FORMATS, pack_u32
from tests.compat.history import State, states
from tests.direct import Ticks, put, shown

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
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Filesystem]:
    fs = Filesystem(Store.open(unpacked(request.param, tmp_path / "store")), Ticks())
    yield fs
    fs.commit()
    assert check(fs.store) == []
    fs.store.close()


def files(fs: Filesystem, epoch: int) -> State:
    nodes = shown(fs, fs.view_of(epoch)).nodes
    return {path.decode(): node.content.whole for path, node in nodes.items() if path != b"src"}


def everything(fs: Filesystem) -> list[State]:
    found = [files(fs, checkpoint.epoch) for checkpoint in checkpoints(fs.store)]
    return [{path: data for path, data in state.items() if path} for state in found]


def test_there_is_one_of_the_format_of_today() -> None:
    assert HERE / f"format-{FORMAT_VERSION}.tar.xz" in STORED


def test_it_shows_what_it_showed(old: Filesystem) -> None:
    assert check(old.store) == []
    assert everything(old) == states()


def test_it_goes_on(old: Filesystem) -> None:
    put(old, b"new", b"1")
    removal.delete(old, checkpoints(old.store)[2:4])
    kept = states()
    assert everything(old) == kept[:2] + kept[4:]


def test_it_can_be_compacted(old: Filesystem) -> None:
    Service(old).compact()
    assert old.store.packed.used
    assert everything(old) == states()


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
