"""What is kept out of history: which names, and in which epoch an inode's records stand.

A name that matches an exclude pattern, and everything below it, lives in the *excluded epoch*:
every head sees it, no checkpoint does (docs/design/exclude.md). A name is judged when it is made.
The record of an entry stands in the same epoch as the inode that it leads to; a directory of
history with such entries is a *border*, and what they do to its times and its link count is kept
apart.

Callers have checked that ``view.excluded`` is not None: a workspace without patterns pays nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckptfs.model import ROOT_INO, Ino, Inode
from ckptfs.store.format import (
    Border,
    dirent_name,
    inode_entity,
    line_key,
    line_key_of,
    pack_border,
    pack_u64,
    unpack_border,
    unpack_u64,
)

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from ckptfs.fs.filesystem import Filesystem
    from ckptfs.store import Store, View
    from ckptfs.store.pending import Read

#: A fact of a line: the patterns that hold, a JSON list.
PATTERNS = b"exclude"
#: How many directories' paths are remembered.
_PATHS_MAX = 4096


class Exclusion:
    """The patterns of a workspace, and its border directories. ``changing`` is called with a
    directory that is about to look different."""

    def __init__(self, store: Store, line: int, changing: Callable[[Ino], object]) -> None:
        self._store = store
        self._line = line
        self._facts = facts = store.metadata.of_line(line)
        self._changing = changing
        self.patterns: tuple[str, ...] = tuple(json.loads(facts.get(PATTERNS) or b"[]"))
        self._spec = spec_of(self.patterns)
        #: By directory of history, what its excluded entries add to it.
        found = ((*line_key_of(key), value) for key, value in store.borders.walk())
        self.borders = {ino: unpack_border(value) for ino, of, value in found if of == line}
        self._changed: set[Ino] = set()
        self._paths: dict[Ino, str] = {}

    def set_patterns(self, patterns: Sequence[str]) -> None:
        """From now on names are judged by these; what is there stays as it is."""
        self._spec = spec_of(patterns)
        self.patterns = tuple(patterns)
        self._facts.put(PATTERNS, json.dumps(self.patterns).encode())
        self.forget_paths()

    def forget_paths(self) -> None:
        """Directories have moved."""
        self._paths.clear()

    def matches(
        self, fs: Filesystem, view: View, parent: Ino, name: bytes, *, is_dir: bool
    ) -> bool:
        """Whether a name in a directory of history is to be kept out of it."""
        if self._spec is None:
            return False
        return self._match(self._path(fs, view, parent) + os.fsdecode(name), is_dir=is_dir)

    def matches_path(self, path: bytes, *, is_dir: bool) -> bool:
        """The same for a path from the root, whether anything is there or not."""
        return self._match(os.fsdecode(path), is_dir=is_dir)

    def _match(self, path: str, *, is_dir: bool) -> bool:
        spec = self._spec
        return spec is not None and spec.match_file(path + "/" if is_dir else path)

    def _path(self, fs: Filesystem, view: View, directory: Ino) -> str:
        """The path of a directory with a slash behind it; empty for the root."""
        known = self._paths.get(directory)
        if known is not None:
            return known
        names: list[str] = []
        ino = directory
        while ino != ROOT_INO and ino:
            inode = fs.getattr(view, ino)
            names.append(os.fsdecode(inode.name) + "/")
            ino = inode.parent
        if len(self._paths) >= _PATHS_MAX:
            self._paths.clear()
        path = self._paths[directory] = "".join(reversed(names))
        return path

    # -- borders ----------------------------------------------------------------------------------

    def touch(self, directory: Ino, now_ns: int, *, subdirs: int = 0) -> None:
        """An excluded entry of a directory of history came, went, or changed."""
        border = self.borders.get(directory, Border())
        self._put(directory, Border(border.subdirs + subdirs, now_ns, now_ns))

    def clear_times(self, directory: Ino) -> None:
        """The directory's own times are what it has to show."""
        border = self.borders.get(directory)
        if border is not None:
            self._put(directory, Border(border.subdirs))

    def _put(self, directory: Ino, border: Border) -> None:
        self._store.note()
        self._changing(directory)
        self.borders[directory] = border
        self._changed.add(directory)

    def drop(self, directory: Ino) -> Border:
        """The directory is none of history any more, or has no excluded entries any more. What went
        from it leaves no trace, so the next write-back has to look at everything."""
        self._store.note()
        self._store.metadata.put_agreed(None)
        self._changing(directory)
        self._changed.add(directory)
        return self.borders.pop(directory, Border())

    def holds(self, read: Read) -> bool:
        return read.table == "borders" and any(
            read.asks_for(line_key(directory, self._line)) for directory in self._changed
        )

    def flush(self) -> None:
        for directory in self._changed:
            border = self.borders.get(directory)
            if border is None:
                self._store.borders.delete(line_key(directory, self._line))
            else:
                self._store.borders.put(line_key(directory, self._line), pack_border(border))
        self._changed.clear()


def spec_of(patterns: Sequence[str]) -> GitIgnoreSpec | None:
    """What the patterns match. Raises ValueError for one that makes no sense."""
    if not patterns:
        return None
    # Late: most workspaces have none.
    from pathspec import GitIgnoreSpec

    for pattern in patterns:
        try:
            found = GitIgnoreSpec.from_lines([pattern])
        except Exception as error:  # pathspec's own errors and those of re have no common base
            reason = str(error).lower()
            raise ValueError(f"patterns as in .gitignore are wanted ({reason})") from error
        if not any(item.include is not None for item in found.patterns):
            raise ValueError(f"patterns are wanted ({pattern!r} matches nothing)")
    return GitIgnoreSpec.from_lines(patterns)


def shown(fs: Filesystem, view: View, inode: Inode) -> Inode:
    """A directory as a user sees it: with what its excluded entries did to it."""
    border = fs.exclusion.borders.get(inode.ino) if view.excluded is not None else None
    if border is None or not inode.nlink:
        return inode
    return inode._replace(
        nlink=inode.nlink + border.subdirs,
        mtime_ns=max(inode.mtime_ns, border.mtime_ns or inode.mtime_ns),
        ctime_ns=max(inode.ctime_ns, border.ctime_ns or inode.ctime_ns),
    )


# -- where records stand ---------------------------------------------------------------------------


def home_of(fs: Filesystem, view: View, ino: Ino) -> View:
    """The view in which an inode is written: the excluded epoch's, or the one without it."""
    excluded = view.excluded
    if excluded is not None and is_own(fs, excluded, ino):
        return excluded
    return view.bare


def is_own(fs: Filesystem, view: View, ino: Ino) -> bool:
    """Whether the view's own epoch has a record of the inode."""
    return ino in view.dirty_inodes or fs.store.inodes.own(view, inode_entity(ino)) is not None


def home_for(fs: Filesystem, view: View, parent: Ino, name: bytes, *, is_dir: bool) -> View:
    """The view in which a new name in a directory is to be written."""
    excluded = view.excluded
    if excluded is None:
        return view
    if is_own(fs, excluded, parent):
        return excluded
    if not fs.exclusion.matches(fs, view, parent, name, is_dir=is_dir):
        return view.bare
    return excluded


def note_border(fs: Filesystem, view: View, parent: Ino, home: View, *, subdirs: int = 0) -> bool:
    """Note that an entry whose home is ``home`` came or went, and say so, if that concerns a border
    and not the directory's own record."""
    if home is not view.excluded or is_own(fs, home, parent):
        return False
    fs.exclusion.touch(parent, fs.clock(), subdirs=subdirs)
    return True


def excluded_entries(fs: Filesystem, excluded: View, directory: Ino) -> Iterator[tuple[bytes, Ino]]:
    """(name, inode) of the excluded entries of a directory."""
    for entity, record in list(fs.store.dirents.walk(excluded, pack_u64(directory))):
        yield dirent_name(entity), Ino(unpack_u64(record))
