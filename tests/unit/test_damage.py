"""Blocks whose bytes changed on disk: an error for who reads them, never wrong bytes, and nothing
else is disturbed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.errors import StoreCorrupt
from ckptfs.fs import Filesystem
from ckptfs.fs.ranges import Spot
from ckptfs.history import compression, removal
from ckptfs.model import BLOCK_SIZE, Attributes, Ino
from ckptfs.store import Problem, Store, check
from ckptfs.store import format as fmt
from ckptfs.store.blocks import LOST
from ckptfs.store.repair.consistency import hide_broken, make_consistent
from tests.direct import Ticks, find, get, mkdir, put
from tests.support.errnos import fails

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


@pytest.mark.parametrize("start, stop", [(0, BLOCK_SIZE + 7), (BLOCK_SIZE + 7, 3 * BLOCK_SIZE)])
def test_a_hole_that_ends_in_a_damaged_block_changes_nothing(
    fs: Filesystem, start: int, stop: int
) -> None:
    inode = find(fs, fs.head, b"dir/file")
    with fails(errno.EIO):
        fs.punch(fs.head, inode.ino, start, stop - start)
    assert find(fs, fs.head, b"dir/file") == inode
    assert bytes(fs.read(fs.head, inode.ino, 0, BLOCK_SIZE)) == DATA[:BLOCK_SIZE]
    fs.commit()
    assert {problem.invariant for problem in check(fs.store)} == {"blocks"}


def test_a_hole_takes_a_damaged_block_away(fs: Filesystem) -> None:
    ino = find(fs, fs.head, b"dir/file").ino
    fs.punch(fs.head, ino, BLOCK_SIZE, BLOCK_SIZE)
    assert get(fs, b"dir/file") == DATA[:BLOCK_SIZE] + bytes(BLOCK_SIZE) + DATA[2 * BLOCK_SIZE :]


def test_what_comes_before_the_damage_is_copied(fs: Filesystem) -> None:
    """Shifted, so that every byte is read."""
    ino, target = find(fs, fs.head, b"dir/file").ino, put(fs, b"copy", b"")
    done = fs.copy_range(Spot(fs.head, ino, 0), Spot(fs.head, target, 9), len(DATA))
    assert 0 < done < BLOCK_SIZE
    assert get(fs, b"copy") == bytes(9) + DATA[:done]
    with fails(errno.EIO):
        fs.copy_range(Spot(fs.head, ino, BLOCK_SIZE), Spot(fs.head, target, 9), 100)
    fs.commit()
    assert {problem.invariant for problem in check(fs.store)} == {"blocks"}


def test_a_block_map_that_is_damaged_ends_a_copy(fs: Filesystem) -> None:
    ino, target = find(fs, fs.head, b"dir/file").ino, put(fs, b"copy", b"")
    entity, _ = mapping(fs, b"dir/file", 2)
    fs.store.blockmap.put(fs.head, entity, b"?damaged")
    spot = Spot(fs.head, target, 0)
    assert fs.copy_range(Spot(fs.head, ino, 0), spot, len(DATA)) == 2 * BLOCK_SIZE
    copy = fs.getattr(fs.head, target)
    assert (copy.size, copy.allocated) == (2 * BLOCK_SIZE, 2 * BLOCK_SIZE)
    assert bytes(fs.read(fs.head, target, 0, BLOCK_SIZE)) == DATA[:BLOCK_SIZE]


def test_a_block_map_that_is_damaged_leaves_no_block_counted(fs: Filesystem) -> None:
    """It is not known what is to go, so nothing comes in its place."""
    ino, like = put(fs, b"ours", b"ours" * 1_000), find(fs, fs.head, b"other")
    fs.flush()
    entity, _ = mapping(fs, b"ours", 0)
    fs.store.blockmap.put_unlisted(fs.head, entity, b"?damaged")
    with fails(errno.EIO):
        fs.overwrite_with(fs.head, like, fs.head, ino)
    assert fs.store.blocks.uses(mapping(fs, b"other", 0)[1].key) == 1


def test_a_block_map_that_lacks_a_record_ends_a_copy(fs: Filesystem) -> None:
    """It is no hole: the file has none."""
    ino, target = find(fs, fs.head, b"dir/file").ino, put(fs, b"copy", b"")
    entity, _ = mapping(fs, b"dir/file", 1)
    fs.store.blockmap.put(fs.head, entity, fmt.GONE)
    assert fs.copy_range(Spot(fs.head, ino, 0), Spot(fs.head, target, 0), len(DATA)) == BLOCK_SIZE
    with fails(errno.EIO):
        fs.copy_range(Spot(fs.head, ino, BLOCK_SIZE), Spot(fs.head, target, 0), len(DATA))
    assert get(fs, b"copy") == DATA[:BLOCK_SIZE]


def test_what_a_repair_could_not_save_is_not_copied(fs: Filesystem) -> None:
    ino, target = find(fs, fs.head, b"dir/file").ino, put(fs, b"copy", b"")
    entity, _ = mapping(fs, b"dir/file", 0)
    fs.store.blockmap.put(fs.head, entity, fmt.pack_reference(BLOCK_SIZE, LOST))
    with fails(errno.EIO):
        fs.copy_range(Spot(fs.head, ino, 0), Spot(fs.head, target, 0), len(DATA))
    assert get(fs, b"copy") == b""


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
def test_a_damaged_compressed_block_is_never_read_as_another(memory: Path, at: int) -> None:
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
    hurt = 0
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
            else:
                hurt += 1
        compression.repack(fs)
        assert {problem.invariant for problem in check(store)} <= {"blocks", "block uses"}
        table.put(key, before)
    assert hurt
    store.close(commit=False)


def test_bytes_that_a_repair_gave_up_are_an_error_until_they_are_written(fs: Filesystem) -> None:
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
    changed = history.Changed(set(), set())
    history.restore_paths(fs, checkpoint, [b"dir"], changed=changed)
    ino = find(fs, fs.head, b"dir").ino
    assert fs.listxattr(fs.head, ino) == [b"user.kept"]
    fs.unlink(fs.head, ino, b"file")
    fs.rmdir(fs.head, 1, b"dir")
    history.restore_paths(fs, checkpoint, [b"dir"], changed=changed)
    assert fs.listxattr(fs.head, find(fs, fs.head, b"dir").ino) == [b"user.kept"]
    fs.commit()
    assert check(store) == []
    store.close()


# -- records ---------------------------------------------------------------------------------------


@pytest.fixture
def pair(memory: Path) -> Iterator[Filesystem]:
    """Two small files, of which one has a second name, and a directory."""
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    put(fs, b"one", b"1" * 3_000)
    put(fs, b"two", b"2" * 3_000)
    fs.link(fs.head, find(fs, fs.head, b"two").ino, 1, b"second")
    mkdir(fs, b"dir")
    fs.commit()
    yield fs
    store.close(commit=False)


def test_an_entry_that_leads_to_another_file_is_an_error(pair: Filesystem) -> None:
    """Nobody gets the bytes of the one under the name of the other."""
    two = find(pair, pair.head, b"two").ino
    entity = fmt.dirent_entity(Ino(1), b"one")
    pair.store.dirents.put(pair.head, entity, fmt.pack_u64(two))
    with pytest.raises(fmt.CorruptRecord, match="one") as caught:
        pair.lookup(pair.head, Ino(1), b"one")
    assert caught.value.errno == errno.EIO
    with pytest.raises(fmt.CorruptRecord, match="one"):
        list(pair.entries(pair.head, Ino(1)))
    assert get(pair, b"second") == get(pair, b"two") == b"2" * 3_000


def test_an_entry_that_leads_nowhere_is_an_error(pair: Filesystem) -> None:
    """It is not taken for one that was removed while the directory is listed."""
    pair.store.dirents.put(pair.head, fmt.dirent_entity(Ino(1), b"one"), fmt.pack_u64(999))
    with pytest.raises(OSError, match="Stale"):
        list(pair.entries(pair.head, Ino(1)))


def test_a_flipped_bit_of_an_inode_is_noticed(pair: Filesystem) -> None:
    """It is an error, `check` says so, and a repair puts the bit right."""
    store = pair.store
    inode = find(pair, pair.head, b"one")
    key = fmt.inode_entity(inode.ino) + pair.head.suffix
    record = bytearray(fmt.pack_inode(inode))
    record[20] ^= 1  # its size
    store.inodes.rewrite(key, bytes(record))
    with pytest.raises(fmt.CorruptRecord, match=f"inode {inode.ino}"):
        find(pair, pair.head, b"one")
    assert get(pair, b"two") == b"2" * 3_000
    assert check(store) != []
    assert make_consistent(store) == []
    assert find(pair, pair.head, b"one") == inode
    assert get(pair, b"one") == b"1" * 3_000


def test_a_hole_in_a_file_without_holes_is_an_error(pair: Filesystem) -> None:
    """A record of the block map is gone: that is no reason to read zeros."""
    inode = find(pair, pair.head, b"one")
    pair.store.blockmap.forget_unlisted(pair.head, fmt.block_entity(inode.content, 0))
    with pytest.raises(OSError, match="'one' in the workspace") as caught:
        pair.read(pair.head, inode.ino, 0, 10)
    assert caught.value.errno == errno.EIO


def test_a_record_of_the_block_map_with_another_length_is_an_error(pair: Filesystem) -> None:
    entity, found = mapping(pair, b"one", 0)
    record = fmt.pack_reference(found.length ^ 64, found.key)
    pair.store.blockmap.put_unlisted(pair.head, entity, record)
    with pytest.raises(OSError, match="'one' in the workspace"):
        get(pair, b"one")


@pytest.mark.parametrize("name", [b"next_ino", b"next_content", b"next_epoch", b"head"])
def test_numbers_that_were_given_out_are_not_given_out_again(memory: Path, name: bytes) -> None:
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    put(fs, b"one", b"1")
    history.seal(fs, "manual", "", 0)
    fs.commit()
    store._meta.put(name, fmt.pack_number(1))
    store._txn.commit()
    store.close(commit=False)
    with pytest.raises(StoreCorrupt, match="numbers"):
        Store.open(memory / "store")


def test_a_change_that_is_not_listed_is_not_lost_with_its_checkpoint(memory: Path) -> None:
    """A bit flipped in `changes`. The checkpoint's records stay where its child sees them, others
    are deleted as ever, and it is told."""
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    made = []
    for number in range(4):
        put(fs, b"file", b"version %d" % number)
        put(fs, b"other", b"version %d" % number)
        made.append(history.seal(fs, "manual", "", 0))
        if number == 1:
            ino = find(fs, fs.head, b"file").ino
            fs.setattr(fs.head, ino, Attributes(mode=0o600))
    damaged = made[0].epoch
    entity = fmt.inode_entity(find(fs, fs.view_of(damaged), b"other").ino)
    store.changes.discard(damaged, b"i", entity)
    store.changes.add(damaged, b"i", entity[:-1] + b"\x77")
    with pytest.raises(fmt.CorruptRecord, match="lists a change"):
        removal.delete(fs, made[:3])
    assert get(fs, b"other", fs.view_of(made[3].epoch)) == b"version 3"
    assert {epoch for epoch in store.epochs if epoch <= made[2].epoch} == {damaged}
    store.close(commit=False)


def test_a_name_without_its_end_is_an_error(pair: Filesystem) -> None:
    """A bit of the NUL behind it: the directory says so, and a repair gives the name back."""
    entity = fmt.dirent_entity(Ino(1), b"one")
    record = pair.store.dirents.forget(pair.head, entity) or b""
    pair.store.dirents.rewrite(entity[:-1] + b"@" + pair.head.suffix, record)
    with pytest.raises(fmt.CorruptRecord, match="name"):
        list(pair.entries(pair.head, Ino(1)))
    assert check(pair.store) != []
    assert make_consistent(pair.store) == []
    assert get(pair, b"one") == b"1" * 3_000


def test_a_block_that_no_file_reaches_makes_no_file_longer(pair: Filesystem) -> None:
    """A high bit of its number: a repair does not make the file that long."""
    entity, _ = mapping(pair, b"one", 0)
    record = pair.store.blockmap.forget_unlisted(pair.head, entity) or b""
    pair.store.blockmap.rewrite(entity[:8] + b"\x80" + entity[9:] + pair.head.suffix, record)
    assert make_consistent(pair.store) == []
    with pytest.raises(OSError, match="'one' in the workspace"):
        get(pair, b"one")


def test_a_repair_hides_the_checkpoints_that_have_a_problem_whatever_its_words(
    pair: Filesystem,
) -> None:
    first, second = (history.seal(pair, "manual", "", 0) for _ in range(2))
    problems = [
        Problem("size", "told in words that name no epoch", epoch=first.epoch),
        Problem("changes", f"epoch {second.epoch}: words that name one"),
        Problem("root", "of the head", epoch=pair.head.epoch),
    ]
    hide_broken(pair.store, problems)
    assert [item.epoch for item in history.checkpoints(pair.store)] == [second.epoch]
    assert pair.store.epoch_tree.hidden == {first.epoch}
