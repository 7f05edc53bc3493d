"""Random edits of a small tree: files, directories, links, renames, replacements."""

from __future__ import annotations

import errno
import random

from ckptfs.model import ROOT_INO, Inode
from tests.history.edits import Edits

NAMES = (b"a", b"b", b"c", b"d")
_DEPTH = 4


def edit_at_random(work: Edits, rng: random.Random, count: int, mark: bytes) -> None:
    """Make so many edits; new lines of texts begin with ``mark``."""
    for _ in range(count):
        found = _everything(work)
        directories = [b"", *(path for path, inode in found.items() if inode.is_dir)]
        directory = rng.choice(directories)
        free = directory + b"/" + rng.choice(NAMES) if directory else rng.choice(NAMES)
        edit = rng.choice(_EDITS)
        try:
            edit(work, rng, found, b"" if free in found else free, mark)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EINVAL):
                raise


def _everything(work: Edits) -> dict[bytes, Inode]:
    found: dict[bytes, Inode] = {}
    pending = [(b"", ROOT_INO)]
    while pending:
        path, ino = pending.pop()
        for name, inode in work.fs.entries(work.fs.head, ino):
            below = path + b"/" + name if path else name
            found[below] = inode
            if inode.is_dir:
                pending.append((below, inode.ino))
    return found


Found = dict[bytes, Inode]


def _files(found: Found) -> list[bytes]:
    return sorted(path for path, inode in found.items() if inode.is_file)


def _make(work: Edits, rng: random.Random, found: Found, free: bytes, mark: bytes) -> None:
    if free:
        lines = [b"%s %d\n" % (mark, rng.randint(0, 9)) for _ in range(rng.randint(0, 6))]
        work.put(free, b"".join(lines))


def _make_directory(
    work: Edits, rng: random.Random, found: Found, free: bytes, mark: bytes
) -> None:
    if free and free.count(b"/") < _DEPTH:
        work.mkdir(free)


def _change(work: Edits, rng: random.Random, found: Found, free: bytes, mark: bytes) -> None:
    if not (files := _files(found)):
        return
    path = rng.choice(files)
    inode = found[path]
    lines = bytes(work.fs.read(work.fs.head, inode.ino, 0, inode.size)).splitlines(keepends=True)
    at = rng.randint(0, len(lines))
    lines[at : at + rng.randint(0, 1)] = [b"%s %d\n" % (mark, rng.randint(0, 99))]
    if rng.random() < 0.3:
        work.remove(path)
    work.put(path, b"".join(lines))


def _remove(work: Edits, rng: random.Random, found: Found, free: bytes, mark: bytes) -> None:
    if found:
        work.remove(rng.choice(sorted(found)))


def _move(work: Edits, rng: random.Random, found: Found, free: bytes, mark: bytes) -> None:
    if found and free:
        work.move(rng.choice(sorted(found)), free)


def _symlink(work: Edits, rng: random.Random, found: Found, free: bytes, mark: bytes) -> None:
    if free:
        work.symlink(free, rng.choice(NAMES))


def _link(work: Edits, rng: random.Random, found: Found, free: bytes, mark: bytes) -> None:
    if free and (files := _files(found)):
        work.link(rng.choice(files), free)


_EDITS = (_make, _make, _make_directory, _change, _change, _change, _remove, _move, _symlink, _link)
