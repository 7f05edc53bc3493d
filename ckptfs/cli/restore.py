"""`ckptfs restore`, `rewind`, `undo` and `redo`, and the state documents of a checkpoint: files in,
files out, and the command that is run after a restore.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckptfs.agents.own_hooks import gone_text, hooks_in
from ckptfs.cli import output
from ckptfs.cli.output import JsonObject, shown_name
from ckptfs.cli.progress import progress
from ckptfs.cli.workspace import (
    find_workspace,
    hinting_at_paths,
    path_below_root,
    this_command,
)
from ckptfs.config import Workspace, write_atomically
from ckptfs.connect import Session, open_workspace
from ckptfs.control.transfer import fetch_bytes
from ckptfs.errors import NotConfirmed, StateInvalid, StateNotWritten, UsageError, reason_of
from ckptfs.service.arguments import Json, require_name

if TYPE_CHECKING:
    from ckptfs.api.workspace import Command

#: How many paths a question names before it only counts.
_NAMED = 10
#: How many of the newest checkpoints and moments are looked at for one that was gone past.
_LOOKED_AT = 10


def restore(args: Namespace) -> int:
    workspace = find_workspace(args)
    asked: JsonObject = {
        "checkpoint": args.checkpoint,
        "token": args.token,
        "only": args.only,
        "backup": args.backup,
        "files": not args.state_only,
    }
    sure = args.force or bool(args.token) or bool(args.paths) or args.state_only
    if not args.only:
        del asked["only"]
    if args.paths:
        asked["paths"] = [path_below_root(path, workspace, "restore") for path in args.paths]
    with hinting_at_paths([args.checkpoint], "ckptfs restore latest"):
        return _plan_and_perform(args, workspace, "restore", asked, sure=sure)


def rewind(args: Namespace) -> int:
    return _plan_and_perform(
        args, find_workspace(args), "rewind", {"steps": args.steps}, sure=args.force
    )


def undo(args: Namespace) -> int:
    return _take_back(args, "undo")


def redo(args: Namespace) -> int:
    return _take_back(args, "redo")


def _take_back(args: Namespace, op: str) -> int:
    workspace = find_workspace(args)
    with open_workspace(workspace) as session:
        if args.state_out:
            _require_documents(args.state_out, session.call("plan", {"back": op}))
        if args.dry_run:
            plan = session.call("plan", {"back": op})
            output.result(plan, _dry_text(plan), as_json=args.json)
            return 0
        try:
            done = _perform(args, workspace, session, op, {"if_unchanged": not args.force})
        except NotConfirmed:
            if not sys.stdin.isatty():
                raise
            plan = session.call("plan", {"back": op})
            output.confirm(_plan_text(plan, _NAMED), "Go ahead?")
            done = _perform(args, workspace, session, op, {"token": plan["token"]})
    return _finish(args, workspace, done)


def _plan_and_perform(
    args: Namespace, workspace: Workspace, op: str, asked: JsonObject, *, sure: bool
) -> int:
    with open_workspace(workspace) as session:
        if args.state_out:
            op, asked = "restore", _carrying(args, session, op, asked)
        if args.dry_run:
            plan = session.call("plan", asked)
            output.result(plan, _dry_text(plan), as_json=args.json)
            return 0
        if not sure:
            plan = session.call("plan", asked)
            if not _is_nothing(plan):
                output.confirm(_plan_text(plan, _NAMED), "Go ahead?")
            # What was shown is what happens, or nothing.
            op = "restore"
            asked = asked | {"checkpoint": str(plan["checkpoint"]), "token": plan["token"]}
        done = _perform(args, workspace, session, op, asked)
    return _finish(args, workspace, done)


def _carrying(args: Namespace, session: Session, op: str, asked: JsonObject) -> JsonObject:
    """The same restore of the very checkpoint that was seen to carry what is to be written out."""
    if op == "rewind":
        found = session.call("plan", asked)
    else:
        known = session.call("get", {"checkpoint": asked["checkpoint"]})
        found = {"checkpoint": known["id"], "state_names": known["state_names"]}
    _require_documents(args.state_out, found)
    kept = {key: value for key, value in asked.items() if key != "steps"}
    return {**kept, "checkpoint": str(found["checkpoint"])}


class _Done(NamedTuple):
    record: JsonObject
    text: str
    documents: _Documents
    #: What the user's settings want to be run now.
    hook: Command
    #: What to tell of hooks in the settings of agents that are gone now.
    remarks: list[str]


def _perform(
    args: Namespace, workspace: Workspace, session: Session, op: str, asked: JsonObject
) -> _Done:
    asked |= this_command()
    hook = _hook_of(workspace)
    with progress("Comparing", "records") as show:
        hooked = hooks_in(workspace.path) if asked.get("files", True) else {}
        record = session.call(op, asked | {"names": args.json or bool(hook)}, on_progress=show)
    still = hooks_in(workspace.path) if hooked else {}
    gone = {name: path for name, path in hooked.items() if name not in still}
    record["hooks_gone"] = sorted(gone)
    wanted = args.state_out or hook
    documents = _fetched(session, record) if wanted else {}
    remarks = [*gone_text(gone), *(_passed(session, record) if "steps" in asked else ())]
    return _Done(record, _result_text(record, op, asked), documents, hook, remarks)


def _passed(session: Session, record: JsonObject) -> Iterator[str]:
    """The newest moment that a rewind has gone past: what was there then is in no checkpoint."""
    if not record["changed"] or record["before"] is None:
        return
    listed = session.call("list", {"limit": _LOOKED_AT, "moments": True})["checkpoints"]
    span = range(record["checkpoint"] + 1, record["before"])
    found = [each for each in listed if each["kind"] == "moment" and each["id"] in span]
    if found:
        number, message = found[-1]["id"], output.safe(found[-1]["message"])
        yield f"Moment {number} ({message}) is newer: `ckptfs restore {number}`."


def _finish(args: Namespace, workspace: Workspace, done: _Done) -> int:
    """What comes after a restore: its documents, the command that wants to know, the words."""
    failure = _run_hook(done.hook, done.record, done.documents, workspace)
    files = not getattr(args, "state_only", False)
    _write_out(args.state_out, done.documents, done.record, restored=files)
    output.result(done.record, done.text, as_json=args.json)
    for line in done.remarks:
        output.note(line)
    if failure:
        output.note(f"The restore is done, but not the command after it: {failure}.")
    return 0


def _result_text(record: JsonObject, op: str, asked: JsonObject) -> str:
    number = record["checkpoint"]
    if asked.get("files") is False:
        return f"The files stay as they are. Checkpoint {number} carries: " + (
            ", ".join(map(output.safe, record["state_names"])) or "no state"
        )
    if asked.get("only"):
        return _selective_text(record, asked)
    if not record["changed"]:
        of = "these paths are" if asked.get("paths") else "the workspace is"
        text = f"Nothing to restore: {of} what checkpoint {number} has. No checkpoint was taken."
        if str(asked.get("checkpoint", "")).casefold() == "latest":
            text += (
                " `latest` is the newest one, and every restore makes a new one: use its number."
            )
        return text
    text = f"Restored checkpoint {number}: {output.paths_text(record['entries'])} changed."
    if asked.get("backup", True):
        back = "redo" if op == "undo" else "undo"
        text += f" `ckptfs {back}` takes it back (checkpoint {record['before']})."
    return text


def _selective_text(record: JsonObject, asked: JsonObject) -> str:
    number, who = record["checkpoint"], output.safe(asked["only"])
    if not record["changed"]:
        text = f"Nothing to restore: nothing that changed since {number} is by {who} alone."
    else:
        paths = output.paths_text(record["entries"])
        text = f"Restored what {who} changed since checkpoint {number}: {paths} changed."
        if asked.get("backup", True):
            text += f" `ckptfs undo` takes it back (checkpoint {record['before']})."
    return "\n".join([text, *_skipped_lines(record["skipped"])])


_REASONS = {
    "others": "changed by {by}",
    "both": "changed by {by}, too",
    "unknown": "who changed it is not known",
    "content": "others changed what is in it",
    "moved": "others moved the directory that it is in",
    "blocked": "others put something in the place of its directory",
}


def _skipped_lines(skipped: list[JsonObject]) -> list[str]:
    if not skipped:
        return []
    lines = ["Left alone:"]
    for item in skipped:
        by = ", ".join(output.safe(author["command"] or author["pid"]) for author in item["by"])
        reason = _REASONS[item["reason"]].format(by=by or "an unknown process")
        lines.append(f"= {shown_name(item['path']).decode()}  ({reason})")
    return lines


def _is_nothing(plan: JsonObject) -> bool:
    return not (plan["added_paths"] or plan["modified_paths"] or plan["deleted_paths"])


def _dry_text(plan: JsonObject) -> str:
    """What a restore would do, with the token that restores exactly that."""
    text = _plan_text(plan)
    return text if _is_nothing(plan) else f"{text}\n{output.token_line(plan)}"


def _plan_text(plan: JsonObject, most: int = sys.maxsize) -> str:
    marked = [
        f"{mark} {shown_name(path).decode()}"
        for mark, kind in (("+", "added_paths"), ("~", "modified_paths"), ("-", "deleted_paths"))
        for path in plan[kind]
    ]
    lines = marked[:most]
    if len(marked) > most:
        lines.append(f"... and {len(marked) - most} more")
    left = _skipped_lines(plan.get("skipped", []))
    if not marked and left:
        return "\n".join(["Nothing to restore.", *left])
    if not marked:
        return f"Nothing to restore: everything is as in checkpoint {plan['checkpoint']}."
    count = output.paths_text(len(marked))
    head = f"Restoring checkpoint {plan['checkpoint']} would change {count}:"
    return "\n".join([head, *lines, *left])


# -- state documents -------------------------------------------------------------------------------

#: Bytes by name, and whether they are JSON.
_Documents = dict[str, tuple[bytes, bool]]

#: The name of a document that is given without one.
_UNNAMED = "state"


def documents_to_keep(args: Namespace) -> dict[str, bytes]:
    """What ``--state`` and ``--state-blob`` name."""
    found: dict[str, bytes] = {}
    words = [(word, True) for word in args.state] + [(word, False) for word in args.state_blob]
    for word, is_json in words:
        name, path = _named(word)
        if name in found:
            raise UsageError(
                f"Cannot save: two state documents are called {name!r}. Nothing was saved.",
                hint="Give each a name of its own: --state NAME=FILE",
            )
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        found[require_name(name)] = _checked(path, data) if is_json else data
    return found


def _named(word: str) -> tuple[str, str]:
    """NAME=FILE, or a file alone."""
    name, equals, path = word.partition("=")
    return (name, path) if equals and "/" not in name else (_UNNAMED, word)


def _checked(path: str, data: bytes) -> Json:
    try:
        json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = f"{path} is not JSON ({error}); --state-blob takes any bytes"
        raise StateInvalid(_UNNAMED, reason) from error
    return Json(data)


def _fetched(session: Session, record: JsonObject) -> _Documents:
    return fetch_bytes(session, str(record["checkpoint"])) if record["state_names"] else {}


def _require_documents(words: list[str], record: JsonObject) -> None:
    """Refuse what ``--state-out`` wants of a checkpoint that does not carry it, before anything is
    restored."""
    known = list(record["state_names"])
    for word in words:
        name = _chosen(word, known)
        if name is not None and name not in known:
            number = record["checkpoint"]
            hint = f"`ckptfs show {number}` tells about it."
            raise StateInvalid(name, _not_there(number, known), hint=hint)


def _write_out(
    words: list[str], documents: _Documents, record: JsonObject, *, restored: bool = True
) -> None:
    """Write documents where ``--state-out`` says."""
    for word in words:
        path, name = Path(_named(word)[1]), _chosen(word, list(documents))
        if name is not None and name not in documents:
            reason = _not_there(record["checkpoint"], list(documents))
            raise StateNotWritten(path, reason, restored=restored)
        wanted = documents if name is None else {name: documents[name]}
        try:
            _write(path, wanted, into=name is None)
        except OSError as error:
            reason = reason_of(error)
            raise StateNotWritten(path, reason, restored=restored) from error


def _chosen(word: str, known: list[str]) -> str | None:
    """Which document is meant: the named one, or the only one there is; None for all of them."""
    name, path = _named(word)
    if word != path:
        return name
    if os.path.isdir(path) or path.endswith("/"):
        return None
    return known[0] if len(known) == 1 else name


def _not_there(number: int, known: list[str]) -> str:
    return f"checkpoint {number} does not carry it; it carries: {', '.join(known) or 'none'}"


def _write(path: Path, documents: _Documents, *, into: bool) -> None:
    if into:
        with suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
    for name, (data, _) in documents.items():
        write_atomically(path / name if into else path, data)


def _run_hook(
    command: Command, record: JsonObject, documents: _Documents, workspace: Workspace
) -> str:
    """Run the command that the settings want after a restore; why it failed, if it did."""
    from ckptfs.api import workspace as after

    if not (command and after.is_news(record, documents)):
        return ""
    found = {
        name: json.loads(data) if is_json else data for name, (data, is_json) in documents.items()
    }
    restored = {**record, "workspace": str(workspace.path), "state": found}
    record["hook"] = after.run_command(command, restored, workspace.path)
    return "" if record["hook"] == after.DONE else str(record["hook"])


def _hook_of(workspace: Workspace) -> Command:
    """The command that the user's settings want to be run after a restore."""
    from ckptfs.api import workspace as after

    return after.command_of(workspace.store)
