"""`ckptfs import` and `ckptfs export`: trees into a store and out of it."""

from __future__ import annotations

from argparse import Namespace
from contextlib import AbstractContextManager

from ckptfs import config, locating
from ckptfs.cli import place, report, screen
from ckptfs.cli.screen import JsonObject
from ckptfs.config import Workspace
from ckptfs.connect import Session, has_store, new_store, open_workspace
from ckptfs.control import runtime
from ckptfs.control.runtime import check_apart, check_dest, check_source
from ckptfs.errors import UsageError, WorkspaceNotEmpty, WorkspaceUnknown


def import_tree(args: Namespace) -> int:
    source = config.resolve(args.source)
    check_source(source)
    target = _import_target(args)
    check_apart(source, target)
    with _filling(target) as session, screen.progress("Importing") as show:
        # A workspace with content is better filled by cp -a; a bare store has no other way in.
        merge = args.store is not None and runtime.living(target) is None
        wishes = {"source": str(source), "merge": merge}
        try:
            record = session.call("import", wishes, on_progress=show)
        except WorkspaceNotEmpty:
            raise WorkspaceNotEmpty(target.path) from None  # who has the store knows only that
    if args.store is None:
        place = None if runtime.living(target) else locating.directory_id(str(target.path))
        config.register(target, directory=place)
    _say(record, f"Imported {screen.safe(source)}", as_json=args.json)
    return 0


def export(args: Namespace) -> int:
    dest = config.resolve(args.dest)
    target = place.workspace_or_store(args)
    check_apart(dest, target)
    check_dest(dest)
    wishes = {"dest": str(dest), "checkpoint": args.checkpoint}
    with open_workspace(target) as session, screen.progress("Exporting") as show:
        record = session.call("export", wishes, on_progress=show)
    _say(record, f"Exported to {screen.safe(dest)}", as_json=args.json)
    return 0


def _import_target(args: Namespace) -> Workspace:
    """The workspace or store to fill; one that is not known yet gets its default store."""
    if args.store is None and args.workspace is None:
        raise UsageError("Cannot import: name the workspace with -w DIR or a store with --store.")
    try:
        return place.workspace_or_store(args)
    except WorkspaceUnknown:
        path = config.resolve(args.workspace)
        return Workspace(path, config.free_store(path))


def _filling(target: Workspace) -> AbstractContextManager[Session]:
    if has_store(target.store):
        return open_workspace(target)
    return new_store(target.store, lower=None if target.path == target.store else target.path)


def _say(record: JsonObject, done: str, *, as_json: bool) -> None:
    screen.result(record, f"{done}: {report.copied(record)}.", as_json=as_json)
    for line in report.remarks(record):
        screen.note(line)
