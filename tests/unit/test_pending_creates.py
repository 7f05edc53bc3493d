"""Pending creates, with a socket in place of the kernel: several requests are read in one turn of
the loop, and `flush` tells what was written to the store, and when."""

from __future__ import annotations

import errno
import stat
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from ckptfs.fuse.nodes import CONTROL
from ckptfs.fuse.server.interface import ServerModule
from ckptfs.model import FILE_SIZE_MAX, Inode
from tests.support.kernel import (
    FSYNC,
    GETATTR,
    LINK,
    LOOKUP,
    MKDIR,
    MKNOD,
    READ,
    RENAME,
    RENAME2,
    SETATTR,
    SYMLINK,
    UNLINK,
    WRITE,
    Kernel,
    Owner,
)

DIRECTORY, FIRST = 50, 1000
#: Calls that change nothing.
ASKED = ("lease", "may_acknowledge")
MODE, UID, GID, SIZE, ATIME, MTIME = 1, 2, 4, 8, 16, 32
#: As in linux/fuse.h: the file loses its set-id bits.
KILL_SET_ID = 4


class Giver(Owner):
    """Gives leases, and says of every name that it is absent."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 1 << 20
        self.seconds = 100
        self.mode = stat.S_IFDIR | 0o755
        self.nlink = 2
        self.refusing = False
        self.refusing_links = False
        #: To give a lease takes until then.
        self.turn_ns = 0
        self.now = 0
        #: Whether streams are answered first, and what happens when their bytes come.
        self.certain = False
        #: When the bytes that came were acknowledged, and whether their file keeps its set-id bits.
        self.stamps: list[tuple[int, bool]] = []
        self.storing: Callable[[], None] = lambda: None

    def may_acknowledge(self, *values: int) -> bool:
        self.calls.append(("may_acknowledge", *values))
        return self.certain

    def write_acknowledged(
        self,
        node: int,
        pieces: list[tuple[int, bytes | memoryview]],
        pid: int,
        time_ns: int,
        keep: bool,
    ) -> None:
        self.storing()
        self.stamps.append((time_ns, keep))
        for offset, data in pieces:
            self.calls.append(("write_acknowledged", node, offset, bytes(data), pid))

    def write(self, node: int, offset: int, *values: object) -> None:
        self.storing()
        self.calls.append(("write", node, offset, *values))

    def lookup(self, parent: int, name: bytes) -> None:  # type: ignore[override]
        self.calls.append(("lookup", parent, name))

    def getattr(self, node: int) -> Inode:
        return self._inode(node, self.mode)

    def mknod(self, parent: int, name: bytes, mode: int, *_: object) -> Inode:
        self.calls.append(("mknod", parent, name))
        return self._inode(77, mode)

    def _inode(self, node: int, mode: int) -> Inode:
        return Inode(node, mode, self.nlink, 0, 9, *[0] * 9, 1, b"", b"")  # type: ignore[arg-type, call-arg]

    def lease(self, pid: int) -> tuple[int, int, int] | None:
        self.calls.append(("lease", pid))
        if self.refusing:
            return None
        while time.monotonic_ns() <= self.turn_ns:
            pass
        return FIRST, time.monotonic_ns() + self.seconds * 10**9, self.bytes

    def names_version(self) -> int:
        return self.now

    def record(self, data: memoryview) -> bytes:
        self.calls.append(("record", bytes(data)))
        return bytes(data)

    def flush(
        self,
        arrivals: list[tuple[object, ...]],
        directories: object,
        makers: list[int],
        pid: int,
    ) -> None:
        self.calls.append(("flush", arrivals, directories, makers, pid))

    def link(self, *values: object) -> Inode:
        self.calls.append(("link", *values))
        return self._inode(FIRST, stat.S_IFREG | 0o600)

    def link_flushed(self, *values: object) -> None:
        self.calls.append(("link_flushed", *values))
        if self.refusing_links:
            raise OSError(errno.EIO, "damaged")

    def named(self, name: str) -> list[tuple[object, ...]]:
        return [call for call in self.calls if call[0] == name]


@pytest.fixture
def kernel(module: ServerModule) -> Iterator[Kernel]:
    found = Kernel(module, Giver())
    for number in range(3):  # a process that goes on
        make(found, b"before%d" % number)
        found.serve()
        assert found.error() == 0
    found.owner.calls.clear()
    yield found
    found.close()


def giver(kernel: Kernel) -> Giver:
    assert isinstance(kernel.owner, Giver)
    return kernel.owner


def make(kernel: Kernel, name: bytes, node: int = DIRECTORY, pid: int = 42) -> None:
    body = struct.pack("=IIII", stat.S_IFREG | 0o600, 0, 0, 0) + name + b"\0"
    kernel.send(MKNOD, body, node, pid)


def make_directory(kernel: Kernel, name: bytes, node: int = DIRECTORY) -> None:
    kernel.send(MKDIR, struct.pack("=II", 0o755, 0) + name + b"\0", node)


def write(
    kernel: Kernel, node: int, offset: int, data: bytes, pid: int = 42, flags: int = 0
) -> None:
    head = struct.pack("=QQIIQII", 0, offset, len(data), flags, 0, 0, 0)
    kernel.send(WRITE, head + data, node, pid)


def set_attributes(kernel: Kernel, node: int, valid: int, **values: int) -> None:
    fields = ["size", "owner", "atime", "mtime", "ctime"]
    times = [values.get(field, 0) for field in fields]
    body = struct.pack("=IIQ", valid, 0, 0) + struct.pack("=5Q3I", *times, 0, 0, 0)
    body += struct.pack("=IIIII", values.get("mode", 0), 0, values.get("uid", 0), 0, 0)
    kernel.send(SETATTR, body, node)


def test_a_file_is_handed_over_once_with_all_it_has(kernel: Kernel) -> None:
    make(kernel, b"file")
    write(kernel, FIRST, 0, b"hello ")
    write(kernel, FIRST, 6, b"world")
    set_attributes(kernel, FIRST, MODE | UID, mode=0o644, uid=5)
    set_attributes(kernel, FIRST, MTIME, mtime=17)
    kernel.serve()
    assert [kernel.error() for _ in range(5)] == [0] * 5
    (flushed,) = giver(kernel).named("flush")
    ((ino, mode, nlink, uid, gid, _, size, _, mtime, *_, parent, name, data),) = flushed[1]  # type: ignore[misc, attr-defined]
    assert (ino, mode, nlink, uid, gid) == (FIRST, stat.S_IFREG | 0o644, 1, 5, 0)
    assert (size, mtime, parent, name, data) == (11, 17 * 10**9, DIRECTORY, b"file", b"hello world")
    assert giver(kernel).named("mknod") == []


def test_bytes_are_stored_when_their_process_goes_on_to_the_next_file(kernel: Kernel) -> None:
    make(kernel, b"first")
    write(kernel, FIRST, 0, b"content")
    make_directory(kernel, b"dir")
    make(kernel, b"second")
    kernel.send(READ, struct.pack("=QQIIQII", 0, 0, 100, 0, 0, 0, 0), FIRST)
    kernel.serve()
    told = [call[0] for call in giver(kernel).calls if call[0] != "lookup"]
    assert told == ["lease", "record", "flush"]
    assert giver(kernel).named("record") == [("record", b"content")]
    for _ in range(4):
        assert kernel.error() == 0
    assert kernel.answer()[1] == b"content"


def test_bytes_of_a_file_that_another_is_at_are_not_stored_early(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel.owner, "joins", lambda pid: True, raising=False)
    kernel.mount_anew()
    make(kernel, b"first")
    write(kernel, FIRST, 0, b"half ")
    make(kernel, b"second", pid=43)
    write(kernel, FIRST, 5, b"and half")
    kernel.serve()
    assert giver(kernel).named("record") == [("record", b"half and half")]


def test_a_file_that_is_written_on_after_all_is_left_to_the_store(kernel: Kernel) -> None:
    make(kernel, b"first")
    write(kernel, FIRST, 0, b"half ")
    make(kernel, b"second")
    write(kernel, FIRST, 5, b"and half")
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls][-3:] == ["record", "flush", "write"]
    assert giver(kernel).named("record") == [("record", b"half ")]


def test_bytes_that_cannot_be_stored_are_told(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(_: object) -> bytes:
        raise OSError(errno.EIO, "no more")

    monkeypatch.setattr(kernel.owner, "record", record, raising=False)
    kernel.mount_anew()
    make(kernel, b"first")
    write(kernel, FIRST, 0, b"content")
    make(kernel, b"second")
    kernel.serve()
    assert ("failed", "[Errno 5] no more") in kernel.owner.calls
    assert ("fail",) in kernel.owner.calls


def test_a_pending_file_is_found_and_read(kernel: Kernel) -> None:
    make(kernel, b"file")
    write(kernel, FIRST, 0, b"content")
    kernel.send(LOOKUP, b"file\0", DIRECTORY)
    kernel.send(READ, struct.pack("=QQIIQII", 0, 3, 100, 0, 0, 0, 0), FIRST)
    kernel.send(GETATTR, bytes(16), FIRST)
    kernel.serve()
    assert kernel.error() == kernel.error() == 0
    (node,) = struct.unpack_from("=Q", kernel.answer()[1])
    assert node == FIRST
    assert kernel.answer()[1] == b"tent"
    (ino, size) = struct.unpack_from("=QQ", kernel.answer()[1], 16)
    assert (ino, size) == (FIRST, 7)
    assert kernel.server.is_referenced(FIRST)


def test_a_pending_directory_is_known_to_be_empty(kernel: Kernel) -> None:
    make_directory(kernel, b"dir")
    kernel.send(LOOKUP, b"absent\0", FIRST)
    make(kernel, b"inner", FIRST)
    kernel.serve()
    assert kernel.error() == 0
    error, entry = kernel.answer()
    assert (error, struct.unpack_from("=Q", entry)[0]) == (0, 0)
    assert kernel.error() == 0
    assert giver(kernel).named("lookup") == [("lookup", DIRECTORY, b"dir")]
    (flushed,) = giver(kernel).named("flush")
    assert [arrival[-3:-1] for arrival in flushed[1]] == [(DIRECTORY, b"dir"), (FIRST, b"inner")]  # type: ignore[attr-defined]


def test_directories_hear_of_their_entries(kernel: Kernel) -> None:
    make_directory(kernel, b"dir")
    make(kernel, b"file")
    kernel.send(GETATTR, bytes(16), DIRECTORY)
    kernel.serve()
    assert kernel.error() == kernel.error() == 0
    nlink = struct.unpack_from("=I", kernel.answer()[1], 16 + 64)[0]
    assert nlink == 3
    (flushed,) = giver(kernel).named("flush")
    ((ino, *_, subdirectories, dressed),) = flushed[2]  # type: ignore[misc, attr-defined]
    assert (ino, subdirectories, dressed) == (DIRECTORY, 1, 0)


def test_a_directory_that_is_dressed_is_handed_over_with_the_rest(kernel: Kernel) -> None:
    make(kernel, b"file", 60)
    set_attributes(kernel, DIRECTORY, MODE | MTIME, mode=0o700, mtime=17)
    make(kernel, b"another", 60)
    kernel.serve()
    assert [kernel.error() for _ in range(3)] == [0] * 3
    (flushed,) = giver(kernel).named("flush")
    assert [arrival[-2] for arrival in flushed[1]] == [b"file", b"another"]  # type: ignore[attr-defined]
    (_, (ino, mode, _, _, _, mtime, _, _, dressed)) = flushed[2]  # type: ignore[misc, attr-defined]
    assert (ino, stat.S_IMODE(mode), mtime, dressed) == (DIRECTORY, 0o700, 17 * 10**9, 1)


def test_a_turn_does_not_end_in_the_middle_of_a_file(kernel: Kernel) -> None:
    """Unless what follows is long in coming, as it may be where the machine is busy."""
    assert any(_is_made_in_a_turn_that_is_over(kernel) for _ in range(20))


def _is_made_in_a_turn_that_is_over(kernel: Kernel) -> bool:
    """Whether a file, of which only the first request comes in time, is handed over whole."""
    giver(kernel).calls.clear()
    make(kernel, b"file")
    write(kernel, FIRST, 0, b"hello")
    kernel.send(LOOKUP, b"next\0", DIRECTORY)
    make(kernel, b"next")
    giver(kernel).turn_ns = time.monotonic_ns() + 200_000
    kernel.server.serve(kernel.theirs, 0, giver(kernel).turn_ns, -1)
    flushed = [arrival[-2:] for flushed in giver(kernel).named("flush") for arrival in flushed[1]]  # type: ignore[attr-defined]
    giver(kernel).turn_ns = 0
    kernel.serve()
    for _ in range(4):
        kernel.answer()
    return flushed == [(b"file", b"hello")]


def test_a_name_is_taken_once(kernel: Kernel) -> None:
    make(kernel, b"file")
    make(kernel, b"file")
    kernel.serve()
    assert kernel.error() == kernel.error() == 0
    # The second one asks the store, which knows of the first by then.
    assert [call[0] for call in giver(kernel).calls][-2:] == ["flush", "mknod"]


@pytest.mark.parametrize("name", [b".checkpoints", b"x" * 256, b".", b""])
def test_names_that_mean_something_go_the_ordinary_way(kernel: Kernel, name: bytes) -> None:
    make(kernel, name, node=1)
    kernel.serve()
    assert giver(kernel).named("flush") == []
    assert len(giver(kernel).named("mknod")) == 1


def test_another_process_comes_after_all_that_was_made(kernel: Kernel) -> None:
    make(kernel, b"file")
    write(kernel, FIRST, 0, b"theirs", pid=43)
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls][-2:] == ["flush", "write"]


def test_what_acts_together_is_one(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel.owner, "joins", lambda pid: pid == 43, raising=False)
    kernel.mount_anew()
    make(kernel, b"file")
    write(kernel, FIRST, 0, b"theirs", pid=43)
    write(kernel, FIRST, 6, b"not", pid=44)
    kernel.serve()
    called = [call[0] for call in giver(kernel).calls]
    assert called == ["lease", "lookup", "record", "flush", "write"]
    (flushed,) = giver(kernel).named("flush")
    assert flushed[1][0][-1] == b"theirs"  # type: ignore[index]


def test_where_none_is_given_a_lease_is_seldom_asked_for(kernel: Kernel) -> None:
    giver(kernel).refusing = True
    for number in range(8):
        make(kernel, b"file%d" % number)
    kernel.serve()
    assert len(giver(kernel).named("lease")) == 2
    assert len(giver(kernel).named("mknod")) == 8


def test_a_removal_comes_after_all_that_was_made(kernel: Kernel) -> None:
    make(kernel, b"file")
    kernel.send(UNLINK, b"file\0", DIRECTORY)
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls][-2:] == ["flush", "unlink"]


def test_without_a_lease_everything_goes_to_the_store(kernel: Kernel) -> None:
    giver(kernel).refusing = True
    make(kernel, b"file")
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls] == ["lease", "mknod"]


def test_a_lease_ends_with_its_time(kernel: Kernel) -> None:
    giver(kernel).seconds = 0
    make(kernel, b"file")
    write(kernel, FIRST, 0, b"data")
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls][-2:] == ["flush", "write"]


def test_a_lease_ends_with_its_bytes(kernel: Kernel) -> None:
    giver(kernel).bytes = 3
    make(kernel, b"file")
    write(kernel, FIRST, 0, b"data")
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls][-2:] == ["flush", "write"]


@pytest.mark.parametrize("offset, size", [(1, 1), (0, 65_537), (65_000, 1_000)])
def test_holes_and_large_files_are_left_to_the_store(
    kernel: Kernel, offset: int, size: int
) -> None:
    make(kernel, b"file")
    write(kernel, FIRST, offset, b"x" * size)
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls][-2:] == ["flush", "write"]


def test_writes_that_go_on_are_put_together(kernel: Kernel) -> None:
    for number in range(5):
        write(kernel, 77, number * 3, b"abc")
    kernel.send(GETATTR, bytes(16), 77)
    kernel.serve()
    assert [kernel.error() for _ in range(6)] == [0] * 6
    named = [call[0] for call in giver(kernel).calls if call[0] != "may_acknowledge"]
    assert named == ["write", "lease", "write_acknowledged"]
    assert giver(kernel).named("write_acknowledged") == [
        ("write_acknowledged", 77, 3, b"abc" * 4, 42)
    ]


def test_writes_of_one_who_may_not_keep_set_id_bits_are_put_together_too(kernel: Kernel) -> None:
    """The kernel marks every write of an ordinary user so."""
    began_ns = time.time_ns()
    for number in range(3):
        write(kernel, 77, number * 3, b"abc", flags=KILL_SET_ID)
    write(kernel, 77, 9, b"abc")
    kernel.serve()
    written = [call[:3] for call in giver(kernel).calls if call[0] not in ASKED]
    assert written == [("write", 77, 0), ("write_acknowledged", 77, 3), ("write", 77, 9)]
    [(time_ns, keep)] = giver(kernel).stamps
    assert began_ns < time_ns < time.time_ns() and not keep


@pytest.mark.parametrize("node, offset, pid", [(78, 9, 42), (77, 10, 42), (77, 8, 42), (77, 9, 43)])
def test_writes_that_do_not_go_on_are_not(kernel: Kernel, node: int, offset: int, pid: int) -> None:
    for number in range(3):
        write(kernel, 77, number * 3, b"abc")
    write(kernel, node, offset, b"abc", pid)
    kernel.serve()
    assert [call[0] for call in stored(kernel)][-2:] == ["write_acknowledged", "write"]


def test_messages_to_a_control_file_are_never_put_together(kernel: Kernel) -> None:
    for number in range(4):
        write(kernel, CONTROL, 3 * number, b"abc")
    kernel.serve()
    told = [call[:3] for call in giver(kernel).calls if call[0] in ("write", "write_acknowledged")]
    assert told == [("write", CONTROL, 3 * number) for number in range(4)]


def test_a_sync_comes_after_what_was_written_and_does_not_end_a_run(kernel: Kernel) -> None:
    for number in range(2):
        write(kernel, 77, number * 3, b"abc")
    kernel.send(FSYNC, bytes(16), 77)
    write(kernel, 77, 6, b"abc")
    kernel.serve()
    named = [call[0] for call in giver(kernel).calls if call[0] not in ASKED]
    assert named == ["write", "write_acknowledged", "sync", "write_acknowledged"]


def test_files_that_are_written_to_in_turn_have_a_run_each(kernel: Kernel) -> None:
    """As a database and its journal: that one goes to the store takes nothing from the other."""
    for number in range(4):
        for node in (77, 78):
            write(kernel, node, number * 3, b"abc")
    kernel.serve()
    assert [kernel.error() for _ in range(8)] == [0] * 8
    calls = [call[:4] for call in giver(kernel).calls if call[0] not in ASKED]
    assert [call[:3] for call in calls[:2]] == [("write", 77, 0), ("write", 78, 0)]
    assert calls[2:] == [
        ("write_acknowledged", 77, 3, b"abc" * 3),
        ("write_acknowledged", 78, 3, b"abc" * 3),
    ]


def test_the_run_that_began_first_gives_way_to_one_too_many(kernel: Kernel) -> None:
    for node in range(71, 76):
        write(kernel, node, 0, b"abc")
    for node in range(71, 76):
        write(kernel, node, 3, b"abc")
    kernel.serve()
    later = [call[:3] for call in giver(kernel).calls if call[0] not in ASKED][5:]
    assert later[0] == ("write", 71, 3)
    # That of 72 gave way to 71, which began anew.
    assert ("write", 72, 3) in later


@pytest.mark.parametrize("looking", [GETATTR, READ, LOOKUP])
def test_a_look_comes_after_what_was_written_and_does_not_end_a_run(
    kernel: Kernel, looking: int
) -> None:
    for number in range(2):
        write(kernel, 77, number * 3, b"abc")
    kernel.send(looking, b"name\0" if looking == LOOKUP else bytes(40), 77)
    write(kernel, 77, 6, b"abc")
    kernel.serve()
    written = [call[:3] for call in giver(kernel).calls if call[0].startswith("write")]
    assert written == [
        ("write", 77, 0),
        ("write_acknowledged", 77, 3),
        ("write_acknowledged", 77, 6),
    ]


@pytest.mark.parametrize("change", [UNLINK, SETATTR])
def test_a_change_ends_every_run(kernel: Kernel, change: int) -> None:
    for node in (77, 78):
        write(kernel, node, 0, b"abc")
    kernel.send(change, b"name\0" if change == UNLINK else bytes(88), 1)
    for node in (77, 78):
        write(kernel, node, 3, b"abc")
    kernel.serve()
    written = [call[:3] for call in giver(kernel).calls if call[0].startswith("write")]
    assert written == [(("write", node, at)) for at in (0, 3) for node in (77, 78)]


def test_a_run_ends_with_its_block(kernel: Kernel) -> None:
    for offset in (65_530, 65_533, 65_536, 65_539):
        write(kernel, 77, offset, b"abc")
    kernel.serve()
    assert stored(kernel) == [
        ("write", 77, 65_530),
        ("write_acknowledged", 77, 65_533),
        ("write", 77, 65_536),
        ("write_acknowledged", 77, 65_539),
    ]


def stored(kernel: Kernel) -> list[tuple[object, ...]]:
    """What was written, and how: each call, its node and its offset."""
    return [call[:3] for call in giver(kernel).calls if str(call[0]).startswith("write")]


def test_writes_to_blocks_that_the_store_has_open_are_put_together(kernel: Kernel) -> None:
    giver(kernel).partial[77] = {0: None, 3: None}
    for offset in (0, 200_000, 10, 13, 5, 200_001):
        write(kernel, 77, offset, b"abc")
    kernel.serve()
    # As they came: a later one may be on top of an earlier one. Two that touch are one.
    assert stored(kernel) == [
        ("write", 77, 0),
        *(("write_acknowledged", 77, offset) for offset in (200_000, 10, 5, 200_001)),
    ]
    assert len(giver(kernel).stamps) == 1


@pytest.mark.parametrize("node, offset", [(77, 70_000), (78, 10), (77, 65_534)])
def test_a_write_to_a_block_that_is_not_open_goes_to_the_store(
    kernel: Kernel, node: int, offset: int
) -> None:
    """It may be damaged, and then the writer has to hear of it. So may the next one."""
    giver(kernel).partial[77] = {0: None}
    for where, place in ((77, 0), (77, 100), (node, offset)):
        write(kernel, where, place, b"abc")
    kernel.serve()
    assert stored(kernel)[1:] == [("write_acknowledged", 77, 100), ("write", node, offset)]


def test_a_run_at_the_end_of_a_file_goes_on_behind_its_block(kernel: Kernel) -> None:
    giver(kernel).mode = stat.S_IFREG | 0o644
    for offset in (65_530, 65_533, 65_536, 65_539):
        write(kernel, 77, offset, b"abc")
    kernel.serve()
    assert stored(kernel)[0] == ("write", 77, 65_530)
    assert giver(kernel).named("write_acknowledged") == [
        ("write_acknowledged", 77, 65_533, b"abc" * 3, 42)
    ]


def test_a_file_that_was_flushed_while_it_was_made_is_gone_on_with(kernel: Kernel) -> None:
    """By a run and by dirty attributes, which leave alone what others are making."""
    giver(kernel).mode = stat.S_IFREG | 0o600
    giver(kernel).certain = True
    make(kernel, b"another")
    write(kernel, 77, 0, b"half ")
    write(kernel, 77, 5, b"and half")
    set_attributes(kernel, 77, MODE | MTIME, mode=0o640, mtime=17)
    kernel.send(GETATTR, bytes(16), 77)
    write(kernel, FIRST, 0, b"of another")
    kernel.serve()
    assert [kernel.error() for _ in range(3)] == [0] * 3
    for _ in range(2):  # the replies to SETATTR and GETATTR
        mtime, mode = struct.unpack_from("=16x32xQ20xI", kernel.answer()[1])
        assert (mtime, stat.S_IMODE(mode)) == (17, 0o640)
    assert kernel.error() == 0
    assert stored(kernel) == [("write_acknowledged", 77, 0)]
    (flushed,) = giver(kernel).named("flush")
    assert [arrival[-2:] for arrival in flushed[1]] == [(b"another", b"of another")]  # type: ignore[attr-defined]
    changed = {change[0]: change for change in flushed[2]}  # type: ignore[attr-defined]
    assert changed[77][1] == stat.S_IFREG | 0o640 and changed[77][5] == 17 * 10**9
    assert (changed[77][-1], changed[DIRECTORY][-1]) == (1, 0)
    assert giver(kernel).named("setattr") == []


def test_bytes_come_after_the_attributes_that_were_set_before(kernel: Kernel) -> None:
    """Else these would take the time of the write away."""
    giver(kernel).mode = stat.S_IFREG | 0o600
    giver(kernel).certain = True
    write(kernel, 77, 0, b"abc")
    set_attributes(kernel, 77, MTIME, mtime=17)
    write(kernel, 77, 3, b"def")
    kernel.serve()
    told = [call[0] for call in giver(kernel).calls if call[0] in ("flush", "write")]
    assert told == ["flush", "write"]


def test_a_file_without_a_name_is_changed_by_the_store(kernel: Kernel) -> None:
    giver(kernel).mode, giver(kernel).nlink = stat.S_IFREG | 0o600, 0
    set_attributes(kernel, 77, MODE, mode=0o640)
    kernel.serve()
    assert len(giver(kernel).named("setattr")) == 1


def test_a_run_that_is_full_is_stored_and_goes_on(kernel: Kernel) -> None:
    giver(kernel).partial[77] = {0: None}
    places = [number * 100 for number in range(150)]
    for offset in places:
        write(kernel, 77, offset, b"abc")
    kernel.serve()
    assert stored(kernel)[1:] == [("write_acknowledged", 77, offset) for offset in places[1:]]
    assert len(giver(kernel).stamps) > 1


def test_a_run_whose_lease_is_used_up_gets_another(kernel: Kernel) -> None:
    giver(kernel).bytes = 7
    for number in range(6):
        write(kernel, 77, number * 3, b"abc")
    kernel.serve()
    named = [call[0] for call in giver(kernel).calls if call[0] != "may_acknowledge"]
    assert named == ["write", *["lease", "write_acknowledged"] * 2, "lease", "write_acknowledged"]


@pytest.mark.parametrize("certain", [True, False])
def test_a_stream_is_answered_before_it_is_stored(kernel: Kernel, certain: bool) -> None:
    """If it is certain to be stored; else the ordinary way, and behind what came before it."""
    answered: list[int] = []
    giver(kernel).certain = certain
    giver(kernel).storing = lambda: answered.append(_answers(kernel))
    make(kernel, b"file")
    write(kernel, 77, 1 << 20, b"s" * 2 * 65_536)
    kernel.serve()
    answered.append(_answers(kernel))
    assert answered == ([2, 0] if certain else [1, 1])
    named = [call[0] for call in giver(kernel).calls if call[0] not in ("lease", "lookup")]
    assert named == ["flush", "may_acknowledge", "write_acknowledged" if certain else "write"]
    asked = giver(kernel).named("may_acknowledge")
    assert asked == [("may_acknowledge", 77, 1 << 20, 2 * 65_536, 42)]


@pytest.mark.parametrize(
    "offset, size, flags", [(0, 65_536, 0), (100, 131_072, 0), (0, 131_073, 0), (0, 131_072, 1)]
)
def test_other_writes_are_no_stream(kernel: Kernel, offset: int, size: int, flags: int) -> None:
    giver(kernel).certain = True
    body = struct.pack("=QQIIQII", 0, offset, size, flags, 0, 0, 0) + b"s" * size
    kernel.send(WRITE, body, 77)
    kernel.serve()
    assert kernel.error() == 0
    assert [call[0] for call in giver(kernel).calls] == ["write"]


def test_a_stream_that_cannot_be_stored_after_all_ends_everything(kernel: Kernel) -> None:
    giver(kernel).certain = True
    giver(kernel).storing = _damaged
    write(kernel, 77, 0, b"s" * 2 * 65_536)
    kernel.serve()
    assert kernel.error() == 0
    assert len(giver(kernel).named("fail")) == 1


def _answers(kernel: Kernel) -> int:
    """How many there are that nobody has looked at."""
    count = 0
    while not kernel.is_silent():
        count += 1
    return count


def _damaged() -> None:
    raise OSError(errno.EIO, "damaged")


def test_many_are_handed_over_in_portions(kernel: Kernel) -> None:
    for number in range(130):
        make(kernel, b"file%d" % number)
        if number % 20 == 19:
            kernel.server.serve(kernel.theirs, 0, time.monotonic_ns() + 10_000_000, -1)
    kernel.serve()
    flushed = giver(kernel).named("flush")
    assert sum(len(call[1]) for call in flushed) == 130  # type: ignore[arg-type]


def test_a_link_is_made_with_its_target(kernel: Kernel) -> None:
    kernel.send(SYMLINK, b"link\0target\0", DIRECTORY)
    kernel.serve()
    (flushed,) = giver(kernel).named("flush")
    ((_, mode, *_, name, data),) = flushed[1]  # type: ignore[misc, attr-defined]
    assert (stat.S_ISLNK(mode), name, data) == (True, b"link", b"target")


def test_a_set_gid_directory_hands_its_group_down(kernel: Kernel) -> None:
    giver(kernel).mode |= stat.S_ISGID
    kernel.server.invalidate_inode(DIRECTORY)
    make(kernel, b"file")
    make_directory(kernel, b"dir")
    kernel.serve()
    (flushed,) = giver(kernel).named("flush")
    file, directory = flushed[1]  # type: ignore[misc]
    assert (file[4], directory[4]) == (9, 9)  # type: ignore[index]
    assert directory[1] & stat.S_ISGID  # type: ignore[index]


def test_what_cannot_be_handed_over_is_told(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush(*_: object) -> None:
        raise OSError(errno.EIO, "no more")

    monkeypatch.setattr(kernel.owner, "flush", flush, raising=False)
    kernel.mount_anew()
    for number in range(4):
        make(kernel, b"file%d" % number)
    kernel.serve()
    assert ("failed", "[Errno 5] no more") in kernel.owner.calls
    assert ("fail",) in kernel.owner.calls


def test_a_directory_without_a_name_is_left_to_the_store(kernel: Kernel) -> None:
    giver(kernel).nlink = 0
    kernel.server.invalidate_inode(DIRECTORY)
    kernel.send(GETATTR, bytes(16), DIRECTORY)
    set_attributes(kernel, DIRECTORY, MODE, mode=0o700)
    kernel.serve()
    assert giver(kernel).named("flush") == []
    assert len(giver(kernel).named("setattr")) == 1


def test_a_name_that_is_too_long_is_in_no_pending_directory(kernel: Kernel) -> None:
    make_directory(kernel, b"dir")
    kernel.send(LOOKUP, b"n" * 256 + b"\0", FIRST)
    kernel.serve()
    assert [kernel.error(), kernel.error()] == [0, errno.ENAMETOOLONG]


def test_a_run_ends_where_files_do(kernel: Kernel) -> None:
    for offset in (300, 200, 99):
        write(kernel, 77, FILE_SIZE_MAX - offset, b"x" * 100)
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls] == [
        "write",
        "lease",
        "write_acknowledged",
        "write",
    ]


def rename(kernel: Kernel, old: bytes, new: bytes, directory: int = DIRECTORY) -> None:
    kernel.send(RENAME, struct.pack("=Q", directory) + old + b"\0" + new + b"\0", DIRECTORY)


def test_a_file_is_moved_into_place(kernel: Kernel) -> None:
    make_directory(kernel, b"dir")
    make(kernel, b"file.tmp")
    write(kernel, FIRST + 1, 0, b"content")
    rename(kernel, b"file.tmp", b"file", FIRST)
    kernel.send(LOOKUP, b"file\0", FIRST)
    kernel.serve()
    assert [kernel.error() for _ in range(4)] == [0] * 4
    (node,) = struct.unpack_from("=Q", kernel.answer()[1])
    assert node == FIRST + 1
    (flushed,) = giver(kernel).named("flush")
    assert flushed[1][1][-3:] == (FIRST, b"file", b"content")  # type: ignore[index]
    assert giver(kernel).named("rename") == []


@pytest.mark.parametrize("old, new", [(b"file", b"other"), (b"dir", b"moved"), (b"old", b"new")])
def test_over_others_directories_and_what_is_old_are_moved_by_the_store(
    kernel: Kernel, old: bytes, new: bytes
) -> None:
    make_directory(kernel, b"dir")
    make(kernel, b"file")
    make(kernel, b"other")
    rename(kernel, old, new)
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls][-2:] == ["flush", "rename"]


def link(kernel: Kernel, node: int, directory: int, name: bytes, pid: int = 42) -> None:
    kernel.send(LINK, struct.pack("=Q", node) + name + b"\0", directory, pid)


def change_time(entry: bytes) -> int:
    """In nanoseconds, of what an answer that names something tells of it."""
    attributes = entry[40:]
    (seconds,), (rest,) = (
        struct.unpack_from("=Q", attributes, 40),
        struct.unpack_from("=I", attributes, 56),
    )
    return int(seconds * 10**9 + rest)


def test_a_file_is_linked_into_place(kernel: Kernel) -> None:
    make(kernel, b"temporary")
    write(kernel, FIRST, 0, b"content")
    link(kernel, FIRST, 60, b"name")
    kernel.send(GETATTR, bytes(16), FIRST)
    kernel.send(GETATTR, bytes(16), DIRECTORY)
    kernel.send(UNLINK, b"temporary\0", DIRECTORY)
    kernel.send(LOOKUP, b"name\0", 60)
    kernel.send(LOOKUP, b"temporary\0", DIRECTORY)
    kernel.serve()
    assert [kernel.error() for _ in range(2)] == [0, 0]
    (node,) = struct.unpack_from("=Q", kernel.answer()[1])
    assert node == FIRST
    assert struct.unpack_from("=I", kernel.answer()[1], 16 + 64)[0] == 2
    assert kernel.error() == kernel.error() == 0
    assert struct.unpack_from("=Q", kernel.answer()[1])[0] == FIRST
    (flushed,) = giver(kernel).named("flush")
    ((_, _, nlink, *_, parent, name, data),) = flushed[1]  # type: ignore[misc, attr-defined]
    assert (nlink, parent, name, data) == (1, 60, b"name", b"content")
    assert sorted(directory[0] for directory in flushed[2]) == [DIRECTORY, 60]  # type: ignore[attr-defined]
    assert giver(kernel).named("link_flushed") == giver(kernel).named("unlink") == []


@pytest.mark.parametrize(
    ("opcode", "body", "node"),
    [
        pytest.param(LOOKUP, b"name\0", 60, id="the second name is looked for"),
        pytest.param(LOOKUP, b"first\0", DIRECTORY, id="the first name is"),
        pytest.param(UNLINK, b"name\0", 60, id="the second name goes"),
        pytest.param(UNLINK, b"first\0", 60, id="one of that name elsewhere goes"),
        pytest.param(FSYNC, bytes(16), FIRST, id="a sync"),
    ],
)
def test_a_file_with_two_names_is_in_the_store_before_anything_else(
    kernel: Kernel, opcode: int, body: bytes, node: int
) -> None:
    make(kernel, b"first")
    link(kernel, FIRST, 60, b"name")
    kernel.send(opcode, body, node)
    kernel.serve()
    assert kernel.error() == 0
    error, linked = kernel.answer()
    assert error == 0
    told = [call for call in giver(kernel).calls if call[0] not in ("lookup", "lease")]
    assert [call[0] for call in told][:2] == ["flush", "link_flushed"]
    ((_, _, nlink, *_, parent, name, _),) = told[0][1]  # type: ignore[misc, attr-defined]
    assert (nlink, parent, name) == (1, DIRECTORY, b"first")
    assert told[1] == ("link_flushed", FIRST, 60, b"name", 42, change_time(linked))


def test_two_names_are_handed_over_at_the_end_of_a_turn(kernel: Kernel) -> None:
    make(kernel, b"first")
    link(kernel, FIRST, DIRECTORY, b"second")
    kernel.serve()
    assert [call[0] for call in giver(kernel).calls][-2:] == ["flush", "link_flushed"]


def test_a_second_name_that_cannot_be_given_is_told(kernel: Kernel) -> None:
    make(kernel, b"first")
    giver(kernel).refusing_links = True
    link(kernel, FIRST, DIRECTORY, b"second")
    kernel.serve()
    assert giver(kernel).named("fail") == [("fail",)]


def test_a_turn_does_not_end_before_a_file_is_moved_into_place(kernel: Kernel) -> None:
    """Where files are: the process looks for the new name first, which is no next file."""
    assert any(_is_moved_in_a_turn_that_is_over(kernel) for _ in range(20))


def _is_moved_in_a_turn_that_is_over(kernel: Kernel) -> bool:
    """Whether a file whose new name is looked for when the turn is over is handed over under it."""
    for number in range(2):
        make(kernel, b"temporary%d" % number)
        rename(kernel, b"temporary%d" % number, b"name%d" % number)
    kernel.serve()
    giver(kernel).calls.clear()
    make(kernel, b"temporary")
    kernel.send(LOOKUP, b"name\0", DIRECTORY)
    rename(kernel, b"temporary", b"name")
    giver(kernel).turn_ns = time.monotonic_ns() + 200_000
    kernel.server.serve(kernel.theirs, 0, giver(kernel).turn_ns, -1)
    flushed = [arrival[-2] for flushed in giver(kernel).named("flush") for arrival in flushed[1]]  # type: ignore[attr-defined]
    giver(kernel).turn_ns = 0
    kernel.serve()
    for _ in range(7):
        kernel.answer()
    return flushed == [b"name"]


def look_up(kernel: Kernel, name: bytes, node: int) -> int:
    """The node of that name, 0 if it is absent."""
    kernel.send(LOOKUP, name + b"\0", node)
    kernel.serve()
    error, entry = kernel.answer()
    assert error == 0
    (found,) = struct.unpack_from("=Q", entry)
    assert isinstance(found, int)
    return found


def new_directory(kernel: Kernel) -> None:
    """One that is in the store, and with it a file of its own."""
    make_directory(kernel, b"dir")
    make(kernel, b"there", FIRST)
    kernel.serve()
    assert kernel.error() == kernel.error() == 0
    assert len(giver(kernel).named("flush")) == 1
    giver(kernel).calls.clear()


def test_what_is_absent_in_a_new_directory_is_known_in_later_turns(kernel: Kernel) -> None:
    new_directory(kernel)
    assert look_up(kernel, b"absent", FIRST) == 0
    assert giver(kernel).named("lookup") == []
    assert look_up(kernel, b"there", FIRST) == 0
    assert look_up(kernel, b"absent", DIRECTORY) == 0
    # Of these it is not known, so the store is asked; this one finds nothing.
    assert [call[1:] for call in giver(kernel).named("lookup")] == [
        (FIRST, b"there"),
        (DIRECTORY, b"absent"),
    ]


def test_a_name_that_came_another_way_is_looked_for(kernel: Kernel) -> None:
    new_directory(kernel)
    giver(kernel).refusing = True
    make(kernel, b"made", FIRST, pid=43)
    make_directory(kernel, b"directory", FIRST)
    kernel.send(SYMLINK, b"symlink\0target\0", FIRST)
    link(kernel, 77, FIRST, b"link")
    kernel.send(RENAME, struct.pack("=Q", FIRST) + b"old\0moved\0", DIRECTORY)
    kernel.send(RENAME2, struct.pack("=QQ", FIRST, 0) + b"old\0moved too\0", DIRECTORY)
    kernel.serve()
    for _ in range(6):
        kernel.answer()
    giver(kernel).calls.clear()
    names = [b"made", b"directory", b"symlink", b"link", b"moved", b"moved too"]
    for name in names:
        look_up(kernel, name, FIRST)
    assert [call[2] for call in giver(kernel).named("lookup")] == names
    look_up(kernel, b"old", FIRST)
    assert len(giver(kernel).named("lookup")) == len(names)


def test_a_name_that_is_pending_or_was_is_looked_up(kernel: Kernel) -> None:
    new_directory(kernel)
    make(kernel, b"file", FIRST)
    make(kernel, b"temporary", FIRST)
    kernel.send(RENAME, struct.pack("=Q", FIRST) + b"temporary\0name\0", FIRST)
    kernel.serve()
    assert [kernel.error() for _ in range(3)] == [0] * 3
    for name in (b"file", b"temporary", b"name"):
        look_up(kernel, name, FIRST)
    assert len(giver(kernel).named("lookup")) == 3


def test_nothing_is_known_to_be_absent_where_others_changed_something(kernel: Kernel) -> None:
    new_directory(kernel)
    giver(kernel).now += 1
    look_up(kernel, b"absent", FIRST)
    assert giver(kernel).named("lookup") == [("lookup", FIRST, b"absent")]
    # From then on nothing is, until the next directory is made.
    look_up(kernel, b"another", FIRST)
    assert len(giver(kernel).named("lookup")) == 2


def test_with_too_many_names_nothing_is_known_to_be_absent(kernel: Kernel) -> None:
    new_directory(kernel)
    giver(kernel).refusing = True
    for number in range(33_000):
        make(kernel, b"name%d" % number, FIRST)
        while kernel.is_silent():  # a turn may end before the request was seen
            kernel.serve()
    giver(kernel).calls.clear()
    look_up(kernel, b"absent", FIRST)
    look_up(kernel, b"name7", FIRST)
    assert len(giver(kernel).named("lookup")) == 2
