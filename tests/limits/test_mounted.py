"""Large and many, on a mount: what works, and what is refused how. The slow ones are `deep`."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.control.client import Client
from tests.support.errnos import fails
from tests.support.mounting import HAVE_FUSE, Workspace, workspace
from tests.support.trees import fsync

pytestmark = [pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"), pytest.mark.timeout(0)]

GIB = 1 << 30
MILLION = 1_000_000


@pytest.fixture(scope="module")
def made() -> Iterator[Workspace]:
    with workspace("--no-write-back") as made:
        yield made


def _memory(made: Workspace) -> int:
    """What the daemon has in memory that is its own, in bytes."""
    for line in Path(f"/proc/{made.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")


def test_a_sparse_file_of_fifty_gigabytes_takes_no_room(made: Workspace) -> None:
    path = made.path / "sparse"
    with open(path, "wb") as file:
        file.truncate(50 * GIB)
        for at in (0, 7 * GIB + 5, 50 * GIB - 4):
            os.pwrite(file.fileno(), b"data", at)
        os.fsync(file.fileno())
    assert path.stat().st_size == 50 * GIB
    assert path.stat().st_blocks * 512 < 1_000_000
    with open(path, "rb") as file:
        assert os.pread(file.fileno(), 14, 7 * GIB) == b"\0" * 5 + b"data" + b"\0" * 5
    with Client(config.Workspace(made.path, made.store)) as client:
        saved = client.call("save", {"message": "x", "allow_empty": True})
        os.truncate(path, 3)
        client.call("restore", {"checkpoint": str(saved["id"])})
    assert path.stat().st_size == 50 * GIB
    path.unlink()


def test_no_file_is_longer_than_can_be_told(made: Workspace) -> None:
    with open(made.path / "long", "wb") as file, fails(errno.EFBIG):
        os.pwrite(file.fileno(), b"x", 2**63 - 2)
    (made.path / "long").unlink()


@pytest.mark.deep
def test_ten_thousand_files_are_open_at_once(made: Workspace) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 400), hard))
    top = made.path / "open"
    top.mkdir()
    files: list[int] = []
    descriptors = len(os.listdir(f"/proc/{made.pid}/fd"))
    try:
        for number in range(count):
            files.append(os.open(top / str(number), os.O_RDWR | os.O_CREAT))
            os.write(files[-1], b"%d" % number)
            os.unlink(top / str(number))
        for number, fd in enumerate(files):
            assert os.pread(fd, 10, 0) == b"%d" % number
        # A handle is a number to the daemon, not a descriptor.
        assert len(os.listdir(f"/proc/{made.pid}/fd")) <= descriptors + 5
    finally:
        for fd in files:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.listdir(top) == []


def test_the_longest_names_as_deep_as_a_path_can_go(made: Workspace) -> None:
    """And deeper, step by step: PATH_MAX is the kernel's limit, not ours."""
    name = "n" * 255
    here = os.open(made.path, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(40):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    fd = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(fd, b"deep")
    os.fsync(fd)
    os.close(fd)
    with fails(errno.ENAMETOOLONG):
        os.mkdir("n" * 256, dir_fd=here)
    os.close(here)
    deepest = "/".join([name] * 15)
    assert (made.path / deepest).is_dir()
    with Client(config.Workspace(made.path, made.store)) as client:
        saved = client.call("save", {"message": "x"})
        found = client.call("diff", {"older": "", "newer": str(saved["id"])})
        assert found["changes"] is not None


@pytest.mark.deep
def test_a_thousand_checkpoints_are_taken_read_and_deleted(made: Workspace) -> None:
    path = made.path / "counter"
    with Client(config.Workspace(made.path, made.store)) as client:
        numbers = []
        for number in range(1_000):
            path.write_bytes(b"%d" % number)
            numbers.append(client.call("save", {"message": str(number)})["id"])
        for number in (0, 499, 999):
            seen = made.path / f".checkpoints/{numbers[number]}/counter"
            assert seen.read_bytes() == b"%d" % number
        assert len(os.listdir(made.path / ".checkpoints")) >= 1_000
        client.call("restore", {"checkpoint": str(numbers[7])})
        assert path.read_bytes() == b"7"
        client.call("delete", {"checkpoints": [str(number) for number in numbers[:500]]})
    assert not (made.path / f".checkpoints/{numbers[3]}").exists()


@pytest.mark.deep
def test_a_directory_has_a_million_entries() -> None:
    """A million files, all in one directory: made, counted, found, saved, removed, restored.

    Three to four minutes on a quiet machine with two CPUs: two for the million creations, at the
    price of a FUSE request each, one for the check of the store at the end."""
    with workspace("--no-write-back") as made:
        made.patience = 900
        top = made.path / "many"
        top.mkdir()
        before = _memory(made)
        for number in range(MILLION):
            os.close(os.open(top / f"entry {number}", os.O_WRONLY | os.O_CREAT))
        fsync(top)
        assert sum(1 for _ in os.scandir(top)) == MILLION
        assert (top / "entry 765432").exists() and not (top / "entry 1000000").exists()
        with Client(config.Workspace(made.path, made.store)) as client:
            saved = client.call("save", {"message": "x"})
            for number in range(0, MILLION, 10):
                os.unlink(top / f"entry {number}")
            assert sum(1 for _ in os.scandir(top)) == MILLION * 9 // 10
            client.call("restore", {"checkpoint": str(saved["id"])})
        assert sum(1 for _ in os.scandir(top)) == MILLION
        assert _memory(made) - before < 500 << 20
