"""Forks that are linked worktrees of the workspace's git repository: `ckptfs fork --git`.

`git worktree add` wants an empty directory, and the fork has its files already. So the worktree is
made beside it without files, and its link and index are put into the fork. It is locked, as git
has it for trees that are not always mounted: `git worktree prune` lets it be while the workspace is
unmounted. Knows nothing of the daemon. What comes later in the fork's life is in `linked`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ckptfs.cli import output
from ckptfs.errors import UsageError, shell
from ckptfs.linked import follow, reason_of_git, run_git

_UNCHANGED = "Nothing was changed."
_NOT_KEPT = "The fork was not kept."
_LOCKED = "a fork of ckptfs: `ckptfs fork --delete` removes it\n"


class Made(NamedTuple):
    """A fork that shall be one."""

    name: str
    path: Path
    #: Whether its branch is there already, from an earlier fork.
    taken_up: bool


def require(root: Path, names: Sequence[str], start: str) -> set[str]:
    """Refuse what cannot become linked worktrees, before there are forks. Returns the names whose
    branches are there already, which only a fork of a checkpoint takes up."""
    try:
        top = _git(root, "rev-parse", "--show-toplevel").strip()
        _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    except UsageError:
        top = ""
    if top != str(root):
        raise UsageError(
            f"Cannot fork with --git: {root} is not the top of a git repository with a commit. "
            f"{_UNCHANGED}"
        )
    for name in names:
        _git(root, "check-ref-format", "--branch", name)
    there = set(_git(root, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").split())
    found = there & set(names)
    if found and not start:
        name = min(found)
        raise UsageError(
            f"Cannot fork with --git: there is a branch {output.safe(name)} already. {_UNCHANGED}",
            hint=f"Choose another name, or remove it: git branch -d {shell(name)}",
        )
    return found


def link_all(root: Path, wanted: Sequence[Made]) -> None:
    """Make forks linked worktrees, each on a branch of its own; all, or none."""
    done: list[Made] = []
    try:
        for each in wanted:
            _link(root, each)
            done.append(each)
    except BaseException:
        for each in done:
            _take_back(root, each, each.path)
        raise


def _link(root: Path, made: Made) -> None:
    name, path = made.name, made.path
    with tempfile.TemporaryDirectory(prefix="ckptfs-") as base:
        beside = Path(base) / path.name
        branch = [str(beside), name] if made.taken_up else ["-b", name, str(beside)]
        _git(root, "worktree", "add", "--no-checkout", *branch, left=_NOT_KEPT)
        try:
            link = (beside / ".git").read_text()
            folder = Path(link.removeprefix("gitdir:").strip())
            index = Path(root, _git(root, "rev-parse", "--git-path", "index").strip())
            if index.exists() and not made.taken_up:
                shutil.copy2(index, folder / "index")  # with its time: git knows racy entries by it
            (path / ".git").write_text(link)
            (folder / "locked").write_text(_LOCKED)
            follow(folder, path)
            if made.taken_up:  # the index that it had is gone
                _git(path, "reset", "--quiet", left=_NOT_KEPT)
        except BaseException:
            _take_back(root, made, beside)
            _take_back(root, made, path)
            raise


def _take_back(root: Path, made: Made, path: Path) -> None:
    """Take a link back as far as it was made, and its branch if that is new."""
    removal = ["worktree", "remove", "--force", "--force", str(path)]
    for words in [removal] if made.taken_up else [removal, ["branch", "-D", "--", made.name]]:
        run_git(root, *words)


def _git(root: Path, *words: str, left: str = _UNCHANGED) -> str:
    """What git prints. Raises UsageError, which ends with what is ``left``."""
    try:
        done = run_git(root, *words)
    except FileNotFoundError:
        raise UsageError(f"Cannot use git: it is not installed. {left}") from None
    if reason := reason_of_git(done):
        raise UsageError(f"Cannot fork with --git: git: {reason}. {left}", hint="")
    return done.stdout
