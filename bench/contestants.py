"""Who takes part: directories that the same work is done in, and how they come to be.

A new rival is a class with the same five members and a line in session.py.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bench import process, product

_DEATH_S = 10.0


class Contestant(Protocol):
    name: str
    root: Path
    """Where the work is done."""
    store: Path
    """Where the daemon keeps its data (the root itself if there is no daemon)."""
    pid: int | None
    """The daemon, if there is one."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Leave nothing behind: no mount, no process. May be called at any time, and twice."""

    def is_healthy(self) -> bool: ...


class PlainDirectory:
    """The machine's own file system: the baseline."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.store = root
        self.pid: int | None = None

    def start(self) -> None:
        """Have ext4 put each directory made here into another part of the disk.

        For minutes after files are deleted, ext4 steps over their inodes one by one when it makes
        new ones nearby: 25 µs a file become 250. Each repetition would pay for the one before it,
        and ckptfs look good for no merit of its own.
        """
        make_spread(self.root)

    def stop(self) -> None:
        pass

    def is_healthy(self) -> bool:
        return True


def make_spread(root: Path) -> None:
    """A directory whose own directories ext4 spreads over the disk; see PlainDirectory."""
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["chattr", "+T", root], capture_output=True, check=False)


class CkptfsMount:
    """A ckptfs workspace, new and empty, whose store lies beside it."""

    def __init__(self, base: Path, by: product.Installation = product.HERE) -> None:
        self.name = by.name
        self._by = by
        self._base = base
        self._round = 0
        self.root = base
        self.store = base
        self.pid: int | None = None

    def start(self) -> None:
        """Each start takes a new directory and store, so that one after a crash begins clean."""
        self._round += 1
        self.root = self._base / f"workspace-{self._round}"
        self.store = self._base / f"store-{self._round}"
        self.root.mkdir(parents=True)
        # Not brought back into the lower directory: that is no part of any row, and slow.
        options = ("--no-write-back", *self._by.mount_options)
        product.mount(self.root, self.store, *options, by=self._by)
        self.pid = int(product.status(self.root, by=self._by)["pid"])

    def stop(self) -> None:
        self.pid = None
        if self._round:
            end_mount(self.root, self.store, self._by)

    def is_healthy(self) -> bool:
        return self.pid is not None and process.is_alive(self.pid) and is_mounted(self.root)

    def newest_checkpoint(self) -> int:
        """Its number; 0 of another revision, which may not understand the question."""
        if self._by.checkout != product.HERE.checkout:
            return 0
        return product.newest_checkpoint(self.root, self.store)


def is_mounted(path: Path) -> bool:
    """Asks the kernel's table and not the mount itself, which may be dead or hang."""
    return str(path) in mount_points()


def mount_points() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    return [line.split()[4].encode().decode("unicode_escape") for line in lines]


@contextmanager
def mounted(
    workspace: Path, store: Path, *options: str, by: product.Installation = product.HERE
) -> Iterator[int]:
    """A mount for as long as a `with` lasts; gives the daemon's pid."""
    try:
        product.mount(workspace, store, *options, by=by)
        yield int(product.status(workspace, by=by)["pid"])
    finally:
        end_mount(workspace, store, by)


def end_mount(workspace: Path, store: Path, by: product.Installation = product.HERE) -> None:
    """Unmount in order if that works, by force if not, and see the daemon gone.

    The daemon is known by the path of its store among its arguments, a path that only this run
    has ever used: no one else's process is ever meant.
    """
    if is_mounted(workspace):
        try:
            product.umount(workspace, by=by)
        except product.ProductFailed:
            detach(workspace)
    kill_daemons(store, _DEATH_S)
    if is_mounted(workspace):
        detach(workspace)


def kill_daemons(below: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while (pids := process.ckptfs_daemons(below)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def detach(root: Path) -> None:
    fusermount = shutil.which("fusermount3")
    lazy = ["umount", "-l", str(root)]
    command = [fusermount, "-uz", str(root)] if fusermount and os.geteuid() != 0 else lazy
    subprocess.run(command, capture_output=True, check=False)
