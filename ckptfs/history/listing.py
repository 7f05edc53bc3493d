"""Which checkpoints a list is about: since when, touching what, and how many of them."""

from __future__ import annotations

from typing import NamedTuple

from ckptfs.errors import CheckpointUnknown
from ckptfs.fs import Filesystem
from ckptfs.history import log, references
from ckptfs.history.checkpoints import (
    Checkpoint,
    checkpoints,
    count_moments,
    without_moments,
)
from ckptfs.history.timeref import parse_time
from ckptfs.store import Store

_SECOND_NS = 1_000_000_000


class Listed(NamedTuple):
    """The checkpoints of a list, oldest first, how many older ones a limit left out, and how many
    moments stand between them."""

    checkpoints: list[Checkpoint]
    more: int
    moments: int


def listed(
    fs: Filesystem,
    *,
    limit: int | None = None,
    since: str = "",
    path: bytes | None = None,
    moments: bool = False,
) -> Listed:
    """The newest checkpoints, ``limit`` of them or all; only those from ``since`` on (a time, or
    a checkpoint), only those in which ``path`` changed. With ``moments`` also those.

    Raises FileNotFoundError if no checkpoint has the path.
    """
    found = checkpoints(fs.store) if moments else without_moments(fs.store)
    if since:
        found = _from(fs, found, since)
    if path is not None:
        changed = {
            version.checkpoint.id for version in log.history_of(fs, path) if version.checkpoint
        }
        found = [item for item in found if item.id in changed]
    more = 0 if limit is None else max(0, len(found) - limit)
    shown = found[more:]
    return Listed(shown, more, 0 if moments else _moments_between(fs.store, shown))


def _moments_between(store: Store, shown: list[Checkpoint]) -> int:
    """How many moments are as new as the oldest of those that are shown."""
    if not count_moments(store):
        return 0
    oldest = shown[0].id if shown else 0
    return sum(item.is_moment and item.id >= oldest for item in checkpoints(store))


def _from(fs: Filesystem, known: list[Checkpoint], since: str) -> list[Checkpoint]:
    now_ns = fs.clock()
    at_ns = parse_time(since, now_ns)
    if at_ns is not None:
        # A list shows whole seconds, and the one that was read there is meant as a whole.
        begin_ns = at_ns // _SECOND_NS * _SECOND_NS
        return [item for item in known if item.time_ns >= begin_ns]
    try:
        first = references.resolve_checkpoint(fs.store, since, now_ns)
    except CheckpointUnknown as error:
        reason = f"Cannot list since {since}: it is neither a time nor a checkpoint"
        raise CheckpointUnknown(since, error.near, reason) from error
    return [item for item in known if item.id >= first.id]
