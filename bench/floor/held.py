"""A process's own memory while a command runs, the most of it, and once it rests.

    .venv/bin/python bench/floor/held.py PID COMMAND...

"Rests" is four seconds later: a daemon gives back what it does not need after two.
"""

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import process

_EVERY_S = 0.01
_REST_S = 4.0


def main(pid: int, command: list[str]) -> None:
    most = process.memory(pid).own
    cpu = process.cpu_ns(pid)
    with subprocess.Popen(command) as running:
        while running.poll() is None:
            most = max(most, process.memory(pid).own)
            time.sleep(_EVERY_S)
    cpu = process.cpu_ns(pid) - cpu
    end = process.memory(pid).own
    time.sleep(_REST_S)
    rest = process.memory(pid).own
    sizes = f"most {most / 1e6:.0f} MB, at the end {end / 1e6:.0f}, at rest {rest / 1e6:.0f}"
    sys.stdout.write(f"{sizes}; CPU {cpu / 1e9:.2f} s\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
