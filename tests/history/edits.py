"""Short words for editing a file system by path, and for moving it through its history."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptfs.fs import Filesystem
from ckptfs.history import compression, packing, seal
from ckptfs.history.upkeep import Steps, Worker
from ckptfs.model import ROOT_INO, Attributes, Ino, Inode, Place
from ckptfs.store import Store, View, check


class Ticks:
    """A clock whose every reading is later than the one before."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


def take_a_step(fs: Filesystem, work: Worker | None) -> Worker | None:
    """Make history a little smaller, as a daemon does: the next step, or the result of what a
    thread was asked for. None if there is nothing more to do."""
    if work is None:
        work = Worker(fs, _everything(fs))
    if work.job is not None:
        work.resume(work.job())
    return None if work.step(0) else work


def _everything(fs: Filesystem) -> Steps:
    yield from compression.compression_steps(fs)
    yield from compression.repacking_steps(fs, everything=True)
    yield from packing.packing_steps(fs, 300)


class Edits:
    """A file system in a new store. Paths are bytes or str, relative to the root."""

    def __init__(self, path: Path, fs: Filesystem | None = None) -> None:
        self.fs = Filesystem(Store.create(path), Ticks()) if fs is None else fs
        self.store = self.fs.store

    # -- looking ----------------------------------------------------------------------------------

    def at(self, path: str | bytes, view: View | None = None) -> Inode:
        view = self.fs.head if view is None else view
        inode = self.fs.getattr(view, ROOT_INO)
        for name in _names(path):
            inode = self.fs.lookup(view, inode.ino, name)
        return inode

    def place(self, path: str | bytes) -> Place:
        *above, name = _names(path)
        return self.at(b"/".join(above)).ino, name

    # -- changing ---------------------------------------------------------------------------------

    def put(self, path: str | bytes, data: bytes = b"", mode: int = 0o644) -> Ino:
        """A file with exactly these bytes, made or changed."""
        parent, name = self.place(path)
        found = self.fs.seek(self.fs.head, parent, name)
        if found is None:
            found = self.fs.mknod(self.fs.head, parent, name, stat.S_IFREG | mode, 0, 0)
        elif found.size:
            self.fs.setattr(self.fs.head, found.ino, Attributes(size=0))
        self.fs.write(self.fs.head, found.ino, 0, data)
        return found.ino

    def write(self, path: str | bytes, offset: int, data: bytes) -> None:
        self.fs.write(self.fs.head, self.at(path).ino, offset, data)

    def change(self, path: str | bytes, **attributes: int) -> None:
        self.fs.setattr(self.fs.head, self.at(path).ino, Attributes(**attributes))

    def mkdir(self, path: str | bytes) -> Ino:
        return self.fs.mkdir(self.fs.head, *self.place(path), 0o755, 0, 0).ino

    def symlink(self, path: str | bytes, target: bytes) -> None:
        self.fs.symlink(self.fs.head, *self.place(path), target, 0, 0)

    def link(self, old: str | bytes, new: str | bytes) -> None:
        self.fs.link(self.fs.head, self.at(old).ino, *self.place(new))

    def move(self, old: str | bytes, new: str | bytes, flags: int = 0) -> None:
        self.fs.rename(self.fs.head, *self.place(old), *self.place(new), flags)

    def remove(self, path: str | bytes) -> None:
        """A file, or a directory with all it holds."""
        inode = self.at(path)
        parent, name = self.place(path)
        if not inode.is_dir:
            self.fs.unlink(self.fs.head, parent, name)
            return
        for child, _ in list(self.fs.entries(self.fs.head, inode.ino)):
            self.remove(b"/".join((*_names(path), child)))
        self.fs.rmdir(self.fs.head, parent, name)

    # -- history ----------------------------------------------------------------------------------

    def save(self, message: str = "") -> View:
        """A checkpoint, as the view of it."""
        return self.fs.view_of(seal(self.fs, "manual", message, self.fs.clock()).epoch)

    def go_back(self, view: View) -> None:
        """What a restore does to the store: the head becomes a branch below an older epoch."""
        seal(self.fs, "restore", "", self.fs.clock())
        self.fs.head = self.store.open_epoch(view.epoch, inodes=view.inodes)


def _names(path: str | bytes) -> list[bytes]:
    raw = path.encode() if isinstance(path, str) else path
    return [name for name in raw.split(b"/") if name]


@contextmanager
def edits(path: Path) -> Iterator[Edits]:
    """A new file system to edit; at the end `check` must find nothing."""
    made = Edits(path)
    try:
        yield made
        made.fs.commit()
        assert check(made.store) == []
    finally:
        made.store.close(commit=False)
