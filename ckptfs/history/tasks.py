"""Tasks: named stretches of work, whose changes can be taken back without those of others.

At most one task is current: the one that was started last and is not done. Starting another while
one is open makes the other current; when that is done, the one before goes on. So every stretch of
time belongs to one task or to none, and a task's changes are the differences between the beginning
and the end of its stretches. Each end of a stretch is a checkpoint of kind `task`; the log of
events is in the store's metadata, under ``task:`` and a number.

An agent first writes down its list of tasks and then works through it from the top. So announced
tasks (`announce`) queue up: the first is current until it is finished, then the next.

Reverting a task restores each path to the state at the beginning of the stretch in which the task
first changed it. A path conflicts if it changed again in time that is not the task's own. A revert
is one restore, and `undo` takes it back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ckptfs import interrupts
from ckptfs.errors import TaskConflict, TaskInvalid, TaskUnknown
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import CURRENT_TASK, Cause, Checkpoint, checkpoints, seal
from ckptfs.history.diff.changed import Changed
from ckptfs.history.diff.tree import compare_views
from ckptfs.history.path_restore import Claim, claimed_paths, claims_of, put_back, whole_paths
from ckptfs.history.paths import is_below, seek
from ckptfs.history.restore import log_restore, or_roll_back

KIND = "task"
NAME_MAX = 100

#: Events besides start and done. Of an announced task, which waits behind those announced before.
ANNOUNCE = "announce"
#: The last two are of an undo and a redo of a revert; they are no ends of a stretch.
REVERT = "revert"
REVERT_UNDONE = "revert undone"
REVERT_REDONE = "revert redone"

_LOG = b"task:"


@dataclass(frozen=True)
class Entry:
    """One line of the log. ``event`` is start, announce, done or about a revert. ``checkpoint``
    ends the stretch that was going on, ``after`` begins the next one; they differ if the event
    itself changed files, and are where the stretch began if it goes on."""

    number: int
    event: str
    name: str
    checkpoint: int
    after: int
    time_ns: int
    message: str = ""


class Stretch(NamedTuple):
    """From one checkpoint to another, or to now."""

    begin: int
    end: int | None


@dataclass
class Task:
    """A task, from the log. ``state`` is current, open, done or reverted."""

    name: str
    started_ns: int
    state: str = "current"
    message: str = ""
    ended_ns: int | None = None
    stretches: list[Stretch] = field(default_factory=list)


def tasks(fs: Filesystem) -> dict[str, Task]:
    """Every task by its name, in the order in which they were started."""
    return _replay(fs).now()


def current(fs: Filesystem) -> str:
    """The name of the current task; empty if there is none."""
    return (fs.facts.get(CURRENT_TASK) or b"").decode()


def start(fs: Filesystem, name: str, cause: Cause | None = None) -> Checkpoint | None:
    """Make a task the current one. Returns where it begins, or None if it is current already.

    The caller commits.
    """
    _require_name(name)
    if current(fs) == name:
        return None
    begins = seal(fs, KIND, f"task start: {name}", fs.clock(), metadata={"task": name}, cause=cause)
    log_event(fs, "start", name, begins, begins)
    return begins


def done(fs: Filesystem, message: str = "", cause: Cause | None = None) -> tuple[str, Checkpoint]:
    """End the current task. Returns its name and where it ends. The caller commits."""
    name = current(fs)
    if not name:
        raise TaskUnknown("", "no task is open")
    ends = seal(fs, KIND, message or f"task done: {name}", fs.clock(), cause=cause)
    log_event(fs, "done", name, ends, ends, message)
    return name, ends


def announce(
    fs: Filesystem, name: str, message: str = "", cause: Cause | None = None
) -> Checkpoint | None:
    """Put an agent's task in line: it is current when those announced before it are finished.

    Returns where it begins; None if it waits, or is open already. The caller commits.
    """
    _require_name(name)
    found = _replay(fs)
    if name in found.going_on:
        return None
    if found.in_line:
        _log_without_switch(fs, ANNOUNCE, name, message)
        return None
    begins = seal(fs, KIND, f"task start: {name}", fs.clock(), metadata={"task": name}, cause=cause)
    log_event(fs, ANNOUNCE, name, begins, begins, message)
    return begins


def finish(fs: Filesystem, name: str, cause: Cause | None = None) -> Checkpoint | None:
    """End a task by its name. Returns where it ends; None if it was not the current one, or is not
    open. The caller commits."""
    if name == current(fs):
        return done(fs, cause=cause)[1]
    if name in _replay(fs).going_on:
        _log_without_switch(fs, "done", name)
    return None


def _log_without_switch(fs: Filesystem, event: str, name: str, message: str = "") -> None:
    """Append an event at which the current task goes on."""
    at = _replay(fs).since
    _append(fs, Entry(0, event, name, at, at, fs.clock(), message))


def log_event(
    fs: Filesystem,
    event: str,
    name: str,
    checkpoint: Checkpoint,
    after: Checkpoint,
    message: str = "",
) -> None:
    """Append to the log, and keep which task is current where `seal` looks for it."""
    _append(fs, Entry(0, event, name, checkpoint.id, after.id, fs.clock(), message))


def _append(fs: Filesystem, unnumbered: Entry) -> None:
    facts = fs.facts
    entry = replace(unnumbered, number=_replay(fs).number + 1)
    facts.put(_name(entry.number), json.dumps(asdict(entry)).encode())
    going_on = _replay(fs).going_on
    if going_on:
        facts.put(CURRENT_TASK, going_on[-1].encode())
    else:
        facts.delete(CURRENT_TASK)


def events(fs: Filesystem) -> list[Entry]:
    """Every event, oldest first."""
    return [_entry(value) for _, value in fs.facts.walk(_LOG)]


def _name(number: int) -> bytes:
    return _LOG + b"%010d" % number


def _entry(value: bytes) -> Entry:
    return Entry(**json.loads(value))


def find(fs: Filesystem, name: str) -> Task:
    """The task of that name, with something that could be taken back."""
    task = tasks(fs).get(name)
    if task is None:
        raise TaskUnknown(name, "there is no task of that name")
    if not task.stretches:
        reverted = task.state == "reverted"
        raise TaskUnknown(name, "it is reverted already" if reverted else "it changed nothing")
    return task


def _require_name(name: str) -> None:
    if not name.strip() or name != name.strip():
        raise TaskInvalid(name, "it is empty, or has blanks around it")
    if len(name) > NAME_MAX:
        raise TaskInvalid(name[:NAME_MAX], f"it is longer than {NAME_MAX} characters")
    if not name.isprintable():
        raise TaskInvalid(name, "it has characters that cannot be printed")


class _Replay:
    """What the log leads to. ``going_on`` are the open tasks, the current one last; ``in_line``
    are those of them that were announced."""

    def __init__(self) -> None:
        #: The number of the last event.
        self.number = -1
        #: Without the stretch that is going on.
        self.tasks: dict[str, Task] = {}
        self.going_on: list[str] = []
        self.in_line: list[str] = []
        #: Where the stretch that is going on began.
        self.since = 0
        #: By task, the stretches that its last revert took back.
        self._reverted: dict[str, list[Stretch]] = {}

    def add(self, entry: Entry) -> None:
        """Another event came."""
        self.number = entry.number
        if entry.event in (REVERT_UNDONE, REVERT_REDONE):
            self._change_mind(entry)
            return
        self._cut(entry.checkpoint)
        if entry.event in ("start", ANNOUNCE):
            self._start(entry)
        else:
            self._end(entry)
        self.since = entry.after

    def now(self) -> dict[str, Task]:
        """The tasks, as the caller's own."""
        found = {
            name: replace(task, stretches=[*task.stretches]) for name, task in self.tasks.items()
        }
        for name in self.going_on:
            found[name].state = "open"
        if self.going_on:
            task = found[self.going_on[-1]]
            task.state = "current"
            task.stretches.append(Stretch(self.since, None))
        return found

    def _cut(self, end: int) -> None:
        """The stretch that began with the last event ends here."""
        if self.going_on and end != self.since:
            self.tasks[self.going_on[-1]].stretches.append(Stretch(self.since, end))

    def _start(self, entry: Entry) -> None:
        task = self.tasks.setdefault(entry.name, Task(entry.name, entry.time_ns))
        if not task.stretches and task.state == "reverted":
            task.started_ns = entry.time_ns
        task.state, task.ended_ns = "open", None
        self._leave(entry.name)
        if entry.event != ANNOUNCE:
            self.going_on.append(entry.name)
            return
        task.message = entry.message or task.message
        first = self.going_on.index(self.in_line[-1]) if self.in_line else len(self.going_on)
        self.going_on.insert(first, entry.name)
        self.in_line.append(entry.name)

    def _end(self, entry: Entry) -> None:
        self._leave(entry.name)
        task = self.tasks[entry.name]
        task.state, task.ended_ns = "done", entry.time_ns
        task.message = entry.message or task.message
        if entry.event == REVERT:
            task.state = "reverted"
            self._reverted[entry.name] = task.stretches
            task.stretches = []

    def _change_mind(self, entry: Entry) -> None:
        """What the revert took back is the task's again, or no longer; the task may have been
        started anew meanwhile."""
        task, taken = self.tasks[entry.name], self._reverted[entry.name]
        later = [stretch for stretch in task.stretches if stretch not in taken]
        task.stretches = [*taken, *later] if entry.event == REVERT_UNDONE else later
        if not later and entry.name not in self.going_on:
            task.state = "done" if entry.event == REVERT_UNDONE else "reverted"

    def _leave(self, name: str) -> None:
        for names in (self.going_on, self.in_line):
            if name in names:
                names.remove(name)


_replays: WeakKeyDictionary[Filesystem, _Replay] = WeakKeyDictionary()


def _replay(fs: Filesystem) -> _Replay:
    """What the log leads to. It only grows, so what is new is added to what is known already: a
    hook takes no longer after a thousand tasks."""
    found = _replays.setdefault(fs, _Replay())
    last = fs.facts.last(_LOG)
    if last is None or int(last[len(_LOG) :]) < found.number:
        found = _replays[fs] = _Replay()
    if last is not None and last != _name(found.number):
        for _, value in fs.facts.walk(_LOG, after=_name(found.number)):
            found.add(_entry(value))
    return found


#: How many paths of a conflict an error names.
_NAMED = 20


@dataclass
class RevertPlan:
    """What reverting a task takes: each path with the checkpoint that it goes back to, and in
    ``conflicts`` the paths that others changed since, each with the task that did, or nothing."""

    name: str
    goals: dict[Claim, Checkpoint] = field(default_factory=dict)
    conflicts: dict[bytes, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[bytes]:
        return claimed_paths(self.goals)


@dataclass(frozen=True)
class Reverted:
    """A revert that is done. ``before`` is the checkpoint that undoes it. Of a task that changed
    nothing there is none, nor ``after``: nothing was done, and the task stays as it was."""

    plan: RevertPlan
    before: Checkpoint | None = None
    after: Checkpoint | None = None


# -- looking ---------------------------------------------------------------------------------------


def plan_revert(fs: Filesystem, name: str) -> RevertPlan:
    """What reverting a task would do, and its conflicts."""
    fs.flush()
    found = tasks(fs)
    task = find(fs, name)
    known = {checkpoint.id: checkpoint for checkpoint in checkpoints(fs.store)}
    plan = RevertPlan(name)
    foreign: set[bytes] = set()
    others: list[Claim] = []
    for (begin, end), following in zip(task.stretches, [*task.stretches[1:], None], strict=True):
        upto = None if following is None else following.begin
        _require(known, task, begin, end, upto)
        for claim in claims(fs, known, begin, end):
            plan.goals.setdefault(claim, known[begin])
        if end is not None:
            meanwhile = list(claims(fs, known, end, upto))
            others += meanwhile
            foreign.update(_meetings(plan.goals, meanwhile))
    covered = set(_covered(fs, plan))
    foreign.update(claim.path for claim in others if is_below(claim.path, covered))
    if foreign:
        plan.conflicts = _blame(fs, known, found, name, foreign)
    return plan


def _covered(fs: Filesystem, plan: RevertPlan) -> Iterator[bytes]:
    """Directories that have to go because a file is restored in their place."""
    for claim, goal in plan.goals.items():
        here, there = seek(fs, fs.head, claim.path), seek(fs, fs.view_of(goal.epoch), claim.path)
        if here is not None and here.is_dir and there is not None and not there.is_dir:
            yield claim.path


def paths_changed_by(
    fs: Filesystem, known: dict[int, Checkpoint], task: Task
) -> list[bytes] | None:
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
    for change in compare_views(fs, fs.view_of(known[begin].epoch), newer):
        if not change.only_times:
            yield from claims_of(change)


def _meetings(own: dict[Claim, Checkpoint], others: list[Claim]) -> Iterator[bytes]:
    """The paths at which both changed something."""
    paths = {claim.path for claim in own}
    whole = {claim.path for claim in own if claim.whole}
    for claim in others:
        if claim.path in paths or is_below(claim.path, whole):
            yield claim.path
        elif claim.whole:
            yield from (path for path in paths if is_below(path, {claim.path}))


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
    changed: Changed,
    cause: Cause | None = None,
) -> Reverted:
    """Take back what a task changed, and end it. The caller commits.

    Raises `TaskConflict` if others changed the same paths, unless forced. ``changed`` collects what
    the kernel has to be notified of, also on failure: then everything is as it was.
    """
    fs.flush()
    with interrupts.stoppable():
        plan = plan_revert(fs, name)
    if plan.conflicts and not force:
        raise TaskConflict(name, list(_conflict_lines(plan.conflicts)))
    if not plan.goals:
        return Reverted(plan)
    before = seal(fs, "restore", f"before revert of task {name}", fs.clock(), cause=cause)
    with or_roll_back(fs, [before], changed):
        put_back(fs, plan.goals, changed)
    after = seal(
        fs, KIND, f"task reverted: {name}", fs.clock(), metadata={"task": name}, cause=cause
    )
    target = min(plan.goals.values(), key=lambda goal: goal.id)
    log_restore(
        fs,
        "restore",
        target,
        before,
        changed,
        cause or Cause(),
        paths=plan.paths,
        whole=whole_paths(plan.goals),
        after=after,
    )
    log_event(fs, REVERT, name, before, after)
    return Reverted(plan, before, after)


def _conflict_lines(conflicts: dict[bytes, str]) -> Iterator[str]:
    for path, other in list(conflicts.items())[:_NAMED]:
        yield os.fsdecode(path) + (f" (task {other})" if other else "")
    if len(conflicts) > _NAMED:
        yield f"{len(conflicts) - _NAMED:,} more"
