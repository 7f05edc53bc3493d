"""The reader processes that a daemon, or a test in its place, has begun."""

from __future__ import annotations

from pathlib import Path


def readers_of(pid: int) -> list[int]:
    """The reader processes of a process that run now."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue  # the thread, or the process, has ended
        found += [int(child) for child in children if _is_reader(child)]
    return found


def _is_reader(pid: str) -> bool:
    try:
        return b"ckptfs.daemon.reader" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
