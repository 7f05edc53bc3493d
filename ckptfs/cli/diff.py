"""`ckptfs diff`, `show` and `log`: what changed, between two moments or to one path."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptfs.cli import output
from ckptfs.cli.output import (
    BOLD,
    CYAN,
    GREEN,
    RED,
    YELLOW,
    JsonObject,
    PagedOutput,
    count_text,
    paged,
    shown_name,
)
from ckptfs.cli.workspace import find_workspace, hinting_at_paths, path_inside
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace
from ckptfs.errors import UsageError

if TYPE_CHECKING:
    from ckptfs.control.transfer import FilePair
    from ckptfs.textdiff import Stat

_COLOURS = {"A": GREEN, "D": RED, "R": CYAN}


def diff(args: Namespace) -> int:
    workspace = find_workspace(args)
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
        asked["paths"] = [path_inside(path, workspace, "show") for path in args.paths]
    with open_workspace(workspace) as session, hinting_at_paths(args.refs, "ckptfs diff --"):
        record = session.call("diff", asked)
        _show_changes(args, session, record)
    return 0


def show(args: Namespace) -> int:
    workspace = find_workspace(args)
    wants_text = args.patch or args.stat
    asked: JsonObject = {
        "checkpoint": args.checkpoint,
        "times": args.times,
        "files": wants_text and not args.json,
    }
    with open_workspace(workspace) as session:
        record = session.call("show", asked)
        if args.json:
            output.result(_public(record), "", as_json=True)
            return 0
        with paged() as out:
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
    workspace = find_workspace(args)
    if args.restores:
        return _restores(args, workspace)
    if args.path is None:
        raise UsageError("Cannot show a history: name a PATH, or --restores.")
    with open_workspace(workspace) as session:
        record = session.call("log", {"path": path_inside(args.path, workspace, "show")})
    if args.json:
        output.result(record, "", as_json=True)
        return 0
    with paged() as out:
        for version in record["versions"]:
            line = _version_line(version, output.screen_width())
            out.line(line.encode("utf-8", "backslashreplace"))
    return 0


# -- the forms of an answer ------------------------------------------------------------------------


def _show_changes(args: Namespace, session: Session, record: JsonObject) -> None:
    if args.json:
        output.result(_public(record), "", as_json=True)
        return
    with paged() as out:
        if args.name_status:
            _write_names(out, record)
        elif args.stat:
            _write_stat(out, session, record)
        else:
            _write_patch(out, session, record)


def _public(record: JsonObject) -> JsonObject:
    """Without what only `contents` needs."""
    ends = {key: record[key]["saved"] for key in ("from", "to")}
    return {**record, **ends}


def _write_names(out: PagedOutput, record: JsonObject) -> None:
    for change in record["changes"]:
        out.line(_name_line(change), _COLOURS.get(change["status"][0], YELLOW))


def _name_line(change: JsonObject) -> bytes:
    names = [change["path"]]
    if "renamed" in change["kinds"]:
        names.insert(0, change["old_path"])
    node = change["new"] or change["old"]
    mark = b"/" if node["type"] == "directory" else b""
    return b"\t".join([change["status"].encode(), *(shown_name(name) + mark for name in names)])


def _write_stat(out: PagedOutput, session: Session, record: JsonObject) -> None:
    for line in _stat_lines(session, record):
        out.line(line)


def _write_patch(out: PagedOutput, session: Session, record: JsonObject) -> None:
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
        yield output.safe(line).encode("utf-8", "backslashreplace")


def _description(record: JsonObject) -> Iterator[str]:
    checkpoint = record["to"]["saved"]
    tag = f" [{checkpoint['tag']}]" if checkpoint["tag"] else ""
    yield f"checkpoint {checkpoint['id']}{tag}{' (pinned)' if checkpoint['pinned'] else ''}"
    yield f"kind       {checkpoint['kind']}"
    yield f"time       {output.time_text(checkpoint['time_ns'])}"
    if checkpoint["message"]:
        yield f"message    {checkpoint['message']}"
    cause = checkpoint["cause"]
    if cause.get("command") or cause.get("pid"):
        yield f"by         {_who(cause)}"
    for key, value in checkpoint["metadata"].items():
        yield f"meta       {key}={value}"
    if checkpoint["state_names"]:
        yield f"state      {', '.join(checkpoint['state_names'])}"
    yield f"changes    {counts_text(record)}"
    yield ""


def _who(cause: JsonObject) -> str:
    pid = f"process {cause['pid']}" if cause.get("pid") else ""
    return ", ".join(word for word in (cause.get("command", ""), pid) if word)


def counts_text(record: JsonObject) -> str:
    """+added ~modified -deleted."""
    return f"+{record['added']} ~{record['modified']} -{record['deleted']}"


def _version_line(version: JsonObject, width: int | None) -> str:
    """With ``width``, that of the terminal, what does not fit is cut from the middle of what stands
    behind the columns."""
    columns, path, message = _version(version)
    path, message = output.safe(path), output.safe(message)
    if width is not None:
        room = max(_REMARKS_MIN, width - len(columns))
        message = output.cut_middle(message, max(_MESSAGE_MIN, room - len(path)))
        return columns + output.cut_middle(path + message, room).rstrip()
    return f"{columns}{path}{message}".rstrip()


#: So much of the path and the remarks is shown however narrow the terminal is, and so much of a
#: message before the path is cut, too.
_REMARKS_MIN, _MESSAGE_MIN = 20, 12


def _version(version: JsonObject) -> tuple[str, str, str]:
    """The columns, the path with its writer, and the message."""
    saved = version["saved"]
    path = _name(version["path"])
    if "renamed" in version["kinds"]:
        path = f"{_name(version['old_path'])} -> {path}"
    if version["writer"] and version["writer"]["command"]:
        from ckptfs.commands import program_of  # late: `diff` needs no program

        path += f"  by {program_of(version['writer']['command'])}"
    if saved is None:
        return f"{'now':>5}  {'not saved yet':<19}  {'':<8} {version['status']:<3} ", path, ""
    message = saved["message"]
    tag = f"[{saved['tag']}] " if saved["tag"] else ""
    when = output.time_text(saved["time_ns"])
    columns = f"{saved['id']:>5}  {when}  {saved['kind']:<8} {version['status']:<3} "
    return columns, path, f"  {tag}{message}"


def _name(path: str) -> str:
    return shown_name(path).decode()


# -- restores --------------------------------------------------------------------------------------


def _restores(args: Namespace, workspace: Workspace) -> int:
    with open_workspace(workspace) as session:
        record = session.call("restores")
    lines = [_restore_line(entry) for entry in reversed(record["restores"])]
    output.result(record, "\n".join(lines), as_json=args.json)
    return 0


def _restore_line(entry: JsonObject) -> str:
    when = output.time_text(entry["time_ns"])
    paths = output.paths_text(entry["entries"])
    what = f"{entry['kind']} of checkpoint {entry['checkpoint']}"
    undo = f", state before: {entry['before']}" if entry["before"] is not None else ""
    command = f"  {output.safe(entry['command'])}" if entry["command"] else ""
    number = f"#{entry['number']}"  # marked, or it would pass for a checkpoint's
    return f"{number:>6}  {when}  {what}: {paths}{undo}{command}"


# -- diff --stat -----------------------------------------------------------------------------------

_STAT_WIDTH = 80
_BAR_MAX = 40


def _stat_lines(session: Session, record: JsonObject) -> Iterator[bytes]:
    """A line for each file with how much of it changed, one for all else, and the sum."""
    from ckptfs.control.transfer import read_files  # late: `--name-status` needs no text

    rows = [
        (_stat_name(files), _stat(files), files)
        for files in read_files(session, record)
        if not files.is_special
    ]
    others = list(_others(record))
    names = [row[0] for row in rows] + [name for name, _ in others]
    width = min(max(map(len, names), default=0), _STAT_WIDTH - 20)
    most = max((stat.added + stat.removed for _, stat, _ in rows), default=0)
    for name, found, files in rows:
        yield b" %s | %s" % (name.ljust(width), _stat_text(found, files, most))
    for name, words in others:
        yield b" %s | %s" % (name.ljust(width), words.encode())
    if not rows:
        return
    added, removed = (sum(values) for values in zip(*(s[:2] for _, s, _ in rows), strict=True))
    yield _sum_text(len(rows), added, removed).encode()


def _others(record: JsonObject) -> Iterator[tuple[bytes, str]]:
    """What has no lines to count: directories, unless a file in them tells as much, and pipes and
    the like; with what became of them."""
    sides = (side for files in record["files"] for side in (files["old"], files["new"]))
    paths = [side["path"] for side in sides if side]
    covered = {above for path in paths for above in _directories_above(path)}
    for change in record["changes"]:
        kind = (change["new"] or change["old"])["type"]
        if kind in ("file", "link") or (_comes_or_goes(change) and change["path"] in covered):
            continue
        mark = b"/" if kind == "directory" else b""
        names = [change["path"]]
        if "renamed" in change["kinds"]:
            names.insert(0, change["old_path"])
        shown = b" => ".join(shown_name(name) + mark for name in names)
        yield shown, f"{kind}: {', '.join(change['kinds'])}"


def _comes_or_goes(change: JsonObject) -> bool:
    return change["kinds"] in (["added"], ["deleted"], ["renamed"])


def _directories_above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _sum_text(files: int, added: int, removed: int) -> str:
    """The last line, in git's words."""
    parts = [f" {count_text(files, 'file', 'files')} changed"]
    if added or not removed:
        parts.append(f"{count_text(added, 'insertion', 'insertions')}(+)")
    if removed or not added:
        parts.append(f"{count_text(removed, 'deletion', 'deletions')}(-)")
    return ", ".join(parts)


def _stat_name(files: FilePair) -> bytes:
    names = [shown_name(os.fsdecode(side.path)) for side in (files.old, files.new) if side]
    return b" => ".join(dict.fromkeys(names))


def _stat(files: FilePair) -> Stat:
    from ckptfs.textdiff import Stat, stat_of

    return Stat(0, 0) if files.same else stat_of(files.old, files.new)


def _stat_text(found: Stat, files: FilePair, most: int) -> bytes:
    if found.reason:
        before, after = (side.size if side else 0 for side in (files.old, files.new))
        return b"%s %d -> %d bytes" % (found.reason.encode(), before, after)
    scale = min(1.0, _BAR_MAX / most) if most else 1.0
    plus, minus = (
        max(1, round(count * scale)) if count else 0 for count in (found.added, found.removed)
    )
    return b"%5d %s" % (found.added + found.removed, b"+" * plus + b"-" * minus)
