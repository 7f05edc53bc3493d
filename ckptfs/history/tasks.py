"""Tasks: named stretches of work, whose changes can be taken back without those of others.

At any time one task is current, or none: the one that was started last and is not done. Starting
another while one is open, or the same again, makes that one current; when it is done, the one
before goes on. So every stretch of time belongs to one task or to none, and what a task changed is
what differs between the beginning and the end of its stretches. Each end of one is a checkpoint of
kind `task`; which they are is kept in a log among the facts, under ``task:`` and a number.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from ckptfs.errors import TaskInvalid, TaskUnknown
from ckptfs.fs import Filesystem
from ckptfs.history.checkpoints import CURRENT_TASK, Cause, Checkpoint, seal
from ckptfs.store import Store

KIND = "task"
NAME_MAX = 100

#: Events besides start and done. The last two are of an undo and a redo of a revert; they are no
#: ends of a stretch.
REVERT = "revert"
REVERT_UNDONE = "revert undone"
REVERT_REDONE = "revert redone"

_LOG = b"task:"


@dataclass(frozen=True)
class Entry:
    """One line of the log. ``event`` is start, done or about a revert. ``checkpoint`` ends the
    stretch that was going on, ``after`` begins the next one; they differ if the event itself
    changed files."""

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


def note(
    fs: Filesystem,
    event: str,
    name: str,
    checkpoint: Checkpoint,
    after: Checkpoint,
    message: str = "",
) -> None:
    """Append to the log, and keep which task is current where `seal` looks for it."""
    store = fs.store
    entries = log(store)
    number = entries[-1].number + 1 if entries else 0
    entry = Entry(number, event, name, checkpoint.id, after.id, fs.clock(), message)
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
        raise TaskUnknown(name, "it is reverted already")
    return task


def _require_name(name: str) -> None:
    if not name.strip() or name != name.strip():
        raise TaskInvalid(name, "it is empty, or has blanks around it")
    if len(name) > NAME_MAX:
        raise TaskInvalid(name[:NAME_MAX], f"it is longer than {NAME_MAX} characters")
    if not name.isprintable():
        raise TaskInvalid(name, "it has characters that cannot be printed")


class _Replay:
    """What the log leads to. ``going_on`` are the open tasks, the current one last."""

    def __init__(self, entries: list[Entry]) -> None:
        self.tasks: dict[str, Task] = {}
        self.going_on: list[str] = []
        self._since = 0
        #: By task, the stretches that its last revert took back.
        self._reverted: dict[str, list[Stretch]] = {}
        for entry in entries:
            if entry.event in (REVERT_UNDONE, REVERT_REDONE):
                self._change_mind(entry)
                continue
            self._cut(entry.checkpoint)
            if entry.event == "start":
                self._start(entry)
            else:
                self._end(entry)
            self._since = entry.after
        self._cut(None)
        for name in self.going_on:
            self.tasks[name].state = "current" if name == self.going_on[-1] else "open"

    def _cut(self, end: int | None) -> None:
        """The stretch that began with the last event ends here."""
        if self.going_on:
            self.tasks[self.going_on[-1]].stretches.append(Stretch(self._since, end))

    def _start(self, entry: Entry) -> None:
        task = self.tasks.setdefault(entry.name, Task(entry.name, entry.time_ns))
        if not task.stretches and task.state == "reverted":
            task.started_ns = entry.time_ns
        task.state, task.ended_ns = "open", None
        self._leave(entry.name)
        self.going_on.append(entry.name)

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
        if name in self.going_on:
            self.going_on.remove(name)
