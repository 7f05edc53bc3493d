"""How much room a history takes: the last commits of this very repository, replayed as edits."""

import subprocess
from functools import partial
from pathlib import Path

from bench.child import in_child
from bench.contestants import mounted
from bench.figures import Found, Site, figure
from bench.history import OURS, TIMEOUT_S, Ckptfs, open_keepers
from bench.keepers import Keeper
from bench.outcome import Comparison, Figure
from bench.programs import GIT, run

_CHECKOUT = Path(__file__).resolve().parent.parent


@figure("store-size")
def store_size(site: Site) -> Found:
    base = site.base / "size"
    workspace, store = base / "workspace", base / "store"
    workspace.mkdir(parents=True)
    commits = _commits(site.scale.commits)
    with (
        open_keepers(site, base, site.scale.size_rivals) as rivals,
        mounted(workspace, store, "--no-write-back", "--auto", "off"),
    ):
        everyone = {OURS: Ckptfs(workspace, store), **rivals}
        sizes = {
            name: in_child(partial(_replay, commits, keeper, base / f"{name}.index"), TIMEOUT_S)
            for name, keeper in everyone.items()
        }
    run("rm", "-rf", base)
    return _found(sizes, f"the last {len(commits)} commits of this repository")


def _found(sizes: dict[str, int], what: str) -> Found:
    columns = {name: [size / 1e6] for name, size in sizes.items()}
    found: list[Figure | Comparison] = [
        Comparison("store-size", "Room that a history takes", what, "MB", columns)
    ]
    if "git" in sizes:
        note = f"{sizes[OURS] / 1e6:.2f} MB against {sizes['git'] / 1e6:.2f} MB"
        title = f"store with {what} as checkpoints, as shadow git after gc"
        share = sizes[OURS] / sizes["git"]
        found.append(Figure("store-size", title, share, "times", 1.0, note=note))
    return found


def _commits(most: int) -> list[str]:
    command = [*GIT, "-C", str(_CHECKOUT), "rev-list", "--first-parent", "HEAD"]
    every = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return list(reversed(every[:most]))


def _replay(commits: list[str], keeper: Keeper, index: Path) -> int:
    for commit in commits:
        _check_out(commit, keeper.tree, index)
        keeper.save()
    return keeper.size()


def _check_out(commit: str, work_tree: Path, index: Path) -> None:
    """Make a directory what a commit has, and touch only what differs."""
    git = (*GIT, "-C", _CHECKOUT, f"--work-tree={work_tree}")
    run("env", f"GIT_INDEX_FILE={index}", *git, "read-tree", "-u", "--reset", commit)
