"""What a purge would remove: the inodes at some paths in any view, all below them, and their names.

It only reads, in steps: its cost is what was ever written about them, not that times the number of
checkpoints.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.paths import is_below, matching, parts_of
from ckptfs.interrupts import Steps
from ckptfs.model import ROOT_INO, Epoch, Ino, Place
from ckptfs.store import Store, View
from ckptfs.store.format import (
    dirent_entity,
    epoch_of,
    link_place,
    pack_u64,
    unpack_inode,
    unpack_u64,
)

#: So many paths of each kind are named; all are counted.
NAMED_MAX = 1000


class Doomed(NamedTuple):
    """What a purge would remove: inodes, and their paths in the workspace and in checkpoints, some
    thousand of them at most. ``path_count`` counts all."""

    inodes: set[Ino]
    live_paths: list[bytes]
    past_paths: list[bytes]
    path_count: int


def meant(fs: Filesystem, patterns: Sequence[bytes]) -> Steps[list[bytes]]:
    """The paths that the patterns name in the workspace, excluded files too, or in any checkpoint.
    Raises as `ckptfs.history.paths.select` does if one of them names nothing."""
    fs.flush()
    found: dict[bytes, None] = {}
    for pattern in patterns:
        parts = parts_of(pattern)
        matches = yield from _matching(fs, parts, exact=True)
        matches = matches or (yield from _matching(fs, parts, exact=False))
        if not matches:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), pattern)
        found.update(matches)
    return sorted(path for path in found if not is_below(path, found))


def _matching(fs: Filesystem, parts: list[bytes], *, exact: bool) -> Steps[dict[bytes, None]]:
    """What matches in any view. Only epochs that wrote a name can show one that no other does."""
    found: dict[bytes, None] = {}
    store = fs.store
    for epoch in list(store.epochs):
        if interrupts.is_due():
            yield from pause(fs.store)
        if epoch not in store.head_epochs and not _names_anything(store, epoch):
            continue
        found.update(dict.fromkeys(matching(fs, store.view(epoch), parts, exact=exact)))
    return found


def _names_anything(store: Store, epoch: Epoch) -> bool:
    """Whether an epoch that is still there wrote a name."""
    if epoch not in store.epochs:
        return False
    return next(store.changes.walk(epoch, store.dirents.kind), None) is not None


def find(fs: Filesystem, paths: Sequence[bytes]) -> Doomed:
    """What is or was at these paths, with all below it."""
    return interrupts.finish(finding(fs, paths))


def finding(fs: Filesystem, paths: Sequence[bytes]) -> Steps[Doomed]:
    """`find` in steps. What comes to be below meanwhile is not in it."""
    fs.flush()
    store = fs.store
    inodes: dict[Ino, None] = {}
    for epoch in list(store.epochs):
        if interrupts.is_due():
            yield from pause(fs.store)
        if epoch in store.head_epochs or _names_anything(store, epoch):
            view = store.view(epoch)
            inodes.update(dict.fromkeys(ino for path in paths for ino in _at(store, view, path)))
    pending = list(inodes)
    while pending:
        ino = pending.pop()
        for child in ever_in(store, ino):
            if interrupts.is_due():
                yield from pause(store)
            if child not in inodes:
                inodes[child] = None
                pending.append(child)
    inodes.pop(ROOT_INO, None)
    naming = _Naming(store, inodes)
    yield from naming.look()
    return naming.doomed()


def _at(store: Store, view: View, path: bytes) -> Iterator[Ino]:
    """The inode at a path of the view, if there is one."""
    ino = ROOT_INO
    for name in path.split(b"/"):
        record = store.dirents.get(view, dirent_entity(ino, name))
        if record is None:
            return
        ino = Ino(unpack_u64(record))
    yield ino


def ever_in(store: Store, directory: Ino) -> Iterator[Ino]:
    """Everything that was ever in a directory: no view may keep an entry of one that is gone."""
    for _, _, record in store.dirents.versions(pack_u64(directory)):
        if record:
            yield Ino(unpack_u64(record))


def inode_versions(store: Store, ino: Ino) -> list[tuple[Epoch, bytes]]:
    """(epoch, record) of every version of an inode, GONE where it is gone."""
    found = store.inodes.versions(pack_u64(ino))
    return [(epoch_of(suffix), record) for _, suffix, record in found]


class _Naming:
    """The paths that doomed inodes have or had.

    An epoch shows other paths than its parent where it wrote a doomed inode or a link to one, or
    where it moved a directory. So each view is asked for what its own epoch wrote, and for all of
    them only where a directory moved."""

    def __init__(self, store: Store, inodes: dict[Ino, None]) -> None:
        self._store = store
        self._inodes = inodes
        #: By epoch, the doomed inodes that it wrote, and the epochs that moved a directory.
        self._written: dict[Epoch, dict[Ino, None]] = {}
        self._moving: set[Epoch] = set()
        self._live: dict[bytes, None] = {}
        self._past: dict[bytes, None] = {}
        #: A number for each path, made from its directory's and its name.
        self._paths: set[int] = set()

    def doomed(self) -> Doomed:
        return Doomed(set(self._inodes), sorted(self._live), sorted(self._past), len(self._paths))

    def look(self) -> Steps[None]:
        yield from self._look_at_inodes()
        store = self._store
        store.pending.flush_tables()
        for epoch in sorted(self._written.keys() | self._moving):
            if epoch not in store.head_epochs and epoch in store.epochs:
                asked = self._inodes if epoch in self._moving else self._written[epoch]
                yield from self._name(store.view(epoch), asked, self._past)
        for head in store.heads.values():
            yield from self._name(head, self._inodes, self._live)

    def _look_at_inodes(self) -> Steps[None]:
        """Go through all versions of the doomed ones, and of the directories above them."""
        above: dict[Ino, None] = {}
        seen: set[Ino] = set()
        pending = list(self._inodes)
        while pending:
            if interrupts.is_due():
                yield from pause(self._store)
            ino = pending.pop()
            seen.add(ino)
            doomed = ino in self._inodes
            places: set[Place] = set()
            epochs: set[Epoch] = set()
            for epoch, record in inode_versions(self._store, ino):
                epochs.add(epoch)
                if record:
                    inode = unpack_inode(ino, record)
                    places.add((inode.parent, inode.name))
                    if inode.parent not in seen and inode.parent not in above and inode.parent:
                        above[inode.parent] = None
                        pending.append(inode.parent)
            if doomed:
                links = self._store.links.versions(pack_u64(ino))
                epochs.update(epoch_of(suffix) for _, suffix, _ in links)
                for epoch in epochs:
                    self._written.setdefault(epoch, {})[ino] = None
            if len(places) > 1:
                self._moving |= epochs

    def _name(self, view: View, inodes: dict[Ino, None], names: dict[bytes, None]) -> Steps[None]:
        """Count the paths of these in a view, and name some."""
        known: dict[Ino, _Path] = {ROOT_INO: _Path(0, b"")}
        for ino in inodes:
            if interrupts.is_due():
                yield from pause(self._store)
            record = self._store.inodes.get(view, pack_u64(ino))
            if record is None:
                continue
            inode = unpack_inode(ino, record)
            links = self._store.links.walk(view, pack_u64(ino))
            for place in ((inode.parent, inode.name), *(link_place(entity) for entity, _ in links)):
                if place[1]:
                    path = self._path(view, place, known, with_text=len(names) < NAMED_MAX)
                    self._paths.add(path.number)
                    if path.text is not None:
                        names[path.text] = None

    def _path(self, view: View, place: Place, known: dict[Ino, _Path], *, with_text: bool) -> _Path:
        """A path; each directory on the way is looked up once in a view. It begins where the view
        lacks a directory: that of a state document, which no directory has, is its name."""
        directory, name = place
        parts = [(Ino(0), name)]
        while directory not in known:
            record = self._store.inodes.get(view, pack_u64(directory))
            if record is None:
                break
            inode = unpack_inode(directory, record)
            parts.append((directory, inode.name))
            directory = inode.parent
        path = known.get(directory, _Path(0, b""))
        for ino, part in reversed(parts):
            text = path.text if with_text else None
            path = _Path(hash((path.number, part)), None if text is None else _joined(text, part))
            if ino:
                known[ino] = path
        return path


class _Path(NamedTuple):
    """A number for a path, made from its directory's and its name, and the path itself: those of
    deep trees take more memory than the trees, so only what is named has one."""

    number: int
    text: bytes | None


def _joined(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def pause(store: Store) -> Steps[None]:
    """Give way; what came meanwhile is in the tables afterwards."""
    yield
    store.pending.flush_tables()
