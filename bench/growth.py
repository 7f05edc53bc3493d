"""How long the verbs take as a workspace grows: in files, and in checkpoints.

A verb whose time does not depend on either is flat: its figure is the time at the largest as a
multiple of that at the smallest.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import product
from bench.child import in_child
from bench.contestants import mounted
from bench.figures import Found, Site, figure
from bench.history import CHANGED, TIMEOUT_S, edit
from bench.outcome import Comparison, Figure
from bench.programs import run
from bench.timing import Times

_FLAT_MARK = 1.2
#: What is timed, in the order it is done in.
_VERBS = ("diff", "save", "list", "restore", "delete", "prune")
#: Those that are held to be flat.
_FLAT = ("save", "diff", "restore")
#: The files that change: always among the first.
_EDITED = [f"0000/{number:07}" for number in range(CHANGED)]
#: Checkpoints that one call lists; people look at the newest.
_LISTED = 20


@figure("growth-files")
def growth_files(site: Site) -> Found:
    """The same with few and with many files around it, in turns."""
    base = site.base / "files"
    with ExitStack() as stack:
        places = {
            f"{count:,} files": _workspace(base, count, stack) for count in site.scale.flat_files
        }
        times = _rounds(places, 3 * site.scale.repeats)
    run("rm", "-rf", base)
    return _found(times, "files", "ckptfs by number of files", list(places))


@figure("growth-checkpoints")
def growth_checkpoints(site: Site) -> Found:
    """The same with few and with many checkpoints before it, in turns."""
    base = site.base / "checkpoints"
    with ExitStack() as stack:
        places = {}
        for count in site.scale.flat_checkpoints:
            place = _workspace(base / f"{count}", 1_000, stack)
            in_child(partial(_take, *place, count), TIMEOUT_S)
            places[f"{count:,} checkpoint{'s' if count > 1 else ''}"] = place
        times = _rounds(places, 3 * site.scale.repeats)
    run("rm", "-rf", base)
    return _found(times, "checkpoints", "ckptfs by number of checkpoints", list(places))


def side_by_side(
    base: Path, both: Sequence[product.Installation], repeats: int
) -> list[Comparison]:
    """The verbs of two revisions, in turns, with 1,000 files and a few checkpoints each."""
    with ExitStack() as stack:
        places = {}
        for number, by in enumerate(both):
            place = _workspace(base / f"verbs-{number}", 1_000, stack, by)
            in_child(partial(_take, *place, 10), TIMEOUT_S)
            places[by.name] = place
        times = _rounds(places, 4 * repeats)
    return [times.comparison(verb, "verbs", _title(verb), verb, list(places)) for verb in _VERBS]


def _rounds(places: dict[str, tuple[Path, Path]], repeats: int) -> Times:
    times = Times()
    for repetition in range(repeats):
        for column, place in places.items():
            times.add(in_child(partial(_round, column, *place, 2 * repetition), TIMEOUT_S))
    return times


def _workspace(
    base: Path, count: int, stack: ExitStack, by: product.Installation = product.HERE
) -> tuple[Path, Path]:
    """A mounted workspace with so many files, and its store."""
    workspace, store = base / f"workspace-{count}", base / f"store-{count}"
    for number in range(count):
        if number % 1_000 == 0:
            parent = workspace / f"{number // 1_000:04}"
            parent.mkdir(parents=True)
        os.close(os.open(f"{parent}/{number:07}", os.O_CREAT | os.O_WRONLY, 0o644))
    stack.enter_context(mounted(workspace, store, "--no-write-back", "--auto", "off", by=by))
    return workspace, store


def _take(workspace: Path, store: Path, count: int) -> None:
    with product.connect(workspace, store) as client:
        for number in range(count):
            edit(workspace, _EDITED, number)
            client.call("save", {"message": f"{number}"})


def _round(column: str, workspace: Path, store: Path, seed: int) -> Times:
    """Every verb once; in the end there are as many checkpoints as before."""
    times = Times()
    with product.connect(workspace, store) as client:

        def timed(verb: str, arguments: dict[str, object]) -> Callable[[], object]:
            return lambda: times.take(f"{verb} {column}", lambda: client.call(verb, arguments))

        edit(workspace, _EDITED, seed)
        timed("diff", {"older": "", "newer": ""})()
        timed("save", {"message": "bench"})()
        timed("list", {"limit": _LISTED})()
        edit(workspace, _EDITED, seed + 1)
        timed("restore", {"checkpoint": "latest"})()
        newest = client.call("list", {"limit": 2})["checkpoints"]
        timed("delete", {"checkpoints": [str(each["id"]) for each in newest]})()
        timed("prune", {})()
    return times


def _found(
    times: Times, name: str, group: str, columns: Sequence[str]
) -> list[Figure | Comparison]:
    comparisons = [
        times.comparison(f"{verb}-by-{name}", group, _title(verb), verb, columns) for verb in _VERBS
    ]
    first, last = columns[0], columns[-1]
    figures = [
        times.ratio(
            f"{verb}-flat",
            f"{verb} with {last}, as with {first}",
            f"{verb} {last}",
            f"{verb} {first}",
            _FLAT_MARK,
        )
        for verb in _FLAT
    ]
    return [*comparisons, *figures]


def _title(verb: str) -> str:
    titles = {
        "list": f"list the newest {_LISTED}",
        "delete": "delete two",
        "prune": "prune, nothing to expire",
    }
    return titles.get(verb, f"{verb}, {CHANGED} files changed")
