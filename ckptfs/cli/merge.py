"""`ckptfs merge` and `compare`: what a merge brought, what it could not decide and how to go on;
what several states changed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from ckptfs import config
from ckptfs.cli import output
from ckptfs.cli.diff import counts_text
from ckptfs.cli.output import JsonObject, shown_name
from ckptfs.cli.workspace import (
    find_workspace,
    hinting_at_paths,
    path_below_root,
    this_command,
)
from ckptfs.config import Workspace
from ckptfs.connect import open_workspace
from ckptfs.errors import MergeConflict, UsageError, shell

_KINDS = {
    "content": "both changed the same lines",
    "binary": "both changed it, and it is no text",
    "added": "both made something of that name",
    "deleted here": "deleted here, changed there",
    "deleted there": "changed here, deleted there",
    "renamed": "both moved it",
    "mode": "both changed its mode",
    "owner": "both changed its owner",
    "xattr": "both changed its extended attributes",
    "target": "both changed where the link leads",
    "type": "one made something else of it, the other changed it",
    "excluded": "something that is kept out of history has that name here, and stays",
}
_MARKS = (("+", "added_paths"), ("~", "modified_paths"), ("-", "deleted_paths"))


def merge(args: Namespace) -> int:
    workspace = find_workspace(args)
    if args.into:
        workspace = _line(workspace, args.into)
    asked: JsonObject = {
        "source": args.source,
        "resolution": args.resolution,
        "resolutions": _resolutions(args.resolve, workspace),
        "token": args.token,
        "dry_run": args.dry_run,
        **this_command(),
    }
    if args.paths:
        asked["paths"] = [path_below_root(path, workspace, "merge") for path in args.paths]
    from ckptfs.api import merging

    with hinting_at_paths([args.source], "ckptfs merge latest"):
        with open_workspace(workspace) as session:
            record = merging.merge(session, workspace, asked, args.driver)
    output.result(record, _text(args, workspace, record), as_json=args.json)
    return MergeConflict.exit_code if _unresolved(record) else 0


def _line(workspace: Workspace, name: str) -> Workspace:
    """The workspace that a fork is, or the main one, of the same store."""
    with open_workspace(workspace) as session:
        found = {each["name"]: each["path"] for each in session.call("forks")["forks"]}
        found["main"] = session.call("status").get("fork_of") or str(workspace.path)
    if not found.get(name):
        reason = "it is not mounted" if name in found else "there is no fork of that name"
        raise UsageError(
            f"Cannot merge into {name}: {reason}. Nothing was changed.",
            hint="`ckptfs forks` lists the forks; `main` is the workspace itself.",
        )
    return config.find(config.resolve(found[name]))


def _resolutions(words: list[str], workspace: Workspace) -> dict[str, str]:
    """By path what becomes of a conflict."""
    found = {}
    for word in words:
        path, mark, how = word.rpartition("=")
        if not (mark and path):
            raise UsageError(
                f"Cannot resolve {word!r}: PATH=HOW is wanted. Nothing was changed.",
                hint="HOW is ours, theirs or markers.",
            )
        found[path_below_root(path, workspace, "merge")] = how
    return found


def compare(args: Namespace) -> int:
    workspace = find_workspace(args)
    with open_workspace(workspace) as session:
        record = session.call("compare", {"states": args.states})
    output.result(record, "\n".join(_compared(record)), as_json=args.json)
    return 0


def _compared(record: JsonObject) -> Iterator[str]:
    """A line for each state, then the paths: those of several states first."""
    base = record["base"]
    yield f"Since {'the beginning' if base is None else 'checkpoint ' + str(base['id'])}:"
    for state in record["states"]:
        lines = f"+{state['lines_added']} -{state['lines_removed']} lines"
        yield output.safe(f"  {state['name']}  {counts_text(state)} paths, {lines}{_ran(state)}")
    several = [each for each in record["paths"] if len(each["changed_by"]) > 1]
    if several:
        yield "In common:"
    for each in several:
        how = "alike" if each["alike"] else "not alike"
        yield f"  {shown_name(each['path']).decode()}  ({', '.join(each['changed_by'])}: {how})"
    for state in record["states"]:
        own = [each for each in record["paths"] if each["changed_by"] == [state["name"]]]
        if own:
            yield output.safe(f"Only {state['name']}:")
        yield from (f"  {shown_name(each['path']).decode()}" for each in own)


def _ran(state: JsonObject) -> str:
    """How the commands ended that were run there."""
    ended = [
        f"`{run['command']}` " + ("passed" if run["exit_code"] == 0 else f"{run['exit_code']}")
        for run in state["runs"]
    ]
    return "; " + ", ".join(ended) if ended else ""


def _unresolved(record: JsonObject) -> list[JsonObject]:
    return [each for each in record["conflicts"] if each["resolution"] is None]


def _text(args: Namespace, workspace: Workspace, record: JsonObject) -> str:
    undecided = _undecided(args) if _unresolved(record) else []
    if undecided and not args.dry_run:
        conflicts = output.count_text(len(_unresolved(record)), "conflict", "conflicts")
        lines = [f"Nothing was merged: {conflicts}.", *_conflict_lines(record), *undecided]
        return "\n".join(lines)
    if not args.dry_run and not record["changed"]:
        said = f"Nothing to merge: the workspace has what {output.safe(args.source)} changed."
        return "\n".join([said, *_conflict_lines(record)])
    lines = [*_path_lines(record), *_conflict_lines(record)]
    count = sum(len(record[kind]) for _, kind in _MARKS)
    if args.dry_run:
        head = f"Merging {output.safe(args.source)} would change {output.paths_text(count)}:"
        return "\n".join([head, *lines, *undecided, output.token_line(record)])
    done = f"Merged {output.safe(args.source)}: {output.paths_text(count)} changed."
    undo = f"ckptfs undo -w {shell(str(workspace.path))}" if args.into else "ckptfs undo"
    done += f" `{undo}` takes it back (checkpoint {record['before']})."
    return "\n".join([done, *_conflict_lines(record)])


def _undecided(args: Namespace) -> list[str]:
    into = f" --into {shell(args.into)}" if args.into else ""
    markers = output.safe(f"ckptfs merge {shell(args.source)}{into} --markers")
    return [
        f"`{markers}` merges and marks them in the files,",
        "--ours keeps what is here, --theirs takes what is there; --resolve PATH=HOW decides one",
        "of them.",
    ]


def _path_lines(record: JsonObject) -> list[str]:
    return [f"{mark} {shown_name(path).decode()}" for mark, kind in _MARKS for path in record[kind]]


def _conflict_lines(record: JsonObject) -> list[str]:
    return [
        f"! {shown_name(each['path']).decode()}  ({_KINDS[each['kind']]}{_resolved(each)})"
        for each in record["conflicts"]
    ]


def _resolved(conflict: JsonObject) -> str:
    return f": {conflict['resolution']}" if conflict["resolution"] else ""
