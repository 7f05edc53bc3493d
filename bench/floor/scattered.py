"""Pieces of 4 KiB at random places of a new, sparse file.

    python3 bench/floor/scattered.py FILE MEGABYTES COUNT

All of them in the order of the same numbers each time.
"""

import os
import random
import sys
from pathlib import Path

_PIECE = 4096


def main(path: Path, megabytes: int, count: int) -> None:
    places = random.Random(1)
    with path.open("wb") as file:
        file.truncate(megabytes << 20)
        for _ in range(count):
            place = places.randrange((megabytes << 20) // _PIECE) * _PIECE
            os.pwrite(file.fileno(), os.urandom(_PIECE), place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
