"""Hours of a mixed load in a minute or two: writers, readers, checkpoints, restores, pruning.

    make test-deep ARGS="tests/load -s"          prints the report
    CKPTFS_LOAD_SECONDS=600 ...                  for longer
    CKPTFS_LOAD_REPORT=DIR ...                   where load.svg and load.json are written to

What is asked: no error that a native file system would not give, no request without an answer, no
growth of memory or descriptors. How long requests took is told and drawn, not judged: machines
differ.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ckptfs import config
from ckptfs.control.client import Client
from tests.load.report import Report, Sample, Told, sample
from tests.support.mounting import HAVE_FUSE, Workspace, workspace

pytestmark = [
    pytest.mark.skipif(not HAVE_FUSE, reason="no /dev/fuse"),
    pytest.mark.timeout(0),
]

WRITERS, READERS = 8, 4
SAVE_EVERY, RESTORE_EVERY, PRUNE_EVERY = 0.2, 4.0, 7.0
#: After the load, until memory is looked at for the last time.
SETTLE_S = 5.0
#: A restore takes files and directories away like any other process could.
NATIVE = {errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}


#: What is open in a checkpoint that is deleted is stale from then on.
GONE = {f"ESTALE by {name} in history" for name in ("read", "list", "stat")}


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


def _history(made: Workspace, until: float, samples: list[Sample]) -> Counter[str]:
    """Checkpoints, restores and pruning, from here, with a look at the daemon each time."""
    done: Counter[str] = Counter()
    rng = random.Random(0)
    began = time.monotonic()
    next_restore = time.monotonic() + RESTORE_EVERY
    next_prune = time.monotonic() + PRUNE_EVERY
    with Client(config.Workspace(made.path, made.store)) as client:
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
            samples.append(sample(made.pid or 0, time.monotonic() - began))
            time.sleep(max(0.0, SAVE_EVERY - (time.monotonic() - now)))
    return done


def _settle(made: Workspace) -> None:
    """Time for the daemon to free what it may."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        time.sleep(0.5)


def _load(made: Workspace, seconds: float, where: Path) -> None:
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
    samples.append(sample(made.pid or 0, samples[-1].seconds + SETTLE_S))
    report = Report.of(told, done, samples, seconds)
    picture = report.write(Path(os.environ.get("CKPTFS_LOAD_REPORT", where)))
    print(f"\n{report.text()}\n{picture}")
    _judge(report)


def _judge(report: Report) -> None:
    text, samples = report.text(), report.samples
    foreign = set(report.errors) - GONE
    assert foreign <= {errno.errorcode[number] for number in NATIVE}, text
    # After the first third it has met everything there is to meet.
    warm = samples[len(samples) // 3]
    assert samples[-1].descriptors <= warm.descriptors + 3, text
    assert samples[-1].anonymous_kb <= 1.5 * warm.anonymous_kb + 50_000, text


@pytest.mark.deep
def test_a_mixed_load_loses_nothing(tmp_path: Path) -> None:
    with workspace("--no-write-back") as made:
        _load(made, float(os.environ.get("CKPTFS_LOAD_SECONDS", "120")), tmp_path)


def test_a_short_mixed_load_loses_nothing(tmp_path: Path) -> None:
    """So that the long one does not rot."""
    with workspace("--no-write-back") as made:
        _load(made, 6, tmp_path)


def _grown(samples: list[Sample]) -> Report:
    return Report.of([Told({"read": [0.001] * 300}, Counter())], Counter(), samples, 60)


@pytest.mark.parametrize("field", ["anonymous_kb", "descriptors"])
def test_growth_is_not_passed_over(field: str) -> None:
    """The judge itself: with every save 700 KiB are lost, or a descriptor."""
    steady = [Sample(0.2 * n, 60_000, 90_000, 20) for n in range(300)]
    _judge(_grown(steady))
    leak = {"anonymous_kb": 700, "descriptors": 1}[field]
    leaking = [
        one._replace(**{field: getattr(one, field) + n * leak}) for n, one in enumerate(steady)
    ]
    with pytest.raises(AssertionError):
        _judge(_grown(leaking))


def test_a_foreign_error_is_not_passed_over() -> None:
    report = _grown([Sample(0.2 * n, 60_000, 90_000, 20) for n in range(300)])
    with pytest.raises(AssertionError):
        _judge(report._replace(errors=Counter({"EIO by read": 1})))


def test_the_slowest_hundredth_is_told(tmp_path: Path) -> None:
    times = [0.001] * 990 + [0.1] * 9 + [1.1]
    report = Report.of(
        [Told({"read": times}, Counter())], Counter(), [Sample(0, 1, 1, 1), Sample(1, 2, 2, 2)], 1
    )
    found = report.latencies["read"]
    assert (found.count, found.median, found.slowest) == (1_000, 1.0, 1_100.0)
    assert found.p99 == 1.0 and abs(found.tail - 200) < 0.01
    picture = report.write(tmp_path / "report")
    root = ElementTree.fromstring(picture.read_text())
    assert root.tag.endswith("svg") and "200.00 ms" in picture.read_text()
    assert json.loads((tmp_path / "report/load.json").read_text())["samples"][1]["descriptors"] == 2
