"""Forks that are linked worktrees of the workspace's git repository, from outside of git: which of
them are, and what the repository has to hear when one is deleted or moved.

Every client deletes and renames forks by `Linked`, the command line, the API and the hook. Making
them is `ckptfs.cli.worktrees`. Knows nothing of the daemon but its answers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Asks the daemon: a verb's name and its arguments.
Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


class Linked:
    """The forks of a workspace as they were when this was made."""

    def __init__(self, ask: Ask, workspace: Path) -> None:
        self._ask = ask
        #: Where each is mounted, by name; None if it is not.
        self.places: dict[str, Path | None] = {
            each["name"]: Path(each["path"]) if each["path"] else None
            for each in ask("forks", {})["forks"]
        }
        # The workspace itself, also for a client that works in a fork.
        main = Path(ask("status", {})["fork_of"] or workspace)
        self._trees = [main, *(path for path in self.places.values() if path is not None)]

    def is_linked(self, name: str) -> bool:
        return self._folder(self.places.get(name)) is not None

    def delete(self, asked: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Have the daemon delete a fork, and the repository forget it; its branch stays. Answer,
        and why the repository goes on listing the fork, if it does."""
        path = self.places.get(asked["name"])
        folder = self._folder(path)
        record = self._ask("fork_delete", asked)
        if path is None or folder is None:
            return record, ""
        words = ("worktree", "remove", "--force", "--force", str(path))
        try:
            done = run_git(folder.parents[2], *words)
        except OSError as error:
            return record, f"git cannot be run ({error.strerror})"
        return record, reason_of_git(done)

    def rename(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Have the daemon rename a fork, and the repository follow it."""
        record = self._ask("fork_rename", asked)
        path = Path(record["path"]) if record["path"] else None
        folder = self._folder(path)
        if path is not None and folder is not None:
            follow(folder, path)
        return record

    def _folder(self, path: Path | None) -> Path | None:
        """Where the repository of one of these trees keeps what it knows of a fork that is a linked
        worktree of it."""
        try:
            link = "" if path is None else (path / ".git").read_text()
        except (OSError, UnicodeDecodeError):
            return None
        folder = Path(link.removeprefix("gitdir:").strip())
        known = {tree / ".git/worktrees" for tree in self._trees}
        return folder if link.startswith("gitdir:") and folder.parent in known else None


def run_git(where: str | Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Raises OSError if it cannot be run."""
    return subprocess.run(
        ["git", "-C", str(where), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )


def reason_of_git(done: subprocess.CompletedProcess[str]) -> str:
    """Why git failed, in its own words; empty if it did not."""
    if not done.returncode:
        return ""
    last = done.stderr.strip().rpartition("\n")[2].removeprefix("fatal: ")
    return last or f"it ended with {done.returncode}"


def follow(folder: Path, fork: Path) -> None:
    """Tell the repository, which keeps what it knows of a fork in this folder, where it is now."""
    (folder / "gitdir").write_text(f"{fork / '.git'}\n")
