"""What people and their tools do to a source tree, with the real programs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.programs import GIT, exit_code, run
from bench.registry import WorkDirectory, workload


def _warm(path: Path) -> None:
    """Have a source outside the contestants in the page cache for both alike."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 22):
            pass


def _warm_up(*command: Path | str, expect: int = 0) -> None:
    """Until the kernel has all that it keeps: over FUSE the first time fills its caches, and the
    second time it asks once more for the attributes of all that was read (performance.md in
    docs/design)."""
    for _ in range(2):
        run(*command, expect=expect)


@workload("untar", "untar {scale.tree_files:,} files", scene="tree", wants=("tree",))
def untar(place: WorkDirectory) -> Iterator[None]:
    _warm(place.material["tree"])
    yield
    run("tar", "xf", place.material["tree"], "-C", place.root)


@workload(
    "rg-first", "ripgrep of what was just unpacked", scene="tree", needs=("untar",), wants=("rg",)
)
def first_ripgrep(place: WorkDirectory) -> Iterator[None]:
    yield
    run(place.material["rg"], "-uu", "NoSuchWordAnywhere", place / "tree", expect=1)


def _find(place: WorkDirectory) -> Iterator[None]:
    # -size needs a stat of every file; without it find gets by with the directories.
    command = ("find", place / "tree", "-size", "+1000k")
    _warm_up(*command)
    yield
    run(*command)


workload("find-warm", "find by size, warm", scene="tree", needs=("untar",))(_find)


def _grep(place: WorkDirectory) -> Iterator[None]:
    # A word that is nowhere: grep ends at the first match when its output is not read.
    command = ("grep", "-r", "NoSuchWordAnywhere", place / "tree")
    _warm_up(*command, expect=1)
    yield
    run(*command, expect=1)


workload("grep-warm", "grep -r, warm", scene="tree", mark=1.5, needs=("untar",))(_grep)


def _ripgrep(place: WorkDirectory) -> Iterator[None]:
    command = (place.material["rg"], "-uu", "NoSuchWordAnywhere", place / "tree")
    _warm_up(*command, expect=1)
    yield
    run(*command, expect=1)


workload("rg-warm", "ripgrep, warm", scene="tree", needs=("untar",), wants=("rg",))(_ripgrep)


@workload("cp", "cp -a of the tree", scene="tree", needs=("untar",))
def copy(place: WorkDirectory) -> Iterator[None]:
    run("grep", "-r", "NoSuchWordAnywhere", place / "tree", expect=1)
    yield
    run("cp", "-a", place / "tree", place / "copy")


@workload("rsync", "rsync -a of the tree", scene="tree", needs=("untar",), wants=("rsync",))
def rsync(place: WorkDirectory) -> Iterator[None]:
    run("grep", "-r", "NoSuchWordAnywhere", place / "tree", expect=1)
    yield
    run("rsync", "-a", f"{place / 'tree'}/", place / "synced")


@workload("git-add", "git add -A", scene="tree", needs=("untar",))
def git_add(place: WorkDirectory) -> Iterator[None]:
    # Beside the tree, so that the rows which walk the tree do the same work before and after.
    run(*GIT, "init", "-q", "--separate-git-dir", place / "git", place / "tree")
    yield
    run(*GIT, "-C", place / "tree", "add", "-A")


def _git_status(place: WorkDirectory) -> Iterator[None]:
    tree = place / "tree"
    if exit_code(*GIT, "-C", tree, "rev-parse", "-q", "--verify", "HEAD") != 0:
        run(*GIT, "-C", tree, "commit", "-q", "-m", "all of it")
    # Git rereads files as young as its index; the first status settles that.
    run(*GIT, "-C", tree, "status", "--porcelain")
    yield
    run(*GIT, "-C", tree, "status", "--porcelain")


workload("git-status-warm", "git status, warm", scene="tree", mark=1.5, needs=("git-add",))(
    _git_status
)


@workload("rm", "rm -rf of the copy", scene="tree", needs=("untar", "cp"))
def remove(place: WorkDirectory) -> Iterator[None]:
    # Nothing is made after it: ext4 is slow to make files where many were just deleted.
    run("find", place / "copy", "-size", "+1000k")
    yield
    run("rm", "-rf", place / "copy")


@workload(
    "untar-four",
    "four untars of {scale.tree_files:,} files at once",
    scene="trees",
    wants=("tree",),
)
def untar_four(place: WorkDirectory) -> Iterator[None]:
    _warm(place.material["tree"])
    targets = [place / f"tree {number}" for number in range(4)]
    for target in targets:
        target.mkdir()
    yield
    commands = [("tar", "xf", place.material["tree"], "-C", target) for target in targets]
    running = [subprocess.Popen(command) for command in commands]
    codes = [process.wait() for process in running]
    if any(codes):
        raise RuntimeError("tar failed")


workload("find-cold", "find by size, cold", scene="tree", cold=True, needs=("untar",))(_find)
workload("grep-cold", "grep -r, cold", scene="tree", cold=True, needs=("untar",))(_grep)
workload("git-status-cold", "git status, cold", scene="tree", cold=True, needs=("git-add",))(
    _git_status
)
