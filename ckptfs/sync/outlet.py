"""What one write-back works with: notes owed to the ledger, temporary names, links, moves.

The order that makes an interruption harmless is kept here: what is below reaches the disk first,
the ledger says so afterwards. A change below that the ledger does not know of yet is recognised by
the next scan because it compares equal to what the store has.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Ino, Inode, Place
from ckptfs.sync import lay, lower, moves
from ckptfs.sync.content import digest_of_xattrs, digest_stored
from ckptfs.sync.descent import Descent, descend, directory_at
from ckptfs.sync.leaf import special_digest
from ckptfs.sync.ledger import Ledger, Record, agreement, decode, doubted_if_recent, ino_of
from ckptfs.sync.moves import Move, Names
from ckptfs.sync.results import Tally

#: The ledger is brought up to date after this many entries, or this much content.
_FLUSH_ENTRIES = 20_000
_FLUSH_BYTES = 256 << 20
_FLUSH_MOVES = 64

#: So many names for unfinished files are tried that something stands under which cannot go.
_TEMP_TRIES = 100

Identity = tuple[int, int]
Made = TypeVar("Made")


#: mode, uid, gid, mtime
Attributes = tuple[int, int, int, int]


def _attributes(seen: os.stat_result) -> Attributes:
    return seen.st_mode, seen.st_uid, seen.st_gid, seen.st_mtime_ns


class Twin(NamedTuple):
    """A name below that has an inode with several names, for the others to be linked to."""

    path: Names
    identity: Identity


class _Linked(NamedTuple):
    """One of several names of an inode, and what the ledger is to say of it."""

    path: Names
    key: Ino
    inode: Inode
    made: Identity
    digest: bytes
    xattrs: bytes


class Late(Exception):
    """The lower directory is not what the ledger says: a scan must decide before we write."""


class Outlet:
    def __init__(self, fs: Filesystem, ledger: Ledger, down: Descent, tally: Tally) -> None:
        self.fs = fs
        self.view = fs.head
        self.ledger = ledger
        self.down = down
        self.tally = tally
        #: Paths at which someone was `Late`.
        self.late: list[bytes] = []
        self.twins: dict[Ino, Twin] = {}
        #: Which inode a file below with several names stands for.
        self.claims: dict[Identity, Ino] = {}
        #: Files below that this write-back itself changed by way of another of their names, with
        #: the attributes it gave them.
        self._stirred: dict[Identity, Attributes] = {}
        #: Names to be noted again at the end, since every further link changes the ctime.
        self._linked: list[_Linked] = []
        self._owed: list[tuple[Ino, bytes, bytes | None]] = []
        self._owed_bytes = 0
        self._moves = 0
        self._temp_prefix = moves.make_temp_prefix(fs)
        self._temp_count = 0
        #: Where the ledger's directories stand below, and those the store has elsewhere.
        self.places = moves.places_of(ledger)
        self.moved = {ino for ino, place in self.places.items() if self._is_elsewhere(ino, place)}

    def _is_elsewhere(self, ino: Ino, place: Place) -> bool:
        try:
            inode = self.fs.getattr(self.view, ino)
        except OSError:
            return False
        return bool(inode.nlink) and (inode.parent, inode.name) != place

    # -- what the store has -----------------------------------------------------------------------

    def digest(self, inode: Inode) -> bytes:
        if inode.is_file:
            return digest_stored(self.fs, self.view, inode)
        return special_digest(inode.mode, inode.rdev, inode.target)

    def xattrs_digest(self, inode: Inode) -> bytes:
        return digest_of_xattrs(lay.xattrs_of(self.fs, self.view, inode))

    # -- what is below ----------------------------------------------------------------------------

    def as_noted(self, record: Record, seen: os.stat_result) -> bool:
        """Whether an entry below is what the ledger says, our own stirring aside."""
        if record.matches(seen):
            return True
        given = self._stirred.get((seen.st_dev, seen.st_ino))
        return (
            given is not None
            and record.lower_ino == seen.st_ino
            and record.size == (seen.st_size or seen.st_rdev)
            and _attributes(seen) in (given, (*record[:3], record.mtime_ns))
        )

    def stir(self, seen: os.stat_result | None) -> None:
        """Say that a name of this file is about to come or go, or that it was given attributes."""
        if seen is not None and seen.st_nlink > 1 and not stat.S_ISDIR(seen.st_mode):
            self._stirred[seen.st_dev, seen.st_ino] = _attributes(seen)

    def make_temp(self, make: Callable[[bytes], Made]) -> tuple[bytes, Made]:
        """Let ``make`` make something under a name for unfinished things; return the name too. What
        an interrupted write-back left there goes; what another user put there may stay."""
        for _ in range(_TEMP_TRIES):
            self._temp_count += 1
            name = self._temp_prefix + b"%d" % self._temp_count
            try:
                return name, make(name)
            except FileExistsError:
                lower.discard(self.down.fd, name)
            except BaseException:
                lower.discard(self.down.fd, name)
                raise
        raise FileExistsError(errno.EEXIST, "every name for unfinished files is taken")

    def swap_in(self, temp: bytes, name: bytes) -> None:
        lower.rename(self.down.fd, temp, name)

    # -- the ledger -------------------------------------------------------------------------------

    def note(
        self,
        key: Ino,
        name: bytes,
        inode: Inode,
        made: Identity,
        digest: bytes,
        xattrs: bytes,
    ) -> None:
        """Owe the ledger that the name below now is what the store has: the very inode ``made``,
        or nothing is known of it."""
        seen = lower.look_at(self.down.fd, name)
        if lower.identity(seen) != made:
            raise Late
        self.owe(key, name, agreement(seen, inode, digest=digest, xattrs=xattrs))
        if inode.nlink > 1:
            self.remember(name, inode, seen)
            path = (*self.down.names, name)
            self._linked.append(_Linked(path, key, inode, made, digest, xattrs))

    def remember(self, name: bytes, inode: Inode, seen: os.stat_result) -> None:
        """Say which file below has the inode, so that its other names can be linked to it."""
        path = (*self.down.names, name)
        self.twins.setdefault(inode.ino, Twin(path, (seen.st_dev, seen.st_ino)))

    def owe(self, key: Ino, name: bytes, value: bytes | None) -> None:
        """Let the ledger have the record, or lose it for None, when what is below is durable."""
        self._owed.append((key, name, value))

    def wrote(self, size: int) -> None:
        self._owed_bytes += size
        self.tally.bytes += size

    def flush_if_large(self) -> None:
        if (
            len(self._owed) >= _FLUSH_ENTRIES
            or self._owed_bytes >= _FLUSH_BYTES
            or self._moves >= _FLUSH_MOVES
        ):
            self.flush()

    def flush(self) -> None:
        if not self._owed and not self._moves:
            return
        lower.make_durable(self.down.root_fd)
        now_ns = time.time_ns()
        for key, name, value in self._owed:
            if value is None:
                self.ledger.forget_tree(key, name)
            else:
                self.ledger.put(key, name, doubted_if_recent(value, now_ns))
        moves.conclude(self.fs)
        self.fs.commit()
        self._owed.clear()
        self._owed_bytes = self._moves = 0

    def finish(self) -> None:
        for path, key, inode, made, digest, xattrs in self._linked:
            with suppress(OSError), directory_at(self.down.root_fd, path[:-1]) as fd:
                seen = lower.look(fd, path[-1])
                if seen is not None and lower.identity(seen) == made:
                    self.owe(key, path[-1], agreement(seen, inode, digest=digest, xattrs=xattrs))
        self._linked.clear()
        self.flush()
        moves.end(self.fs)

    # -- moving directories -----------------------------------------------------------------------

    def move_here(self, ino: Ino, key: Ino, name: bytes) -> None:
        """Bring a directory that the store moved to a name of the directory we are in."""
        if any(owed[:2] == (key, name) for owed in self._owed):
            # The ledger must have forgotten what stood there before it says what stands there now.
            self.flush()
        self._move(ino, key, (*self.down.names, name), self.down.fd)
        self.moved.discard(ino)

    def park(self, ino: Ino) -> None:
        """Put a directory that the store has elsewhere out of the way, until its place is there."""
        name = self._temp_prefix + b"dir-%d" % ino
        if self.places[ino] != (ROOT_INO, name):
            self._move(ino, ROOT_INO, (name,), self.down.root_fd)

    def is_in_lower(self, ino: Ino) -> bool:
        """Whether the ledger still has a directory that the store moved. It has not if the one
        above was found to be gone, which takes all that was in it out of the ledger."""
        directory, name = self.places[ino]
        value = self.fs.store.ledger.get(directory, name)
        return (
            value is not None
            and ino_of(value) == ino
            and moves.path_to(self.places, directory) is not None
        )

    def forget_moved(self, ino: Ino) -> None:
        """Say that a directory that the store moved has to be made anew."""
        self.moved.discard(ino)
        self.places.pop(ino)

    def remove_moved(self, ino: Ino, clear: Callable[..., None]) -> None:
        """Remove a directory that could not be moved from where it stands, ledger and all."""
        directory, name = self.places[ino]
        self.forget_moved(ino)
        above = moves.path_to(self.places, directory)
        record = self.ledger.get(directory, name)
        if above is None or record is None:
            raise AssertionError("a moved directory has a place in the ledger")
        with descend(self.down.root_fd) as there:
            with suppress(FileNotFoundError):
                for part in above:
                    there.enter(part)
            seen = lower.look(there.fd, name) if len(there.names) == len(above) else None
            if seen is not None:
                clear(self, there, name, record, seen)
        self.owe(directory, name, None)
        self.flush()

    def _move(self, ino: Ino, key: Ino, path: Names, fd: int) -> None:
        directory, name = self.places[ino]
        above = moves.path_to(self.places, directory)
        value = self.fs.store.ledger.get(directory, name)
        if above is None or value is None or ino_of(value) != ino:
            raise AssertionError("a moved directory has a place in the ledger")
        with directory_at(self.down.root_fd, above) as source:
            record = decode(value)
            seen = lower.look_at(source, name)
            if record is None or not record.is_directory(seen):
                raise lower.exchanged()
            move = Move(ino, seen.st_ino, directory, (*above, name), key, path)
            moves.announce(self.fs, move)
            before = os.fstat(source)
            lower.move_directory(source, name, seen.st_ino, fd, path[-1])
            # The walk may have been there already, and given it the times that it is to have.
            with suppress(PermissionError):
                os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
        self._moves += 1
        self.places[ino] = (key, path[-1])
        self.ledger.move(*move.places, value)
