"""mmap in all its forms, and the calls that move data without passing it through the program."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.mounting import Workspace
from tests.support.peer import peer

SIZE = 300_000


@pytest.fixture
def data() -> bytes:
    return random.Random(7).randbytes(SIZE)


@pytest.fixture
def file(mount: Path, data: bytes) -> Path:
    (mount / "file").write_bytes(data)
    return mount / "file"


def test_a_mapping_reads_what_was_written(file: Path, data: bytes) -> None:
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == data


def test_a_write_is_seen_in_a_mapping_that_stands(file: Path, data: bytes) -> None:
    with open(file, "r+b", buffering=0) as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        assert mapped[70_000:70_004] == data[70_000:70_004]
        os.pwrite(opened.fileno(), b"NEWS", 70_000)
        assert mapped[70_000:70_004] == b"NEWS"


def test_a_shared_mapping_writes_the_file(file: Path, data: bytes) -> None:
    expected = bytearray(data)
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        for offset in (0, 4_095, 65_534, 200_000, SIZE - 4):
            mapped[offset : offset + 4] = b"MMAP"
            expected[offset : offset + 4] = b"MMAP"
        assert os.pread(opened.fileno(), SIZE, 0) == expected
        mapped.flush()
    assert file.read_bytes() == expected


def test_a_private_mapping_does_not(file: Path, data: bytes) -> None:
    with (
        open(file, "rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped,
    ):
        mapped[0:4] = b"MINE"
        assert mapped[0:4] == b"MINE"
        assert file.read_bytes() == data


def test_a_mapping_of_a_read_only_descriptor_cannot_be_shared_for_writing(file: Path) -> None:
    with open(file, "rb") as opened, fails(errno.EACCES):
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_WRITE)


def test_a_mapping_of_a_hole_fills_it(mount: Path) -> None:
    with open(mount / "sparse", "w+b") as opened:
        opened.truncate(1_000_000)
        with mmap.mmap(opened.fileno(), 0) as mapped:
            assert mapped[500_000:500_008] == bytes(8)
            mapped[500_000:500_004] = b"FILL"
            mapped.flush()
    content = (mount / "sparse").read_bytes()
    assert content == bytes(500_000) + b"FILL" + bytes(499_996)


def test_the_rest_of_the_last_page_is_not_written(mount: Path) -> None:
    (mount / "file").write_bytes(b"x" * 100)
    with open(mount / "file", "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[99:100] = b"y"
        mapped.flush()
    os.truncate(mount / "file", 4096)
    assert (mount / "file").read_bytes() == b"x" * 99 + b"y" + bytes(3996)


def _map_and_write(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[offset : offset + len(data)] = data


def test_two_processes_share_a_mapping(file: Path) -> None:
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped, peer() as other:
        other(_map_and_write, file, 123_456, b"theirs")
        assert mapped[123_456:123_462] == b"theirs"
        mapped[0:4] = b"ours"
        assert other(file.read_bytes)[:4] == b"ours"


def test_a_mapping_written_and_closed_without_msync_survives_a_remount(
    own_mount: Workspace, data: bytes
) -> None:
    file = own_mount.path / "file"
    file.write_bytes(data)
    _map_and_write(file, 150_000, b"through the mapping")
    own_mount.remount()
    expected = data[:150_000] + b"through the mapping" + data[150_019:]
    assert file.read_bytes() == expected


def test_a_program_runs_from_the_workspace(mount: Path) -> None:
    """exec maps the file."""
    shutil.copy("/bin/ls", mount / "ls")
    done = subprocess.run([mount / "ls", mount], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ls"]


# --- moving data -----------------------------------------------------------------------------


def test_sendfile_copies_out_and_in(file: Path, data: bytes, mount: Path) -> None:
    with open(file, "rb") as source, open(mount / "copy", "wb") as target:
        sent = 0
        while sent < SIZE:
            sent += os.sendfile(target.fileno(), source.fileno(), sent, SIZE - sent)
    assert (mount / "copy").read_bytes() == data


def test_sendfile_sends_to_a_socket(file: Path, data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(file, "rb") as source:
        assert ours.sendfile(source, 100, 10_000) == 10_000
        assert theirs.recv(10_000, socket.MSG_WAITALL) == data[100:10_100]


def test_copy_file_range_copies_any_part(file: Path, data: bytes, mount: Path) -> None:
    with open(file, "rb") as source, open(mount / "copy", "wb") as target:
        done = 0
        while done < SIZE:
            step = os.copy_file_range(source.fileno(), target.fileno(), SIZE - done, done, done)
            assert step > 0
            done += step
    assert (mount / "copy").read_bytes() == data


def test_splice_moves_bytes_through_a_pipe(file: Path, data: bytes, mount: Path) -> None:
    read_end, write_end = os.pipe()
    with open(file, "rb") as source, open(mount / "copy", "wb") as target:
        while step := os.splice(source.fileno(), write_end, 65_536):
            while step:
                step -= os.splice(read_end, target.fileno(), step)
    os.close(read_end)
    os.close(write_end)
    assert (mount / "copy").read_bytes() == data


def test_shutil_copies_in_and_out(file: Path, data: bytes, elsewhere: Path) -> None:
    shutil.copyfile(file, elsewhere / "out")
    assert (elsewhere / "out").read_bytes() == data
    shutil.copyfile(elsewhere / "out", file.parent / "in")
    assert (file.parent / "in").read_bytes() == data


def test_posix_fallocate_makes_room(mount: Path) -> None:
    with open(mount / "file", "w+b", buffering=0) as file:
        file.write(b"kept")
        os.posix_fallocate(file.fileno(), 0, 500_000)
        assert os.fstat(file.fileno()).st_size == 500_000
        assert os.pread(file.fileno(), 600_000, 0) == b"kept" + bytes(499_996)
        os.posix_fallocate(file.fileno(), 0, 1_000)
        assert os.fstat(file.fileno()).st_size == 500_000


def test_o_direct_is_done_or_refused(file: Path, data: bytes) -> None:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        assert error.errno == errno.EINVAL
        return
    with mmap.mmap(-1, 65_536) as aligned:
        assert os.preadv(fd, [aligned], 65_536) == 65_536
        assert aligned[:] == data[65_536:131_072]
    os.close(fd)


def test_fadvise_and_readahead_are_harmless(file: Path, data: bytes) -> None:
    with open(file, "rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        assert opened.read() == data
