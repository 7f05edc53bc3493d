"""`ckptfs fork` and `forks`: making, renaming, deleting and listing forks."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from argparse import Namespace
from pathlib import Path

from ckptfs import config
from ckptfs.cli import output
from ckptfs.cli.output import JsonObject, safe
from ckptfs.cli.workspace import find_workspace, hinting_at_paths, this_command
from ckptfs.connect import Session, open_workspace
from ckptfs.errors import UsageError, shell


def fork(args: Namespace) -> int:
    if args.delete:
        return _delete(args)
    return _rename(args) if args.rename else _create(args)


def _create(args: Namespace) -> int:
    if len(args.names) != 1:
        raise UsageError("Cannot fork: name one fork. Nothing was changed.")
    _refuse(args, "force")
    asked: JsonObject = {
        "name": args.names[0],
        "start": args.start,
        "at": str(config.resolve(args.at)) if args.at else "",
        "without": args.without,
        "count": args.count,
        **this_command(),
    }
    workspace = find_workspace(args)
    if args.git:
        _require_repository(workspace.path)
        asked["without"] = [*args.without, "/.git"]
    with hinting_at_paths([args.start], "ckptfs fork NAME --without"):
        with open_workspace(workspace) as session:
            record = session.call("fork", asked)
            if args.git:
                _link_all(session, workspace.path, record["forks"])
    output.result(record, "\n".join(map(_made_text, record["forks"])), as_json=args.json)
    return 0


# -- linked worktrees ------------------------------------------------------------------------------
#
# `git worktree add` wants an empty directory, and the fork has its files already. So the worktree
# is made beside it without files, and its link and index are put into the fork.


def _require_repository(root: Path) -> None:
    try:
        top = _git(root, "rev-parse", "--show-toplevel").strip()
        _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    except UsageError:
        top = ""
    if top != str(root):
        raise UsageError(
            f"Cannot fork with --git: {root} is not the top of a git repository with a commit. "
            "Nothing was changed."
        )


def _link_all(session: Session, root: Path, made: list[JsonObject]) -> None:
    """Make forks linked worktrees, each on a branch of its own; or take them back."""
    try:
        for each in made:
            _link(root, Path(each["path"]), each["name"])
    except BaseException:
        for each in made:
            session.call("fork_delete", {"name": each["name"], "force": True, **this_command()})
        _git(root, "worktree", "prune")
        raise


def _link(root: Path, path: Path, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ckptfs-") as base:
        beside = Path(base) / path.name
        _git(root, "worktree", "add", "--no-checkout", "-b", name, str(beside))
        link = (beside / ".git").read_text()
        folder = Path(link.removeprefix("gitdir:").strip())
        index = Path(root, _git(root, "rev-parse", "--git-path", "index").strip())
        if index.exists():
            shutil.copy2(index, folder / "index")  # with its time, by which git knows racy entries
        (folder / "gitdir").write_text(f"{path / '.git'}\n")
        (path / ".git").write_text(link)


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise UsageError("Cannot fork with --git: git is not installed.") from None
    if done.returncode != 0:
        said = done.stderr.strip().removeprefix("fatal: ") or f"it ended with {done.returncode}"
        raise UsageError(f"Cannot fork with --git: git: {said}. The fork was not kept.")
    return done.stdout


def _made_text(made: JsonObject) -> str:
    base = f", from checkpoint {made['base_id']}" if made["base_id"] is not None else ""
    return f"Fork {safe(made['name'])}{base}: {safe(made['path'])}"


def _delete(args: Namespace) -> int:
    _refuse(args, "start", "at", "without", "rename", "git")
    workspace = find_workspace(args)
    gone: list[JsonObject] = []
    with open_workspace(workspace) as session:
        for name in args.names:
            asked = {"name": name, "force": args.force, **this_command()}
            gone.append(session.call("fork_delete", asked))
    if (workspace.path / ".git/worktrees").is_dir():
        _git(workspace.path, "worktree", "prune")
    text = "\n".join(map(_gone_text, gone))
    output.result({"forks": gone}, text, as_json=args.json)
    return 0


def _gone_text(gone: JsonObject) -> str:
    number, name = gone["checkpoint"], gone["name"]
    return (
        f"Deleted fork {safe(name)}. Checkpoint {number} has its last state for a day.\n"
        f"  To bring it back: ckptfs fork {shell(name)} --from {number}"
    )


def _rename(args: Namespace) -> int:
    _refuse(args, "start", "at", "without", "force", "git")
    if len(args.names) != 2:
        raise UsageError("Cannot rename: name the fork and its new name. Nothing was changed.")
    old, new = args.names
    with open_workspace(find_workspace(args)) as session:
        record = session.call("fork_rename", {"name": old, "new": new})
    where = f": {safe(record['path'])}" if record["path"] else ""
    output.result(record, f"Fork {safe(old)} is {safe(new)} now{where}", as_json=args.json)
    return 0


def _refuse(args: Namespace, *options: str) -> None:
    """Refuse options that mean nothing together with the others."""
    words = {"start": "--from"}
    for option in options:
        if getattr(args, option):
            word = words.get(option, f"--{option}")
            raise UsageError(f"Cannot use {word} here. Nothing was changed.")


def forks(args: Namespace) -> int:
    with open_workspace(find_workspace(args)) as session:
        record = session.call("forks")
    output.result(record, _list_text(record["forks"]), as_json=args.json)
    return 0


def names(session: Session) -> list[str]:
    """The names of the forks that there are."""
    return [found["name"] for found in session.call("forks")["forks"]]


def _list_text(found: list[JsonObject]) -> str:
    if not found:
        return "There are no forks. `ckptfs fork NAME` makes one."
    rows = [("NAME", "FROM", "MADE", "CHANGES", "PATH")]
    rows += [
        (
            safe(each["name"]),
            "" if each["base_id"] is None else str(each["base_id"]),
            output.time_text(each["time_ns"]),
            output.changes_text(each),
            safe(each["path"] or "not mounted"),
        )
        for each in found
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    return "\n".join(
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[4]])
        for row in rows
    )
