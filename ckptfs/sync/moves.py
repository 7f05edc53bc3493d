"""The notes that a write-back leaves in the store while it is under way.

Owns the names of unfinished things in the lower directory, the mark of a write-back that has not
ended, and the announcement that makes moving a directory safe. A rename below and the ledger cannot
change in one step. So the move is noted and committed first; an interrupted write-back leaves the
note, and `recover` makes the ledger say where the directory is. Without that, a half-done move
would read as "deleted here, new there".
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Ino, Place
from ckptfs.sync import lower
from ckptfs.sync.descent import directory_at
from ckptfs.sync.frames import TEMP_PREFIX
from ckptfs.sync.ledger import Ledger, ino_of, is_directory

_ID_FACT = b"sync/id"
_MOVES_FACT = b"sync/moves"
_WRITING_FACT = b"sync/writing"

# inode, inode number below, directory and length of path it comes from, the same where it goes to
_MOVE = struct.Struct("<QQQIQI")

Names = tuple[bytes, ...]


def temp_prefix(fs: Filesystem) -> bytes | None:
    """How the names of this store's unfinished files begin; None if it never made any. The store's
    own id is in them, so that nothing is ever removed that another store or the user put there."""
    identity = fs.store.facts.get(_ID_FACT)
    return None if identity is None else TEMP_PREFIX + identity + b"-"


def make_temp_prefix(fs: Filesystem) -> bytes:
    """`temp_prefix`, made and durable before the first file is named after it."""
    prefix = temp_prefix(fs)
    if prefix is None:
        identity = os.urandom(6).hex().encode()
        fs.store.facts.put(_ID_FACT, identity)
        fs.commit()
        prefix = TEMP_PREFIX + identity + b"-"
    return prefix


# -- a write-back under way ------------------------------------------------------------------------


def begin(fs: Filesystem) -> None:
    """Make durable that the lower directory is about to be changed by us."""
    if fs.store.facts.get(_WRITING_FACT) is None:
        fs.store.facts.put(_WRITING_FACT, b"1")
        fs.commit()


def was_interrupted(fs: Filesystem) -> bool:
    """Whether a write-back began and did not end: then the times of directories below, which every
    change in them moves, may be our own doing."""
    return fs.store.facts.get(_WRITING_FACT) is not None


def end(fs: Filesystem) -> None:
    fs.store.facts.delete(_WRITING_FACT)


# -- where directories stand -----------------------------------------------------------------------


def places_of(ledger: Ledger) -> dict[Ino, Place]:
    """Where each directory that the ledger knows stands below."""
    return {
        ino_of(value): (directory, name)
        for directory, name, value in ledger.walk(ROOT_INO)
        if is_directory(value)
    }


def path_to(places: dict[Ino, Place], directory: Ino) -> Names | None:
    """The names from the root below to a directory, or None if the ledger does not reach it."""
    names: list[bytes] = []
    while directory != ROOT_INO:
        place = places.get(directory)
        if place is None:
            return None
        directory, name = place
        names.append(name)
    return tuple(reversed(names))


class Move(NamedTuple):
    """``old`` and ``new`` are directories of the ledger; the paths say how to get to the entry
    below, and hold while exactly the moves before this one are done."""

    ino: Ino
    lower_ino: int
    old: Ino
    old_path: Names
    new: Ino
    new_path: Names

    @property
    def places(self) -> tuple[Place, Place]:
        return (self.old, self.old_path[-1]), (self.new, self.new_path[-1])


def _pack(move: Move) -> bytes:
    old, new = b"/".join(move.old_path), b"/".join(move.new_path)
    head = _MOVE.pack(move.ino, move.lower_ino, move.old, len(old), move.new, len(new))
    return head + old + new


def _unpack(data: bytes) -> list[Move]:
    found = []
    while data:
        ino, lower_ino, old, old_length, new, new_length = _MOVE.unpack_from(data)
        middle = _MOVE.size + old_length
        end = middle + new_length
        old_path = tuple(data[_MOVE.size : middle].split(b"/"))
        new_path = tuple(data[middle:end].split(b"/"))
        found.append(Move(Ino(ino), lower_ino, Ino(old), old_path, Ino(new), new_path))
        data = data[end:]
    return found


def announce(fs: Filesystem, move: Move) -> None:
    """Make durable that a move is about to happen."""
    facts = fs.store.facts
    data = (facts.get(_MOVES_FACT) or b"") + _pack(move)
    facts.put(_MOVES_FACT, data)
    fs.store.note_room(len(data), 1)  # of the reserve: a full disk must not keep anyone mounted
    fs.commit()


def conclude(fs: Filesystem) -> None:
    """Every announced move is on the disk, and so is, with the next commit, the ledger."""
    fs.store.facts.delete(_MOVES_FACT)


def recover(fs: Filesystem, ledger: Ledger, root_fd: int) -> None:
    """Let the ledger say where each directory stands that was being moved when something ended
    the write-back. The last move is looked at first: if it was done, all before it were."""
    data = fs.store.facts.get(_MOVES_FACT)
    if not data:
        return
    for move in reversed(_unpack(data)):
        old, new = move.places
        if _stands_at(root_fd, move, move.new_path):
            _note(fs, ledger, move, old, new)
            break
        _note(fs, ledger, move, new, old)
    conclude(fs)


def _note(fs: Filesystem, ledger: Ledger, move: Move, wrong: Place, right: Place) -> None:
    value = fs.store.ledger.get(*wrong)
    if value is not None and is_directory(value) and ino_of(value) == move.ino:
        ledger.move(wrong, right, value)


def _stands_at(root_fd: int, move: Move, path: Names) -> bool:
    with contextlib.suppress(OSError), directory_at(root_fd, path[:-1]) as fd:
        seen = lower.look(fd, path[-1])
        return seen is not None and stat.S_ISDIR(seen.st_mode) and seen.st_ino == move.lower_ino
    return False
