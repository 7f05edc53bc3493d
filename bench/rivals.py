"""What else people take checkpoints with: a shadow git repository, and btrfs.

Each works on a directory of its own with the same files; nothing here measures.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.programs import GIT, run

_IMAGE_BYTES = 4 << 30


class ShadowGit:
    """A repository beside a work tree that knows nothing of it, as agents' tools make them."""

    def __init__(self, git_dir: Path, work_tree: Path) -> None:
        self.git_dir = git_dir
        self._git = (*GIT, f"--git-dir={git_dir}", f"--work-tree={work_tree}")
        run(*GIT, "init", "-q", "--bare", git_dir)
        run(*self._git, "config", "core.bare", "false")

    def commit(self) -> None:
        run(*self._git, "add", "-A")
        run(*self._git, "commit", "-q", "--allow-empty", "-m", "checkpoint")

    def reset(self) -> None:
        run(*self._git, "reset", "-q", "--hard")
        run(*self._git, "clean", "-q", "-f", "-d", "-x")

    def name_status(self) -> None:
        run(*self._git, "diff", "--name-status", "HEAD")

    def packed_bytes(self) -> int:
        """What it takes on disk after gc, without samples and logs."""
        run(*self._git, "gc", "-q", "--prune=now")
        return sum(path.stat().st_size for path in (self.git_dir / "objects").rglob("*.*"))


class Btrfs:
    """A subvolume on a btrfs of its own."""

    def __init__(self, mountpoint: Path) -> None:
        self.tree = mountpoint / "tree"
        self._mountpoint = mountpoint
        run("btrfs", "subvolume", "create", self.tree)

    def snapshot(self) -> None:
        run("btrfs", "subvolume", "snapshot", self.tree, self._mountpoint / f"{time.time_ns()}")


@contextmanager
def btrfs(base: Path) -> Iterator[Btrfs | None]:
    """A btrfs in a file, or None where that cannot be had."""
    image, mountpoint = base / "btrfs.img", base / "btrfs"
    mountpoint.mkdir()
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    if not (
        _worked("mkfs.btrfs", "-q", image) and _worked("mount", "-o", "loop", image, mountpoint)
    ):
        yield None
        return
    try:
        yield Btrfs(mountpoint)
    finally:
        _worked("umount", mountpoint)
        image.unlink()


def _worked(*command: str | Path) -> bool:
    if shutil.which(command[0]) is None or os.geteuid() != 0:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
