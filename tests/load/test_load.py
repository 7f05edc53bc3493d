"""Hours of a mixed load in a minute or two: writers, readers, checkpoints, restores, pruning.

    make test-deep ARGS="tests/load -s"          prints the report
    CKPTFS_LOAD_SECONDS=600 ...                  for longer

What is asked: no error that a native file system would not give, no request without an answer, no
growth of memory or descriptors. How long requests took is told, not judged: machines differ.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ckptfs.config import Workspace as Place
from ckptfs.control.client import Client
from tests.support.mounting import HAVE_FUSE, Workspace, workspace

pytestmark = [
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
    pytest.mark.timeout(0),
]

WRITERS, READERS = 8, 4
SAVE_EVERY, RESTORE_EVERY, PRUNE_EVERY = 0.2, 4.0, 7.0
#: A restore takes files and directories away like any other process could.
NATIVE = {errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}


#: What is open in a checkpoint that is deleted is stale from then on.
GONE = {f"ESTALE by {name} in history" for name in ("read", "list", "stat")}


class Told(NamedTuple):
    """What one process went through: seconds of each call by name, errors by errno."""

    calls: dict[str, list[float]]
    errors: Counter[str]


class Load:
    """One program's work, timed call by call."""

    def __init__(self, top: Path, seed: int, until: float) -> None:
        self._top = top
        self._random = random.Random(seed)
        self._until = until
        self.told = Told(defaultdict(list), Counter())

    def timed(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args)
        except OSError as error:
            where = " in history" if ".checkpoints" in str(args) else ""
            code = errno.errorcode.get(error.errno or 0, "?")
            self.told.errors[code if error.errno in NATIVE else f"{code} by {name}{where}"] += 1
            return None
        finally:
            self.told.calls[name].append(time.perf_counter() - began)

    def write(self) -> None:
        while time.monotonic() < self._until:
            chosen = self._random.choice([self._replace, self._append, self._tree, self._sync])
            chosen(self._top / f"d{self._random.randrange(8)}")

    def _path(self, where: Path) -> Path:
        return where / f"f{self._random.randrange(200)}"

    def _replace(self, where: Path) -> None:
        self.timed("mkdir", lambda: where.mkdir(exist_ok=True))
        fresh = where / f"new-{os.getpid()}"
        size = self._random.choice([100, 3_000, 20_000, 200_000])
        self.timed("write", fresh.write_bytes, self._random.randbytes(size))
        self.timed("rename", os.replace, fresh, self._path(where))

    def _append(self, where: Path) -> None:
        def append() -> None:
            with open(self._path(where), "ab") as file:
                file.write(b"a line of a log\n" * 20)

        self.timed("append", append)

    def _tree(self, where: Path) -> None:
        top = where / f"tree-{os.getpid()}-{self._random.randrange(3)}"
        self.timed("mkdir", lambda: top.mkdir(parents=True, exist_ok=True))
        for number in range(10):
            self.timed("create", (top / str(number)).touch)
        for number in range(10):
            self.timed("unlink", os.unlink, top / str(number))
        self.timed("rmdir", os.rmdir, top)

    def _sync(self, where: Path) -> None:
        def sync() -> None:
            fd = os.open(self._path(where), os.O_RDWR)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

        self.timed("fsync", sync)

    def read(self) -> None:
        while time.monotonic() < self._until:
            top = self._top
            if self._random.random() < 0.3:
                numbers = self.timed("list", os.listdir, top / ".checkpoints") or []
                if numbers:
                    top = top / ".checkpoints" / self._random.choice(numbers)
            where = top / f"d{self._random.randrange(8)}"
            for name in (self.timed("list", os.listdir, where) or [])[:30]:
                self.timed("stat", os.lstat, where / name)
                self.timed("read", self._slurp, where / name)

    @staticmethod
    def _slurp(path: Path) -> int:
        return len(path.read_bytes()) if path.is_file() else 0


def _run(kind: str, top: Path, seed: int, until: float, out: Queue[Told]) -> None:
    load = Load(top, seed, until)
    load.write() if kind == "write" else load.read()
    out.put(Told(dict(load.told.calls), load.told.errors))


class Sample(NamedTuple):
    anonymous_kb: int
    resident_kb: int
    descriptors: int


def _sample(pid: int) -> Sample:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    size = [int(fields[name].split()[0]) for name in ("RssAnon", "VmRSS")]
    return Sample(*size, len(os.listdir(f"/proc/{pid}/fd")))


def _history(made: Workspace, until: float, samples: list[Sample]) -> Counter[str]:
    """Checkpoints, restores and pruning, from here, with a look at the daemon each time."""
    done: Counter[str] = Counter()
    rng = random.Random(0)
    next_restore = time.monotonic() + RESTORE_EVERY
    next_prune = time.monotonic() + PRUNE_EVERY
    with Client(Place(made.path, made.store)) as client:
        while (now := time.monotonic()) < until:
            saved = client.call("save", {"message": "load"})
            done["save"] += 1
            if now > next_restore:
                next_restore = now + RESTORE_EVERY
                number = max(0, saved["id"] - rng.randrange(1, 10))
                client.call("restore", {"checkpoint": str(number)})
                done["restore"] += 1
            if now > next_prune:
                next_prune = now + PRUNE_EVERY
                old = [item["id"] for item in client.call("list", {"all": True})["checkpoints"]]
                client.call("delete", {"checkpoints": [str(n) for n in sorted(old)[:-40]] or ["0"]})
                client.call("prune", {})
                done["prune"] += 1
            samples.append(_sample(made.pid or 0))
            time.sleep(max(0.0, SAVE_EVERY - (time.monotonic() - now)))
    return done


def _line(values: list[int]) -> str:
    """Values as a line of bars, the highest of each stretch."""
    width = max(1, len(values) // 60)
    tops = [max(values[at : at + width]) for at in range(0, len(values), width)]
    return "".join("▁▂▃▄▅▆▇█"[min(7, 8 * value // (max(tops) + 1))] for value in tops)


def report(told: list[Told], done: Counter[str], samples: list[Sample], seconds: float) -> str:
    calls: dict[str, list[float]] = defaultdict(list)
    errors: Counter[str] = Counter()
    for one in told:
        errors.update(one.errors)
        for name, times in one.calls.items():
            calls[name] += times
    lines = [f"{seconds:.0f} s, {WRITERS} writers, {READERS} readers, {dict(done)}"]
    lines.append(f"{'call':<8} {'count':>9} {'median':>9} {'p99':>9} {'slowest':>9}  (ms)")
    for name, times in sorted(calls.items()):
        times.sort()
        figures = (times[len(times) // 2], times[int(len(times) * 0.99)], times[-1])
        lines.append(
            f"{name:<8} {len(times):>9,} " + " ".join(f"{1e3 * value:>9.2f}" for value in figures)
        )
    lines.append(f"errors: {dict(errors)}")
    for name in Sample._fields:
        values = [getattr(sample, name) for sample in samples]
        lines.append(f"{name:<13} {values[0]:>8,} .. {values[-1]:>8,}  {_line(values)}")
    return "\n".join(lines)


def _settle(made: Workspace) -> None:
    """Time for the daemon to free what it may."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        time.sleep(0.5)


def _load(made: Workspace, seconds: float) -> str:
    context = multiprocessing.get_context("fork")
    out: Queue[Told] = context.Queue()
    until = time.monotonic() + seconds
    jobs = [("write", n) for n in range(WRITERS)] + [("read", n) for n in range(READERS)]
    processes = [
        context.Process(target=_run, args=(kind, made.path, seed, until, out))
        for kind, seed in jobs
    ]
    for process in processes:
        process.start()
    samples: list[Sample] = []
    done = _history(made, until, samples)
    told = [out.get(timeout=120) for _ in processes]  # every request was answered
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    _settle(made)
    samples.append(_sample(made.pid or 0))
    text = report(told, done, samples, seconds)
    print("\n" + text)
    foreign = {name for one in told for name in one.errors} - GONE
    assert foreign <= {errno.errorcode[number] for number in NATIVE}, text
    # After the first third it has met everything there is to meet.
    warm = samples[len(samples) // 3]
    assert samples[-1].descriptors <= warm.descriptors + 3, text
    assert samples[-1].anonymous_kb <= 1.5 * warm.anonymous_kb + 50_000, text
    return text


@pytest.mark.deep
def test_a_mixed_load() -> None:
    with workspace("--no-write-back") as made:
        _load(made, float(os.environ.get("CKPTFS_LOAD_SECONDS", "120")))


def test_a_mixed_load_for_a_moment() -> None:
    """So that the long one does not rot."""
    with workspace("--no-write-back") as made:
        _load(made, 6)
