"""The intent log of a write-back: what it notes in the store before it changes the lower directory.

Owns the temporary names in the lower directory, the mark of a write-back that has not ended, and
the log of directory moves. A rename in the lower directory and the ledger cannot change in one
step. So a move is logged and committed first; after an interruption `recover` makes the ledger say
where the directory is. Without that, a half-done move would read as "deleted here, new there".
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
from ckptfs.sync.ledger import Ledger, ino_of, is_directory
from ckptfs.sync.lower import directory_at

#: Begins the names of unfinished files in the lower directory.
TEMP_PREFIX = b".ckptfs-tmp-"

_ID_FACT = b"sync/id"
_MOVES_FACT = b"sync/moves"
_WRITING_FACT = b"sync/writing"

# ino, inode number of the lower directory; parent and length of path of the source and the target
_MOVE = struct.Struct("<QQQIQI")

Names = tuple[bytes, ...]


def temp_prefix(fs: Filesystem) -> bytes | None:
    """The prefix of this store's temporary names; None if it never made any. It has the store's own
    id, so that files of another store or of the user are never removed."""
    identity = fs.store.metadata.get(_ID_FACT)
    return None if identity is None else TEMP_PREFIX + identity + b"-"


def make_temp_prefix(fs: Filesystem) -> bytes:
    """`temp_prefix`, made and durable before the first file has it."""
    prefix = temp_prefix(fs)
    if prefix is None:
        identity = os.urandom(6).hex().encode()
        fs.store.metadata.put(_ID_FACT, identity)
        fs.commit()
        prefix = TEMP_PREFIX + identity + b"-"
    return prefix


# -- a write-back under way ------------------------------------------------------------------------


def begin(fs: Filesystem) -> None:
    """Make durable that a write-back is about to change the lower directory."""
    if fs.store.metadata.get(_WRITING_FACT) is None:
        fs.store.metadata.put(_WRITING_FACT, b"1")
        fs.commit()


def was_interrupted(fs: Filesystem) -> bool:
    """Whether a write-back began and did not end: then the times of lower directories, which every
    change in them moves, may be its own doing."""
    return fs.store.metadata.get(_WRITING_FACT) is not None


def end(fs: Filesystem) -> None:
    fs.store.metadata.delete(_WRITING_FACT)


# -- the places of directories ---------------------------------------------------------------------


class Places:
    """The place in the ledger of each of its directories. Those that the store may have moved are
    known from the beginning; any other stands where the store has it, if the ledger says so too."""

    def __init__(self, fs: Filesystem, ledger: Ledger, known: dict[Ino, Place]) -> None:
        self._fs = fs
        self._ledger = ledger
        self._known = known

    def get(self, ino: Ino) -> Place | None:
        place = self._known.get(ino)
        if place is not None:
            return place
        with contextlib.suppress(OSError):
            inode = self._fs.getattr(self._fs.head, ino)
            record = self._ledger.get(inode.parent, inode.name)
            if record is not None and record.is_dir and record.ino == ino:
                return inode.parent, inode.name
        return None

    def put(self, ino: Ino, place: Place) -> None:
        self._known[ino] = place

    def forget(self, ino: Ino) -> None:
        self._known.pop(ino, None)

    def require(self, ino: Ino) -> Place:
        place = self.get(ino)
        if place is None:
            raise AssertionError("a moved directory has a place in the ledger")
        return place

    def path_to(self, directory: Ino) -> Names | None:
        """The names from the root to a directory, or None if the ledger does not reach it."""
        names: list[bytes] = []
        while directory != ROOT_INO:
            place = self.get(directory)
            if place is None:
                return None
            directory, name = place
            names.append(name)
        return tuple(reversed(names))

    def moved(self) -> set[Ino]:
        """Those that the store has elsewhere."""
        return {ino for ino, place in self._known.items() if self._is_elsewhere(ino, place)}

    def _is_elsewhere(self, ino: Ino, place: Place) -> bool:
        try:
            inode = self._fs.getattr(self._fs.head, ino)
        except OSError:
            return False
        return bool(inode.nlink) and (inode.parent, inode.name) != place


def all_places(ledger: Ledger) -> dict[Ino, Place]:
    """The place of each of the ledger's directories."""
    return {
        ino_of(value): (directory, name)
        for directory, name, value in ledger.walk(ROOT_INO)
        if is_directory(value)
    }


class Move(NamedTuple):
    """``old`` and ``new`` are directories of the ledger. The paths lead to the entry in the lower
    directory once exactly the moves before this one are done."""

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
    """Log a move durably before it happens."""
    facts = fs.store.metadata
    data = (facts.get(_MOVES_FACT) or b"") + _pack(move)
    facts.put(_MOVES_FACT, data)
    fs.store.note_space(len(data), 1)  # of the reserve: a full disk must not prevent an unmount
    fs.commit()


def conclude(fs: Filesystem) -> None:
    """Clear the log of moves: all are on disk, and so is, with the next commit, the ledger."""
    fs.store.metadata.delete(_MOVES_FACT)


def recover(fs: Filesystem, ledger: Ledger, root_fd: int) -> None:
    """After an interruption: bring the ledger up to date with the logged moves. The last one is
    checked first: if it was done, all before it were."""
    data = fs.store.metadata.get(_MOVES_FACT)
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
        seen = lower.find(fd, path[-1])
        return seen is not None and stat.S_ISDIR(seen.st_mode) and seen.st_ino == move.lower_ino
    return False
