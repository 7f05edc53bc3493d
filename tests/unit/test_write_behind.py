"""Grants, and what is made under one, on a store without a kernel."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ckptfs import history
from ckptfs.errors import StoreUnwritten
from ckptfs.fs import Filesystem
from ckptfs.fuse import hooks
from ckptfs.fuse.server.write_behind import BYTES, WriteBehind
from ckptfs.history.auto import Loss
from ckptfs.model import BLOCK_SIZE, ROOT_INO, Ino
from tests.direct import get, new_filesystem, put
from tests.support.errnos import fails

FILE, DIRECTORY, LINK = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755, stat.S_IFLNK | 0o777
TIMES = (1, 2, 3, 4)
TIME_NS = 12_345
PID = 42


class Watched:
    """A guard that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bool]] = []
        self.lost: list[Loss | None] = []
        self.wrote: list[tuple[int, int]] = []
        self.until_ns = 1 << 62

    def __call__(self, pid: int, loss: hooks.LossOf | None, *, begins: bool = True) -> None:
        self.told.append((pid, begins))
        self.lost.append(loss() if loss else None)

    def made(self, ino: int, *, content: bool = True, new: bool = False) -> None:
        self.wrote.append((ino, self.told[-1][0]))

    def made_all(self, inodes: Sequence[int], makers: Sequence[int]) -> None:
        self.wrote += zip(inodes, makers, strict=True)

    def is_writing(self, ino: int, pid: int) -> bool:
        return (ino, pid) in self.wrote

    def make_room(self, ino: int) -> bool:
        return False

    def lasting(self, pid: int) -> int:
        return self.until_ns if pid == PID else 0

    def mark(self, pid: int, message: str) -> int:
        raise AssertionError("nothing is marked here")

    def take_back(self, number: int) -> None:
        raise AssertionError("nothing is marked here")

    def name_step(self, pid: int, text: str) -> None:
        raise AssertionError("no step is named here")


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[Filesystem]:
    with new_filesystem(tmp_path / "store") as found:
        yield found


@pytest.fixture
def guard() -> Watched:
    return Watched()


@pytest.fixture
def pending(fs: Filesystem, guard: Watched) -> WriteBehind:
    return WriteBehind(fs, guard)


def leased(pending: WriteBehind) -> Ino:
    lease = pending.lease(PID)
    assert lease is not None and lease[2] == BYTES
    return Ino(lease[0])


def test_what_is_made_under_a_lease_is_there(
    fs: Filesystem, pending: WriteBehind, guard: Watched
) -> None:
    first = leased(pending)
    second, third, fourth = Ino(first + 1), Ino(first + 2), Ino(first + 3)
    arrivals = [
        (first, DIRECTORY, 2, 5, 6, 0, 0, *TIMES, ROOT_INO, b"dir", b""),
        (second, FILE, 1, 5, 6, 0, 3, *TIMES, first, b"small", pending.record(b"abc")),
        (third, FILE, 1, 5, 6, 0, 5_000, *TIMES, first, b"large", pending.record(b"x" * 5_000)),
        (fourth, LINK, 1, 5, 6, 0, 5, *TIMES, ROOT_INO, b"link", b"dir/s"),
    ]
    root = (ROOT_INO, DIRECTORY, 7, 8, 9, 10, 11, 1, 0)
    pending.flush(arrivals, [root], [PID, 43, PID, PID], PID)
    inode = fs.lookup(fs.head, first, b"small")
    assert (inode.ino, inode.mode, inode.uid, inode.gid) == (second, FILE, 5, 6)
    assert (inode.atime_ns, inode.mtime_ns, inode.ctime_ns, inode.btime_ns) == TIMES
    assert bytes(fs.read(fs.head, second, 0, 100)) == b"abc"
    assert bytes(fs.read(fs.head, third, 4_990, 100)) == b"x" * 10
    assert fs.readlink(fs.head, fourth) == b"dir/s"
    above = fs.getattr(fs.head, ROOT_INO)
    assert (above.nlink, above.uid, above.gid, above.mtime_ns) == (3, 7, 8, 10)
    assert guard.wrote == [(first, PID), (second, 43), (third, PID), (fourth, PID)]
    assert fs.mkdir(fs.head, ROOT_INO, b"next", 0o755, 0, 0).ino == fourth + 1


def test_a_run_is_no_beginning(fs: Filesystem, pending: WriteBehind, guard: Watched) -> None:
    ino = fs.mknod(fs.head, ROOT_INO, b"file", FILE, 0, 0).ino
    pending.write_acknowledged(ino, [(0, b"more")], PID, TIME_NS, True)
    assert bytes(fs.read(fs.head, ino, 0, 100)) == b"more"
    inode = fs.getattr(fs.head, ino)
    assert (inode.mtime_ns, inode.ctime_ns) == (TIME_NS, TIME_NS)
    assert guard.told == [(PID, False)] and guard.lost == [None]


def test_a_run_in_the_middle_of_a_file_tells_what_it_destroys(
    fs: Filesystem, pending: WriteBehind, guard: Watched
) -> None:
    ino = put(fs, b"file", b"0123456789")
    pending.write_acknowledged(
        ino, [(10, b"yy"), (4, b"xx"), (5, b"z")], PID, TIME_NS, keep_set_id=True
    )
    assert guard.told == [(PID, False)]
    assert guard.lost == [Loss(ino, in_place=10)]
    assert get(fs, b"file") == b"0123xz6789yy"


def test_the_version_of_names_passes_when_a_name_may_have_come(
    fs: Filesystem, pending: WriteBehind
) -> None:
    versions = [pending.names_version()]
    ino = fs.mknod(fs.head, ROOT_INO, b"file", FILE, 0, 0).ino
    versions.append(pending.names_version())
    fs.link(fs.head, ino, ROOT_INO, b"link")
    versions.append(pending.names_version())
    fs.rename(fs.head, ROOT_INO, b"link", ROOT_INO, b"moved", 0)
    versions.append(pending.names_version())
    saved = history.seal(fs, "manual", "", fs.clock())
    versions.append(pending.names_version())
    history.restore(fs, saved)
    versions.append(pending.names_version())
    assert len(set(versions)) == len(versions)


def test_the_version_of_names_lasts_while_no_name_comes(
    fs: Filesystem, pending: WriteBehind
) -> None:
    ino = fs.mknod(fs.head, ROOT_INO, b"file", FILE, 0, 0).ino
    version = pending.names_version()
    fs.write(fs.head, ino, 0, b"bytes")
    assert fs.lookup(fs.head, ROOT_INO, b"file").size == 5
    fs.commit()
    assert pending.names_version() == version


def test_only_who_goes_on_is_leased_anything(pending: WriteBehind, guard: Watched) -> None:
    assert pending.lease(43) is None
    assert (pending.joins(PID), pending.joins(43)) == (True, False)
    guard.until_ns = 1
    assert pending.lease(PID) is None


def test_nothing_is_leased_while_names_are_judged(fs: Filesystem, pending: WriteBehind) -> None:
    fs.store.open_excluded()
    assert pending.lease(PID) is None


def test_nothing_is_leased_while_something_is_in_limbo(
    fs: Filesystem, pending: WriteBehind
) -> None:
    fs.limbo[Ino(99)] = fs.head
    assert pending.lease(PID) is None
    fs.limbo.clear()


def test_our_own_threads_are_leased_nothing(pending: WriteBehind) -> None:
    hooks.touching.add(PID)
    try:
        assert pending.lease(PID) is None
        assert not pending.joins(PID)
    finally:
        hooks.touching.discard(PID)


def test_nothing_is_leased_where_there_is_no_room(tmp_path: Path, guard: Watched) -> None:
    with new_filesystem(tmp_path / "small", map_size=18 << 20) as fs:
        pending = WriteBehind(fs, guard)
        assert pending.lease(PID) is None


def test_after_a_loss_nothing_is_taken(tmp_path: Path, guard: Watched) -> None:
    with new_filesystem(tmp_path / "lost") as fs:
        pending = WriteBehind(fs, guard)
        fs.commit()
        pending.fail()
        with fails(errno.EIO):
            fs.mkdir(fs.head, ROOT_INO, b"dir", 0o755, 0, 0)
        with fails(errno.EIO):
            pending.flush(
                [(Ino(2), FILE, 1, 5, 6, 0, 0, *TIMES, ROOT_INO, b"new", b"")], [], [PID], PID
            )
        assert pending.lease(PID) is None
        with pytest.raises(StoreUnwritten):
            fs.commit()
        fs.store._budget.failure = None  # so that the end of the test can look at it


# -- streams ---------------------------------------------------------------------------------------


@pytest.fixture
def stream(fs: Filesystem, guard: Watched) -> Ino:
    """A file that a process is writing to, of one block so far."""
    ino = put(fs, b"stream", bytes(BLOCK_SIZE))
    guard.wrote.append((ino, PID))
    return ino


def certain(pending: WriteBehind, ino: Ino, offset: int = BLOCK_SIZE, pid: int = PID) -> bool:
    return pending.may_acknowledge(ino, offset, 2 * BLOCK_SIZE, pid)


def test_who_goes_on_at_the_end_of_a_file_has_its_answer_first(
    fs: Filesystem, pending: WriteBehind, guard: Watched, stream: Ino
) -> None:
    assert certain(pending, stream)
    blocks = memoryview(b"x" * 2 * BLOCK_SIZE)
    pending.write_acknowledged(stream, [(BLOCK_SIZE, blocks)], PID, TIME_NS, True)
    assert guard.told == [(PID, False)] and guard.lost == [None]
    assert get(fs, b"stream") == bytes(BLOCK_SIZE) + b"x" * 2 * BLOCK_SIZE
    assert guard.wrote == [(stream, PID)] * 2  # it is still at it
    assert not certain(pending, stream)
    assert certain(pending, stream, 3 * BLOCK_SIZE)


def test_others_have_to_wait(fs: Filesystem, pending: WriteBehind, stream: Ino) -> None:
    assert not certain(pending, stream, 0)
    assert not certain(pending, stream, 2 * BLOCK_SIZE)
    assert not certain(pending, stream, pid=PID + 1)
    directory = fs.mkdir(fs.head, 1, b"dir", 0o755, 0, 0).ino
    assert not certain(pending, directory, 0)


def test_so_it_is_while_names_are_judged_or_something_is_in_limbo(
    fs: Filesystem, pending: WriteBehind, stream: Ino
) -> None:
    fs.limbo[Ino(99)] = fs.head
    assert not certain(pending, stream)
    fs.limbo.clear()
    assert certain(pending, stream)
    fs.store.open_excluded()
    assert not certain(pending, stream)


def test_so_it_is_where_there_is_no_room(
    fs: Filesystem, pending: WriteBehind, stream: Ino, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fs.store, "has_space", lambda size: False)
    assert not certain(pending, stream)
