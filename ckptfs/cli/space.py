"""`ckptfs tag`, `pin`, `unpin`, `delete`, `prune`, `compact` and `purge`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator

from ckptfs.cli import output
from ckptfs.cli.checkpoints import tag_note
from ckptfs.cli.output import JsonObject
from ckptfs.cli.workspace import find_workspace, path_below_root
from ckptfs.connect import Session, open_workspace
from ckptfs.control import runtime
from ckptfs.control.runtime import Daemon
from ckptfs.errors import NotConfirmed, UsageError

#: How many paths a question or a result names before it only counts.
_NAMED = 10
_QUESTION = "This cannot be undone. Go ahead?"


def tag(args: Namespace) -> int:
    if args.delete == bool(args.tag):
        raise UsageError("Cannot tag: give either a TAG or --delete. Nothing was changed.")
    asked = {"checkpoint": args.checkpoint, "tag": args.tag, "move": args.move}
    record = _call(args, "tag", asked)
    (found,) = record["checkpoints"]
    text = f"Checkpoint {found['id']} has no tag now"
    if found["tag"]:
        text = f"Checkpoint {found['id']} is tagged {output.safe(found['tag'])}"
    if found["was"] not in ("", found["tag"]):
        text += f" (was {output.safe(found['was'])})"
    text += f".{tag_note(found)}"
    output.result(found, text, as_json=args.json)
    return 0


def pin(args: Namespace) -> int:
    return _for_each(args, "pin", "pinned")


def unpin(args: Namespace) -> int:
    return _for_each(args, "unpin", "no longer pinned")


def _for_each(args: Namespace, op: str, deed: str) -> int:
    return _done(args, _call(args, op, {"checkpoints": args.checkpoints}), deed)


def _done(args: Namespace, record: JsonObject, deed: str) -> int:
    numbers = [str(item["id"]) for item in record["checkpoints"]]
    one = len(numbers) == 1
    text = f"Checkpoint{'' if one else 's'} {', '.join(numbers)} {'is' if one else 'are'} {deed}."
    output.result(record, text, as_json=args.json)
    return 0


def _call(args: Namespace, op: str, asked: JsonObject) -> JsonObject:
    with open_workspace(find_workspace(args)) as session:
        return session.call(op, asked)


def delete(args: Namespace) -> int:
    with open_workspace(find_workspace(args)) as session:
        asked = {"checkpoints": args.checkpoints, "tagged": args.force}
        try:
            record = session.call("delete", asked)
        except NotConfirmed:
            if not sys.stdin.isatty():
                raise
            # What was shown is what goes: `latest` may be another one when the answer comes.
            asked = {"checkpoints": _agreed(session, args.checkpoints), "tagged": True}
            record = session.call("delete", asked)
    return _done(args, record, "deleted")


def _agreed(session: Session, names: list[str]) -> list[str]:
    """The numbers of the named checkpoints, once the user said that the tagged ones may go."""
    each = [session.call("get", {"checkpoint": name}) for name in names]
    found = {item["id"]: item for item in each}
    for item in found.values():
        if item["tag"]:
            output.note(f"Checkpoint {item['id']} is tagged {output.safe(item['tag'])}.")
    if not output.confirmed(_QUESTION):
        raise NotConfirmed("it was not confirmed", "deleted", dry_run=False)
    return [str(number) for number in found]


def prune(args: Namespace) -> int:
    record = _call(args, "prune", {"dry_run": args.dry_run})
    gone = [item for item in record["checkpoints"] if not item["keep"]]
    deed = "would go" if args.dry_run else "went"
    lines = [
        f"{item['id']:>5}  {'stays' if item['keep'] else deed:<9} {item['reason']}"
        for item in (record["checkpoints"] if args.dry_run else gone)
    ]
    stay = len(record["checkpoints"]) - len(gone)
    lines.append(
        f"{output.count_text(len(gone), 'checkpoint', 'checkpoints')} {deed}, {stay:,} stay."
    )
    output.result(record, "\n".join(lines), as_json=args.json)
    return 0


def compact(args: Namespace) -> int:
    record = _call(args, "compact", {})
    before, after = record["before_bytes"], record["after_bytes"]
    text = f"The store takes {output.bytes_text(after)} now; it was {output.bytes_text(before)}."
    output.result(record, text, as_json=args.json)
    return 0


# -- purge -----------------------------------------------------------------------------------------


def purge(args: Namespace) -> int:
    workspace = find_workspace(args)
    paths = [path_below_root(path, workspace, "purge") for path in args.paths]
    with open_workspace(workspace) as session:
        plan = session.call("purge", {"paths": paths, "dry_run": True})
        if args.dry_run:
            output.result(plan, _plan_text(plan), as_json=args.json)
            return 0
        if not args.force:
            output.confirm(_plan_text(plan), _QUESTION, "purged")
        record = session.call("purge", {"paths": paths})
    output.result(record, _purged_text(record), as_json=args.json)
    for line in _left_over(record, runtime.living(workspace)):
        output.note(line)
    return 0


def _purged_text(record: JsonObject) -> str:
    paths = output.count_text(record["path_count"], "path", "paths")
    text = f"Purged {paths} from the workspace and every checkpoint"
    if record["elsewhere"]:
        return f"{text}."
    return f"{text}; the store does not have the bytes any more."


def _left_over(record: JsonObject, daemon: Daemon | None) -> Iterator[str]:
    """Where a purged secret may still be."""
    if record["elsewhere"]:
        yield "The store still has the same bytes in these files, which were not purged:"
        yield from output.some_paths(record["elsewhere"], _NAMED)
    if daemon is not None:
        until = "until `ckptfs umount`" if daemon.options.get("write_back", True) else "for good"
        yield (
            "What the lower directory had when the mount covered it, it keeps "
            f"{until}, a purged file too."
        )


def _plan_text(plan: JsonObject) -> str:
    lines = []
    for key, where in (("live_paths", "the workspace"), ("past_paths", "checkpoints")):
        if plan[key]:
            lines += [f"To be removed from {where}:", *output.some_paths(plan[key], _NAMED)]
    return "\n".join(lines) or "To be removed: files that have no name any more."
