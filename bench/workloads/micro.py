"""Single system calls on small files, from Python, whose loop adds under 1 µs on both sides.

Cold rows come last in every scene: after them the caches are cold for whatever follows.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

from bench.registry import MICRO, SAME, WorkDirectory, workload

_SMALL = 1_000


def _paths(place: WorkDirectory, directory: str) -> list[str]:
    """Names as text, made before the clock starts; 500 files to a directory."""
    root = place / directory
    return [f"{root}/{n // 500:03}/file{n:05}.txt" for n in range(place.scale.files)]


def _make_parents(paths: list[str]) -> None:
    for parent in sorted({os.path.dirname(each) for each in paths}):
        os.makedirs(parent)


def _small_files(place: WorkDirectory) -> list[str]:
    """Files of 1,000 B, written the first time one is asked for in a scene."""
    paths = _paths(place, "small")
    if not os.path.exists(paths[0]):
        _make_parents(paths)
        rng = random.Random(place.repetition)
        for path in paths:
            Path(path).write_bytes(rng.randbytes(_SMALL))
    return paths


def _shuffled(paths: list[str]) -> list[str]:
    return random.Random(1).sample(paths, len(paths))


@workload("create", "create {scale.files:,} empty files", scene="micro", kind=MICRO)
def create(place: WorkDirectory) -> Iterator[None]:
    paths = _paths(place, "created")
    _make_parents(paths)
    yield
    for path in paths:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


@workload(
    "stat-warm",
    "stat {scale.files:,} files {scale.passes} times, warm",
    scene="micro",
    kind=MICRO,
    mark=SAME,
)
def stat_warm(place: WorkDirectory) -> Iterator[None]:
    paths = _shuffled(_small_files(place))
    for path in paths:
        os.stat(path)
    yield
    for _ in range(place.scale.passes):
        for path in paths:
            os.stat(path)


def _read_each(paths: list[str]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        if len(os.read(fd, 1 << 16)) != _SMALL:
            raise RuntimeError(f"{path} has another size than was written")
        os.close(fd)


@workload(
    "open-read-close-warm",
    "open, read, close {scale.files:,} files of 1 KB {scale.passes} times, warm",
    scene="micro",
    kind=MICRO,
)
def open_read_close_warm(place: WorkDirectory) -> Iterator[None]:
    paths = _shuffled(_small_files(place))
    _read_each(paths)
    yield
    for _ in range(place.scale.passes):
        _read_each(paths)


@workload(
    "absent", "stat {scale.files:,} absent names {scale.passes} times", scene="micro", kind=MICRO
)
def absent(place: WorkDirectory) -> Iterator[None]:
    """As a compiler looks for headers and Python for modules: always the same wrong places."""
    names = [f"{path}.absent" for path in _small_files(place)]
    for name in names:
        os.path.lexists(name)
    yield
    for _ in range(place.scale.passes):
        for name in names:
            os.path.lexists(name)


@workload(
    "append", "append 100 B {scale.appends:,} times to an open file", scene="micro", kind=MICRO
)
def append(place: WorkDirectory) -> Iterator[None]:
    fd = os.open(place / "appended", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    line = b"x" * 99 + b"\n"
    yield
    for _ in range(place.scale.appends):
        os.write(fd, line)
    os.close(fd)


def _random_pages(
    place: WorkDirectory, name: str, count: int
) -> tuple[int, list[tuple[int, bytes]]]:
    """A file of 8 MiB, open for writing, and pages with places for them in it."""
    rng = random.Random(place.repetition)
    path = place / name
    path.write_bytes(rng.randbytes(8 << 20))
    pages = [(rng.randrange(2048) * 4096, rng.randbytes(4096)) for _ in range(count)]
    return os.open(path, os.O_WRONLY), pages


@workload(
    "random-write",
    "{scale.random_writes:,} random 4 KiB writes, and close",
    scene="micro",
    kind=MICRO,
)
def random_write(place: WorkDirectory) -> Iterator[None]:
    fd, pages = _random_pages(place, "random", place.scale.random_writes)
    yield
    for offset, page in pages:
        os.pwrite(fd, page, offset)
    os.close(fd)


@workload(
    "synced-write",
    "{scale.synced_writes:,} random 4 KiB writes, each synced",
    scene="micro",
    kind=MICRO,
    mark=2.0,
)
def synced_write(place: WorkDirectory) -> Iterator[None]:
    fd, pages = _random_pages(place, "synced", place.scale.synced_writes)
    yield
    for offset, page in pages:
        os.pwrite(fd, page, offset)
        os.fdatasync(fd)
    os.close(fd)


@workload(
    "rename",
    "rename {scale.files:,} files",
    scene="micro",
    kind=MICRO,
    needs=("create",),
)
def rename(place: WorkDirectory) -> Iterator[None]:
    paths = _paths(place, "created")
    yield
    for path in paths:
        os.rename(path, f"{path}.renamed")


@workload(
    "unlink",
    "unlink {scale.files:,} files",
    scene="micro",
    kind=MICRO,
    needs=("create", "rename"),
)
def unlink(place: WorkDirectory) -> Iterator[None]:
    # Nothing is made after it: ext4 is slow to make files where many were just deleted.
    paths = [f"{path}.renamed" for path in _paths(place, "created")]
    yield
    for path in paths:
        os.unlink(path)


@workload("stat-cold", "stat {scale.files:,} files, cold", scene="micro", kind=MICRO, cold=True)
def stat_cold(place: WorkDirectory) -> Iterator[None]:
    paths = _shuffled(_small_files(place))
    yield
    for path in paths:
        os.stat(path)


@workload(
    "open-read-close-cold",
    "open, read, close {scale.files:,} files of 1 KB, cold",
    scene="micro",
    kind=MICRO,
    cold=True,
)
def open_read_close_cold(place: WorkDirectory) -> Iterator[None]:
    paths = _shuffled(_small_files(place))
    yield
    _read_each(paths)
