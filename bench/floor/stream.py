"""How long 128 MB take that are written in pieces of 1 MiB, four times, in milliseconds.

    python3 stream.py DIR           and close
    python3 stream.py DIR fsync     and fsync

No two pieces are alike, and each time the file is new.
"""

import os
import sys
import time
from pathlib import Path

_MIB = 1 << 20
_COUNT = 128


def main(directory: Path, *, synced: bool) -> None:
    for number in range(4):
        path = directory / f"stream-{number}"
        data = memoryview(os.urandom(_COUNT * _MIB))
        time.sleep(1)  # what is left of the last one goes to the disk
        start = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            for at in range(0, len(data), _MIB):
                file.write(data[at : at + _MIB])
            if synced:
                os.fsync(file.fileno())
        print(round((time.perf_counter() - start) * 1e3))
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), synced=sys.argv[2:] == ["fsync"])
