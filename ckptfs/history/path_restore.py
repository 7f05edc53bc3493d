"""Restoring paths: making some paths of the workspace what they are in another view.

Works by ordinary operations on the head: files are cloned from the other view by sharing their
blocks, and what the other view lacks is removed. A process that has a replaced file open keeps the
old one, as after a rename over it. Files that are excluded from history stay, and so do the
directories that they are in.

Trees may be deeper than the interpreter's stack, so everything here is a loop.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import Checkpoint
from ckptfs.history.diff.changed import Changed, changed_between, differences
from ckptfs.history.diff.tree import RENAMED, Change
from ckptfs.history.paths import is_below, seek
from ckptfs.model import ROOT_INO, Attributes, Ino, Inode
from ckptfs.store import View


class _Pair(NamedTuple):
    """A directory of the head and the one that it is to equal."""

    here: Inode
    like: Inode


class _Level(NamedTuple):
    """A pair of directories that is being worked off. ``before`` is how much had changed then."""

    pair: _Pair
    path: bytes
    names: Iterator[bytes]
    wanted: dict[bytes, Inode]
    before: int


def xattrs_of(fs: Filesystem, view: View, ino: Ino) -> dict[bytes, bytes]:
    if not fs.store.xattrs_used:
        return {}
    return {name: fs.getxattr(view, ino, name) for name in fs.listxattr(view, ino)}


def set_xattrs(fs: Filesystem, ino: Ino, wanted: dict[bytes, bytes]) -> None:
    """Give something in the head these extended attributes and no others."""
    found = xattrs_of(fs, fs.head, ino)
    for name in found.keys() - wanted.keys():
        fs.removexattr(fs.head, ino, name)
    for name, value in wanted.items():
        if found.get(name) != value:
            fs.setxattr(fs.head, ino, name, value)


@dataclass
class PathRestorer:
    """Goes down the paths it is given, in both views. Without ``apply`` it only looks."""

    fs: Filesystem
    goal: View
    apply: bool = True
    #: Paths that are (or would be) added, replaced and deleted.
    added: list[bytes] = field(default_factory=list)
    modified: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    changed: Changed = field(default_factory=lambda: Changed(set(), set()))
    #: Inodes that differ between the views, though their records may look alike: times can be set.
    _differing: set[Ino] = field(init=False)
    #: Files cloned so far, by their inode number in the goal: hard links among them stay links.
    _cloned: dict[Ino, Ino] = field(default_factory=dict)
    #: Directories made so far; the patterns may have excluded them.
    _made: set[Ino] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._differing = changed_between(self.fs.store, self.fs.head, self.goal).inodes

    @property
    def changes(self) -> int:
        return len(self.added) + len(self.modified) + len(self.deleted)

    def path(self, path: bytes) -> None:
        """Make what is at ``path`` (relative to the root, no dots) equal in both views."""
        *above, name = path.split(b"/")
        here: Inode | None = self.fs.getattr(self.fs.head, ROOT_INO)
        there: Inode | None = self.fs.getattr(self.goal, ROOT_INO)
        walked = b""
        for part in above:
            walked = walked + b"/" + part if walked else part
            there = self._child(self.goal, there, part)
            here = self._directory(here, part, there, walked)
        like = self._child(self.goal, there, name)
        if here is not None:
            pair = self._entry(here.ino, name, like, path)
            if pair is not None:
                self._descend(pair, path)
        elif like is not None:
            # Only without ``apply``: the directory above would have been made.
            self._add(ROOT_INO, name, like, path)

    def _child(self, view: View, directory: Inode | None, name: bytes) -> Inode | None:
        if directory is None or not directory.is_dir:
            return None
        return self.fs.seek(view, directory.ino, name)

    def _directory(
        self, parent: Inode | None, name: bytes, like: Inode | None, path: bytes
    ) -> Inode | None:
        """The directory on the way to a path, made if only the goal has it."""
        here = self._child(self.fs.head, parent, name)
        if here is not None and self.fs.is_excluded(here.ino) and here.ino not in self._made:
            raise FileExistsError(
                errno.EEXIST, "something excluded from history is in the way", path
            )
        if (here is not None and here.is_dir) or like is None or not like.is_dir:
            return here if here is not None and here.is_dir else None
        if here is not None:
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", path)
        self.added.append(path)
        return self._make_directory(parent.ino, name, like) if self.apply and parent else None

    # -- one entry --------------------------------------------------------------------------------

    def _entry(self, parent: Ino, name: bytes, like: Inode | None, path: bytes) -> _Pair | None:
        """Make one entry equal; two directories are returned, to be descended into."""
        here = self.fs.seek(self.fs.head, parent, name)
        if here is not None and self.fs.is_excluded(here.ino):
            return None
        if like is None:
            if here is not None:
                self._remove(parent, name, here, path)
        elif here is None:
            self._add(parent, name, like, path)
        elif here.is_dir and like.is_dir:
            return _Pair(here, like)
        elif (here != like or like.ino in self._differing) and self._looks_different(here, like):
            self._replace(parent, name, here, like, path)
        return None

    def _looks_different(self, here: Inode, like: Inode) -> bool:
        """A file that was restored before has another inode and other change times, and is still
        the same."""
        return bool(differences(self.fs, self.fs.head.bare, here, self.goal, like))

    def _descend(self, pair: _Pair, path: bytes) -> None:
        """Make a directory and all below it equal."""
        levels = [self._level(pair, path)]
        while levels:
            level = levels[-1]
            name = next(level.names, None)
            if name is None:
                self._finish(levels.pop())
                continue
            below = level.path + b"/" + name
            found = self._entry(level.pair.here.ino, name, level.wanted.get(name), below)
            if found is not None:
                levels.append(self._level(found, below))

    def _level(self, pair: _Pair, path: bytes) -> _Level:
        names = {name for name, _ in self.fs.entries(self.fs.head, pair.here.ino)}
        wanted = dict(self.fs.entries(self.goal, pair.like.ino))
        return _Level(pair, path, iter(sorted(names | wanted.keys())), wanted, self.changes)

    def _finish(self, level: _Level) -> None:
        """The directory itself, after its entries: they changed its times."""
        here, like = level.pair
        if self._attributes(self.fs.head, here) != self._attributes(self.goal, like):
            self.modified.append(level.path)
        if self.apply and self.changes > level.before:
            self.apply_attributes(here.ino, like)

    def _add(self, parent: Ino, name: bytes, like: Inode, path: bytes) -> None:
        made: list[tuple[Ino, Inode]] = []
        pending = [(parent, name, like, path)]
        while pending:
            above, name, like, path = pending.pop()
            self.added.append(path)
            if like.is_dir:
                if self.apply:
                    above = self._make_directory(above, name, like).ino
                    made.append((above, like))
                entries = list(self.fs.entries(self.goal, like.ino))
                for child, inode in reversed(entries):
                    pending.append((above, child, inode, path + b"/" + child))
            elif self.apply:
                self._clone(above, name, like)
        for ino, like in made:
            self.apply_attributes(ino, like)  # once more: its entries changed its times

    def _replace(self, parent: Ino, name: bytes, here: Inode, like: Inode, path: bytes) -> None:
        if here.is_dir or like.is_dir:
            if not self._remove(parent, name, here, path):
                reason = "a directory with files that are excluded from history is in the way"
                raise FileExistsError(errno.EEXIST, reason, path)
            self._add(parent, name, like, path)
            return
        self.modified.append(path)
        if self.apply:
            self.fs.unlink(self.fs.head, parent, name)
            self.changed.inodes.add(here.ino)
            self._clone(parent, name, like)

    def _remove(self, parent: Ino, name: bytes, here: Inode, path: bytes) -> bool:
        """Remove an entry with all below it; False if something excluded made a part of it stay."""
        fs = self.fs
        # A directory comes before its entries, and goes after them.
        found = [(parent, name, here, path)]
        for _, _, inode, above in found:
            if inode.is_dir and not fs.is_excluded(inode.ino):
                for child, below in fs.entries(fs.head, inode.ino):
                    found.append((inode.ino, child, below, above + b"/" + child))
        staying: set[Ino] = set()
        for directory, entry, inode, below_path in reversed(found):
            if inode.ino in staying or fs.is_excluded(inode.ino):
                staying.update((directory, inode.ino))
                continue
            self.deleted.append(below_path)
            if self.apply:
                self._note(directory, entry, inode.ino)
                (fs.rmdir if inode.is_dir else fs.unlink)(fs.head, directory, entry)
        return here.ino not in staying

    # -- doing it ---------------------------------------------------------------------------------

    def _clone(self, parent: Ino, name: bytes, like: Inode) -> None:
        fs = self.fs
        known = self._cloned.get(like.ino)
        if known is None or not self._link(known, parent, name):
            self._cloned[like.ino] = fs.clone(self.goal, like.ino, fs.head, parent, name).ino
        self._note(parent, name)

    def _link(self, ino: Ino, parent: Ino, name: bytes) -> bool:
        """Give a file another name, unless only one of the two would be excluded from history."""
        try:
            self.fs.link(self.fs.head, ino, parent, name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        return True

    def _make_directory(self, parent: Ino, name: bytes, like: Inode) -> Inode:
        fs = self.fs
        made = fs.mkdir(fs.head, parent, name, like.mode, like.uid, like.gid)
        self._made.add(made.ino)
        self._note(parent, name)
        self.apply_attributes(made.ino, like)
        return made

    def apply_attributes(self, ino: Ino, like: Inode, *, times: bool = True) -> None:
        """Give a directory the attributes that it has in the goal."""
        wanted = Attributes(
            mode=like.mode,
            uid=like.uid,
            gid=like.gid,
            atime_ns=like.atime_ns if times else None,
            mtime_ns=like.mtime_ns if times else None,
        )
        set_xattrs(self.fs, ino, xattrs_of(self.fs, self.goal, like.ino))
        self.fs.setattr(self.fs.head, ino, wanted)
        self.changed.inodes.add(ino)

    def remove_if_empty(self, path: bytes) -> None:
        """Remove a directory in which nothing is left."""
        fs = self.fs
        above, _, name = path.rpartition(b"/")
        parent, here = seek(fs, fs.head, above), seek(fs, fs.head, path)
        if parent is None or here is None or any(True for _ in fs.entries(fs.head, here.ino)):
            return
        fs.rmdir(fs.head, parent.ino, name)
        self._note(parent.ino, name, here.ino)

    def _note(self, parent: Ino, name: bytes, *inodes: Ino) -> None:
        self.changed.entries.add((parent, name))
        self.changed.inodes.update((parent, *inodes))

    def _attributes(self, view: View, inode: Inode) -> tuple[int, int, int, dict[bytes, bytes]]:
        return inode.mode, inode.uid, inode.gid, xattrs_of(self.fs, view, inode.ino)


# -- paths of an author or a task ------------------------------------------------------------------


class Claim(NamedTuple):
    """A path that an author or a task changed; ``whole`` with all below it, as for a renamed
    directory."""

    path: bytes
    whole: bool


#: Paths, each with the checkpoint that it goes back to.
Goals = Mapping[Claim, Checkpoint]


def claims_of(change: Change) -> Iterator[Claim]:
    """The paths that a change is about."""
    inode = change.new or change.old
    whole = RENAMED in change.kinds and inode is not None and inode.is_dir
    yield Claim(change.path, whole)
    if change.source not in (None, change.path):
        yield Claim(change.source or b"", whole)


def claimed_paths(goals: Goals) -> list[bytes]:
    return sorted({claim.path for claim in goals})


def whole_paths(goals: Goals) -> list[bytes]:
    """Those of them that go back with all below them."""
    return sorted({claim.path for claim in goals if claim.whole})


def put_back(fs: Filesystem, goals: Goals, changed: Changed) -> None:
    """Make each path what it was; what others put into a directory stays.

    The newest checkpoint comes first: what a later piece of work moved must be back in its place
    before an earlier one can be undone.
    """
    views: dict[int, View] = {}
    groups: dict[int, dict[bytes, bool]] = {}
    for claim, goal in goals.items():
        views[goal.id] = fs.view_of(goal.epoch)
        group = groups.setdefault(goal.id, {})
        group[claim.path] = claim.whole or group.get(claim.path, False)
    for number in sorted(groups, reverse=True):
        _put_back_to(PathRestorer(fs, views[number], changed=changed), groups[number])


def _put_back_to(restorer: PathRestorer, paths: dict[bytes, bool]) -> None:
    """The same for the paths that go to one checkpoint; True for those that are taken whole."""
    fs = restorer.fs
    left: list[bytes] = []
    done: set[bytes] = set()
    for path, whole in sorted(paths.items()):
        if is_below(path, done):
            continue  # it went with the directory that it is in
        here, there = seek(fs, fs.head, path), seek(fs, restorer.goal, path)
        if here is not None and here.is_dir and not whole:
            if there is None:
                left.append(path)  # others may have put something into it
                continue
            if there.is_dir:
                restorer.apply_attributes(here.ino, there, times=False)
                continue
        restorer.path(path)
        if (here is not None and here.is_dir) or (there is not None and there.is_dir):
            done.add(path)
    for path in sorted(left, key=lambda path: -path.count(b"/")):
        restorer.remove_if_empty(path)
