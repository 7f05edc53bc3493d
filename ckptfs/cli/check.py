"""`ckptfs check`: look for damage in a store."""

from __future__ import annotations

from argparse import Namespace

from ckptfs.cli import place, screen
from ckptfs.connect import open_workspace
from ckptfs.errors import ProblemsFound


def check(args: Namespace) -> int:
    target = place.workspace_or_store(args)
    with open_workspace(target) as session:
        record = session.call("check")
    problems = record["problems"]
    lines = [f"{screen.safe(p['invariant'])}: {screen.safe(p['message'])}" for p in problems]
    record = {"store": str(target.store), "clean": not problems, **record}
    screen.result(record, "\n".join(lines) or "clean", as_json=args.json)
    if problems:
        screen.failure(ProblemsFound(target.store, len(problems)), as_json=False)
        return ProblemsFound.exit_code
    return 0
