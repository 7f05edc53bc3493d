"""Workspaces that older releases made: they open, show what they showed, and can be compacted."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.fs import Filesystem
from ckptfs.history import checkpoints, removal
from ckptfs.service import Service
from ckptfs.store import Store, check
from ckptfs.store.format import FORMAT_VERSION, unpack_u32
from tests.compat.history import State, states
from tests.direct import Ticks, put, shown

HERE = Path(__file__).parent
OLD = sorted(HERE.glob("format-*.mdb.xz"))


@pytest.fixture(params=OLD, ids=lambda path: path.name.partition(".")[0])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Filesystem]:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / "data.mdb").write_bytes(lzma.decompress(request.param.read_bytes()))
    (path / "data.mdb").chmod(0o600)
    fs = Filesystem(Store.open(path), Ticks())
    yield fs
    fs.commit()
    assert check(fs.store) == []
    fs.store.close()


def files(fs: Filesystem, epoch: int) -> State:
    nodes = shown(fs, fs.view_of(epoch)).nodes
    return {path.decode(): node.content.whole for path, node in nodes.items() if path != b"src"}


def version(fs: Filesystem) -> int:
    return unpack_u32(fs.store._meta.get(b"format") or b"")


def everything(fs: Filesystem) -> list[State]:
    found = [files(fs, checkpoint.epoch) for checkpoint in checkpoints(fs.store)]
    return [{path: data for path, data in state.items() if path} for state in found]


def test_it_shows_what_it_showed(old: Filesystem) -> None:
    assert check(old.store) == []
    assert everything(old) == states()


def test_it_goes_on(old: Filesystem) -> None:
    put(old, b"new", b"1")
    removal.delete(old, checkpoints(old.store)[2:4])
    kept = states()
    assert everything(old) == kept[:2] + kept[4:]


def test_a_look_leaves_its_format_alone(old: Filesystem) -> None:
    assert everything(old) == states()
    old.commit()
    assert version(old) < FORMAT_VERSION


def test_a_change_makes_it_one_of_this_format(old: Filesystem) -> None:
    """Its counters have digests then, which an earlier release would take for damage."""
    put(old, b"new", b"1")
    old.commit()
    assert version(old) == FORMAT_VERSION
    assert len(old.store._meta.get(b"next_ino") or b"") > 8


def test_compacted_it_is_of_this_format(old: Filesystem) -> None:
    before, after = Service(old).compact()
    assert after < before
    assert version(old) == FORMAT_VERSION
    assert old.store.rest.used
    assert everything(old) == states()
