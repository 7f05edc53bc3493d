"""Whose the changes are: signing them as they are made, and asking for them by author.

An author is a command as `ckptfs.history.processes` sees it, or a verb of our own. `Signer` stands
in the path of the writer: a further request of the same process costs a few comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.fs.authorship import signatures
from ckptfs.history.checkpoints import Cause
from ckptfs.history.processes import Actor
from ckptfs.model import Epoch, Ino
from ckptfs.store.format import GONE, inode_entity, unpack_inode


class Signer:
    """Puts the signature of whoever makes a request under what the request changes."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._step: Actor | None = None
        self._round = -1
        self._signature: set[Ino] = set()

    def sign(self, step: Actor | None) -> None:
        """What changes next is the doing of this step; None is one that is not known: the kernel's
        own threads bring what others wrote."""
        authorship = self._fs.authorship
        if step is None:
            self._fs.signing = authorship.late
            return
        if step is not self._step or self._round != authorship.round:
            self._signature = authorship.of(step.key, _description(step))
            self._step, self._round = step, authorship.round
        self._fs.signing = self._signature


def _description(step: Actor) -> dict[str, object]:
    return {"pid": step.pid, "command": step.command, "session": step.session}


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
    fs.flush()
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
