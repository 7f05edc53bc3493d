"""What stat and statfs say about room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.trees import fsync

MIB = 1 << 20


def _synced_blocks(path: Path) -> int:
    fsync(path)
    return path.stat().st_blocks


def test_statfs_is_sane(mount: Path) -> None:
    room = os.statvfs(mount)
    assert room.f_bsize >= 4096
    assert room.f_frsize >= 512
    assert 0 < room.f_bavail <= room.f_bfree <= room.f_blocks
    assert room.f_namemax == 255
    assert room.f_ffree <= room.f_files
    (mount / "file").touch()
    assert os.statvfs(mount / "file").f_blocks == room.f_blocks


def test_statfs_counts_in_the_room_of_the_disk(mount: Path) -> None:
    """No more free than the disk below has, and not much less either."""
    room = os.statvfs(mount)
    disk = os.statvfs(mount.parent.parent.parent)
    free, below = room.f_bavail * room.f_frsize, disk.f_bavail * disk.f_frsize
    assert 0.2 * below <= free <= 1.05 * below + 64 * MIB


@pytest.mark.parametrize("data", [os.urandom(MIB), b"a" * MIB], ids=["random", "uniform"])
def test_a_mebibyte_has_2048_blocks(mount: Path, data: bytes) -> None:
    """Also where the store keeps one copy of equal blocks: st_blocks is of this file alone."""
    (mount / "file").write_bytes(data)
    assert abs(_synced_blocks(mount / "file") - 2048) <= 16


def test_small_files_count_their_blocks(mount: Path) -> None:
    (mount / "empty").touch()
    (mount / "small").write_bytes(b"x" * 10_000)
    assert _synced_blocks(mount / "empty") == 0
    assert 16 <= _synced_blocks(mount / "small") <= 136


def test_du_counts_a_hard_link_once(mount: Path) -> None:
    (mount / "file").write_bytes(os.urandom(MIB))
    os.link(mount / "file", mount / "link")
    blocks = _synced_blocks(mount / "file")
    assert (mount / "link").stat().st_blocks == blocks
    assert (mount / "link").stat().st_ino == (mount / "file").stat().st_ino


def test_st_blksize_suits_programs(mount: Path) -> None:
    (mount / "file").touch()
    assert 4096 <= (mount / "file").stat().st_blksize <= 16 * MIB


def test_the_whole_workspace_is_one_device(mount: Path) -> None:
    (mount / "dir").mkdir()
    (mount / "dir/file").touch()
    devices = {os.stat(path).st_dev for path in (mount, mount / "dir", mount / "dir/file")}
    assert len(devices) == 1
