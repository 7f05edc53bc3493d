"""Damage anywhere in a store's file: it is told, nothing dies of it, and a repair saves the rest.

Every trial runs in a process of its own, since LMDB does not survive every damage; the damage is
found without it.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.history import compression, packing
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import Store, check
from ckptfs.store.format import block_entity, pack_inline
from ckptfs.store.pages import Pages
from ckptfs.store.repair import faults, repair
from tests.direct import Ticks, find, join, mkdir, put

PAGE = 4096
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

Tree = dict[bytes, bytes]


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Path, dict[int, Tree]]]:
    """A store with three checkpoints and a head, and what each of them shows."""
    with tempfile.TemporaryDirectory(prefix="ckptfs-repair-", dir=_MEMORY) as base:
        path = Path(base) / "store"
        store = Store.create(path)
        fs = Filesystem(store, Ticks())
        rng = random.Random(1)
        shown = {}
        for number in range(4):
            work(fs, rng, number)
            if number < 3:
                checkpoint = history.seal(fs, "manual", "", 0)
                shown[checkpoint.id] = tree(fs, fs.view_of(checkpoint.epoch))
            if number == 1:
                compression.compress(fs)
            if number == 2:
                packing.pack_records(fs, chunk_bytes=500)
            fs.commit()
        shown[-1] = tree(fs, fs.head)
        assert check(store) == []
        store.close()
        yield path, shown


def work(fs: Filesystem, rng: random.Random, number: int) -> None:
    if not number:
        for name in (b"a", b"a/b", b"c"):
            mkdir(fs, name)
    for place in (b"", b"a", b"a/b", b"c"):
        for n in range(25):
            size = rng.choice([10, 500, 3_000, 20_000, 2 * BLOCK_SIZE])
            put(fs, join(place, b"file %d %d" % (number, n)), rng.randbytes(size // 2) * 2)
    put(fs, b"large %d" % (number % 2), rng.randbytes(7 * BLOCK_SIZE))
    for n in range(10):
        if number:
            inode = find(fs, fs.head, b"a/file %d %d" % (number - 1, n))
            fs.write(fs.head, inode.ino, rng.randrange(inode.size), rng.randbytes(800))
            parent = find(fs, fs.head, b"c").ino
            fs.unlink(fs.head, parent, b"file %d %d" % (number - 1, n))


def tree(fs: Filesystem, view: object, *, bad: list[bytes] | None = None) -> Tree:
    """The bytes of every file; those that cannot be read are named in ``bad``."""
    found: Tree = {}
    pending = [(b"", 1)]
    while pending:
        path, ino = pending.pop()
        for name, inode in fs.entries(view, ino):
            here = join(path, name)
            if inode.size > 1 << 20:  # a flipped bit of its size: no file here is so large
                continue
            if inode.is_dir:
                pending.append((here, inode.ino))
                continue
            try:
                found[here] = bytes(fs.read(view, inode.ino, 0, inode.size))
            except OSError as error:
                assert error.errno == errno.EIO and bad is not None
                bad.append(here)
    return found


# -- damages ---------------------------------------------------------------------------------------


def flip_a_bit(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(2 * PAGE, len(data))] ^= 1 << rng.randrange(8)


def lose_a_page(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(2, len(data) // PAGE) * PAGE
    data[at : at + PAGE] = bytes(PAGE)


def swap_pages(data: bytearray, rng: random.Random) -> None:
    a, b = (rng.randrange(2, len(data) // PAGE) * PAGE for _ in range(2))
    data[a : a + PAGE], data[b : b + PAGE] = data[b : b + PAGE], data[a : a + PAGE]


def scribble(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(2 * PAGE, len(data) - 100)
    data[at : at + 100] = rng.randbytes(100)


def cut_short(data: bytearray, rng: random.Random) -> None:
    del data[len(data) - rng.randrange(len(data) // 5) :]


def damage_a_leaf(data: bytearray, rng: random.Random) -> None:
    """Most pages hold blocks; this one is for those that hold records."""
    leaves = [at for at in range(2 * PAGE, len(data), PAGE) if data[at + 10] in (1, 2)]
    at = rng.choice(leaves)
    data[at + rng.randrange(PAGE)] ^= 1 << rng.randrange(8)


def lose_a_leaf(data: bytearray, rng: random.Random) -> None:
    leaves = [at for at in range(2 * PAGE, len(data), PAGE) if data[at + 10] == 2]
    at = rng.choice(leaves)
    data[at : at + PAGE] = bytes(PAGE)


DAMAGES = [flip_a_bit, lose_a_page, swap_pages, scribble, cut_short, damage_a_leaf, lose_a_leaf]


def _trial(made: tuple[Path, dict[int, Tree]], damage: Callable[..., None], seed: int) -> None:
    whole, shown = made
    path = whole.with_name(f"{damage.__name__}-{seed}")
    shutil.copytree(whole, path)
    try:
        data = bytearray((path / "data.mdb").read_bytes())
        damage(data, random.Random(seed))
        (path / "data.mdb").write_bytes(data)
        if not seed:
            _look_at(path)
        try:
            repaired = repair(path)
        except Exception as error:
            raise AssertionError(f"{damage.__name__} {seed}: {error!r}") from error
        assert repaired.left == [], (damage.__name__, seed, repaired)
        older = any("newest state" in words for words in repaired.unreadable)
        _ask(path, shown, any_version=older or damage is cut_short)
        assert repaired.kept_as.read_bytes() == data
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _look_at(path: Path) -> None:
    """`ckptfs check` ends as it should, whatever it finds."""
    copy = path.with_name(path.name + "-copy")
    shutil.copytree(path, copy)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ckptfs", "check", "--deep", "--store", copy],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 3, 11, 12, 17), (done.returncode, done.stderr)
        assert "Traceback" not in done.stderr
    finally:
        shutil.rmtree(copy)


def _ask(path: Path, shown: dict[int, Tree], *, any_version: bool) -> None:
    """What there is, is what there was: the same bytes under a name, or none. Where so much is lost
    that even what changed is not known, it may be what was at another time."""
    store = Store.open(path, verify=True)
    try:
        fs = Filesystem(store, Ticks())
        assert check(store) == []
        views = {c.id: fs.view_of(c.epoch) for c in history.checkpoints(store)} | {-1: fs.head}
        for number, view in views.items():
            bad: list[bytes] = []
            found = tree(fs, view, bad=bad)
            times = shown.values() if any_version else [shown[number]]
            every = {data for found_then in times for data in found_then.values()}
            wrong = [name for name, data in found.items() if data not in every]
            assert not wrong, (number, wrong[:3])
        assert -1 in views
        saved = tree(fs, fs.head, bad=[])
        assert len(saved) > 15
    finally:
        store.close()
    with Pages_of(path) as pages:
        assert pages.faults() == []


class Pages_of:
    def __init__(self, path: Path) -> None:
        self._pages = Pages(path / "data.mdb")

    def __enter__(self) -> Pages:
        return self._pages

    def __exit__(self, *_: object) -> None:
        self._pages.close()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repair_saves_what_damage_did_not_hit(
    made: tuple[Path, dict[int, Tree]], damage: Callable[..., None]
) -> None:
    for seed in range(3):
        _trial(made, damage, seed)


@pytest.mark.deep
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repair_saves_what_much_damage_did_not_hit(
    made: tuple[Path, dict[int, Tree]], damage: Callable[..., None]
) -> None:
    for seed in range(3, 100):
        _trial(made, damage, seed)


def test_a_repair_drops_a_block_where_no_file_can_reach(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    fs = Filesystem(store, Ticks())
    put(fs, b"file", b"text")
    fs.flush()
    content = find(fs, fs.head, b"file").content
    store.blockmap.put(fs.head, block_entity(content, 2**60), pack_inline(b"nonsense"))
    store.close()
    assert repair(tmp_path / "store").left == []
    store = Store.open(tmp_path / "store")
    assert find(Filesystem(store, Ticks()), store.head, b"file").size == 4
    store.close()


def test_repairing_what_is_whole_changes_nothing(made: tuple[Path, dict[int, Tree]]) -> None:
    whole, shown = made
    path = whole.with_name("sound")
    shutil.copytree(whole, path)
    assert faults(path) == []
    repaired = repair(path)
    assert repaired.left == [] and repaired.unreadable == []
    # At once again: what each of them found stays under a name of its own.
    assert repair(path).kept_as != repaired.kept_as and repaired.kept_as.exists()
    store = Store.open(path)
    fs = Filesystem(store, Ticks())
    for checkpoint in history.checkpoints(store):
        assert tree(fs, fs.view_of(checkpoint.epoch)) == shown[checkpoint.id]
    assert tree(fs, fs.head) == shown[-1]
    store.close()
    shutil.rmtree(path)
