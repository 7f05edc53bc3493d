"""What a daemon gives back of its memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from ckptfs.config import Workspace
from ckptfs.daemon.housekeeping import Housekeeping
from ckptfs.daemon.lines import Lines, Shared
from ckptfs.daemon.memory import own_bytes
from ckptfs.daemon.slices import Slices
from ckptfs.fs import Filesystem
from ckptfs.fuse import MountOptions
from ckptfs.history import seal
from ckptfs.history.auto import parse_policy
from ckptfs.model import BLOCK_SIZE
from ckptfs.service import Service
from ckptfs.store import environment
from ckptfs.store.blocks import Buffer
from ckptfs.store.memory_map import resident_file_bytes
from tests.direct import put

_MIB = 1 << 20

Work = Callable[[Housekeeping], Awaitable[None]]


def _work(fs: Filesystem, work: Work) -> None:
    """What a daemon does by itself, in a minute of a clock that jumps ahead."""
    workspace, slices = Workspace(fs.store.path, fs.store.path), Slices()
    shared = Shared(workspace, MountOptions(), parse_policy("command"), slices)
    housekeeping = Housekeeping(Service(fs), Lines(Service(fs), shared), slices)

    async def rest() -> None:
        housekeeping.notify()
        with trio.move_on_after(60):
            await work(housekeeping)

    trio.run(rest, clock=MockClock(autojump_threshold=0))


@pytest.fixture
def holes() -> list[bytearray]:
    """96 MiB of the C library's heap that are free, and between them what is in use."""
    pairs = [(bytearray(b"x") * BLOCK_SIZE, bytearray(1024)) for _ in range(1536)]
    smalls = [small for _, small in pairs]
    pairs.clear()
    return smalls


@pytest.mark.parametrize("work", [Housekeeping.run, Housekeeping.compress])
def test_a_daemon_at_rest_gives_free_memory_back(
    fs: Filesystem, holes: list[bytearray], work: Work
) -> None:
    before = own_bytes()
    _work(fs, work)
    assert before - own_bytes() > 64 * _MIB
    assert len(holes) == 1536


def test_upkeep_keeps_little_of_the_store_mapped(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(600):
        put(fs, b"%d" % number, os.urandom(30_000) * 2)
    seal(fs, "first", "", fs.clock())
    fs.commit()
    fs.store._map.release()
    before, seen = resident_file_bytes(), list[int]()
    monkeypatch.setattr(environment, "_RESIDENT_MAX", before + 4 * _MIB)
    now_ns, digest = fs.clock() + 60 * 10**9, fs.store.blocks.digest
    monkeypatch.setattr(fs, "clock", lambda: now_ns)

    def noting(data: Buffer, seed: int) -> bytes:
        seen.append(resident_file_bytes())
        return digest(data, seed)

    fs.store.blocks.digest = noting
    _work(fs, Housekeeping.compress)
    fs.store.blocks.digest = digest
    assert len(seen) >= 600
    assert max(seen) - before < 16 * _MIB


_LARGE_TWICE = """
from ckptfs.daemon import memory
memory.set_limits()
begin, pins = memory.own_bytes(), []
for _ in range(2):
    large = bytearray(b"x") * (16 << 20)
    pins.append(bytearray(4096))
    del large
assert memory.own_bytes() - begin < 8 << 20, memory.own_bytes() - begin
"""


def test_what_is_large_is_given_back_at_once() -> None:
    """Also the second time; and what is not at the end of the heap."""
    subprocess.run([sys.executable, "-c", _LARGE_TWICE], check=True)
