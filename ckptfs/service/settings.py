"""Settings: what holds for a workspace, how it is changed, and what follows: what is excluded, and
which checkpoints expire.

Settings stand in files, the user's and the store's own, so they can be read and changed whether the
store is open here, in a daemon, or nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckptfs import commands, config, interrupts
from ckptfs.errors import SettingInvalid
from ckptfs.history import Checkpoint, collisions, excluded, expiry
from ckptfs.history import settings as settings_file
from ckptfs.history.expiry import Outcome
from ckptfs.history.retention import Decision, RetentionPolicy
from ckptfs.history.settings import Settings
from ckptfs.interrupts import Steps
from ckptfs.service.arguments import JsonObject

if TYPE_CHECKING:
    from ckptfs.service.service import Call, Service

#: What holds only after `exclude`; the daemon reads the others when it needs them.
PATTERNS = "exclude.patterns"
#: Of a full disk so many checkpoints are named that hold most.
_NAMED = 3
#: The setting that lets checkpoints expire by themselves.
_AUTOMATIC = "retention.automatic"


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


def on_collision(service: Service) -> str:
    """What happens at a collision. A wrong setting keeps no checkpoint from being taken."""
    try:
        return service.settings().collisions
    except SettingInvalid:
        return collisions.TELL


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


# -- which checkpoints expire ----------------------------------------------------------------------


def prune(service: Service, *, dry_run: bool = False) -> list[Decision]:
    """Let checkpoints expire; say for each one whether it stays and why."""
    return interrupts.finish(pruning(service, dry_run=dry_run))


def pruning(service: Service, *, dry_run: bool = False) -> Steps[list[Decision]]:
    """`prune` in steps."""
    policy = service.settings().retention
    if dry_run:
        return expiry.decide(service.fs, policy)
    decisions = yield from expiry.pruning(service.fs, policy)
    service.unannounced.deleted.update(item.id for item in decisions if not item.keep)
    return decisions


def expire(service: Service, now_ns: int | None = None, given_bytes: int = 0) -> Outcome:
    """The same by itself, if the settings want it; what is hidden has yet to be freed. ``now_ns``
    is the time by a clock that is never set; ``given_bytes`` went for room in the last hour."""
    return interrupts.at_once(expiring(service, now_ns, given_bytes))


def expiring(service: Service, now_ns: int | None = None, given_bytes: int = 0) -> Steps[Outcome]:
    """The same in steps. If the settings change meanwhile nothing expires."""
    stamp, chosen = settings_stamp(service), service.settings()
    if not chosen.value(_AUTOMATIC):
        return Outcome([], None)

    def holds() -> bool:
        return settings_stamp(service) == stamp

    fs, policy = service.fs, chosen.retention
    return (yield from expiry.expiring(fs, policy, now_ns, given_bytes, holds=holds))


def room_makers(
    service: Service, wanted: int, spares: Callable[[Checkpoint], bool]
) -> list[Checkpoint]:
    """What goes where a write would meet a full disk; nothing if nothing is to expire by itself,
    and nothing younger than `keep_all` if a setting says how old that is. Settings that make no
    sense are housekeeping's to complain of."""
    try:
        chosen = service.settings()
    except SettingInvalid:
        return expiry.room_makers(service.fs, RetentionPolicy(), wanted, spares)
    if not chosen.value(_AUTOMATIC):
        return []
    was_chosen = chosen.origins["retention.keep_all"] is not None
    return expiry.room_makers(service.fs, chosen.retention, wanted, spares, keep_young=was_chosen)


class Room(NamedTuple):
    """The disk is short of room: ``free_bytes`` for a write, where ``wanted_bytes`` are to stay
    free. ``expirable_bytes`` are held by what may expire for that, which it does if ``expires``;
    ``full`` tells that writes are refused, and ``heaviest`` then what holds most."""

    free_bytes: int
    wanted_bytes: int
    expirable_bytes: int
    expires: bool
    full: bool
    heaviest: list[dict[str, int]]


def heaviest(service: Service) -> list[dict[str, int]]:
    """The checkpoints whose removal would give most."""
    found = expiry.heaviest(service.fs, _NAMED)
    return [{"id": number, "bytes": size} for number, size in found]


def shortage(service: Service, given_bytes: int = 0) -> Room | None:
    """Whether the disk has less free than the settings want, and what comes of it, where so much
    of history went for room in the last hour."""
    store = service.fs.store
    try:
        chosen = service.settings()
    except SettingInvalid:
        return None
    found = expiry.shortage(service.fs, chosen.retention, given_bytes)
    if found is None and not store.is_full:
        return None
    wanted = chosen.retention.min_free.of(store.disk_bytes())
    free, expirable = max(store.spare_bytes(), 0), found.expirable_bytes if found else 0
    expires = found is not None and found.expiring > 0 and bool(chosen.value(_AUTOMATIC))
    named = service.heaviest() if store.is_full else []
    return Room(free, wanted, expirable, expires, store.is_full, named)


# -- verbs -----------------------------------------------------------------------------------------


def do_exclude(call: Call, patterns: list[str]) -> JsonObject:
    call.service.add_excluded(patterns)
    return {"patterns": list(call.service.exclude())}


def do_prune(call: Call, dry_run: bool) -> Steps[JsonObject]:
    decisions = yield from pruning(call.service, dry_run=dry_run)
    return {"dry_run": dry_run, "checkpoints": [decision._asdict() for decision in decisions]}
