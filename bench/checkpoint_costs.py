"""What each verb costs by the number of checkpoints: CPU seconds and peak memory, without a mount.

    python -m bench.checkpoint_costs 1000 2000 4000 10000
    python -m bench.checkpoint_costs --only log 'list*' -- 10000
    python -m bench.checkpoint_costs --make DIR 50000

Each verb runs in a process of its own, on a copy of a store that `grow` made: a hundred files, of
which each checkpoint changes one or two; steps, moments and saves in turns; a restore in between.
"""

import argparse
import fnmatch
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ckptfs.daemon import reader
from ckptfs.fs import Filesystem
from ckptfs.fuse.history_dir import HistoryDirectory
from ckptfs.fuse.nodes import Nodes
from ckptfs.history import compression, expiry, seal, upkeep
from ckptfs.history.checkpoints import LOST, MOMENT, Cause, checkpoints
from ckptfs.history.retention import Figures, RetentionPolicy, judge
from ckptfs.model import ROOT_INO, Attributes
from ckptfs.service import Service
from ckptfs.service.service import perform
from ckptfs.store import Store

FILES = 100
#: The file whose history is asked for, and how often it changes.
FOLLOWED, EVERY = b"followed", 3
_SECOND_NS = 1_000_000_000
_BEGAN_NS = 1_700_000_000 * _SECOND_NS
#: Checkpoints are this far apart: a busy day.
_APART_NS = 10 * _SECOND_NS
_KINDS = ("manual", "auto", "auto", MOMENT)


class Clock:
    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


def grow(path: Path, count: int) -> None:
    """A new store with so many checkpoints."""
    fs = Filesystem(Store.create(path), Clock(_BEGAN_NS))
    for number in range(FILES):
        _write(fs, b"%03d" % number, b"first\n" * 100)
    for number in range(count):
        _edit(fs, number)
        fs.clock.now_ns += _APART_NS  # type: ignore[attr-defined]
        kind = _KINDS[number % len(_KINDS)]
        lost = {LOST: f"{number % FILES:03}"} if kind == MOMENT else {}
        cause = Cause(100 + number, f"command {number}", "7:1")
        seal(fs, kind, f"before: command {number}", fs.clock(), metadata=lost, cause=cause)
        if number == count // 2:
            Service(fs).restore(str(number - 10))
        if number % 100 == 0:
            fs.commit()
    fs.commit()
    fs.store.close()


def _edit(fs: Filesystem, number: int) -> None:
    fs.signing = fs.authorship.of((number, ""), {"pid": number, "command": f"command {number}"})
    _write(fs, b"%03d" % (number % FILES), b"line %d\n" % number * 100)
    if number % EVERY == 0:
        _write(fs, FOLLOWED, b"line %d\n" % number * 10)


def _write(fs: Filesystem, name: bytes, data: bytes) -> None:
    found = fs.seek(fs.head, ROOT_INO, name)
    if found is None:
        found = fs.mknod(fs.head, ROOT_INO, name, 0o100644, 0, 0)
    fs.setattr(fs.head, found.ino, Attributes(size=0))
    fs.write(fs.head, found.ino, 0, data)


# -- what is measured ------------------------------------------------------------------------------


def _verb(op: str, **args: object) -> Callable[[Filesystem], object]:
    return lambda fs: perform(Service(fs), op, args)


def _entries(fs: Filesystem) -> object:
    directory = HistoryDirectory(fs, Nodes(fs), lambda tag: tag.encode())
    found = []
    after = b""
    # As the kernel asks: a page at a time, each from where the last one ended.
    while page := [entry for entry, _ in zip(directory.entries(after), range(64), strict=False)]:
        found += page
        after = page[-1][0]
    return found


def _names(fs: Filesystem) -> object:
    return HistoryDirectory(fs, Nodes(fs), lambda tag: tag.encode()).names()


def _policy() -> RetentionPolicy:
    return RetentionPolicy(keep_all_ns=10**18, moments_ns=10**18)


def _expire(fs: Filesystem) -> object:
    return expiry.decide(fs, _policy())


def _nothing_expires(fs: Filesystem) -> object:
    policy = RetentionPolicy(10**9, 10**18, moments_ns=10**18, moments_max=10**9, moment_bytes=0)
    return expiry.expire(fs, policy)


def _short(fs: Filesystem) -> object:
    """All of history is weighed: it does not free what the disk lacks."""
    fs.flush()
    figures = Figures(0, 0, 1 << 40)
    policy = RetentionPolicy(10**9, 0, 10**18, 10**18, moments_max=10**9, moments_ns=10**18)
    return judge(checkpoints(fs.store), policy, fs.clock(), figures, insight=expiry.insight(fs))


def _save(fs: Filesystem) -> object:
    for number in range(100):
        _edit(fs, number)
        perform(Service(fs), "save", {"message": "more"})
    return None


VERBS: dict[str, Callable[[Filesystem], object]] = {
    "open": lambda fs: None,
    "list": _verb("list", limit=20),
    "list again": lambda fs: [_verb("list", limit=20)(fs) for _ in range(2)],
    "list --all": _verb("list", moments=True),
    "list --path": _verb("list", path="followed"),
    "log": _verb("log", path="followed"),
    "ls .checkpoints": _names,
    "ls -l .checkpoints": _entries,
    "what expires": _expire,
    "nothing expires": _nothing_expires,
    "short of room": _short,
    "heaviest": lambda fs: expiry.heaviest(fs, 3),
    "status": _verb("figures"),
    "status --space": _verb("space"),
    "save (100)": _save,
    "diff": _verb("diff"),
    "get latest": _verb("get", checkpoint="latest"),
    "get @-1": _verb("get", checkpoint="@-1"),
    "get time": _verb("get", checkpoint="1 hour ago"),
    "next to compress": lambda fs: upkeep.Worker(
        fs, compression.compression_steps(fs, 10**18)
    ).step(0.0),
    "restore, undo": lambda fs: [_verb("restore", checkpoint="latest")(fs), _verb("undo")(fs)],
}


def _measure(store: Path, verb: str) -> dict[str, float]:
    """In this process, as in the one for verbs that read: opening the store, and then the verb."""
    reader.tune_collector()
    begun = _used()
    opened = Store.open(store)
    fs = Filesystem(opened, Clock(_BEGAN_NS + 10**9 * _SECOND_NS))
    checkpoints(opened)
    ready, before = _used(), _peak()
    VERBS[verb](fs)
    after = _used()
    opened.close(commit=False)
    return {"open_s": ready - begun, "open_kb": before, "s": after - ready, "kb": _peak()}


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak() -> int:
    """In KiB. Not of getrusage(2), which goes on from what the process that started it had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def _in_process(store: Path, verb: str, scratch: Path) -> dict[str, float]:
    copy = scratch / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy)
    command = [sys.executable, "-m", "bench.checkpoint_costs", "--measure", str(copy), verb]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    measured: dict[str, float] = json.loads(answer)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=[1_000, 2_000, 4_000])
    parser.add_argument("--only", nargs="+", default=["*"], help="verbs, as patterns")
    parser.add_argument("--make", type=Path, help="only make a store there")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        store, verb = options.measure
        print(json.dumps(_measure(Path(store), verb)))
        return
    if options.make:
        grow(options.make, *options.counts)
        return
    with tempfile.TemporaryDirectory(prefix="ckptfs-bench-") as base:
        _table(Path(base), options.counts, options.only)


def _table(base: Path, counts: list[int], patterns: list[str]) -> None:
    chosen = [name for name in VERBS if any(fnmatch.fnmatch(name, each) for each in patterns)]
    stores = {count: base / f"store-{count}" for count in counts}
    for count, store in stores.items():
        grow(store, count)
    print(f"{'CPU s, peak MB':<20}" + "".join(f"{count:>16,}" for count in counts), flush=True)
    for verb in chosen:
        print(f"{verb:<20}", end="")
        for store in stores.values():
            found = _in_process(store, verb, base)
            seconds = found["open_s"] if verb == "open" else found["s"]
            print(f"{seconds:>9.3f} {found['kb'] / 1024:>5.0f} ", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
