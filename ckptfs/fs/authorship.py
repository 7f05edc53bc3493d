"""Who changed which inodes in which epoch.

Every change is made under a signature: the set that inodes are added to while they are saved. That
costs the writer an entry in a set; the sets go into the transaction when it is flushed. An author
has a number here, and a description that the layers above give it.

An inode that an epoch changed without a signature has an unknown author: it changed while the
workspace was not mounted, or by data that the kernel wrote back so late that their writer is
unknown.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptfs.model import Epoch, Ino
from ckptfs.store.format import author_entity, author_number, inode_entity, pack_u32
from ckptfs.store.metadata import NEXT_AUTHOR

if TYPE_CHECKING:
    from ckptfs.store import Store, View
    from ckptfs.store.pending import Read

#: Beyond so many inodes in an epoch, what is remembered so as not to be noted twice is forgotten.
_REMEMBERED_MAX = 200_000
#: Beyond so many authors, at the end of an epoch, all are forgotten and get new numbers.
_AUTHORS_MAX = 512

Description = dict[str, Any]


class Signed(NamedTuple):
    """An author and the inodes that it changed in an epoch, at some time up to a commit."""

    author: int
    description: Description
    inodes: list[Ino]


class Authorship:
    def __init__(self, store: Store, head: Callable[[], View]) -> None:
        self._store = store
        self._head = head
        #: The signature of changes without an author.
        self.unsigned: set[Ino] = set()
        #: Data without a sender for a file that is open: its last author counts as theirs.
        self.late: set[Ino] = set()
        self._numbers: dict[Hashable, int] = {}
        self._described: dict[int, Description] = {}
        self._pending: dict[int, set[Ino]] = {}
        #: What is noted for the present epoch already, and the author who changed an inode last.
        self._noted: dict[int, set[Ino]] = {}
        self._last: dict[Ino, int] = {}
        #: Grows whenever signatures that were given out do not hold any more.
        self.round = 0

    def of(self, key: Hashable, description: Description) -> set[Ino]:
        """The signature of an author. ``key`` tells authors apart while the store is open."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next()
        if self._described.get(number) != description:
            self._described[number] = description
            self._noted.pop(number, None)  # so that it is described anew
        pending = self._pending.get(number)
        if pending is None:
            pending = self._pending[number] = set()
        return pending

    def _next(self) -> int:
        number = self._store.metadata.number(NEXT_AUTHOR, 1)
        self._store.metadata.put_number(NEXT_AUTHOR, number + 1)
        return number

    def flush(self) -> None:
        """Note for the head's epoch what was signed since the last time."""
        self.unsigned.clear()
        epoch = self._head().epoch
        for author, pending in self._pending.items():
            if not pending:
                continue
            known = self._noted.setdefault(author, set())
            fresh = pending - known
            if fresh:
                self._note(epoch, author, fresh, first=not known)
                known |= fresh
                self._last.update(dict.fromkeys(fresh, author))
            pending.clear()
        if len(self._last) > _REMEMBERED_MAX:
            self._last.clear()
            self._noted.clear()

    def holds(self, read: Read) -> bool:
        """Whether a signature of the head's epoch waits that is not noted yet."""
        return read.table == "authors" and any(
            pending - self._noted.get(author, set())
            and read.asks_for(author_entity(self._head().epoch, author, 0)[: len(read.prefix)])
            for author, pending in self._pending.items()
        )

    def _note(self, epoch: Epoch, author: int, inodes: set[Ino], *, first: bool) -> None:
        table = self._store.authors
        if first:
            table.put(author_entity(epoch, author, 0), json.dumps(self._described[author]).encode())
        table.put(author_entity(epoch, author, self._next()), array("Q", sorted(inodes)).tobytes())

    def finish(self) -> None:
        """The epoch ends: data without a sender count as the last author's."""
        for ino in self.late:
            author = self._last.get(ino)
            if author is not None and author in self._described:
                self._pending.setdefault(author, set()).add(ino)
        self.late.clear()
        self.flush()
        self._noted.clear()
        if len(self._numbers) > _AUTHORS_MAX:
            for known in (self._numbers, self._described, self._pending, self._last):
                known.clear()
            self.round += 1


def signatures(store: Store, epoch: Epoch) -> Iterator[Signed]:
    """What is noted for an epoch; an author may come several times, the latest last."""
    described: dict[int, Description] = {}
    found: dict[int, Signed] = {}
    for key, value in store.authors.walk(pack_u32(epoch)):
        author, number = author_number(key)
        if not number:
            described[author] = json.loads(value)
        else:
            inodes = [Ino(ino) for ino in array("Q", value)]
            found[number] = Signed(author, described.get(author, {}), inodes)
    for number in sorted(found):
        yield found[number]


def hand_over(store: Store, epoch: Epoch, child: Epoch | None) -> None:
    """The epoch goes: what is noted for it holds for the child, as far as it changed the inodes."""
    heir = None if child is None else store.view(child).bare
    descriptions: dict[int, bytes] = {}
    for key, value in list(store.authors.walk(pack_u32(epoch))):
        store.note()
        store.authors.delete(key)
        author, number = author_number(key)
        if not number:
            descriptions[author] = value
        elif heir is not None and (left := _left(store, heir, value)):
            store.authors.put(author_entity(heir.epoch, author, 0), descriptions[author])
            store.authors.put(author_entity(heir.epoch, author, number), left)


def _left(store: Store, heir: View, inodes: bytes) -> bytes:
    """Those of the inodes that the heir changed, or took over."""
    found = [ino for ino in array("Q", inodes) if _changed(store, heir, Ino(ino))]
    return array("Q", found).tobytes()


def _changed(store: Store, view: View, ino: Ino) -> bool:
    return store.inodes.own(view, inode_entity(ino)) is not None
