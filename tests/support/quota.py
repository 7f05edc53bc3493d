"""A disk with a quota: a subvolume of a small btrfs that the kernel allows so much and no more."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DISK = 512 << 20


def reason_against() -> str | None:
    """Why there can be no such disk here."""
    if "btrfs" not in Path("/proc/filesystems").read_text().split():
        return "the kernel has no btrfs"
    missing = [name for name in ("mkfs.btrfs", "btrfs") if not shutil.which(name)]
    return f"{missing[0]} is not installed" if missing else None


@contextmanager
def limited_disk(base: Path, size: int) -> Iterator[Path]:
    """A directory for whose files there are ``size`` bytes, on a disk that has many more."""
    image, point = base / "disk.img", base / "disk"
    with image.open("wb") as file:
        file.truncate(_DISK)
    point.mkdir()
    _run("mkfs.btrfs", "-q", image)
    _run("mount", "-o", "loop", image, point)
    try:
        _run("btrfs", "quota", "enable", point)
        _run("btrfs", "subvolume", "create", point / "limited")
        _run("btrfs", "qgroup", "limit", str(size), point / "limited")
        yield point / "limited"
    finally:
        _run("umount", point)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
