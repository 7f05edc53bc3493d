"""`ckptfs restore`, `rewind`, `undo` and `redo`."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from ckptfs.cli import place, screen
from ckptfs.cli.screen import Record
from ckptfs.connect import open_workspace


def restore(args: Namespace) -> int:
    return _perform(args, "restore", {"checkpoint": args.checkpoint})


def rewind(args: Namespace) -> int:
    return _perform(args, "rewind", {"steps": args.steps})


def undo(args: Namespace) -> int:
    return _perform(args, "undo", {})


def redo(args: Namespace) -> int:
    return _perform(args, "redo", {})


def _perform(args: Namespace, op: str, asked: Record) -> int:
    asked |= {"pid": os.getpid(), "command": " ".join(sys.argv)}
    with open_workspace(place.workspace(args)) as session:
        record = session.call(op, asked)
    text = (
        f"Restored checkpoint {record['checkpoint']}: {record['entries']} names changed. "
        f"`ckptfs undo` takes it back (checkpoint {record['before']})."
    )
    screen.result(record, text, as_json=args.json)
    return 0
