"""Making one path of the workspace what it is in another view, and leaving the rest alone.

Works by ordinary operations on the head: what a file was is cloned from the other view block by
reference, what was not there is removed. A process that has a replaced file open keeps the old one,
as after any rename over it. What is kept out of history is left alone, and so is a directory that
it stands in.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.history import trampoline
from ckptfs.history.checkpoints import Checkpoint
from ckptfs.history.diff.aspects import differences
from ckptfs.history.diff.changed import Touched, touched
from ckptfs.history.diff.tree import RENAMED, Change
from ckptfs.history.paths import ROOT_PATH, at, lies_below
from ckptfs.history.trampoline import Call
from ckptfs.model import ROOT_INO, Attributes, Ino, Inode
from ckptfs.store import View


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
    touched: Touched = field(default_factory=lambda: Touched(set(), set()))
    #: Inodes that differ between the two, though their records may look alike: times can be set.
    _differing: set[Ino] = field(init=False)
    #: Files cloned so far, by their number in the goal: hard links among them stay links.
    _cloned: dict[Ino, Ino] = field(default_factory=dict)
    #: Directories made so far, which the patterns may have excluded.
    _made: set[Ino] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._differing = touched(self.fs.store, self.fs.head, self.goal).inodes

    @property
    def changes(self) -> int:
        return len(self.added) + len(self.modified) + len(self.deleted)

    def path(self, path: bytes) -> None:
        """Make what stands at ``path`` (relative to the root, no dots) equal in both."""
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
            trampoline.run(self._entry(here.ino, name, like, path))
        elif like is not None:
            # Only when looking: the directory above would have been made.
            trampoline.run(self._add(ROOT_INO, name, like, path))

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

    def _entry(self, parent: Ino, name: bytes, like: Inode | None, path: bytes) -> Call[None]:
        here = self.fs.seek(self.fs.head, parent, name)
        if here is not None and self.fs.is_excluded(here.ino):
            return
        if like is None:
            if here is not None:
                yield self._remove(parent, name, here, path)
        elif here is None:
            yield self._add(parent, name, like, path)
        elif here.is_dir and like.is_dir:
            yield self._equal_directories(here, like, path)
        elif (here != like or like.ino in self._differing) and self._looks_different(here, like):
            yield self._replace(parent, name, here, like, path)

    def _looks_different(self, here: Inode, like: Inode) -> bool:
        """What was restored before is another inode with other times of change, and the same."""
        return bool(differences(self.fs, self.fs.head.bare, here, self.goal, like))

    def _equal_directories(self, here: Inode, like: Inode, path: bytes) -> Call[None]:
        fs = self.fs
        names = {name for name, _ in fs.entries(fs.head, here.ino)}
        wanted = dict(fs.entries(self.goal, like.ino))
        before = self.changes
        for name in sorted(names | wanted.keys()):
            yield self._entry(here.ino, name, wanted.get(name), path + b"/" + name)
        if self._attributes(fs.head, here) != self._attributes(self.goal, like):
            self.modified.append(path)
        if self.apply and (self.changes > before):
            self._dress(here.ino, like)

    def _add(self, parent: Ino, name: bytes, like: Inode, path: bytes) -> Call[None]:
        self.added.append(path)
        if not like.is_dir:
            if self.apply:
                self._clone(parent, name, like)
            return
        made = self._make_directory(parent, name, like) if self.apply else None
        for child, inode in list(self.fs.entries(self.goal, like.ino)):
            yield self._add(made.ino if made else parent, child, inode, path + b"/" + child)
        if made:
            self._dress(made.ino, like)

    def _replace(
        self, parent: Ino, name: bytes, here: Inode, like: Inode, path: bytes
    ) -> Call[None]:
        if here.is_dir or like.is_dir:
            gone: bool = yield self._remove(parent, name, here, path)
            if not gone:
                reason = "a directory with files that are excluded from history is in the way"
                raise FileExistsError(errno.EEXIST, reason, path)
            yield self._add(parent, name, like, path)
            return
        self.modified.append(path)
        if self.apply:
            self.fs.unlink(self.fs.head, parent, name)
            self.touched.inodes.add(here.ino)
            self._clone(parent, name, like)

    def _remove(self, parent: Ino, name: bytes, here: Inode, path: bytes) -> Call[bool]:
        """Remove what stands under a name; say whether it is gone, as what is excluded never is."""
        fs = self.fs
        if fs.is_excluded(here.ino):
            return False
        if here.is_dir:
            empty = True
            for child, inode in list(fs.entries(fs.head, here.ino)):
                gone: bool = yield self._remove(here.ino, child, inode, path + b"/" + child)
                empty = empty and gone
            if not empty:
                return False
        self.deleted.append(path)
        if self.apply:
            self._touch(parent, name, here.ino)
            (fs.rmdir if here.is_dir else fs.unlink)(fs.head, parent, name)
        return True

    # -- doing it ---------------------------------------------------------------------------------

    def _clone(self, parent: Ino, name: bytes, like: Inode) -> None:
        fs = self.fs
        known = self._cloned.get(like.ino)
        if known is None or not self._link(known, parent, name):
            self._cloned[like.ino] = fs.clone(self.goal, like.ino, fs.head, parent, name).ino
        self._touch(parent, name)

    def _link(self, ino: Ino, parent: Ino, name: bytes) -> bool:
        """Give a file a further name, unless one of the two would be in history and one not."""
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
        self._touch(parent, name)
        self._dress(made.ino, like)
        return made

    def _dress(self, ino: Ino, like: Inode) -> None:
        """Give a directory the attributes and times that it has in the goal."""
        wanted = Attributes(
            mode=like.mode,
            uid=like.uid,
            gid=like.gid,
            atime_ns=like.atime_ns,
            mtime_ns=like.mtime_ns,
        )
        self._dress_xattrs(ino, self._xattrs(self.goal, like.ino))
        self.fs.setattr(self.fs.head, ino, wanted)
        self.touched.inodes.add(ino)

    def _dress_xattrs(self, ino: Ino, wanted: dict[bytes, bytes]) -> None:
        fs = self.fs
        found = self._xattrs(fs.head, ino)
        for name in found.keys() - wanted.keys():
            fs.removexattr(fs.head, ino, name)
        for name, value in wanted.items():
            if found.get(name) != value:
                fs.setxattr(fs.head, ino, name, value)

    def _xattrs(self, view: View, ino: Ino) -> dict[bytes, bytes]:
        fs = self.fs
        if not fs.store.xattrs_used:
            return {}
        return {name: fs.getxattr(view, ino, name) for name in fs.listxattr(view, ino)}

    def _touch(self, parent: Ino, name: bytes, *inodes: Ino) -> None:
        self.touched.entries.add((parent, name))
        self.touched.inodes.update((parent, *inodes))

    def _attributes(self, view: View, inode: Inode) -> tuple[int, int, int, dict[bytes, bytes]]:
        return inode.mode, inode.uid, inode.gid, self._xattrs(view, inode.ino)


class Claim(NamedTuple):
    """A path that somebody changed. A renamed directory takes all below it along."""

    path: bytes
    whole: bool


@dataclass
class Undoing:
    """What it takes to revert a task: each path with the checkpoint it goes back to, and the paths
    that others changed meanwhile, with who did it as far as a task did."""

    name: str
    goals: dict[Claim, Checkpoint] = field(default_factory=dict)
    conflicts: dict[bytes, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[bytes]:
        return sorted({claim.path for claim in self.goals})

    @property
    def whole(self) -> list[bytes]:
        return sorted({claim.path for claim in self.goals if claim.whole})


def claims_of(change: Change) -> Iterator[Claim]:
    """The paths that a change is about."""
    inode = change.new or change.old
    whole = RENAMED in change.kinds and inode is not None and inode.is_dir
    yield Claim(change.path, whole)
    if change.source not in (None, change.path):
        yield Claim(change.source or b"", whole)


def put_back(fs: Filesystem, undoing: Undoing, touched_here: Touched) -> None:
    """Make each path what it was, and leave what others put into a directory alone.

    The last stretch of work is taken back first: what a later one moved must stand where an earlier
    one had put it before that can go.
    """
    views: dict[int, View] = {}
    groups: dict[int, dict[bytes, bool]] = {}
    for claim, goal in undoing.goals.items():
        views[goal.id] = fs.view_of(goal.epoch)
        group = groups.setdefault(goal.id, {})
        group[claim.path] = claim.whole or group.get(claim.path, False)
    for number in sorted(groups, reverse=True):
        _put_back_to(fs, views[number], groups[number], touched_here)


def _put_back_to(
    fs: Filesystem, view: View, paths: dict[bytes, bool], touched_here: Touched
) -> None:
    """The same for the paths that go to one checkpoint; True for those that are taken whole."""
    equaliser = PathRestorer(fs, view, touched=touched_here)
    left: list[bytes] = []
    done: set[bytes] = set()
    for path, whole in sorted(paths.items()):
        if lies_below(path, done):
            continue  # it went with the directory that it is in
        here, there = at(fs, fs.head, path), at(fs, view, path)
        if here is not None and here.is_dir and not whole:
            if there is None:
                left.append(path)  # others may have put something into it
                continue
            if there.is_dir:
                _dress(fs, here, view, there, touched_here)
                continue
        equaliser.path(path)
        if (here is not None and here.is_dir) or (there is not None and there.is_dir):
            done.add(path)
    for path in sorted(left, key=lambda path: -path.count(b"/")):
        _remove_if_empty(fs, path, touched_here)


def _remove_if_empty(fs: Filesystem, path: bytes, touched_here: Touched) -> None:
    above, _, name = path.rpartition(b"/")
    parent, here = at(fs, fs.head, above or ROOT_PATH), at(fs, fs.head, path)
    if parent is None or here is None or any(True for _ in fs.entries(fs.head, here.ino)):
        return
    fs.rmdir(fs.head, parent.ino, name)
    touched_here.entries.add((parent.ino, name))
    touched_here.inodes.update((parent.ino, here.ino))


def _dress(fs: Filesystem, here: Inode, view: View, there: Inode, touched_here: Touched) -> None:
    """Give a directory the mode, owner and attributes it had; what is in it is not touched."""
    if fs.store.xattrs_used:
        for name in fs.listxattr(fs.head, here.ino):
            fs.removexattr(fs.head, here.ino, name)
        for name in fs.listxattr(view, there.ino):
            fs.setxattr(fs.head, here.ino, name, fs.getxattr(view, there.ino, name))
    wanted = Attributes(mode=there.mode, uid=there.uid, gid=there.gid)
    fs.setattr(fs.head, here.ino, wanted)
    touched_here.inodes.add(here.ino)
