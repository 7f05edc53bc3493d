"""One bit of a store's file flips, anywhere: nothing dies of it, and nobody is shown anything that
was not stored.

Every trial works with the damaged store in a process of its own, as a daemon would: opens it after
a look at its pages, reads every checkpoint, changes files, saves, checks. What came of it is one of

    same       the bit was in a page that is not in use, or in what is only counted
    refused    the store is not opened, and the reason is named
    error      whoever needs the damaged record or block gets EIO
    missing    a name is not found, in a directory whose listing is an error
    checked    everything reads as it was, and `check` tells of the damage

and what it must not be: a signal, an unexpected exception, wrong bytes, wrong attributes.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ckptfs import errors, history
from ckptfs.fs import Filesystem
from ckptfs.history import compression
from ckptfs.model import BLOCK_SIZE
from ckptfs.store import Store, View, check
from tests.direct import Shown, Ticks, find, join, mkdir, node_of, put, shown
from tests.support.mounting import HAVE_FUSE, Workspace, scratch

PAGE = 4096
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
#: The workspace, among the checkpoints by number.
HEAD = -1
ALLOWED = {"same", "refused", "error", "missing", "checked"}


class Made(NamedTuple):
    store: Path
    data: bytes
    shown: dict[int, Shown]


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    """Three checkpoints and a head, with everything that a store can hold."""
    with tempfile.TemporaryDirectory(prefix="ckptfs-flips-", dir=_MEMORY) as base:
        path = Path(base) / "store"
        store = Store.create(path)
        fs = Filesystem(store, Ticks())
        for number in range(4):
            _work(fs, random.Random(number), number)
            if number < 3:
                history.seal(fs, "manual", "a message", 0)
            if number == 1:
                compression.compress(fs)
            fs.commit()
        assert check(store) == []
        seen = {number: shown(fs, view) for number, view in _views(fs).items()}
        store.close()
        yield Made(path, (path / "data.mdb").read_bytes(), seen)


def _work(fs: Filesystem, rng: random.Random, number: int) -> None:
    places = (b"", b"a", b"a/b", b"c")
    if not number:
        for name in places[1:]:
            mkdir(fs, name)
    for place in places:
        for n in range(20):
            size = rng.choice([10, 100, 500, 1_500]) if n else rng.choice([9_000, 2 * BLOCK_SIZE])
            put(fs, join(place, b"file %d %d" % (number, n)), rng.randbytes(size // 2) * 2)
    put(fs, b"large %d" % (number % 2), rng.randbytes(6 * BLOCK_SIZE))
    fs.symlink(fs.head, 1, b"link %d" % number, b"a/file", 0, 0)
    fs.link(fs.head, find(fs, fs.head, b"file %d 1" % number).ino, 1, b"other %d" % number)
    for n in range(10 if number else 0):
        inode = find(fs, fs.head, b"a/file %d %d" % (number - 1, n))
        fs.write(fs.head, inode.ino, rng.randrange(inode.size), rng.randbytes(800))
        fs.setxattr(fs.head, inode.ino, b"user.name%d" % n, b"")
        fs.unlink(fs.head, find(fs, fs.head, b"c").ino, b"file %d %d" % (number - 1, n))


def _views(fs: Filesystem) -> dict[int, View]:
    return {c.id: fs.view_of(c.epoch) for c in history.checkpoints(fs.store)} | {HEAD: fs.head}


# -- one trial, in a process of its own ------------------------------------------------------------


def _live_with(path: Path, wanted: dict[int, Shown]) -> set[str]:
    try:
        store = Store.open(path, verify=True)
    except errors.StoreError:
        return {"refused"}
    try:
        fs = Filesystem(store, Ticks())
        views = _views(fs)
        found = set() if views.keys() == wanted.keys() else {"other checkpoints"}
        for number, view in views.items():
            found |= _compare(fs, view, wanted[number])
        found |= _change(fs)
        return found | ({"checked"} if check(store) else set())
    except (OSError, errors.CkptfsError):
        return {"error"}
    finally:
        store.close(commit=False)


def _compare(fs: Filesystem, view: View, wanted: Shown) -> set[str]:
    """How what the view shows differs from what it showed."""
    found: set[str] = set()
    seen = {b""}
    pending = [(b"", 1)]
    while pending:
        path, ino = pending.pop()
        try:
            entries = list(fs.entries(view, ino))
        except OSError:
            return {"error", "missing"}
        for name, inode in entries:
            here = join(path, name)
            seen.add(here)
            if inode.is_dir:
                pending.append((here, inode.ino))
            try:
                node = node_of(fs, view, inode)
            except OSError:
                found.add("error")
                continue
            expected = wanted.nodes.get(here)
            if expected is None or node.content != expected.content:
                found.add("wrong bytes" if expected else "another name")
            elif node._replace(xattrs={}) != expected._replace(xattrs={}):
                found.add("wrong attributes")
            if wanted.times.get(inode.ino, (0, 0)) != (inode.mtime_ns, inode.ctime_ns):
                found.add("wrong times")
    return found if seen == wanted.nodes.keys() else {*found, "lost names"}


def _change(fs: Filesystem) -> set[str]:
    found: set[str] = set()
    for number in range(20):
        for place in (b"", b"a/"):
            try:
                put(fs, b"%sfile 3 %d" % (place, number), b"changed")
                put(fs, b"%snew %d" % (place, number), b"new" * 1_000)
            except OSError:
                found.add("error")
    for number in range(2):
        try:
            inode = find(fs, fs.head, b"large %d" % number)
            fs.write(fs.head, inode.ino, 4 * BLOCK_SIZE, b"changed" * BLOCK_SIZE)
            fs.commit()
            fs.unlink(fs.head, 1, b"large %d" % number)
        except OSError:
            found.add("error")
    history.seal(fs, "manual", "", 0)
    fs.commit()
    return found


def _outcome(made: Made, bit: int) -> set[str]:
    """What comes of a store with this bit flipped."""
    path = made.store.with_name("damaged")
    _flipped(made, bit, path)
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        try:
            told = ",".join(_live_with(path, made.shown)) or "same"
        except BaseException:
            told = "unexpected: " + traceback.format_exc().replace(",", ";")
        os.write(theirs, told.encode())
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        told = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    return set(told.split(",")) if told else {f"signal {os.WTERMSIG(status)}"}


def _flipped(made: Made, bit: int, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(made.store, path)
    data = bytearray(made.data)
    data[bit // 8] ^= 1 << bit % 8
    (path / "data.mdb").write_bytes(data)


def _bits(made: Made, count: int, seed: int) -> Iterator[int]:
    """Anywhere, but for the most part where records are, and sometimes where it says what is."""
    rng = random.Random(seed)
    size = len(made.data)
    records = [at for at in range(2 * PAGE, size, PAGE) if made.data[at + 10] in (1, 2)]
    for _ in range(count):
        page = rng.choices([rng.choice(records), rng.randrange(2) * PAGE], [15, 1])[0]
        within = rng.randrange(200 * 8) if page < 2 * PAGE else rng.randrange(PAGE * 8)
        yield page * 8 + within if rng.random() < 0.85 else rng.randrange(size * 8)


def _flip_many(made: Made, count: int, seed: int) -> None:
    came: Counter[str] = Counter()
    for bit in _bits(made, count, seed):
        outcome = _outcome(made, bit)
        assert outcome <= ALLOWED, f"bit {bit}: {outcome}"
        came[" ".join(sorted(outcome))] += 1
    print(dict(came.most_common()))
    # The damage is noticed at all: by opening, by reading, by checking.
    assert came["same"] < count * 0.8 and came["refused"] and came["checked error"]


def test_a_flipped_bit_is_noticed_or_does_not_matter(made: Made) -> None:
    _flip_many(made, 150, 1)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_flipped_bits_are_noticed_or_do_not_matter(made: Made, seed: int) -> None:
    _flip_many(made, 1_000, seed)


@pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse")
@pytest.mark.parametrize("seed", range(4))
def test_a_daemon_lives_with_a_flipped_bit_or_says_why_not(made: Made, seed: int) -> None:
    """Or says at once why it does not start; and its log has no traceback."""
    with scratch() as base:
        workspace = Workspace(base, "--no-write-back")
        (bit,) = _bits(made, 1, 100 + seed)
        _flipped(made, bit, workspace.store)
        done = workspace.try_to_mount()
        assert done.returncode in (0, 17), done.stderr
        if done.returncode == 0:
            _walk(workspace.path)
            assert "Traceback" not in workspace.trouble()
            assert workspace.cli("umount", workspace.path).returncode == 0


def _walk(top: Path) -> None:
    for directory, _, files in os.walk(top):
        for name in files:
            try:
                (Path(directory) / name).read_bytes()
            except OSError:
                continue
