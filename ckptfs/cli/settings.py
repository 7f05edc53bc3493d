"""`ckptfs config` and `ckptfs shell-init`: settings, and code for a shell's rc file."""

from __future__ import annotations

import errno
from argparse import Namespace
from pathlib import Path

from ckptfs import config as places
from ckptfs.cli import output
from ckptfs.cli.output import JsonObject
from ckptfs.cli.workspace import find_workspace
from ckptfs.config import Workspace
from ckptfs.connect import open_workspace
from ckptfs.control import runtime
from ckptfs.errors import RefusedInSandbox, SettingInvalid, StoreReadOnly, UsageError
from ckptfs.service import settings

#: Columns for a value in the list.
_VALUE_WIDTH = 8


def config(args: Namespace) -> int:
    if (args.unset and args.value is not None) or (args.unset and args.key is None):
        raise UsageError("Cannot change the settings: --unset takes a KEY and no VALUE.")
    store = None if args.for_all else runtime.require_store(find_workspace(args))
    if args.value is not None or args.unset:
        _change(store, args)
        if args.key == settings.PATTERNS and store is not None:
            _apply(find_workspace(args))
    records = settings.described(store, args.key)
    output.result({"settings": records}, _human(records, args), as_json=args.json)
    for item in records:
        if item["refused"]:
            reason = output.safe(item["refused"])
            output.note(f"{item['name']} is set to a command that is not run: {reason}.")
    return 0


def _change(store: Path | None, args: Namespace) -> None:
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


def _human(records: list[JsonObject], args: Namespace) -> str:
    if args.key is not None:
        return str(records[0]["value"]).rstrip("\n")
    return "\n".join(_line(item) for item in records)


def _line(item: JsonObject) -> str:
    """A setting in columns; a value that is too wide for its own stands below."""
    value = output.safe(", ".join(str(item["value"]).splitlines()))
    fits = len(value) <= _VALUE_WIDTH
    line = f"{item['name']:<26} {value if fits else '...':<{_VALUE_WIDTH}} {item['meaning']}"
    if item["file"]:
        line += f" ({output.safe(item['file'])})"
    return line if fits else f"{line}\n    {value}"


# -- shell-init ------------------------------------------------------------------------------------


def shell_init(args: Namespace) -> int:
    code = Path(__file__).with_name(f"init.{args.shell}").read_text()
    output.result({"shell": args.shell, "code": code}, code.rstrip("\n"), as_json=args.json)
    return 0
