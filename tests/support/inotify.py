"""Watching files as programs do, by the kernel's inotify."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from pathlib import Path
from types import TracebackType

_EVENT = struct.Struct("iIII")
_NAMES = {
    0x2: "MODIFY",
    0x4: "ATTRIB",
    0x8: "CLOSE_WRITE",
    0x40: "MOVED_FROM",
    0x80: "MOVED_TO",
    0x100: "CREATE",
    0x200: "DELETE",
    0x400: "DELETE_SELF",
    0x800: "MOVE_SELF",
}

#: (watched path, what happened, name in it or empty)
Event = tuple[Path, str, str]


class Inotify:
    """Watches of some paths; everything but mere reading is told."""

    def __init__(self, *paths: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._paths: dict[int, Path] = {}
        for path in paths:
            number = libc.inotify_add_watch(self._fd, os.fsencode(path), sum(_NAMES))
            assert number > 0, os.strerror(ctypes.get_errno())
            self._paths[number] = path

    def __enter__(self) -> Inotify:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def until(self, *wanted: Event, seconds: float = 30) -> set[Event]:
        """Everything that happens until all that is wanted has; fails if it does not."""
        found: set[Event] = set()
        while not found.issuperset(wanted):
            ready = select.select([self._fd], [], [], seconds)[0]
            assert ready, f"never heard of {set(wanted) - found}, only of {found}"
            found |= self._read()
        return found

    def first(self, seconds: float = 30) -> set[Event]:
        """The next that happens."""
        assert select.select([self._fd], [], [], seconds)[0], "nothing happened"
        return self._read()

    def pending(self) -> set[Event]:
        """What has happened so far."""
        return self._read() if select.select([self._fd], [], [], 0)[0] else set()

    def _read(self) -> set[Event]:
        found, data, offset = set(), os.read(self._fd, 1 << 16), 0
        while offset < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            found |= {
                (self._paths[number], what, name) for bit, what in _NAMES.items() if mask & bit
            }
        return found
