"""`ckptfs backup`: a copy of the whole store that is a store itself."""

from __future__ import annotations

from argparse import Namespace

from ckptfs import config
from ckptfs.cli import place, screen
from ckptfs.connect import open_workspace
from ckptfs.control.runtime import check_apart, check_dest
from ckptfs.errors.base import shell


def backup(args: Namespace) -> int:
    dest = config.resolve(args.dest)
    target = place.workspace_or_store(args)
    check_apart(dest, target)
    check_dest(dest)
    with open_workspace(target) as session:
        record = session.call("backup", {"dest": str(dest)})
    said = f"Copied {screen.safe(target.store)} to {screen.safe(dest)}"
    how = f"`ckptfs mount DIR --store {screen.safe(shell(dest))}`"
    human = f"{said}: {screen.bytes_text(record['bytes'])}. {how} mounts it."
    screen.result(record, human, as_json=args.json)
    return 0
