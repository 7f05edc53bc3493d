"""A file tree as plain dicts, for machines that need to know what a tree was some time ago.

Every operation here is one that succeeds; which ones do is told by `may_*`.
"""

from __future__ import annotations

import copy
import stat
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.store import View
from tests.direct import NO_BYTES, Content, Node, shown


@dataclass(frozen=True)
class Thing:
    """What an inode is. Frozen, so that trees recorded earlier may share it."""

    mode: int
    mtime_ns: int
    uid: int = 0
    gid: int = 0
    rdev: int = 0
    data: bytes = b""
    target: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def kind(self) -> int:
        return stat.S_IFMT(self.mode)

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)


class Recorded(NamedTuple):
    """All that must read back of one path; ``paths`` are the names of the same inode."""

    node: Node
    mtime_ns: int
    paths: tuple[bytes, ...]


Record = dict[bytes, Recorded]


class Tree:
    """``names`` leads from path to key, ``things`` from key to what stands there."""

    def __init__(self, now_ns: int) -> None:
        self.names: dict[bytes, int] = {b"": 0}
        self.things: dict[int, Thing] = {0: Thing(stat.S_IFDIR | 0o755, now_ns)}
        self._next = 1

    def copy(self) -> Tree:
        return copy.deepcopy(self)

    def at(self, path: bytes) -> Thing:
        return self.things[self.names[path]]

    def paths(self, kind: int = 0) -> list[bytes]:
        """All paths but the root's, or all of one type with the root."""
        if not kind:
            return sorted(path for path in self.names if path)
        return sorted(path for path in self.names if self.at(path).kind == kind)

    def below(self, path: bytes) -> list[bytes]:
        return [other for other in self.names if other.startswith(path + b"/")]

    def change(self, key: int, **what: object) -> None:
        self.things[key] = replace(self.things[key], **what)  # type: ignore[arg-type]

    def touch_above(self, path: bytes, now_ns: int) -> None:
        self.change(self.names[path.rpartition(b"/")[0]], mtime_ns=now_ns)

    # -- names ------------------------------------------------------------------------------------

    def make(self, path: bytes, thing: Thing) -> None:
        above = self.at(path.rpartition(b"/")[0])
        if above.mode & stat.S_ISGID:
            mode = thing.mode | (stat.S_ISGID if thing.is_dir else 0)
            thing = replace(thing, gid=above.gid, mode=mode)
        self.names[path] = self._next
        self.things[self._next] = thing
        self._next += 1
        self.touch_above(path, thing.mtime_ns)

    def link(self, path: bytes, new_path: bytes, now_ns: int) -> None:
        self.names[new_path] = self.names[path]
        self.touch_above(new_path, now_ns)

    def may_remove(self, path: bytes) -> bool:
        return not self.below(path)

    def remove(self, path: bytes, now_ns: int) -> None:
        del self.names[path]
        self.touch_above(path, now_ns)

    def may_move(self, path: bytes, new_path: bytes) -> bool:
        if not self.may_exchange(path, new_path):
            return False
        if new_path not in self.names:
            return True
        replaced = self.at(new_path)
        return self.at(path).is_dir == replaced.is_dir and self.may_remove(new_path)

    def move(self, path: bytes, new_path: bytes, now_ns: int) -> None:
        if self.names[path] == self.names.get(new_path):
            return
        self.names.pop(new_path, None)
        for old in [path, *self.below(path)]:
            self.names[new_path + old[len(path) :]] = self.names.pop(old)
        self.touch_above(path, now_ns)
        self.touch_above(new_path, now_ns)

    def may_exchange(self, path: bytes, other: bytes) -> bool:
        """Neither is the other one or lies below it."""
        return not (path + b"/").startswith(other + b"/") and not other.startswith(path + b"/")

    def exchange(self, path: bytes, other: bytes, now_ns: int) -> None:
        if self.names[path] == self.names[other]:
            return
        mine = {old[len(path) :]: self.names.pop(old) for old in [path, *self.below(path)]}
        for old in [other, *self.below(other)]:
            self.names[path + old[len(other) :]] = self.names.pop(old)
        for rest, key in mine.items():
            self.names[other + rest] = key
        self.touch_above(path, now_ns)
        self.touch_above(other, now_ns)

    # -- content ----------------------------------------------------------------------------------

    def write(self, key: int, offset: int, data: bytes, now_ns: int) -> None:
        if data:
            old = self.things[key].data
            new = old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]
            self.change(key, data=new, mtime_ns=now_ns)

    def truncate(self, key: int, size: int, now_ns: int) -> None:
        data = self.things[key].data[:size].ljust(size, b"\0")
        self.change(key, data=data, mtime_ns=now_ns)

    # -- what must read back ----------------------------------------------------------------------

    def record(self) -> Record:
        subdirs = Counter(
            path.rpartition(b"/")[0] for path in self.names if path and self.at(path).is_dir
        )
        together: dict[int, list[bytes]] = {}
        for path in sorted(self.names):
            together.setdefault(self.names[path], []).append(path)
        return {
            path: Recorded(
                _node(self.things[key], 2 + subdirs[path], len(together[key])),
                self.things[key].mtime_ns,
                tuple(together[key]),
            )
            for path, key in self.names.items()
        }


def _node(thing: Thing, dir_links: int, names: int) -> Node:
    return Node(
        mode=thing.mode,
        nlink=dir_links if thing.is_dir else names,
        uid=thing.uid,
        gid=thing.gid,
        rdev=thing.rdev,
        size=len(thing.data) + len(thing.target),
        content=Content(thing.data, {}) if stat.S_ISREG(thing.mode) else NO_BYTES,
        target=thing.target,
        xattrs=thing.xattrs,
    )


def record_of(fs: Filesystem, view: View) -> Record:
    """What a view of the file system shows, in the same words."""
    tree = shown(fs, view)
    together: dict[int, list[bytes]] = {}
    for path in sorted(tree.inos):
        together.setdefault(tree.inos[path], []).append(path)
    return {
        path: Recorded(node, tree.times[ino].mtime_ns, tuple(together[ino]))
        for path, node in tree.nodes.items()
        if (ino := tree.inos[path])
    }


def differences(found: Record, wanted: Record) -> list[str]:
    """One line for each field of each path that is not as it was recorded."""
    lines = []
    for path in sorted(found.keys() | wanted.keys()):
        if path not in found or path not in wanted:
            lines.append(f"{path!r} {'is missing' if path not in found else 'must not be there'}")
            continue
        a, b = found[path], wanted[path]
        pairs = [(n, getattr(a.node, n), getattr(b.node, n)) for n in Node._fields]
        pairs += [("mtime", a.mtime_ns, b.mtime_ns), ("paths", a.paths, b.paths)]
        lines += [f"{path!r}: {n} is {brief(x)}, must be {brief(y)}" for n, x, y in pairs if x != y]
    return lines


def brief(value: object) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:180]}... ({len(text)} characters)"
