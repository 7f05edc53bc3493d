"""What the kernel knows of another process: its CPU time, its memory, whether it is at rest.

Reads /proc only; a process that is gone raises ProcessLookupError or FileNotFoundError.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_QUIET_NS = 1_000_000
_QUIET_STEP_S = 0.05
_QUIET_STEPS = 3


@dataclass(frozen=True)
class Memory:
    """Resident bytes. `own` is anonymous memory; `mapped` is page cache of the mapped store, which
    the kernel may take back at any time but which `top` counts too."""

    own: int
    mapped: int


def cpu_ns(pid: int) -> int:
    """CPU time of all threads. From schedstat, since the ticks of `stat` are 10 ms long."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in _tasks(pid))


def memory(pid: int) -> Memory:
    fields: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("RssAnon", "RssFile", "RssShmem"):
            fields[key] = int(value.split()[0]) * 1024
    return Memory(fields["RssAnon"] + fields["RssShmem"], fields["RssFile"])


def wake_ups(pid: int) -> int:
    """How often its threads have gone to sleep of their own accord, and so were woken again."""
    lines = [
        line
        for task in _tasks(pid)
        for line in (task / "status").read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    ]
    return sum(int(line.split()[1]) for line in lines)


def is_alive(pid: int) -> bool:
    try:
        return _state(Path(f"/proc/{pid}/stat").read_text()) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_quiet(pid: int, timeout_s: float) -> bool:
    """Wait until the process neither runs nor waits for the disk; False if it never does."""
    deadline = time.monotonic() + timeout_s
    quiet_steps, before = 0, cpu_ns(pid)
    while quiet_steps < _QUIET_STEPS:
        if time.monotonic() > deadline:
            return False
        time.sleep(_QUIET_STEP_S)
        now = cpu_ns(pid)
        quiet_steps = quiet_steps + 1 if now - before < _QUIET_NS and not _in_disk(pid) else 0
        before = now
    return True


def mapped_ranges(pid: int, below: Path) -> Iterator[tuple[int, int]]:
    """Address and length of the parts of files below a directory that the process has mapped."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        if not path or not Path(path[0]).is_relative_to(below) or not Path(path[0]).exists():
            continue
        start, end = (int(each, 16) for each in span.split("-"))
        # A map is reserved far beyond the end of its file; nothing is mapped there.
        length = min(end - start, Path(path[0]).stat().st_size - int(offset, 16))
        if length > 0:
            yield start, length


def ckptfs_daemons(below: Path) -> list[int]:
    """Processes started as `ckptfs mount` on something below a directory that only a run uses."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")
            except OSError:
                continue
            if is_daemon_of(arguments, below):
                found.append(int(entry.name))
    return found


def is_daemon_of(arguments: Sequence[str], below: Path) -> bool:
    names = [Path(each).name for each in arguments[:4]]
    if "ckptfs" not in names or "mount" not in arguments:
        return False
    return any(Path(each).is_relative_to(below) for each in arguments if each.startswith("/"))


def last_descendant(pid: int) -> int:
    """The last of a line of children: some file systems put a guard before themselves."""
    children = [
        int(each) for task in _tasks(pid) for each in (task / "children").read_text().split()
    ]
    return last_descendant(children[-1]) if children else pid


def kill_session(pid: int, signum: int) -> None:
    """Everything in the process group of one that was started as a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signum)


def _tasks(pid: int) -> Iterator[Path]:
    return Path(f"/proc/{pid}/task").iterdir()


def _in_disk(pid: int) -> bool:
    return any(_state((task / "stat").read_text()) == "D" for task in _tasks(pid))


def _state(stat: str) -> str:
    # The name stands in parentheses and may itself hold spaces and parentheses.
    return stat.rpartition(")")[2].split()[0]
