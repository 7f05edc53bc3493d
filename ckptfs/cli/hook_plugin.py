"""`ckptfs hook plugin DIR`: the folder that Claude Code and Codex load as a plugin."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from ckptfs import __version__, config
from ckptfs.agents.settings import is_our_plugin, plugin_files
from ckptfs.cli import screen
from ckptfs.cli.hook_settings import SettingsEdit, program, read, write
from ckptfs.errors import AgentSettingsInvalid, UsageError


def plugin(args: Namespace) -> int:
    if args.subject is None:
        raise UsageError("Cannot write the plugin: name a directory for it.")
    folder = config.resolve(args.subject)
    _require_own(folder)
    wanted = plugin_files(program(), __version__)
    changes = [
        SettingsEdit(folder / name, read(folder / name), text) for name, text in wanted.items()
    ]
    record = {
        "path": str(folder),
        "files": list(wanted),
        "changed": any(change.new != change.old for change in changes),
        "dry_run": args.dry_run,
    }
    if args.dry_run:
        text = "".join(change.diff for change in changes).rstrip("\n")
        screen.result(
            record, text or f"{screen.safe(folder)} is as it should be.", as_json=args.json
        )
        return 0
    for change in changes:
        write(change)
    screen.result(record, _text(folder), as_json=args.json)
    return 0


def _require_own(folder: Path) -> None:
    """Nothing that others keep is mixed with it, or overwritten."""
    try:
        there = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AgentSettingsInvalid(folder, (error.strerror or str(error)).lower()) from error
    if there and not is_our_plugin(read(folder / ".claude-plugin" / "plugin.json")):
        raise AgentSettingsInvalid(
            folder, "it is not empty, and no plugin of ours", hint="Name an empty directory."
        )


def _text(folder: Path) -> str:
    shown = screen.safe(folder)
    return "\n".join(
        [
            f"Wrote the plugin to {shown}.",
            f"  Claude Code, once:  claude --plugin-dir {shown}",
            f"  Claude Code:        claude plugin marketplace add {shown}",
            "                      claude plugin install ckptfs@ckptfs",
            f"  Codex:              codex plugin marketplace add {shown}",
            "                      codex plugin add ckptfs@ckptfs",
        ]
    )
