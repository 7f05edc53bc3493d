"""Which paths of two views a user's patterns mean."""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Container, Iterable, Iterator, Sequence

from ckptfs import interrupts
from ckptfs.fs import Filesystem
from ckptfs.model import NAME_MAX, ROOT_INO, Ino, Inode
from ckptfs.store import View
from ckptfs.store.format import NO_EPOCH

#: The path that stands for the root itself.
ROOT_PATH = b"."


_MAGIC = frozenset(b"*?[")


def select(
    fs: Filesystem, views: Sequence[View], patterns: Iterable[bytes], *, excluded: bool = False
) -> list[bytes]:
    """The paths, relative to the root, that the patterns name in any of the views. What is kept out
    of history is found only with ``excluded``.

    A pattern that names nothing raises FileNotFoundError; one that leads out of the workspace
    raises ValueError. What lies below another path that is named is left out: it goes with that.
    """
    looked = views if excluded else [view.bare for view in views]
    found: dict[bytes, None] = {}
    for pattern in patterns:
        parts = parts_of(pattern)
        # A file of that very name, in whichever view, is meant before those that match.
        matches = _all(fs, looked, parts, exact=True) or _all(fs, looked, parts, exact=False)
        if not matches:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), pattern)
        found.update(dict.fromkeys(matches))
    return sorted(path for path in found if not _goes_along(path, found))


def _goes_along(path: bytes, found: Container[bytes]) -> bool:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        if path in found:
            return True
    return False


def parts_of(pattern: bytes) -> list[bytes]:
    parts = [part for part in pattern.split(b"/") if part not in (b"", b".")]
    if pattern.startswith(b"/") or b".." in parts:
        raise ValueError("it leads out of the workspace")
    return parts


def _all(fs: Filesystem, views: Sequence[View], parts: list[bytes], *, exact: bool) -> list[bytes]:
    if not parts:
        return []
    return [path for view in views for path in _matching(fs, view, parts, exact=exact)]


def _matching(fs: Filesystem, view: View, parts: list[bytes], *, exact: bool) -> list[bytes]:
    """What the parts name in a view, a level of the tree at a time: trees are deeper than the
    stack."""
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
    """The entry of that very name, or those that match it."""
    if len(part) > NAME_MAX:
        return
    same = fs.seek(view, directory, part)
    if same is not None:
        yield part, same.ino, same.is_dir
    elif not exact and _MAGIC.intersection(part):
        for name, inode in list(fs.entries(view, directory)):
            if fnmatch.fnmatchcase(name, part):
                yield name, inode.ino, inode.is_dir


def _inodes_along(fs: Filesystem, view: View, path: bytes) -> list[Inode]:
    """The inodes on the way to a path, the root's first, as far as the view has them."""
    if view.epoch == NO_EPOCH:
        return []
    view = view.bare
    found = [fs.getattr(view, ROOT_INO)]
    for name in path.split(b"/") if path else ():
        child = fs.seek(view, found[-1].ino, name) if found[-1].is_dir else None
        if child is None:
            break
        found.append(child)
    return found


def seek(fs: Filesystem, view: View, path: bytes) -> Inode | None:
    """What stands at a path, or None. Links are not followed; the root is the empty path."""
    found = _inodes_along(fs, view, path)
    levels = path.count(b"/") + 1 if path else 0
    return found[-1] if len(found) == levels + 1 else None


def is_below(path: bytes, tops: Iterable[bytes]) -> bool:
    """Whether a path is one of ``tops`` or below one."""
    return any(path == top or path.startswith(top + b"/") for top in tops)


def lies_below(path: bytes, tops: set[bytes]) -> bool:
    """Whether a path lies below one of ``tops``."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        if path in tops:
            return True
    return False


def at(fs: Filesystem, view: View, path: bytes) -> Inode | None:
    """What stands at a path of a view, not following links."""
    view = view.bare
    here: Inode | None = fs.getattr(view, ROOT_INO)
    for part in path.split(b"/") if path != ROOT_PATH else ():
        here = fs.seek(view, here.ino, part) if here is not None and here.is_dir else None
    return here
