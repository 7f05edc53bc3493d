"""`ckptfs task`: named stretches of work."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.workspace import find_workspace
from ckptfs.connect import Session, open_workspace
from ckptfs.errors import UsageError

#: How many paths are named before they are only counted.
_NAMED = 20
#: States in which a task has work that a new start adds to; of a reverted one there is none left.
_TAKEN_UP = ("open", "done")


def task(args: Namespace) -> int:
    if args.action in ("start", "revert") and args.subject is None:
        raise UsageError(f"Cannot {args.action} a task: name it.", hint="See `ckptfs task --help`.")
    if args.action == "list" and args.subject is not None:
        raise UsageError("Cannot list: it takes no name.", hint="See `ckptfs task --help`.")
    with open_workspace(find_workspace(args)) as session:
        record, text = _ACTIONS[args.action](session, args)
    output.result(record, text, as_json=args.json)
    return 0


def _who() -> JsonObject:
    return {"pid": os.getppid(), "command": " ".join(["ckptfs", *sys.argv[1:]])}


def _start(session: Session, args: Namespace) -> tuple[JsonObject, str]:
    record = session.call("task_start", {"name": args.subject, **_who()})
    name = output.safe(record["name"])
    if not record["changed"]:
        return record, f"Task {name} is the current one already."
    at, was = f"at checkpoint {record['checkpoint']}", record["was"]
    if was not in _TAKEN_UP:
        return record, f"Started task {name} {at}."
    text = (
        f"Took up task {name} again {at}; it was {was}. A revert takes back its earlier work too."
    )
    return record, text


def _done(session: Session, args: Namespace) -> tuple[JsonObject, str]:
    record = session.call("task_done", {"message": args.subject or "", **_who()})
    text = f"Task {output.safe(record['name'])} is done at checkpoint {record['checkpoint']}."
    if record["current"]:
        text += f" Task {output.safe(record['current'])} goes on."
    return record, text


def _list(session: Session, args: Namespace) -> tuple[JsonObject, str]:
    record = session.call("task_list")
    record["tasks"].reverse()
    return record, "\n".join(map(_line, record["tasks"])) or "There are no tasks."


def _line(found: JsonObject) -> str:
    count = "?" if found["count"] is None else output.count_text(found["count"], "path", "paths")
    words = f"{output.safe(found['name'])}  {output.safe(found['message'])}".rstrip()
    return f"{found['state']:<8}  {output.time_text(found['started_ns'])}  {count:>12}  {words}"


def _revert(session: Session, args: Namespace) -> tuple[JsonObject, str]:
    wishes = {"name": args.subject, "force": args.force, "dry_run": args.dry_run}
    record = session.call("task_revert", {**wishes, **_who()})
    name = output.safe(record["name"])
    if record["dry_run"]:
        return record, _plan_text(record, name)
    names = output.count_text(record["count"], "path", "paths")
    back = f"`ckptfs undo` brings it again (checkpoint {record['before']})."
    return record, f"Reverted task {name}: {names}. {back}"


def _plan_text(record: JsonObject, name: str) -> str:
    if not record["count"]:
        return f"Task {name} changed nothing."
    lines = [
        f"To revert task {name}:",
        *output.some_paths(record["paths"], _NAMED, record["count"]),
    ]
    if record["conflicts"]:
        lines.append("Others changed these after it; only --force takes them back:")
        lines += [
            f"  {output.safe(found['path'])}"
            + (f" (task {output.safe(found['task'])})" if found["task"] else "")
            for found in record["conflicts"][:_NAMED]
        ]
    return "\n".join(lines)


_ACTIONS = {"start": _start, "done": _done, "list": _list, "revert": _revert}
