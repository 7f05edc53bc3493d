"""O_APPEND, alone and from several processes at once; and other parallel writers."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.mounting import Workspace
from tests.support.peer import peer

WRITERS = 6
LINES = 150


def test_every_write_goes_to_the_end(mount: Path) -> None:
    (mount / "file").write_text("start ")
    fd = os.open(mount / "file", os.O_RDWR | os.O_APPEND)
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"one ")
        with (mount / "file").open("a") as other:
            other.write("two ")
        os.lseek(fd, 2, os.SEEK_SET)
        os.write(fd, b"three")
        assert os.lseek(fd, 0, os.SEEK_CUR) == len("start one two three")
    finally:
        os.close(fd)
    assert (mount / "file").read_text() == "start one two three"


def test_append_after_a_truncation_begins_at_the_new_end(mount: Path) -> None:
    with open(mount / "log", "ab", buffering=0) as log:
        log.write(b"x" * 100_000)
        os.truncate(mount / "log", 10)
        log.write(b"new")
    assert (mount / "log").read_bytes() == b"x" * 10 + b"new"


def append_lines(path: Path, writer: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(LINES):
        line = f"{writer} {number} ".encode()
        os.write(fd, line + b"." * (number * 7 % 300) + b"\n")
    os.close(fd)


def test_no_line_is_lost_or_torn(mount: Path) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(peer()) for _ in range(WRITERS)]
        for number, writer in enumerate(peers):
            writer.begin(append_lines, mount / "log", number)
        for writer in peers:
            writer.finish(60)
    lines = (mount / "log").read_text().splitlines()
    seen = Counter(tuple(map(int, line.split()[:2])) for line in lines)
    assert seen == Counter((writer, number) for writer in range(WRITERS) for number in range(LINES))


def append_reopening(path: Path, writer: int) -> None:
    for number in range(40):
        with open(path, "a") as file:
            file.write(f"{writer} {number}\n")


def test_no_line_is_lost_when_each_is_an_open_of_its_own(mount: Path) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(peer()) for _ in range(WRITERS)]
        for number, writer in enumerate(peers):
            writer.begin(append_reopening, mount / "log", number)
        for writer in peers:
            writer.finish(60)
    lines = sorted((mount / "log").read_text().splitlines())
    assert lines == sorted(
        f"{writer} {number}" for writer in range(WRITERS) for number in range(40)
    )


def write_slice(path: Path, writer: int) -> None:
    fd = os.open(path, os.O_WRONLY)
    for block in range(writer, 600, WRITERS):
        os.pwrite(fd, bytes([writer + 1]) * 1000, block * 1000)
    os.close(fd)


def test_parallel_writers_of_one_file_lose_nothing(mount: Path) -> None:
    """Slices that share pages and blocks, written at the same time, do not overwrite each other."""
    (mount / "file").touch()
    with ExitStack() as stack:
        peers = [stack.enter_context(peer()) for _ in range(WRITERS)]
        for number, writer in enumerate(peers):
            writer.begin(write_slice, mount / "file", number)
        for writer in peers:
            writer.finish(60)
    expected = b"".join(bytes([block % WRITERS + 1]) * 1000 for block in range(600))
    assert (mount / "file").read_bytes() == expected


def churn(path: Path) -> None:
    """Create, write, rename, read, delete: what a build does, in a directory of its own."""
    path.mkdir()
    for number in range(60):
        name = path / f"f{number}"
        name.write_bytes(bytes([number]) * number * 500)
        name.rename(path / f"g{number}")
        if number % 3 == 0:
            (path / f"g{number}").unlink()


def test_parallel_builders_lose_nothing(mount: Path) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(peer()) for _ in range(8)]
        for number, builder in enumerate(peers):
            builder.begin(churn, mount / str(number))
        for builder in peers:
            builder.finish(60)
    for number in range(8):
        left = {path.name: path.read_bytes() for path in (mount / str(number)).iterdir()}
        assert left == {f"g{n}": bytes([n]) * n * 500 for n in range(60) if n % 3}


def create_exclusively(path: Path) -> int:
    """How many of these names this process was the first to make."""
    won = 0
    for number in range(100):
        try:
            os.close(os.open(path / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            won += 1
        except FileExistsError:
            pass
    return won


def test_o_excl_has_one_winner(mount: Path) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(peer()) for _ in range(4)]
        for racer in peers:
            racer.begin(create_exclusively, mount)
        assert sum(racer.finish(60) for racer in peers) == 100


@pytest.mark.parametrize("seed", range(4))
def test_files_that_are_written_to_in_turn_hold_what_was_written(
    own_mount: Workspace, seed: int
) -> None:
    """As by a database: short writes that go on, here and there one that does not, a look, a sync,
    a cut, another name; and a daemon that is killed after the last sync."""
    rng = random.Random(seed)
    top = own_mount.path
    files = {number: os.open(top / f"{number}", os.O_RDWR | os.O_CREAT) for number in range(6)}
    wanted = {number: bytearray() for number in files}
    for step in range(1_500):
        number = rng.choice([0, 0, 0, 1, 1, *files])
        fd, data = files[number], wanted[number]
        if rng.random() < 0.02:
            size = rng.randrange(len(data) + 1)
            os.ftruncate(fd, size)
            del data[size:]
        if rng.random() < 0.01:
            os.rename(top / f"{number}", top / "moved")
            os.rename(top / "moved", top / f"{number}")
        place = rng.randrange(len(data) + 1) if rng.random() < 0.1 else len(data)
        piece = rng.randbytes(rng.choice([4, 4, 100, 4096]))
        assert os.pwrite(fd, piece, place) == len(piece)
        data[place : place + len(piece)] = piece
        if rng.random() < 0.05:
            seen = rng.choice(list(files))
            assert os.fstat(files[seen]).st_size == len(wanted[seen])
            assert (top / f"{seen}").read_bytes() == wanted[seen]
        if rng.random() < 0.01 or step == 1_499:
            os.fsync(fd)
    for fd in files.values():
        os.close(fd)
    own_mount.kill()
    own_mount.mount()
    assert {number: (top / f"{number}").read_bytes() for number in files} == wanted
