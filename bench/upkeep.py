"""What upkeep costs: how long others wait beside each verb, how verbs grow with checkpoints and
files, and how much room a day's work takes.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import process, product, sources
from bench.child import in_child
from bench.contestants import mounted
from bench.figures import HOUSEWORK_S, Found, Site, figure
from bench.history import TIMEOUT_S, open_keepers
from bench.keepers import Keeper
from bench.outcome import DAY_GROUP, Comparison, Figure
from bench.prober import Waits, probing
from bench.programs import run
from bench.room import check_out, commits_of_this
from bench.timing import Times

_OPTIONS = ("--no-write-back", "--auto", "off")
_MS = 1e3

# -- how long others wait --------------------------------------------------------------------------

#: How long the prober runs alone, for comparison.
_ALONE_S = 3.0
#: It goes on for at least as long beside a verb, so that a percentile has something to stand on.
_BESIDE_S = 1.0
#: Files that change between two checkpoints, and in whose directory the prober works.
_EDITED = 100
_PROBED = "probed"

#: The longest wait of a request beside the verb, in ms, where one is promised.
_LONGEST_MARKS = {
    "check": 50.0,
    "check-deep": 50.0,
    "space": 20.0,
    "diff": 20.0,
    "restore": 20.0,
    "undo": 20.0,
    "compact": 100.0,
}
#: The slowest of a hundred calls beside the verb, as a multiple of that without it.
_SLOWEST_MARKS = {"delete": 2.0, "purge": 2.0}


@dataclass(frozen=True)
class Verb:
    name: str
    title: str
    op: str
    arguments: dict[str, object]


def _verbs(first: int, last: int) -> list[Verb]:
    """In an order in which each finds work: what destroys comes last."""
    third = [str(number) for number in range(first + 1, first + 1 + (last - first) // 3)]
    return [
        Verb("check", "check", "check", {"deep": False}),
        Verb("check-deep", "check --deep", "check", {"deep": True}),
        Verb("space", "status --space", "space", {}),
        Verb("diff", "diff, every file is new", "diff", {"older": f"{first}", "newer": f"{last}"}),
        Verb("log", "log of a file that always changes", "log", {"path": "edited/0"}),
        Verb("list", "list --all", "list", {"moments": True}),
        Verb("restore", "restore, every file goes", "restore", {"checkpoint": f"{first}"}),
        Verb("undo", "undo, every file comes back", "undo", {}),
        Verb("delete", "delete a third of the checkpoints", "delete", {"checkpoints": third}),
        Verb("purge", "purge half of the files", "purge", {"paths": ["tree/node_modules"]}),
        Verb("compact", "compact", "compact", {}),
    ]


@figure("upkeep-waits")
def waits(site: Site) -> Found:
    """A prober creates, stats and fsyncs every 10 ms beside each verb."""
    base = site.base / "waits"
    workspace, store = base / "workspace", base / "store"
    workspace.mkdir(parents=True)
    found: list[Figure | Comparison] = []
    with mounted(workspace, store, *_OPTIONS) as pid:
        lived = partial(_live, workspace, store, site.scale.upkeep_files, site.scale.upkeep_saves)
        first, last = in_child(lived, TIMEOUT_S)
        for verb in _verbs(first, last):
            process.wait_until_quiet(pid, HOUSEWORK_S)
            cpu = process.cpu_ns(pid)
            alone, beside, took = in_child(partial(_beside, workspace, store, verb), TIMEOUT_S)
            used = (process.cpu_ns(pid) - cpu) / 1e9
            found += _waits_found(verb, alone, beside, f"took {took:.2f} s, daemon {used:.2f} s")
    run("rm", "-rf", base)
    return found


def _live(workspace: Path, store: Path, files: int, saves: int) -> tuple[int, int]:
    """A history: an empty workspace, a tree, edits. The numbers of its first and last
    checkpoint."""
    (workspace / "edited").mkdir()
    (workspace / _PROBED).mkdir()
    with product.connect(workspace, store) as client:
        first = int(client.call("save", {"message": "before", "allow_empty": True})["id"])
        sources.write_tree(workspace / "tree", files)
        for number in range(saves):
            for name in range(_EDITED):
                text = f"{number} {name}\n" * 200
                (workspace / "edited" / f"{name}").write_text(text)
            saved = client.call("save", {"message": f"{number}"})
        client.call("sync", {})
    return first, int(saved["id"])


def _beside(workspace: Path, store: Path, verb: Verb) -> tuple[Waits, Waits, float]:
    with probing(workspace / _PROBED) as alone:
        time.sleep(_ALONE_S)
    with product.connect(workspace, store) as client, probing(workspace / _PROBED) as beside:
        begun = time.monotonic()
        client.call(verb.op, verb.arguments)
        took = time.monotonic() - begun
        time.sleep(max(0.0, _BESIDE_S - took))
    return alone, beside, took


def _waits_found(verb: Verb, alone: Waits, beside: Waits, note: str) -> Found:
    columns = {
        "p50 alone": [alone.percentile(0.5) * _MS],
        "p50 beside": [beside.percentile(0.5) * _MS],
        "p99 alone": [alone.percentile(0.99) * _MS],
        "p99 beside": [beside.percentile(0.99) * _MS],
        "longest alone": [alone.longest * _MS],
        "longest beside": [beside.longest * _MS],
    }
    name = f"waits-{verb.name}"
    group = "Waiting beside upkeep"
    found: list[Figure | Comparison] = [
        Comparison(name, group, verb.title, "ms", columns, note=note)
    ]
    if verb.name in _LONGEST_MARKS:
        title = f"longest wait of a request beside {verb.title}"
        mark = _LONGEST_MARKS[verb.name]
        found.append(Figure(name, title, beside.longest * _MS, "ms", mark, note=note))
    if verb.name in _SLOWEST_MARKS:
        title = f"p99 of a call beside {verb.title}, as without it"
        times = beside.percentile(0.99) / alone.percentile(0.99)
        found.append(Figure(name, title, times, "times", _SLOWEST_MARKS[verb.name], note=note))
    return found


# -- growth ----------------------------------------------------------------------------------------


@figure("upkeep-checkpoints")
def by_checkpoints(site: Site) -> Found:
    """Verbs that look at all of history, with few and with many checkpoints."""
    base = site.base / "upkeep-checkpoints"
    times = Times()
    columns = [f"{count:,} checkpoints" for count in site.scale.upkeep_checkpoints]
    for count, column in zip(site.scale.upkeep_checkpoints, columns, strict=True):
        workspace, store = base / f"workspace-{count}", base / f"store-{count}"
        workspace.mkdir(parents=True)
        with mounted(workspace, store, *_OPTIONS) as pid:
            in_child(partial(_save_often, workspace, store, count), TIMEOUT_S)
            looks = partial(_look_back, workspace, store, column)
            times.add(in_child(partial(looks, _LOOKS), TIMEOUT_S))
            if count >= _MANY:
                time.sleep(_IDLE_S)
                process.wait_until_quiet(pid, _PACKING_S)
                times.add(in_child(partial(looks, _LATER_LOOKS), TIMEOUT_S))
    run("rm", "-rf", base)
    group = "Upkeep by number of checkpoints"
    found = [
        times.comparison(f"{verb}-by-checkpoints", group, title, verb, columns)
        for verb, title in (_LOOKS | _LATER_LOOKS).items()
    ]
    return [each for each in found if each.columns]


_LOOKS = {
    "check": "check",
    "log": "log of a file that changed each time",
    "list": "list --all, right after the last save",
    "ls": "ls -l .checkpoints",
    "prune": "prune, nothing to expire",
    "space": "status --space",
}
#: What is quicker once the daemon was idle, which counts then what each checkpoint changed.
_LATER_LOOKS = {"later-list": "list --all, after half a minute without a request"}
#: With so many checkpoints it is given the time: that begins after 15 seconds.
_MANY, _IDLE_S, _PACKING_S = 10_000, 30.0, 120.0


def _save_often(workspace: Path, store: Path, count: int) -> None:
    with product.connect(workspace, store) as client:
        for number in range(count):
            (workspace / "changed").write_text(f"{number}\n")
            (workspace / f"{number % 100}").write_text(f"{number}\n")
            client.call("save", {"message": f"{number}"})


def _look_back(workspace: Path, store: Path, column: str, looks: Mapping[str, str]) -> Times:
    times = Times()
    with product.connect(workspace, store) as client:
        asked: dict[str, Callable[[], object]] = {
            "check": partial(client.call, "check", {"deep": False}),
            "log": partial(client.call, "log", {"path": "changed"}),
            "list": partial(client.call, "list", {"moments": True}),
            "later-list": partial(client.call, "list", {"moments": True}),
            "ls": partial(run, "ls", "-l", workspace / ".checkpoints"),
            "prune": partial(client.call, "prune", {"dry_run": True}),
            "space": partial(client.call, "space", {}),
        }
        for verb in looks:
            times.take(f"{verb} {column}", asked[verb])
    return times


@figure("upkeep-files")
def by_files(site: Site) -> Found:
    """A directory taken over, given back after ten changes, and taken over again."""
    base = site.base / "upkeep-files"
    times = Times()
    columns = [f"{count:,} files" for count in site.scale.upkeep_trees]
    for count, column in zip(site.scale.upkeep_trees, columns, strict=True):
        workspace, store = base / f"workspace-{count}", base / f"store-{count}"
        in_child(partial(_make_tree, workspace, count), TIMEOUT_S)
        with ExitStack() as stack:
            mount = mounted(workspace, store, "--auto", "off")
            times.take(f"mount {column}", partial(stack.enter_context, mount))
            in_child(partial(_change, workspace, 10), TIMEOUT_S)
            times.take(f"umount {column}", partial(product.umount, workspace))
        with ExitStack() as stack:
            mount = mounted(workspace, store, "--auto", "off")
            times.take(f"remount {column}", partial(stack.enter_context, mount))
            times.take(f"first-listing {column}", partial(os.listdir, workspace))
            last = max(workspace.glob("[0-9]*"))
            times.take(f"first-directory {column}", partial(_look_at, last))
            times.take(f"first-change {column}", (workspace / "made").touch)
            times.take(f"umount-unchanged {column}", partial(product.umount, workspace))
        run("rm", "-rf", workspace, store)
    titles = {
        "mount": "mount, the first time",
        "umount": "umount, ten files changed",
        "remount": "mount again, nothing changed below",
        "first-listing": "then the first listing of its root",
        "first-directory": "then a stat of every file in one of its directories",
        "first-change": "then the first change, which waits for the end of the scan",
        "umount-unchanged": "umount, one file made",
    }
    group = "Mount and umount by number of files"
    return [
        times.comparison(f"{verb}-by-files", group, title, verb, columns)
        for verb, title in titles.items()
    ]


def _look_at(directory: Path) -> None:
    for entry in os.scandir(directory):
        entry.stat()


def _make_tree(root: Path, count: int) -> None:
    for number in range(count):
        if number % 1_000 == 0:
            parent = root / f"{number // 1_000:05}"
            parent.mkdir(parents=True)
        (parent / f"{number:07}").write_bytes(b"%d\n" % number)


def _change(root: Path, count: int) -> None:
    for number in range(count):
        (root / "00000" / f"{number:07}").write_bytes(b"changed\n")


# -- a day's work ----------------------------------------------------------------------------------

#: At how many points of the day the sizes are looked at.
_LOOKS_A_DAY = 6
_IDLE_S = 60.0
#: What the store may take after a minute of idleness, as a multiple of what `compact` leaves.
_IDLE_MARK = 1.3


@figure("day")
def day(site: Site) -> Found:
    """The last commits of this repository as tool calls of an agent; then a minute of idleness."""
    base = site.base / "day"
    workspace, store = base / "workspace", base / "store"
    workspace.mkdir(parents=True)
    commits = commits_of_this(site.scale.day_commits)
    sizes: dict[str, dict[str, float]] = {}
    with (
        open_keepers(site, base, ["git"]) as rivals,
        mounted(workspace, store, "--no-write-back"),
    ):
        git = rivals.get("git")
        done = 0
        for end in _points(len(commits), _LOOKS_A_DAY):
            part = commits[done:end]
            in_child(partial(_tool_calls, workspace, store, part, base / "index"), TIMEOUT_S)
            row = {"ckptfs": _taken(store)}
            if git is not None:
                in_child(partial(_saves, git, part, base / "git.index"), TIMEOUT_S)
                row["git"] = _taken(base / "git" / "shadow")
            sizes[f"after {end} tool calls"] = row
            done = end
        time.sleep(_IDLE_S)
        sizes["after a minute of idleness"] = {"ckptfs": _taken(store)}
        product.ckptfs("compact", "-w", workspace)
        sizes["after compact, after gc"] = {"ckptfs": _taken(store)}
        if git is not None:
            sizes["after compact, after gc"]["git"] = in_child(git.size, TIMEOUT_S) / 1e6
    run("rm", "-rf", base)
    return list(_day_found(sizes))


def _points(count: int, parts: int) -> list[int]:
    return sorted({count * part // parts for part in range(1, parts + 1)} - {0})


def _tool_calls(workspace: Path, store: Path, commits: list[str], index: Path) -> None:
    """Each commit as an agent makes it: a checkpoint before the tool call, then the edits."""
    with product.connect(workspace, store) as client:
        for number, commit in enumerate(commits):
            call = {"kind": "hook", "message": f"Edit {commit[:12]}"}
            client.call("mark", call | {"metadata": {"session": "day", "tool_use_id": f"{number}"}})
            check_out(commit, workspace, index)


def _saves(git: Keeper, commits: list[str], index: Path) -> None:
    for commit in commits:
        check_out(commit, git.tree, index)
        git.save()


def _taken(directory: Path) -> float:
    """MB on the disk."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return sum(path.stat().st_blocks for path in paths) * 512 / 1e6


def _day_found(sizes: dict[str, dict[str, float]]) -> Iterator[Figure | Comparison]:
    for title, row in sizes.items():
        columns = {name: [size] for name, size in row.items()}
        yield Comparison(f"day: {title}", DAY_GROUP, title, "MB", columns)
    idle = sizes["after a minute of idleness"]["ckptfs"]
    compact = sizes["after compact, after gc"]
    note = f"{idle:.2f} MB against {compact['ckptfs']:.2f} MB"
    title = "store a minute after a day's work, as after compact"
    yield Figure("day", title, idle / compact["ckptfs"], "times", _IDLE_MARK, note=note)
    if "git" in compact:
        note = f"{idle:.2f} MB against {compact['git']:.2f} MB"
        title = "store a minute after a day's work, as shadow git after gc"
        yield Figure("day-git", title, idle / compact["git"], "times", 1.0, note=note)
