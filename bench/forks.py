"""Forks and merges: what they cost beside git's and beside a copy, and how fast programs are in a
fork.

Everyone has the same files on the same disk. Times of ckptfs are those of its verbs over the
socket, as a Python program calls them; those of git and cp are whole commands.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import process, product, quiet, sources
from bench.child import in_child
from bench.contestants import mounted
from bench.figures import HOUSEWORK_S, Found, Site, figure
from bench.history import CHANGED, TIMEOUT_S, edit
from bench.outcome import Comparison, Figure
from bench.programs import GIT, run
from bench.scale import Scale
from bench.timing import Times

_OPTIONS = ("--no-write-back", "--auto", "off")
_GROUP = "Forks and merges"
_OURS, _GIT, _COPY = "ckptfs", "git worktree", "cp -a"
_FLAT_MARK = 1.2
#: A fork as a share of `git worktree add` and of a copy; a merge as one of `git merge`, among so
#: many files.
_FORK_MARK, _MERGE_MARK = 1 / 100, 1 / 20
_MARKED_FILES = 50_000
_MEMORY_MARK_MB = 10.0
#: How many forks stand idle while memory is looked at.
_IDLE_FORKS = 100
#: A program in a fork as a multiple of the same in the live tree.
_SPEED_MARK = 1.2
_MB = 1_000_000
_ABSENT = "a text that is nowhere in it"


@figure("fork")
def fork(site: Site) -> Found:
    """Making and deleting a fork of small and of large trees."""
    base = site.base / "forks"
    times, counts = Times(), site.scale.fork_files
    found: list[Figure | Comparison] = []
    for count in counts:
        times.add(_forked(base / f"{count}", count, site.scale))
        name, title = f"fork-{count}", f"fork of {count:,} files"
        found.append(times.comparison(name, _GROUP, title, name, [_OURS, _GIT, _COPY]))
    run("rm", "-rf", base)
    small, large = (f"fork-{count} {_OURS}" for count in (counts[0], counts[-1]))
    for rival, name in ((_GIT, "git"), (_COPY, "copy")):
        title = f"fork of {counts[-1]:,} files, as a share of {rival}"
        theirs = f"fork-{counts[-1]} {rival}"
        found.append(times.ratio(f"fork-{name}", title, large, theirs, _FORK_MARK))
    title = f"fork of {counts[-1]:,} files, as of {counts[0]:,}"
    found.append(times.ratio("fork-flat", title, large, small, _FLAT_MARK))
    pair = (f"delete-{counts[-1]}", f"delete-{counts[0]}")
    title = f"delete of a fork of {counts[-1]:,} files, as of {counts[0]:,}"
    found.append(times.ratio("fork-delete-flat", title, *pair, _FLAT_MARK))
    return found


def _forked(base: Path, count: int, scale: Scale) -> Times:
    workspace, store = base / "workspace", base / "store"
    sources.write_tree(workspace, count)
    _make_repository(workspace)
    run("cp", "-a", workspace, base / "plain")
    with mounted(workspace, store, *_OPTIONS):
        return in_child(partial(_fork_rounds, base, count, scale), TIMEOUT_S)


def _fork_rounds(base: Path, count: int, scale: Scale) -> Times:
    workspace, store, plain = base / "workspace", base / "store", base / "plain"
    times = Times()
    files = [each.path for each in sources.tree_entries(count) if not each.link]
    with product.connect(workspace, store) as client:
        client.call("save", {"message": "base"})
        for number in range(scale.repeats):
            name = f"bench-{number}"
            made: list[dict[str, object]] = []

            def ours(name: str = name, made: list[dict[str, object]] = made) -> None:
                made.append(client.call("fork", {"name": name})["forks"][0])

            copy, tree = base / f"copy-{number}", base / f"tree-{number}"
            add = partial(_git, plain, "worktree", "add", "-q", "--detach", str(tree))
            times.take(f"fork-{count} {_OURS}", ours)
            if number < scale.rival_repeats:
                times.take(f"fork-{count} {_GIT}", add)
                reflink = ("cp", "-a", "--reflink=auto", plain, copy)
                times.take(f"fork-{count} {_COPY}", partial(run, *reflink))
                run("rm", "-rf", copy, tree)
            edit(Path(str(made[0]["path"])), files, number)
            delete = partial(client.call, "fork_delete", {"name": name, "force": True})
            times.take(f"delete-{count}", delete)
    return times


@figure("fork-merge")
def merge(site: Site) -> Found:
    """Ten files that both sides changed in different places, of many."""
    base, count = site.base / "merge", site.scale.history_files
    workspace, store, plain = base / "workspace", base / "store", base / "plain"
    sources.write_tree(workspace, count)
    _make_repository(workspace)
    run("cp", "-a", workspace, plain)
    with mounted(workspace, store, *_OPTIONS):
        times = in_child(partial(_merges, base, count, site.scale.repeats), TIMEOUT_S)
    run("rm", "-rf", base)
    title = f"merge of {CHANGED} changed files among {count:,}"
    shown = times.comparison("fork-merge", _GROUP, title, "merge", [_OURS, "git"])
    if count < _MARKED_FILES:
        return [shown]
    return [
        shown,
        times.ratio(
            "merge-git", f"{title}, as a share of git", f"merge {_OURS}", "merge git", _MERGE_MARK
        ),
    ]


def _merges(base: Path, count: int, repeats: int) -> Times:
    workspace, store, plain = base / "workspace", base / "store", base / "plain"
    files = [each.path for each in sources.tree_entries(count) if not each.link]
    times = Times()
    with product.connect(workspace, store) as client:
        for number in range(repeats):
            name = f"bench-{number}"
            made = client.call("fork", {"name": name})["forks"][0]
            edit(Path(made["path"]), files, 2 * number)
            edit(workspace, files, 2 * number + 1)
            asked = {"source": name, "resolution": "theirs"}
            times.take(f"merge {_OURS}", partial(client.call, "merge", asked))
            client.call("fork_delete", {"name": name, "force": True})
            _git(plain, "checkout", "-qb", name)
            edit(plain, files, 2 * number)
            _git(plain, "commit", "-qam", "theirs")
            _git(plain, "checkout", "-q", "-")
            edit(plain, files, 2 * number + 1)
            _git(plain, "commit", "-qam", "ours")
            merged = partial(_git, plain, "merge", "-q", "-X", "theirs", "-m", "merge", name)
            times.take("merge git", merged)
    return times


@figure("fork-memory")
def memory(site: Site) -> Found:
    """What the daemon needs for a hundred forks that nobody uses."""
    base = site.base / "fork-memory"
    workspace, store = base / "workspace", base / "store"
    sources.write_tree(workspace, site.scale.fork_files[0])
    with mounted(workspace, store, *_OPTIONS) as pid:
        process.wait_until_quiet(pid, HOUSEWORK_S)
        before = process.memory(pid).own
        in_child(partial(_idle_forks, workspace, store), TIMEOUT_S)
        process.wait_until_quiet(pid, HOUSEWORK_S)
        grown = (process.memory(pid).own - before) / _MB
    run("rm", "-rf", base)
    title = f"memory for {_IDLE_FORKS} idle forks"
    return [Figure("fork-memory", title, grown, "MB", _MEMORY_MARK_MB)]


def _idle_forks(workspace: Path, store: Path) -> None:
    with product.connect(workspace, store) as client:
        client.call("fork", {"name": "idle", "count": _IDLE_FORKS})


@figure("fork-speed")
def speed(site: Site) -> Found:
    """Programs in a fork and in the live tree, in turns."""
    base, count = site.base / "fork-speed", site.scale.tree_files
    workspace, store = base / "workspace", base / "store"
    sources.write_tree(workspace / "tree", count)
    _make_repository(workspace / "tree")
    run("tar", "-C", workspace, "-cf", base / "tree.tar", "tree")
    with mounted(workspace, store, *_OPTIONS):
        times = in_child(partial(_speeds, base, site.scale.repeats), TIMEOUT_S)
    run("rm", "-rf", base)
    return [
        times.ratio(
            f"fork-{name}",
            f"{name} in a fork, as in the live tree",
            f"{name} fork",
            f"{name} live",
            _SPEED_MARK,
        )
        for name in _ROWS
    ]


def _status(root: Path, _: Path) -> None:
    _git(root / "tree", "status", "--porcelain")


def _search(root: Path, _: Path) -> None:
    """By ripgrep, as agents search, where it is installed."""
    words = ("rg", "-uuq") if shutil.which("rg") else ("grep", "-rq")
    run(*words, _ABSENT, root / "tree", expect=1)


def _untar(root: Path, tar: Path) -> None:
    run("tar", "-C", root / "out", "-xf", tar)


_PROGRAMS: dict[str, Callable[[Path, Path], object]] = {
    "untar": _untar,
    "git-status": _status,
    "search": _search,
}
#: Those that are done with cold caches, too.
_READERS = ("git-status", "search")
_ROWS = (*_PROGRAMS, *(f"{name}-cold" for name in _READERS))


def _speeds(base: Path, repeats: int) -> Times:
    workspace, store = base / "workspace", base / "store"
    times = Times()
    with product.connect(workspace, store) as client:
        client.call("fork", {"name": "bench"})
        places = {"live": workspace, "fork": workspace / ".forks" / "bench"}
        for number in range(repeats + 1):
            # The first time is for the caches.
            into = times if number else Times()
            for where, root in places.items():
                (root / "out").mkdir()
                for name, program in _PROGRAMS.items():
                    into.take(f"{name} {where}", partial(program, root, base / "tree.tar"))
                run("rm", "-rf", root / "out")
        for _ in range(repeats):
            for where, root in places.items():
                for name in _READERS:
                    quiet.drop_caches()
                    program = partial(_PROGRAMS[name], root, base / "tree.tar")
                    times.take(f"{name}-cold {where}", program)
        client.call("fork_delete", {"name": "bench", "force": True})
    return times


def _make_repository(tree: Path) -> None:
    _git(tree, "init", "-q")
    _git(tree, "add", ".")
    _git(tree, "commit", "-qm", "base")


def _git(directory: Path, *words: str) -> None:
    run(*GIT, "-C", directory, *words)
