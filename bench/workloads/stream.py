"""One file: large, written and read 1 MiB at a time; in pages; line by line."""

import logging
import os
from collections.abc import Iterator

from bench.memory import make_ready
from bench.programs import run
from bench.registry import MICRO, SAME, WorkDirectory, workload
from bench.sources import chunks

_CHUNK = 1 << 20
#: How often the file may be in memory: in the pages of FUSE, and in those of the disk or of the
#: process that serves FUSE.
_COPIES = 2


def _write_all(fd: int, pieces: list[memoryview]) -> None:
    for piece in pieces:
        if os.write(fd, piece) != len(piece):
            raise RuntimeError("short write")


def _read_all(fd: int, buffer: bytearray) -> int:
    total = 0
    while count := os.readv(fd, [buffer]):
        total += count
    return total


@workload(
    "stream-write",
    "write {scale.stream_mb} MB in 1 MiB pieces, and close",
    scene="stream",
    kind=MICRO,
    mark=1.5,
)
def stream_write(place: WorkDirectory) -> Iterator[None]:
    pieces = chunks(2 * place.repetition, place.scale.stream_mb)
    fd = os.open(place / "large", os.O_CREAT | os.O_WRONLY, 0o644)
    make_ready(_COPIES * place.scale.stream_mb)
    yield
    _write_all(fd, pieces)
    os.close(fd)


@workload(
    "stream-write-fsync",
    "write {scale.stream_mb} MB in 1 MiB pieces, and fsync",
    scene="stream",
    kind=MICRO,
    mark=1.5,
)
def stream_write_fsync(place: WorkDirectory) -> Iterator[None]:
    pieces = chunks(2 * place.repetition + 1, place.scale.stream_mb)
    fd = os.open(place / "large-synced", os.O_CREAT | os.O_WRONLY, 0o644)
    make_ready(_COPIES * place.scale.stream_mb)
    yield
    _write_all(fd, pieces)
    os.fsync(fd)
    os.close(fd)


def _stream_read(place: WorkDirectory) -> Iterator[None]:
    buffer = bytearray(_CHUNK)
    fd = os.open(place / "large", os.O_RDONLY)
    _read_all(fd, buffer)
    os.lseek(fd, 0, os.SEEK_SET)
    yield
    if _read_all(fd, buffer) != place.scale.stream_mb * _CHUNK:
        raise RuntimeError("the file has another size than was written")
    os.close(fd)


workload(
    "stream-read-warm",
    "read {scale.stream_mb} MB in 1 MiB pieces, warm",
    scene="stream",
    kind=MICRO,
    mark=SAME,
    needs=("stream-write",),
)(_stream_read)


@workload(
    "stream-copy",
    "cp of {scale.stream_mb} MB",
    scene="stream",
    kind=MICRO,
    needs=("stream-write",),
)
def stream_copy(place: WorkDirectory) -> Iterator[None]:
    make_ready(_COPIES * place.scale.stream_mb)
    yield
    run("cp", place / "large", place / "copied")


@workload(
    "stream-read-cold",
    "read {scale.stream_mb} MB in 1 MiB pieces, cold",
    scene="stream",
    kind=MICRO,
    mark=1.5,
    cold=True,
    needs=("stream-write",),
)
def stream_read_cold(place: WorkDirectory) -> Iterator[None]:
    make_ready(_COPIES * place.scale.stream_mb)
    yield from _stream_read(place)


@workload(
    "dd-4k",
    "dd bs=4k conv=fsync of {scale.page_mb} MB",
    scene="pages",
)
def dd_pages(place: WorkDirectory) -> Iterator[None]:
    count = f"count={place.scale.page_mb << 8}"
    yield
    run("dd", "if=/dev/zero", f"of={place / 'pages'}", "bs=4k", count, "conv=fsync", "status=none")


@workload("log", "a log of {scale.log_lines:,} lines, flushed line by line", scene="log")
def log_lines(place: WorkDirectory) -> Iterator[None]:
    """As Python's logging writes one, each line with its time."""
    handler = logging.FileHandler(place / "app.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger = logging.Logger("bench")
    logger.addHandler(handler)
    yield
    for number in range(place.scale.log_lines):
        logger.info("request %d took %.3f ms for %s", number, number * 0.01, "/index.html")
    handler.close()
