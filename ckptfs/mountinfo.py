"""The kernel's mount table: one parser of /proc/PID/mountinfo for all that read it.

Reading the table asks no mounted file system, so a hung one cannot hang the reader. Hooks import
this where the daemon's socket cannot be reached, so it stays with `os`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator


class Entry:
    """One line of the table; a plain class, since `typing` would cost a hook its start."""

    def __init__(self, fields: list[bytes], kind: list[bytes]) -> None:
        """``fields`` stand before the separator, ``kind`` is type, source and options behind it."""
        #: The number of this mount in its table, and of the mount that it stands on.
        self.number = fields[0].decode()
        self.parent = fields[1].decode()
        #: Major and minor number of the file system: all mounts of one file system have the same.
        self.device = fields[2].decode()
        #: Which directory of the file system is seen here: "/" is all of it.
        self.root = _unescaped(fields[3])
        self.path = _unescaped(fields[4])
        #: Of the mount and of its file system.
        self.options = os.fsdecode(b",".join(fields[5:6] + kind[2:3])).split(",")
        #: ``shared:N``, ``master:N`` and the like: where mounts and unmounts propagate.
        self.propagation = tuple(field.decode() for field in fields[6:] if field)
        self.fstype = os.fsdecode(kind[0])
        self.source = _unescaped(kind[1])


def entries(table: bytes) -> Iterator[Entry]:
    """The mounts of a table, in the order they were made."""
    for line in table.split(b"\n"):  # a name may have the other ends of lines
        before, _, after = line.partition(b" - ")
        fields, kind = before.split(b" "), after.split(b" ")
        if len(fields) >= 5 and len(kind) >= 2:
            yield Entry(fields, kind)


#: Between the path of a store, which has no empty part, and the number of a fork, in the source of
#: a fork's mount.
FORK = "//fork/"


def split_source(source: str) -> tuple[str, int]:
    """The store of a mount of ours, and its line: 0 for the workspace, else a fork's number."""
    store, mark, number = source.rpartition(FORK)
    return (store, int(number)) if mark and number.isdecimal() else (source, 0)


def _unescaped(field: bytes) -> str:
    """The table writes blanks, newlines and backslashes as three octal digits. The name of a
    source is its file system's own, and may have backslashes that are not escaped."""
    first, *rest = field.split(b"\\")
    return os.fsdecode(first + b"".join(map(_unescaped_part, rest)))


def _unescaped_part(part: bytes) -> bytes:
    """What follows a backslash."""
    digits = part[:3]
    if len(digits) == 3 and not digits.strip(b"01234567"):
        return bytes([int(digits, 8) & 0xFF]) + part[3:]
    return b"\\" + part
