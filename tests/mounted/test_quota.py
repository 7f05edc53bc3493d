"""A quota, met long before the disk is full: as a full disk, with the kernel's own EDQUOT below."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.test_full_disk import OnSmallDisk, fill
from tests.support.errnos import fails
from tests.support.mounting import scratch, succeed
from tests.support.quota import limited_disk, reason_against
from tests.support.trees import fsync, plant, tree
from tests.support.waiting import wait_for_exit

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.needs_mount,
    pytest.mark.needs_program("mkfs.btrfs"),
]
QUOTA = 64 << 20
#: What is heard from a workspace that is ending.
ENDS = (errno.EIO, errno.ENOTCONN, errno.ECONNABORTED)


@pytest.fixture
def cramped() -> Iterator[OnSmallDisk]:
    if reason := reason_against():
        pytest.skip(reason)
    with scratch() as base, limited_disk(base, QUOTA) as disk:
        made = OnSmallDisk(base)
        made.store = disk / "store"
        made.mount()
        try:
            yield made
        finally:
            made.finish()


def test_the_quota_is_the_kernels(cramped: OnSmallDisk) -> None:
    """Or the other tests would prove nothing: the disk has room, and does not give it."""
    disk = cramped.store.parent
    with fails(errno.EDQUOT), open(disk / "straight", "wb", buffering=0) as file:
        for _ in range(2 * QUOTA >> 20):
            file.write(os.urandom(1 << 20))
    free = os.statvfs(disk)
    assert free.f_bavail * free.f_frsize > 2 * QUOTA
    (disk / "straight").unlink()


def test_everything_but_writing_goes_on(cramped: OnSmallDisk) -> None:
    """Reading, deleting, pruning; and what was deleted makes room."""
    top = cramped.path
    old = os.urandom(4_000_000)
    plant(top, {"kept": "precious" * 1000, "dir": {"also": "kept"}})
    (top / "old").write_bytes(old)
    saved = json.loads(succeed(cramped.cli("save", "x", "--json", "-w", top)).stdout)
    (top / "old").unlink()
    assert fill(top / "huge") == errno.ENOSPC
    assert (top / "kept").read_text() == "precious" * 1000
    assert (top / f".checkpoints/{saved['id']}/old").read_bytes() == old
    succeed(cramped.cli("prune", "-w", top))
    succeed(cramped.cli("delete", str(saved["id"]), "-w", top))
    (top / "huge").unlink()
    fsync(top)
    (top / "new").write_bytes(old)
    fsync(top / "new")
    cramped.remount()
    assert (top / "new").read_bytes() == old
    (top / "new").unlink()
    assert tree(top) == {"kept": "precious" * 1000, "dir": {"also": "kept"}}


def test_a_quota_is_filled_and_emptied_again_and_again(cramped: OnSmallDisk) -> None:
    """Nothing that was accepted is lost to the commit that meets the quota."""
    top = cramped.path
    kept: dict[Path, bytes] = {}
    for turn in range(4):
        for number in range(200):
            path, data = top / f"{turn} {number}", os.urandom(500_000)
            try:
                path.write_bytes(data)
                fsync(path)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                path.unlink(missing_ok=True)
                break
            kept[path] = data
        else:
            raise AssertionError("the quota was never met")
        assert all(path.read_bytes() == data for path, data in kept.items())
        for path in list(kept)[:: 1 if turn == 3 else 2]:
            path.unlink()
            del kept[path]
        fsync(top)
    cramped.kill()
    cramped.mount()
    assert {path: path.read_bytes() for path in top.iterdir()} == kept


def test_another_process_takes_what_was_left(cramped: OnSmallDisk) -> None:
    """Then a commit may fail after all. The workspace ends; what was synced stays."""
    top, straight = cramped.path, cramped.store.parent / "straight"
    plant(top, {"kept": "precious" * 1000, "removed": "x"})
    fsync(top / "kept")
    fsync(top)
    with contextlib.suppress(OSError), open(straight, "wb", buffering=0) as file:
        while True:
            file.write(os.urandom(4096))
    assert _change_until_it_fails(top / "kept") in ENDS
    wait_for_exit(cramped.pid or 0)
    cramped.pid = None
    straight.unlink()
    cramped.mount()
    assert tree(top) == {"kept": "precious" * 1000, "removed": "x"}


def test_a_commit_without_any_room_ends_the_workspace_with_its_reason(cramped: OnSmallDisk) -> None:
    """btrfs needs room even for a page that is written again: a store's file that is mapped to be
    written would end the daemon before it could say anything."""
    top, straight = cramped.path, cramped.store.parent / "straight"
    plant(top, {"kept": "precious" * 1000})
    fsync(top / "kept")
    _fill_up(straight)
    assert _change_until_it_fails(top / "kept") in ENDS
    wait_for_exit(cramped.pid or 0)
    cramped.pid = None
    said = succeed(cramped.cli("status", "-w", top)).stdout
    assert "mdb_txn_commit: Disk quota exceeded" in said
    straight.unlink()
    cramped.mount()
    assert tree(top) == {"kept": "precious" * 1000}


def test_opening_a_store_without_any_room_says_so(cramped: OnSmallDisk) -> None:
    top, straight = cramped.path, cramped.store.parent / "straight"
    plant(top, {"kept": "precious" * 1000})
    cramped.umount()
    _fill_up(straight)
    refused = cramped.cli("list", "--json", "-w", top)
    assert json.loads(refused.stdout)["error"]["kind"] == "store-full", refused
    straight.unlink()
    succeed(cramped.cli("list", "--json", "-w", top))
    cramped.mount()
    assert tree(top) == {"kept": "precious" * 1000}


def _fill_up(straight: Path) -> None:
    """Take what is left, to the last page, and have all pages of the disk written: that gives back
    what was reserved for more."""
    size = -1
    while size != (size := straight.stat().st_size if straight.exists() else 0):
        for piece in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError), open(straight, "ab", buffering=0) as file:
                while True:
                    file.write(os.urandom(piece))
        os.sync()


def test_the_daemon_writes_to_no_file_through_a_mapping(cramped: OnSmallDisk) -> None:
    maps = Path(f"/proc/{cramped.pid}/maps").read_text().splitlines()
    shared = [line for line in maps if line.split()[1].startswith("rw-s")]
    assert [line for line in shared if str(cramped.store) in line] == []


def _change_until_it_fails(path: Path) -> int:
    try:
        for number in range(1_000):
            path.chmod(0o600 + number % 2)
            fsync(path)
    except OSError as error:
        return error.errno or 0
    return 0


def test_it_can_be_unmounted_and_mounted_as_it_is(cramped: OnSmallDisk) -> None:
    top = cramped.path
    plant(top, {"kept": "precious" * 1000})
    assert fill(top / "huge") == errno.ENOSPC
    size = (top / "huge").stat().st_size
    cramped.remount()
    assert (top / "kept").read_text() == "precious" * 1000
    assert (top / "huge").stat().st_size == size
