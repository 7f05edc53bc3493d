"""Giving free pages back to the disk: a copy of the data file without them takes its place.

The copy is written beside the data file, synced, and renamed over it. So at any moment the data
file is whole, the old one or the new one; a copy that was not finished is removed by the next
opening. Pages that held deleted bytes are not copied, nor is the unused room within pages: what was
deleted before is not in the new file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

#: The copy while it is written.
COPY_SUFFIX = ".compact"


class Copied(Protocol):
    """The part of an LMDB environment that is used here."""

    def copyfd(self, fd: int, compact: bool = False) -> None: ...


def write_copy(env: Copied, data_file: Path) -> None:
    """Write the durable copy. The environment must have no write transaction under way."""
    fresh = _copy_of(data_file)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o600)
    try:
        env.copyfd(descriptor, compact=True)
        os.fsync(descriptor)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def adopt_copy(data_file: Path) -> None:
    """Put the copy in the data file's place. Nobody may have the data file mapped."""
    os.replace(_copy_of(data_file), data_file)
    directory = os.open(data_file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def remove_leftover(data_file: Path) -> None:
    """Remove the copy of a compaction that did not end."""
    _copy_of(data_file).unlink(missing_ok=True)


def _copy_of(data_file: Path) -> Path:
    return data_file.with_name(data_file.name + COPY_SUFFIX)
