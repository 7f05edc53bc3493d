"""Lists of checkpoints, and the history of one path.

A path has an entry for every checkpoint in which it differs from the parent checkpoint, so states
that a restore left behind are listed too. The file is followed over renames in both directions,
starting at the newest place where the path exists; a deleted path has a history like any other.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.errors import CheckpointUnknown
from ckptfs.fs import Filesystem
from ckptfs.history import references
from ckptfs.history.authors import attribution_of
from ckptfs.history.checkpoints import (
    MOMENT,
    Cause,
    Checkpoint,
    count_moments,
    of_line,
    state_before,
    view_or_empty,
)
from ckptfs.history.diff.changed import MODIFIED, differences, differing_blocks, epochs_between
from ckptfs.history.diff.tree import ADDED, DELETED, RENAMED, Change, TreeReader, compare_views
from ckptfs.history.paths import ROOT_PATH, inodes_along, seek
from ckptfs.history.references import parse_time
from ckptfs.model import NO_CONTENT, Epoch, Inode
from ckptfs.store import View
from ckptfs.store.format import NO_EPOCH, dirent_entity, epoch_of, inode_entity, pack_u64
from ckptfs.store.tables import Versioned

_SECOND_NS = 1_000_000_000


class Listed(NamedTuple):
    """The checkpoints of a list, oldest first, how many older ones the limit cut off, and how many
    moments lie between them."""

    checkpoints: list[Checkpoint]
    more: int
    moments: int


def listed(
    fs: Filesystem,
    *,
    limit: int | None = None,
    since: str = "",
    path: bytes | None = None,
    moments: bool = False,
) -> Listed:
    """The newest checkpoints, ``limit`` of them or all; only those from ``since`` on (a time, or
    a checkpoint), only those in which ``path`` changed. With ``moments`` also those.

    Raises FileNotFoundError if no checkpoint has the path.
    """
    found = of_line(fs, moments=moments)
    if since:
        found = _from(fs, found, since)
    if path is not None:
        changed = {version.checkpoint.id for version in history_of(fs, path) if version.checkpoint}
        found = [item for item in found if item.id in changed]
    more = 0 if limit is None else max(0, len(found) - limit)
    shown = found[more:]
    return Listed(shown, more, 0 if moments else _moments_between(fs, shown))


def _moments_between(fs: Filesystem, shown: list[Checkpoint]) -> int:
    """How many moments are not older than the oldest checkpoint shown."""
    if not count_moments(fs.store):
        return 0
    oldest = shown[0].id if shown else 0
    every = of_line(fs, moments=True)
    newer = takewhile(lambda item: item.id >= oldest, reversed(every))
    return sum(item.is_moment for item in newer)


def _from(fs: Filesystem, known: list[Checkpoint], since: str) -> list[Checkpoint]:
    now_ns = fs.clock()
    at_ns = parse_time(since, now_ns)
    if at_ns is not None:
        # Lists show whole seconds, so a time that was read there means the whole second.
        begin_ns = at_ns // _SECOND_NS * _SECOND_NS
        return [item for item in known if item.time_ns >= begin_ns]
    try:
        first = references.resolve_checkpoint(fs, since, now_ns)
    except CheckpointUnknown as error:
        reason = f"Cannot list since {since}: it is neither a time nor a checkpoint"
        raise CheckpointUnknown(since, error.near, reason) from error
    return [item for item in known if item.id >= first.id]


#: How the message of a checkpoint begins that was taken because a command was about to write.
_BEFORE = "before: "


@dataclass(frozen=True)
class Version:
    """A change of the path. ``checkpoint`` is the one that has it, None for what is not saved.

    ``writer`` is its author, the latest if there are several. For a checkpoint without recorded
    authors it is the likely one, if automatic checkpoints name it: the command that the checkpoint
    before was taken for, or that this one was taken after.
    """

    checkpoint: Checkpoint | None
    change: Change
    writer: Cause | None = None


def history_of(fs: Filesystem, path: bytes) -> list[Version]:
    """Newest first. Raises FileNotFoundError if no checkpoint has the path."""
    fs.flush()
    known: dict[Epoch, Checkpoint | None] = {fs.head.epoch: None}
    for checkpoint in reversed(of_line(fs, moments=True)):
        known[checkpoint.epoch] = checkpoint
    origins = {epoch: state_before(fs.store, epoch) for epoch in known}
    paths = _Followed(fs, path, origins)
    found = []
    for epoch in filter(paths.may_differ, known):
        interrupts.check()
        saved, origin = known[epoch], view_or_empty(fs, origins[epoch])
        view = fs.view_of(epoch).bare
        change = _change(fs, paths.end(origin, epoch), paths.end(view, epoch))
        if change is not None and not change.only_times:
            writer = _writer(fs, origin, view, change)
            if writer is None:
                writer = _likely_writer(known.get(origin.epoch), saved)
            found.append(Version(saved, change, writer if writer != Cause() else None))
    return found


def _writer(fs: Filesystem, origin: View, view: View, change: Change) -> Cause | None:
    """The author of a change; an empty cause if it is unknown, None if none is recorded at all."""
    noted = attribution_of(fs, epochs_between(fs.store, origin.epoch, view.epoch))
    authors = noted.of(*(inode.ino for inode in (change.old, change.new) if inode is not None))
    if authors:
        return authors[-1]
    return Cause() if noted.authors else None


def _likely_writer(origin: Checkpoint | None, saved: Checkpoint | None) -> Cause | None:
    if (
        origin is not None
        and origin.kind in ("auto", MOMENT)
        and origin.message.startswith(_BEFORE)
    ):
        return origin.cause
    if saved is not None and saved.kind == "auto" and not saved.message.startswith(_BEFORE):
        return saved.cause
    return None


# -- following -------------------------------------------------------------------------------------


#: The file of a path that leads to none: no epoch wrote it.
_NOTHING = b""


class _Trace(NamedTuple):
    """What a path hangs on in a view: the directory entries on the way to it, the first that is
    missing among them, and the file there. As long as none is written, the path leads to the same
    bytes. Of a directory nothing can be said so: ``file`` is None."""

    entries: tuple[bytes, ...]
    file: bytes | None


class _End(NamedTuple):
    """A view, what the path is called there, and what it leads to."""

    view: View
    path: bytes
    inode: Inode | None


class _Followed:
    """The path's name in each state, followed along the tree of epochs from the newest state that
    has the path, and the states in which it may differ from the one before. ``origins`` has, by
    epoch and newest first, the state that each came from."""

    def __init__(self, fs: Filesystem, path: bytes, origins: dict[Epoch, Epoch]) -> None:
        self._fs = fs
        self._path = path
        self._origins = origins
        self._paths: dict[Epoch, bytes] = {}
        self._same: set[Epoch] = set()
        #: By entity, the epochs that wrote it.
        self._writers: dict[bytes, set[Epoch]] = {_NOTHING: set()}
        self._inodes: dict[tuple[Epoch, bytes], Inode | None] = {}
        self._follow(self._start())

    def end(self, view: View, near: Epoch) -> _End:
        """The path in a state; if that is not one of them, by its name in one that is near."""
        epoch = view.epoch
        path = self._paths.get(epoch if epoch in self._origins else near, self._path)
        # A state that cannot differ has what its origin has, which the next version asks for too.
        while epoch in self._same:
            epoch = self._origins[epoch]
        if (epoch, path) not in self._inodes:
            self._inodes[epoch, path] = seek(self._fs, view, path)
        return _End(view, path, self._inodes[epoch, path])

    def may_differ(self, epoch: Epoch) -> bool:
        return epoch not in self._same

    def _start(self) -> Epoch:
        fs, path = self._fs, self._path
        for epoch in interrupts.checked(self._origins):
            if seek(fs, fs.view_of(epoch), path) is not None:
                return epoch
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _follow(self, start: Epoch) -> None:
        near: dict[Epoch, list[Epoch]] = {epoch: [] for epoch in self._origins}
        for epoch, origin in self._origins.items():
            if origin != NO_EPOCH:
                near[epoch].append(origin)
                near[origin].append(epoch)
        self._paths[start] = self._path
        pending = [(start, self._trace(start, self._path))]
        while pending:
            interrupts.check()
            here, trace = pending.pop()
            for there in near[here]:
                if there not in self._paths:
                    pending.append((there, self._go_on(here, there, trace)))

    def _go_on(self, here: Epoch, there: Epoch, trace: _Trace) -> _Trace:
        """Note what the path is called in the next state, and return its trace there."""
        path = self._paths[here]
        older = self._origins[here] == there
        between = self._between(here if older else there)
        if any(self._wrote(self._fs.store.dirents, entry, between) for entry in trace.entries):
            views = self._fs.view_of(here).bare, self._fs.view_of(there).bare
            self._paths[there] = _renamed(self._fs, views[0], path, views[1], newer=older)
            return self._trace(there, self._paths[there])
        self._paths[there] = path
        inodes = self._fs.store.inodes
        if trace.file is not None and not self._wrote(inodes, trace.file, between):
            self._same.add(here if older else there)
        return trace

    def _between(self, epoch: Epoch) -> list[Epoch]:
        """The epochs from one on, up to the state that it came from."""
        found, origin = [], self._origins[epoch]
        while epoch != origin:
            found.append(epoch)
            epoch = self._fs.store.epochs[epoch].parent
        return found

    def _wrote(self, table: Versioned, entity: bytes, epochs: list[Epoch]) -> bool:
        known = self._writers.get(entity)
        if known is None:
            versions = table.versions(entity)
            known = self._writers[entity] = {epoch_of(suffix) for _, suffix, _ in versions}
        return not known.isdisjoint(epochs)

    def _trace(self, epoch: Epoch, path: bytes) -> _Trace:
        inodes = inodes_along(self._fs, self._fs.view_of(epoch), path)
        names = path.split(b"/") if path not in (b"", ROOT_PATH) else []
        entries = [
            dirent_entity(inode.ino, name) for inode, name in zip(inodes, names, strict=False)
        ]
        if len(inodes) <= len(names):
            return _Trace(tuple(entries), _NOTHING)
        last = inodes[-1]
        return _Trace(tuple(entries), None if last.is_dir else inode_entity(last.ino))


def _renamed(fs: Filesystem, here: View, path: bytes, there: View, *, newer: bool) -> bytes:
    """The path that a path of one view has in the next; the same if nothing says otherwise.

    A file at the same path is preferred to the same inode elsewhere: a program that writes a
    temporary file and renames it replaces what was there. Then come the same name in the same
    directory, which may have been renamed, and what a comparison of the two calls a rename.
    """
    inodes = inodes_along(fs, here, path)
    if len(inodes) <= path.count(b"/") + 1:
        return path
    names = path.split(b"/")
    level, called = _nearest_there(fs, names, inodes, there)
    renames: dict[bytes, bytes] | None = None
    for end in range(level + 1, len(names) + 1):
        in_place = called + b"/" + names[end - 1] if called else names[end - 1]
        if seek(fs, there, in_place) is None:
            if renames is None:
                renames = _renames(fs, here, there, newer=newer)
            unchanged = b"/".join(names[:end])
            in_place = renames.get(unchanged, unchanged)
        called = in_place
    return called


def _nearest_there(
    fs: Filesystem, names: list[bytes], inodes: list[Inode], there: View
) -> tuple[int, bytes]:
    """How many of the names lead to the deepest file or directory that the other view has too, at
    the same path or as the same inode, and its path there."""
    tree = TreeReader(fs.store, there)
    same_path = len(inodes_along(fs, there, b"/".join(names)))
    for level in range(len(names), 0, -1):
        path = b"/".join(names[:level])
        if level < same_path:
            return level, path
        other = tree.inode(inodes[level].ino)
        if other is not None:
            found = [tree.path(place) for place in tree.places(other)]
            return level, path if path in found else min(found)
    return 0, b""


def _renames(fs: Filesystem, here: View, there: View, *, newer: bool) -> dict[bytes, bytes]:
    """The renames that a comparison finds: by the path here, the path there."""
    older, later = (there, here) if newer else (here, there)
    found: dict[bytes, bytes] = {}
    for change in compare_views(fs, older, later):
        if RENAMED in change.kinds and change.source is not None:
            mine, its = (change.path, change.source) if newer else (change.source, change.path)
            found.setdefault(mine, its)
    return found


# -- comparing -------------------------------------------------------------------------------------


def _change(fs: Filesystem, older: _End, newer: _End) -> Change | None:
    a, old_path, old = older
    b, path, new = newer
    if old is None and new is None:
        return None
    if old is None:
        return Change(path, None, frozenset({ADDED}), None, new)
    if new is None:
        return Change(old_path, old_path, frozenset({DELETED}), old, None)
    kinds = set(_kinds(fs, a, old, b, new))
    if old.is_dir and new.is_dir and _changed_below(fs, a, b, path):
        kinds.add(MODIFIED)
    if old_path != path:
        kinds.add(RENAMED)
    return Change(path, old_path, frozenset(kinds), old, new) if kinds else None


def _kinds(fs: Filesystem, a: View, old: Inode, b: View, new: Inode) -> frozenset[str]:
    epochs = epochs_between(fs.store, a.epoch, b.epoch)
    if old == new and not any(_lists(fs, epoch, new) for epoch in epochs):
        return frozenset()
    blocks = None
    if old.content == new.content != NO_CONTENT:
        changes, kind = fs.store.changes, fs.store.blockmap.kind
        entities = {
            entity
            for epoch in epochs
            for entity in changes.walk(epoch, kind, pack_u64(new.content))
        }
        blocks = differing_blocks(fs.store, a, b, entities)
    return differences(fs, a, old, b, new, blocks)


def _lists(fs: Filesystem, epoch: Epoch, inode: Inode) -> bool:
    """Whether an epoch wrote the inode: every change of a file writes it too."""
    listed = fs.store.changes.walk(epoch, fs.store.inodes.kind, inode_entity(inode.ino))
    return next(listed, None) is not None


def _changed_below(fs: Filesystem, a: View, b: View, path: bytes) -> bool:
    prefix = path + b"/" if path else b""
    return any(
        change.path.startswith(prefix) or (change.source or b"").startswith(prefix)
        for change in compare_views(fs, a, b)
        if not change.only_times and change.path != ROOT_PATH
    )
