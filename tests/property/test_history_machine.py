"""Every checkpoint reads back for ever as the tree was when it was taken.

A model of plain dicts is changed in step with the head and recorded at each checkpoint; whatever
comes later (changes, restores, deletions, commits, crashes, reopening), each checkpoint's view must
equal its record: names, bytes, modes, owners, mtimes, link targets, xattrs and hard links. A crash
takes head and checkpoints back to the last commit, and to nothing else.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.history import Checkpoint, packing, removal
from ckptfs.history.upkeep import Worker
from ckptfs.model import BLOCK_SIZE, Attributes, Ino, Inode
from ckptfs.store import Store, View, check
from tests.direct import crashed, find, join, place, reopened
from tests.history.edits import take_a_step
from tests.history.leftovers import leftovers
from tests.property.model import Record, Thing, Tree, differences, record_of

SCRATCH = "/dev/shm"

NAMES = st.sampled_from([b"a", b"b", b"c", b"a\x01", b"\xff", b"x" * 255])
MODES = st.sampled_from([0o644, 0o4755, 0o600])
TARGETS = st.sampled_from([b"a", b"nowhere", b"t" * 4095])
TIMES = st.sampled_from([0, -1, 10**18 + 123_456_789])
_BORDERS = [k * BLOCK_SIZE + d for k in (1, 2) for d in (-1, 0, 1)]
_INLINE = [1_919, 1_920, 1_921]
OFFSETS = st.one_of(st.integers(0, 20), st.sampled_from(_BORDERS + _INLINE))
SIZES = st.one_of(st.just(0), st.integers(0, 20), st.sampled_from(_BORDERS + _INLINE))
LENGTHS = st.one_of(st.integers(0, 40), st.sampled_from([*_BORDERS, *_INLINE]))
_PATTERN = bytes(range(5, 256)) * 600
DATA = st.builds(lambda seed, size: _PATTERN[seed : seed + size], st.integers(0, 12), LENGTHS)
XATTRS = st.sampled_from([b"user.a", b"user.ab"])
VALUES = st.sampled_from([b"", b"value", b"v" * 5_000])

MACHINE = st.runner()
FILES = MACHINE.flatmap(lambda m: st.sampled_from(m.tree.paths(stat.S_IFREG) or [b""]))
DIRS = MACHINE.flatmap(lambda m: st.sampled_from(m.tree.paths(stat.S_IFDIR)))
PRESENT = MACHINE.flatmap(lambda m: st.sampled_from(m.tree.paths() or [b""]))
FRESH = st.builds(join, DIRS, NAMES)
SEALED = MACHINE.flatmap(lambda m: st.sampled_from(m.sealed))


class Sealed(NamedTuple):
    checkpoint: Checkpoint
    tree: Tree
    record: Record


class Held(NamedTuple):
    ino: Ino
    key: int


class StillClock:
    """A clock that moves only when told, so that the model knows every time that is written."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        return self.now_ns


class HistoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        #: Undone in the end even where a failure left half of a step behind.
        self._cleanup = ExitStack()
        self._scratch = Path(tempfile.mkdtemp(prefix="ckptfs-machine-", dir=SCRATCH))
        self._cleanup.callback(shutil.rmtree, self._scratch)
        self._clock = StillClock()
        self.fs = Filesystem(Store.create(self._scratch / "store"), self._clock)
        self.fs.setattr(self.fs.head, Ino(1), Attributes(uid=0, gid=0))
        self.tree = Tree(self._clock.now_ns)
        self.sealed: list[Sealed] = []
        self.upkeep: Worker | None = None
        self.held: list[Held] = []
        self.every_step = True
        self._remember_commit()

    def teardown(self) -> None:
        with self._cleanup:
            self._cleanup.callback(lambda: self.fs.store.close(commit=False))
            self.look()
            self._let_go()
            self.fs.commit()
            assert check(self.fs.store) == []
            assert leftovers(self.fs.store) == []
            assert self.fs.head.inodes == len(set(self.tree.names.values()))

    @initialize(every_step=st.booleans(), committed=st.booleans())
    def begin(self, every_step: bool, committed: bool) -> None:
        self.every_step = every_step
        self.make(b"a", Thing(stat.S_IFDIR | 0o755, self._now()))
        self.make(b"a/b", Thing(stat.S_IFREG | 0o644, self._now()))
        self.write(b"a/b", 0, _PATTERN[: BLOCK_SIZE + 100])
        if committed:
            self.commit()

    def _now(self) -> int:
        self._clock.now_ns += 1_000
        return self._clock.now_ns

    def _ino(self, path: bytes) -> Ino:
        return find(self.fs, self.fs.head, path).ino

    def _place(self, path: bytes) -> tuple[Ino, bytes]:
        return place(self.fs, self.fs.head, path)

    # -- comparing --------------------------------------------------------------------------------

    @invariant()
    def all_reads_back(self) -> None:
        if self.every_step:
            self.look()

    @rule()
    @precondition(lambda self: not self.every_step)
    def look(self) -> None:
        self._compare(self.fs.head, self.tree.record(), "the head")
        for checkpoint, _, record in self.sealed:
            self._compare(self.fs.view_of(checkpoint.epoch), record, f"checkpoint {checkpoint.id}")
        kept = [sealed.checkpoint for sealed in self.sealed]
        assert history.checkpoints(self.fs.store) == kept

    def _compare(self, view: View, record: Record, what: str) -> None:
        found = differences(record_of(self.fs, view), record)
        assert not found, what + ":\n" + "\n".join(found)

    # -- changing the head ------------------------------------------------------------------------

    def make(self, path: bytes, thing: Thing) -> None:
        if path in self.tree.names:
            return
        where = self._place(path)
        head, uid, gid = self.fs.head, thing.uid, thing.gid
        if thing.is_dir:
            self.fs.mkdir(head, *where, stat.S_IMODE(thing.mode), uid, gid)
        elif stat.S_ISLNK(thing.mode):
            self.fs.symlink(head, *where, thing.target, uid, gid)
        else:
            self.fs.mknod(head, *where, thing.mode, uid, gid, thing.rdev)
        self.tree.make(path, thing)

    @rule(path=FRESH)
    def mkdir(self, path: bytes) -> None:
        self.make(path, Thing(stat.S_IFDIR | 0o755, self._now()))

    @rule(path=FRESH, mode=MODES, data=DATA)
    def create(self, path: bytes, mode: int, data: bytes) -> None:
        if path not in self.tree.names:
            self.make(path, Thing(stat.S_IFREG | mode, self._now(), uid=1000, gid=1000))
            self.write(path, 0, data)

    @rule(path=FRESH, to=TARGETS)
    def symlink(self, path: bytes, to: bytes) -> None:
        self.make(path, Thing(stat.S_IFLNK | 0o777, self._now(), target=to))

    @rule(path=FRESH)
    def mknod(self, path: bytes) -> None:
        self.make(path, Thing(stat.S_IFCHR | 0o600, self._now(), rdev=os.makedev(259, 70_000)))

    @rule(path=PRESENT, new_path=FRESH)
    def link(self, path: bytes, new_path: bytes) -> None:
        if new_path not in self.tree.names and not self.tree.at(path).is_dir:
            now_ns = self._now()
            self.fs.link(self.fs.head, self._ino(path), *self._place(new_path))
            self.tree.link(path, new_path, now_ns)

    @rule(path=PRESENT)
    def remove(self, path: bytes) -> None:
        if path and self.tree.may_remove(path):
            now_ns = self._now()
            remove = self.fs.rmdir if self.tree.at(path).is_dir else self.fs.unlink
            remove(self.fs.head, *self._place(path))
            self.tree.remove(path, now_ns)

    @rule(path=PRESENT, new_path=FRESH | PRESENT)
    def rename(self, path: bytes, new_path: bytes) -> None:
        if path and new_path and self.tree.may_move(path, new_path):
            now_ns = self._now()
            self.fs.rename(self.fs.head, *self._place(path), *self._place(new_path))
            self.tree.move(path, new_path, now_ns)

    @rule(path=PRESENT, other=PRESENT)
    def exchange(self, path: bytes, other: bytes) -> None:
        if path and other and self.tree.may_exchange(path, other):
            now_ns = self._now()
            self.fs.rename(self.fs.head, *self._place(path), *self._place(other), 2)
            self.tree.exchange(path, other, now_ns)

    @rule(path=FILES, offset=OFFSETS, data=DATA)
    def write(self, path: bytes, offset: int, data: bytes) -> None:
        if path:
            now_ns = self._now()
            self.fs.write(self.fs.head, self._ino(path), offset, data)
            self.tree.write(self.tree.names[path], offset, data, now_ns)

    @rule(path=FILES, size=SIZES)
    def truncate(self, path: bytes, size: int) -> None:
        if path:
            now_ns = self._now()
            self.fs.setattr(self.fs.head, self._ino(path), Attributes(size=size))
            self.tree.truncate(self.tree.names[path], size, now_ns)

    @rule(path=PRESENT | DIRS, mode=st.sampled_from([0o700, 0o2770, 0o4711]))
    def chmod(self, path: bytes, mode: int) -> None:
        self._now()
        self.fs.setattr(self.fs.head, self._ino(path), Attributes(mode=mode))
        key = self.tree.names[path]
        self.tree.change(key, mode=self.tree.things[key].kind | mode)

    @rule(path=PRESENT | DIRS, mtime_ns=TIMES)
    def utime(self, path: bytes, mtime_ns: int) -> None:
        self._now()
        self.fs.setattr(self.fs.head, self._ino(path), Attributes(mtime_ns=mtime_ns))
        self.tree.change(self.tree.names[path], mtime_ns=mtime_ns)

    @rule(path=PRESENT | DIRS, name=XATTRS, value=VALUES)
    def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        self._now()
        self.fs.setxattr(self.fs.head, self._ino(path), name, value)
        key = self.tree.names[path]
        self.tree.change(key, xattrs={**self.tree.things[key].xattrs, name: value})

    @rule(path=PRESENT | DIRS, name=XATTRS)
    def removexattr(self, path: bytes, name: bytes) -> None:
        key = self.tree.names[path]
        xattrs = dict(self.tree.things[key].xattrs)
        if xattrs.pop(name, None) is not None:
            self._now()
            self.fs.removexattr(self.fs.head, self._ino(path), name)
            self.tree.change(key, xattrs=xattrs)

    # -- open files, which may lose their names and live on across checkpoints --------------------

    @rule(path=FILES)
    def hold(self, path: bytes) -> None:
        if path:
            held = Held(self._ino(path), self.tree.names[path])
            self.fs.hold(held.ino)
            self.held.append(held)

    @rule(offset=OFFSETS, data=DATA)
    @precondition(lambda self: self.held)
    def write_held(self, offset: int, data: bytes) -> None:
        held = self.held[-1]
        now_ns = self._now()
        self.fs.write(self.fs.head, held.ino, offset, data)
        self.tree.write(held.key, offset, data, now_ns)
        size = len(self.tree.things[held.key].data)
        assert self.fs.read(self.fs.head, held.ino, 0, size + 1) == self.tree.things[held.key].data

    @rule()
    @precondition(lambda self: self.held)
    def drop(self) -> None:
        self.fs.drop(self.held.pop(0).ino)

    def _let_go(self) -> None:
        while self.held:
            self.drop()

    # -- history ----------------------------------------------------------------------------------

    def _keep(self, made: Checkpoint) -> None:
        self.sealed.append(Sealed(made, self.tree.copy(), self.tree.record()))

    @rule(committed=st.booleans())
    def seal(self, committed: bool) -> None:
        before = self.fs.head
        self._keep(history.seal(self.fs, "manual", f"of {len(self.sealed)}", self._now()))
        assert not before.writable
        if committed:
            self.commit()

    @rule(sealed=SEALED)
    @precondition(lambda self: self.sealed)
    def restore(self, sealed: Sealed) -> None:
        """Nobody holds a file open: what a restore does to handles is tested elsewhere."""
        self._let_go()
        self._now()
        done = history.restore(self.fs, sealed.checkpoint)
        self._keep(done.before)
        self.tree = sealed.tree.copy()

    @rule(sealed=SEALED)
    @precondition(lambda self: self.sealed)
    def delete(self, sealed: Sealed) -> None:
        removal.delete(self.fs, [sealed.checkpoint])
        self.sealed.remove(sealed)
        self.commit()

    @rule(sealed=SEALED, data=st.data())
    @precondition(lambda self: self.sealed)
    def refuse(self, sealed: Sealed, data: Any) -> None:
        """Nothing that changes something is done in a checkpoint."""
        view = self.fs.view_of(sealed.checkpoint.epoch)
        path = data.draw(st.sampled_from(sorted(sealed.record)))
        inode = find(self.fs, view, path)
        change = data.draw(st.sampled_from(list(_changes(self.fs, view, inode))))
        try:
            change()
        except OSError as refused:
            assert refused.errno == errno.EROFS, refused
        else:
            raise AssertionError("a checkpoint was changed")

    # -- the store's life -------------------------------------------------------------------------

    @rule(chunk_bytes=st.sampled_from([1, 200, packing.CHUNK_BYTES]))
    def pack_records(self, chunk_bytes: int) -> None:
        packing.pack_records(self.fs, chunk_bytes)

    @rule()
    def unpack_records(self) -> None:
        """What a restored workspace needs, perhaps beside packing that began before it."""
        packing.unpack_needed(self.fs)

    @rule()
    def make_smaller_a_little(self) -> None:
        """Background work, with whatever else happens between its steps."""
        self.upkeep = take_a_step(self.fs, self.upkeep)

    def _remember_commit(self) -> None:
        self.fs.commit()
        self._committed = (self.tree.copy(), list(self.sealed))

    @rule()
    def commit(self) -> None:
        self._remember_commit()

    @rule()
    def reopen(self) -> None:
        self.held.clear()
        self.upkeep = None
        self.fs = reopened(self.fs)
        self._remember_commit()

    @rule()
    def crash(self) -> None:
        self.held.clear()
        self.upkeep = None
        self.fs = crashed(self.fs)
        tree, sealed = self._committed
        self.tree, self.sealed = tree.copy(), list(sealed)


def _changes(fs: Filesystem, view: View, inode: Inode) -> list[Callable[[], object]]:
    ino, place = inode.ino, (Ino(1), b"new")
    return [
        lambda: fs.mkdir(view, *place, 0o755, 0, 0),
        lambda: fs.mknod(view, *place, 0o644, 0, 0),
        lambda: fs.symlink(view, *place, b"target", 0, 0),
        lambda: fs.link(view, ino, *place),
        lambda: fs.unlink(view, inode.parent, inode.name),
        lambda: fs.rmdir(view, inode.parent, inode.name),
        lambda: fs.rename(view, inode.parent, inode.name, *place),
        lambda: fs.write(view, ino, 0, b"data"),
        lambda: fs.setattr(view, ino, Attributes(size=0)),
        lambda: fs.setattr(view, ino, Attributes(mode=0o600)),
        lambda: fs.setxattr(view, ino, b"user.a", b""),
        lambda: fs.removexattr(view, ino, b"user.a"),
    ]


@pytest.mark.timeout(900)  # a failure is made small before it is told
class TestHistory(HistoryMachine.TestCase):
    settings = settings(
        derandomize=True,
        max_examples=250,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.deep
@pytest.mark.timeout(0)
class TestHistoryDeep(HistoryMachine.TestCase):
    settings = settings(
        max_examples=1_500,
        stateful_step_count=120,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
