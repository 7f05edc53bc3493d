"""`ckptfs fork` and `forks`: making, renaming, deleting and listing forks."""

from __future__ import annotations

from argparse import Namespace

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
    with hinting_at_paths([args.start], "ckptfs fork NAME --without"):
        with open_workspace(workspace) as session:
            record = session.call("fork", asked)
    output.result(record, "\n".join(map(_made_text, record["forks"])), as_json=args.json)
    return 0


def _made_text(made: JsonObject) -> str:
    base = f", from checkpoint {made['base_id']}" if made["base_id"] is not None else ""
    return f"Fork {safe(made['name'])}{base}: {safe(made['path'])}"


def _delete(args: Namespace) -> int:
    _refuse(args, "start", "at", "without", "rename")
    workspace = find_workspace(args)
    gone: list[JsonObject] = []
    with open_workspace(workspace) as session:
        for name in args.names:
            asked = {"name": name, "force": args.force, **this_command()}
            gone.append(session.call("fork_delete", asked))
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
    _refuse(args, "start", "at", "without", "force")
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
