"""`ckptfs shell-init`: code for a shell's rc file, by which what is typed names checkpoints."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ckptfs.cli import screen


def shell_init(args: Namespace) -> int:
    code = Path(__file__).with_name(f"init.{args.shell}").read_text()
    screen.result({"shell": args.shell, "code": code}, code.rstrip("\n"), as_json=args.json)
    return 0
