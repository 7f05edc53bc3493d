"""Who keeps a mount busy: processes with files, a current directory or a mapping in it.

Reads links in /proc, which the kernel answers without asking the mounted file system. What
other users' processes hold is invisible to us; the caller has words for "someone".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

#: More than this many names do not help anyone.
NAMED_MAX = 5


def holders(mountpoint: Path, *, but: int = 0, device: int | None = None) -> list[str]:
    """The processes that use something below the mountpoint, as "name (PID)".

    ``but`` is the one that wants to know: it holds at most what it inherited. With ``device``, that
    of the mount, only those count that an unmount in this namespace would meet: the same names may
    lead to the lower directory, or to a copy of the mount. That asks the mounted file system.
    """
    own = namespace_of("self")
    found = [
        f"{command_of(pid)} ({pid})"
        for pid in processes()
        if pid not in (os.getpid(), but)
        and (device is None or namespace_of(pid) == own)
        and any(
            _lies_in(path, mountpoint) and (device is None or _device_of(link) == device)
            for link, path in _used(pid)
        )
    ]
    return shortened(found)


def shortened(found: list[str]) -> list[str]:
    """The first of them, and how many more there are."""
    if len(found) > NAMED_MAX:
        return [*found[:NAMED_MAX], f"{len(found) - NAMED_MAX} more"]
    return found


def is_inside(pid: int, directory: Path) -> bool:
    """Whether a process has something open at or below a directory, or stands there. One that
    cannot be looked at is not."""
    base = f"/proc/{pid}"
    try:
        links = [f"{base}/cwd", *(f"{base}/fd/{number}" for number in os.listdir(f"{base}/fd"))]
    except OSError:
        return False
    return any(_lies_in(path, directory) for _, path in _targets(links))


def processes() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def namespace_of(pid: int | str) -> str:
    """What tells a mount namespace from others; nothing where it may not be known."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _used(pid: int) -> Iterator[tuple[str, str]]:
    """What a process has open: links in /proc, and where they lead."""
    base = f"/proc/{pid}"
    links = [f"{base}/cwd", f"{base}/root", f"{base}/exe"]
    for folder in (f"{base}/fd", f"{base}/map_files"):
        try:
            links.extend(f"{folder}/{name}" for name in os.listdir(folder))
        except OSError:
            continue  # it ended meanwhile, or is not ours to look at
    yield from _targets(links)


def _targets(links: Iterable[str]) -> Iterator[tuple[str, str]]:
    for link in links:
        try:
            yield link, os.readlink(link)
        except OSError:
            continue


def _device_of(link: str) -> int:
    try:
        return os.stat(link).st_dev
    except OSError:
        return 0


def _lies_in(path: str, mountpoint: Path) -> bool:
    top = str(mountpoint)
    return path == top or path.startswith(top + "/")


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() or "process"
    except OSError:
        return "process"
