"""Packed records below a mount: checkpoints read as before, and a restore brings them back."""

from __future__ import annotations

import os
from collections.abc import Iterator

import lmdb
import pytest

from ckptfs.store.format import CODEC_SLICE, CODEC_ZSTD
from tests.support.mounting import Workspace, succeed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.needs_mount


@pytest.fixture
def work(own_mount: Workspace) -> Iterator[Workspace]:
    """Five versions of some files, compacted."""
    for version in range(5):
        for number in range(10):
            (own_mount.path / f"{number}").write_text(f"{number} {version}\n" * 700)
        (own_mount.path / f"only-{version}").touch()
        succeed(own_mount.cli("save", f"{version}", "-w", own_mount.path))
        (own_mount.path / f"only-{version}").unlink()
    succeed(own_mount.cli("compact", "-w", own_mount.path))
    yield own_mount
    succeed(own_mount.cli("check", "--deep", "-w", own_mount.path))


def packed_chunks(work: Workspace) -> int:
    path = os.fspath(work.store)
    with lmdb.open(path, readonly=True, lock=False, max_dbs=64) as env:
        table = env.open_db(b"rest", create=False)
        with env.begin() as txn:
            return int(txn.stat(table)["entries"])


def head_is_anchor(work: Workspace) -> bool:
    """Whether the tables have all that the workspace sees, as of the last commit."""
    path = os.fspath(work.store)
    with lmdb.open(path, readonly=True, lock=False, max_dbs=64) as env:
        table = env.open_db(b"meta", create=False)
        with env.begin() as txn:
            return bool(txn.get(b"anchor", db=table) == txn.get(b"head", db=table))


def shown(work: Workspace, at: str) -> dict[str, str]:
    place = work.path / at
    return {name: (place / name).read_text() for name in os.listdir(place)}


def expected(version: int) -> dict[str, str]:
    files = {f"{number}": f"{number} {version}\n" * 700 for number in range(10)}
    return {**files, f"only-{version}": ""}


def test_checkpoints_read_as_before(work: Workspace) -> None:
    assert packed_chunks(work)
    saved = [name for name in os.listdir(work.path / ".checkpoints") if name.isdecimal()]
    found = [shown(work, f".checkpoints/{number}") for number in sorted(saved, key=int)]
    for version in range(5):
        assert expected(version) in found
    assert packed_chunks(work)


def test_a_restore_brings_them_back(work: Workspace) -> None:
    first = min(int(n) for n in os.listdir(work.path / ".checkpoints") if n.isdecimal())
    while shown(work, f".checkpoints/{first}") != expected(0):
        first += 1
    succeed(work.cli("restore", str(first), "--force", "-w", work.path))
    assert shown(work, "") == expected(0)
    (work.path / "only-1").touch()
    (work.path / "only-0").unlink()
    wait_until(lambda: head_is_anchor(work), "the workspace needs nothing that is packed")
    assert set(shown(work, "")) == {*expected(0), "only-1"} - {"only-0"}
    assert shown(work, f".checkpoints/{first}") == expected(0)


def test_the_daemon_packs_by_itself_when_idle(own_mount: Workspace) -> None:
    """No verb asks for it: records and blocks of history are packed once requests pause."""
    for version in range(60):
        for number in range(8):
            (own_mount.path / f"{number}").write_text(f"{number} {version}\n" * 700)
        (own_mount.path / ".checkpoints" / f"v{version}").mkdir()
    assert not packed_chunks(own_mount)
    wait_until(lambda: packed_chunks(own_mount), "records are packed", seconds=120)
    wait_until(lambda: codecs(own_mount) <= {CODEC_ZSTD, CODEC_SLICE}, "blocks are", seconds=120)
    for version in (0, 30, 59):
        place = own_mount.path / ".checkpoints" / f"v{version}"
        assert (place / "3").read_text() == f"3 {version}\n" * 700
    succeed(own_mount.cli("check", "--deep", "-w", own_mount.path))


def codecs(work: Workspace) -> set[int]:
    with lmdb.open(os.fspath(work.store), readonly=True, lock=False, max_dbs=64) as env:
        table = env.open_db(b"blocks", create=False)
        with env.begin() as txn:
            return {value[0] for _, value in txn.cursor(table)}
