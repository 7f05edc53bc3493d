"""Figures of the history: what a checkpoint, a restore and a diff cost, and how much room it takes.

Beside each, in the same run and with the same files, what people would use instead.
"""

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shutil import copytree

from bench import product, sources
from bench.child import in_child
from bench.contestants import mounted
from bench.figures import Site, figure
from bench.outcome import Figure
from bench.programs import GIT, run
from bench.report import seconds_text
from bench.rivals import Btrfs, ShadowGit, btrfs

_TIMEOUT_S = 1_800.0
_CHECKOUT = Path(__file__).resolve().parent.parent
#: How many files change between two checkpoints.
_CHANGED = 10
#: How many files the marks against git are for.
_MARKED_FILES = 50_000


@dataclass
class Times:
    """Seconds of each thing, one for each repetition."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, name: str, action: Callable[[], object]) -> None:
        os.sync()
        start = time.perf_counter()
        action()
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)

    def add(self, other: "Times") -> None:
        for name, values in other.seconds.items():
            self.seconds.setdefault(name, []).extend(values)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, title: str, mine: str, theirs: str, mark: float) -> Figure:
        """One thing as a share of another: the median of the repetitions' own ratios."""
        pairs = zip(self.seconds[mine], self.seconds[theirs], strict=True)
        value = statistics.median(a / b for a, b in pairs)
        note = f"{seconds_text(self.median(mine))} against {seconds_text(self.median(theirs))}"
        return Figure(name, title, value, "times", mark, note=note)


def edit(root: Path, paths: Iterable[str], seed: int) -> None:
    """Change some files a little, the same way wherever the same tree stands."""
    for path in random.Random(seed).sample(sorted(paths), _CHANGED):
        with (root / path).open("ab") as file:
            file.write(b"changed %d\n" % seed)


# -- save, diff and restore against git and btrfs --------------------------------------------------


@figure("history")
def history(site: Site) -> list[Figure]:
    base = site.base / "history"
    workspace, store, plain = base / "workspace", base / "store", base / "plain"
    sources.write_tree(workspace, site.scale.history_files)
    copytree(workspace, plain, symlinks=True)
    files = [e.path for e in sources.tree_entries(site.scale.history_files) if not e.link]
    git = ShadowGit(base / "shadow", plain)
    git.commit()
    times = Times()
    with btrfs(base) as other, mounted(workspace, store, "--no-write-back"):
        if other is not None:
            copytree(plain, other.tree, symlinks=True, dirs_exist_ok=True)
        place = _Place(workspace, store, plain, files, git, other)
        for repetition in range(site.scale.repeats):
            times.add(in_child(partial(_history_round, place, repetition), _TIMEOUT_S))
    run("rm", "-rf", base)
    found = _history_figures(times, f"{_CHANGED} of {site.scale.history_files:,} files changed")
    if site.scale.history_files >= _MARKED_FILES:
        return found
    # git takes longer the more files there are, and the marks are for that many.
    return [each if each.name == "save-btrfs" else replace(each, mark=None) for each in found]


@dataclass(frozen=True)
class _Place:
    workspace: Path
    store: Path
    plain: Path
    files: list[str]
    git: ShadowGit
    btrfs: Btrfs | None


def _history_round(place: _Place, repetition: int) -> Times:
    """Change, compare and save; change again and go back."""
    times = Times()
    with product.connect(place.workspace, place.store) as client:
        _change(place, 2 * repetition)
        times.take("diff", lambda: client.call("diff", {"older": "", "newer": ""}))
        times.take("git diff", place.git.name_status)
        times.take("save", lambda: client.call("save", {"message": "bench"}))
        times.take("git commit", place.git.commit)
        if place.btrfs is not None:
            times.take("btrfs", place.btrfs.snapshot)
        _change(place, 2 * repetition + 1)
        times.take("restore", lambda: client.call("restore", {"checkpoint": "latest"}))
        times.take("git reset", place.git.reset)
    return times


def _change(place: _Place, seed: int) -> None:
    for root in (place.workspace, place.plain, *([place.btrfs.tree] if place.btrfs else [])):
        edit(root, place.files, seed)


def _history_figures(times: Times, what: str) -> list[Figure]:
    found = [
        times.ratio("save", f"save, {what}, as shadow git's commit", "save", "git commit", 1 / 50),
        times.ratio("restore", f"restore, {what}, as git's reset", "restore", "git reset", 1 / 20),
        times.ratio("diff", f"diff, {what}, as git's diff", "diff", "git diff", 1 / 20),
    ]
    title = f"save, {what}, as a btrfs snapshot"
    if "btrfs" in times.seconds:
        return [*found, times.ratio("save-btrfs", title, "save", "btrfs", 1.0)]
    return [*found, Figure("save-btrfs", title, 0, "times", note="no btrfs can be mounted here")]


# -- save at any size ------------------------------------------------------------------------------


@figure("save-flat")
def save_flat(site: Site) -> list[Figure]:
    """The same save with few and with many files around it, in turns."""
    base = site.base / "flat"
    few, *more = site.scale.flat_files
    times = Times()
    with ExitStack() as stack:
        places = [_flat(base, count, stack) for count in site.scale.flat_files]
        for repetition in range(4 * site.scale.repeats):
            for count, workspace, store in places:
                save = partial(_change_and_save, f"{count}", workspace, store, repetition)
                times.add(in_child(save, _TIMEOUT_S))
    run("rm", "-rf", base)
    return [
        times.ratio(
            "save-flat",
            f"save with {count:,} files around it, as with {few:,}",
            f"{count}",
            f"{few}",
            1.2,
        )
        for count in more
    ]


def _flat(base: Path, count: int, stack: ExitStack) -> tuple[int, Path, Path]:
    """A mounted workspace with so many files."""
    workspace, store = base / f"workspace-{count}", base / f"store-{count}"
    for number in range(count):
        if number % 1_000 == 0:
            parent = workspace / f"{number // 1_000:04}"
            parent.mkdir(parents=True)
        os.close(os.open(f"{parent}/{number:07}", os.O_CREAT | os.O_WRONLY, 0o644))
    stack.enter_context(mounted(workspace, store, "--no-write-back"))
    return count, workspace, store


def _change_and_save(name: str, workspace: Path, store: Path, seed: int) -> Times:
    times = Times()
    with product.connect(workspace, store) as client:
        edit(workspace, [f"0000/{number:07}" for number in range(_CHANGED)], seed)
        times.take(name, lambda: client.call("save", {"message": "bench"}))
    return times


# -- the whole command -----------------------------------------------------------------------------


@figure("save-command")
def save_command(site: Site) -> list[Figure]:
    base = site.base / "command"
    workspace, store = base / "workspace", base / "store"
    workspace.mkdir(parents=True)
    program = Path(sys.executable).with_name("ckptfs")
    save = [program, "save", "--allow-empty", "-w", workspace]
    # As a user has it: compiled before, whatever the environment of the benchmark says.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(base / "compiled")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    times = Times()
    with mounted(workspace, store, "--no-write-back"):
        _start(save, env)
        for _ in range(4 * site.scale.repeats):
            times.take("save", partial(_start, save, env))
            times.take("pass", partial(_start, [sys.executable, "-c", "pass"], env))
    run("rm", "-rf", base)
    pairs = zip(times.seconds["save"], times.seconds["pass"], strict=True)
    more = statistics.median(mine - theirs for mine, theirs in pairs) * 1e3
    note = f"{seconds_text(times.median('save'))} against {seconds_text(times.median('pass'))}"
    title = "ckptfs save as a process, above python -c pass"
    return [Figure("save-command", title, more, "ms", 60.0, note=note)]


def _start(command: list[str | Path], env: dict[str, str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, cwd="/", env=env, check=True)


# -- room ------------------------------------------------------------------------------------------


@figure("store-size")
def store_size(site: Site) -> list[Figure]:
    """The history of this very repository, once as checkpoints and once as shadow commits."""
    base = site.base / "size"
    workspace, store, plain = base / "workspace", base / "store", base / "plain"
    for directory in (workspace, plain):
        directory.mkdir(parents=True)
    commits = _commits(site.scale.commits)
    git = ShadowGit(base / "shadow", plain)
    for commit in commits:
        _check_out(commit, plain, base / "plain.index")
        git.commit()
    with mounted(workspace, store, "--no-write-back", "--auto", "off"):
        mine = in_child(partial(_replay, commits, workspace, store, base), _TIMEOUT_S)
    theirs = git.packed_bytes()
    run("rm", "-rf", base)
    title = f"store with {len(commits)} checkpoints of this repository, as shadow git after gc"
    note = f"{mine / 1e6:.2f} MB against {theirs / 1e6:.2f} MB"
    return [Figure("store-size", title, mine / theirs, "times", 1.0, note=note)]


def _commits(most: int) -> list[str]:
    command = [*GIT, "-C", _CHECKOUT, "rev-list", "--reverse", "HEAD"]
    every = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return spaced(every, most)


def spaced(every: Sequence[str], most: int) -> list[str]:
    """So many of them, evenly from the first to the last."""
    if len(every) <= most:
        return list(every)
    return [every[round(n * (len(every) - 1) / (most - 1))] for n in range(most)]


def _check_out(commit: str, work_tree: Path, index: Path) -> None:
    """Make a directory what a commit has, and touch only what differs."""
    git = [*GIT, f"--git-dir={_CHECKOUT / '.git'}", f"--work-tree={work_tree}"]
    run("env", f"GIT_INDEX_FILE={index}", *git, "read-tree", "-u", "--reset", commit)


def _replay(commits: list[str], workspace: Path, store: Path, base: Path) -> int:
    """How large the store is when it was compacted; what comes after that grows it again."""
    with product.connect(workspace, store) as client:
        for commit in commits:
            _check_out(commit, workspace, base / "workspace.index")
            client.call("save", {"message": commit, "allow_empty": True})
        client.call("compact")
        return (store / "data.mdb").stat().st_size


# -- automatic checkpoints -------------------------------------------------------------------------


@figure("auto")
def auto(site: Site) -> list[Figure]:
    """Writes with automatic checkpoints on and off, by a new command each time."""
    base = site.base / "auto"
    times = Times()
    on, off = base / "on", base / "off"
    for workspace in (on, off):
        workspace.mkdir(parents=True)
    with (
        mounted(on, base / "on-store", "--no-write-back"),
        mounted(off, base / "off-store", "--no-write-back", "--auto", "off"),
    ):
        for repetition in range(2 * site.scale.repeats):
            order = [on, off] if repetition % 2 else [off, on]
            for workspace in order:
                write = partial(_write_files, workspace / f"{repetition}", site.scale.files)
                times.take(workspace.name, partial(in_child, write, _TIMEOUT_S))
    run("rm", "-rf", base)
    title = f"writing {site.scale.files:,} files twice, automatic checkpoints on, as off"
    return [times.ratio("auto", title, "on", "off", 1.05)]


def _write_files(root: Path, count: int) -> None:
    root.mkdir()
    for data in (b"first" * 200, b"second" * 200):
        for number in range(count):
            (root / f"{number}").write_bytes(data)


# -- a disaster ------------------------------------------------------------------------------------


@figure("rm-restore")
def rm_restore(site: Site) -> list[Figure]:
    base = site.base / "disaster"
    workspace, store, plain = base / "workspace", base / "store", base / "plain"
    sources.write_tree(workspace / "tree", site.scale.tree_files)
    run("tar", "cf", base / "tree.tar", "-C", workspace, "tree")
    times = Times()
    with mounted(workspace, store, "--no-write-back"):
        for repetition in range(site.scale.repeats):
            target = plain / f"{repetition}"
            target.mkdir(parents=True)
            times.take("untar", partial(run, "tar", "xf", base / "tree.tar", "-C", target))
            times.add(in_child(partial(_lose_and_restore, workspace, store), _TIMEOUT_S))
    run("rm", "-rf", base)
    title = f"restore of {site.scale.tree_files:,} files after rm -rf, as untar on the disk"
    found = times.ratio("rm-restore", title, "restore", "untar", 1 / 3)
    return [found, Figure("rm-restore-rm", "the rm -rf before it", times.median("rm"), "s")]


def _lose_and_restore(workspace: Path, store: Path) -> Times:
    times = Times()
    with product.connect(workspace, store) as client:
        times.take("rm", partial(run, "rm", "-rf", workspace / "tree"))
        times.take("restore", lambda: client.call("restore", {"checkpoint": "0"}))
        if not any((workspace / "tree").iterdir()):
            raise RuntimeError("the restore brought nothing back")
    return times
