"""A machine with more runnable processes than CPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def crowd() -> Iterator[None]:
    """Three processes for each CPU that always want to run."""
    count = 3 * (os.cpu_count() or 1)
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()
