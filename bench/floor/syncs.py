"""What a sync of a short write takes, in microseconds, without the kernel: our own code's part and
the disk's. The middle one of 2,000.

    .venv/bin/python bench/floor/syncs.py [DIR]

First as SQLite appends to a write-ahead log, which begins anew after 4 MiB, then 4 KiB anywhere in
8 MiB. To compare two revisions run theirs in turns: PYTHONPATH says whose.
"""

from __future__ import annotations

import gc
import os
import random
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO
from ckptfs.store import Store

if TYPE_CHECKING:
    from typing_extensions import Buffer

TIMES = 2_000
FILE = stat.S_IFREG | 0o644
FRAMES = 4 * 4_120
LOG = 4 << 20
LENGTH = 8 << 20


class Disk:
    """Counts what is waited for."""

    def __init__(self) -> None:
        self.taken = 0.0
        self._write = os.pwrite
        os.pwrite = self._pwrite

    def _pwrite(self, fd: int, data: Buffer, offset: int, /) -> int:
        start = time.perf_counter()
        try:
            return self._write(fd, data, offset)
        finally:
            self.taken += time.perf_counter() - start


def log() -> Iterator[tuple[int, int]]:
    while True:
        yield from ((offset, FRAMES) for offset in range(0, LOG, FRAMES))


def anywhere() -> Iterator[tuple[int, int]]:
    places = random.Random(1)
    while True:
        yield places.randrange(LENGTH // 4096) * 4096, 4096


def measure(title: str, fs: Filesystem, disk: Disk, writes: Iterator[tuple[int, int]]) -> None:
    data = os.urandom(FRAMES + TIMES)
    ino = fs.mknod(fs.head, ROOT_INO, title.encode(), FILE, 0, 0, 0).ino
    for place in range(0, LENGTH, 1 << 20):
        fs.write(fs.head, ino, place, os.urandom(1 << 20))
    fs.commit()
    ours, waited = [], []
    for number, (offset, size) in enumerate(islice(writes, TIMES)):
        before = disk.taken
        start = time.perf_counter()
        fs.write(fs.head, ino, offset, data[number : number + size])
        fs.sync()
        taken = time.perf_counter() - start
        waited.append(disk.taken - before)
        ours.append(taken - waited[-1])
    print(f"{title}: {_middle(ours)} and {_middle(waited)}")


def _middle(seconds: list[float]) -> int:
    return round(statistics.median(seconds) * 1e6)


def main(directory: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as place:
        fs = Filesystem(Store.create(Path(place) / "store"))
        disk = Disk()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)  # as the daemon has it
        measure("log", fs, disk, log())
        measure("anywhere", fs, disk, anywhere())
        fs.store.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
