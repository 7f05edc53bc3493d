"""Packed records below a mount: checkpoints read as before, and a restore brings them back."""

from __future__ import annotations

import os
from collections.abc import Iterator

import lmdb
import pytest

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
    wait_until(lambda: not packed_chunks(work), "nothing is packed any more")
    assert set(shown(work, "")) == {*expected(0), "only-1"} - {"only-0"}
    assert shown(work, f".checkpoints/{first}") == expected(0)
