"""`ckptfs fork` and `forks`: making, renaming, deleting and listing forks."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Container
from pathlib import Path

from ckptfs import config
from ckptfs.cli import output, worktrees
from ckptfs.cli.output import JsonObject, safe
from ckptfs.cli.workspace import find_workspace, hinting_at_paths, this_command
from ckptfs.cli.worktrees import Made
from ckptfs.connect import Session, open_workspace
from ckptfs.errors import CkptfsError, UsageError, shell
from ckptfs.linked import Linked

#: How many that ended are listed.
_LAST_MAX = 10


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
    taken_up: set[str] = set()
    if args.git:
        numbers = range(1, args.count + 1)
        wanted = args.names if args.count == 1 else [f"{args.names[0]}-{n}" for n in numbers]
        taken_up = worktrees.require(workspace.path, wanted, args.start)
        asked["without"] = [*args.without, "/.git"]
    with hinting_at_paths([args.start], "ckptfs fork NAME --without"):
        with open_workspace(workspace) as session:
            record = session.call("fork", asked)
            if args.git:
                _link_all(session, workspace.path, record["forks"], taken_up)
    output.result(record, "\n".join(map(_made_text, record["forks"])), as_json=args.json)
    return 0


def _link_all(session: Session, root: Path, made: list[JsonObject], taken_up: set[str]) -> None:
    """Make forks linked worktrees, or take them back."""
    names = [each["name"] for each in made]
    wanted = [Made(each["name"], Path(each["path"]), each["name"] in taken_up) for each in made]
    try:
        worktrees.link_all(root, wanted)
    except BaseException:
        for name in names:
            session.call("fork_delete", {"name": name, "force": True, **this_command()})
        raise


def _made_text(made: JsonObject) -> str:
    base = f", from checkpoint {made['base_id']}" if made["base_id"] is not None else ""
    return f"Fork {safe(made['name'])}{base}: {safe(made['path'])}"


def _delete(args: Namespace) -> int:
    _refuse(args, "start", "at", "without", "rename", "git")
    workspace = find_workspace(args)
    gone: list[JsonObject] = []
    linked: set[str] = set()
    with open_workspace(workspace) as session:
        forks = Linked(session.call, workspace.path)
        wanted = list(dict.fromkeys(args.names))
        for name in wanted:
            if name not in forks.places:  # before any of them is gone
                session.call("fork_delete", {"name": name, "force": False})
        try:
            for name in wanted:
                if forks.is_linked(name):
                    linked.add(name)
                asked = {"name": name, "force": args.force, **this_command()}
                record, reason = forks.delete(asked)
                gone.append(record)
                if reason:
                    where = safe(str(forks.places[name]))
                    output.note(f"ckptfs: git goes on listing {where}: {safe(reason)}.")
        except CkptfsError:
            if gone and not args.json:
                output.result({}, _gone_text(gone, linked), as_json=False)
            raise
    output.result({"forks": gone}, _gone_text(gone, linked), as_json=args.json)
    return 0


def _gone_text(gone: list[JsonObject], linked: Container[str]) -> str:
    lines = []
    for each in gone:
        number, name = each["checkpoint"], each["name"]
        git = "--git " if name in linked else ""
        lines += [
            f"Deleted fork {safe(name)}. Checkpoint {number} has its last state for a day.",
            f"  To bring it back: ckptfs fork {shell(name)} {git}--from {number}",
        ]
        if each["cut_off"]:
            users = safe(", ".join(each["cut_off"]))
            lines.append(f"  Other mount namespaces had it open. It ended for them, too: {users}.")
    return "\n".join(lines)


def _rename(args: Namespace) -> int:
    _refuse(args, "start", "at", "without", "force", "git")
    if len(args.names) != 2:
        raise UsageError("Cannot rename: name the fork and its new name. Nothing was changed.")
    old, new = args.names
    workspace = find_workspace(args)
    with open_workspace(workspace) as session:
        record = Linked(session.call, workspace.path).rename({"name": old, "new": new})
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
    parts = [_list_text(record["forks"]), *_last_states(record["last_states"])]
    output.result(record, "\n".join(parts), as_json=args.json)
    return 0


def _last_states(found: list[JsonObject]) -> list[str]:
    """What is left of forks that ended, with that of commands whose result was not taken."""
    if not found:
        return []
    lines = [
        "What those were that ended, for a day (`ckptfs fork NAME --from ID` brings one back):"
    ]
    for each in found[:_LAST_MAX]:
        ran = "".join(f"; {safe(run['command'])}" for run in each["runs"][-1:])
        lines.append(
            f"{each['id']:>5}  {output.time_text(each['time_ns'])}  {safe(each['message'])}{ran}"
        )
    if len(found) > _LAST_MAX:
        lines.append(f"... and {len(found) - _LAST_MAX:,} more; --json has them.")
    return lines


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
