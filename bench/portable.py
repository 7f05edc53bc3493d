"""The portable path beside the compiled one: the same work through both, in turns.

Both are mounts of this checkout with stores on the same disk; one has the compiled server switched
off. A figure is the median of the ratios of each round.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import product, sources
from bench.child import in_child
from bench.contestants import mounted
from bench.figures import Found, Site, figure
from bench.outcome import Comparison, Figure
from bench.programs import GIT, run
from bench.stats import paired_ratio

_MARK = 3.0
_TIMEOUT_S = 600.0
#: The daemons commit what was written before the next row begins.
_COMMIT_S = 1.5

COMPILED = replace(product.HERE, name="compiled")
PORTABLE = replace(product.HERE, name="portable", environment=(("CKPTFS_SERVER", "off"),))

_TITLES = {
    "untar": "untar of {} files",
    "grep": "`grep -r` over them, warm",
    "git-status": "`git status` of them, warm",
    "rm": "`rm -rf` of them",
}


@figure("portable")
def portable(site: Site) -> Found:
    base = site.base / "portable"
    base.mkdir()
    archive = _archive(base, site.scale.tree_files)
    times: dict[str, dict[str, list[float]]] = {row: {} for row in _TITLES}
    with ExitStack() as stack:
        places = {by.name: _workspace(base, by, stack) for by in (COMPILED, PORTABLE)}
        for number in range(site.scale.repeats):
            order = list(places) if number % 2 else list(places)[::-1]
            for name in order:
                round_ = partial(_round, places[name], archive)
                for row, seconds in in_child(round_, _TIMEOUT_S).items():
                    times[row].setdefault(name, []).append(seconds)
    run("rm", "-rf", base)
    return list(_found(times, site.scale.tree_files))


def _archive(base: Path, files: int) -> Path:
    tree, archive = base / "tree", base / "tree.tar"
    sources.write_tree(tree, files)
    run("tar", "-cf", archive, "-C", base, "tree")
    run("rm", "-rf", tree)
    return archive


def _workspace(base: Path, by: product.Installation, stack: ExitStack) -> Path:
    workspace = base / by.name
    workspace.mkdir()
    stack.enter_context(mounted(workspace, base / f"{by.name}-store", "--no-write-back", by=by))
    return workspace


def _round(root: Path, archive: Path) -> dict[str, float]:
    """Seconds of each row. Warm is what the kernel has answered twice before."""
    tree = root / "tree"
    took = {"untar": _timed(lambda: run("tar", "-xf", archive, "-C", root))}
    time.sleep(_COMMIT_S)
    grep = partial(run, "grep", "-r", "no such words", tree, expect=1)
    took["grep"] = _warm(grep)
    run(*GIT, "-C", tree, "init", "-q")
    run(*GIT, "-C", tree, "add", "-A")
    time.sleep(_COMMIT_S)
    took["git-status"] = _warm(partial(run, *GIT, "-C", tree, "status"))
    run("rm", "-rf", tree / ".git")
    time.sleep(_COMMIT_S)
    took["rm"] = _timed(lambda: run("rm", "-rf", tree))
    time.sleep(_COMMIT_S)
    return took


def _warm(work: Callable[[], None]) -> float:
    work()
    work()
    return _timed(work)


def _timed(work: Callable[[], None]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _found(times: dict[str, dict[str, list[float]]], files: int) -> Iterator[Figure | Comparison]:
    for row, title in _TITLES.items():
        columns = times[row]
        ratio = paired_ratio(columns[PORTABLE.name], columns[COMPILED.name])
        what = title.format(f"{files:,}")
        note = f"{ratio.low:.2f} to {ratio.high:.2f}"
        name = f"portable-{row}"
        label = f"portable path: {what}"
        yield Figure(name, label, ratio.median, "times the compiled path", _MARK, note=note)
        yield Comparison(name, "The two paths from the kernel", what, "s", columns)
