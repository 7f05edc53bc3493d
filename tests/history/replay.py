"""A list of changes against the two trees it is about, both read whole.

`verify` knows neither `changes` nor inode numbers of directories: it asks whether the list accounts
for every path of both trees, and says of each exactly what differs.
"""

from __future__ import annotations

import stat
from typing import NamedTuple

from ckptfs.fs import Filesystem
from ckptfs.history.diff.tree import Change, compare_views
from ckptfs.model import ROOT_INO, Inode
from ckptfs.store import View


class Facts(NamedTuple):
    """What a change can be about; each field is one kind."""

    type: int
    modified: bytes
    target: bytes
    mode: int
    owner: tuple[int, int]
    xattr: dict[bytes, bytes]
    times: int


Tree = dict[bytes, Facts]


def read_tree(fs: Filesystem, view: View) -> Tree:
    """Every path of a view; the root is "."."""
    tree: Tree = {}
    pending = [(b"", fs.getattr(view, ROOT_INO))] if view.epoch else []
    while pending:
        path, inode = pending.pop()
        tree[path or b"."] = _facts(fs, view, inode)
        if inode.is_dir:
            prefix = path + b"/" if path else b""
            pending += [(prefix + name, child) for name, child in fs.entries(view, inode.ino)]
    return tree


def _facts(fs: Filesystem, view: View, inode: Inode) -> Facts:
    names = fs.listxattr(view, inode.ino)
    data = bytes(fs.read(view, inode.ino, 0, inode.size)) if inode.is_file else b""
    return Facts(
        stat.S_IFMT(inode.mode),
        data or b"%d" % inode.rdev,
        inode.target,
        stat.S_IMODE(inode.mode),
        (inode.uid, inode.gid),
        {name: bytes(fs.getxattr(view, inode.ino, name)) for name in names},
        inode.mtime_ns,
    )


def verify(fs: Filesystem, a: View, b: View) -> list[Change]:
    """Compare two views, check the answer against their trees, and return it."""
    changes = compare_views(fs, a, b)
    old, new = read_tree(fs, a), read_tree(fs, b)
    listed = {change.path: change for change in changes if "deleted" not in change.kinds}
    deleted = {change.path for change in changes if "deleted" in change.kinds}
    assert len(listed) + len(deleted) == len(changes), changes
    assert [change.path for change in changes] == sorted(change.path for change in changes)
    sources = {path: _source(path, listed, old, new) for path in new}
    used = [source for source in sources.values() if source is not None]
    assert len(used) == len(set(used)), "two paths came from one"
    vanished = old.keys() - set(used) - ({b"."} if not new else set())
    assert deleted == vanished
    for path, source in sources.items():
        _verify_one(path, source, listed.get(path), old, new)
    _verify_inodes(fs, a, b, changes)
    return changes


def _source(path: bytes, listed: dict[bytes, Change], old: Tree, new: Tree) -> bytes | None:
    """Which path of the old tree a path of the new one was, going by the list."""
    change = listed.get(path)
    if path == b".":
        return path if path in old else None
    if change is not None and "added" in change.kinds:
        return None
    if change is not None and "renamed" in change.kinds:
        return change.source
    above, _, name = path.rpartition(b"/")
    source = _source(above or b".", listed, old, new)
    assert source is not None, f"{path!r} is not listed, and its directory is new"
    assert old[source].type == stat.S_IFDIR
    return name if source == b"." else source + b"/" + name


def _verify_one(
    path: bytes, source: bytes | None, change: Change | None, old: Tree, new: Tree
) -> None:
    kinds = set(change.kinds) if change else set()
    if source is None:
        assert path == b"." or kinds == {"added"}, path
        return
    assert source in old, f"{path!r} should come from {source!r}, which is not there"
    assert change is None or change.source == source
    if "renamed" in kinds:
        assert path != source
    assert kinds - {"renamed"} == _aspects(old[source], new[path]), (path, old[source], new[path])


def _aspects(old: Facts, new: Facts) -> set[str]:
    if old.type != new.type:
        return {"type"}
    differing = {
        field for field, mine, its in zip(Facts._fields, old, new, strict=True) if mine != its
    }
    if new.type == stat.S_IFDIR or "modified" in differing:
        differing.discard("times")
    return differing


def _verify_inodes(fs: Filesystem, a: View, b: View, changes: list[Change]) -> None:
    """The inodes in the list are those of its paths."""
    for change in changes:
        was = None if change.source is None else _at(fs, a, change.source)
        assert (change.old, change.old is None) == (was, "added" in change.kinds)
        assert change.new == (None if "deleted" in change.kinds else _at(fs, b, change.path))


def _at(fs: Filesystem, view: View, path: bytes) -> Inode:
    inode = fs.getattr(view, ROOT_INO)
    for name in [] if path == b"." else path.split(b"/"):
        inode = fs.lookup(view, inode.ino, name)
    return inode
