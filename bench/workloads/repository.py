"""git on a real project's repository: from the clone to gc, in the order people do it; and a
rebase of a long branch, on one that is made for it."""

from collections.abc import Iterator

from bench.programs import GIT, run
from bench.registry import WorkDirectory, workload
from bench.sources import TOPIC


@workload("git-clone", "git clone of Django", scene="repository", wants=("git", "repository"))
def clone(place: WorkDirectory) -> Iterator[None]:
    yield
    # As from a server: a local clone would link the packs and copy nothing.
    run(*GIT, "clone", "-q", "--no-local", place.material["repository"], place / "clone")


@workload(
    "git-checkout",
    "git checkout of a release years back",
    scene="repository",
    needs=("git-clone",),
)
def checkout(place: WorkDirectory) -> Iterator[None]:
    run(*GIT, "-C", place / "clone", "status", "--porcelain")
    yield
    run(*GIT, "-C", place / "clone", "checkout", "-q", f"v{place.scale.releases[0]}")


@workload(
    "git-commit",
    "git commit -a of 100 changed files",
    scene="repository",
    needs=("git-clone", "git-checkout"),
)
def commit(place: WorkDirectory) -> Iterator[None]:
    files = sorted((place / "clone" / "django").rglob("*.py"))
    for path in files[:: max(1, len(files) // 100)]:
        with path.open("a") as file:
            file.write("# changed\n")
    yield
    run(*GIT, "-C", place / "clone", "commit", "-q", "-a", "-m", "changed")


@workload("git-gc", "git gc", scene="repository", needs=("git-clone", "git-commit"))
def gc(place: WorkDirectory) -> Iterator[None]:
    yield
    run(*GIT, "-C", place / "clone", "gc", "-q")


@workload(
    "git-rebase",
    "git rebase of {scale.rebase_commits} commits",
    scene="rebase",
    wants=("git", "branches"),
)
def rebase(place: WorkDirectory) -> Iterator[None]:
    run(*GIT, "clone", "-q", "--no-local", place.material["branches"], place / "clone")
    run(*GIT, "-C", place / "clone", "checkout", "-q", TOPIC)
    yield
    run(*GIT, "-C", place / "clone", "rebase", "-q", "main")
