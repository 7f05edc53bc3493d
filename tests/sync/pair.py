"""A lower directory and a store, and short words for editing and comparing either side."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ckptfs import sync
from ckptfs.fs import Filesystem
from ckptfs.model import ROOT_INO, Attributes, Ino, Inode
from ckptfs.store import Store, View, check
from ckptfs.store.format import unpack_u64
from ckptfs.sync import ScanBehind, SyncResult
from ckptfs.sync.ledger import ROOT_PLACE, Ledger
from tests.support.trees import Facts, Tree, facts, plant


class Pair:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.lower = root / "lower"
        self.lower.mkdir()
        self.store = Store.create(root / "store")
        self.fs = Filesystem(self.store)
        self.fs.commit()

    # -- passes -----------------------------------------------------------------------------------

    def scan(self, **options: object) -> SyncResult:
        return self._run(sync.scan, options)

    def write_back(self, **options: object) -> SyncResult:
        return self._run(sync.write_back, options)

    def _run(self, verb, options):  # type: ignore[no-untyped-def]
        fd = os.open(self.lower, os.O_RDONLY | os.O_DIRECTORY)
        try:
            result = verb(self.fs, fd, **options)
        finally:
            os.close(fd)
        self.check()
        return result

    def begin_scan(self) -> ScanBehind:
        fd = os.open(self.lower, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return ScanBehind(self.fs, fd)
        finally:
            os.close(fd)

    def check(self) -> None:
        assert check(self.store) == []
        ledger = Ledger(self.store)
        reached = [(key, name) for key, name, _ in ledger.walk(ROOT_INO)]
        if ledger.get(*ROOT_PLACE) is not None:
            reached.append(ROOT_PLACE)
        present = [(unpack_u64(key[:8]), key[8:]) for key, _ in self.store.ledger._table.walk()]
        assert sorted(reached) == present

    def reopen(self, *, commit: bool = False) -> None:
        """What a new process finds; without ``commit``, after a crash."""
        if commit:
            self.fs.commit()
        self.store.close(commit=False)
        self.store = Store.open(self.root / "store")
        self.fs = Filesystem(self.store)

    def close(self) -> None:
        self.fs.commit()
        problems = check(self.store)
        self.store.close()
        assert problems == []

    # -- the store --------------------------------------------------------------------------------

    def inode(self, path: str | bytes) -> Inode:
        inode = self.fs.getattr(self.fs.head, ROOT_INO)
        for name in _names(path):
            inode = self.fs.lookup(self.fs.head, inode.ino, name)
        return inode

    def exists(self, path: str) -> bool:
        try:
            self.inode(path)
        except FileNotFoundError:
            return False
        return True

    def _place(self, path: str) -> tuple[Ino, bytes]:
        above, _, name = path.rpartition("/")
        return self.inode(above).ino, os.fsencode(name)

    def write(self, path: str, data: bytes | str) -> Inode:
        """Like open(O_CREAT | O_TRUNC) and write."""
        data = data.encode() if isinstance(data, str) else data
        head, fs = self.fs.head, self.fs
        if self.exists(path):
            ino = self.inode(path).ino
            fs.setattr(head, ino, Attributes(size=0))
        else:
            ino = fs.mknod(head, *self._place(path), 0o100644, os.geteuid(), os.getegid()).ino
        fs.write(head, ino, 0, data)
        return fs.getattr(head, ino)

    def read(self, path: str) -> bytes:
        return bytes(self.fs.read(self.fs.head, self.inode(path).ino, 0, 1 << 30))

    def mkdir(self, path: str, mode: int = 0o755) -> Inode:
        uid, gid = os.geteuid(), os.getegid()
        return self.fs.mkdir(self.fs.head, *self._place(path), mode, uid, gid)

    def symlink(self, path: str, target: str) -> Inode:
        uid, gid = os.geteuid(), os.getegid()
        return self.fs.symlink(self.fs.head, *self._place(path), target.encode(), uid, gid)

    def mknod(self, path: str, mode: int, rdev: int = 0) -> Inode:
        uid, gid = os.geteuid(), os.getegid()
        return self.fs.mknod(self.fs.head, *self._place(path), mode, uid, gid, rdev)

    def link(self, path: str, new: str) -> None:
        self.fs.link(self.fs.head, self.inode(path).ino, *self._place(new))

    def rename(self, path: str, new: str, flags: int = 0) -> None:
        self.fs.rename(self.fs.head, *self._place(path), *self._place(new), flags)

    def remove(self, path: str) -> None:
        """rm -r"""
        inode = self.inode(path)
        if inode.is_dir:
            for name, _ in list(self.fs.entries(self.fs.head, inode.ino)):
                self.remove(f"{path}/{os.fsdecode(name)}")
            self.fs.rmdir(self.fs.head, *self._place(path))
        else:
            self.fs.unlink(self.fs.head, *self._place(path))

    def chmod(self, path: str, mode: int) -> None:
        self.fs.setattr(self.fs.head, self.inode(path).ino, Attributes(mode=mode))

    def touch(self, path: str, mtime_ns: int) -> None:
        self.fs.setattr(self.fs.head, self.inode(path).ino, Attributes(mtime_ns=mtime_ns))

    # -- the lower directory -------------------------------------------------------------

    def plant(self, tree: Tree) -> None:
        plant(self.lower, tree)

    # -- comparing --------------------------------------------------------------------------------

    def names(self) -> set[str]:
        return set(self.stored())

    def stored(self, view: View | None = None) -> dict[str, Facts]:
        return stored_facts(self.fs, self.fs.head if view is None else view)

    def assert_equal(self) -> None:
        """Both sides are the same, in everything that stat and read can tell."""
        assert self.stored() == facts(self.lower)


def _names(path: str | bytes) -> list[bytes]:
    raw = os.fsencode(path)
    return raw.split(b"/") if raw else []


def stored_facts(fs: Filesystem, view: View) -> dict[str, Facts]:
    """What `tests.support.trees.facts` says of a directory, of a view."""
    first: dict[int, str] = {}
    return {
        name: _facts_of(fs, view, name, inode, first)
        for name, inode in _walk(fs, view, ".", fs.getattr(view, ROOT_INO))
    }


def _walk(fs: Filesystem, view: View, name: str, inode: Inode) -> Iterator[tuple[str, Inode]]:
    yield name, inode
    if inode.is_dir:
        entries = list(fs.entries(view, inode.ino))
        for child, inner in sorted(entries, key=lambda entry: os.fsdecode(entry[0])):
            path = os.fsdecode(child)
            yield from _walk(fs, view, path if name == "." else f"{name}/{path}", inner)


def _facts_of(fs: Filesystem, view: View, name: str, inode: Inode, first: dict[int, str]) -> Facts:
    content = inode.target
    if inode.is_file:
        content = bytes(fs.read(view, inode.ino, 0, inode.size))
    return Facts(
        type=stat.filemode(inode.mode)[0],
        mode=stat.S_IMODE(inode.mode),
        uid=inode.uid,
        gid=inode.gid,
        size=0 if inode.is_dir else inode.size,
        mtime_ns=inode.mtime_ns,
        rdev=inode.rdev,
        content=content,
        same_as=name if inode.is_dir else first.setdefault(inode.ino, name),
    )
