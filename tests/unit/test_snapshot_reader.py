"""What stands: the last commit, read without the store, beside what the store says."""

from __future__ import annotations

import contextlib
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.fs.filesystem import ignore
from ckptfs.fuse.server.interface import CompiledServer, ServerModule
from ckptfs.history import excluded, forks, removal
from ckptfs.model import ROOT_INO, Attributes, Ino
from ckptfs.store.format import inode_entity, pack_inode
from tests.direct import Life, put
from tests.support.kernel import Owner

#: What stat shows of an inode.
_SHOWN = 11


@pytest.fixture
def snapshot(life: Life, compiled: CompiledServer) -> Iterator[Life]:
    attach(life.fs, compiled)
    yield life
    compiled.detach()


def attach(fs: Filesystem, compiled: CompiledServer) -> None:
    fs.changing, fs.changed = compiled.invalidate_inode, compiled.update_inode
    fs.commit()
    fs.store.attach_reader(compiled)


def mkdir(fs: Filesystem, parent: Ino, name: bytes) -> Ino:
    return fs.mkdir(fs.head, parent, name, 0o755, 0, 0).ino


def mknod(fs: Filesystem, parent: Ino, name: bytes) -> Ino:
    return fs.mknod(fs.head, parent, name, stat.S_IFREG | 0o644, 0, 0).ino


def seal(fs: Filesystem) -> history.Checkpoint:
    return history.seal(fs, "save", "", fs.clock())


def compare(fs: Filesystem, compiled: CompiledServer, parent: Ino, name: bytes) -> bool:
    """Whether it is known of a name what stands there; if it is, it must be so."""
    found = compiled.look_up(parent, name)
    if found is None:
        return False
    inode = fs.seek(fs.head, parent, name)
    assert (found or None) == (inode and tuple(inode[:_SHOWN]))
    return True


def compare_all(fs: Filesystem, compiled: CompiledServer, names: list[bytes]) -> tuple[int, int]:
    """How many of all names, and of all directories, are known."""
    looks = lists = 0
    pending = [ROOT_INO]
    while pending:
        directory = pending.pop()
        inside = list(fs.entries(fs.head, directory))
        looks += sum(compare(fs, compiled, directory, name) for name in names)
        listed = compiled.names_in(directory)
        if listed is not None:
            assert listed == [(name, inode.ino) for name, inode in inside]
            lists += 1
        pending += [inode.ino for _, inode in inside if inode.is_dir]
    return looks, lists


NAMES = [b"%c" % letter for letter in b"abcdefgh"] + [b"long" * 50]


class Actor:
    """Does one thing after another to a tree."""

    def __init__(self, fs: Filesystem, seed: int) -> None:
        self.fs = fs
        self.random = random.Random(seed)
        self.saved: list[history.Checkpoint] = []
        self.acts: list[Callable[[], object]] = [
            *[self.make] * 4,
            *[self.make_directory] * 3,
            *[self.remove] * 3,
            *[self.move] * 3,
            self.link,
            self.dress,
            self.write,
            self.save,
            self.restore,
            self.delete,
            self.fs.sync,
            *[self.fs.commit] * 2,
        ]

    def act(self) -> None:
        with contextlib.suppress(OSError):  # the name is taken, or not there: nothing changes
            self.random.choice(self.acts)()

    def directory(self) -> Ino:
        found = [ROOT_INO]
        for ino in found:
            found += [inode.ino for _, inode in self.fs.entries(self.fs.head, ino) if inode.is_dir]
        return self.random.choice(found)

    def name(self) -> bytes:
        return self.random.choice(NAMES)

    def inode(self) -> Ino:
        return self.fs.lookup(self.fs.head, self.directory(), self.name()).ino

    def make(self) -> None:
        mknod(self.fs, self.directory(), self.name())

    def make_directory(self) -> None:
        mkdir(self.fs, self.directory(), self.name())

    def remove(self) -> None:
        parent, name = self.directory(), self.name()
        is_dir = self.fs.lookup(self.fs.head, parent, name).is_dir
        (self.fs.rmdir if is_dir else self.fs.unlink)(self.fs.head, parent, name)

    def move(self) -> None:
        self.fs.rename(
            self.fs.head, self.directory(), self.name(), self.directory(), self.name(), 0
        )

    def link(self) -> None:
        self.fs.link(self.fs.head, self.inode(), self.directory(), self.name())

    def dress(self) -> None:
        self.fs.setattr(self.fs.head, self.inode(), Attributes(mode=self.random.randrange(0o777)))

    def write(self) -> None:
        self.fs.write(self.fs.head, self.inode(), self.random.randrange(100_000), b"bytes")

    def save(self) -> None:
        self.saved.append(seal(self.fs))

    def restore(self) -> None:
        if self.saved:
            history.restore(self.fs, self.random.choice(self.saved))

    def delete(self) -> None:
        if len(self.saved) > 2:
            gone = self.saved.pop(self.random.randrange(len(self.saved)))
            removal.delete(self.fs, [gone])


@pytest.mark.parametrize("seed", range(12))
def test_it_says_what_the_store_says(snapshot: Life, compiled: CompiledServer, seed: int) -> None:
    fs = snapshot.fs
    actor = Actor(fs, seed)
    known = 0
    for _ in range(150):
        actor.act()
        looks, lists = compare_all(fs, compiled, [*NAMES, b"absent"])
        known += looks + lists
    assert known > 300
    fs.commit()
    looks, _ = compare_all(fs, compiled, NAMES)
    assert looks


def test_trees_of_several_levels_are_read(snapshot: Life, compiled: CompiledServer) -> None:
    """Of pages; and versions of one name that lie on several of them."""
    fs = snapshot.fs
    wide = mkdir(fs, ROOT_INO, b"wide")
    for number in range(3_000):
        mknod(fs, wide, b"%05d" % number)
    for number in range(400):
        seal(fs)
        fs.setattr(fs.head, wide, Attributes(mode=number % 0o777))
        if number % 2:
            fs.unlink(fs.head, wide, b"01500")
        else:
            if number:
                mknod(fs, wide, b"01500")
            fs.setattr(fs.head, Ino(wide + 7), Attributes(mode=number % 0o777))
    fs.commit()
    for number in (*range(0, 3_100, 7), 1_499, 1_500, 1_501):
        assert compare(fs, compiled, wide, b"%05d" % number)
    assert len(compiled.names_in(wide)) == 2_999


def test_what_was_written_since_is_not_known(snapshot: Life, compiled: CompiledServer) -> None:
    fs = snapshot.fs
    directory = mkdir(fs, ROOT_INO, b"dir")
    put(fs, b"file", b"x")
    fs.commit()
    assert compiled.look_up(ROOT_INO, b"file")
    assert compiled.look_up(directory, b"absent") is False
    assert compiled.names_in(directory) == []
    mknod(fs, directory, b"new")
    assert compiled.look_up(directory, b"absent") is None
    assert compiled.names_in(directory) is None
    assert compiled.look_up(ROOT_INO, b"file")
    fs.commit()
    assert compiled.names_in(directory)


def test_in_a_directory_that_came_since_nothing_is_known_to_be_absent(
    snapshot: Life, compiled: CompiledServer
) -> None:
    directory = mkdir(snapshot.fs, ROOT_INO, b"dir")
    assert compiled.look_up(directory, b"absent") is None
    assert compiled.look_up(999_999, b"absent") is None


def test_a_restore_ends_it_and_a_save_does_not(snapshot: Life, compiled: CompiledServer) -> None:
    fs = snapshot.fs
    put(fs, b"file", b"x")
    first = seal(fs)
    put(fs, b"other", b"y")
    fs.commit()
    seal(fs)
    assert compiled.look_up(ROOT_INO, b"other")
    history.restore(fs, first)
    assert compiled.look_up(ROOT_INO, b"other") is None
    fs.commit()
    assert compiled.look_up(ROOT_INO, b"other") is False
    assert compiled.look_up(ROOT_INO, b"file")


def test_what_is_damaged_is_left_to_the_store(snapshot: Life, compiled: CompiledServer) -> None:
    fs = snapshot.fs
    ino = put(fs, b"file", b"x")
    fs.commit()
    key = inode_entity(ino) + fs.head.suffix
    record = pack_inode(fs.getattr(fs.head, ino))
    for bit in range(0, 8 * len(record), 5):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        fs.store.inodes.rewrite(key, bytes(flipped))
        fs.store.dirty = True
        fs.commit()
        assert compiled.look_up(ROOT_INO, b"file") is None
        assert compiled.names_in(ROOT_INO) is None
    fs.store.inodes.rewrite(key, record)
    fs.store.dirty = True
    fs.commit()
    assert compiled.look_up(ROOT_INO, b"file")


#: In the head of a page: its number, and its flags. How many nodes it has nobody else can tell.
_PAGE, _HEAD = 4096, (*range(8), 10, 11)


def test_a_page_that_is_not_as_it_should_be_is_left_to_the_store(
    snapshot: Life, compiled: CompiledServer
) -> None:
    """Each bit in the heads of all pages flips, one after the other."""
    fs = snapshot.fs
    directories = [mkdir(fs, ROOT_INO, b"%d" % number) for number in range(20)]
    places = [(directory, b"%03d" % name) for directory in directories for name in range(40)]
    for directory, name in places:
        mknod(fs, directory, name)
    fs.commit()
    places = places[::40] + places[39::40] + [(directories[0], b"absent")]
    good = [compiled.look_up(*place) for place in places]
    assert None not in good
    file = fs.store.path / "data.mdb"
    unsure = 0
    with file.open("r+b", buffering=0) as data:
        for at in range(2 * _PAGE, file.stat().st_size, _PAGE):
            head = os.pread(data.fileno(), 16, at)
            for bit in (8 * byte + bit for byte in _HEAD for bit in range(8)):
                flipped = bytearray(head)
                flipped[bit // 8] ^= 1 << bit % 8
                os.pwrite(data.fileno(), flipped, at)
                found = [compiled.look_up(*place) for place in places]
                assert all(now in (None, then) for now, then in zip(found, good, strict=True))
                unsure += found.count(None)
            os.pwrite(data.fileno(), head, at)
    assert unsure > 1_000
    assert [compiled.look_up(*place) for place in places] == good


def test_where_names_are_kept_out_of_history_nothing_is_known(
    snapshot: Life, compiled: CompiledServer
) -> None:
    fs = snapshot.fs
    put(fs, b"file", b"x")
    excluded.apply(fs, ("*.log",))
    fs.commit()
    assert compiled.look_up(ROOT_INO, b"file") is None


def test_after_compacting_it_is_the_new_file(snapshot: Life, compiled: CompiledServer) -> None:
    fs = snapshot.fs
    for number in range(500):
        put(fs, b"%d" % number, bytes(3_000))
    fs.commit()
    for number in range(400):
        fs.unlink(fs.head, ROOT_INO, b"%d" % number)
    fs.commit()
    fs.store.compact()
    assert compiled.look_up(ROOT_INO, b"450")
    put(fs, b"new", b"x")
    fs.commit()
    compare_all(fs, compiled, [b"%d" % number for number in range(500)])
    assert compiled.look_up(ROOT_INO, b"new")


def test_the_rest_stays_known_however_much_was_written_since(
    snapshot: Life, compiled: CompiledServer
) -> None:
    fs = snapshot.fs
    put(fs, b"file", b"x")
    fs.commit()
    for number in range(20_000):
        compiled.touch(inode_entity(Ino(number + 10)))
    assert compiled.look_up(ROOT_INO, b"file")
    compiled.touch(inode_entity(ROOT_INO))
    assert compiled.look_up(ROOT_INO, b"file") is None
    put(fs, b"other", b"x")
    fs.commit()
    assert compiled.look_up(ROOT_INO, b"file")


def test_another_store_is_another_file(life: Life, compiled: CompiledServer, memory: Path) -> None:
    put(life.fs, b"file", b"x")
    attach(life.fs, compiled)
    other = Life(memory / "other")
    put(other.fs, b"else", b"x")
    attach(other.fs, compiled)
    assert compiled.look_up(ROOT_INO, b"file") is False
    assert compiled.look_up(ROOT_INO, b"else")
    other.end()
    compiled.detach()


def test_each_line_has_a_reader_that_knows_its_own_tree(
    snapshot: Life, compiled: CompiledServer, module: ServerModule
) -> None:
    main, names = snapshot.fs, [b"both", b"main", b"fork", b"absent"]
    put(main, b"both", b"both")
    number = forks.create(main, "idea").number
    fork = Filesystem(main.store, main.clock, line=number)
    reader = module.Server(Owner())  # type: ignore[arg-type]
    fork.changing, fork.changed = reader.invalidate_inode, reader.update_inode
    main.commit()
    main.store.attach_reader(reader, number)
    for turn in range(3):
        put(main, b"main", b"x" * turn)
        put(fork, b"fork", b"x" * turn)
        put(fork if turn else main, b"both", b"y" * turn)
        for fs, each in ((main, compiled), (fork, reader)):
            compare_all(fs, each, names)
        main.commit()
        assert compare_all(main, compiled, names) == (4, 1)
        assert compare_all(fork, reader, names) == (4, 1)
        seal(fork)
    main.store.compact()
    assert compare_all(main, compiled, names) == compare_all(fork, reader, names) == (4, 1)
    fork.changing = fork.changed = ignore
    forks.delete(main, "idea")
    assert reader.look_up(ROOT_INO, b"both") is None
    reader.close()
