"""Paths in views: what a pattern names, what a path leads to, and which paths lie below others.

A path is relative to the root and has no dots in it; the root itself is empty or ``ROOT_PATH``.
Links are never followed.
"""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Container, Iterable, Iterator, Sequence

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.model import NAME_MAX, ROOT_INO, Ino, Inode, Place
from ckptfs.store import Store, View
from ckptfs.store.format import NO_EPOCH, inode_entity, unpack_inode

#: How a list of changes names the root.
ROOT_PATH = b"."

_MAGIC = frozenset(b"*?[")


# -- paths alone -----------------------------------------------------------------------------------


def directories_above(path: bytes) -> Iterator[bytes]:
    """The directories that a path is in, nearest first, without the root."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def is_below(path: bytes, tops: Container[bytes]) -> bool:
    """Whether a path lies below one of ``tops``."""
    return any(above in tops for above in directories_above(path))


def is_within(path: bytes, tops: Container[bytes]) -> bool:
    """Whether a path is one of ``tops`` or lies below one."""
    return path in tops or is_below(path, tops)


# -- paths and inodes ------------------------------------------------------------------------------


def inodes_along(fs: Filesystem, view: View, path: bytes) -> list[Inode]:
    """The inodes on the way to a path, the root's first, as far as the view has them in history."""
    if view.epoch == NO_EPOCH:
        return []
    view = view.bare
    found = [fs.getattr(view, ROOT_INO)]
    for name in path.split(b"/") if path not in (b"", ROOT_PATH) else ():
        child = fs.seek(view, found[-1].ino, name) if found[-1].is_dir else None
        if child is None:
            break
        found.append(child)
    return found


def seek(fs: Filesystem, view: View, path: bytes) -> Inode | None:
    """What a view has at a path in history, or None."""
    found = inodes_along(fs, view, path)
    levels = path.count(b"/") + 1 if path not in (b"", ROOT_PATH) else 0
    return found[-1] if len(found) == levels + 1 else None


def path_of(store: Store, view: View, place: Place) -> bytes:
    """The path of a directory entry. It begins where the view lacks a directory on the way: that
    of a state document, which no directory has, is its name."""
    directory, name = place
    names = [name]
    while directory != ROOT_INO:
        inode = view.dirty_inodes.get(directory)
        if inode is None:
            record = store.inodes.get(view, inode_entity(directory))
            if not record:
                break
            inode = unpack_inode(directory, record)
        names.append(inode.name)
        directory = inode.parent
    return b"/".join(reversed(names))


# -- patterns --------------------------------------------------------------------------------------


def select(
    fs: Filesystem, views: Sequence[View], patterns: Iterable[bytes], *, excluded: bool = False
) -> list[bytes]:
    """The paths that the patterns name in any of the views. Files that are excluded from history
    count only with ``excluded``.

    Raises FileNotFoundError for a pattern that names nothing, and ValueError for one that leads out
    of the workspace. A path below another selected one is left out: it belongs to that one.
    """
    looked = views if excluded else [view.bare for view in views]
    found: dict[bytes, None] = {}
    for pattern in patterns:
        parts = parts_of(pattern)
        # A file of exactly that name, in any view, is meant before those that match the pattern.
        matches = _all(fs, looked, parts, exact=True) or _all(fs, looked, parts, exact=False)
        if not matches:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), pattern)
        found.update(dict.fromkeys(matches))
    return sorted(path for path in found if not is_below(path, found))


def parts_of(pattern: bytes) -> list[bytes]:
    parts = [part for part in pattern.split(b"/") if part not in (b"", b".")]
    if pattern.startswith(b"/") or b".." in parts:
        raise ValueError("it leads out of the workspace")
    return parts


def _all(fs: Filesystem, views: Sequence[View], parts: list[bytes], *, exact: bool) -> list[bytes]:
    if not parts:
        return []
    return [path for view in views for path in matching(fs, view, parts, exact=exact)]


def matching(fs: Filesystem, view: View, parts: list[bytes], *, exact: bool) -> list[bytes]:
    """The paths that match in one view, found one level of the tree at a time: a tree may be deeper
    than the interpreter's stack."""
    found = [(b"", ROOT_INO, True)]
    for part in parts:
        found = [
            (above + b"/" + name if above else name, ino, is_dir)
            for above, directory, enterable in interrupts.checked(found)
            if enterable
            for name, ino, is_dir in _children(fs, view, directory, part, exact=exact)
        ]
    return [path for path, _, _ in found]


def _children(
    fs: Filesystem, view: View, directory: Ino, part: bytes, *, exact: bool
) -> Iterator[tuple[bytes, Ino, bool]]:
    """The entry of exactly that name; if there is none, the entries that match it."""
    if len(part) > NAME_MAX:
        return
    same = fs.seek(view, directory, part)
    if same is not None:
        yield part, same.ino, same.is_dir
    elif not exact and _MAGIC.intersection(part):
        for name, inode in list(fs.entries(view, directory)):
            if fnmatch.fnmatchcase(name, part):
                yield name, inode.ino, inode.is_dir
