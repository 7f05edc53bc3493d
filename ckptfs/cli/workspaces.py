"""`ckptfs workspaces`, `forget`, `config`, `shell-init`, `completion`: which workspaces there are,
their settings, and code for a shell's rc file.
"""

from __future__ import annotations

import errno
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ckptfs import config as places
from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.workspace import (
    exact_workspace,
    find_workspace,
    named_directory,
    workspace_or_store,
)
from ckptfs.config import Workspace
from ckptfs.connect import LocalSession, open_store, open_workspace, remove_store
from ckptfs.control import runtime
from ckptfs.errors import (
    DaemonGone,
    NotAStore,
    RefusedInSandbox,
    SettingInvalid,
    StoreError,
    StoreInUse,
    StoreMissing,
    StoreReadOnly,
    UsageError,
)


def workspaces(args: Namespace) -> int:
    found = sorted(places.known())
    records = [_record(workspace, str(workspace.path)) for workspace in found]
    stores = {workspace.store for workspace in found}
    records += [
        _record(Workspace(store, store), None) for store in _stores() if store not in stores
    ]
    human = "\n".join(map(_line, records))
    output.result({"workspaces": records}, human, as_json=args.json)
    if not records:
        output.note("There is no workspace yet; `ckptfs mount DIR` makes one.")
    return 0


def _stores() -> Iterator[Path]:
    """The stores in the data directory, whether a workspace is known for them or not."""
    with suppress(OSError):
        for entry in sorted(places.data_dir().iterdir()):
            if (entry / "data.mdb").exists():
                yield entry


def _record(workspace: Workspace, path: str | None) -> JsonObject:
    state = _state(workspace)
    return {
        "workspace": path,
        "store": str(workspace.store),
        "mounted": state in (runtime.SERVING, runtime.UNMOUNTING),
        "state": state,
        "store_bytes": _bytes(workspace.store),
        "directory_exists": path is not None and not places.is_gone(Path(path)),
    }


def _state(workspace: Workspace) -> str:
    daemon = runtime.living(workspace)
    if daemon is not None:
        return daemon.state
    if not (workspace.store / "data.mdb").exists():
        return "store missing"
    if runtime.is_dead(workspace.path):
        return "dead"
    return "unmounted" if runtime.foreign_mount(workspace) is None else "covered"


def _bytes(store: Path) -> int | None:
    """What the store takes on the disk, with its log and what else lies in it."""
    try:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in os.scandir(store))
    except OSError:
        return None


def _line(record: JsonObject) -> str:
    size = "-" if record["store_bytes"] is None else output.bytes_text(record["store_bytes"])
    state = "mounted" if record["mounted"] else record["state"]
    path = "(no workspace)" if record["workspace"] is None else output.safe(record["workspace"])
    if record["workspace"] is not None and not record["directory_exists"]:
        path += " (gone)"
    return f"{state:<13} {size:>10}  {path}  {output.safe(record['store'])}"


def forget(args: Namespace) -> int:
    target = _target(args)
    _require_idle(target)
    if args.store is not None and not (target.store / "data.mdb").is_file():
        raise NotAStore(target.store) if target.store.exists() else StoreMissing(target.store)
    record = {
        "workspace": str(target.path),
        "store": str(target.store),
        "store_bytes": _bytes(target.store),
        **_figures(target, named=args.store is not None),
        "forgotten": not args.dry_run,
    }
    if args.dry_run:
        output.result(record, _what(record), as_json=args.json)
        return 0
    if not args.force:
        question = "Its history cannot be brought back. Go ahead?"
        output.confirm(_what(record), question, "forgotten")
    there = (target.store / "data.mdb").exists()
    left = remove_store(target.store) if there else []
    for known in list(places.known()):
        if known.store == target.store:
            places.forget(known.path)
    store, path = output.safe(target.store), output.safe(target.path)
    human = f"Deleted {store}." if there else f"Forgot {path}; its store, {store}, was gone."
    output.result(record, human, as_json=args.json)
    if left:
        output.note(f"Left there, since it is not of the store: {output.safe(', '.join(left))}")
    return 0


def _target(args: Namespace) -> Workspace:
    """Named by its directory or its store: one that is merely around us is not given up."""
    if args.store is not None:
        if named_directory(args) is not None:
            raise UsageError("Cannot tell what to forget: name DIR or --store STORE, not both.")
        return workspace_or_store(args)
    if named_directory(args) is None:
        raise UsageError("Cannot forget: name the workspace, or its store with --store.")
    return exact_workspace(args)


def _require_idle(target: Workspace) -> None:
    daemon = runtime.living(target)
    if daemon is not None:
        raise StoreInUse(target.store, daemon.pid)
    if runtime.is_dead(target.path):
        raise DaemonGone(target.path, runtime.why_gone(target))


def _figures(target: Workspace, *, named: bool) -> JsonObject:
    """What would be lost; None for a store that cannot be read. A path that was only ``named`` may
    be something else than a store, which raises."""
    found: JsonObject = {"checkpoint_count": None, "directory_current": None}
    try:
        with open_store(target.store) as session:
            found["checkpoint_count"] = session.call("figures")["checkpoint_count"]
            if isinstance(session, LocalSession):
                found["directory_current"] = session.is_directory_current()
    except StoreInUse:
        raise
    except StoreError as error:  # damaged or gone: one more reason to forget it
        if named and isinstance(error, NotAStore):
            raise
    return found


def _what(record: JsonObject) -> str:
    count = record["checkpoint_count"]
    holds = "a store that cannot be read" if count is None else _holdings(record)
    lines = [f"To delete: {output.safe(record['store'])}, {holds}."]
    if record["directory_current"] is False:
        lines.append("It has changes that were never written back to the directory.")
    return "\n".join(lines)


def _holdings(record: JsonObject) -> str:
    count = output.count_text(record["checkpoint_count"], "checkpoint", "checkpoints")
    return f"{count}, {output.bytes_text(record['store_bytes'] or 0)}"


# -- settings --------------------------------------------------------------------------------------

#: Columns for a value in the list.
_VALUE_WIDTH = 8


def config(args: Namespace) -> int:
    from ckptfs.service import settings

    if (args.unset and args.value is not None) or (args.unset and args.key is None):
        raise UsageError("Cannot change the settings: --unset takes a KEY and no VALUE.")
    store = None if args.for_all else runtime.require_store(find_workspace(args))
    if args.value is not None or args.unset:
        _change(store, args)
        if args.key == settings.PATTERNS and store is not None:
            _apply(find_workspace(args))
    records = settings.described(store, args.key)
    output.result({"settings": records}, _settings_text(records, args), as_json=args.json)
    for item in records:
        if item["refused"]:
            reason = output.safe(item["refused"])
            output.note(f"{item['name']} is set to a command that is not run: {reason}.")
    return 0


def _change(store: Path | None, args: Namespace) -> None:
    from ckptfs.service import settings

    try:
        settings.change(store, args.key, args.value)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        if store is None:
            file = places.settings_file()
            raise SettingInvalid(args.key, "its file system is read-only", file) from None
        if runtime.living(find_workspace(args)) is None:
            raise StoreReadOnly(store) from None
        # Its daemon writes to it, so it is read-only only for us.
        raise RefusedInSandbox("change the settings", "the store is read-only there") from None


def _apply(workspace: Workspace) -> None:
    if runtime.living(workspace) is not None:
        with open_workspace(workspace) as session:
            session.call("exclude")


def _settings_text(records: list[JsonObject], args: Namespace) -> str:
    if args.key is not None:
        return str(records[0]["value"]).rstrip("\n")
    return "\n".join(_setting_line(item) for item in records)


def _setting_line(item: JsonObject) -> str:
    """A setting in columns; a value that is too wide for its own stands below."""
    value = output.safe(", ".join(str(item["value"]).splitlines()))
    fits = len(value) <= _VALUE_WIDTH
    line = f"{item['name']:<26} {value if fits else '...':<{_VALUE_WIDTH}} {item['meaning']}"
    if item["file"]:
        line += f" ({output.safe(item['file'])})"
    return line if fits else f"{line}\n    {value}"


# -- shell-init, completion ------------------------------------------------------------------------


def shell_init(args: Namespace) -> int:
    return _print_code("init", args)


def completion(args: Namespace) -> int:
    return _print_code("completion", args)


def _print_code(name: str, args: Namespace) -> int:
    code = Path(__file__).with_name(f"{name}.{args.shell}").read_text()
    output.result({"shell": args.shell, "code": code}, code.rstrip("\n"), as_json=args.json)
    return 0
