"""fallocate(2), SEEK_HOLE and copy_file_range(2), as programs use them."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.errnos import fails
from tests.support.mounting import Workspace, succeed
from tests.support.peer import peer
from tests.support.syscalls import (
    FALLOC_FL_COLLAPSE_RANGE,
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_ZERO_RANGE,
    fallocate,
)
from tests.support.trees import facts

BLOCK = 65_536
SIZE = 300_000


@pytest.fixture
def data() -> bytes:
    return random.Random(3).randbytes(SIZE)


@pytest.fixture
def file(mount: Path, data: bytes) -> Path:
    (mount / "file").write_bytes(data)
    return mount / "file"


def room(path: Path) -> int:
    return path.stat().st_blocks * 512


def ranges_of(path: Path) -> list[tuple[int, int]]:
    """From where to where a file has data."""
    found, at = [], 0
    with open(path, "rb") as opened:
        while True:
            try:
                start = os.lseek(opened.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                assert error.errno == errno.ENXIO
                return found
            at = os.lseek(opened.fileno(), start, os.SEEK_HOLE)
            found.append((start, at))


# --- holes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [True, False])
def test_a_punched_hole_is_zeros(file: Path, data: bytes, cached: bool) -> None:
    os.utime(file, ns=(0, 0))
    with open(file, "r+b", buffering=0) as opened:
        assert opened.read() == data
        if not cached:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = os.fstat(opened.fileno())
        mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        fallocate(opened.fileno(), mode, 1_000, 2 * BLOCK)
        after = os.fstat(opened.fileno())
        expected = data[:1_000] + bytes(2 * BLOCK) + data[1_000 + 2 * BLOCK :]
        assert os.pread(opened.fileno(), SIZE, 0) == expected
    assert after.st_size == before.st_size
    assert after.st_blocks < before.st_blocks
    assert after.st_mtime_ns > before.st_mtime_ns


def test_a_mapping_sees_the_hole(file: Path) -> None:
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[:5] = b"dirty"
        mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        fallocate(opened.fileno(), mode, 2, BLOCK)
        assert mapped[:10] == b"di" + bytes(8)
    assert file.read_bytes()[:10] == b"di" + bytes(8)


def test_zeroing_a_range_may_make_a_file_longer(file: Path, data: bytes) -> None:
    with open(file, "r+b") as opened:
        fallocate(opened.fileno(), FALLOC_FL_ZERO_RANGE, SIZE - 10, 30)
    assert file.read_bytes() == data[:-10] + bytes(30)


def test_what_is_not_offered_is_refused(file: Path, data: bytes) -> None:
    with open(file, "r+b") as opened, fails(errno.EOPNOTSUPP):
        fallocate(opened.fileno(), FALLOC_FL_COLLAPSE_RANGE, 0, BLOCK)
    assert file.read_bytes() == data


@pytest.mark.needs_program("fallocate")
def test_the_program_makes_a_file_of_a_size(mount: Path) -> None:
    subprocess.run(["fallocate", "-l", "1G", mount / "big"], check=True)
    assert (mount / "big").stat().st_size == 1 << 30
    (mount / "big").unlink()
    done = subprocess.run(
        ["fallocate", "-l", "7E", mount / "huge"], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert (mount / "huge").stat().st_size == 0


@pytest.mark.needs_program("fallocate")
def test_the_program_digs_holes(mount: Path) -> None:
    (mount / "file").write_bytes(b"x" * BLOCK + bytes(4 * BLOCK) + b"y" * BLOCK)
    subprocess.run(["fallocate", "--dig-holes", mount / "file"], check=True)
    assert (mount / "file").read_bytes() == b"x" * BLOCK + bytes(4 * BLOCK) + b"y" * BLOCK
    assert room(mount / "file") == 2 * BLOCK


def test_in_the_live_tree_all_is_data(mount: Path) -> None:
    """The kernel may have more in a hole than it has handed over (below)."""
    with open(mount / "file", "wb", buffering=0) as opened:
        os.pwrite(opened.fileno(), b"x", 3 * BLOCK)
        os.ftruncate(opened.fileno(), 1 << 34)
    assert ranges_of(mount / "file") == [(0, 1 << 34)]


def test_what_is_written_through_a_map_is_no_hole(mount: Path, elsewhere: Path) -> None:
    """By somebody who has nothing of the file open: a close would hand it over."""
    with peer() as copier, open(mount / "file", "w+b") as opened:
        os.ftruncate(opened.fileno(), 1 << 20)
        with mmap.mmap(opened.fileno(), 0) as mapped:
            for number, target in enumerate((mount / "copy", elsewhere / "copy")):
                start = 300_000 + number * BLOCK
                mapped[start : start + 5] = b"hello"
                copier(subprocess.run, ["cp", mount / "file", target], check=True)
                assert target.read_bytes()[start : start + 5] == b"hello"


@pytest.mark.needs_mount
def test_holes_of_a_checkpoint_are_found(own_mount: Workspace, elsewhere: Path) -> None:
    """What leaves a checkpoint, or comes out of one, is as small as what is in it."""
    with open(own_mount.path / "sparse", "wb", buffering=0) as opened:
        os.pwrite(opened.fileno(), b"x", 3 * BLOCK)
        os.pwrite(opened.fileno(), b"data", 1 << 30)
    succeed(own_mount.cli("save", "one", "-w", own_mount.path))
    saved = own_mount.path / ".checkpoints" / "latest"
    assert ranges_of(saved / "sparse") == [
        (3 * BLOCK, 3 * BLOCK + 1),
        (1 << 30, (1 << 30) + 4),
    ]
    subprocess.run(["cp", saved / "sparse", elsewhere / "out"], check=True)
    subprocess.run(["cp", saved / "sparse", own_mount.path / "in"], check=True)
    subprocess.run(["cp", own_mount.path / "sparse", own_mount.path / "beside"], check=True)
    subprocess.run(["tar", "-Scf", elsewhere / "tar", "sparse"], cwd=saved, check=True)
    with tarfile.open(elsewhere / "tar") as archive:
        assert archive.getmember("sparse").size == (1 << 30) + 4
    assert os.stat(elsewhere / "tar").st_size < 1 << 20
    for path in (elsewhere / "out", own_mount.path / "in", own_mount.path / "beside"):
        assert path.stat().st_size == (1 << 30) + 4
        assert room(path) < 1 << 20
        with open(path, "rb") as opened:
            assert os.pread(opened.fileno(), 10, (1 << 30) - 4) == bytes(4) + b"data"


@pytest.mark.needs_mount
@pytest.mark.needs_program("fallocate")
@pytest.mark.parametrize("option", ["--punch-hole", "--zero-range"])
def test_what_another_command_takes_away_is_saved_before(
    make_workspace: Callable[..., Workspace], data: bytes, option: str
) -> None:
    work = make_workspace()
    (work.path / "file").write_bytes(data)
    subprocess.run(
        ["fallocate", option, "-o", "0", "-l", str(SIZE), work.path / "file"],
        check=True,
        start_new_session=True,
    )
    assert (work.path / "file").read_bytes() == bytes(SIZE)
    found = json.loads(succeed(work.cli("list", "--moments", "--json", "-w", work.path)).stdout)
    newest = str(found["checkpoints"][0]["id"])
    assert (work.path / ".checkpoints" / newest / "file").read_bytes() == data


# --- copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1_920, 5_000, BLOCK, BLOCK + 1, SIZE])
def test_cp_copies_a_file_exactly(mount: Path, data: bytes, size: int) -> None:
    (mount / "file").write_bytes(data[:size])
    subprocess.run(["cp", mount / "file", mount / "copy"], check=True)
    with open(mount / "copy", "r+b") as copy:
        assert copy.read() == data[:size]
        copy.write(b"more")
    assert (mount / "file").read_bytes() == data[:size]
    assert (mount / "copy").read_bytes() == data[:size] + b"more"


def test_cp_a_copies_a_tree_with_its_modes(mount: Path, data: bytes) -> None:
    for number in range(200):
        place = mount / "tree" / str(number % 9)
        place.mkdir(parents=True, exist_ok=True)
        (place / str(number)).write_bytes(data[number : number * number * 7])
        os.chmod(place / str(number), 0o600 + number % 64)
    for target in ("copy", "again"):
        subprocess.run(["cp", "-a", mount / "tree", mount / target], check=True)
        assert facts(mount / target) == facts(mount / "tree")


def test_parts_go_anywhere(file: Path, data: bytes, mount: Path) -> None:
    expected = bytearray(b"old" * 100_000)
    (mount / "other").write_bytes(expected)
    with open(file, "rb") as source, open(mount / "other", "r+b") as target:
        for offset, place, size in (
            (0, 0, 10),
            (BLOCK, 2 * BLOCK, BLOCK),
            (7, 5, BLOCK),
            (SIZE - 5, 100, 500),
            (0, 4 * BLOCK, BLOCK),
        ):
            piece = data[offset : offset + size]
            done = os.copy_file_range(source.fileno(), target.fileno(), size, offset, place)
            assert done == len(piece)
            expected[place : place + len(piece)] = piece
            assert os.pread(target.fileno(), 1 << 20, 0) == expected
    assert file.read_bytes() == data


def test_a_copy_of_bytes_that_only_a_mapping_has(file: Path, mount: Path) -> None:
    with open(file, "r+b") as source, mmap.mmap(source.fileno(), 0) as mapped:
        mapped[:5] = b"dirty"
        with open(mount / "copy", "wb") as target:
            assert os.copy_file_range(source.fileno(), target.fileno(), 100) == 100
    assert (mount / "copy").read_bytes()[:5] == b"dirty"


def test_a_copy_of_what_was_made_a_moment_ago(mount: Path) -> None:
    for number in range(50):
        with open(mount / f"{number}", "wb", buffering=0) as one:
            one.write(b"%d" % number * number)
            with open(mount / f"copy{number}", "wb") as other, open(mount / f"{number}", "rb") as a:
                assert os.copy_file_range(a.fileno(), other.fileno(), 1_000) == len(
                    b"%d" % number * number
                )
    for number in range(50):
        assert (mount / f"copy{number}").read_bytes() == b"%d" % number * number


@pytest.mark.parametrize("size", [10, 5_000, BLOCK])
@pytest.mark.parametrize("then", ["read", "write", "copy", "cut", "move", "nothing"])
def test_a_copy_is_used_at_once(mount: Path, data: bytes, size: int, then: str) -> None:
    """The bytes of a small copy are nowhere but in the store, where its name is not yet."""
    for number in range(20):
        (mount / f"{number}").write_bytes(data[number : number + size])
    (mount / "settled").mkdir()
    os.listdir(mount)
    for number in range(20):
        expected, copy = data[number : number + size], mount / f"copy{number}"
        with open(mount / f"{number}", "rb") as source, open(copy, "w+b", buffering=0) as target:
            done = os.copy_file_range(source.fileno(), target.fileno(), size)
            assert done == size
            if then == "read":
                assert os.pread(target.fileno(), size + 1, 0) == expected
            elif then == "write":
                os.pwrite(target.fileno(), b"new", 2)
                expected = expected[:2] + b"new" + expected[5:]
            elif then == "copy":
                with open(mount / f"again{number}", "w+b") as again:
                    assert os.copy_file_range(target.fileno(), again.fileno(), size, 0) == size
                    assert os.pread(again.fileno(), size + 1, 0) == expected
            elif then == "cut":
                os.ftruncate(target.fileno(), 7)
                expected = expected[:7]
            elif then == "move":
                os.rename(copy, mount / "settled" / copy.name)
                copy = mount / "settled" / copy.name
            assert os.fstat(target.fileno()).st_size == len(expected)
        assert copy.read_bytes() == expected


@pytest.mark.needs_root
def test_a_copy_takes_set_id_bits_of_who_may_not_keep_them(open_mount: Path) -> None:
    (open_mount / "source").write_bytes(b"new")
    target = open_mount / "target"
    target.write_bytes(b"old")
    os.chmod(target, 0o6777)
    os.chmod(open_mount, 0o777)
    program = (
        "import os, sys; os.setgid(1000); os.setuid(1000);"
        "a = os.open(sys.argv[1], os.O_RDONLY); b = os.open(sys.argv[2], os.O_WRONLY);"
        "os.copy_file_range(a, b, 3)"
    )
    subprocess.run(
        [shutil.which("python3") or "python3", "-c", program, open_mount / "source", target],
        check=True,
    )
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o777


@pytest.mark.needs_mount
def test_a_copy_out_of_a_checkpoint_takes_no_room(own_mount: Workspace, data: bytes) -> None:
    (own_mount.path / "file").write_bytes(data * 30)
    succeed(own_mount.cli("save", "one", "-w", own_mount.path))
    (own_mount.path / "file").write_bytes(b"wrecked")
    saved = own_mount.path / ".checkpoints" / "latest" / "file"
    before = own_mount.status()["store_bytes"]
    subprocess.run(["cp", saved, own_mount.path / "back"], check=True)
    assert (own_mount.path / "back").read_bytes() == data * 30
    assert own_mount.status()["store_bytes"] - before < len(data) * 3
    with open(own_mount.path / "back", "rb") as source, open(saved, "r+b") as target:
        with fails(errno.EROFS):
            os.copy_file_range(source.fileno(), target.fileno(), 10)
        with fails(errno.EROFS):
            fallocate(target.fileno(), 0, 0, 10)


@pytest.mark.needs_mount
def test_copies_and_holes_survive_a_kill(own_mount: Workspace, data: bytes) -> None:
    (own_mount.path / "file").write_bytes(data)
    subprocess.run(["cp", own_mount.path / "file", own_mount.path / "copy"], check=True)
    with open(own_mount.path / "copy", "r+b") as copy:
        mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        fallocate(copy.fileno(), mode, 10, BLOCK)
        os.fsync(copy.fileno())
    own_mount.kill()
    own_mount.mount()
    assert (own_mount.path / "file").read_bytes() == data
    assert (own_mount.path / "copy").read_bytes() == data[:10] + bytes(BLOCK) + data[10 + BLOCK :]


@pytest.mark.needs_mount
def test_without_the_server_programs_fall_back(
    make_workspace: Callable[..., Workspace], monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setenv("CKPTFS_SERVER", "off")
    path = make_workspace().path
    (path / "file").write_bytes(data)
    subprocess.run(["cp", path / "file", path / "copy"], check=True)
    assert (path / "copy").read_bytes() == data
    with open(path / "file", "r+b") as opened, fails(errno.EOPNOTSUPP):
        fallocate(opened.fileno(), 0, 0, 2 * SIZE)
    assert ranges_of(path / "file") == [(0, SIZE)]
