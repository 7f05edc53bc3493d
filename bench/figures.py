"""Numbers of ckptfs alone: idle CPU, memory, import, mount and unmount.

Each function takes a Site and returns its figures. Marks are those of the issue tracker.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import process, product, quiet, sources
from bench.child import in_child
from bench.contestants import CkptfsMount, mounted
from bench.kit import Kit
from bench.outcome import Comparison, Figure
from bench.programs import run
from bench.scale import Scale

_TIMEOUT_S = 1_800.0
_MB = 1_000_000
_MEMORY_MARK_MB = 150.0
#: What top shows as 0.0.
_IDLE_MARK_PERCENT = 0.05


@dataclass(frozen=True)
class Site:
    contestant: CkptfsMount
    """The mount that all workloads have run on."""
    base: Path
    """A directory on the same disk for whatever else a figure needs."""
    scale: Scale
    kit: Kit
    rivals: tuple[str, ...] = ()
    """Who may be compared with, if it can be had."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Who could not be had, and why."""


Found = Sequence[Figure | Comparison]
Measure = Callable[[Site], Found]
figures: dict[str, Measure] = {}


def figure(name: str) -> Callable[[Measure], Measure]:
    def register(measure: Measure) -> Measure:
        figures[name] = measure
        return measure

    return register


def _daemon_of(site: Site) -> int:
    if site.contestant.pid is None:
        raise RuntimeError("the daemon is not running")
    return site.contestant.pid


#: Housework comes two seconds after the last change, and once.
HOUSEWORK_S = 4.0
#: And after so long without a request it begins to pack history.
PACKING_BEGINS_S = 15.0


@figure("idle-cpu")
def idle_cpu(site: Site) -> list[Figure]:
    """Once history is packed, which begins after 15 seconds without a request."""
    pid = _daemon_of(site)
    in_child(partial(quiet.settle, [site.contestant]), _TIMEOUT_S)
    time.sleep(HOUSEWORK_S + PACKING_BEGINS_S)
    process.wait_until_quiet(pid, _TIMEOUT_S)
    seconds = site.scale.idle_seconds
    cpu_before, wake_ups_before = process.cpu_ns(pid), process.wake_ups(pid)
    time.sleep(seconds)
    share = (process.cpu_ns(pid) - cpu_before) / (seconds * 1e9)
    rate = (process.wake_ups(pid) - wake_ups_before) / seconds
    title = f"idle CPU over {seconds:.0f} s"
    return [
        Figure("idle-cpu", title, 100 * share, "% of a core", _IDLE_MARK_PERCENT),
        Figure("idle-wake-ups", "wake-ups meanwhile", rate, "a second"),
    ]


@figure("memory")
def memory_after_workloads(site: Site) -> list[Figure]:
    return _memory_figures("memory", "after the workloads", _daemon_of(site))


def _memory_figures(name: str, when: str, pid: int) -> list[Figure]:
    seen = process.memory(pid)
    own = Figure(name, f"memory of the daemon {when}, own", seen.own / _MB, "MB", _MEMORY_MARK_MB)
    mapped = Figure(
        f"{name}-mapped",
        f"memory of the daemon {when}, pages of the mapped store",
        seen.mapped / _MB,
        "MB",
        note="page cache, taken back by the kernel when needed",
    )
    return [own, mapped]


@figure("import-small")
def import_small(site: Site) -> list[Figure]:
    source = site.base / "import-small"
    size = sources.write_tree(source, site.scale.import_files)
    seconds = _time_import(site.base, source)
    title = f"import of {site.scale.import_files:,} small files, {size / _MB:.0f} MB"
    rate, megabytes = site.scale.import_files / seconds, size / _MB / seconds
    # The mark is this rate or 250 MB/s, whichever bounds; with files this small it is this.
    note = f"{megabytes:.0f} MB/s, {seconds:.2f} s"
    return [Figure("import-small", title, rate, "files/s", 15_000, True, note)]


@figure("import-large")
def import_large(site: Site) -> list[Figure]:
    source = site.base / "import-large"
    size = sources.write_large_files(source, site.scale.import_mb)
    seconds = _time_import(site.base, source)
    title = f"import of {size / _MB:,.0f} MB in files of 64 MiB"
    rate = size / _MB / seconds
    return [Figure("import-large", title, rate, "MB/s", 250, True, f"{seconds:.2f} s")]


def _time_import(base: Path, source: Path) -> float:
    """The whole command, its start included, from a source in the page cache to a synced store."""
    store = base / f"{source.name}-store"
    os.sync()
    start = time.monotonic()
    product.import_into(store, source)
    seconds = time.monotonic() - start
    run("rm", "-rf", source, store)
    return seconds


@figure("mount")
def mount_empty(site: Site) -> list[Figure]:
    rounds = [_mount_round(site.base / f"empty-{n}") for n in range(3)]
    up = statistics.median(seconds for seconds, _ in rounds)
    down = statistics.median(seconds for _, seconds in rounds)
    return [
        Figure("mount", "mount of an empty directory", up * 1e3, "ms"),
        Figure("umount", "umount of it", down * 1e3, "ms"),
    ]


def _mount_round(workspace: Path) -> tuple[float, float]:
    """Seconds to mount and to unmount, the start of the command included."""
    workspace.mkdir(exist_ok=True)
    store = workspace.with_name(f"{workspace.name}-store")
    os.sync()
    start = time.monotonic()
    with mounted(workspace, store):
        up = time.monotonic()
        product.umount(workspace)
        down = time.monotonic()
    return up - start, down - up


@figure("mount-tree")
def mount_tree(site: Site) -> list[Figure]:
    """An ordinary directory taken over in place, given back unchanged, and taken over again."""
    workspace = site.base / "tree"
    sources.write_tree(workspace, site.scale.tree_files)
    first, down = _mount_round(workspace)
    again, _ = _mount_round(workspace)
    what = f"{site.scale.tree_files:,} files"
    return [
        Figure("mount-tree", f"mount of {what} in place, the first time", first, "s"),
        Figure("umount-tree", f"umount of {what}, unchanged", down, "s"),
        Figure("remount-tree", f"mount of {what} again, unchanged below", again, "s"),
    ]


@figure("memory-full")
def memory_full(site: Site) -> list[Figure]:
    """With very many files, all of them made and then looked at through the mount."""
    if not site.scale.memory_files:
        return []
    workspace, store = site.base / "full", site.base / "full-store"
    workspace.mkdir()
    with mounted(workspace, store, "--no-write-back") as pid:
        in_child(partial(_make_files, workspace, site.scale.memory_files), _TIMEOUT_S)
        in_child(partial(run, "find", workspace, "-size", "+1000k"), _TIMEOUT_S)
        when = f"with {site.scale.memory_files:,} files"
        return _memory_figures("memory-full", when, pid)


def _make_files(root: Path, count: int) -> None:
    for number in range(count):
        if number % 1_000 == 0:
            parent = root / f"{number // 1_000:05}"
            parent.mkdir()
        os.close(os.open(f"{parent}/file{number:07}", os.O_CREAT | os.O_WRONLY, 0o644))
