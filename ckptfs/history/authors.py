"""Whose the changes are: signing them as they are made, and asking for them by author.

An author is a command as `ckptfs.history.processes` sees it, or a verb of our own. `Signer` stands
in the path of the writer: a further request of the same process costs a few comparisons.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.fs.authorship import signatures
from ckptfs.history.checkpoints import Cause
from ckptfs.history.processes import Actor, Who
from ckptfs.model import Clock, Epoch, Ino
from ckptfs.store.format import GONE, inode_entity, unpack_inode

#: For how long a process id means what it meant, and its command line what it was.
_TRUST_NS = 1_000_000_000
#: How many process ids are remembered at once.
_RECENT_MAX = 1024

_NO_PID = -1


class Signer:
    """Puts the signature of whoever makes a request under what the request changes."""

    def __init__(self, fs: Filesystem, who: Who, clock: Clock = time.monotonic_ns) -> None:
        self._fs = fs
        self._who = who
        self._clock = clock
        self._pid = _NO_PID
        self._until_ns = 0
        self._round = 0
        self._signature: set[Ino] = set()
        self._recent: dict[int, tuple[Actor | None, int]] = {}

    def sign(self, pid: int) -> None:
        """What changes next is the doing of this process or thread; 0 is one that is not known."""
        fs = self._fs
        if not pid:
            fs.signing = fs.authorship.late
            return
        if (
            pid != self._pid
            or self._clock() >= self._until_ns
            or self._round != fs.authorship.round
        ):
            self._signature = self._signature_of(pid)
            self._round = fs.authorship.round
        fs.signing = self._signature

    def _signature_of(self, pid: int) -> set[Ino]:
        authorship = self._fs.authorship
        now_ns = self._clock()
        self._pid, self._until_ns = pid, now_ns + _TRUST_NS
        actor = self._actor(pid, now_ns)
        if actor is None:
            return authorship.late  # the kernel's own threads bring what others wrote
        if actor.provisional:
            self._pid = _NO_PID  # soon it will have a better name
        return authorship.of(actor.key, _description(actor))

    def _actor(self, pid: int, now_ns: int) -> Actor | None:
        known = self._recent.get(pid)
        if known is not None and now_ns < known[1]:
            return known[0]
        actor = self._who(pid)
        if actor is None or not actor.provisional:
            if len(self._recent) >= _RECENT_MAX:
                self._recent.clear()
            self._recent[pid] = (actor, now_ns + _TRUST_NS)
        return actor


def _description(actor: Actor) -> dict[str, object]:
    return {"pid": actor.pid, "command": actor.command, "session": actor.session}


@contextmanager
def acting(fs: Filesystem, cause: Cause) -> Iterator[None]:
    """Sign what a verb of our own changes in the name of who asked for it."""
    if cause.command:
        key = (cause.pid, cause.command)
        described = {"pid": cause.pid, "command": cause.command, "session": cause.session}
        fs.signing = fs.authorship.of(key, described)
    else:
        fs.signing = fs.authorship.unsigned
    try:
        yield
    finally:
        fs.signing = fs.authorship.unsigned


# -- asking ----------------------------------------------------------------------------------------


class Record(NamedTuple):
    """Who changed what in some epochs: an inode's authors in the order in which they came, and by
    epoch what was signed."""

    authors: dict[Ino, list[Cause]]
    signed: dict[Epoch, set[Ino]]

    def of(self, *inodes: Ino) -> list[Cause]:
        """Who changed any of the inodes, the latest last."""
        return list(dict.fromkeys(one for ino in inodes for one in self.authors.get(ino, [])))

    def everybody(self) -> list[Cause]:
        return list(dict.fromkeys(one for known in self.authors.values() for one in known))

    def has_unknown(self, fs: Filesystem, ino: Ino) -> bool:
        """Whether somebody changed a file of whom nothing is known."""
        return any(
            ino not in signed and _changed(fs, epoch, ino) for epoch, signed in self.signed.items()
        )


def _changed(fs: Filesystem, epoch: Epoch, ino: Ino) -> bool:
    """Whether an epoch changed an inode, otherwise than by letting go of one that has no name."""
    table, view, entity = fs.store.inodes, fs.view_of(epoch).bare, inode_entity(ino)
    own = table.own(view, entity)
    if own is None:
        return False
    before = table.inherited(view, entity)
    return own != GONE or before is None or unpack_inode(ino, before).nlink > 0


def record_of(fs: Filesystem, epochs: Iterable[Epoch]) -> Record:
    """Who changed what in these epochs."""
    fs.settle()
    found = Record({}, {})
    for epoch in sorted(epochs):
        signed = found.signed[epoch] = set()
        for _, description, inodes in signatures(fs.store, epoch):
            author = Cause(**description)
            for ino in inodes:
                known = found.authors.setdefault(ino, [])
                if author in known:
                    known.remove(author)
                known.append(author)
            signed.update(inodes)
    return found
