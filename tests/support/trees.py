"""Directory trees as dict literals, and everything stat can tell about a real one.

    plant(path, {"src": {"a.py": "print()", "b": Link("a.py")}, "run": File("#!", mode=0o755)})
    assert tree(path) == {...}

`tree` reads back the same literals (content only), `facts` all that a faithful copy keeps.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class File(NamedTuple):
    content: str | bytes = b""
    mode: int = 0o644
    mtime_ns: int | None = None


class Link(NamedTuple):
    """A symbolic link."""

    target: str


class Same(NamedTuple):
    """A hard link to a path, relative to the root of the tree, that was planted before."""

    path: str


class Fifo(NamedTuple):
    mode: int = 0o644


class Directory(NamedTuple):
    """A directory with attributes of its own; a plain dict is one with mode 755."""

    content: Mapping[str, Node]
    mode: int = 0o755
    mtime_ns: int | None = None


Node = str | bytes | File | Link | Same | Fifo | Directory | Mapping[str, "Node"]
Tree = Mapping[str, Node]


def plant(root: Path, content: Tree, top: Path | None = None) -> None:
    """Make everything in `content` below the existing directory `root`."""
    top = root if top is None else top
    for name, node in content.items():
        _plant_one(root / name, node, top)


def _plant_one(path: Path, node: Node, top: Path) -> None:
    if isinstance(node, (str, bytes)):
        node = File(node)
    elif isinstance(node, Mapping):
        node = Directory(node)
    if isinstance(node, Link):
        path.symlink_to(node.target)
    elif isinstance(node, Same):
        path.hardlink_to(top / node.path)
    elif isinstance(node, Fifo):
        os.mkfifo(path, node.mode)
    elif isinstance(node, File):
        content = node.content
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        _dress(path, node.mode, node.mtime_ns)
    else:
        path.mkdir()
        plant(path, node.content, top)
        _dress(path, node.mode, node.mtime_ns)


def _dress(path: Path, mode: int, mtime_ns: int | None) -> None:
    path.chmod(mode)
    if mtime_ns is not None:
        os.utime(path, ns=(mtime_ns, mtime_ns))


def tree(root: Path) -> dict[str, object]:
    """What stands below `root`: text as str, other content as bytes, links and pipes by type."""
    return {
        entry.name: _read_one(Path(entry.path))
        for entry in sorted(os.scandir(root), key=lambda entry: entry.name)
    }


def _read_one(path: Path) -> object:
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        return tree(path)
    if stat.S_ISLNK(mode):
        return Link(os.readlink(path))
    if stat.S_ISFIFO(mode):
        return Fifo()
    content = path.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


class Facts(NamedTuple):
    """All that tells one path from another, but what a copy cannot keep: inode and ctime."""

    type: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    rdev: int
    content: bytes
    #: The other paths of the same file, the first of them standing for the group.
    same_as: str


def facts(root: Path) -> dict[str, Facts]:
    """Relative path to facts, for `root` itself (".") and everything below it."""
    first: dict[tuple[int, int], str] = {}
    return {name: _facts_of(path, name, first) for name, path in _walk(root)}


def _walk(root: Path, name: str = ".") -> Iterator[tuple[str, Path]]:
    yield name, root
    if stat.S_ISDIR(root.lstat().st_mode):
        for entry in sorted(os.listdir(root)):
            yield from _walk(root / entry, entry if name == "." else f"{name}/{entry}")


def _facts_of(path: Path, name: str, first: dict[tuple[int, int], str]) -> Facts:
    info = path.lstat()
    kind = stat.filemode(info.st_mode)[0]
    content = b""
    if kind == "-":
        content = path.read_bytes()
    elif kind == "l":
        content = os.fsencode(os.readlink(path))
    group = name if kind == "d" else first.setdefault((info.st_dev, info.st_ino), name)
    return Facts(
        type=kind,
        mode=stat.S_IMODE(info.st_mode),
        uid=info.st_uid,
        gid=info.st_gid,
        size=0 if kind == "d" else info.st_size,
        mtime_ns=info.st_mtime_ns,
        rdev=info.st_rdev,
        content=content,
        same_as=group,
    )


def make_durable(root: Path) -> None:
    """fsync every file and directory below `root`, and itself. (sync(2) does not wait for FUSE.)"""
    for _, path in _walk(root):
        if stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            fsync(path)


def fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Stat(NamedTuple):
    """What stat(2) says of a path and must go on saying as long as nobody touches it."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    blocks: int
    rdev: int
    mtime_ns: int
    ctime_ns: int


def stats(root: Path) -> dict[str, Stat]:
    """Relative path to `Stat`, for everything below `root` and itself."""
    return {name: stat_of(path) for name, path in _walk(root)}


def stat_of(path: Path | int) -> Stat:
    info = os.fstat(path) if isinstance(path, int) else path.lstat()
    return Stat(
        ino=info.st_ino,
        mode=info.st_mode,
        nlink=info.st_nlink,
        uid=info.st_uid,
        gid=info.st_gid,
        size=info.st_size,
        blocks=info.st_blocks,
        rdev=info.st_rdev,
        mtime_ns=info.st_mtime_ns,
        ctime_ns=info.st_ctime_ns,
    )
