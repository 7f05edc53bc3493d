"""The look at an LMDB file's pages: each kind of damage, made by hand, is told."""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptfs.errors import StoreCorrupt
from ckptfs.fs import Filesystem
from ckptfs.store import Store
from ckptfs.store import format as fmt
from ckptfs.store import pages as pages_module
from ckptfs.store.pages import Pages
from tests.direct import Ticks, put

PAGE = 4096
#: Where in a page that says what is current the fields are that matter.
FREE, MAIN, LAST, TURN = 16 + 24, 16 + 24 + 48, 16 + 24 + 96, 16 + 24 + 104


class File:
    """A data file to damage."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = bytearray(path.read_bytes())
        with contextlib.closing(Pages(path)) as pages:
            self.meta = pages.metas[0]
        self.current = self.meta.number * PAGE

    def pages(self, kind: int) -> list[int]:
        """Where the pages of a kind are that are in use: 1 branches, 2 leaves, 4 overflow."""
        with contextlib.closing(Pages(self.path)) as pages:
            pages.faults()
            used = sorted(pages._seen - {0, 1})
        starts = [number * PAGE for number in used]
        return [
            at for at in starts if self.number("=Q", at) == at // PAGE and self.kind(at) == kind
        ]

    def kind(self, at: int) -> int:
        return self.number("=H", at + 10) & 7

    def number(self, kind: str, at: int) -> int:
        return int(struct.unpack_from(kind, self.data, at)[0])

    def add(self, kind: str, at: int, amount: int) -> None:
        struct.pack_into(kind, self.data, at, self.number(kind, at) + amount)

    def nodes(self, page: int) -> list[int]:
        count = (self.number("=H", page + 12) - 16) // 2
        return [page + at for at in struct.unpack_from(f"={count}H", self.data, page + 16)]

    def faults(self) -> list[str]:
        self.path.write_bytes(self.data)
        with contextlib.closing(Pages(self.path)) as pages:
            return pages.faults()


@pytest.fixture
def file(memory: Path) -> File:
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    for number in range(300):
        put(fs, b"a file %d" % number, b"%d" % number * (3_000 if number % 50 == 0 else 30))
        if number % 100 == 0:
            fs.commit()
    fs.commit()
    store.close()
    return File(memory / "store/data.mdb")


def flags_of_the_main_tree(file: File) -> None:
    file.add("=H", file.current + MAIN + 4, 4)


def flags_of_the_free_tree(file: File) -> None:
    file.add("=H", file.current + FREE + 4, 4)


def a_number_of_a_commit(file: File) -> None:
    file.add("=Q", file.current + TURN, 1 << 20)


def the_last_page(file: File) -> None:
    file.add("=Q", file.current + LAST, 1 << 30)


def records_of_the_main_tree(file: File) -> None:
    file.add("=Q", file.current + MAIN + 32, 1)


def the_number_of_a_page(file: File) -> None:
    file.add("=Q", file.pages(2)[0], 1)


def the_kind_of_a_page(file: File) -> None:
    file.add("=H", file.pages(2)[0] + 10, 32)


def the_end_of_the_free_room(file: File) -> None:
    file.add("=H", file.pages(2)[0] + 14, -2)


def the_size_of_a_record(file: File) -> None:
    leaf = next(at for at in file.pages(2) if len(file.nodes(at)) > 4)
    file.add("=H", min(file.nodes(leaf)), 2)


def the_kind_of_a_record(file: File) -> None:
    file.add("=H", file.nodes(file.pages(2)[0])[0] + 4, 4)


def a_key(file: File) -> None:
    leaf = next(at for at in file.pages(2) if len(file.nodes(at)) > 4)
    file.data[file.nodes(leaf)[1] + 8] ^= 0x80


def a_border_between_two_pages(file: File) -> None:
    branch = file.pages(1)[0]
    node = file.nodes(branch)[1]
    length = file.number("=H", node + 6)
    file.data[node + 8 + length - 1] ^= 0x01
    file.data[node + 8 + length - 5] ^= 0x01


def the_page_that_a_branch_leads_to(file: File) -> None:
    file.add("=H", file.nodes(file.pages(1)[0])[0], 1)


def the_length_of_a_large_record(file: File) -> None:
    file.add("=H", file.pages(4)[0] + 12, 1)


DAMAGES = [
    flags_of_the_main_tree,
    flags_of_the_free_tree,
    a_number_of_a_commit,
    the_last_page,
    records_of_the_main_tree,
    the_number_of_a_page,
    the_kind_of_a_page,
    the_end_of_the_free_room,
    the_size_of_a_record,
    the_kind_of_a_record,
    a_key,
    a_border_between_two_pages,
    the_page_that_a_branch_leads_to,
    the_length_of_a_large_record,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_it_is_told(file: File, damage: Callable[[File], None]) -> None:
    assert file.faults() == []
    damage(file)
    assert file.faults() != []


def test_a_record_of_a_lost_epoch_is_told_before_anything_is_read(memory: Path) -> None:
    """An older version would show in the place of one whose epoch is damaged."""
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    ino = put(fs, b"file", b"x")
    fs.commit()
    record = store.inodes.own(fs.head, fmt.inode_entity(ino)) or b""
    store.inodes.rewrite(fmt.inode_entity(ino) + fmt.suffix_of(fmt.EPOCH_MAX), record)
    store.dirty = True
    store.close()
    with pytest.raises(StoreCorrupt, match="lost epoch"):
        Store.open(memory / "store", verify=True)


def test_a_record_that_became_shorter_keeps_its_pages(memory: Path) -> None:
    """LMDB leaves it where it is if it was written by the same transaction."""
    store = Store.create(memory / "store")
    for length in (20_000, 9_000, 10):
        store.metadata.put(b"a fact", bytes(length))
    store.commit()
    assert store.page_faults() == []
    store.close()
    store = Store.open(memory / "store")
    assert store.metadata.get(b"a fact") == bytes(10)
    store.close()


def test_pages_that_were_looked_at_are_let_go_of(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "_MAPPED_MAX", 8)
    monkeypatch.setattr(mmap, "mmap", LetGo)
    with contextlib.closing(Pages(file.path)) as pages:
        assert pages.faults() == []
        # The leaves of a branch are looked at as one.
        assert isinstance(pages._data, LetGo) and pages._data.count > 3


class LetGo(mmap.mmap):
    """A mapped file that counts how often its pages are let go of."""

    count = 0

    def madvise(self, option: int, *part: int) -> None:
        assert option == mmap.MADV_DONTNEED and not part
        self.count += 1
        super().madvise(option)
