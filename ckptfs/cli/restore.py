"""`ckptfs restore`, `rewind`, `undo` and `redo`."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from ckptfs.cli import place, screen
from ckptfs.cli.screen import Record
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace
from ckptfs.errors import NotConfirmed

#: How many paths a question names before it only counts.
_NAMED = 10


def restore(args: Namespace) -> int:
    workspace = place.workspace(args)
    asked: Record = {
        "checkpoint": args.checkpoint,
        "paths": [place.below_root(path, workspace, "restore") for path in args.paths],
        "token": args.token,
        "backup": args.backup,
    }
    sure = args.force or bool(args.token) or bool(args.paths)
    return _plan_and_perform(args, workspace, "restore", asked, sure=sure)


def rewind(args: Namespace) -> int:
    return _plan_and_perform(
        args, place.workspace(args), "rewind", {"steps": args.steps}, sure=args.force
    )


def undo(args: Namespace) -> int:
    with open_workspace(place.workspace(args)) as session:
        return _perform(args, session, "undo", {})


def redo(args: Namespace) -> int:
    with open_workspace(place.workspace(args)) as session:
        return _perform(args, session, "redo", {})


def _plan_and_perform(
    args: Namespace, workspace: Workspace, op: str, asked: Record, *, sure: bool
) -> int:
    with open_workspace(workspace) as session:
        if args.dry_run:
            plan = session.call("plan", asked)
            screen.result(plan, _plan_text(plan), as_json=args.json)
            return 0
        if not sure:
            plan = session.call("plan", asked)
            _confirm(plan)
            # What was shown is what happens, or nothing.
            op = "restore"
            asked = asked | {"checkpoint": str(plan["checkpoint"]), "token": plan["token"]}
        return _perform(args, session, op, asked)


def _perform(args: Namespace, session: Session, op: str, asked: Record) -> int:
    asked |= {"pid": os.getppid(), "command": " ".join(["ckptfs", *sys.argv[1:]])}
    record = session.call(op, asked)
    names = screen.count_text(record["entries"], "name", "names")
    text = f"Restored checkpoint {record['checkpoint']}: {names} changed."
    if asked.get("backup", True):
        back = "redo" if op == "undo" else "undo"
        text += f" `ckptfs {back}` takes it back (checkpoint {record['before']})."
    screen.result(record, text, as_json=args.json)
    return 0


def _confirm(plan: Record) -> None:
    if not sys.stdin.isatty():
        raise NotConfirmed("there is no terminal to ask at")
    screen.note(_plan_text(plan, _NAMED))
    screen.note("Go ahead? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("it was not confirmed")


def _plan_text(plan: Record, most: int = sys.maxsize) -> str:
    marked = [
        f"{mark} {screen.safe(path)}"
        for mark, kind in (("+", "added"), ("~", "modified"), ("-", "deleted"))
        for path in plan[kind]
    ]
    lines = marked[:most]
    if len(marked) > most:
        lines.append(f"... and {len(marked) - most} more")
    if not marked:
        return f"Checkpoint {plan['checkpoint']} is what the workspace is now: nothing to do."
    return "\n".join(
        [f"To restore checkpoint {plan['checkpoint']}:", *lines, f"token {plan['token']}"]
    )
