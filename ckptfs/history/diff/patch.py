"""The files of a patch: pairs of files, path by path, for a list of changes.

A patch knows only files, and finds each by its path. So a renamed directory becomes the renames of
its files, a directory by itself adds nothing, and a path that both trees have is compared with
itself, whatever else was renamed from it or to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.history.diff.changed import MODIFIED, TARGET, TYPE, differences
from ckptfs.history.diff.tree import RENAMED, Change
from ckptfs.model import Ino, Inode
from ckptfs.store import View


class Found(NamedTuple):
    """A file, link or special node in one of the trees."""

    path: bytes
    inode: Inode


class Pair(NamedTuple):
    """A file before and after; one of them may be None. ``same`` if the bytes are equal."""

    old: Found | None
    new: Found | None
    same: bool


def file_pairs(fs: Filesystem, a: View, b: View, changes: Iterable[Change]) -> list[Pair]:
    """The files to show for the changes between the views, by path.

    A file that replaces a directory comes after the files that were in it: patch(1) must have
    emptied the directory before it can make the file.
    """
    fs.flush()
    a, b = a.bare, b.bare
    listed = list(changes)
    pairs = [pair for change in interrupts.checked(listed) for pair in _own(change)]
    pairs += _carried(fs, a, b, listed)
    shown = list(_by_path(fs, a, b, pairs))
    emptied = {above for pair in shown if pair.old for above in _above(pair.old.path)}
    return sorted(shown, key=lambda pair: _order(pair, emptied))


def _above(path: bytes) -> Iterator[bytes]:
    """Every directory that a path lies in."""
    while (end := path.rfind(b"/")) > 0:
        path = path[:end]
        yield path


def _order(pair: Pair, emptied: set[bytes]) -> bytes:
    """The path; of a file in a directory's place, what sorts behind everything below it."""
    found = pair.new or pair.old
    path = found.path if found else b""
    return path + b"0" if path in emptied else path


def _own(change: Change) -> Iterator[Pair]:
    old = _found(change.source, change.old)
    new = _found(change.path, change.new)
    if old or new:
        both = old is not None and new is not None
        yield Pair(old, new, both and not change.kinds & _MATTER)


#: Kinds that mean that the bytes to show differ.
_MATTER = {MODIFIED, TARGET, TYPE}


def _found(path: bytes | None, inode: Inode | None) -> Found | None:
    if path is None or inode is None or inode.is_dir:
        return None
    return Found(path, inode)


def _carried(fs: Filesystem, a: View, b: View, changes: list[Change]) -> Iterator[Pair]:
    """The unchanged files below renamed directories."""
    listed = {change.path: change for change in changes if change.new is not None}
    for change in changes:
        if RENAMED in change.kinds and change.new is not None and change.new.is_dir:
            for path, inode in _below(fs, b, change, listed):
                below = path[len(change.path) + 1 :]
                old = _descend(fs, a, change.old, below)
                old_path = (change.source or b"") + b"/" + below
                yield Pair(_found(old_path, old), Found(path, inode), same=old is not None)


def _descend(fs: Filesystem, view: View, top: Inode | None, path: bytes) -> Inode | None:
    """What is at a path below a directory. Its inode may be another: a restore gives a new number
    to a file that is open."""
    found = top
    for name in path.split(b"/"):
        if found is None or not found.is_dir:
            return None
        found = fs.seek(view, found.ino, name)
    return found


def _below(
    fs: Filesystem, view: View, top: Change, listed: dict[bytes, Change]
) -> Iterator[tuple[bytes, Inode]]:
    """Files below a directory that are not listed, nor below another that was renamed or added."""
    pending: list[tuple[bytes, Ino]] = [(top.path, top.new.ino)] if top.new else []
    while pending:
        interrupts.check()
        above, ino = pending.pop()
        for name, inode in list(fs.entries(view, ino)):
            path = above + b"/" + name
            change = listed.get(path)
            if inode.is_dir:
                if change is None or _stayed(change):
                    pending.append((path, inode.ino))
            elif change is None:
                yield path, inode


def _stayed(change: Change) -> bool:
    """Whether a directory was there before, in what is the same place."""
    was_dir = change.old is not None and change.old.is_dir
    return was_dir and RENAMED not in change.kinds


def _by_path(fs: Filesystem, a: View, b: View, pairs: list[Pair]) -> Iterator[Pair]:
    """Make sure that a path that both trees have is compared with itself."""
    old = {pair.old.path: pair.old for pair in pairs if pair.old}
    new = {pair.new.path: pair.new for pair in pairs if pair.new}
    both = old.keys() & new.keys()
    for pair in interrupts.checked(pairs):
        if pair.old and pair.new and pair.old.path == pair.new.path:
            yield pair
            continue
        before = pair.old if pair.old and pair.old.path not in both else None
        after = pair.new if pair.new and pair.new.path not in both else None
        if before or after:
            yield Pair(before, after, pair.same and bool(before and after))
        if pair.new and pair.new.path in both:
            yield _against_itself(fs, a, b, old[pair.new.path], pair.new)


def _against_itself(fs: Filesystem, a: View, b: View, old: Found, new: Found) -> Pair:
    kinds = differences(fs, a, old.inode, b, new.inode)
    return Pair(old, new, not kinds & _MATTER)
