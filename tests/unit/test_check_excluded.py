"""`check` finds what is wrong with what is kept out of history, and with who changed what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckptfs.fs import Filesystem
from ckptfs.history import excluded
from ckptfs.model import Epoch, Ino
from ckptfs.store import Store, check
from ckptfs.store.format import (
    Border,
    author_entity,
    dirent_entity,
    inode_entity,
    pack_border,
    pack_u64,
)
from tests.direct import mkdir, put


def _filled(store: Store) -> Filesystem:
    fs = Filesystem(store)
    excluded.apply(fs, ("*.log", "cache/"))
    put(fs, b"plain", b"1")
    mkdir(fs, b"d")
    put(fs, b"d/a.log", b"2")
    mkdir(fs, b"d/cache")
    put(fs, b"d/cache/x", b"3")
    fs.signing = fs.authorship.of("me", {"pid": 1, "command": "me", "session": ""})
    put(fs, b"mine", b"4")
    fs.commit()
    return fs


def _border_unknown(fs: Filesystem, store: Store) -> None:
    store.borders.delete(pack_u64(fs.lookup(fs.head, Ino(1), b"d").ino))


def _border_of_nothing(fs: Filesystem, store: Store) -> None:
    store.borders.put(pack_u64(999), pack_border(Border()))


def _border_miscounted(fs: Filesystem, store: Store) -> None:
    ino = fs.lookup(fs.head, Ino(1), b"d").ino
    store.borders.put(pack_u64(ino), pack_border(Border(subdirs=2)))


def _entry_to_history(fs: Filesystem, store: Store) -> None:
    assert store.excluded is not None
    plain = fs.lookup(fs.head, Ino(1), b"plain").ino
    store.dirents.put(store.excluded, dirent_entity(Ino(1), b"b.log"), pack_u64(plain))


def _inode_on_both_sides(fs: Filesystem, store: Store) -> None:
    assert store.excluded is not None
    plain = inode_entity(fs.lookup(fs.head, Ino(1), b"plain").ino)
    store.inodes.put(store.excluded, plain, store.inodes.get(fs.head.bare, plain) or b"")
    store.excluded.inodes += 1


def _name_on_both_sides(fs: Filesystem, store: Store) -> None:
    directory = fs.lookup(fs.head, Ino(1), b"d").ino
    plain = fs.lookup(fs.head, Ino(1), b"plain").ino
    store.dirents.put(fs.head.bare, dirent_entity(directory, b"a.log"), pack_u64(plain))


def _miscounted(fs: Filesystem, store: Store) -> None:
    assert store.excluded is not None
    store.excluded.inodes += 1


def _author_of_lost_epoch(fs: Filesystem, store: Store) -> None:
    store.authors.put(author_entity(Epoch(77), 1, 0), b"{}")


def _author_that_is_nobody(fs: Filesystem, store: Store) -> None:
    store.authors.put(author_entity(fs.head.epoch, 55, 9), bytes(8))


DAMAGE = [
    (_border_unknown, "excluded"),
    (_border_of_nothing, "excluded"),
    (_border_miscounted, "nlink"),
    (_entry_to_history, "excluded"),
    (_inode_on_both_sides, "excluded"),
    (_name_on_both_sides, "excluded"),
    (_miscounted, "inodes"),
    (_author_of_lost_epoch, "authors"),
    (_author_that_is_nobody, "authors"),
]


@pytest.mark.parametrize(("damage", "invariant"), DAMAGE)
def test_what_is_wrong_with_excluded_records_is_found(
    store: Store, damage: Callable[[Filesystem, Store], None], invariant: str
) -> None:
    fs = _filled(store)
    assert check(store) == []
    damage(fs, store)
    assert invariant in {problem.invariant for problem in check(store)}
