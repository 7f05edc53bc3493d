"""`ckptfs save` and `ckptfs list`."""

from __future__ import annotations

from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext

from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.workspace import calling_process, find_workspace, path_inside, workspace_to_save
from ckptfs.config import Workspace
from ckptfs.connect import open_workspace
from ckptfs.errors import UsageError

#: How many checkpoints a list shows by default.
_SHOWN = 20
#: Room for the counts; wider ones widen the column.
_COUNTS_WIDTH = 12
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
    from ckptfs.cli import state  # late: few have any, and agents save often

    return state.staged(workspace, state.to_keep(args))


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
        for line in _lines(record["checkpoints"]):
            out.line(line.encode("utf-8", "surrogateescape"))
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


def _lines(checkpoints: list[JsonObject]) -> list[str]:
    counts = ["+{added} ~{modified} -{deleted}".format(**item) for item in checkpoints]
    width = max([_COUNTS_WIDTH, *map(len, counts)])
    return [_line(item, f"{text:<{width}}") for item, text in zip(checkpoints, counts, strict=True)]


def _line(checkpoint: JsonObject, counts: str) -> str:
    moment = output.time_text(checkpoint["time_ns"])
    words = [checkpoint["message"] + _ended(checkpoint)]
    if checkpoint["tag"]:
        words.insert(0, f"[{checkpoint['tag']}]")
    if checkpoint["pinned"]:
        words.insert(0, "(pinned)")
    lost = checkpoint["metadata"].get("lost", "")
    if lost and not checkpoint["message"].endswith(f": {lost}"):
        words.append(f" ({lost})")
    who = _who(checkpoint)
    if who:
        words.append(f" by {who}")
    remarks = output.safe(" ".join(filter(None, words)))
    return f"{checkpoint['id']:>5}  {moment}  {checkpoint['kind']:<8} {counts} {remarks}".rstrip()


def _ended(checkpoint: JsonObject) -> str:
    """How the tool ended that it was taken before, if it did not end well."""
    result = checkpoint["metadata"].get("result", "ok")
    return "" if result == "ok" else f"; {result}"


def _who(checkpoint: JsonObject) -> str:
    """Who caused it, shortened; nothing where the message says so already."""
    cause = checkpoint["cause"]
    command = str(cause.get("command", ""))
    if not command:
        return f"process {cause['pid']}" if cause.get("pid") else ""
    if command in checkpoint["message"]:
        return ""
    return command if len(command) <= _WHO_MAX else command[: _WHO_MAX - 1] + "…"
