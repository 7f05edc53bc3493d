"""A program that works in a directory at a steady pace, and how long each of its calls waited.

Every ten milliseconds it creates a file, stats it, writes and fsyncs it, and removes one from
earlier. It runs in a process of its own, so that nothing of the bench is in its way, and tells all
waits when its standard input ends.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_PERIOD_S = 0.01
#: Files that are there at a time.
_KEPT = 50
_PATIENCE_S = 300.0


@dataclass
class Waits:
    """Seconds that each call took."""

    seconds: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        return percentile(self.seconds, share)

    @property
    def longest(self) -> float:
        return max(self.seconds, default=0.0)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that as large a share does not exceed."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def probing(directory: Path) -> Iterator[Waits]:
    """Probe for as long as the `with` lasts; the waits are there when it has ended."""
    waits = Waits()
    command = [sys.executable, "-m", "bench.prober", str(directory)]
    home = Path(__file__).resolve().parent.parent
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=home
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield waits
        finally:
            answer, _ = process.communicate(timeout=_PATIENCE_S)
    waits.seconds += json.loads(answer)


def probe(directory: Path) -> list[float]:
    """Work until standard input ends."""
    directory.mkdir(exist_ok=True)
    waits: list[float] = []
    print("ready", flush=True)
    number = 0
    while not select.select([sys.stdin], [], [], _PERIOD_S)[0]:
        waits += _step(directory, number)
        number += 1
    return waits


def _step(directory: Path, number: int) -> Iterator[float]:
    path = directory / f"{number}"
    begun = time.perf_counter()
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    yield -begun + (begun := time.perf_counter())
    with contextlib.suppress(FileNotFoundError):  # a restore came in between
        os.stat(path)
    yield -begun + (begun := time.perf_counter())
    os.write(fd, b"%d\n" % number)
    os.fsync(fd)
    os.close(fd)
    yield -begun + (begun := time.perf_counter())
    with contextlib.suppress(FileNotFoundError):
        os.unlink(directory / f"{number - _KEPT}")
    yield time.perf_counter() - begun


if __name__ == "__main__":
    print(json.dumps(probe(Path(sys.argv[1]))))
