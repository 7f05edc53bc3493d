"""Reads of what was committed, which the compiled server answers without the store: several
processes write and read by turns, past the kernel's pages, beside plain files."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.mounted.test_history import ok, save
from tests.support.mounting import Workspace, workspace

_NAMES = ["a", "b", "c", "d"]
_SIZES = [1, 100, 1_950, 4_000, 5_000, 65_536, 100_000]


def _serve(pipe: Connection) -> None:
    """A program that does what it is told."""
    while (told := pipe.recv()) is not None:
        name, path, *rest = told
        pipe.send(_DEEDS[name](Path(path), *rest))


def _write(path: Path, offset: int, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.pwrite(file, data, offset)
    os.close(file)


def _read(path: Path) -> bytes | None:
    """Past the kernel's pages."""
    if not path.exists():
        return None
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    data = os.read(file, 1 << 20)
    os.close(file)
    return data


def _cut(path: Path, size: int) -> None:
    if path.exists():
        os.truncate(path, size)


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.rename(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


_DEEDS: dict[str, Callable[..., bytes | None]] = {
    "write": _write,
    "read": _read,
    "cut": _cut,
    "replace": _replace,
    "remove": _remove,
}


class Program:
    """A process of its own."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()

    def do(self, *what: object) -> bytes | None:
        self._pipe.send(what)
        found: bytes | None = self._pipe.recv()
        return found

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started = [Program() for _ in range(3)]
    yield started
    for program in started:
        program.end()


@pytest.fixture
def work() -> Iterator[Workspace]:
    with workspace("--auto", "off") as work:
        yield work


def _deed(rng: random.Random) -> tuple[object, ...]:
    data = rng.randbytes(rng.choice(_SIZES))
    kind = rng.choice(["write"] * 3 + ["replace", "cut", "remove"])
    if kind == "write":
        return kind, rng.choice([0, 0, 10, 5_000, 65_530]), data
    return (kind, data) if kind == "replace" else (kind, 50) if kind == "cut" else (kind,)


@pytest.mark.parametrize("seed", range(3))
def test_every_program_reads_what_the_last_one_wrote(
    work: Workspace, elsewhere: Path, programs: list[Program], seed: int
) -> None:
    rng = random.Random(seed)
    kept: dict[int, dict[str, bytes | None]] = {}
    for step in range(150):
        (kind, *rest), name = _deed(rng), rng.choice(_NAMES)
        program = rng.choice(programs)
        for top in (work.path, elsewhere):
            program.do(kind, str(top / name), *rest)
        if step % 10 == 5:  # everything is committed, then
            kept[save(work)] = {name: _read(elsewhere / name) for name in _NAMES}
        if step % 30 == 25:
            number = rng.choice(list(kept))
            ok(work, "restore", str(number), "--force")
            for each, data in kept[number].items():
                (elsewhere / each).unlink(missing_ok=True)
                if data is not None:
                    (elsewhere / each).write_bytes(data)
        for reader in programs:
            for each in _NAMES:
                found = reader.do("read", str(work.path / each))
                assert found == _read(elsewhere / each), (step, each)
    for number, files in kept.items():
        for each, data in files.items():
            assert _read(work.path / ".checkpoints" / str(number) / each) == data
