"""Queries: what there is, and what differs. Nothing here changes anything."""

from __future__ import annotations

import os
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ckptfs import history, interrupts, mountinfo
from ckptfs.errors import UsageError
from ckptfs.fs import Filesystem
from ckptfs.history import Checkpoint, LogEntry, comparison, forks, log, references
from ckptfs.history.comparison import Comparison
from ckptfs.history.diff import compare
from ckptfs.history.diff.compare import Counts, Difference
from ckptfs.history.log import Listed, Version
from ckptfs.model import Epoch
from ckptfs.service import wire
from ckptfs.service.arguments import JsonObject, given, paths_known
from ckptfs.store import View

if TYPE_CHECKING:
    from ckptfs.service.service import Call, Service


class Figures(NamedTuple):
    """What `status` says about a store."""

    checkpoint_count: int
    moments: int
    store_bytes: int
    inodes: int
    #: Paths added, modified and deleted since the last checkpoint; None if they are very many.
    unsaved: dict[str, int] | None


def figures(service: Service) -> Figures:
    store = service.fs.store
    head = service.fs.head
    inodes = head.inodes + (head.excluded.inodes if head.excluded else 0)
    counts = compare.unsaved_counts(service.fs)
    unsaved = None if counts is None else counts._asdict()
    shown, moments = len(history.of_line(service.fs)), history.count_moments(store)
    return Figures(shown, moments, store.size_bytes(), inodes, unsaved)


def find(service: Service, checkpoint: str) -> Checkpoint:
    """The checkpoint that a reference names."""
    return references.resolve_checkpoint(service.fs, checkpoint, service.fs.clock())


def view(service: Service, checkpoint: str | None) -> View:
    """The tree of a checkpoint, or of now when none is named."""
    if checkpoint is None:
        return service.fs.head
    return service.fs.view_of(service.find(checkpoint).epoch)


def checkpoints(service: Service) -> list[Checkpoint]:
    """All checkpoints, oldest first."""
    return history.checkpoints(service.fs.store)


def listed(
    service: Service,
    *,
    limit: int | None = None,
    since: str = "",
    path: bytes | None = None,
    moments: bool = False,
) -> Listed:
    """The newest checkpoints: some or all, from a time on, or in which a path changed; with the
    moments between them, if those are wanted."""
    with paths_known("list changes of", "neither the workspace nor any checkpoint has it"):
        return log.listed(service.fs, limit=limit, since=since, path=path, moments=moments)


def counts(service: Service, wanted: Sequence[Checkpoint]) -> list[Counts]:
    """How much each checkpoint changed against the one it came from."""
    return compare.counts_of(service.fs, wanted, service.new_counts)


def diff(
    service: Service, older: str, newer: str, patterns: Sequence[bytes] | None = None
) -> Difference:
    """What differs between two references; empty ones are the last checkpoint and now."""
    wanted = given(patterns, "compare")
    with paths_known("compare", "neither side has it"):
        return compare.between(service.fs, older, newer, wanted)


def show(service: Service, checkpoint: str, patterns: Sequence[bytes] | None = None) -> Difference:
    """What a checkpoint changed."""
    wanted = given(patterns, "show")
    found = references.resolve_checkpoint(service.fs, checkpoint, service.fs.clock())
    with paths_known("show", f"checkpoint {found.id} does not have it"):
        return compare.of_checkpoint(service.fs, found, wanted)


def contents(service: Service, view: int, paths: Sequence[bytes], limit: int) -> list[bytes | None]:
    """The bytes of files at one end of a difference; None for what is larger or no file."""
    return compare.contents(service.fs, Epoch(view), paths, limit)


def path_log(service: Service, path: bytes) -> list[Version]:
    """Every checkpoint in which a path differs from the one before, newest first."""
    with paths_known("show", "no checkpoint has it"):
        return log.history_of(service.fs, path)


# -- verbs -----------------------------------------------------------------------------------------


def do_figures(call: Call) -> JsonObject:
    return call.service.figures()._asdict()


def do_list(
    call: Call, limit: int | None, since: str, path: bytes | None, moments: bool
) -> JsonObject:
    service = call.service
    found = service.listed(limit=limit, since=since, path=path, moments=moments)
    counted = zip(found.checkpoints, service.counts(found.checkpoints), strict=True)
    return {
        "checkpoints": [wire.checkpoint(item) | counts._asdict() for item, counts in counted],
        "more": found.more,
        "moments": found.moments,
    }


def do_get(call: Call, checkpoint: str) -> JsonObject:
    return wire.checkpoint(call.service.find(checkpoint))


def do_diff(
    call: Call, older: str, newer: str, paths: list[bytes] | None, times: bool, files: bool
) -> JsonObject:
    found = call.service.diff(older, newer, paths)
    return _difference_record(call.service, found, times=times, files=files)


def do_show(
    call: Call, checkpoint: str, paths: list[bytes] | None, times: bool, files: bool
) -> JsonObject:
    found = call.service.show(checkpoint, paths)
    return _difference_record(call.service, found, times=times, files=files)


def _difference_record(
    service: Service, found: Difference, *, times: bool, files: bool
) -> JsonObject:
    """A difference; with ``files`` those of which the client makes a text diff. It asks for their
    bytes itself: the file system does not wait while lines are compared."""
    if not times:
        found = found.without_times()
    record = wire.difference(found)
    if files:
        pairs = found.file_pairs(service.fs)
        record["files"] = [wire.pair(pair) for pair in interrupts.checked(pairs)]
    return record


def do_compare(call: Call, states: list[str]) -> JsonObject:
    """Of each state its name, counts, lines and runs; of each path what they made of it."""
    if len(states) < 2:
        raise UsageError("Cannot compare fewer than two states: name forks or checkpoints.")
    fs = call.service.fs
    found = comparison.compare(fs, states)
    return {
        "base": None if found.base is None else wire.checkpoint(found.base),
        "states": [_state_record(state) for state in found.states],
        "paths": [_compared_path(fs, found, path) for path in interrupts.checked(found.paths())],
    }


def _state_record(state: comparison.State) -> JsonObject:
    saved = state.reference.checkpoint
    return {
        "name": state.reference.text,
        "saved": None if saved is None else wire.checkpoint(saved),
        **compare.count_changes(state.changes.values())._asdict(),
        "lines_added": state.lines.added,
        "lines_removed": state.lines.removed,
        "runs": [dict(vars(run)) for run in state.runs],
    }


def _compared_path(fs: Filesystem, found: Comparison, path: bytes) -> JsonObject:
    """``changed_by`` are the names of the states that changed it; ``alike`` says whether they made
    the same of it."""
    changed = [state for state in found.states if path in state.changes]
    return {
        "path": os.fsdecode(path),
        "changed_by": [state.reference.text for state in changed],
        "alike": comparison.alike(fs, changed, path),
    }


def do_contents(call: Call, view: int, paths: list[bytes], limit: int) -> JsonObject:
    found = call.service.contents(view, paths, limit)
    return {"contents": [None if data is None else b64encode(data).decode() for data in found]}


def do_log(call: Call, path: bytes) -> JsonObject:
    versions = [wire.version(version) for version in call.service.path_log(path)]
    return {"path": os.fsdecode(path), "versions": versions}


def do_forks(call: Call) -> JsonObject:
    """Of each fork where it is, where it parted, and how much it changed since; and what those were
    that have ended."""
    fs = call.service.fs
    places = _mounted_forks(os.fspath(fs.store.path))
    found = [fork for fork in forks.forks(fs.store) if not forks.is_scratch(fork.name)]
    saved = Counter(item.fork for item in history.without_moments(fs.store))
    return {
        "forks": [
            wire.fork(fork, forks.base_of(fs.store, fork), places.get(fork.number, ""))
            | {"checkpoint_count": saved[fork.number]}
            | forks.changes_since_base(fs, fork)._asdict()
            for fork in interrupts.checked(found)
        ],
        "last_states": [wire.checkpoint(item) for item in forks.last_states(fs.store)],
    }


def _mounted_forks(store: str) -> dict[int, str]:
    """Where the forks of a store are mounted, by number."""
    found = {}
    with suppress(OSError):  # a sandbox without /proc
        for mount in mountinfo.entries(Path("/proc/self/mountinfo").read_bytes()):
            place, line = mountinfo.split_source(mount.source)
            if line and place == store:
                found[line] = mount.path
    return found


def do_restores(call: Call) -> JsonObject:
    return {"restores": [_restore_entry(entry) for entry in call.service.restores()]}


def _restore_entry(entry: LogEntry) -> JsonObject:
    """``checkpoint`` is where the restore went, ``before`` the one that it took first."""
    record = {"checkpoint": entry.target, **asdict(entry), "paths": list(entry.paths)}
    del record["target"]
    return record | {"whole": None if entry.whole is None else list(entry.whole)}
