"""The state of one write-back: records for the ledger, temporary names, hard links, moves.

Keeps the order that makes an interruption harmless: the lower directory reaches the disk first, the
ledger follows. If the ledger lacks a change, the next scan finds that it equals what the store has.
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
from ckptfs.model import ROOT_INO, Ino, Inode
from ckptfs.sync import content, intent_log, lower
from ckptfs.sync.agreed import Dirty
from ckptfs.sync.intent_log import Move, Names
from ckptfs.sync.ledger import Ledger, Record, agreement, decode, doubted_if_recent, ino_of
from ckptfs.sync.lower import Descent, descend, directory_at
from ckptfs.sync.materialise import FirstLink, Identity
from ckptfs.sync.results import Tally

#: The ledger is brought up to date after this many entries, or this much content.
_FLUSH_ENTRIES = 20_000
_FLUSH_BYTES = 256 << 20
_FLUSH_MOVES = 64

#: How many temporary names are tried if they are taken by entries that cannot be removed.
_TEMP_TRIES = 100

Made = TypeVar("Made")


#: mode, uid, gid, mtime
Attributes = tuple[int, int, int, int]


def _attributes(seen: os.stat_result) -> Attributes:
    return seen.st_mode, seen.st_uid, seen.st_gid, seen.st_mtime_ns


class _Linked(NamedTuple):
    """One of several names of an inode, and what its record shall have."""

    path: Names
    key: Ino
    inode: Inode
    made: Identity
    digest: bytes
    xattrs: bytes


class Stale(Exception):
    """The ledger is stale: the lower directory changed meanwhile, and a scan must decide first."""


class WriteBackState:
    def __init__(
        self, fs: Filesystem, ledger: Ledger, down: Descent, tally: Tally, dirty: Dirty | None
    ) -> None:
        """``dirty``: the names to look at; None for all."""
        self.fs = fs
        self.dirty = dirty
        self.view = fs.head
        self.ledger = ledger
        self.down = down
        self.tally = tally
        #: Paths at which the ledger was `Stale`.
        self.stale: list[bytes] = []
        self.first_links: dict[Ino, FirstLink] = {}
        #: The inode that a lower file with several names stands for.
        self.claims: dict[Identity, Ino] = {}
        #: Lower files that this write-back changed through another of their names, with the
        #: attributes that it gave them.
        self._own_changes: dict[Identity, Attributes] = {}
        #: Names to be recorded again at the end, since each further link changes the ctime.
        self._linked: list[_Linked] = []
        self._deferred: list[tuple[Ino, bytes, bytes | None]] = []
        self._deferred_bytes = 0
        self._moves = 0
        self._temp_prefix = intent_log.make_temp_prefix(fs)
        self._temp_count = 0
        known = intent_log.all_places(ledger) if dirty is None else dirty.places
        self.places = intent_log.Places(fs, ledger, known)
        #: Directories of the ledger that the store has elsewhere.
        self.moved = self.places.moved()

    # -- what the store has -----------------------------------------------------------------------

    def digest(self, inode: Inode) -> bytes:
        return content.digest_stored(self.fs, self.view, inode)

    def xattrs_digest(self, inode: Inode) -> bytes:
        return content.digest_of_xattrs(content.xattrs_stored(self.fs, self.view, inode))

    # -- the lower directory ----------------------------------------------------------------------

    def as_noted(self, record: Record, seen: os.stat_result) -> bool:
        """Whether a lower entry is as recorded, apart from our own changes."""
        if record.matches(seen):
            return True
        given = self._own_changes.get((seen.st_dev, seen.st_ino))
        return (
            given is not None
            and record.lower_ino == seen.st_ino
            and record.size == (seen.st_size or seen.st_rdev)
            and _attributes(seen) in (given, (*record[:3], record.mtime_ns))
        )

    def note_own_change(self, seen: os.stat_result | None) -> None:
        """A name of this file is about to come or go, or the file got attributes."""
        if seen is not None and seen.st_nlink > 1 and not stat.S_ISDIR(seen.st_mode):
            self._own_changes[seen.st_dev, seen.st_ino] = _attributes(seen)

    def make_temp(self, make: Callable[[bytes], Made]) -> tuple[bytes, Made]:
        """Call ``make`` with a temporary name; return the name too. Leftovers of an interrupted
        write-back are removed; another user's entry may stay."""
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
        """Record that the lower name has what the store has: it must be the very inode ``made``."""
        seen = lower.lstat(self.down.fd, name)
        if lower.identity(seen) != made:
            raise Stale
        self.defer(key, name, agreement(seen, inode, digest=digest, xattrs=xattrs))
        if inode.nlink > 1:
            self.remember(name, inode, seen)
            path = (*self.down.names, name)
            self._linked.append(_Linked(path, key, inode, made, digest, xattrs))

    def remember(self, name: bytes, inode: Inode, seen: os.stat_result) -> None:
        """Note the lower file of an inode, so that its other names can be linked to it."""
        path = (*self.down.names, name)
        self.first_links.setdefault(inode.ino, FirstLink(path, (seen.st_dev, seen.st_ino)))

    def defer(self, key: Ino, name: bytes, value: bytes | None) -> None:
        """Put a record into the ledger (None: forget it) once the lower directory is durable."""
        self._deferred.append((key, name, value))

    def wrote(self, size: int) -> None:
        self._deferred_bytes += size
        self.tally.bytes += size

    def flush_if_large(self) -> None:
        if (
            len(self._deferred) >= _FLUSH_ENTRIES
            or self._deferred_bytes >= _FLUSH_BYTES
            or self._moves >= _FLUSH_MOVES
        ):
            self.flush()

    def flush(self) -> None:
        if not self._deferred and not self._moves:
            return
        lower.make_durable(self.down.root_fd)
        now_ns = time.time_ns()
        for key, name, value in self._deferred:
            if value is None:
                self.ledger.forget_tree(key, name)
            else:
                self.ledger.put(key, name, doubted_if_recent(value, now_ns))
        intent_log.conclude(self.fs)
        self.fs.commit()
        self._deferred.clear()
        self._deferred_bytes = self._moves = 0

    def finish(self) -> None:
        for path, key, inode, made, digest, xattrs in self._linked:
            with suppress(OSError), directory_at(self.down.root_fd, path[:-1]) as fd:
                seen = lower.find(fd, path[-1])
                if seen is not None and lower.identity(seen) == made:
                    self.defer(key, path[-1], agreement(seen, inode, digest=digest, xattrs=xattrs))
        self._linked.clear()
        self.flush()
        intent_log.end(self.fs)

    # -- moving directories -----------------------------------------------------------------------

    def move_here(self, ino: Ino, key: Ino, name: bytes) -> None:
        """Move a directory that the store moved to a name in the current directory."""
        if any(owed[:2] == (key, name) for owed in self._deferred):
            # The ledger must forget the old entry of that name before it records the new one.
            self.flush()
        self._move(ino, key, (*self.down.names, name), self.down.fd)
        self.moved.discard(ino)

    def park(self, ino: Ino) -> None:
        """Move a directory that the store has elsewhere out of the way until its place exists."""
        name = self._temp_prefix + b"dir-%d" % ino
        if self.places.get(ino) != (ROOT_INO, name):
            before = os.fstat(self.down.root_fd)
            self._move(ino, ROOT_INO, (name,), self.down.root_fd)
            _put_times_back(self.down.root_fd, before)

    def is_in_lower(self, ino: Ino) -> bool:
        """Whether the ledger still has a directory that the store moved. If the directory above
        was found to be gone, all that was in it has left the ledger."""
        directory, name = self.places.require(ino)
        value = self.fs.store.ledger.get(directory, name)
        return (
            value is not None
            and ino_of(value) == ino
            and self.places.path_to(directory) is not None
        )

    def forget_moved(self, ino: Ino) -> None:
        """A directory that the store moved has to be made anew."""
        self.moved.discard(ino)
        self.places.forget(ino)

    def remove_moved(self, ino: Ino, clear: Callable[..., None]) -> None:
        """Remove a directory that could not be moved from its old place, ledger included."""
        directory, name = self.places.require(ino)
        self.forget_moved(ino)
        above = self.places.path_to(directory)
        record = self.ledger.get(directory, name)
        if above is None or record is None:
            raise AssertionError("a moved directory has a place in the ledger")
        with descend(self.down.root_fd) as there:
            with suppress(FileNotFoundError):
                for part in above:
                    there.enter(part)
            seen = lower.find(there.fd, name) if len(there.names) == len(above) else None
            if seen is not None:
                clear(self, there, name, record, seen)
        self.defer(directory, name, None)
        self.flush()

    def _move(self, ino: Ino, key: Ino, path: Names, fd: int) -> None:
        directory, name = self.places.require(ino)
        above = self.places.path_to(directory)
        value = self.fs.store.ledger.get(directory, name)
        if above is None or value is None or ino_of(value) != ino:
            raise lower.exchanged()  # both sides moved it, or a directory above it
        with directory_at(self.down.root_fd, above) as source:
            record = decode(value)
            seen = lower.lstat(source, name)
            if record is None or not record.is_directory(seen):
                raise lower.exchanged()
            move = Move(ino, seen.st_ino, directory, (*above, name), key, path)
            intent_log.announce(self.fs, move)
            before = os.fstat(source)
            lower.move_directory(source, name, seen.st_ino, fd, path[-1])
            # The walk may already have given the directory its times.
            _put_times_back(source, before)
        self._moves += 1
        self.places.put(ino, (key, path[-1]))
        self.ledger.move(*move.places, value)


def _put_times_back(fd: int, before: os.stat_result) -> None:
    with suppress(PermissionError):
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
