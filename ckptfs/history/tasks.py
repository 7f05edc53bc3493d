"""Tasks: named stretches of work, whose changes can be taken back without those of others.

At any time one task is current, or none: the one that was started last and is not done. Starting
another while one is open, or the same again, makes that one current; when it is done, the one
before goes on. So every stretch of time belongs to one task or to none, and what a task changed is
what differs between the beginning and the end of its stretches. Each end of one is a checkpoint of
kind `task`; which they are is kept in a log among the facts, under ``task:`` and a number.

An agent writes its list of tasks down first and works it off from the top. So what it announces
(`announce`) waits in line: the first one is current until it is finished, then the next.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from ckptfs.errors import TaskInvalid, TaskUnknown
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import CURRENT_TASK, Cause, Checkpoint, seal
from ckptfs.store import Store

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
    """A task as the log tells it. ``state`` is current, open, done or reverted."""

    name: str
    started_ns: int
    state: str = "current"
    message: str = ""
    ended_ns: int | None = None
    stretches: list[Stretch] = field(default_factory=list)


def tasks(store: Store) -> dict[str, Task]:
    """Every task by its name, in the order in which they were started."""
    return _Replay(log(store)).tasks


def current(store: Store) -> str:
    """The name of the current task; empty if there is none."""
    return (store.facts.get(CURRENT_TASK) or b"").decode()


def start(fs: Filesystem, name: str, cause: Cause | None = None) -> Checkpoint | None:
    """Make a task the current one. Returns where it begins, or None if it is current already.

    The caller commits.
    """
    _require_name(name)
    if current(fs.store) == name:
        return None
    begins = seal(fs, KIND, f"task start: {name}", fs.clock(), metadata={"task": name}, cause=cause)
    note(fs, "start", name, begins, begins)
    return begins


def done(fs: Filesystem, message: str = "", cause: Cause | None = None) -> tuple[str, Checkpoint]:
    """End the current task. Returns its name and where it ends. The caller commits."""
    name = current(fs.store)
    if not name:
        raise TaskUnknown("", "no task is open")
    ends = seal(fs, KIND, message or f"task done: {name}", fs.clock(), cause=cause)
    note(fs, "done", name, ends, ends, message)
    return name, ends


def announce(
    fs: Filesystem, name: str, message: str = "", cause: Cause | None = None
) -> Checkpoint | None:
    """Put an agent's task in line: it is current when those announced before it are finished.

    Returns where it begins; None if it waits, or is open already. The caller commits.
    """
    _require_name(name)
    found = _Replay(log(fs.store))
    if name in found.going_on:
        return None
    if found.in_line:
        _note_aside(fs, ANNOUNCE, name, message)
        return None
    begins = seal(fs, KIND, f"task start: {name}", fs.clock(), metadata={"task": name}, cause=cause)
    note(fs, ANNOUNCE, name, begins, begins, message)
    return begins


def finish(fs: Filesystem, name: str, cause: Cause | None = None) -> Checkpoint | None:
    """End a task by its name. Returns where it ends; None if it was not the current one, or is not
    open. The caller commits."""
    if name == current(fs.store):
        return done(fs, cause=cause)[1]
    if name in _Replay(log(fs.store)).going_on:
        _note_aside(fs, "done", name)
    return None


def _note_aside(fs: Filesystem, event: str, name: str, message: str = "") -> None:
    """Append an event at which the current task goes on."""
    at = _Replay(log(fs.store)).since
    _append(fs, Entry(0, event, name, at, at, fs.clock(), message))


def note(
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
    store = fs.store
    entries = log(store)
    number = entries[-1].number + 1 if entries else 0
    entry = replace(unnumbered, number=number)
    store.facts.put(_LOG + b"%010d" % number, json.dumps(asdict(entry)).encode())
    going_on = _Replay([*entries, entry]).going_on
    if going_on:
        store.facts.put(CURRENT_TASK, going_on[-1].encode())
    else:
        store.facts.delete(CURRENT_TASK)


def log(store: Store) -> list[Entry]:
    """Every event, oldest first."""
    return [Entry(**json.loads(value)) for _, value in store.facts.walk(_LOG)]


def find(store: Store, name: str) -> Task:
    """The task of that name, with something that could be taken back."""
    task = tasks(store).get(name)
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

    def __init__(self, entries: list[Entry]) -> None:
        self.tasks: dict[str, Task] = {}
        self.going_on: list[str] = []
        self.in_line: list[str] = []
        #: Where the stretch that is going on began.
        self.since = 0
        #: By task, the stretches that its last revert took back.
        self._reverted: dict[str, list[Stretch]] = {}
        for entry in entries:
            if entry.event in (REVERT_UNDONE, REVERT_REDONE):
                self._change_mind(entry)
                continue
            self._cut(entry.checkpoint)
            if entry.event in ("start", ANNOUNCE):
                self._start(entry)
            else:
                self._end(entry)
            self.since = entry.after
        self._cut(None)
        for name in self.going_on:
            self.tasks[name].state = "current" if name == self.going_on[-1] else "open"

    def _cut(self, end: int | None) -> None:
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
