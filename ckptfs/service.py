"""Every verb once: what the command line, the control socket and later edges can ask for.

`Service` works on an open file system and returns values. It is synchronous, prints
nothing, and does not know whether the workspace is mounted; each verb that changes something
has committed it durably when it returns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from ckptfs import config, history, sync
from ckptfs.errors import (
    CheckpointPinned,
    CheckpointUnknown,
    NotConfirmed,
    NothingToUndo,
    PathUnknown,
    SettingInvalid,
    TreeMoved,
    UsageError,
    WorkspaceNotEmpty,
    no_paths,
)
from ckptfs.fs import Filesystem
from ckptfs.history import (
    Cause,
    Checkpoint,
    LogEntry,
    Plan,
    Restored,
    Touched,
    authors,
    compression,
    damage,
    difference,
    excluded,
    listing,
    log,
    purge,
    references,
    removal,
    resting,
    selective,
    settings,
    space,
    state,
    tags,
    tally,
    undo,
    upkeep,
)
from ckptfs.history.damage import Affected
from ckptfs.history.diff import Counts
from ckptfs.history.difference import Difference
from ckptfs.history.listing import Listed
from ckptfs.history.log import Version
from ckptfs.history.purge import Doomed, Purged
from ckptfs.history.retention import Decision
from ckptfs.history.selective import Skipped
from ckptfs.history.settings import Settings
from ckptfs.history.space import Space
from ckptfs.model import ROOT_INO, Epoch
from ckptfs.store import Problem, View, check
from ckptfs.store.blocks import LOST
from ckptfs.store.check import Progress as CheckProgress
from ckptfs.sync import SyncResult
from ckptfs.sync.ledger import ROOT_PLACE, Ledger
from ckptfs.sync.results import Watcher

#: Which directory the ledger is about: its inode number and path.
_BELOW = b"below"
#: Whether the directory below was brought up to date when the workspace was last let go.
_CURRENT_BELOW = b"current_below"
#: Set while the workspace of a directory that is not mounted was changed and its directory was not
#: yet: whoever opens the store next has to write back.
_OWED_BELOW = b"owed_below"
#: The setting that lets checkpoints expire by themselves.
_AUTOMATIC = "retention.automatic"


class Figures(NamedTuple):
    """What `status` says about a store."""

    checkpoints: int
    store_bytes: int
    inodes: int
    #: Paths added, modified and deleted since the last checkpoint; None if they are very many.
    unsaved: dict[str, int] | None


class Backup(NamedTuple):
    """Where a copy of the store is, and how large."""

    dest: str
    bytes: int


class Service:
    """The verbs of one workspace, on the file system that holds it."""

    def __init__(self, fs: Filesystem) -> None:
        self.fs = fs
        #: What changed without the kernel asking for it; whoever serves the mount tells it.
        self.unannounced: list[Touched] = []

    def figures(self) -> Figures:
        store = self.fs.store
        inodes = store.head.inodes + (store.aside.inodes if store.aside else 0)
        counts = tally.unsaved(self.fs)
        unsaved = None if counts is None else counts._asdict()
        return Figures(len(history.checkpoints(store)), store.size_bytes(), inodes, unsaved)

    def save(
        self,
        message: str,
        kind: str = "manual",
        *,
        tag: str = "",
        pinned: bool = False,
        metadata: dict[str, str] | None = None,
        cause: Cause | None = None,
        documents: Sequence[state.Draft] = (),
    ) -> Checkpoint:
        """Take a checkpoint of the workspace as it is, with an agent's documents if it has any."""
        if tag:
            tag = tags.cleaned(tag)
            tags.require_free(self.fs.store, tag)
        described = {}
        if documents:
            described = state.keep(self.fs, documents, compress=self._may_compress())
        else:
            state.tidy(self.fs)
        checkpoint = history.seal(
            self.fs,
            kind,
            message,
            self.fs.clock(),
            tag=tag,
            pinned=pinned,
            metadata=metadata,
            cause=cause,
            state=described,
        )
        self.fs.commit()
        return checkpoint

    def documents(self, checkpoint: str) -> tuple[Checkpoint, list[state.Document]]:
        """The state documents that a checkpoint carries."""
        found = self.find(checkpoint)
        return found, state.documents(found)

    def read_document(self, checkpoint: str, name: str, offset: int, length: int) -> bytes:
        return state.read(self.fs, self.find(checkpoint), name, offset, length)

    def unchanged_since(self) -> Checkpoint | None:
        """The checkpoint that the workspace still equals, if there is one."""
        self.fs.settle()
        way = history.lineage(self.fs.store)
        return way[0] if way and not self.has_unsaved() else None

    def counts(self, wanted: Sequence[Checkpoint]) -> list[Counts]:
        """How much each checkpoint changed against the one it came from."""
        return tally.tallies(self.fs, wanted)

    def diff(self, older: str, newer: str, patterns: Sequence[bytes] | None = None) -> Difference:
        """What differs between two references; empty ones are the last checkpoint and now."""
        wanted = _given(patterns, "compare")
        with _paths_known("compare", "neither side has it"):
            return difference.between(self.fs, older, newer, wanted)

    def show(self, checkpoint: str, patterns: Sequence[bytes] | None = None) -> Difference:
        """What a checkpoint changed."""
        wanted = _given(patterns, "show")
        found = references.resolve_checkpoint(self.fs.store, checkpoint, self.fs.clock())
        with _paths_known("show", f"checkpoint {found.id} does not have it"):
            return difference.of_checkpoint(self.fs, found, wanted)

    def contents(self, view: int, paths: Sequence[bytes], limit: int) -> list[bytes | None]:
        """The bytes of files at one end of a difference; None for what is larger or no file."""
        return difference.contents(self.fs, Epoch(view), paths, limit)

    def path_log(self, path: bytes) -> list[Version]:
        """Every checkpoint in which a path differs from the one before, newest first."""
        with _paths_known("show", "no checkpoint has it"):
            return log.history_of(self.fs, path)

    def listed(
        self, *, limit: int | None = None, since: str = "", path: bytes | None = None
    ) -> Listed:
        """The newest checkpoints: some or all, from a moment on, or in which a path changed."""
        with _paths_known("list changes of", "neither the workspace nor any checkpoint has it"):
            return listing.listed(self.fs, limit=limit, since=since, path=path)

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints, oldest first."""
        return history.checkpoints(self.fs.store)

    def view(self, checkpoint: str | None) -> View:
        """The tree of a checkpoint, or of now when none is named."""
        if checkpoint is None:
            return self.fs.head
        return self.fs.view_of(self.find(checkpoint).epoch)

    def plan_restore(self, checkpoint: str, patterns: Sequence[bytes] | None = None) -> Plan:
        """What a restore would do, path by path."""
        target = self.find(checkpoint)
        with _nothing_in_the_way():
            return history.plan(self.fs, target, self._select(target, patterns))

    def restore(
        self,
        checkpoint: str,
        patterns: Sequence[bytes] | None = None,
        *,
        token: str = "",
        backup: bool = True,
        cause: Cause | None = None,
    ) -> Restored | None:
        """Make the workspace, or some paths of it, what it was at a checkpoint; None if it is.
        Without patterns it is all of it; an empty list of them is refused.

        What it is now is saved first, unless ``backup`` says otherwise. With the token of a plan it
        is refused if anything changed since.
        """
        target = self.find(checkpoint)
        paths = self._select(target, patterns)
        if token and history.token_of(self.fs, target, paths) != token:
            raise TreeMoved
        with _nothing_in_the_way():
            differs = history.would_change(self.fs, target, paths)
        if not differs:
            return None
        if paths:
            restored = self._restore_paths(target, paths, cause)
        else:
            restored = history.restore(self.fs, target, cause=cause)
            self.fs.commit()
            self.unannounced.append(restored.touched)
        if not backup:
            self.delete([restored.before])
        return restored

    def plan_selective(
        self, checkpoint: str, patterns: Sequence[bytes] | None, wanted: str
    ) -> tuple[Plan, list[Skipped]]:
        """What a restore of one author's changes would do, and what it would leave alone."""
        target = self.find(checkpoint)
        paths = self._select(target, patterns)
        choice = selective.choose(self.fs, target, wanted, paths)
        return choice.plan(self.fs, paths), choice.skipped

    def restore_selective(
        self,
        checkpoint: str,
        patterns: Sequence[bytes] | None,
        wanted: str,
        *,
        token: str = "",
        backup: bool = True,
        cause: Cause | None = None,
    ) -> tuple[Restored | None, list[Skipped]]:
        """Make what one author changed what it was at a checkpoint, and leave the rest alone."""
        target = self.find(checkpoint)
        paths = self._select(target, patterns)
        if token and selective.token(self.fs, target, paths, wanted) != token:
            raise TreeMoved
        choice = selective.choose(self.fs, target, wanted, paths)
        if not choice.mine:
            return None, choice.skipped
        touched = Touched(set(), set())
        self.unannounced.append(touched)  # first: also if it fails, the kernel has to hear of it
        restored = selective.restore_choice(self.fs, choice, touched_here=touched, cause=cause)
        self.fs.commit()
        if not backup:
            self.delete([restored.before])
        return restored, choice.skipped

    def acting(self, cause: Cause) -> AbstractContextManager[None]:
        """Who is to be noted for what a verb changes."""
        return authors.acting(self.fs, cause)

    def _restore_paths(
        self, target: Checkpoint, paths: list[bytes], cause: Cause | None
    ) -> Restored:
        touched = Touched(set(), set())
        self.unannounced.append(touched)  # first: also if it fails, the kernel has to hear of it
        restored = history.restore_paths(self.fs, target, paths, touched_here=touched, cause=cause)
        self.fs.commit()
        return restored

    def _select(self, target: Checkpoint, wanted: Sequence[bytes] | None) -> list[bytes]:
        patterns = _given(wanted, "restore")
        self.fs.settle()
        for pattern in patterns:
            if excluded.is_excluded(self.fs, pattern):
                raise _kept_out(pattern, target)
        views = (self.fs.head, self.fs.view_of(target.epoch))
        reason = f"neither checkpoint {target.id} nor the workspace has it"
        with _paths_known("restore", reason, named=b", ".join(patterns)):
            paths = history.select(self.fs, views, patterns)
            kept = [path for path in paths if not self._is_kept_out(path, views)]
            for pattern in patterns if len(kept) < len(paths) else ():
                found = history.select(self.fs, views, [pattern])
                if all(self._is_kept_out(path, views) for path in found):
                    raise _kept_out(pattern, target)
        return kept

    def _is_kept_out(self, path: bytes, views: Iterable[View]) -> bool:
        """Whether a path is excluded, or would be if it were restored."""
        if excluded.is_excluded(self.fs, path):
            return True
        found = [log.seek(self.fs, view, path) for view in views]
        is_dir = any(inode is not None and inode.is_dir for inode in found)
        return excluded.would_be_excluded(self.fs, path, is_dir=is_dir)

    def delete(self, doomed: Sequence[Checkpoint]) -> None:
        """Delete checkpoints and free what only they held."""
        removal.delete(self.fs, doomed)
        self.fs.commit()

    def delete_named(self, names: Sequence[str]) -> list[Checkpoint]:
        """Delete the checkpoints that are named; all of them, or none if one is pinned."""
        doomed = list({found.id: found for found in map(self.find, names)}.values())
        for checkpoint in doomed:
            if checkpoint.pinned:
                raise CheckpointPinned(checkpoint.id)
        self.delete(doomed)
        return doomed

    def keep_newest(self, most: int) -> list[int]:
        """Delete the oldest checkpoints beyond so many, other than tagged and pinned ones and those
        that `undo` and `redo` go to. Returns the numbers of what went."""
        store = self.fs.store
        entries = (history.undoable(store), history.redoable(store))
        needed = {entry.before for entry in entries if entry is not None}
        found = self.checkpoints()
        excess = max(0, len(found) - max(most, 1))
        free = [item for item in found[:-1] if not (item.tag or item.pinned or item.id in needed)]
        doomed = free[:excess]
        if doomed:
            self.delete(doomed)
        return [item.id for item in doomed]

    def tag(self, checkpoint: str, tag: str, *, move: bool = False) -> Checkpoint:
        """Give a checkpoint a tag; with an empty one, take its tag away."""
        store, found = self.fs.store, self.find(checkpoint)
        changed = (
            tags.set_tag(store, found, tag, move=move) if tag else tags.remove_tag(store, found)
        )
        self.fs.commit()
        return changed

    def pin(self, names: Sequence[str], *, pinned: bool = True) -> list[Checkpoint]:
        """Keep checkpoints from expiring and from being deleted, or no longer."""
        found = [self.find(name) for name in names]
        changed = [tags.set_pinned(self.fs.store, item, pinned=pinned) for item in found]
        self.fs.commit()
        return changed

    def settings(self) -> Settings:
        """What holds for this workspace: its own settings over the user's."""
        return settings.load([config.settings_file(), self.fs.store.path / settings.FILE])

    def exclude(self) -> tuple[str, ...]:
        """Let the exclude patterns of the settings hold, for what is there already, too."""
        patterns = self.settings().exclude
        touched = excluded.apply(self.fs, patterns)
        self.fs.commit()
        self.unannounced.append(touched)
        return patterns

    def add_excluded(self, patterns: Sequence[str]) -> None:
        """Add patterns to the workspace's own; the next `exclude` lets them hold."""
        known = self.settings().exclude
        new = [pattern for pattern in patterns if pattern not in known]
        text = settings.patterns_text([*known, *new])
        if new:
            settings.store(self.fs.store.path / settings.FILE, "exclude.patterns", text)

    def prune(self, *, dry_run: bool = False) -> list[Decision]:
        """Let checkpoints expire; say for each one whether it stays and why."""
        policy = self.settings().retention
        return upkeep.decide(self.fs, policy) if dry_run else upkeep.prune(self.fs, policy)

    def expire(self) -> list[Decision]:
        """The same by itself, if the settings want it; what is hidden has yet to be freed."""
        chosen = self.settings()
        return upkeep.expire(self.fs, chosen.retention) if chosen.value(_AUTOMATIC) else []

    def space(self) -> Space:
        """Whose bytes the store has. Reads the whole block map."""
        return space.measure(self.fs)

    def compact(self) -> tuple[int, int]:
        """Compress what is not yet, and give free room back to the disk; the size of the store's
        file before and after."""
        removal.reap(self.fs)
        if self.compresses():
            resting.wake(self.fs)
            compression.compress(self.fs)
            compression.gather(self.fs)
            compression.repack(self.fs)
            resting.lay(self.fs)
        self.fs.commit()
        before = self.fs.store.size_bytes()
        self.fs.store.compact()
        return before, self.fs.store.size_bytes()

    def _may_compress(self) -> bool:
        """The same for one who does something else and has no use for a complaint."""
        try:
            return self.compresses()
        except SettingInvalid:
            return False

    def compresses(self) -> bool:
        """Whether blocks at rest are to be compressed."""
        return bool(self.settings().value("store.compress"))

    def plan_purge(self, patterns: Sequence[bytes]) -> Doomed:
        """What `purge` would take away."""
        return purge.find(self.fs, self._to_purge(patterns))

    def purge(self, patterns: Sequence[bytes]) -> Purged:
        """Remove files from the workspace and every checkpoint, and their bytes from the store."""
        purged = purge.purge(self.fs, self._to_purge(patterns))
        if purged.doomed.inodes:
            tally.forget(self.fs.store)
            self.compact()
            self.unannounced.append(purged.touched)
        return purged

    def _to_purge(self, patterns: Sequence[bytes]) -> list[bytes]:
        reason = "neither the workspace nor any checkpoint has it"
        with _paths_known("purge", reason, named=b", ".join(patterns)):
            return purge.meant(self.fs, patterns)

    def steps_back(self, steps: int) -> Checkpoint:
        """The checkpoint that `rewind` goes to. One step back is the newest that differs from now:
        the last one, or the one before it if nothing changed since."""
        way = history.lineage(self.fs.store)
        if way and not history.would_change(self.fs, way[0], []):
            way = way[1:]
        if steps < 1:
            raise UsageError("Cannot rewind: N counts from 1. Nothing was changed.")
        if steps > len(way):
            raise CheckpointUnknown(f"@-{steps}", reason=_too_far(steps, len(way)))
        return way[steps - 1]

    def undo(
        self, cause: Cause | None = None, *, token: str = "", if_unchanged: bool = False
    ) -> Restored:
        """Take back the last restore that is not taken back yet: all, or the paths that it was of.

        With ``if_unchanged`` it is refused if anything changed since that restore, with the token
        of a plan if anything did since then.
        """
        return self._take_back("undo", cause, token=token, if_unchanged=if_unchanged)

    def redo(
        self, cause: Cause | None = None, *, token: str = "", if_unchanged: bool = False
    ) -> Restored:
        """Take back the last undo; the rest as there."""
        return self._take_back("redo", cause, token=token, if_unchanged=if_unchanged)

    def plan_back(self, kind: str) -> Plan:
        """What `undo` or `redo` would do."""
        with _nothing_in_the_way():
            return undo.plan_back(self.fs, self._to_take_back(kind))

    def restores(self) -> list[LogEntry]:
        """Every restore, oldest first."""
        return history.restore_log(self.fs.store)

    def _to_take_back(self, kind: str) -> LogEntry:
        store = self.fs.store
        entry = history.undoable(store) if kind == "undo" else history.redoable(store)
        if entry is None:
            raise NothingToUndo(kind)
        return entry

    def _take_back(
        self, kind: str, cause: Cause | None, *, token: str, if_unchanged: bool
    ) -> Restored:
        entry, touched = self._to_take_back(kind), Touched(set(), set())
        if token and undo.token_back(self.fs, entry) != token:
            raise TreeMoved
        if if_unchanged and undo.has_moved_on(self.fs, entry):
            done, since = ("undone", "restore") if kind == "undo" else ("redone", "undo")
            raise NotConfirmed(f"the workspace changed since that {since}", done)
        self.unannounced.append(touched)  # first: also if it fails, the kernel has to hear of it
        with _nothing_in_the_way():
            restored = undo.take_back(self.fs, entry, kind, touched_here=touched, cause=cause)
        self.fs.commit()
        self.unannounced.append(restored.touched)
        return restored

    def find(self, checkpoint: str) -> Checkpoint:
        """The checkpoint that a reference names."""
        return references.resolve_checkpoint(self.fs.store, checkpoint, self.fs.clock())

    def check(self, *, deep: bool = True, progress: CheckProgress | None = None) -> list[Problem]:
        """Everything that is wrong with the store; empty when nothing is. Only ``deep`` reads the
        bytes of all blocks."""
        self.fs.commit()
        faults = [Problem("pages", fault) for fault in self.fs.store.page_faults()]
        # LMDB might not survive the look at damaged pages.
        return faults or check(self.fs.store, deep=deep, progress=progress)

    def affected(self, problems: Sequence[Problem] = ()) -> list[Affected]:
        """The files that damaged blocks belong to; without problems, those that a repair could not
        save all of."""
        keys = {bytes.fromhex(item.block) for item in problems if item.block}
        return damage.affected(self.fs, keys if problems else {LOST})

    def backup(self, dest: Path) -> Backup:
        """Copy the store, as it is now, into another that is a store of its own."""
        self.fs.commit()
        return self.copy(dest)

    def copy(self, dest: Path) -> Backup:
        """The copying itself, of what was committed: a daemon does it in a thread beside."""
        store = self.fs.store
        store.backup(dest)
        own = store.path / settings.FILE
        if own.exists():
            (dest / settings.FILE).write_bytes(own.read_bytes())
        return Backup(str(dest), (dest / "data.mdb").stat().st_size)

    def is_empty(self) -> bool:
        """Whether the workspace has no files at all."""
        return not any(True for _ in self.fs.entries(self.fs.head, ROOT_INO))

    def import_tree(
        self, source: Path, progress: Watcher | None = None, *, merge: bool = False
    ) -> SyncResult:
        """Fill the workspace from another directory, which is only read.

        With ``merge`` it may have content already, and is saved before anything is overwritten.
        """
        if not self.is_empty():
            if not merge:
                raise WorkspaceNotEmpty(self.fs.store.path)
            if self.has_unsaved():
                self.save(f"before import from {source}")
        self.exclude()
        result = sync.import_tree(self.fs, source, progress=progress)
        self.save(f"import from {source}")
        return result

    def export(
        self, dest: Path, checkpoint: str | None = None, progress: Watcher | None = None
    ) -> SyncResult:
        """Write a checkpoint, or the tree of now, into an absent or empty directory."""
        view = self.view(checkpoint)
        self.fs.settle()
        return sync.export_tree(self.fs, view, dest, progress=progress)

    def take_in(self, dir_fd: int, progress: Watcher | None = None) -> SyncResult:
        """Bring in what changed in the directory below, without a checkpoint of its own."""
        self.exclude()
        result = sync.scan(self.fs, dir_fd, progress=progress)
        self.fs.commit()
        return result

    def catch_up(self, dir_fd: int) -> None:
        """Take in what changed in a directory that is not mounted, and finish what a process that
        was killed still owed to it."""
        self.take_in(dir_fd)
        if self.owes_below():
            self.write_back(dir_fd)

    def owes_below(self) -> bool:
        """Whether a process was killed between changing the workspace and its directory."""
        return self.fs.store.facts.get(_OWED_BELOW) is not None

    def settle_in(self, dir_fd: int, path: Path, *, keep_first: bool = True) -> None:
        """Take a directory that stays unmounted for the workspace. Its first state becomes a
        checkpoint, unless the caller is about to take one."""
        if keep_first and not self.checkpoints():
            self.bring_in(dir_fd, path)
        else:
            self._meet(dir_fd, path)
            self.catch_up(dir_fd)

    def owe_below(self, owed: bool = True) -> None:
        """The directory is about to fall behind the workspace. Counts with the next commit."""
        self.fs.store.charge()
        if owed:
            self.fs.store.facts.put(_OWED_BELOW, b"1")
        else:
            self.fs.store.facts.delete(_OWED_BELOW)

    def bring_in(self, dir_fd: int, path: Path, progress: Watcher | None = None) -> SyncResult:
        """Take over what the directory below holds; what changed there becomes a checkpoint.

        The state that the store had before is sealed first, so that a change made from outside
        never stands in the same checkpoint as one made inside.
        """
        self._meet(dir_fd, path)
        first = not self.checkpoints()
        if not first and self.has_unsaved():
            self.save("as it was unmounted", "mount")
        result = self.take_in(dir_fd, progress)
        if first:
            self.save("first mount", "mount")
        elif result.changed and self.has_unsaved():
            self.save("changed while unmounted", "offline")
        return result

    def write_back(self, dir_fd: int, progress: Watcher | None = None) -> SyncResult:
        """Bring the directory below up to date with the workspace."""
        self.fs.commit()
        result = sync.write_back(self.fs, dir_fd, progress=progress)
        if not result.skipped:
            self.owe_below(False)
        self.mark_below(current=True)
        return result

    def mark_below(self, *, current: bool) -> None:
        """Note durably whether the directory below is as current as the store."""
        self.fs.store.charge()
        self.fs.store.facts.put(_CURRENT_BELOW, b"1" if current else b"0")
        self.fs.commit()

    def below_is_current(self) -> bool:
        return self.fs.store.facts.get(_CURRENT_BELOW) != b"0"

    def _meet(self, dir_fd: int, path: Path) -> None:
        """Start afresh with a directory that is neither where nor what the last one was.

        Compared with the ledger of another directory, everything would look deleted. Without
        one nothing does: what both have is compared, and what only one has is kept.
        """
        store = self.fs.store
        inode, name = b"%d" % os.fstat(dir_fd).st_ino, os.fsencode(path)
        known = (store.facts.get(_BELOW) or b"").split(b" ", 1)
        if len(known) == 2 and known[0] != inode and known[1] != name:
            Ledger(store).forget_tree(*ROOT_PLACE)
        if known != [inode, name]:
            store.charge()
            store.facts.put(_BELOW, inode + b" " + name)

    def has_unsaved(self) -> bool:
        """Whether anything changed since the checkpoint that the head stands on."""
        store = self.fs.store
        if store.head.unsettled:
            return True
        return any(True for _ in store.changes.walk(store.head.epoch))


def _given(patterns: Sequence[bytes] | None, verb: str) -> Sequence[bytes]:
    """None is everything; a list that came out empty is a mistake of whoever made it."""
    if patterns is None:
        return ()
    if not patterns:
        raise no_paths(verb)
    return patterns


def _kept_out(path: bytes, target: Checkpoint) -> PathUnknown:
    reason = f"it is excluded from history (`cp -a` from .checkpoints/{target.id} can copy it)"
    return PathUnknown(path, reason, verb="restore")


def _too_far(steps: int, there: int) -> str:
    """Why a rewind of so many steps cannot be: what of the history lies before now."""
    wanted = "1 checkpoint" if steps == 1 else f"{steps} checkpoints"
    known = "none" if there == 0 else f"only {there}"
    return f"Cannot rewind {wanted}: there {'is' if there < 2 else 'are'} {known} before now"


#: Where the usual hint would not do.
_HINTS = {
    "purge": "If a purge of it was interrupted, `ckptfs compact` removes what is left of its "
    "bytes. `ckptfs log PATH` shows where a file was."
}


@contextmanager
def _paths_known(verb: str, reason: str, named: bytes = b"") -> Iterator[None]:
    """Turn a path that names nothing into the error to show; ``named`` is what was asked for."""
    try:
        yield
    except FileNotFoundError as error:
        raise PathUnknown(error.filename, reason, verb=verb, hint=_HINTS.get(verb)) from error
    except ValueError as error:
        raise PathUnknown(named, str(error), verb=verb) from error


@contextmanager
def _nothing_in_the_way() -> Iterator[None]:
    """Turn what stands in the way of a restore by paths into the error to show."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        reason = str(error.strerror)
        raise PathUnknown(error.filename or b"", reason, verb="restore") from error
