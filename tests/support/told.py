"""A mounted file system that only writes down what its control files are told.

    python -m tests.support.told STORE MOUNTPOINT LOG

It is the real one, as far as the kernel and programs can see; in place of the daemon, which takes
checkpoints and names them, is somebody who keeps a record.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from ckptfs import fuse
from ckptfs.fuse.hooks import LossOf
from tests.direct import new_filesystem
from tests.support.mounting import detach, is_mounted, scratch
from tests.support.waiting import wait_until


class Recorder:
    """A guard to whom everything is welcome."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __call__(self, pid: int, loss: LossOf | None, *, begins: bool = True) -> None:
        pass

    def made(self, ino: int, *, content: bool = True, new: bool = False) -> None:
        pass

    def made_all(self, inodes: Sequence[int], makers: Sequence[int]) -> None:
        pass

    def is_writing(self, ino: int, pid: int) -> bool:
        return False

    def make_room(self, ino: int) -> bool:
        return False

    def lasting(self, pid: int) -> int:
        return 1 << 62

    def mark(self, pid: int, message: str) -> int:
        return self._note("mark", pid, message)

    def take_back(self, number: int) -> None:
        self._note("back", number, "")

    def name_step(self, pid: int, text: str) -> None:
        self._note("step", pid, text)

    def _note(self, *told: str | int) -> int:
        with self._log.open("a") as log:
            log.write(json.dumps(told) + "\n")
        return 0


def serve(store: Path, mountpoint: Path, log: Path) -> None:
    with new_filesystem(store) as fs:
        mounted = partial(fuse.serve, started=lambda: None, guard=Recorder(log))
        trio.run(mounted, fs, mountpoint, fuse.MountOptions())


class Told(NamedTuple):
    """The workspace at ``path``, in which there is nothing, and what was told in it."""

    path: Path
    log: Path

    def all(self) -> list[tuple[str, int, str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def steps(self) -> list[str]:
        return [text for kind, _, text in self.all() if kind == "step"]


@contextmanager
def told() -> Iterator[Told]:
    with scratch() as base:
        path = base / "work"
        path.mkdir()
        command = [sys.executable, "-m", "tests.support.told", base / "store", path, base / "log"]
        server = subprocess.Popen(command)
        try:
            wait_until(lambda: is_mounted(path), "it is mounted")
            yield Told(path, base / "log")
        finally:
            detach(str(path))
            assert server.wait(60) == 0


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:]))
