"""`ckptfs save` and `ckptfs list`."""

from __future__ import annotations

from argparse import Namespace

from ckptfs.cli import place, screen
from ckptfs.cli.screen import Record
from ckptfs.connect import open_workspace


def save(args: Namespace) -> int:
    with open_workspace(place.workspace(args)) as session:
        record = session.call("save", {"message": args.message})
    screen.result(record, f"Saved checkpoint {record['id']}.", as_json=args.json)
    return 0


def show_list(args: Namespace) -> int:
    with open_workspace(place.workspace(args)) as session:
        record = session.call("list")
    record["checkpoints"].reverse()
    lines = [_line(checkpoint) for checkpoint in record["checkpoints"]]
    screen.result(record, "\n".join(lines), as_json=args.json)
    return 0


def _line(checkpoint: Record) -> str:
    moment = screen.time_text(checkpoint["time_ns"])
    message = screen.safe(checkpoint["message"])
    return f"{checkpoint['id']:>5}  {moment}  {checkpoint['kind']:<8} {message}".rstrip()
