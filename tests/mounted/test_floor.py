"""The benchmark's floor: a file system in memory that is faithful, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.contestants import is_mounted
from bench.fuse_rivals import FUSE_RIVALS, FuseRival
from bench.kit import Kit
from bench.outcome import FLOOR
from tests.mounted.test_copiers import sample
from tests.support.mounting import scratch
from tests.support.programs import run
from tests.support.trees import facts
from tests.support.waiting import wait_for_exit

pytestmark = [
    pytest.mark.needs_mount,
    pytest.mark.needs_root,
    pytest.mark.needs_program("gcc"),
]
SOURCES = Path(__file__).resolve().parents[2] / "bench" / "floor"


@pytest.fixture
def base() -> Iterator[Path]:
    with scratch() as path:
        yield path


@pytest.fixture
def floor(base: Path) -> Iterator[FuseRival]:
    rival = FUSE_RIVALS[FLOOR](Kit(base, False, lambda _message: None), base)
    assert isinstance(rival, FuseRival)
    rival.start()
    yield rival
    rival.stop()


def test_what_is_written_is_there_warm_and_cold(floor: FuseRival, base: Path) -> None:
    expected = facts(sample(base / "sample"))
    run("cp", "-a", base / "sample", "first", cwd=floor.root)
    run("cp", "-a", "first", "copy", cwd=floor.root)
    assert facts(floor.root / "first") == expected
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    assert facts(floor.root / "copy") == expected


def test_a_large_directory_is_listed_whole_while_it_shrinks(floor: FuseRival) -> None:
    names = {f"{number:05}-{'x' * 100}" for number in range(20_000)}
    for name in names:
        (floor.root / name).touch()
    assert set(os.listdir(floor.root)) == names
    listed = []
    with os.scandir(floor.root) as entries:
        for entry in entries:
            listed.append(entry.name)
            os.unlink(entry.path)
    assert len(listed) == len(names)
    assert os.listdir(floor.root) == []


def test_what_is_deleted_while_in_use_is_there_until_it_is_closed(floor: FuseRival) -> None:
    path = floor.root / "used"
    with path.open("w+b") as file:
        path.unlink()
        file.write(b"nameless")
        file.seek(0)
        assert file.read() == b"nameless"
        assert os.fstat(file.fileno()).st_nlink == 0


def test_bytes_cut_off_do_not_come_back(floor: FuseRival) -> None:
    path = floor.root / "cut"
    path.write_bytes(b"x" * 10_000)
    os.truncate(path, 5_000)
    os.truncate(path, 9_000)
    assert path.read_bytes() == b"x" * 5_000 + bytes(4_000)


def test_it_leaves_no_mount_and_no_process(floor: FuseRival) -> None:
    root, pid = floor.root, floor.pid
    assert pid is not None
    assert is_mounted(root)
    floor.stop()
    assert not is_mounted(root)
    assert not Path(f"/proc/{pid}").exists()
    assert not root.exists()


def test_killed_it_leaves_a_mount_that_is_removed(floor: FuseRival) -> None:
    root, pid = floor.root, floor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for_exit(pid)
    assert not floor.is_healthy()
    floor.stop()
    assert not is_mounted(root)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_by_hand_it_unmounts(floor: FuseRival, number: signal.Signals) -> None:
    root, pid = floor.root, floor.pid
    assert pid is not None
    in_use = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.kill(pid, number)
        wait_for_exit(pid)
        assert not is_mounted(root)
    finally:
        os.close(in_use)


def test_it_compiles_without_a_warning(base: Path) -> None:
    sources = [SOURCES / "device.c", SOURCES / "memory.c"]
    run("gcc", "-O2", "-Wall", "-Wextra", "-Werror", *sources, "-o", "floor", cwd=base)
