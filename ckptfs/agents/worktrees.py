"""Work trees for agents that make them by a hook: a fork of the workspace instead of git's.

An agent that has such a hook makes no tree itself, so where there is no fork to be had, git makes
one as the agent would have, but never moves a branch that is there. A fork is mounted beside the
workspace, in `WORKSPACE.forks`: agents refuse links and paths that lead back into the repository. A
name that is asked for again is the same tree; one that is removed stays a checkpoint for a day.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ckptfs import control_file, locating
from ckptfs.agents import events, hook_call, hook_input
from ckptfs.linked import Ask, Linked, reason_of_git, run_git

#: Behind the name of the workspace: the directory that forks are mounted in.
BESIDE = ".forks"
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_MAX = 90


def answer(event: events.Event) -> tuple[bytes, str]:
    """Make or remove a tree. Returns its path, for the agent, and a warning, or ""."""
    try:
        if event.key == "worktreecreate":
            return os.fsencode(_create(event)), ""
        _remove(event)
        return b"", ""
    except (hook_call.NoAnswer, OSError, ValueError) as error:
        deed = "made" if event.key == "worktreecreate" else "removed"
        return b"", f"no work tree was {deed}: {hook_input.clean(str(error))}"


def fork_name(name: str) -> str:
    """The name of the fork for a tree of that name: one that a fork may have. One that had to be
    changed for that ends in a digest, so that two names are never one tree."""
    found = _ODD.sub("-", name).strip(".-")[:_NAME_MAX]
    found = found if found and not found[0].isdigit() else f"tree-{found}".rstrip("-")
    if found == name:
        return found
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{found}-{digest[:8]}"


class _Place(NamedTuple):
    """The workspace or fork that a tree is wanted of: where it is mounted, its store, and the
    number of the fork, 0 for the workspace itself."""

    path: str
    store: str
    line: int = 0

    def ask(self, op: str, args: hook_input.JsonObject) -> hook_input.JsonObject:
        return hook_call.ask(self.path, self.store, op, args, self.line)

    def forks(self) -> list[hook_input.JsonObject]:
        found = self.ask("forks", {})["forks"]
        return found if isinstance(found, list) else []


def _place_around(where: str) -> _Place | None:
    found = hook_call.find_workspace(where)
    if found is None or found[1]:
        return None if found is None else _Place(*found)
    # A fork, which the registry does not know: an agent at work in a tree wants one of that.
    mount = control_file.mount_at(found[0])
    if mount is None or locating.note_of(mount.known_store) is None:
        return _Place(*found)  # in a sandbox the mount is all that there is
    return _Place(mount.path, mount.known_store, mount.line)


def _create(event: events.Event) -> str:
    name = fork_name(str(event.record.get("name") or ""))
    where = hook_input.directory(event.record)
    place = _place_around(where)
    if place is None:
        return _by_git(where, name)
    at = f"{place.path}{BESIDE}/{name}"
    for fork in place.forks():
        if fork["at"] == at and fork["path"]:
            return str(fork["path"])  # elsewhere, if that place was taken when it was mounted
    beside = os.path.dirname(at)
    is_new = not os.path.isdir(beside)
    os.makedirs(beside, exist_ok=True)
    try:
        place.ask("fork", {"name": name, "at": at})
    except (hook_call.NoAnswer, OSError):
        if is_new:
            _remove_directory(beside)
        raise
    return at


def _remove(event: events.Event) -> None:
    path = str(event.record.get("worktree_path") or "")
    if not os.path.isabs(path):
        raise ValueError("the hook's input names no path")
    # By its own mount: the fork that it was made of may be gone.
    place = _place_around(path)
    forks = place.forks() if place else []
    names = [fork["name"] for fork in forks if path in (fork["at"], fork["path"])]
    if place and names:
        # The agent is done with it, whatever still runs there.
        linked = Linked(_asking_the_workspace(place), Path(place.path))
        _, reason = linked.delete({"name": names[0], "force": True})
        if os.path.dirname(path).endswith(BESIDE):
            _remove_directory(os.path.dirname(path))
        if reason:
            raise OSError(f"git goes on listing it: {reason}")
        return
    _git(os.path.dirname(path), "worktree", "remove", "--force", path)


def _asking_the_workspace(place: _Place) -> Ask:
    """A fork cannot be deleted from within."""

    def ask(op: str, args: hook_input.JsonObject) -> hook_input.JsonObject:
        asked = place._replace(line=0) if op == "fork_delete" else place
        return asked.ask(op, args)

    return ask


def _remove_directory(path: str) -> None:
    with suppress(OSError):  # there is something in it, or it is not there
        os.rmdir(path)


def _by_git(where: str, name: str) -> str:
    """As the agent makes it without a hook; a branch of an earlier tree of that name is taken up
    as it is, since it may have commits that are nowhere else."""
    top = _git(where, "rev-parse", "--show-toplevel")
    path = os.path.join(top, ".claude", "worktrees", name)
    if os.path.isdir(path):
        return path
    branch = f"worktree-{name}"
    is_there = _git(top, "for-each-ref", f"refs/heads/{branch}")
    words = [path, branch] if is_there else ["-b", branch, path]
    _git(top, "worktree", "add", "-q", *words)
    return path


def _git(where: str, *words: str) -> str:
    done = run_git(where, *words)
    if reason := reason_of_git(done):
        raise OSError(f"git: {reason}")
    return done.stdout.strip()
