"""Taking back what one task changed, and leaving what others changed alone.

A path goes back to what it was when the stretch began in which the task first changed it. Others
are in the way where a path of the task changed again in a time that is not the task's own: while
another task was current, or none. It is one step, and `undo` takes it back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ckptfs import interrupts
from ckptfs.errors import TaskConflict, TaskInvalid
from ckptfs.fs import Filesystem
from ckptfs.history import tasks
from ckptfs.history.checkpoints import Cause, Checkpoint, checkpoints, seal
from ckptfs.history.diff import RENAMED, ROOT_PATH, Change, compare
from ckptfs.history.equalise import Equaliser
from ckptfs.history.restore import note, or_as_it_was
from ckptfs.history.tasks import Task
from ckptfs.history.touched import Touched
from ckptfs.model import ROOT_INO, Attributes, Inode
from ckptfs.store import View

#: How many paths of a conflict an error names.
_NAMED = 20


class Claim(NamedTuple):
    """A path that somebody changed. A renamed directory takes all below it along."""

    path: bytes
    whole: bool


@dataclass
class Undoing:
    """What it takes to revert a task: each path with the checkpoint it goes back to, and the paths
    that others changed meanwhile, with who did it as far as a task did."""

    name: str
    goals: dict[Claim, Checkpoint] = field(default_factory=dict)
    conflicts: dict[bytes, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[bytes]:
        return sorted({claim.path for claim in self.goals})

    @property
    def whole(self) -> list[bytes]:
        return sorted({claim.path for claim in self.goals if claim.whole})


@dataclass(frozen=True)
class Reverted:
    """A revert that is done. ``before`` is the checkpoint that undoes it."""

    undoing: Undoing
    before: Checkpoint
    after: Checkpoint


# -- looking ---------------------------------------------------------------------------------------


def plan(fs: Filesystem, name: str) -> Undoing:
    """What reverting a task would do, and what is in its way."""
    fs.flush()
    found = tasks.tasks(fs.store)
    task = tasks.find(fs.store, name)
    known = {checkpoint.id: checkpoint for checkpoint in checkpoints(fs.store)}
    undoing = Undoing(name)
    foreign: set[bytes] = set()
    others: list[Claim] = []
    for (begin, end), following in zip(task.stretches, [*task.stretches[1:], None], strict=True):
        upto = None if following is None else following.begin
        _require(known, task, begin, end, upto)
        for claim in claims(fs, known, begin, end):
            undoing.goals.setdefault(claim, known[begin])
        if end is not None:
            meanwhile = list(claims(fs, known, end, upto))
            others += meanwhile
            foreign.update(_meetings(undoing.goals, meanwhile))
    covered = set(_covered(fs, undoing))
    foreign.update(claim.path for claim in others if lies_below(claim.path, covered))
    if foreign:
        undoing.conflicts = _blame(fs, known, found, name, foreign)
    return undoing


def _covered(fs: Filesystem, undoing: Undoing) -> Iterator[bytes]:
    """Directories that have to go for something that stood in their place."""
    for claim, goal in undoing.goals.items():
        here, there = at(fs, fs.head, claim.path), at(fs, fs.view_of(goal.epoch), claim.path)
        if here is not None and here.is_dir and there is not None and not there.is_dir:
            yield claim.path


def changed_by(fs: Filesystem, known: dict[int, Checkpoint], task: Task) -> list[bytes] | None:
    """The paths that a task changed; None if a checkpoint at one of its ends is gone."""
    ends = {end for stretch in task.stretches for end in stretch if end is not None}
    if not ends <= known.keys():
        return None
    return sorted(
        {claim.path for stretch in task.stretches for claim in claims(fs, known, *stretch)}
    )


def _require(known: dict[int, Checkpoint], task: Task, *numbers: int | None) -> None:
    for number in numbers:
        if number is not None and number not in known:
            reason = f"checkpoint {number}, at one end of it, was deleted"
            raise TaskInvalid(task.name, reason, deed="revert the task")


def claims(
    fs: Filesystem, known: dict[int, Checkpoint], begin: int, end: int | None
) -> Iterator[Claim]:
    """The paths that differ between two checkpoints, or a checkpoint and now."""
    newer = fs.head if end is None else fs.view_of(known[end].epoch)
    for change in compare(fs, fs.view_of(known[begin].epoch), newer):
        if not change.only_times:
            yield from claims_of(change)


def claims_of(change: Change) -> Iterator[Claim]:
    """The paths that a change is about."""
    inode = change.new or change.old
    whole = RENAMED in change.kinds and inode is not None and inode.is_dir
    yield Claim(change.path, whole)
    if change.source not in (None, change.path):
        yield Claim(change.source or b"", whole)


def _meetings(own: dict[Claim, Checkpoint], others: list[Claim]) -> Iterator[bytes]:
    """The paths at which both changed something."""
    paths = {claim.path for claim in own}
    whole = {claim.path for claim in own if claim.whole}
    for claim in others:
        if claim.path in paths or lies_below(claim.path, whole):
            yield claim.path
        elif claim.whole:
            yield from (path for path in paths if lies_below(path, {claim.path}))


def lies_below(path: bytes, tops: set[bytes]) -> bool:
    """Whether a path lies below one of ``tops``."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        if path in tops:
            return True
    return False


def _blame(
    fs: Filesystem,
    known: dict[int, Checkpoint],
    found: dict[str, Task],
    name: str,
    foreign: set[bytes],
) -> dict[bytes, str]:
    blamed = dict.fromkeys(sorted(foreign), "")
    for other in found.values():
        for begin, end in other.stretches if other.name != name else ():
            if begin in known and (end is None or end in known):
                for claim in claims(fs, known, begin, end):
                    if claim.path in blamed:
                        blamed[claim.path] = other.name
    return blamed


# -- doing it --------------------------------------------------------------------------------------


def revert(
    fs: Filesystem,
    name: str,
    *,
    force: bool = False,
    touched_here: Touched,
    cause: Cause | None = None,
) -> Reverted:
    """Take back what a task changed, and end it. The caller commits.

    Raises `TaskConflict` if others changed the same paths, unless forced. ``touched_here`` takes
    what the kernel has to hear of, also if it fails: then everything is as it was.
    """
    fs.flush()
    with interrupts.stoppable():
        undoing = plan(fs, name)
    if undoing.conflicts and not force:
        raise TaskConflict(name, list(_told(undoing.conflicts)))
    before = seal(fs, "restore", f"before revert of task {name}", fs.clock(), cause=cause)
    with or_as_it_was(fs, before, touched_here, cause or Cause()):
        put_back(fs, undoing, touched_here)
    after = seal(
        fs, tasks.KIND, f"task reverted: {name}", fs.clock(), metadata={"task": name}, cause=cause
    )
    target = min(undoing.goals.values(), key=lambda goal: goal.id, default=before)
    note(
        fs,
        "restore",
        target,
        before,
        touched_here,
        cause or Cause(),
        paths=undoing.paths,
        whole=undoing.whole,
        after=after,
    )
    tasks.note(fs, tasks.REVERT, name, before, after)
    return Reverted(undoing, before, after)


def _told(conflicts: dict[bytes, str]) -> Iterator[str]:
    for path, other in list(conflicts.items())[:_NAMED]:
        yield os.fsdecode(path) + (f" (task {other})" if other else "")
    if len(conflicts) > _NAMED:
        yield f"{len(conflicts) - _NAMED:,} more"


def put_back(fs: Filesystem, undoing: Undoing, touched_here: Touched) -> None:
    """Make each path what it was, and leave what others put into a directory alone.

    The last stretch of work is taken back first: what a later one moved must stand where an earlier
    one had put it before that can go.
    """
    views: dict[int, View] = {}
    groups: dict[int, dict[bytes, bool]] = {}
    for claim, goal in undoing.goals.items():
        views[goal.id] = fs.view_of(goal.epoch)
        group = groups.setdefault(goal.id, {})
        group[claim.path] = claim.whole or group.get(claim.path, False)
    for number in sorted(groups, reverse=True):
        _put_back_to(fs, views[number], groups[number], touched_here)


def _put_back_to(
    fs: Filesystem, view: View, paths: dict[bytes, bool], touched_here: Touched
) -> None:
    """The same for the paths that go to one checkpoint; True for those that are taken whole."""
    equaliser = Equaliser(fs, view, touched=touched_here)
    left: list[bytes] = []
    done: set[bytes] = set()
    for path, whole in sorted(paths.items()):
        if lies_below(path, done):
            continue  # it went with the directory that it is in
        here, there = at(fs, fs.head, path), at(fs, view, path)
        if here is not None and here.is_dir and not whole:
            if there is None:
                left.append(path)  # others may have put something into it
                continue
            if there.is_dir:
                _dress(fs, here, view, there, touched_here)
                continue
        equaliser.path(path)
        if (here is not None and here.is_dir) or (there is not None and there.is_dir):
            done.add(path)
    for path in sorted(left, key=lambda path: -path.count(b"/")):
        _remove_if_empty(fs, path, touched_here)


def at(fs: Filesystem, view: View, path: bytes) -> Inode | None:
    """What stands at a path of a view, not following links."""
    view = view.bare
    here: Inode | None = fs.getattr(view, ROOT_INO)
    for part in path.split(b"/") if path != ROOT_PATH else ():
        here = fs.seek(view, here.ino, part) if here is not None and here.is_dir else None
    return here


def _remove_if_empty(fs: Filesystem, path: bytes, touched_here: Touched) -> None:
    above, _, name = path.rpartition(b"/")
    parent, here = at(fs, fs.head, above or ROOT_PATH), at(fs, fs.head, path)
    if parent is None or here is None or any(True for _ in fs.entries(fs.head, here.ino)):
        return
    fs.rmdir(fs.head, parent.ino, name)
    touched_here.entries.add((parent.ino, name))
    touched_here.inodes.update((parent.ino, here.ino))


def _dress(fs: Filesystem, here: Inode, view: View, there: Inode, touched_here: Touched) -> None:
    """Give a directory the mode, owner and attributes it had; what is in it is not touched."""
    if fs.store.xattrs_used:
        for name in fs.listxattr(fs.head, here.ino):
            fs.removexattr(fs.head, here.ino, name)
        for name in fs.listxattr(view, there.ino):
            fs.setxattr(fs.head, here.ino, name, fs.getxattr(view, there.ino, name))
    wanted = Attributes(mode=there.mode, uid=there.uid, gid=there.gid)
    fs.setattr(fs.head, here.ino, wanted)
    touched_here.inodes.add(here.ino)
