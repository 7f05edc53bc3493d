"""Pages of the last commit that change on disk.

Whoever needs them gets an error, nothing is written on top of them, and what is whole is never
taken for damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ckptfs import errors, history
from ckptfs.fs import Filesystem
from ckptfs.fuse.server.interface import CompiledServer
from ckptfs.history import removal
from ckptfs.model import ROOT_INO
from ckptfs.store import Store, check
from ckptfs.store.format import CorruptRecord
from ckptfs.store.pages import Pages
from ckptfs.store.tables import require_whole
from tests.direct import Life, Ticks, get, mkdir, place, put

_PAGE = 4096
#: A page that was looked at this long ago is looked at again.
_TICK_S = 0.03
FILES = 400


@pytest.fixture
def guarded(memory: Path, compiled: CompiledServer) -> Iterator[Filesystem]:
    """A store with names that fill several pages, whose last commit is known."""
    store = Store.create(memory / "store")
    fs = Filesystem(store, Ticks())
    mkdir(fs, b"d")
    for number in range(FILES):
        put(fs, _name(number), b"%d" % number)
    fs.commit()
    store.attach_reader(compiled)
    yield fs
    store.close(commit=False)
    compiled.detach()


def _name(number: int) -> bytes:
    return b"d/%04d a name of some length" % number


def _pages(fs: Filesystem, table: bytes) -> list[int]:
    """The pages of a table's tree."""
    with contextlib.closing(Pages(fs.store.path / "data.mdb")) as pages:
        for name, records in pages.tables(pages.metas[0]):
            before = set(pages._seen)
            for _ in records:
                pass
            if name == table:
                return sorted(pages._seen - before)
    raise AssertionError("there is no such table")


@contextlib.contextmanager
def _flipped(fs: Filesystem, page: int, byte: int, bit: int = 0) -> Iterator[None]:
    """While another bit is in the file."""

    def flip() -> None:
        file = os.open(fs.store.path / "data.mdb", os.O_RDWR)
        at = page * _PAGE + byte
        os.pwrite(file, bytes((os.pread(file, 1, at)[0] ^ 1 << bit,)), at)
        os.close(file)
        time.sleep(_TICK_S)

    flip()
    try:
        yield
    finally:
        flip()


def _is_error(call: Callable[[], object]) -> bool:
    try:
        call()
    except CorruptRecord as error:
        assert error.errno == errno.EIO
        return True
    return False


def _names(fs: Filesystem) -> list[bytes]:
    return [name for name, _ in fs.entries(fs.head, fs.lookup(fs.head, ROOT_INO, b"d").ino)]


@pytest.mark.parametrize("byte", [3, 10, 12, 13, 16, 17, 40, 2_000, 4_090])
def test_a_listing_is_whole_or_an_error(
    guarded: Filesystem, compiled: CompiledServer, byte: int
) -> None:
    whole = _names(guarded)
    ino = guarded.lookup(guarded.head, ROOT_INO, b"d").ino
    assert len(whole) == FILES
    for page in _pages(guarded, b"dirents")[:6]:
        with _flipped(guarded, page, byte):
            assert _is_error(lambda: _names(guarded))
            assert compiled.names_in(ino) is None, "nor is it known without the store"
            assert any(_is_error(lambda n=n: get(guarded, _name(n))) for n in range(FILES))
    assert _names(guarded) == whole


def test_a_name_that_is_not_found_is_not_there(
    guarded: Filesystem, compiled: CompiledServer
) -> None:
    """The first page of all that a search comes to says nothing once it is damaged."""
    ino = guarded.lookup(guarded.head, ROOT_INO, b"d").ino
    with _flipped(guarded, _pages(guarded, b"dirents")[0], 12, bit=2):
        outcomes = set()
        for number in range(FILES):
            name = b"%04d b" % number
            outcomes.add(compiled.look_up(ino, name))
            outcomes.add(_is_error(lambda name=name: guarded.seek(guarded.head, ino, name)))
        assert outcomes <= {None, False, True} and None in outcomes and True in outcomes


def test_what_is_found_to_be_damaged_first_changes_nothing(guarded: Filesystem) -> None:
    """A name is looked for before it is made: the caller gets an error, and everything goes on."""
    refused = 0
    with _flipped(guarded, _pages(guarded, b"dirents")[1], 2_000):
        for number in range(0, FILES, 7):
            refused += _is_error(lambda n=number: put(guarded, _name(n) + b" new", b"new"))
        guarded.commit()
    assert 0 < refused <= FILES // 7
    made = [name for name in _names(guarded) if name.endswith(b" new")]
    assert len(made) == len(range(0, FILES, 7)) - refused
    assert check(guarded.store) == []


def test_nothing_is_written_on_top_of_a_damaged_page(guarded: Filesystem, memory: Path) -> None:
    """Where nothing is looked for first, half an operation may be in the transaction: it is given
    up, and what was committed stays."""
    path = guarded.store.path
    mkdir(guarded, b"e")
    guarded.commit()
    before = (path / "data.mdb").read_bytes()
    with contextlib.ExitStack() as flipped:
        for page in _pages(guarded, b"changes"):
            flipped.enter_context(_flipped(guarded, page, 2_000))
        with pytest.raises(OSError, match="damaged"):
            put(guarded, b"e/new", b"new")
        with pytest.raises(errors.StoreCorrupt):
            guarded.commit()
    assert (path / "data.mdb").read_bytes() == before
    again = Filesystem(Store.open(Path(shutil.copytree(path, memory / "copy"))), Ticks())
    assert len(_names(again)) == FILES and check(again.store) == []
    again.store.close()


def test_a_damaged_list_of_free_pages_ends_commits(guarded: Filesystem) -> None:
    """LMDB writes to whatever page such a list names."""
    put(guarded, b"more", b"1")
    guarded.commit()
    path = guarded.store.path
    with contextlib.closing(Pages(path / "data.mdb")) as pages:
        pages._seen = {0, 1}
        list(pages._records(pages.metas[0], pages.metas[0].free, []))
        free = sorted(pages._seen - {0, 1})
    before = (path / "data.mdb").read_bytes()
    with _flipped(guarded, free[0], _PAGE - 8):
        put(guarded, b"more", b"2")
        with pytest.raises(errors.StoreCorrupt):
            guarded.commit()
    assert (path / "data.mdb").read_bytes() == before
    with pytest.raises(OSError, match="damaged"):
        get(guarded, b"more")  # "1" is older than what was seen


def test_a_copy_of_a_damaged_page_is_not_made(guarded: Filesystem, memory: Path) -> None:
    with _flipped(guarded, _pages(guarded, b"changes")[0], 2_000):
        with pytest.raises(errors.BackupFailed):
            guarded.store.backup(memory / "copy")
        with pytest.raises(OSError, match="damaged"):
            guarded.store.compact()
    guarded.store.compact()
    assert len(_names(guarded)) == FILES


def test_every_page_of_a_long_table_is_looked_at_before_it_is_copied(
    guarded: Filesystem, memory: Path
) -> None:
    """More pages than are looked at in one go."""
    store = guarded.store
    for number in range(400):
        store.metadata.put(b"%06d" % number, bytes(1_000))
    guarded.commit()
    store.backup(memory / "whole")
    data = (store.path / "data.mdb").read_bytes()
    pages = [page for page in _pages(guarded, b"facts") if _is_of_a_tree(data, page)]
    assert len(pages) > 100
    for page in pages[:: len(pages) // 10]:
        with _flipped(guarded, page, 3_000), pytest.raises(errors.BackupFailed):
            store.backup(memory / "copy")


def test_what_is_whole_is_never_taken_for_damaged(life: Life, compiled: CompiledServer) -> None:
    """Pages are given up and used again by commit after commit."""
    rng = random.Random(5)
    fs = life.fs
    mkdir(fs, b"d")
    fs.commit()
    fs.store.attach_reader(compiled)
    there: dict[bytes, bytes] = {}
    for step in range(250):
        for _ in range(rng.choice([1, 3, 60])):
            name = _name(rng.randrange(300))
            if name in there:
                fs.unlink(fs.head, *place(fs, fs.head, name))
                del there[name]
            if rng.random() < 0.7:
                there[name] = rng.randbytes(rng.choice([10, 1_000, 9_000]))
                put(fs, name, there[name])
        if rng.random() < 0.1:
            history.seal(fs, "manual", "", 0)
        if rng.random() < 0.05 and (found := list(history.checkpoints(fs.store))):
            removal.delete(fs, [rng.choice(found)])
        if step == 120:
            fs.store.compact()
        fs.commit()
        for name in rng.sample(sorted(there), min(len(there), 5)):
            assert get(fs, name) == there[name]
    assert sorted(b"d/" + name for name in _names(fs)) == sorted(there)
    _assert_all_known(fs, compiled)
    compiled.detach()


def _assert_all_known(fs: Filesystem, compiled: CompiledServer) -> None:
    """Pages of all tables have their digests: a bit that flips anywhere is noticed."""
    rng = random.Random(1)
    data = (fs.store.path / "data.mdb").read_bytes()
    for name, table in zip(fs.store._dbs, fs.store._tables, strict=True):
        trees = [page for page in _pages(fs, name) if _is_of_a_tree(data, page)]
        for page in rng.sample(trees, min(len(trees), 6)):
            with _flipped(fs, page, 3_000):
                assert _is_error(partial(require_whole, table)), f"page {page} of {name!r}"


def _is_of_a_tree(data: bytes, page: int) -> bool:
    number, _, flags = struct.unpack_from("=QHH", data, page * _PAGE)
    return number == page and flags in (1, 2)


def test_a_large_record_that_gives_up_the_pages_of_others(guarded: Filesystem) -> None:
    """LMDB takes the number of its pages from the first of them: with one bit more it lists pages
    as free that are in use, and writes over them two commits later."""
    for number in range(8):
        put(guarded, b"large %d" % number, random.Random(number).randbytes(40_000))
        guarded.commit()
    page, bit = next(_greedy(guarded))
    with _flipped(guarded, page, 12, bit):
        for number in range(8):
            guarded.unlink(guarded.head, ROOT_INO, b"large %d" % number)
        with pytest.raises(errors.StoreCorrupt):
            guarded.commit()


def _greedy(fs: Filesystem) -> Iterator[tuple[int, int]]:
    """The first pages of large records, and bits of their count with which they have pages that
    belong to trees."""
    data = (fs.store.path / "data.mdb").read_bytes()
    trees = {
        page for name in fs.store._dbs for page in _pages(fs, name) if _is_of_a_tree(data, page)
    }
    for page in _pages(fs, b"blocks"):
        number, _, flags, count = struct.unpack_from("=QHHI", data, page * _PAGE)
        for bit in range(6) if (number, flags) == (page, 4) else ():
            if count ^ 1 << bit > count and trees & {
                *range(page + count, page + (count ^ 1 << bit))
            }:
                yield page, bit
