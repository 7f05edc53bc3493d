"""`ckptfs team`: snapshots of a team of agents, its workspaces and its state as one."""

from __future__ import annotations

from argparse import Namespace

from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.errors import CkptfsError, UsageError
from ckptfs.team import Meta, Team

#: How many paths a plan names of each workspace before it only counts.
_NAMED = 10

_HALF_DONE = (
    "A restore of this team was cut short. The next `ckptfs team snapshot`, `restore` or "
    "`snapshot-delete` finishes it or takes it back."
)


def team(args: Namespace) -> int:
    wants_id = args.action in ("restore", "snapshot-delete")
    if wants_id != (args.snapshot is not None):
        what = "name a snapshot's ID" if wants_id else "it takes no ID"
        raise UsageError(f"Cannot {args.action}: {what}. Nothing was changed.")
    deeds = {
        "snapshot": _snapshot,
        "snapshots": _snapshots,
        "restore": _restore,
        "snapshot-delete": _delete,
    }
    return deeds[args.action](args, Team(args.team, args.data_dir))


def _snapshot(args: Namespace, found: Team) -> int:
    taken = found.snapshot(args.tag)
    lines = [f"Took snapshot {taken.id} of team {output.safe(taken.team)}: {_contents(taken)}."]
    output.result(taken.record(), "\n".join(lines), as_json=args.json)
    for line in _remarks(taken):
        output.note(line)
    return 0


def _contents(meta: Meta) -> str:
    parts = [output.count_text(len(meta.parts), "workspace", "workspaces")]
    counted = {kind: count for kind, count in meta.counts.items() if count}
    parts += [_count(count, kind) for kind, count in counted.items()]
    return ", ".join(parts)


def _count(count: int, kind: str) -> str:
    one = {"inboxes": "inbox"}.get(kind, kind.removesuffix("s"))
    return output.count_text(count, one, kind)


def _remarks(meta: Meta) -> list[str]:
    lines = [f"{output.safe(path)}: {output.safe(why)}." for path, why in meta.remarks.items()]
    if meta.without_workspace:
        listed = ", ".join(map(output.safe, meta.without_workspace))
        lines.append(f"Without a workspace of ckptfs: {listed}.")
    return lines


def _snapshots(args: Namespace, found: Team) -> int:
    listed = found.snapshots()
    records = [
        {"error": dict(item.record())} if isinstance(item, CkptfsError) else item.record()
        for item in listed
    ]
    lines = [output.safe(item) if isinstance(item, CkptfsError) else _line(item) for item in listed]
    half_done = found.is_half_done()
    record = {"snapshots": records, "half_done": half_done}
    output.result(record, "\n".join(lines), as_json=args.json)
    if half_done:
        output.note(_HALF_DONE)
    return 0


def _line(meta: Meta) -> str:
    tag = f"  [{output.safe(meta.tag)}]" if meta.tag else ""
    return f"{meta.id}  {output.time_text(meta.created_ns)}  {_contents(meta)}{tag}"


def _restore(args: Namespace, found: Team) -> int:
    confirm = None if args.force else _confirm
    record = found.restore(args.snapshot, dry_run=args.dry_run, confirm=confirm)
    text = _plan_text(record)
    if not args.dry_run:
        text = (
            f"Restored team {output.safe(record['team'])} to snapshot {record['snapshot']}.\n"
            f"`ckptfs team restore {record['team']} {record['before']}` takes it back."
        )
    output.result(record, text, as_json=args.json)
    if args.dry_run and found.is_half_done():
        output.note(_HALF_DONE)
    for path in record.get("held", record["team_files"]["held"]):
        output.note(f"{output.safe(path)} is being worked on and was left as it is.")
    return 0


def _confirm(plan: JsonObject) -> None:
    output.confirm(_plan_text(plan), "Go ahead?")


def _plan_text(plan: JsonObject) -> str:
    lines = [f"To restore team {output.safe(plan['team'])} to snapshot {plan['snapshot']}:"]
    for part in plan["members"]:
        who = ", ".join(map(output.safe, part["members"]))
        lines.append(f"{who}: {output.safe(part['workspace'])} to checkpoint {part['checkpoint']}")
        lines += _names(part)
    lines.append("state of the team:")
    lines += _names(plan["team_files"])
    return "\n".join(lines)


def _names(changes: JsonObject) -> list[str]:
    marked = [
        f"  {mark} {output.safe(path)}"
        for mark, kind in (("+", "added_paths"), ("~", "modified_paths"), ("-", "deleted_paths"))
        for path in changes[kind]
    ]
    if not marked:
        return ["  nothing to do"]
    more = len(marked) - _NAMED
    return marked if more <= 0 else [*marked[:_NAMED], f"  ... and {more:,} more; --json names all"]


def _delete(args: Namespace, found: Team) -> int:
    gone = found.delete(args.snapshot)
    output.result(gone.record(), f"Snapshot {gone.id} is deleted.", as_json=args.json)
    return 0
