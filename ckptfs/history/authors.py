"""Authors: recording which command made each change, and restoring what one author changed.

An author is a command as `ckptfs.history.steps` sees it, or a verb of our own. `Signer` runs with
every request that changes something; for the next request of the same process it costs a few
comparisons.

A path is restored if everything that changed it since the checkpoint was the author's doing. A path
that others changed too, or an unknown process, is left alone and reported: no work of others is
lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ckptfs.errors import AuthorUnknown
from ckptfs.fs import Filesystem
from ckptfs.fs.authorship import signatures
from ckptfs.history.checkpoints import Cause, Checkpoint, checkpoints, seal
from ckptfs.history.diff.changed import TIMES, Changed, differences, epochs_between
from ckptfs.history.diff.tree import ADDED, DELETED, RENAMED, Change, compare_views
from ckptfs.history.path_restore import claimed_paths, claims_of, put_back, whole_paths
from ckptfs.history.paths import is_below, is_within, seek
from ckptfs.history.restore import Plan, Restored, log, log_restore, or_roll_back, token_of
from ckptfs.history.steps import Callers, Step
from ckptfs.model import Epoch, Ino
from ckptfs.store.format import GONE, epoch_of, inode_entity, unpack_inode


class Signer:
    """Records the step that makes a request as the author of what the request changes."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._step: Step | None = None
        self._round = -1
        self._signature: set[Ino] = set()

    def sign(self, step: Step | None) -> None:
        """Record the changes to come under this step. None is an unknown process: the kernel's own
        threads write back pages that others wrote."""
        authorship = self._fs.authorship
        if step is None:
            self._fs.signing = authorship.late
            return
        if step is not self._step or self._round != authorship.round:
            self._signature = authorship.of(step.key, _description(step))
            self._step, self._round = step, authorship.round
        self._fs.signing = self._signature


def _description(step: Step) -> dict[str, object]:
    return {"pid": step.pid, "command": step.command, "session": step.session}


@contextmanager
def acting(fs: Filesystem, cause: Cause) -> Iterator[None]:
    """Record what a verb of our own changes under the caller's name."""
    if cause.command:
        key = (cause.pid, cause.command)
        described = {"pid": cause.pid, "command": cause.command, "session": cause.session}
        fs.signing = fs.authorship.of(key, described)
    else:
        fs.signing = fs.authorship.unsigned
    try:
        yield
    finally:
        fs.signing = fs.authorship.unsigned


# -- asking ----------------------------------------------------------------------------------------


class Attribution(NamedTuple):
    """The authors of changes in some epochs: by inode in the order of their changes, and by epoch
    the inodes whose author is recorded."""

    authors: dict[Ino, dict[Cause, None]]
    signed: dict[Epoch, set[Ino]]

    def of(self, *inodes: Ino) -> list[Cause]:
        """The authors of any of the inodes, the latest last."""
        return list(dict.fromkeys(one for ino in inodes for one in self.authors.get(ino, ())))

    def all_authors(self) -> list[Cause]:
        return list(dict.fromkeys(one for known in self.authors.values() for one in known))

    def has_unknown(self, fs: Filesystem, ino: Ino) -> bool:
        """Whether an unknown process changed an inode. Its versions say which epochs did: those
        are few among all that there may be between two checkpoints."""
        for _, suffix, _ in fs.store.inodes.versions(inode_entity(ino)):
            signed = self.signed.get(epoch_of(suffix))
            if signed is not None and ino not in signed and _changed(fs, epoch_of(suffix), ino):
                return True
        return False


def _changed(fs: Filesystem, epoch: Epoch, ino: Ino) -> bool:
    """Whether an epoch changed an inode, other than by freeing one without a name."""
    table, view, entity = fs.store.inodes, fs.view_of(epoch).bare, inode_entity(ino)
    own = table.own(view, entity)
    if own is None:
        return False
    before = table.inherited(view, entity)
    return own != GONE or before is None or unpack_inode(ino, before).nlink > 0


def attribution_of(fs: Filesystem, epochs: Iterable[Epoch]) -> Attribution:
    """The authors of what changed in these epochs. The caller has flushed."""
    found = Attribution({}, {})
    for epoch in sorted(epochs):
        signed = found.signed[epoch] = set()
        for _, description, inodes in signatures(fs.store, epoch):
            author = Cause(**description)
            for ino in inodes:
                known = found.authors.setdefault(ino, {})
                known.pop(author, None)  # the latest is the last
                known[author] = None
            signed.update(inodes)
    return found


#: Why a path is left alone: others changed it; the author and others did; the author is unknown;
#: others changed something in a directory that would have to go or move; others moved the
#: directory that it is in, or put something else in its place.
Reason = Literal["others", "both", "unknown", "content", "moved", "blocked"]

#: How many authors an error names.
_NAMED = 10


class LeftAlone(NamedTuple):
    """A path that differs and is left alone, with those who changed it besides the author."""

    path: bytes
    reason: Reason
    by: tuple[Cause, ...]


@dataclass
class Choice:
    """Which of the changes since a checkpoint are one author's."""

    wanted: str
    target: Checkpoint
    mine: list[Change] = field(default_factory=list)
    skipped: list[LeftAlone] = field(default_factory=list)
    #: Paths that are no directories now.
    files: set[bytes] = field(default_factory=set)

    def plan(self, fs: Filesystem, paths: list[bytes]) -> Plan:
        added = [change.source for change in self.mine if change.old_path is not None]
        added += [change.path for change in self.mine if DELETED in change.kinds]
        deleted = [c.path for c in self.mine if ADDED in c.kinds or c.old_path is not None]
        known = {*added, *deleted}
        modified = [change.path for change in self.mine if change.path not in known]
        return Plan(
            self.target.id,
            tuple(sorted(path for path in added if path)),
            tuple(sorted(modified)),
            tuple(sorted(deleted)),
            token(fs, self.target, paths, self.wanted),
        )


def choose(fs: Filesystem, target: Checkpoint, wanted: str, paths: list[bytes]) -> Choice:
    """Which changes since the checkpoint are the author's; with ``paths`` only those at or below
    them. Raises AuthorUnknown if no author of a change matches."""
    fs.flush()
    record = attribution_of(fs, epochs_between(fs.store, target.epoch, fs.head.epoch))
    mine = matching(record.all_authors(), wanted)
    if not mine:
        known = [author.command or str(author.pid) for author in record.all_authors()]
        raise AuthorUnknown(wanted, target.id, known[-_NAMED:])
    choice = Choice(wanted, target)
    restores = _Restores(fs, target)
    for change in compare_views(fs, fs.view_of(target.epoch), fs.head):
        if not paths or any(is_within(path, paths) for path in (change.path, change.source or b"")):
            _judge(fs, record, mine, restores, change, choice)
            if change.new is not None and not change.new.is_dir:
                choice.files.add(change.path)
    _leave_moved(choice)
    return choice


def matching(authors: Iterable[Cause], wanted: str) -> set[Cause]:
    """The authors that a session ("SID" or "SID:START"), a process or group id, or a part of the
    command line names."""
    if not wanted.isdecimal():
        return {one for one in authors if wanted in one.command or wanted == one.session}
    # The process may be one of many in a command that is known by its first.
    alive = Callers()(int(wanted))
    pids = {int(wanted)} | ({alive.step.pid} if alive is not None else set())
    return {one for one in authors if one.pid in pids or one.session.split(":")[0] == wanted}


class _Restores:
    """Our own restores as authors. A restore that made a path what it was at the checkpoint has
    added nothing that could be lost."""

    def __init__(self, fs: Filesystem, target: Checkpoint) -> None:
        self._fs = fs
        self._view = fs.view_of(target.epoch)
        known = {checkpoint.id: checkpoint.epoch for checkpoint in checkpoints(fs.store)}
        #: By process and command, where each of its restores went; None if that is gone.
        self._went: dict[tuple[int, str], set[Epoch | None]] = {}
        for entry in log(fs):
            went = self._went.setdefault((entry.pid, entry.command), set())
            went.add(known.get(entry.target))

    def added_nothing(self, author: Cause, path: bytes) -> bool:
        went = self._went.get((author.pid, author.command), {None})
        return all(epoch is not None and self._is_same(epoch, path) for epoch in went)

    def _is_same(self, epoch: Epoch, path: bytes) -> bool:
        fs, there = self._fs, self._fs.view_of(epoch)
        old, new = seek(fs, self._view, path), seek(fs, there, path)
        if old is None or new is None:
            return old is new
        return differences(fs, self._view, old, there, new) <= {TIMES}


def _judge(
    fs: Filesystem,
    record: Attribution,
    mine: set[Cause],
    restores: _Restores,
    change: Change,
    choice: Choice,
) -> None:
    inodes = {inode.ino for inode in (change.old, change.new) if inode is not None}
    path = change.source or change.path
    authors = [
        author
        for author in record.of(*inodes)
        if author in mine or not restores.added_nothing(author, path)
    ]
    others = tuple(author for author in authors if author not in mine)
    is_dir = any(inode.is_dir for inode in (change.old, change.new) if inode is not None)
    unknown = not is_dir and any(record.has_unknown(fs, ino) for ino in inodes)
    if len(others) == len(authors):
        reason: Reason = "others" if others else "unknown"
        choice.skipped.append(LeftAlone(change.path, reason, others))
    elif others or unknown:
        choice.skipped.append(LeftAlone(change.path, "both", others))
    else:
        choice.mine.append(change)


def _leave_moved(choice: Choice) -> None:
    """Leave alone what cannot go back without taking others' work along."""
    while moved := list(_moved(choice)):
        gone = {id(change) for change, _ in moved}
        choice.mine = [change for change in choice.mine if id(change) not in gone]
        choice.skipped += [LeftAlone(change.path, reason, ()) for change, reason in moved]
    choice.skipped.sort()


def _moved(choice: Choice) -> Iterator[tuple[Change, Reason]]:
    left = [skipped.path for skipped in choice.skipped]
    whole = {change.path for change in choice.mine if RENAMED in change.kinds and _is_dir(change)}
    in_the_way = choice.files - {change.path for change in choice.mine}
    for change in choice.mine:
        came = RENAMED in change.kinds or ADDED in change.kinds
        if _is_dir(change) and came and any(is_below(path, {change.path}) for path in left):
            yield change, "content"
        elif (
            RENAMED not in change.kinds
            and change.source not in (None, change.path)
            and not is_below(change.path, whole)
        ):
            yield change, "moved"
        elif is_below(change.source or change.path, in_the_way):
            yield change, "blocked"


def _is_dir(change: Change) -> bool:
    inode = change.new or change.old
    return inode is not None and inode.is_dir


# -- doing it --------------------------------------------------------------------------------------


def token(fs: Filesystem, target: Checkpoint, paths: list[bytes], wanted: str) -> str:
    return token_of(
        fs, target.epoch, [*paths, b"only changed by", wanted.encode("utf-8", "replace")]
    )


def restore_choice(
    fs: Filesystem, choice: Choice, *, changed: Changed, cause: Cause | None = None
) -> Restored:
    """Put back what was chosen, as one step that `undo` takes back. The caller commits.

    ``changed`` collects what the kernel has to be notified of, also on failure: then everything is
    as it was.
    """
    target, cause = choice.target, cause or Cause()
    goals = {claim: target for change in choice.mine for claim in claims_of(change)}
    message = f"before restore of what {choice.wanted} changed to {target.id}"
    before = seal(fs, "restore", message, fs.clock(), cause=cause)
    with or_roll_back(fs, [before], changed):
        put_back(fs, goals, changed)
    paths, whole = claimed_paths(goals), whole_paths(goals)
    log_restore(fs, "restore", target, before, changed, cause, paths=paths, whole=whole)
    return Restored(before, target.id, changed)
