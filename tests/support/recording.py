"""A mounted file system that only records what is written to its control files.

    python -m tests.support.recording STORE MOUNTPOINT LOG

It is the real one, as far as the kernel and programs can see. In place of the daemon's guard, which
takes checkpoints and names them, is one that appends each message to a log.
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
    """A guard that lets every change happen."""

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

    def _note(self, *message: str | int) -> int:
        with self._log.open("a") as log:
            log.write(json.dumps(message) + "\n")
        return 0


def serve(store: Path, mountpoint: Path, log: Path) -> None:
    with new_filesystem(store) as fs:
        mounted = partial(fuse.serve, started=lambda: None, guard=Recorder(log))
        trio.run(mounted, fs, mountpoint, fuse.MountOptions())


class Recording(NamedTuple):
    """The empty workspace at ``path``, and the log of what its control files got."""

    path: Path
    log: Path

    def all(self) -> list[tuple[str, int, str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def steps(self) -> list[str]:
        return [text for kind, _, text in self.all() if kind == "step"]


@contextmanager
def recording() -> Iterator[Recording]:
    with scratch() as base:
        path = base / "work"
        path.mkdir()
        places = [base / "store", path, base / "log"]
        command = [sys.executable, "-m", "tests.support.recording", *places]
        server = subprocess.Popen(command)
        try:
            wait_until(lambda: is_mounted(path), "it is mounted")
            yield Recording(path, base / "log")
        finally:
            detach(str(path))
            assert server.wait(60) == 0


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:]))
