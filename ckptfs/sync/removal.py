"""Removing from the lower directory what the store has deleted, and nothing else.

Every entry is compared with the ledger before it goes. What the ledger does not know, or knows
differently, stays, with the directories above it, until a scan has brought it in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from ckptfs.model import Ino
from ckptfs.sync import credentials, lower
from ckptfs.sync.descent import Descent
from ckptfs.sync.frames import TEMP_PREFIX
from ckptfs.sync.ledger import Record, decode, ino_of, is_directory
from ckptfs.sync.outlet import Late, Outlet


def remove(out: Outlet, key: Ino, name: bytes) -> None:
    """Remove an entry of the directory we are in, if the ledger still has it there."""
    record = out.ledger.get(key, name)
    if record is None or (record.is_dir and record.ino in out.moved):
        # Moved to its new place already, or waiting to be.
        return
    seen = lower.look(out.down.fd, name)
    if seen is not None:
        if record.is_dir:
            clear_directory(out, out.down, name, record, seen)
        else:
            _unlink(out, out.down.fd, name, record, seen)
    out.owe(key, name, None)


def _unlink(out: Outlet, fd: int, name: bytes, record: Record, seen: os.stat_result) -> None:
    if not out.as_noted(record, seen):
        raise Late
    out.stir(seen)
    lower.unlink(fd, name)
    out.tally.deleted += 1


class _Frame:
    """A directory below that is being emptied."""

    __slots__ = ("key", "name", "waiting")

    def __init__(self, name: bytes, key: Ino) -> None:
        self.name = name
        self.key = key
        self.waiting: list[tuple[bytes, Record]] = []


def clear_directory(
    out: Outlet, down: Descent, name: bytes, record: Record, seen: os.stat_result
) -> None:
    """Remove a directory of ``down`` with all that the ledger knows in it; `Late` if more is there.

    Directories in it that the store has moved elsewhere are put aside. The record of the directory
    itself is left to the caller.
    """
    if record.ino in out.moved:
        out.park(record.ino)
        return
    if not stat.S_ISDIR(seen.st_mode):
        raise Late
    depth = len(down.names)
    try:
        complete = _clear(out, down, name, record)
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise Late from error
        raise
    finally:
        down.leave_to(depth)
    if not complete:
        raise Late


def _clear(out: Outlet, down: Descent, name: bytes, record: Record) -> bool:
    """Empty and remove a directory; say whether all of it could go."""
    complete = True
    frames = [_go_in(out, down, name, record)]
    while frames:
        frame = frames[-1]
        if frame.waiting:
            frames.append(_go_in(out, down, *frame.waiting.pop()))
            continue
        complete = _empty(out, down, frame) and complete
        frames.pop()
        down.leave()
        complete = _remove_empty(out, down, frame.name) and complete
        if frames and complete:
            out.owe(frames[-1].key, frame.name, None)
    return complete


def _go_in(out: Outlet, down: Descent, name: bytes, of: Record) -> _Frame:
    """Enter a directory and find the directories in it; what the store has moved is put aside."""
    seen = down.enter_known(name, of.is_directory)
    if seen.st_mode & 0o300 != 0o300 and credentials.needs_mode(seen):
        with contextlib.suppress(OSError):
            os.fchmod(down.fd, 0o700)
    frame = _Frame(name, of.ino)
    for inner, value in out.ledger.children(of.ino).items():
        if not is_directory(value):
            continue
        if ino_of(value) in out.moved:
            out.park(ino_of(value))
            continue
        record, there = decode(value), lower.look(down.fd, inner)
        if record is not None and there is not None and stat.S_ISDIR(there.st_mode):
            frame.waiting.append((inner, record))
    return frame


def _empty(out: Outlet, down: Descent, frame: _Frame) -> bool:
    """Remove the files of a directory; say whether all of them could go."""
    complete = True
    known = out.ledger.children(frame.key)
    for name in lower.names_in(down.fd):
        value = known.pop(name, None)
        record = None if value is None else decode(value)
        seen = lower.look(down.fd, name)
        if seen is None:
            continue
        if value is None and name.startswith(TEMP_PREFIX):
            lower.discard(down.fd, name)
        elif record is None or record.is_dir or not out.as_noted(record, seen):
            complete = False
        else:
            _unlink(out, down.fd, name, record, seen)
            out.owe(frame.key, name, None)
    for name in known:
        out.owe(frame.key, name, None)
    return complete


def _remove_empty(out: Outlet, down: Descent, name: bytes) -> bool:
    try:
        lower.rmdir(down.fd, name)
    except OSError:
        return False
    out.tally.deleted += 1
    return True
