"""Retention: which checkpoints stay, what they are called, and the settings that say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ckptfs import history
from ckptfs.errors import CheckpointPinned, NotConfirmed, SettingInvalid
from ckptfs.history import Checkpoint, expiry, references, removal
from ckptfs.history.expiry import Outcome
from ckptfs.history.retention import Decision, RetentionPolicy
from ckptfs.service import wire
from ckptfs.service.arguments import JsonObject

if TYPE_CHECKING:
    from ckptfs.service.service import Call, Service

#: Of a full disk so many checkpoints are named that hold most.
_NAMED = 3
#: The setting that lets checkpoints expire by themselves.
_AUTOMATIC = "retention.automatic"


def delete(service: Service, doomed: Sequence[Checkpoint]) -> None:
    """Delete checkpoints and free what only they held."""
    service.unannounced.deleted.update(item.id for item in doomed)
    removal.delete(service.fs, doomed)
    service.fs.sync()


def delete_named(
    service: Service, names: Sequence[str], *, tagged: bool = True
) -> list[Checkpoint]:
    """Delete the checkpoints that are named; all of them, or none if one is pinned or, unless
    ``tagged`` ones may go, has a tag."""
    doomed = list({found.id: found for found in map(service.find, names)}.values())
    for checkpoint in doomed:
        if checkpoint.pinned:
            raise CheckpointPinned(checkpoint.id)
    kept = [item for item in doomed if item.tag and not tagged]
    if kept:
        reason = ", ".join(f"checkpoint {item.id} is tagged {item.tag!r}" for item in kept)
        raise NotConfirmed(reason, "deleted", dry_run=False)
    service.delete(doomed)
    return doomed


def keep_newest(service: Service, most: int) -> list[int]:
    """Delete the oldest checkpoints beyond so many, other than tagged and pinned ones and those
    that `undo` and `redo` go to. Returns the numbers of what went."""
    store = service.fs.store
    entries = (history.undoable(store), history.redoable(store))
    needed = {entry.before for entry in entries if entry is not None}
    found = history.without_moments(store)
    excess = max(0, len(found) - max(most, 1))
    free = [item for item in found[:-1] if not (item.tag or item.pinned or item.id in needed)]
    doomed = free[:excess]
    if doomed:
        service.delete(doomed)
    return [item.id for item in doomed]


def tag(service: Service, checkpoint: str, tag: str, *, move: bool = False) -> Checkpoint:
    """Give a checkpoint a tag; with an empty one, take its tag away."""
    store, found = service.fs.store, service.find(checkpoint)
    changed = (
        references.set_tag(store, found, tag, move=move)
        if tag
        else references.remove_tag(store, found)
    )
    service.fs.commit()
    return changed


def pin(service: Service, names: Sequence[str], *, pinned: bool = True) -> list[Checkpoint]:
    """Keep checkpoints from expiring and from being deleted, or no longer."""
    found = [service.find(name) for name in names]
    changed = [references.set_pinned(service.fs.store, item, pinned=pinned) for item in found]
    service.fs.commit()
    return changed


def prune(service: Service, *, dry_run: bool = False) -> list[Decision]:
    """Let checkpoints expire; say for each one whether it stays and why."""
    policy = service.settings().retention
    if dry_run:
        return expiry.decide(service.fs, policy)
    decisions = expiry.prune(service.fs, policy)
    service.unannounced.deleted.update(item.id for item in decisions if not item.keep)
    return decisions


def expire(service: Service, now_ns: int | None = None, given_bytes: int = 0) -> Outcome:
    """The same by itself, if the settings want it; what is hidden has yet to be freed. ``now_ns``
    is the time by a clock that is never set; ``given_bytes`` went for room in the last hour."""
    chosen = service.settings()
    if not chosen.value(_AUTOMATIC):
        return Outcome([], None)
    return expiry.expire(service.fs, chosen.retention, now_ns, given_bytes)


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


def do_tag(call: Call, checkpoint: str, tag: str, move: bool) -> JsonObject:
    service = call.service
    was = service.find(checkpoint)
    changed = service.tag(str(was.id), tag, move=move)
    more = {"was": was.tag, "reference": reference(changed)}
    return {"checkpoints": [wire.checkpoint(changed) | more]}


def reference(checkpoint: Checkpoint) -> str:
    """What names a checkpoint by its tag: the tag, unless that reads like something else."""
    tag = checkpoint.tag
    return references.safe_tag(tag) if tag and references.is_reserved(tag) else tag


def do_pin(call: Call, checkpoints: list[str]) -> JsonObject:
    return _all(call.service.pin(checkpoints))


def do_unpin(call: Call, checkpoints: list[str]) -> JsonObject:
    return _all(call.service.pin(checkpoints, pinned=False))


def do_delete(call: Call, checkpoints: list[str], tagged: bool) -> JsonObject:
    return _all(call.service.delete_named(checkpoints, tagged=tagged))


def _all(checkpoints: list[Checkpoint]) -> JsonObject:
    return {"checkpoints": [wire.checkpoint(item) for item in checkpoints]}


def do_prune(call: Call, dry_run: bool) -> JsonObject:
    decisions = call.service.prune(dry_run=dry_run)
    return {"dry_run": dry_run, "checkpoints": [decision._asdict() for decision in decisions]}
