"""Blocks whose bytes changed on disk: an error for who reads them, never wrong bytes, and nothing
else is disturbed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.history import compression
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import Store, check
from ckptfs.store import format as fmt
from ckptfs.store.blocks import LOST
from tests.direct import Ticks, find, get, mkdir, put

DATA = os.urandom(3 * BLOCK_SIZE)


@pytest.fixture
def fs(memory: Path) -> Iterator[Filesystem]:
    """A file of three blocks in a checkpoint and in the workspace; the second is damaged."""
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    mkdir(fs, b"dir")
    put(fs, b"dir/file", DATA)
    put(fs, b"other", b"other" * 1_000)
    history.seal(fs, "manual", "", 0)
    fs.commit()
    flip(fs, b"dir/file", 1)
    yield fs
    store.close(commit=False)


def mapping(fs: Filesystem, path: bytes, number: int) -> tuple[bytes, fmt.Mapping]:
    entity = fmt.block_entity(find(fs, fs.head, path).content, number)
    return entity, fmt.unpack_mapping(fs.store.blockmap.get(fs.head, entity) or b"")


def flip(fs: Filesystem, path: bytes, number: int) -> None:
    """Flip one bit of a stored block."""
    key = mapping(fs, path, number)[1].key
    table = fs.store.blocks._blocks
    record = bytearray(table.get(key) or b"")
    record[len(record) // 2] ^= 4
    table.put(key, bytes(record))
    fs.store.blocks.forget_decoded()


def test_a_flipped_bit_is_an_error_that_names_the_file(fs: Filesystem) -> None:
    ino = find(fs, fs.head, b"dir/file").ino
    (checkpoint,) = history.checkpoints(fs.store)
    for view, words in ((fs.head, "the workspace"), (fs.view_of(checkpoint.epoch), "checkpoint 0")):
        with pytest.raises(OSError, match=f"'dir/file' in {words}") as caught:
            fs.read(view, ino, BLOCK_SIZE, 10)
        assert caught.value.errno == errno.EIO
        assert bytes(fs.read(view, ino, 0, BLOCK_SIZE)) == DATA[:BLOCK_SIZE]
        assert bytes(fs.read(view, ino, 2 * BLOCK_SIZE, 99)) == DATA[2 * BLOCK_SIZE :][:99]


@pytest.mark.parametrize("offset", [BLOCK_SIZE + 7, BLOCK_SIZE - 10, 7])
def test_a_write_into_a_damaged_block_changes_nothing(fs: Filesystem, offset: int) -> None:
    inode = find(fs, fs.head, b"dir/file")
    with pytest.raises(OSError, match="damaged") as caught:
        fs.write(fs.head, inode.ino, offset, b"x" * (2 * BLOCK_SIZE - 100 - offset))
    assert caught.value.errno == errno.EIO
    assert find(fs, fs.head, b"dir/file")[:9] == inode[:9]
    fs.commit()
    assert {problem.invariant for problem in check(fs.store)} == {"blocks"}


def test_writing_a_whole_damaged_block_puts_it_right(fs: Filesystem) -> None:
    ino = find(fs, fs.head, b"dir/file").ino
    new = os.urandom(BLOCK_SIZE)
    fs.write(fs.head, ino, BLOCK_SIZE, new)
    assert get(fs, b"dir/file") == DATA[:BLOCK_SIZE] + new + DATA[2 * BLOCK_SIZE :]


def test_the_same_bytes_again_are_stored_anew(fs: Filesystem) -> None:
    put(fs, b"again", DATA)
    assert get(fs, b"again") == DATA


def test_compressing_leaves_what_is_damaged_alone(fs: Filesystem) -> None:
    compression.compress(fs)
    compression.repack(fs)
    fs.commit()
    (problem,) = check(fs.store)
    assert problem.invariant == "blocks"
    assert get(fs, b"other") == b"other" * 1_000


@pytest.mark.parametrize("at", [0, 1, 10, -1])
def test_a_damaged_compressed_block(memory: Path, at: int) -> None:
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    for number in range(3):
        put(fs, b"small %d" % number, b"line %d\n" % number * 500)
    put(fs, b"large", b"many lines of text\n" * 4_000)
    history.seal(fs, "manual", "", 0)
    fs.write(fs.head, find(fs, fs.head, b"large").ino, 100, b"edited")
    history.seal(fs, "manual", "", 0)
    compression.compress(fs)
    fs.commit()
    table = store.blocks._blocks
    good = {key: bytes(store.blocks.read(key)) for key in store.blocks.keys()}
    for key in good:
        before = table.get(key)
        if before is None:
            continue  # a pack whose members were put into another one
        damaged = bytearray(before)
        damaged[at] ^= 0x10
        table.put(key, bytes(damaged))
        store.blocks.forget_decoded()
        for other, data in good.items():
            if store.blocks.is_whole(other):
                assert store.blocks.read(other) == data
        compression.repack(fs)
        assert {problem.invariant for problem in check(store)} <= {"blocks", "block uses"}
        table.put(key, before)
    store.close(commit=False)


def test_bytes_that_a_repair_gave_up(fs: Filesystem) -> None:
    """They cannot be read, can be copied and restored, and are put right by writing them."""
    entity, found = mapping(fs, b"dir/file", 1)
    view = fs.view_of(history.checkpoints(fs.store)[0].epoch)
    fs.store.blocks.release(found.key)
    fs.store.blockmap.put_unlisted(view, entity, fmt.pack_reference(found.length, LOST))
    fs.commit()
    assert check(fs.store) == []
    ino = find(fs, fs.head, b"dir/file").ino
    with pytest.raises(OSError, match="dir/file"):
        fs.read(fs.head, ino, BLOCK_SIZE, 10)
    fs.clone(fs.head, ino, fs.head, 1, b"copy")
    fs.commit()
    assert check(fs.store) == []
    fs.write(fs.head, ino, BLOCK_SIZE, DATA[BLOCK_SIZE : 2 * BLOCK_SIZE])
    assert get(fs, b"dir/file") == DATA
    fs.unlink(fs.head, 1, b"copy")
    fs.commit()
    assert check(fs.store) == []


def test_a_directory_gets_its_attributes_back(memory: Path) -> None:
    """Those that the user gave it, too, when only paths are restored."""
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    ino = mkdir(fs, b"dir")
    put(fs, b"dir/file", b"x")
    fs.setxattr(fs.head, ino, b"user.kept", b"1")
    checkpoint = history.seal(fs, "manual", "", 0)
    fs.removexattr(fs.head, ino, b"user.kept")
    fs.setxattr(fs.head, ino, b"user.new", b"2")
    touched = history.Touched(set(), set())
    history.restore_paths(fs, checkpoint, [b"dir"], touched_here=touched)
    ino = find(fs, fs.head, b"dir").ino
    assert fs.listxattr(fs.head, ino) == [b"user.kept"]
    fs.unlink(fs.head, ino, b"file")
    fs.rmdir(fs.head, 1, b"dir")
    history.restore_paths(fs, checkpoint, [b"dir"], touched_here=touched)
    assert fs.listxattr(fs.head, find(fs, fs.head, b"dir").ino) == [b"user.kept"]
    fs.commit()
    assert check(store) == []
    store.close()
