"""Settings: what holds for a workspace, how it is changed, and what follows at once.

Settings stand in files, the user's and the store's own, so they can be read and changed whether the
store is open here, in a daemon, or nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckptfs import commands, config
from ckptfs.errors import SettingInvalid
from ckptfs.history import excluded
from ckptfs.history import settings as settings_file
from ckptfs.history.settings import Settings
from ckptfs.service.arguments import JsonObject

if TYPE_CHECKING:
    from ckptfs.service.service import Call, Service

#: What holds only after `exclude`; the daemon reads the others when it needs them.
PATTERNS = "exclude.patterns"


def files_of(store: Path | None) -> list[Path]:
    """The files that settings come from, the later ones over the earlier; without a store the
    user's only."""
    user = config.settings_file()
    return [user] if store is None else [user, own_file(store)]


def own_file(store: Path) -> Path:
    return store / settings_file.FILE


def load(store: Path | None) -> Settings:
    return settings_file.load(files_of(store))


def change(store: Path | None, name: str, value: str | None) -> None:
    """Change a setting of a store, or the user's own; None takes it back to the default."""
    settings_file.store(files_of(store)[-1], name, value)


def described(store: Path | None, name: str | None = None) -> list[JsonObject]:
    """A setting, or all of them: value, file and meaning."""
    found = load(store)
    if name is not None:
        settings_file.require_known(name)
    return [_described(known, found) for known in ([name] if name else settings_file.SETTINGS)]


def _described(name: str, found: Settings) -> JsonObject:
    origin = found.origins[name]
    return {
        "name": name,
        "value": found.texts[name],
        "file": None if origin is None else str(origin),
        "meaning": settings_file.SETTINGS[name].meaning,
        "refused": found.refused.get(name),
    }


# -- of an open store ------------------------------------------------------------------------------


def settings(service: Service) -> Settings:
    """What holds for this workspace: its own settings over the user's."""
    return load(service.fs.store.path)


def settings_stamp(service: Service) -> tuple[tuple[int, int], ...]:
    """Something else whenever the settings may have been changed."""
    return tuple(map(_stamp, files_of(service.fs.store.path)))


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return found.st_mtime_ns, found.st_ino


def record_command(service: Service) -> str:
    """How much of a command line goes into history. A wrong setting keeps no checkpoint from being
    taken: `config` tells of it."""
    try:
        return service.settings().record_command
    except SettingInvalid:
        return commands.MASKED


def exclude(service: Service) -> tuple[str, ...]:
    """Let the exclude patterns of the settings hold, for what is there already, too."""
    patterns = service.settings().exclude
    changed = excluded.apply(service.fs, patterns)
    service.fs.commit()
    service.unannounced.changed.append(changed)
    return patterns


def add_excluded(service: Service, patterns: Sequence[str]) -> None:
    """Add patterns to the workspace's own; the next `exclude` lets them hold."""
    known = service.settings().exclude
    new = [pattern for pattern in patterns if pattern not in known]
    text = settings_file.patterns_text([*known, *new])
    if new:
        settings_file.store(own_file(service.fs.store.path), PATTERNS, text)


# -- verbs -----------------------------------------------------------------------------------------


def do_exclude(call: Call, patterns: list[str]) -> JsonObject:
    call.service.add_excluded(patterns)
    return {"patterns": list(call.service.exclude())}
