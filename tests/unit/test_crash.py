"""A process that ends without a word leaves exactly its last commit."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.model import BLOCK_SIZE, Attributes
from ckptfs.store import Store, check
from tests.direct import Life, find, get, inodes_held, mkdir, put, shown


def in_child(work: Callable[[], None]) -> None:
    """Run ``work`` in a process that then ends on the spot, with nothing closed or flushed."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "the work of the child failed"


@pytest.fixture
def path(memory: Path) -> Path:
    """A store with something in it, closed."""
    store = Store.create(memory / "store")
    fs = Filesystem(store)
    mkdir(fs, b"dir")
    put(fs, b"dir/file", b"first" * BLOCK_SIZE)
    put(fs, b"small", b"small")
    fs.link(fs.head, find(fs, fs.head, b"small").ino, 1, b"link")
    fs.commit()
    store.close()
    return memory / "store"


def test_what_was_not_committed_never_was(path: Path) -> None:
    store = Store.open(path)
    before = shown(Filesystem(store), store.head)
    store.close()

    def work() -> None:
        fs = Filesystem(Store.open(path))
        head = fs.head
        put(fs, b"new", os.urandom(3 * BLOCK_SIZE))
        fs.write(head, find(fs, head, b"dir/file").ino, 10, b"changed")
        fs.setattr(head, find(fs, head, b"small").ino, Attributes(mode=0o600, size=2))
        fs.unlink(head, 1, b"link")
        fs.rename(head, 1, b"dir", 1, b"moved")
        fs.setxattr(head, 1, b"user.a", b"value")
        history.seal(fs, "manual", "lost", 0)
        put(fs, b"later", b"data")
        fs.flush()

    in_child(work)
    store = Store.open(path)
    fs = Filesystem(store)
    assert shown(fs, fs.head) == before
    assert history.checkpoints(store) == []
    fs.commit()
    assert check(store) == []
    store.close()


def test_what_was_committed_stays(path: Path) -> None:
    data = os.urandom(3 * BLOCK_SIZE)

    def work() -> None:
        fs = Filesystem(Store.open(path))
        put(fs, b"new", data)
        history.seal(fs, "manual", "kept", 0)
        put(fs, b"later", b"kept too")
        fs.commit()
        put(fs, b"later", b"lost!!!!")
        fs.unlink(fs.head, 1, b"new")

    in_child(work)
    store = Store.open(path)
    fs = Filesystem(store)
    assert get(fs, b"new") == data and get(fs, b"later") == b"kept too"
    (checkpoint,) = history.checkpoints(store)
    assert checkpoint.message == "kept"
    assert get(fs, b"new", fs.view_of(checkpoint.epoch)) == data
    assert b"later" not in shown(fs, fs.view_of(checkpoint.epoch)).nodes
    fs.commit()
    assert check(store) == []
    store.close()


_WRITER = """
import sys
from pathlib import Path
from ckptfs import history
from ckptfs.fs import Filesystem
from ckptfs.store import Store
from tests.direct import put
fs = Filesystem(Store.open(Path(sys.argv[1])))
for number in range(100_000):
    put(fs, b"file %d" % number, b"%d" % number * 3_000)
    if number % 7 == 0:
        history.seal(fs, "auto", str(number), 0)
    fs.commit()
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 8, 60])
def test_a_commit_that_is_killed_happened_or_did_not(path: Path, lines: int) -> None:
    """Everything acknowledged is there, and at most the one thing that was under way."""
    read, write = os.pipe()
    root = str(Path(__file__).parents[2])
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", _WRITER, str(path)],
        {**os.environ, "PYTHONPATH": root},
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)],
    )
    os.close(write)
    with open(read) as output:
        acknowledged = [int(output.readline()) for _ in range(lines)]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        acknowledged += [int(line) for line in output if line.endswith("\n")]
    store = Store.open(path)
    fs = Filesystem(store)
    found = [name for name, _ in fs.entries(fs.head, 1) if name.startswith(b"file ")]
    assert len(acknowledged) <= len(found) <= len(acknowledged) + 1
    for number in range(len(found)):
        assert get(fs, b"file %d" % number) == b"%d" % number * 3_000
    fs.commit()
    assert check(store) == []
    store.close()


# -- nameless inodes -------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_unlinked", [False, True])
def test_an_open_file_without_a_name_ends_with_the_process(life: Life, keep_unlinked: bool) -> None:
    fs = life.fs
    fs.keep_unlinked = keep_unlinked
    ino = put(fs, b"file", os.urandom(2 * BLOCK_SIZE))
    fs.hold(ino)
    fs.unlink(fs.head, 1, b"file")
    fs.write(fs.head, ino, 0, b"still here")
    fs.commit()
    assert check(fs.store) == []
    assert fs.getattr(fs.head, ino).nlink == 0
    fs = life.crash()
    with pytest.raises(OSError, match="Stale"):
        fs.getattr(fs.head, ino)
    assert fs.head.inodes == inodes_held(fs) == 1
    assert list(fs.store.blocks.keys()) == []
    fs.commit()
    assert list(fs.store.orphans.walk()) == []


def test_a_nameless_file_that_a_checkpoint_knows_by_name_stays_there(life: Life) -> None:
    """It ends in the head only; the checkpoint keeps it."""
    fs = life.fs
    ino = put(fs, b"file", b"kept" * BLOCK_SIZE)
    checkpoint = history.seal(fs, "manual", "", 0)
    fs.hold(ino)
    fs.unlink(fs.head, 1, b"file")
    fs.write(fs.head, ino, 0, b"gone")
    fs.commit()
    fs = life.crash()
    assert fs.head.inodes == inodes_held(fs) == 1
    assert get(fs, b"file", fs.view_of(checkpoint.epoch)) == b"kept" * BLOCK_SIZE


def test_a_nameless_file_sealed_into_a_checkpoint_is_not_in_it(life: Life) -> None:
    fs = life.fs
    ino = put(fs, b"file", b"x" * BLOCK_SIZE)
    fs.hold(ino)
    fs.unlink(fs.head, 1, b"file")
    checkpoint = history.seal(fs, "manual", "", 0)
    fs.write(fs.head, ino, 0, b"y")
    fs.drop(ino)
    assert fs.head.inodes == 1
    assert list(fs.entries(fs.view_of(checkpoint.epoch), 1)) == []
    fs.commit()
    assert check(fs.store) == []
    life.reopen()


def test_a_directory_without_a_name_ends_with_the_process(life: Life) -> None:
    fs = life.fs
    fs.keep_unlinked = True
    ino = mkdir(fs, b"dir")
    fs.rmdir(fs.head, 1, b"dir")
    fs.commit()
    assert fs.getattr(fs.head, ino).nlink == 0
    fs = life.crash()
    assert fs.head.inodes == 1
    assert fs.getattr(fs.head, 1).nlink == 2


def test_numbers_are_never_used_twice(life: Life) -> None:
    seen: set[int] = set()
    for again in (life.reopen, life.crash, life.reopen):
        fs = life.fs
        ino = put(fs, b"file", b"x" * 3_000)
        content = find(fs, fs.head, b"file").content
        assert ino not in seen and -content not in seen
        seen |= {ino, -content}
        fs.unlink(fs.head, 1, b"file")
        fs.commit()
        again()
