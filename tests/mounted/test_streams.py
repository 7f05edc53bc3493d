"""Large files, written and read in large pieces: answered early, kept past the page cache."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import Workspace, succeed
from tests.support.trees import fsync
from tests.support.waiting import wait_until

MIB = 1 << 20


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def stream(path: Path, data: bytes, piece: int = MIB, flags: int = 0) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        for start in range(0, len(data), piece):
            part = data[start : start + piece]
            assert os.write(fd, part) == len(part)
            # Asked for right behind the answer, whoever stores it.
            assert os.fstat(fd).st_size == start + len(part)
    finally:
        os.close(fd)


def forget_pages() -> None:
    """What is read next comes from the daemon."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")


@pytest.mark.parametrize("piece", [MIB, 3 * 65_536, 256_000, 100_000])
def test_what_was_written_is_read(mount: Path, piece: int) -> None:
    data = noise(20 * MIB + 12_345, piece)
    stream(mount / "large", data, piece)
    assert (mount / "large").read_bytes() == data
    assert (mount / "large").stat().st_blocks * 512 >= len(data)


@pytest.mark.needs_root
def test_what_was_written_is_read_from_the_disk(mount: Path) -> None:
    data = noise(20 * MIB + 12_345)
    stream(mount / "large", data)
    forget_pages()
    assert (mount / "large").read_bytes() == data
    forget_pages()
    rng = random.Random(1)
    with open(mount / "large", "rb", buffering=0) as file:
        for _ in range(60):
            start, size = rng.randrange(len(data)), rng.choice([1, 5000, 300_000])
            assert os.pread(file.fileno(), size, start) == data[start : start + size]


def test_who_reads_while_it_grows_sees_whole_pieces(mount: Path) -> None:
    """The file is as long as what was answered, and all of that is there."""
    data = noise(16 * MIB)
    fd = os.open(mount / "large", os.O_WRONLY | os.O_CREAT, 0o644)
    with open(mount / "large", "rb", buffering=0) as reader:
        for start in range(0, len(data), MIB):
            os.write(fd, data[start : start + MIB])
            size = os.fstat(reader.fileno()).st_size
            assert size == start + MIB
            place = random.Random(start).randrange(size - 1000)
            assert os.pread(reader.fileno(), 1000, place) == data[place : place + 1000]
    os.close(fd)


_APPEND = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for number in range(24):
    os.write(fd, bytes([int(sys.argv[2]), number]) * 65_536)
"""


def test_two_that_append_lose_nothing(mount: Path) -> None:
    (mount / "log").touch()
    words = [sys.executable, "-c", _APPEND, str(mount / "log")]
    writers = [subprocess.Popen([*words, str(who)]) for who in (1, 2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    data = (mount / "log").read_bytes()
    records = [data[start : start + 2] for start in range(0, len(data), 131_072)]
    assert sorted(records) == sorted(bytes([w, n]) for w in (1, 2) for n in range(24))
    assert data == b"".join(record * 65_536 for record in records)


def test_a_stream_over_what_is_there_replaces_it(mount: Path) -> None:
    old, new = noise(12 * MIB, 1), noise(8 * MIB, 2)
    stream(mount / "large", old)
    fd = os.open(mount / "large", os.O_WRONLY)
    for start in range(0, len(new), MIB):
        os.pwrite(fd, new[start : start + MIB], 2 * MIB + start)
    os.close(fd)
    assert (mount / "large").read_bytes() == old[: 2 * MIB] + new + old[10 * MIB :]
    stream(mount / "large", new, flags=os.O_TRUNC)
    assert (mount / "large").read_bytes() == new


def test_a_limit_of_the_process_holds(mount: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * MIB + 4096, 5 * MIB + 4096))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = ["dd", "if=/dev/zero", f"of={mount / 'large'}", "bs=1M", "count=9"]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, check=False)
    assert done.returncode != 0
    assert (mount / "large").read_bytes() == bytes(5 * MIB + 4096)


@pytest.mark.needs_mount
def test_a_checkpoint_in_between_has_what_was_answered(own_mount: Workspace) -> None:
    data = noise(12 * MIB)
    fd = os.open(own_mount.path / "large", os.O_WRONLY | os.O_CREAT, 0o644)
    sizes = []
    for start in range(0, len(data), MIB):
        os.write(fd, data[start : start + MIB])
        if start % (4 * MIB) == 0:
            (own_mount.path / ".checkpoints" / f"at{start}").mkdir()
            sizes.append(start)
    os.close(fd)
    for start in sizes:
        kept = own_mount.path / ".checkpoints" / f"at{start}" / "large"
        assert kept.read_bytes() == data[: start + MIB]
    os.unlink(own_mount.path / "large")
    kept = own_mount.path / ".checkpoints" / f"at{sizes[-1]}" / "large"
    assert kept.read_bytes() == data[: sizes[-1] + MIB]


@pytest.mark.needs_mount
def test_it_is_there_after_a_remount_and_in_the_lower_directory(own_mount: Workspace) -> None:
    data = noise(12 * MIB + 77)
    stream(own_mount.path / "large", data)
    own_mount.umount()
    assert (own_mount.path / "large").read_bytes() == data
    own_mount.mount()
    assert (own_mount.path / "large").read_bytes() == data


@pytest.mark.needs_mount
def test_what_was_synced_survives_a_kill(own_mount: Workspace) -> None:
    data = noise(12 * MIB + 77)
    stream(own_mount.path / "large", data)
    fsync(own_mount.path / "large")
    stream(own_mount.path / "other", noise(9 * MIB, 2))
    own_mount.kill()
    own_mount.mount()
    assert (own_mount.path / "large").read_bytes() == data


@pytest.mark.needs_mount
def test_a_restore_while_it_is_written(own_mount: Workspace) -> None:
    """Whoever has it open goes on with a file of its own; what was restored stays so."""
    path = own_mount.path
    data = noise(6 * MIB)
    stream(path / "large", data)
    succeed(own_mount.cli("save", "-w", path, "before"))
    fd = os.open(path / "large", os.O_WRONLY)
    for number in range(4):
        os.pwrite(fd, noise(MIB, number), (6 + number) * MIB)
    succeed(own_mount.cli("restore", "-w", path, "--force", "latest"))
    assert (path / "large").read_bytes() == data
    for number in range(4, 8):
        try:
            os.pwrite(fd, noise(MIB, number), (6 + number) * MIB)
        except OSError:
            break
    os.close(fd)
    assert (path / "large").read_bytes() == data
    succeed(own_mount.cli("undo", "-w", path))
    wanted = data + b"".join(noise(MIB, number) for number in range(4))
    assert (path / "large").read_bytes()[: len(wanted)] == wanted


@pytest.mark.needs_mount
def test_what_is_deleted_gives_its_room_back(make_workspace: Callable[..., Workspace]) -> None:
    made = make_workspace("--no-write-back", "--auto", "off")
    stream(made.path / "large", noise(30 * MIB))
    fsync(made.path / "large")
    heap = made.store / "heap"
    assert heap.stat().st_blocks * 512 > 29 * MIB
    os.unlink(made.path / "large")
    wait_until(lambda: heap.stat().st_blocks * 512 < 2 * MIB, "its room is free")


@pytest.mark.needs_mount
def test_a_stream_is_whole_without_the_compiled_server(
    make_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTFS_SERVER", "off")
    made = make_workspace("--no-write-back")
    data = noise(12 * MIB + 77)
    stream(made.path / "large", data)
    assert (made.path / "large").read_bytes() == data
    made.remount()
    assert (made.path / "large").read_bytes() == data
