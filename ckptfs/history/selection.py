"""Which paths of two views a user's patterns mean."""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Container, Iterable, Iterator

from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Ino
from ckptfs.store import View

_MAGIC = frozenset(b"*?[")


def select(fs: Filesystem, views: tuple[View, ...], patterns: Iterable[bytes]) -> list[bytes]:
    """The paths, relative to the root, that the patterns name in any of the views. What is kept out
    of history is not found.

    A pattern that names nothing raises FileNotFoundError; one that leads out of the workspace
    raises ValueError. What lies below another path that is named is left out: it goes with that.
    """
    found: dict[bytes, None] = {}
    for pattern in patterns:
        matches = [path for view in views for path in _matches(fs, view.bare, pattern)]
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


def _matches(fs: Filesystem, view: View, pattern: bytes) -> Iterator[bytes]:
    parts = parts_of(pattern)
    if parts:
        yield from _below(fs, view, ROOT_INO, b"", parts)


def _below(
    fs: Filesystem, view: View, directory: Ino, above: bytes, parts: list[bytes]
) -> Iterator[bytes]:
    first, *rest = parts
    for name, ino, is_dir in _children(fs, view, directory, first):
        path = above + b"/" + name if above else name
        if not rest:
            yield path
        elif is_dir:
            yield from _below(fs, view, ino, path, rest)


def _children(
    fs: Filesystem, view: View, directory: Ino, part: bytes
) -> Iterator[tuple[bytes, Ino, bool]]:
    """The entry of that very name, or those that match it."""
    exact = fs.seek(view, directory, part)
    if exact is not None:
        yield part, exact.ino, exact.is_dir
    elif _MAGIC.intersection(part):
        for name, inode in list(fs.entries(view, directory)):
            if fnmatch.fnmatchcase(name, part):
                yield name, inode.ino, inode.is_dir
