"""`ckptfs diff`, `show` and `log`: what changed, between two moments or to one path."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from ckptfs.cli import place, screen
from ckptfs.cli.names import shown_name
from ckptfs.cli.pager import BOLD, CYAN, GREEN, RED, YELLOW, Output, output
from ckptfs.cli.screen import JsonObject
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace
from ckptfs.errors import UsageError

_COLOURS = {"A": GREEN, "D": RED, "R": CYAN}


def diff(args: Namespace) -> int:
    workspace = place.workspace(args)
    if len(args.refs) > 2:
        raise UsageError(
            "Cannot compare more than two checkpoints.", hint="Paths stand behind `--`."
        )
    older, newer = [*args.refs, "", ""][:2]
    by_name = args.name_status or args.json
    asked: JsonObject = {
        "older": older,
        "newer": newer,
        "times": args.times,
        "files": not by_name,
    }
    if args.paths:
        asked["paths"] = [place.inside(path, workspace, "show") for path in args.paths]
    with open_workspace(workspace) as session, place.minding_paths(args.refs, "ckptfs diff --"):
        record = session.call("diff", asked)
        _show_changes(args, session, record)
    return 0


def show(args: Namespace) -> int:
    workspace = place.workspace(args)
    wants_text = args.patch or args.stat
    asked: JsonObject = {
        "checkpoint": args.checkpoint,
        "times": args.times,
        "files": wants_text and not args.json,
    }
    with open_workspace(workspace) as session:
        record = session.call("show", asked)
        if args.json:
            screen.result(_public(record), "", as_json=True)
            return 0
        with output() as out:
            for line in _described(record):
                out.line(line)
            if not wants_text:
                _write_names(out, record)
            elif args.stat:
                _write_stat(out, session, record)
            else:
                _write_patch(out, session, record)
    return 0


def log(args: Namespace) -> int:
    workspace = place.workspace(args)
    if args.restores:
        return _restores(args, workspace)
    if args.path is None:
        raise UsageError("Cannot show a history: name a PATH, or --restores.")
    with open_workspace(workspace) as session:
        record = session.call("log", {"path": place.inside(args.path, workspace, "show")})
    if args.json:
        screen.result(record, "", as_json=True)
        return 0
    with output() as out:
        for version in record["versions"]:
            line = screen.safe(_version_line(version))
            out.line(line.encode("utf-8", "backslashreplace"))
    return 0


# -- the forms of an answer ------------------------------------------------------------------------


def _show_changes(args: Namespace, session: Session, record: JsonObject) -> None:
    if args.json:
        screen.result(_public(record), "", as_json=True)
        return
    with output() as out:
        if args.name_status:
            _write_names(out, record)
        elif args.stat:
            _write_stat(out, session, record)
        else:
            _write_patch(out, session, record)


def _public(record: JsonObject) -> JsonObject:
    """Without what only `contents` needs."""
    ends = {key: record[key]["checkpoint"] for key in ("from", "to")}
    return {**record, **ends}


def _write_names(out: Output, record: JsonObject) -> None:
    for change in record["changes"]:
        out.line(_name_line(change), _COLOURS.get(change["status"][0], YELLOW))


def _name_line(change: JsonObject) -> bytes:
    names = [change["path"]]
    if "renamed" in change["kinds"]:
        names.insert(0, change["old_path"])
    node = change["new"] or change["old"]
    mark = b"/" if node["type"] == "directory" else b""
    return b"\t".join([change["status"].encode(), *(shown_name(name) + mark for name in names)])


def _write_stat(out: Output, session: Session, record: JsonObject) -> None:
    from ckptfs.cli import difftext

    for line in difftext.stat_lines(session, record):
        out.line(line)


def _write_patch(out: Output, session: Session, record: JsonObject) -> None:
    from ckptfs.control import transfer

    for line in transfer.patch_lines(session, record):
        out.line(line, _colour_of(line))


def _colour_of(line: bytes) -> str:
    if line.startswith(b"@@"):
        return CYAN
    if line.startswith((b"--- ", b"+++ ", b"diff --git ")):
        return BOLD
    if line.startswith(b"#"):
        return YELLOW
    return {b"+": GREEN, b"-": RED}.get(line[:1], "")


# -- one checkpoint --------------------------------------------------------------------------------


def _described(record: JsonObject) -> Iterator[bytes]:
    for line in _description(record):
        yield screen.safe(line).encode("utf-8", "backslashreplace")


def _description(record: JsonObject) -> Iterator[str]:
    checkpoint = record["to"]["checkpoint"]
    tag = f" [{checkpoint['tag']}]" if checkpoint["tag"] else ""
    yield f"checkpoint {checkpoint['id']}{tag}{' (pinned)' if checkpoint['pinned'] else ''}"
    yield f"kind       {checkpoint['kind']}"
    yield f"time       {screen.time_text(checkpoint['time_ns'])}"
    if checkpoint["message"]:
        yield f"message    {checkpoint['message']}"
    cause = checkpoint["cause"]
    if cause.get("command") or cause.get("pid"):
        yield f"by         {_who(cause)}"
    for key, value in checkpoint["metadata"].items():
        yield f"meta       {key}={value}"
    if checkpoint["state"]:
        yield f"state      {', '.join(checkpoint['state'])}"
    yield f"changes    {counts_text(record)}"
    yield ""


def _who(cause: JsonObject) -> str:
    pid = f"process {cause['pid']}" if cause.get("pid") else ""
    return ", ".join(word for word in (cause.get("command", ""), pid) if word)


def counts_text(record: JsonObject) -> str:
    """+added ~modified -deleted."""
    return f"+{record['added']} ~{record['modified']} -{record['deleted']}"


def _version_line(version: JsonObject) -> str:
    saved = version["checkpoint"]
    path = _name(version["path"])
    if "renamed" in version["kinds"]:
        path = f"{_name(version['old_path'])} -> {path}"
    if version["writer"] and version["writer"]["command"]:
        path += f"  by {version['writer']['command']}"
    if saved is None:
        return f"{'now':>5}  {'not saved yet':<19}  {'':<8} {version['status']:<3} {path}"
    told = saved["message"]
    tag = f"[{saved['tag']}] " if saved["tag"] else ""
    when = screen.time_text(saved["time_ns"])
    line = f"{saved['id']:>5}  {when}  {saved['kind']:<8} {version['status']:<3} {path}"
    return f"{line}  {tag}{told}".rstrip()


def _name(path: str) -> str:
    return shown_name(path).decode()


# -- restores --------------------------------------------------------------------------------------


def _restores(args: Namespace, workspace: Workspace) -> int:
    with open_workspace(workspace) as session:
        record = session.call("restores")
    lines = [_restore_line(entry) for entry in reversed(record["restores"])]
    screen.result(record, "\n".join(lines), as_json=args.json)
    return 0


def _restore_line(entry: JsonObject) -> str:
    when = screen.time_text(entry["time_ns"])
    names = screen.count_text(entry["entries"], "name", "names")
    what = f"{entry['kind']} of checkpoint {entry['target']}"
    undo = f", state before: {entry['before']}" if entry["before"] is not None else ""
    command = f"  {screen.safe(entry['command'])}" if entry["command"] else ""
    number = f"#{entry['number']}"  # marked, or it would pass for a checkpoint's
    return f"{number:>6}  {when}  {what}: {names}{undo}{command}"
