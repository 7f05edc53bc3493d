"""How long a disk takes to have a few bytes, in microseconds: the middle one of 300.

    python3 waits.py DIR

Once as programs sync (pwrite, fdatasync), and once as the journal of a store is written, past the
page cache. The file has its length before.
"""

import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

_LENGTH = 32 << 20
_SIZES = (4096, 8192, 69_632)
_TIMES = 300


def measure(size: int, write: Callable[[int], object]) -> int:
    taken = []
    for number in range(_TIMES):
        offset = number * size % (_LENGTH - size) // 4096 * 4096
        start = time.perf_counter()
        write(offset)
        taken.append(time.perf_counter() - start)
    return round(statistics.median(taken) * 1e6)


def main(directory: Path) -> None:
    path = directory / "waits"
    path.write_bytes(bytes(_LENGTH))
    plain = os.open(path, os.O_RDWR)
    direct = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
    os.fsync(plain)
    source = memoryview(mmap.mmap(-1, max(_SIZES)))
    for size in _SIZES:
        data = source[:size]

        def program(offset: int, data: memoryview = data) -> None:
            os.pwrite(plain, data, offset)
            os.fdatasync(plain)

        def journal(offset: int, data: memoryview = data) -> None:
            os.pwrite(direct, data, offset)

        print(f"{size} B: {measure(size, program)} and {measure(size, journal)}")
    path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
