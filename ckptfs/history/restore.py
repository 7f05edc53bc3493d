"""Restoring: moving the head to a checkpoint, or making some paths what they were there.

A restore is one transaction: it seals the head, which gives the checkpoint that undoes it, opens a
new head on top of the target, and writes the log entry. The caller gets what differs between the
two and notifies the kernel. A restore does not change files that are open: they live on in *limbo*,
a view of their own on top of the sealed head, as a file does when another is renamed over it. What
took their place has a new inode number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import xxhash

from ckptfs import interrupts
from ckptfs.fs import Filesystem, filesystems
from ckptfs.history import difference
from ckptfs.history.checkpoints import Cause, Checkpoint, numbered, seal
from ckptfs.history.diff.changed import Changed, changed_between, inode_in, names_differ
from ckptfs.history.diff.tree import DELETED, Change, compare_views
from ckptfs.history.difference import Difference, OnRecords, is_visible, take
from ckptfs.history.excluded import (
    hidden_by_excluded,
    keep_excluded,
    needed_by_excluded,
    seen_under,
)
from ckptfs.history.path_restore import PathRestorer
from ckptfs.interrupts import Steps
from ckptfs.model import Epoch, Ino, Inode
from ckptfs.store import Store, View
from ckptfs.store.format import has_links, line_key, pack_u64, unpack_inode

_LOG = b"restore:"
#: The clock is looked at after so many inodes that the kernel may know.
_STRIDE = 64


@dataclass(frozen=True)
class Plan:
    """What a restore would do, path by path, and a token that is valid only for this state."""

    target: int
    added: tuple[bytes, ...]
    modified: tuple[bytes, ...]
    deleted: tuple[bytes, ...]
    token: str


@dataclass(frozen=True)
class Restored:
    """A restore that is done. ``before`` is the checkpoint that undoes it."""

    before: Checkpoint
    target: int
    changed: Changed


@dataclass(frozen=True)
class LogEntry:
    """One entry of the restore log. ``kind`` is restore, merge, undo or redo; ``undoes`` is the
    entry that an undo or redo takes back. ``whole`` are the paths that were restored with all below
    them, None if all were; ``after`` is a checkpoint of the resulting state, if there is one."""

    number: int
    kind: str
    time_ns: int
    target: int
    before: int
    entries: int
    paths: tuple[str, ...] = ()
    undoes: int | None = None
    command: str = ""
    pid: int = 0
    whole: tuple[str, ...] | None = None
    after: int | None = None


def restore(
    fs: Filesystem,
    target: Checkpoint,
    *,
    kind: str = "restore",
    takes_back: LogEntry | None = None,
    cause: Cause | None = None,
) -> Restored:
    """Make the workspace what it was at the checkpoint. The caller commits and tells the kernel,
    which has dropped what `preparing` names. An undo or redo says which entry of the log it
    takes back.
    """
    fs.flush()
    leave_limbo(fs)
    store = fs.store
    cause = cause or Cause()
    old, goal = fs.head.bare, store.view(target.epoch)
    found = take(fs, target)
    differing = Changed(found.inodes, found.entries)
    seen = seen_under(fs, differing.entries)
    nameless = set(fs.unlinked)
    before = seal(fs, "restore", f"before {kind} to {target.id}", fs.clock(), cause=cause)
    fs.head = store.open_epoch(goal.epoch, inodes=goal.inodes)
    for ino in differing.inodes:
        fs.changing(ino)
    differing.entries.update(_move_to_limbo(fs, old, found))
    keep_excluded(fs, old, differing)
    # For a program that has a file in limbo open nothing changed.
    differing.inodes.difference_update(fs.limbo)
    differing.entries.update(_bump_generations(fs, nameless, found))
    # An entry that something excluded covers looks as it did before.
    still = seen_under(fs, seen)
    differing.entries.difference_update(place for place in seen if seen[place] == still[place])
    log_restore(fs, kind, target, before, differing, cause, takes_back=takes_back)
    return Restored(before, target.id, differing)


def restore_paths(
    fs: Filesystem,
    target: Checkpoint,
    paths: list[bytes],
    *,
    kind: str = "restore",
    takes_back: LogEntry | None = None,
    changed: Changed,
    cause: Cause | None = None,
) -> Restored:
    """Make these paths what they were at the checkpoint; everything else stays as it is.

    ``changed`` collects what the kernel has to be notified of, also on failure: then the head goes
    back to the state before.
    """
    cause = cause or Cause()
    plan(fs, target, paths)  # raises, before anything changes, if it cannot be done
    message = f"before {kind} of {_some(paths)} to {target.id}"
    before = seal(fs, "restore", message, fs.clock(), cause=cause)
    restorer = PathRestorer(fs, fs.store.view(target.epoch), changed=changed)
    with or_roll_back(fs, [before], changed):
        for path in paths:
            restorer.path(path)
    log_restore(fs, kind, target, before, changed, cause, takes_back=takes_back, paths=paths)
    return Restored(before, target.id, changed)


@contextmanager
def or_roll_back(fs: Filesystem, taken: Sequence[Checkpoint], changed: Changed) -> Iterator[None]:
    """Have the block not have happened if it fails: the head is what it was at the first of the
    checkpoints that were taken for it, and all of those are gone. Files that are open stay as
    they are: no request comes in between, so no program has seen the block's work."""
    unlinked = set(fs.unlinked)
    try:
        yield
    except BaseException:
        _roll_back(fs, taken[0], changed, unlinked)
        for checkpoint in taken:
            fs.store.describe_epoch(checkpoint.epoch, {})
        raise


def _roll_back(fs: Filesystem, before: Checkpoint, changed: Changed, unlinked: set[Ino]) -> None:
    """Leave the head for a new one on top of the checkpoint; `removal` frees what it held."""
    fs.flush()
    fs.authorship.finish()
    store = fs.store
    found = take(fs, before)
    for ino in fs.unlinked - unlinked:
        store.orphans.delete(line_key(ino, fs.line))
        fs.forgotten.discard(ino)
    fs.unlinked &= unlinked
    store.seal_epoch(fs.head, {})
    fs.head = store.open_epoch(before.epoch, inodes=store.view(before.epoch).inodes)
    for ino in found.inodes:
        fs.changing(ino)
    changed.entries.update(found.entries)
    changed.inodes.update(found.inodes)


def plan(fs: Filesystem, target: Checkpoint, paths: list[bytes]) -> Plan:
    """What `restore`, or `restore_paths` when paths are given, would do now."""
    fs.flush()
    goal = fs.store.view(target.epoch)
    if paths:
        restorer = PathRestorer(fs, goal, apply=False)
        for path in paths:
            restorer.path(path)
        lists = (restorer.added, restorer.modified, restorer.deleted)
        added, modified, deleted = (tuple(sorted(found)) for found in lists)
    else:
        added, modified, deleted = paths_by_effect(visible_changes(fs, goal))
    return Plan(target.id, added, modified, deleted, token_of(fs, target.epoch, paths))


def would_change(fs: Filesystem, target: Checkpoint, paths: list[bytes]) -> bool:
    """Whether a restore would change anything that can be seen."""
    fs.flush()
    if paths:
        found = plan(fs, target, paths)
        return bool(found.added or found.modified or found.deleted)
    if fs.head.excluded is None and is_visible(fs, target):
        return True
    goal = fs.store.view(target.epoch)
    # Names are usually enough: comparing everything that differs takes as long as restoring it.
    if fs.head.excluded is None and names_differ(fs.store, fs.head, goal):
        return True
    return bool(visible_changes(fs, goal))


def differ(store: Store, a: Checkpoint, b: Checkpoint) -> bool:
    """Whether two checkpoints are of different states."""
    changed = changed_between(store, store.view(a.epoch), store.view(b.epoch))
    return bool(changed.inodes or changed.entries)


def visible_changes(fs: Filesystem, goal: View) -> list[Change]:
    """How the workspace would look different after a restore of another view: excluded files stay,
    with the directories that they are in."""
    hidden, needed = hidden_by_excluded(fs), needed_by_excluded(fs)
    changes = (_as_seen(change, hidden) for change in compare_views(fs, fs.head, goal))
    return [
        change
        for change in changes
        if change is not None and not (change.new is None and change.path in needed)
    ]


def _as_seen(change: Change, hidden: Callable[[bytes], bool]) -> Change | None:
    """A change, unless something excluded hides it; what moves to where it is hidden goes."""
    if not hidden(change.path):
        return change
    gone = change.old_path
    return None if gone is None else Change(gone, gone, frozenset({DELETED}), change.old, None)


Paths = tuple[bytes, ...]


def paths_by_effect(changes: Iterable[Change]) -> tuple[Paths, Paths, Paths]:
    """The paths that changes add, modify and delete; a rename deletes one and adds another."""
    added, modified, deleted = set(), set(), set()
    for change in changes:
        if change.old is None or change.old_path is not None:
            added.add(change.path)
        if change.new is None or change.old_path is not None:
            deleted.add(change.old_path or change.path)
        if change.old is not None and change.new is not None and change.old_path is None:
            modified.add(change.path)
    return tuple(sorted(added)), tuple(sorted(modified)), tuple(sorted(deleted))


def token_of(fs: Filesystem, target: Epoch, paths: list[bytes], others: Iterable[View] = ()) -> str:
    """A token that changes whenever anything in the workspace, or another head, does: made from the
    head's epoch and every inode that it has changed, with its change time."""
    fs.flush()
    digest = xxhash.xxh3_64()
    digest.update(repr((target, fs.head.epoch, paths)).encode())
    for head in (fs.head, *others):
        for entity in fs.store.changes.walk(head.epoch):
            digest.update(entity)
            if entity[:1] == fs.store.inodes.kind:
                digest.update(fs.store.inodes.own(head, entity[1:]) or b"")
    return digest.hexdigest()


def _some(paths: list[bytes]) -> str:
    first = os.fsdecode(paths[0])
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def log_restore(
    fs: Filesystem,
    kind: str,
    target: Checkpoint,
    before: Checkpoint,
    changed: Changed,
    cause: Cause,
    *,
    takes_back: LogEntry | None = None,
    paths: Iterable[bytes] = (),
    whole: Iterable[bytes] | None = None,
    after: Checkpoint | None = None,
) -> None:
    """Append a restore to the log. One that takes another back has the same paths."""
    entry = LogEntry(
        number=_next_number(fs),
        kind=kind,
        time_ns=fs.clock(),
        target=target.id,
        before=before.id,
        entries=len(changed.entries),
        paths=tuple(map(os.fsdecode, paths)),
        command=cause.command,
        pid=cause.pid,
        whole=None if whole is None else tuple(map(os.fsdecode, whole)),
        after=None if after is None else after.id,
    )
    if takes_back is not None:
        paths_too, whole_too = takes_back.paths, takes_back.whole
        entry = replace(entry, undoes=takes_back.number, paths=paths_too, whole=whole_too)
    fs.facts.put(_key(entry.number), json.dumps(asdict(entry)).encode())


def _used(
    fs: Filesystem, old: View, differing: Iterable[Ino], not_files: Container[Ino]
) -> list[Inode]:
    """The files of the old head that differ and that a program may have open."""
    used = filter(fs.is_used, differing)
    known = [ino for ino in used if ino not in fs.limbo and ino not in not_files]
    found = [inode_in(fs.store, old, ino) for ino in known]
    return [inode for inode in found if inode is not None and inode.is_file]


def preparing(
    fs: Filesystem, target: Checkpoint, on_records: OnRecords = lambda done: None
) -> Steps[dict[tuple[Ino, bytes], Ino]]:
    """Find out what a `restore` would change, which then takes a moment, and return the files among
    that which the kernel caches, by their names. The caller has it drop them first: a file that it
    still knows after that is open, and stays what it is for the program that has it open. None
    where the cache is not counted."""
    yield from difference.preparing(fs, target, on_records)
    found: dict[tuple[Ino, bytes], Ino] = {}
    differing = difference.prepared(fs, target)
    if not fs.can_ask or differing is None:
        return found
    for number, ino in enumerate([*differing.inodes]):
        if number % _STRIDE == 0 and interrupts.is_due():
            yield
            fs.flush()
        if not fs.is_used(ino) or ino in fs.limbo:
            continue
        old = fs.head.bare
        inode = inode_in(fs.store, old, ino)
        if inode is not None and not inode.is_file:
            differing.not_files.add(ino)
        elif inode is not None and inode.nlink:
            found.update(dict.fromkeys(fs.places_of(old, inode), ino))
    return found


def _move_to_limbo(fs: Filesystem, old: View, found: Difference) -> list[tuple[Ino, bytes]]:
    """Move files that are in use to limbo, and give the files that took their place in the new head
    new inode numbers; return the names of those."""
    store = fs.store
    # An unlinked file that the target has too does not differ, but no head keeps it.
    more = fs.unlinked - found.inodes
    used = _used(fs, old, chain(found.inodes, more), found.not_files)
    held = [inode.ino for inode in used]
    _forget_nameless(fs, found.nameless | fs.unlinked)
    if held:
        limbo = store.open_epoch(old.epoch, inodes=old.inodes)
        fs.limbo.update(dict.fromkeys(held, limbo))
    moved: list[tuple[Ino, bytes]] = []
    # Those of earlier restores too: the new head may have their numbers again.
    for ino in fs.limbo:
        inode = inode_in(store, fs.head, ino)
        if inode is not None and inode.nlink:
            moved += fs.renumber(fs.head.bare, ino)
    return moved


def _bump_generations(
    fs: Filesystem, nameless: set[Ino], found: Difference
) -> list[tuple[Ino, bytes]]:
    """Give the files that differ a new generation; return all their names.

    The kernel knows no inode that the old head did not have, unless it is ``nameless``. Where
    lookup counts are known, a file that the kernel does not know needs no new generation either.
    """
    names = dict(found.names)
    for ino in nameless & found.inodes - names.keys():
        inode = inode_in(fs.store, fs.head, ino)
        if inode is not None and inode.is_file and inode.nlink:
            names[ino] = list(fs.places_of(fs.head.bare, inode))
    named: list[tuple[Ino, bytes]] = []
    counts_lookups = fs.is_used != fs.is_held
    for ino, places in names.items():
        if ino not in fs.limbo:
            if not counts_lookups or fs.is_used(ino):
                fs.generations[ino] = fs.generations.get(ino, 0) + 1
            named += places
    return named


def leave_limbo(fs: Filesystem) -> None:
    """Hide the limbo epochs in which no file is open any more (a crash leaves some too); `removal`
    frees what they hold."""
    store = fs.store
    views = (view for each in filesystems(store) for view in each.limbo.values())
    needed = store.head_epochs | {view.epoch for view in views}
    for epoch in sorted(store.epoch_tree.unsealed - needed):
        store.seal_epoch(store.view(epoch), {})


def _forget_nameless(fs: Filesystem, differing: set[Ino]) -> None:
    """Drop unlinked inodes from the new head: those of the old one, and those that the target
    has."""
    for ino in fs.unlinked:
        fs.store.orphans.delete(line_key(ino, fs.line))
    # Excluded inodes belong to no head.
    gone = {ino for ino in fs.unlinked if not fs.is_excluded(ino)}
    fs.unlinked -= gone
    fs.forgotten -= gone
    # A checkpoint that was taken while an unlinked file was open has that file.
    head, inodes = fs.head.bare, fs.store.inodes
    for ino in differing:
        record = inodes.get(head, pack_u64(ino))
        if record and not has_links(record):
            inode = unpack_inode(ino, record)
            if not inode.name:  # a state document has one
                fs.erase(head, inode)


# -- the log ---------------------------------------------------------------------------------------


def log(fs: Filesystem) -> list[LogEntry]:
    """Every restore, oldest first."""
    return [_entry(json.loads(value)) for _, value in fs.facts.walk(_LOG)]


def _entry(record: dict[str, Any]) -> LogEntry:
    whole = record.get("whole")
    lists = {"paths": tuple(record["paths"]), "whole": None if whole is None else tuple(whole)}
    return LogEntry(**{**record, **lists})


def undoable(fs: Filesystem) -> LogEntry | None:
    """The newest restore or redo that is not undone, if the state before it was kept."""
    taken_back = set()
    for entry in _newest_first(fs):
        if entry.kind == "undo":
            taken_back.add(entry.undoes)
        elif entry.number not in taken_back:
            return _if_kept(fs.store, entry)
    return None


def redoable(fs: Filesystem) -> LogEntry | None:
    """The newest undo that is not redone, unless a restore came after it."""
    taken_back = set()
    for entry in _newest_first(fs):
        if entry.kind in ("restore", "merge"):
            return None
        if entry.kind == "redo":
            taken_back.add(entry.undoes)
        elif entry.number not in taken_back:
            return _if_kept(fs.store, entry)
    return None


def _newest_first(fs: Filesystem) -> Iterator[LogEntry]:
    """The log backwards: an undo comes after the entry that it takes back."""
    for number in range(_next_number(fs) - 1, -1, -1):
        record = fs.facts.get(_key(number))
        if record is not None:
            yield _entry(json.loads(record))


def _next_number(fs: Filesystem) -> int:
    last = fs.facts.last(_LOG)
    return 0 if last is None else int(last.removeprefix(_LOG)) + 1


def _key(number: int) -> bytes:
    return _LOG + b"%010d" % number


def _if_kept(store: Store, entry: LogEntry) -> LogEntry | None:
    return None if numbered(store, entry.before) is None else entry
