"""A client that creates files in a directory for some seconds and prints how many a second.

    python -S creator.py DIR SECONDS

A small program of its own: on a crowded machine a fork of the bench spends most of its share of the
CPU on copying pages of memory.
"""

import os
import sys
import time


def create_for(root: str, seconds: float) -> float:
    """Creates a second."""
    begun = now = time.monotonic()
    number = 0
    while now < begun + seconds:
        os.close(os.open(f"{root}/{number}", os.O_CREAT | os.O_WRONLY, 0o644))
        number += 1
        now = time.monotonic()
    return number / (now - begun)


if __name__ == "__main__":
    print(create_for(sys.argv[1], float(sys.argv[2])))
