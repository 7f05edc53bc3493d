"""`ckptfs check`, `backup`, `import` and `export`: whole stores, and trees into them and out."""

from __future__ import annotations

from argparse import Namespace
from contextlib import AbstractContextManager

from ckptfs import config, locating
from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.progress import bytes_below, progress
from ckptfs.cli.workspace import workspace_or_store
from ckptfs.config import Workspace
from ckptfs.connect import Session, has_store, new_store, open_workspace
from ckptfs.control import runtime
from ckptfs.control.runtime import check_apart, check_dest, check_source
from ckptfs.errors import (
    ProblemsFound,
    StoreCorrupt,
    UsageError,
    WorkspaceNotEmpty,
    WorkspaceUnknown,
    shell,
)

#: So many files are named for people; --json names all.
_NAMED_MAX = 50


def check(args: Namespace) -> int:
    target = workspace_or_store(args)
    if args.repair:
        return _repair(target, as_json=args.json)
    record = {"store": str(target.store), **look(target, deep=args.deep)}
    problems = record["problems"]
    record["clean"] = not problems
    lines = [f"{output.safe(p['invariant'])}: {output.safe(p['message'])}" for p in problems]
    lines += [_damage(item) for item in record["affected"][:_NAMED_MAX]]
    lines += [f"{_damage(item)} (given up by a repair)" for item in record["lost"][:_NAMED_MAX]]
    output.result(record, "\n".join(lines or ["clean"]), as_json=args.json)
    if problems:
        output.failure(ProblemsFound(target.store, len(problems)), as_json=False)
        return ProblemsFound.exit_code
    return 0


def look(target: Workspace, *, deep: bool) -> JsonObject:
    """What a check finds; of a store that no daemon serves, first whether its pages are whole."""
    from ckptfs.service import storage

    if runtime.living(target) is None and (damage := storage.damage_of(target.store)):
        return damage
    try:
        with open_workspace(target) as session, progress("Checking", "done") as show:
            return session.call("check", {"deep": deep}, on_progress=show)
    except StoreCorrupt as error:
        return storage.broken("records", str(error))


def _damage(item: JsonObject) -> str:
    """Which bytes of which file cannot be read, and where."""
    where = _ranges(item["checkpoints"])
    if item["now"]:
        where = f"{where} and now" if where else "now"
    end = item["offset"] + item["length"]
    return f"{output.safe(item['path'])}: bytes {item['offset']:,} to {end:,} are lost {where}"


def _ranges(numbers: list[int]) -> str:
    """Checkpoints in few words: 1-3, 7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in spans]
    if not words:
        return ""
    return f"in checkpoint{'s' if len(numbers) > 1 else ''} {', '.join(words)}"


def _repair(target: Workspace, *, as_json: bool) -> int:
    from ckptfs.service import storage

    done = storage.repair(target.store)
    found = look(target, deep=True)
    record = {"store": str(target.store), **done, "clean": not found["problems"], **found}
    kept_as = output.safe(done["kept_as"])
    lines = [f"Repaired {output.safe(target.store)}; what it was is {kept_as}."]
    lines += [_damage(item) for item in found["lost"][:_NAMED_MAX]]
    lines += [f"left: {output.safe(item['message'])}" for item in found["problems"]]
    output.result(record, "\n".join(lines), as_json=as_json)
    return ProblemsFound.exit_code if found["problems"] else 0


# -- backup ----------------------------------------------------------------------------------------


def backup(args: Namespace) -> int:
    dest = config.resolve(args.dest)
    target = workspace_or_store(args)
    check_apart(dest, target)
    check_dest(dest)
    size = bytes_below(target.store)
    with (
        open_workspace(target) as session,
        progress("Copying", measure=lambda: (bytes_below(dest), size)),
    ):
        record = session.call("backup", {"dest": str(dest)})
    said = f"Copied {output.safe(target.store)} to {output.safe(dest)}"
    how = f"`ckptfs mount DIR --store {output.safe(shell(dest))}`"
    human = f"{said}: {output.bytes_text(record['bytes'])}. {how} mounts it."
    output.result(record, human, as_json=args.json)
    return 0


# -- import and export -----------------------------------------------------------------------------


def import_tree(args: Namespace) -> int:
    source = config.resolve(args.source)
    check_source(source)
    target = _import_target(args)
    check_apart(source, target)
    with _filling(target) as session, progress("Importing") as show:
        # A workspace with content is better filled by cp -a; a bare store has no other way in.
        merge = args.store is not None and runtime.living(target) is None
        wishes = {"source": str(source), "merge": merge}
        try:
            record = session.call("import", wishes, on_progress=show)
        except WorkspaceNotEmpty:
            raise WorkspaceNotEmpty(target.path) from None  # the session knows the store only
    if args.store is None:
        place = None if runtime.living(target) else locating.directory_id(str(target.path))
        config.register(target, directory=place)
    _say_copied(record, f"Imported {output.safe(source)}", as_json=args.json)
    return 0


def export(args: Namespace) -> int:
    dest = config.resolve(args.dest)
    target = workspace_or_store(args)
    check_apart(dest, target)
    check_dest(dest)
    wishes = {"dest": str(dest), "checkpoint": args.checkpoint}
    with open_workspace(target) as session, progress("Exporting") as show:
        record = session.call("export", wishes, on_progress=show)
    _say_copied(record, f"Exported to {output.safe(dest)}", as_json=args.json)
    return 0


def _import_target(args: Namespace) -> Workspace:
    """The workspace or store to fill; one that is not known yet gets its default store."""
    if args.store is None and args.workspace is None:
        raise UsageError("Cannot import: name the workspace with -w DIR or a store with --store.")
    try:
        return workspace_or_store(args)
    except WorkspaceUnknown:
        path = config.resolve(args.workspace)
        return Workspace(path, config.free_store(path))


def _filling(target: Workspace) -> AbstractContextManager[Session]:
    if has_store(target.store):
        return open_workspace(target)
    return new_store(target.store, lower=None if target.path == target.store else target.path)


def _say_copied(record: JsonObject, done: str, *, as_json: bool) -> None:
    output.result(record, f"{done}: {output.copied_text(record)}.", as_json=as_json)
    for line in output.remarks(record):
        output.note(line)
