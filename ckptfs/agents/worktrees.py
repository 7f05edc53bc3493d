"""Work trees for agents that make them by a hook: a fork of the workspace instead of git's.

An agent that has such a hook makes no tree itself, so where there is no fork to be had, git makes
one as the agent would have, but never moves a branch that is there. A fork is mounted beside the
workspace, in `WORKSPACE.forks`: agents refuse links and paths that lead back into the repository. A
name that is asked for again is the same tree; one that is removed stays a checkpoint for a day.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
from pathlib import Path

from ckptfs.agents import events, hook_call, hook_input
from ckptfs.linked import Linked

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


def _create(event: events.Event) -> str:
    name = fork_name(str(event.record.get("name") or ""))
    where = hook_input.directory(event.record)
    found = hook_call.find_workspace(where)
    if found is None:
        return _by_git(where, name)
    path, store = found
    at = f"{path}{BESIDE}/{name}"
    if any(fork["at"] == at and fork["path"] for fork in _forks(path, store)):
        return at
    os.makedirs(os.path.dirname(at), exist_ok=True)
    hook_call.ask(path, store, "fork", {"name": name, "at": at})
    return at


def _remove(event: events.Event) -> None:
    path = str(event.record.get("worktree_path") or "")
    if not os.path.isabs(path):
        raise ValueError("the hook's input names no path")
    workspace = os.path.dirname(path).removesuffix(BESIDE)
    found = hook_call.find_workspace(workspace)
    names = [fork["name"] for fork in _forks(*found) if fork["at"] == path] if found else []
    if found and names:
        # The agent is done with it, whatever still runs there.
        linked = Linked(functools.partial(hook_call.ask, *found), Path(found[0]))
        _, reason = linked.delete({"name": names[0], "force": True})
        if reason:
            raise OSError(f"git goes on listing it: {reason}")
        return
    _git(os.path.dirname(path), "worktree", "remove", "--force", path)


def _forks(path: str, store: str) -> list[hook_input.JsonObject]:
    found = hook_call.ask(path, store, "forks", {})["forks"]
    return found if isinstance(found, list) else []


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
    command = ["git", "-C", where, *words]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(
            done.stderr.strip().rpartition("\n")[2] or f"git ended with {done.returncode}"
        )
    return done.stdout.strip()
