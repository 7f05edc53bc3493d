"""How much room a history takes: the last commits of this very repository, replayed as edits;
versions of a large file; and of a build that is made and cleaned again and again, of which only so
much is kept."""

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import process, product, sources
from bench.child import in_child
from bench.contestants import mounted
from bench.figures import HOUSEWORK_S, Found, Site, figure
from bench.history import OURS, TIMEOUT_S, Ckptfs, open_keepers
from bench.keepers import Keeper
from bench.kit import NotToBeHad
from bench.outcome import Comparison, Figure
from bench.programs import GIT, run

_CHECKOUT = Path(__file__).resolve().parent.parent


@figure("store-size")
def store_size(site: Site) -> Found:
    base = site.base / "size"
    workspace, store = base / "workspace", base / "store"
    workspace.mkdir(parents=True)
    commits = commits_of_this(site.scale.commits)
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


def commits_of_this(most: int) -> list[str]:
    command = [*GIT, "-C", str(_CHECKOUT), "rev-list", "--first-parent", "HEAD"]
    every = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return list(reversed(every[:most]))


def _replay(commits: list[str], keeper: Keeper, index: Path) -> int:
    for commit in commits:
        check_out(commit, keeper.tree, index)
        keeper.save()
    return keeper.size()


def check_out(commit: str, work_tree: Path, index: Path) -> None:
    """Make a directory what a commit has, and touch only what differs."""
    git = (*GIT, "-C", _CHECKOUT, f"--work-tree={work_tree}")
    run("env", f"GIT_INDEX_FILE={index}", *git, "read-tree", "-u", "--reset", commit)


# -- versions of a large file ----------------------------------------------------------------------

#: What an insertion may cost beside its bytes, as a share of what restic takes.
_INSERTION_MARK = 1.0
_LARGE = "large"

Change = Callable[[bytes], bytes]


def _inserted(size: int, share: float) -> Change:
    """Puts so many new bytes in front of the rest."""
    new = random.Random(size).randbytes(size)
    return lambda data: data[: (at := int(len(data) * share))] + new + data[at:]


#: One after the other, each on what the one before made.
_CHANGES: dict[str, Change] = {
    "a byte inserted at the front": _inserted(1, 0),
    "1 KiB inserted in the middle": _inserted(1 << 10, 1 / 2),
    "40,000 bytes inserted at a third": _inserted(40_000, 1 / 3),
    "4 KiB written over in the middle": lambda data: (
        data[: len(data) // 2] + random.Random(4).randbytes(4_096) + data[len(data) // 2 + 4_096 :]
    ),
}


def _noise(size: int) -> bytes:
    return random.Random(1).randbytes(size)


def _text(size: int) -> bytes:
    """A table of numbers, as a database writes it out."""
    rng = random.Random(1)
    lines = (f"{n},{rng.randrange(10**9)},{rng.random():.6f}\n" for n in range(size // 20))
    return "".join(lines).encode()[:size]


@figure("large-versions")
def large_versions(site: Site) -> Found:
    """What each version of a large file adds, as small as everyone makes it."""
    found: list[Figure | Comparison] = []
    for what, material in (("random bytes", _noise), ("text", _text)):
        base = site.base / "versions"
        workspace, store = base / "workspace", base / "store"
        workspace.mkdir(parents=True)
        data = material(site.scale.versions_mb * 1_000_000)
        with (
            open_keepers(site, base, ["restic", "borg"]) as rivals,
            mounted(workspace, store, "--no-write-back", "--auto", "off"),
        ):
            everyone = {OURS: _Packed(workspace, store), **rivals}
            added = {
                name: in_child(partial(_versions, data, keeper), TIMEOUT_S)
                for name, keeper in everyone.items()
            }
        run("rm", "-rf", base)
        found += _versions_found(added, f"{site.scale.versions_mb} MB of {what}")
    return found


class _Packed(Ckptfs):
    """All files of the store count: large ones have their bytes beside the data file."""

    def size(self) -> int:
        super().size()
        return sum(path.stat().st_blocks for path in self.store.iterdir()) * 512


def _versions(data: bytes, keeper: Keeper) -> dict[str, int]:
    """The bytes that each version adds, by what was done."""
    _replace(keeper.tree, data)
    keeper.save()
    added, before = {}, keeper.size()
    for name, change in _CHANGES.items():
        data = change(data)
        _replace(keeper.tree, data)
        keeper.save()
        size = keeper.size()
        added[name], before = size - before, size
    return added


def _replace(tree: Path, data: bytes) -> None:
    """As an editor saves."""
    (tree / "new").write_bytes(data)
    (tree / "new").rename(tree / _LARGE)


def _versions_found(added: dict[str, dict[str, int]], what: str) -> Iterator[Figure | Comparison]:
    group = f"Room that a version of {what} takes"
    for name in _CHANGES:
        columns = {who: [by_change[name] / 1e6] for who, by_change in added.items()}
        yield Comparison(f"versions: {name}, {what}", group, name, "MB", columns)
    if "restic" in added:
        ours, theirs = sum(added[OURS].values()), sum(added["restic"].values())
        note = f"{ours / 1e6:.2f} MB against {theirs / 1e6:.2f} MB"
        title = f"four versions of {what}, as restic"
        yield Figure(
            f"versions of {what}", title, ours / theirs, "times", _INSERTION_MARK, note=note
        )


# -- moments ---------------------------------------------------------------------------------------

_C_FILES = 30
_MOMENTS_SIZE = "32M"
_SETTLE_S = 60.0
#: If nothing expired it would be 1.5; the store's file is not given back at once.
_LEVEL_MARK = 1.2


@dataclass(frozen=True)
class Kept:
    """What there is after so many rounds."""

    rounds: int
    moments: int
    store_bytes: int


@figure("moments-growth")
def moments_growth(site: Site) -> Found:
    """Every `make clean` destroys what another command made, so a moment is due before it."""
    try:
        for program in ("gcc", "make"):
            site.kit.program(program)
    except NotToBeHad as error:
        site.skipped["moments-growth"] = str(error)
        return []
    base = site.base / "moments"
    workspace, store = base / "workspace", base / "store"
    sources.write_c_project(workspace, _C_FILES)
    third = site.scale.build_rounds // 3
    with mounted(workspace, store, "--no-write-back") as pid:
        product.configure(workspace, "moments.max", f"{third}")
        product.configure(workspace, "moments.max_size", _MOMENTS_SIZE)
        kept = [_build_rounds(workspace, pid, range(n, n + third)) for n in (0, third, 2 * third)]
    run("rm", "-rf", base)
    if not kept[-1].moments:
        raise RuntimeError("no moment was taken, so there is nothing to see")
    return kept_found(kept, third)


def _build_rounds(workspace: Path, pid: int, rounds: range) -> Kept:
    in_child(partial(_make_and_clean, workspace, rounds), TIMEOUT_S)
    time.sleep(HOUSEWORK_S)
    process.wait_until_quiet(pid, _SETTLE_S)
    found = product.status(workspace)
    return Kept(rounds.stop, int(found["moments"]), int(found["store_bytes"]))


def _make_and_clean(workspace: Path, rounds: range) -> None:
    for number in rounds:
        run("make", "-s", "-C", workspace, f"ROUND={number}")
        run("make", "-s", "-C", workspace, "clean")


def kept_found(kept: list[Kept], most: int) -> Found:
    columns = {f"{each.rounds} rounds": [each.store_bytes / 1e6] for each in kept}
    counts = ", ".join(f"{each.moments}" for each in kept)
    what = f"make and make clean of {_C_FILES} C files, at most {most} moments"
    group = "Room that moments take"
    _, second, last = kept
    growth = last.store_bytes / second.store_bytes
    title = f"store after {last.rounds} rounds of make and make clean, as after {second.rounds}"
    return [
        Comparison("moments-growth", group, what, "MB", columns, note=f"moments: {counts}"),
        Figure("moments-growth", title, growth, "times", _LEVEL_MARK, note=f"moments: {counts}"),
        Figure("moments-growth-count", "moments after them", last.moments, "moments", most),
    ]
