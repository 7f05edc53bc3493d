"""Checkpoints on the command line: taken, listed, named, kept and removed. `ckptfs save`, `list`,
`tag`, `pin`, `unpin`, `delete`, `prune`, `compact` and `purge`.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.progress import progress
from ckptfs.cli.workspace import (
    calling_process,
    find_workspace,
    path_below_root,
    path_inside,
    workspace_to_save,
)
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace
from ckptfs.control import runtime
from ckptfs.control.runtime import Daemon
from ckptfs.errors import NotConfirmed, UsageError

#: How many checkpoints a list shows by default.
_SHOWN = 20
#: Room for a checkpoint's number.
_NUMBER = 5
#: Room for the counts; wider ones widen the column.
_COUNTS_WIDTH = 12
#: So much of the remarks is shown however narrow the terminal is.
_REMARKS_MIN = 20
#: And so much of a message, before what stands behind it is cut, too.
_MESSAGE_MIN = 8
#: How much of a command line a list shows.
_WHO_MAX = 40


def save(args: Namespace) -> int:
    asked = {
        "message": args.message,
        "tag": args.tag,
        "pin": args.pin,
        "metadata": dict(_pair(word) for word in args.meta),
        "allow_empty": args.allow_empty,
        **calling_process(),
    }
    workspace = workspace_to_save(args)
    with _state(args, workspace) as state, open_workspace(workspace) as session:
        record = session.call("save", asked | {"state": state})
    if record["changed"]:
        text = f"Saved checkpoint {record['id']}.{tag_note(record)}"
    else:
        text = f"Nothing changed since checkpoint {record['id']}; it was not saved again."
    output.result(record, text, as_json=args.json)
    return 0


def tag_note(record: JsonObject) -> str:
    """How to refer to a checkpoint whose tag reads like something else."""
    name = record.get("reference", "")
    return "" if name == record["tag"] else f" Refer to it as {output.safe(name)}."


def _state(args: Namespace, workspace: Workspace) -> AbstractContextManager[list[JsonObject]]:
    """The documents to keep with it, staged in the store for the process that holds it."""
    if not (args.state or args.state_blob):
        return nullcontext([])
    from ckptfs.cli.restore import documents_to_keep  # late: few have any, and agents save often
    from ckptfs.control.transfer import staged

    return staged(workspace, documents_to_keep(args))


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not key or not equals:
        raise UsageError(f"Cannot save: --meta takes KEY=VALUE, not {word!r}. Nothing was saved.")
    return key, value


def show_list(args: Namespace) -> int:
    from ckptfs.cli.output import paged

    workspace = find_workspace(args)
    asked: JsonObject = {"limit": _limit(args), "since": args.since, "moments": args.moments}
    if args.path is not None:
        asked["path"] = path_inside(args.path, workspace, "list changes of")
    with open_workspace(workspace) as session:
        record = session.call("list", asked)
    record["checkpoints"].reverse()
    if args.json:
        output.result(record, "", as_json=True)
        return 0
    with paged() as out:
        for line in _lines(record["checkpoints"], output.screen_width()):
            number, rest = line[:_NUMBER], line[_NUMBER:]
            out.spans(
                (number.encode(), output.YELLOW), (rest.encode("utf-8", "surrogateescape"), "")
            )
    _say_rest(args, len(record["checkpoints"]), record["more"], record["moments"])
    return 0


def _limit(args: Namespace) -> int | None:
    """How many to show; None is all. A program that reads JSON wants all, unless it says so."""
    if args.all or (args.json and args.n is None):
        return None
    return _SHOWN if args.n is None else args.n


def _say_rest(args: Namespace, shown: int, more: int, moments: int) -> None:
    if moments:
        what = "1 moment" if moments == 1 else f"{moments:,} moments"
        output.note(f"Between them {what}; --moments shows them.")
    if more:
        output.note(f"... and {more:,} more; --all shows them.")
    elif not shown:
        limited = args.since or args.path
        output.note("No such checkpoint." if limited else "There is no checkpoint yet.")


def _lines(checkpoints: list[JsonObject], width: int | None = None) -> list[str]:
    """A line each. With ``width``, that of the terminal, what does not fit is cut from the middle
    of its remarks: a line that wraps hides the columns."""
    counts = ["+{added} ~{modified} -{deleted}".format(**item) for item in checkpoints]
    column = max([_COUNTS_WIDTH, *map(len, counts)])
    return [
        _line(item, f"{text:<{column}}", width)
        for item, text in zip(checkpoints, counts, strict=True)
    ]


def _line(checkpoint: JsonObject, counts: str, width: int | None) -> str:
    moment = output.time_text(checkpoint["time_ns"])
    words = [checkpoint["message"]]
    ends = [_ended(checkpoint)]
    if checkpoint["runs"]:
        ends.append(f" {_run_text(checkpoint['runs'][-1], checkpoint['message'])}")
    if checkpoint["tag"]:
        words.insert(0, f"[{checkpoint['tag']}]")
    if checkpoint["pinned"]:
        words.insert(0, "(pinned)")
    lost = checkpoint["metadata"].get("lost", "")
    if lost and not checkpoint["message"].endswith(f": {lost}"):
        words.append(f" ({lost})")
    who = _who(checkpoint)
    if who:
        ends.append(f"  by {who}")
    remarks, end = output.safe(" ".join(filter(None, words))), output.safe("".join(ends))
    columns = f"{checkpoint['id']:>{_NUMBER}}  {moment}  {checkpoint['kind']:<8} {counts} "
    if width is not None:
        # How it ended stays, if there is room for both.
        room = max(_REMARKS_MIN, width - len(columns))
        if len(end) > room - _MESSAGE_MIN:
            remarks, end = remarks + end, ""
        remarks = output.cut_middle(remarks, room - len(end))
    return f"{columns}{remarks}{end}".rstrip()


def _ended(checkpoint: JsonObject) -> str:
    """How the tool ended that it was taken before, if it did not end well."""
    result = checkpoint["metadata"].get("result", "ok")
    return "" if result == "ok" else f"; {result}"


def _run_text(run: JsonObject, message: str) -> str:
    """How the last command ended that was run there, and how long it took."""
    code = run["exit_code"]
    how = "ok" if code == 0 else f"exit code {code}"
    took = output.duration_text(run["duration_ms"])
    command = run["command"]
    if command in message:
        return f"({how}, {took})"
    short = command if len(command) <= _WHO_MAX else command[: _WHO_MAX - 1] + "…"
    return f"({short}: {how}, {took})"


def _who(checkpoint: JsonObject) -> str:
    """The program that caused it; nothing where the message has its command, or it was a command of
    ours. A number of a process that has ended long ago says nothing to a reader: `show` and --json
    have it."""
    command = str(checkpoint["cause"].get("command", ""))
    if not command or command in checkpoint["message"]:
        return ""
    from ckptfs.commands import program_of  # late: most messages say it

    program = program_of(command)
    return program if program != "ckptfs" else ""


# -- which stay ------------------------------------------------------------------------------------

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
            record = _delete(session, asked)
        except NotConfirmed:
            if not sys.stdin.isatty():
                raise
            # What was shown is what goes: `latest` may be another one when the answer comes.
            asked = {"checkpoints": _agreed(session, args.checkpoints), "tagged": True}
            record = _delete(session, asked)
    return _done(args, record, "deleted")


def _delete(session: Session, asked: JsonObject) -> JsonObject:
    with progress("Freeing", "records") as show:
        return session.call("delete", asked, on_progress=show)


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
    workspace = find_workspace(args)
    with open_workspace(workspace) as session, progress("Compacting", "done") as show:
        record = session.call("compact", {}, on_progress=show)
    before, after = record["before_bytes"], record["after_bytes"]
    text = f"The store takes {output.bytes_text(after)}"
    if before - after > before // 100:
        text += f" now; it was {output.bytes_text(before)}."
    else:
        text += f"; {output.bytes_text(max(0, before - after))} went, and no more can go."
    output.result(record, text, as_json=args.json)
    return 0


# -- purge -----------------------------------------------------------------------------------------


_ELSEWHERE = "The store still has the same bytes in these files, which {} not purged:"


def purge(args: Namespace) -> int:
    workspace = find_workspace(args)
    paths = [path_below_root(path, workspace, "purge") for path in args.paths]
    with open_workspace(workspace) as session:
        if args.dry_run or not args.force:
            plan = session.call("purge", {"paths": paths, "dry_run": True})
            if args.dry_run:
                output.result(plan, _plan_text(plan), as_json=args.json)
                return 0
            output.confirm(_plan_text(plan), _QUESTION, "purged")
        with progress("Purging") as show:
            record = session.call("purge", {"paths": paths}, on_progress=show)
    output.result(record, _purged_text(record), as_json=args.json)
    for line in _left_over(record, runtime.living(workspace)):
        output.note(line)
    return 0


def _purged_text(record: JsonObject) -> str:
    paths = output.paths_text(record["path_count"])
    text = f"Purged {paths} from the workspace and every checkpoint"
    if record["elsewhere"]:
        return f"{text}."
    return f"{text}; the store does not have the bytes any more."


def _left_over(record: JsonObject, daemon: Daemon | None) -> Iterator[str]:
    """Where a purged secret may still be."""
    if record["elsewhere"]:
        yield _ELSEWHERE.format("were")
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
    lines = lines or ["To be removed: files that have no name any more."]
    if plan["elsewhere"]:
        lines += [_ELSEWHERE.format("are"), *output.some_paths(plan["elsewhere"], _NAMED)]
    return "\n".join(lines)
