"""Power cuts: of what was not synced anything may be missing, in any order; the rest is whole.

What LMDB, the journal and the heap write is recorded once. At each cut a disk is made of it that
real hardware could have left; the store on it must open, be whole, and show the state of a commit
that was acknowledged, or of the one that was under way.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ckptfs.fs import Filesystem
from ckptfs.store import Store, check
from tests.crash import recorder
from tests.crash.power_work import state
from tests.direct import Ticks

ROOT = Path(__file__).parents[2]
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

#: Makes a disk as a power cut may leave it.
Cut = Callable[[], dict[str, bytes]]


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ckptfs-power-", dir=_MEMORY) as path:
        yield Path(path)


class Recording:
    """The events of a history, and what it showed at each commit."""

    def __init__(self, base: Path, seed: int, commits: int, *, large: bool = False) -> None:
        self.store = base / "disk"
        self.store.mkdir()
        trace, states = base / "trace", base / "states"
        env = recorder.environment(recorder.library(base), self.store, trace)
        words = [sys.executable, "-m", "tests.crash.power_work"]
        words += [str(self.store), str(states), str(seed), str(commits)]
        words += ["large"] if large else []
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        subprocess.run(words, env={**os.environ, **env, "PYTHONPATH": path}, check=True, cwd=ROOT)
        self.events = list(recorder.events(trace))
        self.states = [json.loads(line) for line in states.read_text().splitlines()]
        # Nothing was recorded if the store is written some other way than by these calls.
        assert sum(event.kind == "d" for event in self.events) >= commits
        renamed = [event for event in self.events if event.kind == "r"]
        assert len(renamed) > commits // 20, "the data file was hardly ever exchanged"
        heap = Counter(event.kind for event in self.events if event.path.endswith("/heap"))
        if large:
            assert heap["o"] and heap["a"] + heap["w"] > commits // 5, heap
            assert heap["a"] == heap["c"] and heap["s"] and heap["p"] > commits // 10, heap


def cuts(recording: Recording, rng: random.Random) -> Iterator[tuple[Cut, int]]:
    """(what makes a disk, how many commits were acknowledged) at each moment, again and again."""
    while True:
        disk, acknowledged = recorder.Disk(), 0
        for event in recording.events:
            if event.path.endswith("/acks"):
                acknowledged += event.kind != "o"
                continue
            if acknowledged:  # before, there is no store that anyone was told of
                yield partial(disk.under_way, event, rng), acknowledged
            disk.happen(event)


def _assert_whole(path: Path, disk: dict[str, bytes], recording: Recording, count: int) -> int:
    """The store on the disk is that of the last commit acknowledged, or of the next one."""
    for name in path.iterdir():
        name.unlink()
    for name, data in disk.items():
        (path / Path(name).name).write_bytes(data)
    store = Store.open(path)
    try:
        fs = Filesystem(store, Ticks())
        assert check(store) == []
        shown = state(fs)
    finally:
        store.close(commit=False)
    assert shown in recording.states[count - 1 : count + 1]
    return recording.states.index(shown)


def _cut(base: Path, seed: int, commits: int, wanted: int, *, large: bool = False) -> None:
    recording = Recording(base, seed, commits, large=large)
    rng = random.Random(seed)
    place = base / "left"
    place.mkdir(mode=0o700)
    seen = set()
    every = -(-len(recording.events) // wanted)
    done = 0
    for number, (cut, count) in enumerate(cuts(recording, rng)):
        if number % every == 0:
            seen.add(_assert_whole(place, cut(), recording, count))
            done += 1
        if done >= wanted:
            break
    assert done >= wanted and len(seen) > commits // 2


@pytest.mark.timeout(0)
def test_nothing_synced_is_lost_in_five_hundred_power_cuts(base: Path) -> None:
    _cut(base, 1, commits=40, wanted=500)


@pytest.mark.timeout(0)
def test_power_cuts_lose_nothing_synced_of_large_files(base: Path) -> None:
    """Fewer: an end of a store with a heap has the kernel wait for a while."""
    _cut(base, 4, commits=30, wanted=200, large=True)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 12))
def test_nothing_synced_is_lost_in_five_thousand_power_cuts(base: Path, seed: int) -> None:
    _cut(base, seed, commits=120, wanted=500, large=bool(seed % 2))


def test_the_disk_that_is_made_does_lose_writes(base: Path) -> None:
    """Without the syncs the same history does not survive: the cuts are no formality."""
    recording = Recording(base, 3, commits=20)
    recording.events = [event for event in recording.events if event.kind != "s"]
    place = base / "left"
    place.mkdir(mode=0o700)
    lost = 0
    for number, (cut, count) in enumerate(cuts(recording, random.Random(3))):
        if lost or number > 200:
            break
        lost += _is_lost(place, cut(), recording, count)
    assert lost


def _is_lost(place: Path, disk: dict[str, bytes], recording: Recording, count: int) -> bool:
    """In a process of its own: a store that misses pages may end it."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            _assert_whole(place, disk, recording, count)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] != 0
