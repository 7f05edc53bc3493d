"""`ckptfs check`: look for damage in a store, and save what is whole."""

from __future__ import annotations

from argparse import Namespace

from ckptfs.cli import place, screen
from ckptfs.cli.screen import JsonObject
from ckptfs.config import Workspace
from ckptfs.connect import open_workspace
from ckptfs.control import runtime
from ckptfs.errors import ProblemsFound, StoreCorrupt

#: So many files are named for people; --json names all.
_NAMED_MAX = 50


def check(args: Namespace) -> int:
    target = place.workspace_or_store(args)
    if args.repair:
        return _repair(target, as_json=args.json)
    record = {"store": str(target.store), **_look(target, deep=args.deep)}
    problems = record["problems"]
    record["clean"] = not problems
    lines = [f"{screen.safe(p['invariant'])}: {screen.safe(p['message'])}" for p in problems]
    lines += [_damage(item) for item in record["affected"][:_NAMED_MAX]]
    lines += [f"{_damage(item)} (given up by a repair)" for item in record["lost"][:_NAMED_MAX]]
    screen.result(record, "\n".join(lines or ["clean"]), as_json=args.json)
    if problems:
        screen.failure(ProblemsFound(target.store, len(problems)), as_json=False)
        return ProblemsFound.exit_code
    return 0


def _look(target: Workspace, *, deep: bool) -> JsonObject:
    """What a check finds. A store that nobody serves is looked at page by page before LMDB is let
    near it."""
    if runtime.living(target) is None:
        from ckptfs.store.repair import faults

        if found := faults(target.store):
            return _broken([{"invariant": "pages", "message": fault} for fault in found])
    try:
        with open_workspace(target) as session, screen.progress("Checking", "done") as show:
            return session.call("check", {"deep": deep}, on_progress=show)
    except StoreCorrupt as error:
        return _broken([{"invariant": "records", "message": str(error)}])


def _broken(problems: list[JsonObject]) -> JsonObject:
    return {"problems": problems, "affected": [], "lost": []}


def _damage(item: JsonObject) -> str:
    """Which bytes of which file cannot be read, and where."""
    where = _ranges(item["checkpoints"])
    if item["now"]:
        where = f"{where} and now" if where else "now"
    end = item["offset"] + item["length"]
    return f"{screen.safe(item['path'])}: bytes {item['offset']:,} to {end:,} are lost {where}"


def _ranges(numbers: list[int]) -> str:
    """Checkpoints in few words: 1-3, 7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in spans]
    if not words:
        return ""
    return f"in checkpoint{'s' if len(numbers) > 1 else ''} {', '.join(words)}"


def _repair(target: Workspace, *, as_json: bool) -> int:
    from ckptfs.store.repair import repair

    done = repair(target.store)
    found = _look(target, deep=True)
    record = {
        "store": str(target.store),
        "kept_as": str(done.kept_as),
        "unreadable": done.unreadable,
        "clean": not found["problems"],
        **found,
    }
    lines = [f"Repaired {screen.safe(target.store)}; what it was is {screen.safe(done.kept_as)}."]
    lines += [_damage(item) for item in found["lost"][:_NAMED_MAX]]
    lines += [f"left: {screen.safe(item['message'])}" for item in found["problems"]]
    screen.result(record, "\n".join(lines), as_json=as_json)
    return ProblemsFound.exit_code if found["problems"] else 0
