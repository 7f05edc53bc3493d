"""`ckptfs save` and `ckptfs list`."""

from __future__ import annotations

import os
from argparse import Namespace

from ckptfs.cli import place, screen
from ckptfs.cli.screen import Record
from ckptfs.connect import open_workspace
from ckptfs.errors import UsageError


def save(args: Namespace) -> int:
    asked = {
        "message": args.message,
        "tag": args.tag,
        "pin": args.pin,
        "metadata": dict(_pair(word) for word in args.meta),
        "allow_empty": args.allow_empty,
        "pid": os.getppid(),
    }
    with open_workspace(place.workspace(args)) as session:
        record = session.call("save", asked)
    if record["changed"]:
        text = f"Saved checkpoint {record['id']}."
    else:
        text = f"Nothing changed since checkpoint {record['id']}; it was not saved again."
    screen.result(record, text, as_json=args.json)
    return 0


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not key or not equals:
        raise UsageError(f"Cannot save: --meta takes KEY=VALUE, not {word!r}. Nothing was saved.")
    return key, value


def show_list(args: Namespace) -> int:
    with open_workspace(place.workspace(args)) as session:
        record = session.call("list", {"newest": max(0, args.n)})
    record["checkpoints"].reverse()
    lines = [_line(checkpoint) for checkpoint in record["checkpoints"]]
    screen.result(record, "\n".join(lines), as_json=args.json)
    return 0


def _line(checkpoint: Record) -> str:
    moment = screen.time_text(checkpoint["time_ns"])
    message = screen.safe(checkpoint["message"])
    if checkpoint["tag"]:
        message = f"[{screen.safe(checkpoint['tag'])}] {message}"
    counts = "+{added} ~{modified} -{deleted}".format(**checkpoint)
    return (
        f"{checkpoint['id']:>5}  {moment}  {checkpoint['kind']:<8} {counts:<12} {message}".rstrip()
    )
