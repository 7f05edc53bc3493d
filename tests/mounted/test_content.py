"""What is written is what is read: offsets, holes, truncation, open flags, large files."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.mounting import Workspace
from tests.support.trees import fsync, plant

#: Sizes around the edges of pages, blocks and what may be stored inline.
EDGES = [0, 1, 511, 2047, 2048, 4095, 4096, 4097, 65535, 65536, 65537, 131071, 131072, 1_000_000]


@pytest.mark.parametrize("size", EDGES)
def test_a_file_of_any_size_reads_back(mount: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    (mount / "file").write_bytes(data)
    assert (mount / "file").stat().st_size == size
    assert (mount / "file").read_bytes() == data


@pytest.mark.parametrize("size", EDGES)
def test_grow_and_shrink_around(mount: Path, size: int) -> None:
    (mount / "file").write_bytes(b"a" * size)
    os.truncate(mount / "file", size + 5)
    assert (mount / "file").read_bytes() == b"a" * size + bytes(5)
    os.truncate(mount / "file", size // 2)
    assert (mount / "file").read_bytes() == b"a" * (size // 2)
    os.truncate(mount / "file", size + 70_000)
    assert (mount / "file").read_bytes() == b"a" * (size // 2) + bytes(size + 70_000 - size // 2)


def test_writes_here_and_there_are_what_is_read(own_mount: Workspace) -> None:
    """Of two files in turn, with looks, cuts and syncs in between, and after a remount."""
    rng = random.Random(4)
    paths = [own_mount.path / name for name in ("one", "two")]
    contents = [bytearray(rng.randbytes(400_000)), bytearray()]
    paths[0].write_bytes(contents[0])
    files = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for path in paths]
    for step in range(4_000):
        which = step % 2
        file, content = files[which], contents[which]
        data = rng.randbytes(rng.choice([3, 100, 4096, 4096, 4096, 20_000]))
        offset = rng.choice([len(content), rng.randrange(100) * 4096, rng.randrange(400_000)])
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data
        assert os.pwrite(file, data, offset) == len(data)
        if step % 97 == 0:
            assert os.fstat(file).st_size == len(content)
        if step % 211 == 0:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file, len(content), 0) == content
        if step % 307 == 0:
            os.fsync(file)
        if step % 401 == 0:
            del content[300_000:]
            os.ftruncate(file, len(content))
    for file in files:
        os.close(file)
    own_mount.remount()
    assert [path.read_bytes() for path in paths] == contents


def test_a_cut_tail_never_comes_back(mount: Path) -> None:
    with open(mount / "file", "w+b", buffering=0) as file:
        file.write(b"secret" * 20_000)
        file.truncate(3)
        os.pwrite(file.fileno(), b"end", 100_000)
        assert os.pread(file.fileno(), 200_000, 0) == b"sec" + bytes(99_997) + b"end"


def test_reads_around_the_end_are_cut_there(mount: Path) -> None:
    plant(mount, {"file": "0123456789"})
    fd = os.open(mount / "file", os.O_RDONLY)
    try:
        assert os.pread(fd, 100, 8) == b"89"
        assert os.pread(fd, 100, 10) == b""
        assert os.pread(fd, 100, 10**15) == b""
        assert os.pread(fd, 0, 0) == b""
    finally:
        os.close(fd)


def test_open_creates_truncates_and_refuses_as_its_flags_say(mount: Path) -> None:
    plant(mount, {"file": "content" * 30_000, "dir": {}})
    with fails(errno.EEXIST):
        os.open(mount / "file", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    with fails(errno.EEXIST):
        os.open(mount / "dir", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.close(os.open(mount / "file", os.O_CREAT | os.O_WRONLY))
    assert (mount / "file").stat().st_size == 7 * 30_000
    os.close(os.open(mount / "file", os.O_WRONLY | os.O_TRUNC))
    assert (mount / "file").read_bytes() == b""
    assert (mount / "file").stat().st_blocks == 0


def test_a_reader_sees_what_another_descriptor_truncated_and_wrote(mount: Path) -> None:
    plant(mount, {"file": "x" * 100_000})
    with open(mount / "file", "rb", buffering=0) as reader:
        assert len(reader.read(10)) == 10
        (mount / "file").write_bytes(b"y" * 20)
        assert reader.read(100_000) == b"y" * 10


def test_o_excl_does_not_follow_a_dangling_link(mount: Path) -> None:
    os.symlink("nowhere", mount / "link")
    with fails(errno.EEXIST):
        os.open(mount / "link", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert os.listdir(mount) == ["link"]


def test_writes_to_a_descriptor_open_for_reading(mount: Path) -> None:
    plant(mount, {"file": "x"})
    reader = os.open(mount / "file", os.O_RDONLY)
    writer = os.open(mount / "file", os.O_WRONLY)
    try:
        with fails(errno.EBADF):
            os.write(reader, b"y")
        with fails(errno.EINVAL):
            os.ftruncate(reader, 0)
        with fails(errno.EBADF):
            os.read(writer, 1)
        os.write(writer, b"z")
    finally:
        os.close(reader)
        os.close(writer)
    assert (mount / "file").read_text() == "z"


def test_a_mode_without_write_still_lets_the_creator_write(mount: Path) -> None:
    fd = os.open(mount / "file", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o400)
    try:
        os.write(fd, b"x" * 100_000)
    finally:
        os.close(fd)
    assert (mount / "file").read_bytes() == b"x" * 100_000
    assert (mount / "file").stat().st_mode & 0o7777 == 0o400


def test_many_small_writes(mount: Path) -> None:
    """Written a few bytes at a time, read in one piece, and the other way round."""
    data = random.Random(1).randbytes(200_000)
    with open(mount / "file", "wb", buffering=0) as file:
        for start in range(0, len(data), 1_237):
            file.write(data[start : start + 1_237])
    assert (mount / "file").read_bytes() == data
    with open(mount / "file", "rb", buffering=0) as file:
        assert b"".join(iter(lambda: file.read(997), b"")) == data


def test_readv_and_writev_move_all_their_buffers(mount: Path) -> None:
    pieces = [b"one", b"", b"two" * 30_000, b"three"]
    with open(mount / "file", "w+b", buffering=0) as file:
        assert os.writev(file.fileno(), pieces) == sum(map(len, pieces))
        buffers = [bytearray(3), bytearray(90_000), bytearray(99)]
        assert os.preadv(file.fileno(), buffers, 0) == 90_008
        assert bytes(buffers[0]) == b"one" and bytes(buffers[2][:5]) == b"three"
        os.pwritev(file.fileno(), [b"T", b"W"], 3)
        assert os.pread(file.fileno(), 6, 3) == b"TWotwo"


# --- holes -----------------------------------------------------------------------------------


def test_a_hole_takes_no_room_and_reads_as_zeros(mount: Path) -> None:
    with open(mount / "file", "w+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"end", 50_000_000)
        os.fsync(file.fileno())
        assert os.pread(file.fileno(), 100, 25_000_000) == bytes(100)
        assert os.pread(file.fileno(), 10, 49_999_996) == bytes(4) + b"end"
    info = (mount / "file").stat()
    assert info.st_size == 50_000_003
    assert info.st_blocks * 512 <= 1_000_000


def test_a_file_extended_by_truncate_is_one_hole(mount: Path) -> None:
    (mount / "file").touch()
    os.truncate(mount / "file", 10**9)
    info = (mount / "file").stat()
    assert (info.st_size, info.st_blocks) == (10**9, 0)
    with open(mount / "file", "rb") as file:
        file.seek(10**9 - 10)
        assert file.read() == bytes(10)


def test_a_write_into_a_hole_leaves_zeros_around_it(mount: Path) -> None:
    expected = bytearray(1_000_000)
    with open(mount / "file", "w+b", buffering=0) as file:
        file.truncate(len(expected))
        for offset in (0, 65_530, 131_072, 500_000, 999_990):
            os.pwrite(file.fileno(), b"0123456789", offset)
            expected[offset : offset + 10] = b"0123456789"
    assert (mount / "file").read_bytes() == expected


def test_truncating_frees_room(mount: Path) -> None:
    (mount / "file").write_bytes(os.urandom(1 << 20))
    fsync(mount / "file")
    full = (mount / "file").stat().st_blocks
    os.truncate(mount / "file", 1 << 19)
    half = (mount / "file").stat().st_blocks
    os.truncate(mount / "file", 0)
    assert abs(full - 2048) <= 256 and abs(half - 1024) <= 256
    assert (mount / "file").stat().st_blocks == 0


def test_seek_data_and_seek_hole_find_the_ends_of_holes(mount: Path) -> None:
    """A file system may say that all is data, but not that data is a hole."""
    with open(mount / "file", "w+b", buffering=0) as file:
        fd = file.fileno()
        os.pwrite(fd, b"data", 1_000_000)
        size = 1_000_004
        data = os.lseek(fd, 0, os.SEEK_DATA)
        assert 0 <= data <= 1_000_000
        hole = os.lseek(fd, 1_000_000, os.SEEK_HOLE)
        assert hole >= size
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with fails(errno.ENXIO):
                os.lseek(fd, size, whence)


# --- beyond 4 GiB ----------------------------------------------------------------------------

FAR = [2**31 - 2, 2**31, 2**32 - 2, 2**32 + 3, 2**40 + 5, 2**43]


@pytest.mark.parametrize("offset", FAR)
def test_offsets_beyond_31_and_32_bits_are_exact(mount: Path, offset: int) -> None:
    with open(mount / "file", "w+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"start", 0)
        os.pwrite(file.fileno(), b"far away", offset)
        assert os.fstat(file.fileno()).st_size == offset + 8
        assert os.pread(file.fileno(), 100, offset) == b"far away"
        assert os.pread(file.fileno(), 10, offset - 5) == bytes(5) + b"far a"
        assert os.pread(file.fileno(), 8, 0) == b"start" + bytes(3)
        assert os.lseek(file.fileno(), 0, os.SEEK_END) == offset + 8
        file.truncate(offset + 3)
        assert os.pread(file.fileno(), 100, offset) == b"far"


def test_an_offset_that_is_too_large_is_refused(mount: Path) -> None:
    with open(mount / "file", "w+b", buffering=0) as file:
        with fails(errno.EFBIG, errno.EINVAL):
            os.pwrite(file.fileno(), b"x", 2**63 - 1)
        with fails(errno.EINVAL):
            os.ftruncate(file.fileno(), -1)
        assert os.fstat(file.fileno()).st_size == 0


# --- against a byte array --------------------------------------------------------------------


class Modelled:
    """A file and a bytearray that must always be equal."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.model = bytearray()
        self.random = random.Random(seed)

    def place(self) -> int:
        """An offset, mostly near an edge of a page or a block, where the mistakes are."""
        edge = self.random.choice([0, 4096, 65_536, 131_072, 196_608, len(self.model)])
        return max(0, edge + self.random.randint(-40, 40))

    def step(self) -> None:
        action = self.random.choice([self.write] * 5 + [self.cut, self.read, self.sync])
        action()

    def write(self) -> None:
        offset = self.place()
        data = self.random.randbytes(self.random.choice([1, 7, 80, 4096, 66_000]))
        assert os.pwrite(self.fd, data, offset) == len(data)
        if offset > len(self.model):
            self.model.extend(bytes(offset - len(self.model)))
        self.model[offset : offset + len(data)] = data

    def cut(self) -> None:
        size = self.place()
        os.ftruncate(self.fd, size)
        del self.model[size:]
        self.model.extend(bytes(size - len(self.model)))

    def read(self) -> None:
        offset, size = self.place(), self.random.choice([1, 100, 5000, 150_000])
        assert os.pread(self.fd, size, offset) == self.model[offset : offset + size]

    def sync(self) -> None:
        os.fsync(self.fd)
        assert os.fstat(self.fd).st_size == len(self.model)


@pytest.mark.parametrize("seed", range(6))
def test_random_writes_against_a_byte_array(mount: Path, seed: int) -> None:
    file = Modelled(mount / "file", seed)
    for _ in range(300):
        file.step()
    os.close(file.fd)
    assert file.path.read_bytes() == file.model


def test_random_writes_survive_a_remount(own_mount: Workspace) -> None:
    files = [Modelled(own_mount.path / str(seed), seed) for seed in range(5)]
    for _ in range(2):
        for file in files:
            for _ in range(60):
                file.step()
            os.close(file.fd)
        own_mount.remount()
        for file in files:
            assert file.path.read_bytes() == file.model
            file.fd = os.open(file.path, os.O_RDWR)
    for file in files:
        os.close(file.fd)
