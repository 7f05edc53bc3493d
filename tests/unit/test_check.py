"""`check` sees each invariant broken. Every test breaks one by hand and must hear of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, Epoch, Ino, Inode
from ckptfs.store import Store, blockmap, check
from ckptfs.store import format as fmt
from tests.direct import Ticks, find, mkdir, put


@pytest.fixture
def fs(memory: Path) -> Iterator[Filesystem]:
    """A sound tree in two epochs: files with blocks, inline bytes, links, xattrs, directories."""
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    mkdir(fs, b"dir")
    mkdir(fs, b"dir/sub")
    put(fs, b"dir/file", os.urandom(2 * BLOCK_SIZE))
    put(fs, b"small", b"inline")
    history.seal(fs, "manual", "", 0)
    fs.link(fs.head, find(fs, fs.head, b"small").ino, 1, b"link")
    fs.write(fs.head, find(fs, fs.head, b"dir/file").ino, 5, b"changed")
    put(fs, b"new", os.urandom(BLOCK_SIZE))
    fs.setxattr(fs.head, 1, b"user.a", b"value")
    fs.commit()
    assert check(store) == []
    yield fs
    store.close(commit=False)


def found(fs: Filesystem) -> set[str]:
    return {problem.invariant for problem in check(fs.store)}


def change(fs: Filesystem, path: bytes, **what: object) -> None:
    """Change an inode's record behind the file system's back."""
    inode = find(fs, fs.head, path)._replace(**what)
    fs.store.inodes.put(fs.head, fmt.inode_entity(inode.ino), fmt.pack_inode(inode))


def entity(fs: Filesystem, path: bytes, number: int = 0) -> bytes:
    return fmt.block_entity(find(fs, fs.head, path).content, number)


def dirent(fs: Filesystem, parent: bytes, name: bytes) -> bytes:
    return fmt.dirent_entity(find(fs, fs.head, parent).ino, name)


# -- epochs ----------------------------------------------------------------------------------------


def test_a_parent_that_is_lost_is_found(fs: Filesystem) -> None:
    epochs = fs.store.epochs
    epochs[fs.head.epoch] = epochs[fs.head.epoch]._replace(parent=Epoch(99))
    assert "epochs" in found(fs)


def test_a_checkpoints_parent_that_is_lost_is_found(fs: Filesystem) -> None:
    epochs = fs.store.epochs
    parent = epochs[fs.head.epoch].parent
    epochs[parent] = epochs[parent]._replace(parent=Epoch(99))
    assert "epochs" in found(fs)


def test_a_parent_that_is_not_sealed_is_found(fs: Filesystem) -> None:
    epochs = fs.store.epochs
    parent = epochs[fs.head.epoch].parent
    epochs[parent] = epochs[parent]._replace(sealed=False)
    assert "epochs" in found(fs)


def test_a_head_that_is_sealed_is_found(fs: Filesystem) -> None:
    epochs = fs.store.epochs
    epochs[fs.head.epoch] = epochs[fs.head.epoch]._replace(sealed=True)
    assert "epochs" in found(fs)


# -- versions and changes --------------------------------------------------------------------------


def test_a_record_of_a_lost_epoch_is_found(fs: Filesystem) -> None:
    txn, db = fs.store.links._txn, fs.store.links._db
    key = fmt.link_entity(Ino(2), Ino(1), b"x") + fmt.suffix_of(Epoch(77))
    txn.put(key, fmt.PRESENT, db=db)
    assert "versions" in found(fs)


def test_a_record_that_changes_do_not_list(fs: Filesystem) -> None:
    ino = find(fs, fs.head, b"small").ino
    fs.store.changes.discard(fs.head.epoch, b"i", fmt.inode_entity(ino))
    assert found(fs) == {"changes"}


def test_a_block_record_that_changes_must_list(fs: Filesystem) -> None:
    """The content is older than the head, so its new blocks are not found otherwise."""
    fs.store.changes.discard(fs.head.epoch, b"b", entity(fs, b"dir/file"))
    assert found(fs) == {"changes"}


def test_a_listed_change_without_its_record_is_found(fs: Filesystem) -> None:
    fs.store.changes.add(fs.head.epoch, b"x", fmt.xattr_entity(Ino(1), b"user.b"))
    assert found(fs) == {"changes"}


def test_a_change_of_an_unknown_kind_is_found(fs: Filesystem) -> None:
    fs.store.changes.add(fs.head.epoch, b"?", b"what")
    assert found(fs) == {"changes"}


def test_changes_of_a_lost_epoch_are_found(fs: Filesystem) -> None:
    fs.store.changes.add(Epoch(77), b"i", fmt.inode_entity(Ino(1)))
    assert found(fs) == {"changes"}


@pytest.mark.parametrize("table", ["inodes", "dirents", "blockmap"])
def test_a_record_that_makes_no_sense(fs: Filesystem, table: str) -> None:
    entities = {
        "inodes": fmt.inode_entity(find(fs, fs.head, b"small").ino),
        "dirents": dirent(fs, b"", b"small"),
        "blockmap": entity(fs, b"dir/file"),
    }
    getattr(fs.store, table).put(fs.head, entities[table], b"?")
    assert found(fs)


# -- blocks ----------------------------------------------------------------------------------------


def _some_block(fs: Filesystem) -> bytes:
    return fmt.unpack_mapping(fs.store.blockmap.get(fs.head, entity(fs, b"new")) or b"").key


def test_a_block_counted_too_often_is_found(fs: Filesystem) -> None:
    fs.store.blocks.share(_some_block(fs))
    assert found(fs) == {"block uses"}


def test_a_block_counted_too_seldom_is_found(fs: Filesystem) -> None:
    record = fs.store.blockmap.get(fs.head, entity(fs, b"new")) or b""
    fs.store.blockmap.put_unlisted(fs.head, entity(fs, b"new", 1), record)
    change(fs, b"new", size=2 * BLOCK_SIZE, allocated=2 * BLOCK_SIZE)
    assert found(fs) == {"block uses"}


def test_a_block_without_a_user_is_found(fs: Filesystem) -> None:
    fs.store.blocks.add(b"nobody's")
    assert found(fs) == {"block uses"}


def test_a_block_that_is_missing_is_found(fs: Filesystem) -> None:
    fs.store.blocks._blocks.delete(_some_block(fs))
    assert "block uses" in found(fs)


def test_a_count_of_one_is_found(fs: Filesystem) -> None:
    fs.store.blocks._refs.put(_some_block(fs), fmt.pack_u32(1))
    assert found(fs) == {"block uses"}


def test_a_count_of_no_block_is_found(fs: Filesystem) -> None:
    fs.store.blocks._refs.put(bytes(16), fmt.pack_u32(2))
    assert found(fs) == {"block uses"}


@pytest.mark.parametrize("header", [b"", b"\0", b"\x07\0", b"\0\x01", b"\0\0"])
def test_a_block_whose_bytes_changed_is_found(fs: Filesystem, header: bytes) -> None:
    fs.store.blocks._blocks.put(_some_block(fs), header + b"other" * bool(header[1:]))
    assert "blocks" in found(fs)


def test_a_block_longer_than_a_block_is_found(fs: Filesystem) -> None:
    key = fs.store.blocks.add(bytes(BLOCK_SIZE + 1))
    record = fmt.pack_reference(BLOCK_SIZE + 1, key)
    fs.store.blockmap.put_unlisted(fs.head, entity(fs, b"new", 1), record)
    change(fs, b"new", size=3 * BLOCK_SIZE, allocated=2 * BLOCK_SIZE + 1)
    assert found(fs) == {"blocks"}


def test_bytes_in_the_block_map_that_changed_are_found(fs: Filesystem) -> None:
    record = bytearray(fs.store.blockmap.get(fs.head, entity(fs, b"small")) or b"")
    record[-1] ^= 1
    (checkpoint,) = history.checkpoints(fs.store)
    suffix = fmt.suffix_of(checkpoint.epoch)
    fs.store.blockmap.rewrite(entity(fs, b"small") + suffix, bytes(record))
    assert found(fs) == {"blocks"}


def test_a_reference_of_another_length_than_its_block_is_found(fs: Filesystem) -> None:
    record = fmt.pack_reference(BLOCK_SIZE - 1, _some_block(fs))
    fs.store.blockmap.put_unlisted(fs.head, entity(fs, b"new"), record)
    change(fs, b"new", allocated=BLOCK_SIZE - 1)
    assert found(fs)


# -- names -----------------------------------------------------------------------------------------


def test_a_missing_root_is_found(fs: Filesystem) -> None:
    fs.store.inodes.drop(fs.head, fmt.inode_entity(Ino(1)))
    assert "root" in found(fs)


def test_a_root_that_is_a_file_is_found(fs: Filesystem) -> None:
    change(fs, b"", mode=0o100644)
    assert "root" in found(fs)


def test_an_entry_that_leads_nowhere_is_found(fs: Filesystem) -> None:
    fs.store.dirents.put(fs.head, dirent(fs, b"", b"lost"), fmt.pack_u64(999))
    assert found(fs) == {"entries"}


def test_an_entry_in_a_file_is_found(fs: Filesystem) -> None:
    small = find(fs, fs.head, b"small").ino
    fs.store.dirents.put(fs.head, fmt.dirent_entity(small, b"x"), fmt.pack_u64(small))
    assert "entries" in found(fs)


def test_an_inode_that_says_it_is_elsewhere(fs: Filesystem) -> None:
    change(fs, b"new", name=b"elsewhere")
    assert found(fs) == {"names", "links"}


@pytest.mark.parametrize("path", [b"small", b"new", b"dir", b"dir/sub", b""])
def test_a_wrong_link_count_is_found(fs: Filesystem, path: bytes) -> None:
    change(fs, path, nlink=find(fs, fs.head, path).nlink + 1)
    assert found(fs) == {"nlink"}


def test_a_file_that_lost_its_name_is_found(fs: Filesystem) -> None:
    fs.store.dirents.drop(fs.head, dirent(fs, b"", b"new"))
    assert found(fs) == {"names", "nlink"}


def test_a_directory_with_two_names_is_found(fs: Filesystem) -> None:
    sub = find(fs, fs.head, b"dir/sub").ino
    fs.store.dirents.put(fs.head, dirent(fs, b"", b"again"), fmt.pack_u64(sub))
    assert "directories" in found(fs)


def test_directories_that_hold_each_other_are_found(fs: Filesystem) -> None:
    above, sub = find(fs, fs.head, b"dir"), find(fs, fs.head, b"dir/sub")
    fs.store.dirents.drop(fs.head, dirent(fs, b"", b"dir"))
    fs.store.dirents.put(fs.head, fmt.dirent_entity(sub.ino, b"dir"), fmt.pack_u64(above.ino))
    moved = above._replace(parent=sub.ino)
    fs.store.inodes.put(fs.head, fmt.inode_entity(above.ino), fmt.pack_inode(moved))
    assert "directories" in found(fs)


def test_a_link_that_is_not_listed_is_found(fs: Filesystem) -> None:
    small = find(fs, fs.head, b"small").ino
    fs.store.links.drop(fs.head, fmt.link_entity(small, Ino(1), b"link"))
    assert found(fs) == {"links"}


def test_a_listed_link_that_is_none_is_found(fs: Filesystem) -> None:
    small = find(fs, fs.head, b"small").ino
    fs.store.links.put(fs.head, fmt.link_entity(small, Ino(1), b"other"), fmt.PRESENT)
    assert found(fs) == {"links"}


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [b"dir/file", b"small", b"new"])
def test_a_wrong_allocation_is_found(fs: Filesystem, path: bytes) -> None:
    change(fs, path, allocated=find(fs, fs.head, path).allocated + 1)
    assert found(fs) == {"allocated"}


@pytest.mark.parametrize("path", [b"dir/file", b"small", b"new"])
def test_a_block_behind_the_end_is_found(fs: Filesystem, path: bytes) -> None:
    change(fs, path, size=find(fs, fs.head, path).size - 1)
    assert found(fs) == {"size"}


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_wrong_number_of_inodes_is_found(fs: Filesystem, difference: int) -> None:
    fs.head.inodes += difference
    assert found(fs) == {"inodes"}


def test_a_checkpoint_is_checked_too(fs: Filesystem) -> None:
    (checkpoint,) = history.checkpoints(fs.store)
    view = fs.view_of(checkpoint.epoch)
    inode = find(fs, view, b"small")._replace(nlink=3)
    fs.store.inodes.put_unlisted(view, fmt.inode_entity(inode.ino), fmt.pack_inode(inode))
    problems = check(fs.store)
    assert {problem.invariant for problem in problems} == {"nlink"}
    assert all(problem.message.startswith(f"epoch {view.epoch}") for problem in problems)


# -- what is left over -----------------------------------------------------------------------------


def test_a_problem_says_which_epochs_view_it_is_in(fs: Filesystem) -> None:
    """Also where a record makes so little sense that the check of the view cannot go on."""
    (checkpoint,) = history.checkpoints(fs.store)
    fs.store.recount_epoch(checkpoint.epoch, 77)
    assert {problem.epoch for problem in check(fs.store)} == {checkpoint.epoch}
    fs.store.inodes.rewrite(fmt.inode_entity(Ino(99)) + fs.head.suffix, b"nonsense")
    assert fs.head.epoch in {problem.epoch for problem in check(fs.store)}


def _xattr_of_nobody(fs: Filesystem) -> None:
    fs.store.xattrs.put(fs.head, fmt.xattr_entity(Ino(999), b"user.a"), fmt.PRESENT)


def _orphan_of_nobody(fs: Filesystem) -> None:
    fs.store.orphans.put(fmt.pack_u64(999), b"")


def _orphan_with_a_name(fs: Filesystem) -> None:
    fs.store.orphans.put(fmt.pack_u64(find(fs, fs.head, b"small").ino), b"")


def _nameless_inode_that_is_no_orphan(fs: Filesystem) -> None:
    inode = find(fs, fs.head, b"new")
    fs.store.dirents.drop(fs.head, dirent(fs, b"", b"new"))
    nameless = inode._replace(nlink=0, parent=Ino(0), name=b"")
    fs.store.inodes.put(fs.head, fmt.inode_entity(inode.ino), fmt.pack_inode(nameless))


def _number_that_will_come_again(fs: Filesystem) -> None:
    inode = find(fs, fs.head, b"new")
    later = Inode(*inode)._replace(ino=Ino(1_000), name=b"later")
    fs.store.inodes.put(fs.head, fmt.inode_entity(Ino(1_000)), fmt.pack_inode(later))
    fs.store.dirents.put(fs.head, dirent(fs, b"", b"later"), fmt.pack_u64(1_000))
    fs.head.inodes += 1


def _two_files_with_one_content(fs: Filesystem) -> None:
    content = find(fs, fs.head, b"new").content
    epoch, size = fs.head.epoch, BLOCK_SIZE
    change(fs, b"small", content=content, content_epoch=epoch, allocated=size, size=size)


@pytest.mark.parametrize(
    "damage",
    [
        _xattr_of_nobody,
        _orphan_of_nobody,
        _orphan_with_a_name,
        _nameless_inode_that_is_no_orphan,
        _number_that_will_come_again,
        _two_files_with_one_content,
    ],
)
def test_what_is_left_over_is_found(fs: Filesystem, damage: Callable[[Filesystem], None]) -> None:
    damage(fs)
    assert found(fs)


# -- what a journal left ---------------------------------------------------------------------------


def test_a_fragment_that_is_in_no_block_is_found(fs: Filesystem) -> None:
    ino = find(fs, fs.head, b"small")
    fs.store.fragments._table.put(blockmap._KEY.pack(ino.ino, ino.content, 0, 0), bytes(9))
    assert found(fs) == {"fragments"}
