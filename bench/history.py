"""What a checkpoint, a diff and a restore cost, beside what people would use instead.

Everyone has the same files on the same disk and the same few of them changed, in one run.
"""

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import copytree

from bench import product, sources
from bench.child import in_child
from bench.contestants import mounted
from bench.figures import Found, Site, figure
from bench.keepers import BACKUPS, KEEPERS, SLOW_KEEPERS, Differ, Keeper
from bench.kit import NotToBeHad
from bench.outcome import Comparison, Figure
from bench.programs import run
from bench.timing import Times

TIMEOUT_S = 1_800.0
#: How many files change between two checkpoints.
CHANGED = 10
#: How many files the marks against git are for.
_MARKED_FILES = 50_000
_GROUP = "History: ckptfs beside other ways to keep one"
OURS = "ckptfs"


def edit(root: Path, paths: Iterable[str], seed: int) -> None:
    """Change some files a little, the same way wherever the same tree stands."""
    for path in random.Random(seed).sample(sorted(paths), CHANGED):
        with (root / path).open("ab") as file:
            file.write(b"changed %d\n" % seed)


class Ckptfs:
    """ckptfs as a keeper: its verbs over the socket, as a Python program calls them."""

    def __init__(self, workspace: Path, store: Path) -> None:
        self.tree = workspace
        self.store = store

    def save(self) -> None:
        self._call("save", {"message": "bench"})

    def restore(self) -> None:
        self._call("restore", {"checkpoint": "latest"})

    def diff(self) -> None:
        self._call("diff", {"older": "", "newer": ""})

    def size(self) -> int:
        self._call("compact", {})
        return (self.store / "data.mdb").stat().st_size

    def _call(self, verb: str, arguments: dict[str, object]) -> None:
        with product.connect(self.tree, self.store) as client:
            client.call(verb, arguments)


@contextmanager
def open_keepers(site: Site, base: Path, names: Iterable[str]) -> Iterator[dict[str, Keeper]]:
    """The keepers that the run has and that can be had, each on an empty tree of its own."""
    with ExitStack() as stack:
        found: dict[str, Keeper] = {}
        for name in (each for each in names if each in site.rivals):
            try:
                found[name] = stack.enter_context(KEEPERS[name](site.kit, base / name))
            except NotToBeHad as error:
                site.skipped[name] = str(error)
        yield found


# -- save, diff and restore ------------------------------------------------------------------------


@figure("history")
def history(site: Site) -> Found:
    """Many files, by those that can cope with them."""
    names = [each for each in KEEPERS if each not in BACKUPS]
    count = site.scale.history_files
    times, everyone = _history(site, count, names)
    found = _history_comparisons(times, everyone, count)
    return [*found, *_history_figures(times, count)]


@figure("backups")
def backups(site: Site) -> Found:
    """Fewer files, by everyone: a copy of 50,000 files takes some of them minutes."""
    if not BACKUPS & set(site.rivals):
        return []
    count = site.scale.backup_files
    return _history_comparisons(*_history(site, count, list(KEEPERS)), count=count)


def _history(site: Site, count: int, names: list[str]) -> tuple[Times, list[str]]:
    base = site.base / f"history-{count}"
    workspace, store = base / "workspace", base / "store"
    sources.write_tree(workspace, count)
    files = [each.path for each in sources.tree_entries(count) if not each.link]
    times = Times()
    with open_keepers(site, base, names) as rivals:
        for rival in rivals.values():
            copytree(workspace, rival.tree, symlinks=True, dirs_exist_ok=True)
        with ExitStack() as stack:
            mount = mounted(workspace, store, "--no-write-back", "--auto", "off")
            times.take(f"first {OURS}", partial(stack.enter_context, mount))
            for name, rival in rivals.items():
                times.take(f"first {name}", rival.save)
            everyone = {OURS: Ckptfs(workspace, store), **rivals}
            # All in one child: a keeper remembers how often it saved.
            rounds = partial(_rounds, everyone, files, site.scale.repeats)
            times.add(in_child(rounds, TIMEOUT_S))
    run("rm", "-rf", base)
    return times, list(everyone)


def _rounds(everyone: dict[str, Keeper], files: list[str], repeats: int) -> Times:
    times = Times()
    for repetition in range(repeats):
        part = {k: v for k, v in everyone.items() if not repetition or k not in SLOW_KEEPERS}
        times.add(_round(part, files, repetition))
    return times


def _round(everyone: dict[str, Keeper], files: list[str], repetition: int) -> Times:
    """Change, compare and save; change again and go back."""
    times = Times()
    order = list(everyone) if repetition % 2 == 0 else list(reversed(everyone))
    _change(everyone, files, 2 * repetition)
    for name in order:
        if isinstance(keeper := everyone[name], Differ):
            times.take(f"diff {name}", keeper.diff)
    for name in order:
        times.take(f"save {name}", everyone[name].save)
    _change(everyone, files, 2 * repetition + 1)
    for name in order:
        times.take(f"restore {name}", everyone[name].restore)
    return times


def _change(everyone: dict[str, Keeper], files: list[str], seed: int) -> None:
    for each in everyone.values():
        edit(each.tree, files, seed)


def _history_comparisons(times: Times, names: list[str], count: int) -> list[Comparison]:
    what = f"{CHANGED} of {count:,} files changed"
    rows = {
        "first": f"the first time: {count:,} files taken over",
        "save": f"save, {what}",
        "diff": f"diff, {what}",
        "restore": f"restore, {what}",
    }
    return [
        times.comparison(f"history-{key}-{count}", _GROUP, title, key, names)
        for key, title in rows.items()
    ]


def _history_figures(times: Times, count: int) -> list[Figure]:
    what = f"{CHANGED} of {count:,} files changed"
    found = []
    # git takes longer the more files there are, and the marks are for that many.
    marks = {"save": 1 / 50, "restore": 1 / 20, "diff": 1 / 20}
    for verb, mark in marks.items():
        if f"{verb} git" in times.seconds:
            title = f"{verb}, {what}, as shadow git's"
            each = times.ratio(verb, title, f"{verb} {OURS}", f"{verb} git", mark)
            found.append(each if count >= _MARKED_FILES else replace(each, mark=None))
    if "save btrfs" in times.seconds:
        title = f"save, {what}, as a btrfs snapshot"
        found.append(times.ratio("save-btrfs", title, f"save {OURS}", "save btrfs", 1.0))
    return found


# -- looking around in a checkpoint ----------------------------------------------------------------


@dataclass(frozen=True)
class _Browsing:
    live: Path
    past: Path


@figure("browse")
def browse(site: Site) -> Found:
    """grep in a checkpoint and in the live tree, both warm."""
    base = site.base / "browse"
    workspace, store = base / "workspace", base / "store"
    sources.write_tree(workspace / "tree", site.scale.tree_files)
    with mounted(workspace, store, "--no-write-back", "--auto", "off"):
        Ckptfs(workspace, store).save()
        places = _Browsing(workspace / "tree", workspace / ".checkpoints" / "latest" / "tree")
        times = in_child(partial(_browse, places, 2 * site.scale.repeats), TIMEOUT_S)
    run("rm", "-rf", base)
    title = f"grep -r of {site.scale.tree_files:,} files in a checkpoint, as in the live tree"
    return [times.ratio("browse", title, "past", "live", 1.2)]


def _browse(places: _Browsing, repeats: int) -> Times:
    times = Times()
    for place in (places.live, places.past):
        _grep(place)
    for repetition in range(repeats):
        order = [("live", places.live), ("past", places.past)]
        for name, place in order if repetition % 2 else reversed(order):
            times.take(name, partial(_grep, place))
    return times


def _grep(place: Path) -> None:
    # Resolved, since grep -r does not follow a link that it is given below others.
    run("grep", "-r", "NoSuchWordAnywhere", os.path.realpath(place), expect=1)
