"""`ckptfs service`: a systemd unit that mounts a workspace at login, or, with --system, at boot.

The unit runs `ckptfs mount`, which returns when the workspace is mounted, and `ckptfs umount`. It
is enabled by the link that `systemctl enable` makes, so that it can be installed where no systemd
runs. Only units with our first line are replaced or removed.
"""

from __future__ import annotations

import os
import re
import subprocess
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ckptfs import config, locating
from ckptfs.cli import output
from ckptfs.cli.agents import own_program
from ckptfs.cli.output import JsonObject
from ckptfs.control import runtime
from ckptfs.errors import SystemRefused, UsageError, shell

_SYSTEM = Path("/etc/systemd/system")
_FIRST_LINE = "# Made by `ckptfs service install`; `ckptfs service remove` takes it away.\n"
#: Seconds within which systemctl(1) must have answered.
_PATIENCE = 30

_TEXT = """\
[Unit]
Description=ckptfs workspace {description}
Documentation=man:ckptfs(1)
{after}RequiresMountsFor={above}

[Service]
Type=forking
ExecStart={start}
ExecStop={stop}
{environment}Restart=on-failure
RestartSec=2
KillMode=mixed
# Both may have much to compare or to write back.
TimeoutStartSec=1h
TimeoutStopSec=10min

[Install]
WantedBy={target}
"""


class Unit(NamedTuple):
    """The unit of one workspace: of the system's manager, or of the caller's."""

    workspace: Path
    of_system: bool

    @property
    def name(self) -> str:
        return f"ckptfs-{config.default_store(self.workspace).name}.service"

    @property
    def directory(self) -> Path:
        if self.of_system:
            return _SYSTEM
        return config.settings_file().parents[1] / "systemd" / "user"

    @property
    def path(self) -> Path:
        return self.directory / self.name

    @property
    def target(self) -> str:
        return "multi-user.target" if self.of_system else "default.target"

    @property
    def link(self) -> Path:
        return self.directory / f"{self.target}.wants" / self.name

    @property
    def systemctl(self) -> list[str]:
        return ["systemctl"] if self.of_system else ["systemctl", "--user"]

    def is_foreign(self) -> bool:
        try:
            return not self.path.read_text(errors="replace").startswith(_FIRST_LINE)
        except FileNotFoundError:
            return False


def service(args: Namespace) -> int:
    if args.directory is None and args.workspace is None:
        raise UsageError(f"Cannot {args.action} a unit: no directory is named.")
    if args.mount_words and args.action != "install":
        raise UsageError("Only `ckptfs service install` takes options of mount behind --.")
    unit = Unit(config.resolve(args.directory or args.workspace), args.system)
    deed = {"install": _install, "remove": _remove, "status": _status}[args.action]
    try:
        deed(unit, args)
    except PermissionError as error:
        hint = "Units of the system are root's: run it with sudo." if args.system else None
        refused = SystemRefused(f"{args.action} the unit {unit.name}", error)
        refused.hint = hint or refused.hint
        raise refused from error
    return 0


def _install(unit: Unit, args: Namespace) -> None:
    if not unit.workspace.is_dir():
        raise UsageError(
            f"Cannot install a unit for {unit.workspace}: it is not a directory. "
            "Nothing was changed.",
            hint="Name the directory that is to be mounted.",
        )
    _require_ours(unit, "replace")
    _require_mount_words(unit.workspace, args.mount_words)
    unit.link.parent.mkdir(parents=True, exist_ok=True)
    new = unit.path.with_suffix(".new")
    new.write_text(unit_text(unit, own_program(), args.mount_words))
    new.replace(unit.path)
    unit.link.unlink(missing_ok=True)
    unit.link.symlink_to(f"../{unit.name}")
    _reload(unit)
    when = "boot" if unit.of_system else "login"
    output.result(
        _record(unit),
        f"Installed {output.safe(unit.path)}: {output.safe(unit.workspace)} is mounted at {when}.",
        as_json=args.json,
    )
    if not unit.of_system:
        output.note("To have it mounted at boot, before you log in: loginctl enable-linger")
    if _is_mounted(unit):
        output.note("It is mounted already, and stays so; the unit takes over at the next start.")
    else:
        output.note(f"To mount it now: {' '.join(unit.systemctl)} start {unit.name}")


def _require_ours(unit: Unit, verb: str) -> None:
    if unit.is_foreign():
        raise UsageError(
            f"Cannot {verb} {unit.path}: it is no unit that `ckptfs service install` made. "
            "Nothing was changed.",
            hint="Look at it, and move it away if it is not needed.",
        )


def _is_mounted(unit: Unit) -> bool:
    known = config.registered(unit.workspace)
    return known is not None and runtime.living(known) is not None


def _require_mount_words(workspace: Path, words: Sequence[str]) -> None:
    """Refuse now what `ckptfs mount` would refuse at every login."""
    from ckptfs.cli.verbs import make_parser

    typed = ["mount", str(workspace), *words]
    found = make_parser(typed).parse_args(typed)
    if found.foreground or found.directory != str(workspace):
        raise UsageError("Cannot install a unit: behind -- stand options of mount, no directory.")


def _remove(unit: Unit, args: Namespace) -> None:
    _require_ours(unit, "remove")
    there = unit.path.exists()
    unit.link.unlink(missing_ok=True)
    unit.path.unlink(missing_ok=True)
    if there:
        _reload(unit)
    said = f"Removed {output.safe(unit.path)}." if there else _none_for(unit)
    output.result(_record(unit), said, as_json=args.json)
    if _is_mounted(unit):
        output.note(f"It stays mounted until: ckptfs umount {shell(str(unit.workspace))}")


def _status(unit: Unit, args: Namespace) -> None:
    record = _record(unit)
    said = _none_for(unit)
    if record["installed"]:
        state = "enabled" if record["enabled"] else "not enabled"
        mounted = "mounted" if record["mounted"] else "not mounted"
        said = f"{output.safe(unit.path)}: {state}, {record['unit_state']}; {mounted}."
    output.result(record, said, as_json=args.json)


def _none_for(unit: Unit) -> str:
    kind = "system" if unit.of_system else "user"
    return f"There is no {kind} unit for {output.safe(unit.workspace)}."


def _record(unit: Unit) -> JsonObject:
    return {
        "workspace": str(unit.workspace),
        "unit": str(unit.path),
        "installed": unit.path.exists() and not unit.is_foreign(),
        "enabled": unit.link.is_symlink(),
        "unit_state": _ask(unit, "is-active", unit.name) or "unknown",
        "mounted": _is_mounted(unit),
    }


def _reload(unit: Unit) -> None:
    if _ask(unit, "daemon-reload") is None:
        output.note("systemd does not run here; it reads the unit when it does.")


def installed() -> list[Path]:
    """The units of ours that there are, the caller's and the system's."""
    found = []
    for of_system in (False, True):
        for path in sorted(Unit(Path("/"), of_system).directory.glob("ckptfs-*.service")):
            with suppress(OSError):
                if path.read_text(errors="replace").startswith(_FIRST_LINE):
                    found.append(path)
    return found


def named_in(path: Path) -> tuple[str, str]:
    """The program that a unit of ours calls, and the workspace that it mounts; empty if it does not
    say, because it was edited."""
    text = path.read_text(errors="replace")
    start = next((line for line in text.splitlines() if line.startswith("ExecStart=")), "")
    words = [_unquoted(word) for word in _QUOTED.findall(start)]
    if "mount" not in words[1:-1]:
        return "", ""
    return words[0], words[words.index("mount") + 1]


_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _unquoted(word: str) -> str:
    """What `_quoted` made of a word, back again."""
    plain = re.sub(
        rb"\\x([0-9a-f]{2})|\\(.)",
        lambda found: bytes([int(found[1], 16)]) if found[1] else found[2],
        word.replace("%%", "%").replace("$$", "$").encode(),
    )
    return os.fsdecode(plain)


def _ask(unit: Unit, *words: str) -> str | None:
    """What systemctl says; None if it cannot reach systemd."""
    try:
        done = subprocess.run(
            [*unit.systemctl, *words], capture_output=True, text=True, timeout=_PATIENCE
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 or done.stdout.strip() else None


# -- the unit's text -------------------------------------------------------------------------------


def unit_text(unit: Unit, command: Sequence[str], mount_words: Sequence[str]) -> str:
    workspace = str(unit.workspace)
    kept = {name: os.environ[name] for name in _KEPT if os.environ.get(name)}
    return _FIRST_LINE + _TEXT.format(
        description=output.safe(workspace).replace("%", "%%"),
        after="After=local-fs.target\n" if unit.of_system else "",
        above=_quoted(str(unit.workspace.parent)),
        start=_command_line([*command, "mount", workspace, *mount_words]),
        stop=_command_line([*command, "umount", workspace]),
        environment="".join(f"Environment={_quoted(f'{k}={v}')}\n" for k, v in kept.items()),
        target=unit.target,
    )


#: What says where stores and settings are; a manager does not have it from a login shell.
_KEPT = ("XDG_DATA_HOME", "XDG_CONFIG_HOME", locating.TRUST_OWNER)


def _command_line(words: Sequence[str]) -> str:
    return " ".join(_quoted(word).replace("$", "$$") for word in words)


def _quoted(word: str) -> str:
    """A word as systemd.syntax(7) reads it back, byte for byte."""
    escaped = "".join(map(_escaped, os.fsencode(word)))
    return f'"{escaped}"'


def _escaped(byte: int) -> str:
    char = chr(byte)
    if char in '"\\':
        return "\\" + char
    if char == "%":
        return "%%"
    return char if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"
