"""Stores that earlier code made: they open, show what they did, and go on."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.model import Ino
from ckptfs.store import Store, View, check
from ckptfs.store import format as fmt
from tests.compat.stores import FIRST, LINK, NOW, SECOND
from tests.direct import Ticks, find, get, put, reopened

#: Each with what is special about it.
STORES = ["without-digests"]


@pytest.fixture(params=STORES)
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Filesystem]:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    packed = Path(__file__).with_name(f"{request.param}.mdb.gz").read_bytes()
    (path / "data.mdb").write_bytes(gzip.decompress(packed))
    (path / "data.mdb").chmod(0o600)
    (path / "lock").touch(mode=0o600)
    fs = Filesystem(Store.open(path, doubt=True), Ticks())
    yield fs
    fs.store.close(commit=False)


def _assert_shows(fs: Filesystem, view: View, tree: dict[bytes, bytes]) -> None:
    names = {name for name, inode in fs.entries(view, 1) if inode.is_file}
    assert names == {name for name in tree if b"/" not in name}
    assert {name: get(fs, name, view) for name in tree} == tree


def _assert_history(fs: Filesystem) -> None:
    first, second = sorted(history.checkpoints(fs.store), key=lambda item: item.id)[:2]
    assert (first.message, second.message) == ("the first", "the second")
    _assert_shows(fs, fs.view_of(first.epoch), FIRST)
    _assert_shows(fs, fs.view_of(second.epoch), SECOND)
    assert find(fs, fs.view_of(second.epoch), LINK[0]).target == LINK[1]
    below = find(fs, fs.view_of(second.epoch), b"dir/below")
    assert (below.mode, below.uid, below.gid) == (0o100600, 1000, 1000)
    assert fs.getxattr(fs.view_of(second.epoch), below.ino, b"user.kept") == b"yes"


def test_it_shows_what_it_did(fs: Filesystem) -> None:
    assert check(fs.store) == []
    _assert_history(fs)
    _assert_shows(fs, fs.head, NOW)


def test_it_goes_on(fs: Filesystem) -> None:
    put(fs, b"small", b"changed since, and longer")
    put(fs, b"new", b"new")
    history.seal(fs, "manual", "the third", 0)
    again = reopened(fs)
    fs.store = again.store
    assert check(again.store) == []
    _assert_history(again)
    wanted = {**NOW, b"small": b"changed since, and longer", b"new": b"new"}
    _assert_shows(again, again.head, wanted)


def test_it_is_of_its_time(fs: Filesystem) -> None:
    """Records that the code of today would write otherwise."""
    records = {
        fmt.unpack_u64(entity): record
        for entity, _, record in fs.store.inodes.versions(b"")
        if record
    }
    assert all(
        record != fmt.pack_inode(fmt.unpack_inode(Ino(ino), record))
        for ino, record in records.items()
    )
