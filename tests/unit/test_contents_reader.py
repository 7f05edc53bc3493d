"""Bytes of files as of the last commit, read without the store, beside what the store reads."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fs.filesystem import ignore
from ckptfs.fs.ranges import Spot
from ckptfs.fuse.server.interface import CompiledServer, ServerModule
from ckptfs.history import compression, forks, packing, removal
from ckptfs.model import BLOCK_SIZE, ROOT_INO, Attributes, Ino
from ckptfs.store.format import INLINE_MAX
from tests.direct import Life, find, get, put
from tests.support.kernel import Owner

NAMES = [b"%c" % letter for letter in b"abcdef"]
SIZES = [1, 60, INLINE_MAX, INLINE_MAX + 1, 2_030, 2_100, 5_000, BLOCK_SIZE, 150_000]
PLACES = [0, 1, 4_096, 5_000, BLOCK_SIZE - 1, BLOCK_SIZE, 100_000]


@pytest.fixture
def snapshot(life: Life, compiled: CompiledServer) -> Iterator[Life]:
    attach(life.fs, compiled)
    yield life
    compiled.detach()


def attach(fs: Filesystem, compiled: CompiledServer) -> None:
    fs.changing, fs.changed = compiled.invalidate_inode, compiled.update_inode
    fs.commit()
    fs.store.attach_reader(compiled)


def compare(fs: Filesystem, compiled: CompiledServer, name: bytes) -> int:
    """How often bytes of a file are known; where they are, they must be right."""
    found = fs.seek(fs.head, ROOT_INO, name)
    known = 0
    for offset in PLACES if found is not None else ():
        for size in (1, 4_096, BLOCK_SIZE):
            said = compiled.bytes_at(found.ino, offset, size)
            if said is not None:
                assert said == bytes(fs.read(fs.head, found.ino, offset, size))
                known += 1
    return known


class Actor:
    """Does one thing after another to a few files."""

    def __init__(self, fs: Filesystem, seed: int) -> None:
        self.fs = fs
        self.random = random.Random(seed)
        self.saved: list[history.Checkpoint] = []
        self.acts: list[Callable[[], object]] = [
            *[self.fill] * 4,
            *[self.write] * 4,
            *[self.cut] * 2,
            *[self.copy] * 2,
            *[self.replace] * 2,
            *[self.save] * 2,
            self.remove,
            self.dress,
            self.restore,
            self.delete,
            self.pack,
            self.fs.sync,
            *[self.fs.commit] * 4,
        ]

    def act(self) -> None:
        self.random.choice(self.acts)()

    def name(self) -> bytes:
        return self.random.choice(NAMES)

    def inode(self) -> Ino:
        return put(self.fs, self.name())

    def bytes(self) -> bytes:
        return self.random.randbytes(self.random.choice(SIZES))

    def fill(self) -> None:
        put(self.fs, self.name(), self.bytes())

    def write(self) -> None:
        self.fs.write(self.fs.head, self.inode(), self.random.choice(PLACES), self.bytes())

    def cut(self) -> None:
        size = self.random.choice([0, *SIZES])
        self.fs.setattr(self.fs.head, self.inode(), Attributes(size=size))

    def copy(self) -> None:
        source = Spot(self.fs.head, self.inode(), 0)
        target = Spot(self.fs.head, self.inode(), self.random.choice([0, BLOCK_SIZE]))
        if source.ino != target.ino:
            self.fs.copy_range(source, target, self.random.choice(SIZES))

    def replace(self) -> None:
        name, other = self.name(), self.name()
        put(self.fs, name)
        self.fs.rename(self.fs.head, ROOT_INO, name, ROOT_INO, other, 0)

    def remove(self) -> None:
        name = self.name()
        put(self.fs, name)
        self.fs.unlink(self.fs.head, ROOT_INO, name)

    def dress(self) -> None:
        self.fs.setattr(self.fs.head, self.inode(), Attributes(mode=self.random.randrange(0o777)))

    def save(self) -> None:
        self.saved.append(history.seal(self.fs, "save", "", self.fs.clock()))

    def restore(self) -> None:
        if self.saved:
            history.restore(self.fs, self.random.choice(self.saved))

    def delete(self) -> None:
        if len(self.saved) > 2:
            gone = self.saved.pop(self.random.randrange(len(self.saved)))
            removal.delete(self.fs, [gone])

    def pack(self) -> None:
        compression.compress(self.fs)
        packing.pack_records(self.fs)


@pytest.mark.parametrize("seed", range(12))
def test_it_reads_what_the_store_reads(snapshot: Life, compiled: CompiledServer, seed: int) -> None:
    fs = snapshot.fs
    actor = Actor(fs, seed)
    known = 0
    for _ in range(250):
        actor.act()
        known += sum(compare(fs, compiled, name) for name in NAMES)
    assert known > 100


def test_of_what_was_written_since_nothing_is_known(
    snapshot: Life, compiled: CompiledServer
) -> None:
    fs = snapshot.fs
    ino, other = put(fs, b"file", bytes(5_000)), put(fs, b"other", b"x" * 3_000)
    assert compiled.bytes_at(ino, 0, 4_096) is None
    fs.commit()
    assert compiled.bytes_at(ino, 4_096, 4_096) == bytes(904)
    for change in (
        lambda: fs.write(fs.head, ino, 100, b"in the middle"),
        lambda: fs.setattr(fs.head, ino, Attributes(size=4_000)),
        lambda: fs.copy_range(Spot(fs.head, other, 0), Spot(fs.head, ino, 0), 3_000),
    ):
        change()
        assert compiled.bytes_at(ino, 0, 10) is None
        assert compiled.bytes_at(other, 0, 10) == b"x" * 10
        fs.sync()
        assert compiled.bytes_at(ino, 0, 10) in (None, bytes(fs.read(fs.head, ino, 0, 10)))
        fs.commit()
        assert compiled.bytes_at(ino, 0, 10) == bytes(fs.read(fs.head, ino, 0, 10))


def test_a_restore_brings_back_what_was(snapshot: Life, compiled: CompiledServer) -> None:
    fs = snapshot.fs
    ino = put(fs, b"file", b"before" * 500)
    first = history.seal(fs, "save", "", fs.clock())
    put(fs, b"file", b"after!" * 500)
    fs.commit()
    assert compiled.bytes_at(ino, 0, 6) == b"after!"
    history.restore(fs, first)
    ino = find(fs, fs.head, b"file").ino
    assert compiled.bytes_at(ino, 0, 6) is None
    fs.commit()
    assert compiled.bytes_at(ino, 0, 6) == b"before"


def test_a_block_that_moves_to_another_epoch_is_not_looked_for_in_the_old_one(
    snapshot: Life, compiled: CompiledServer
) -> None:
    """The deletion of a checkpoint moves a block's record, and leaves the inode's as it is."""
    fs = snapshot.fs
    ino = put(fs, b"file", b"oldest" * 500)
    history.seal(fs, "save", "", fs.clock())
    fs.write(fs.head, ino, 0, b"newest" * 500)
    second = history.seal(fs, "save", "", fs.clock())
    fs.setattr(fs.head, ino, Attributes(mode=0o600))
    fs.commit()
    removal.delete(fs, [second])
    assert compiled.bytes_at(ino, 0, 6) in (None, b"newest")
    fs.commit()
    assert compiled.bytes_at(ino, 0, 6) == b"newest"


def test_holes_and_ends_are_left_to_the_store(snapshot: Life, compiled: CompiledServer) -> None:
    fs = snapshot.fs
    ino = put(fs, b"file")
    fs.write(fs.head, ino, 3 * BLOCK_SIZE, b"behind a hole")
    short = put(fs, b"short", b"short")
    fs.setattr(fs.head, short, Attributes(size=100))
    fs.commit()
    assert compiled.bytes_at(ino, 0, 10) is None
    assert compiled.bytes_at(ino, 3 * BLOCK_SIZE, 4_096) == b"behind a hole"
    assert compiled.bytes_at(ino, 3 * BLOCK_SIZE + 13, 10) is None
    assert compiled.bytes_at(ino, 2 * BLOCK_SIZE + 1, BLOCK_SIZE) is None
    assert compiled.bytes_at(short, 0, 5) == b"short"
    assert compiled.bytes_at(short, 0, 100) is None
    assert compiled.bytes_at(ROOT_INO, 0, 10) is None


@pytest.mark.parametrize("size", [100, 1_950, 3_000, BLOCK_SIZE])
def test_what_is_damaged_is_left_to_the_store(
    snapshot: Life, compiled: CompiledServer, size: int
) -> None:
    """A bit of the bytes flips on disk before they are mapped again."""
    fs = snapshot.fs
    data = random.Random(size).randbytes(size)
    ino = put(fs, b"file", data)
    fs.commit()
    assert compiled.bytes_at(ino, 0, size) == data
    file = fs.store.path / "data.mdb"
    with file.open("r+b", buffering=0) as stored:
        places = list(_found(stored.read(), data[20:80]))
        assert places
        for at in places:
            os.pwrite(stored.fileno(), bytes([data[20] ^ 1]), at)
    assert compiled.bytes_at(ino, 0, size) is None
    compiled.detach()
    assert compiled.bytes_at(ino, 0, size) is None
    with file.open("r+b", buffering=0) as stored:
        for at in places:
            os.pwrite(stored.fileno(), data[20:21], at)


def _found(where: bytes, what: bytes) -> Iterator[int]:
    at = where.find(what)
    while at >= 0:
        yield at
        at = where.find(what, at + 1)


def test_what_is_kept_in_another_way_is_left_to_the_store(
    snapshot: Life, compiled: CompiledServer
) -> None:
    fs = snapshot.fs
    files = {b"%d" % number: b"%d" % number * 1_500 for number in range(10, 40)}
    for name, data in files.items():
        put(fs, name, data)
    large = put(fs, b"large", os.urandom(8 * BLOCK_SIZE))
    history.seal(fs, "save", "", fs.clock())
    fs.commit()
    inodes = {name: find(fs, fs.head, name).ino for name in files}
    for name, ino in inodes.items():
        assert compiled.bytes_at(ino, 0, 4_096) == files[name]
    assert compiled.bytes_at(large, 7 * BLOCK_SIZE, 4_096) is None  # in the heap
    compression.compress(fs)
    compression.repack(fs)
    packing.pack_records(fs)
    fs.commit()
    for name, ino in inodes.items():
        assert compiled.bytes_at(ino, 0, 4_096) in (None, files[name])
        assert get(fs, name) == files[name]


def test_each_line_reads_its_own(
    snapshot: Life, compiled: CompiledServer, module: ServerModule
) -> None:
    main = snapshot.fs
    ino = put(main, b"both", b"both" * 1_000)
    number = forks.create(main, "idea").number
    fork = Filesystem(main.store, main.clock, line=number)
    reader = module.Server(Owner())  # type: ignore[arg-type]
    fork.changing, fork.changed = reader.invalidate_inode, reader.update_inode
    main.commit()
    main.store.attach_reader(reader, number)
    for turn in range(1, 4):
        put(main, b"both", b"main" * 1_000 * turn)
        assert compiled.bytes_at(ino, 0, 4) is None
        main.commit()
        assert compiled.bytes_at(ino, 0, 4) == b"main"
        assert reader.bytes_at(ino, 0, 4) == bytes(fork.read(fork.head, ino, 0, 4))
        put(fork, b"both", b"fork" * 1_000 * turn)
        main.commit()
        assert reader.bytes_at(ino, 0, 4) == b"fork"
        assert compiled.bytes_at(ino, 0, 4) == b"main"
    fork.changing = fork.changed = ignore
    forks.delete(main, "idea")
    reader.close()


def test_after_compacting_it_is_the_new_file(snapshot: Life, compiled: CompiledServer) -> None:
    fs = snapshot.fs
    for number in range(300):
        put(fs, b"%d" % number, b"%d" % number * 2_000)
    fs.commit()
    fs.store.compact()
    for number in range(0, 300, 7):
        ino = find(fs, fs.head, b"%d" % number).ino
        assert compiled.bytes_at(ino, 0, 3) == (b"%d" % number * 3)[:3]
