"""Automatic checkpoints: asked before every change, in the path of the writer.

It only decides and seals, which costs a few records and no sync. `ckptfs.history.auto` decides when
a checkpoint that people read is due, and what must not be destroyed unseen.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic, monotonic_ns
from typing import NamedTuple

from ckptfs import history
from ckptfs.commands import FULL, masked, printable, shown
from ckptfs.control.events import Hub
from ckptfs.errors import CkptfsError, SettingInvalid
from ckptfs.fs import Filesystem
from ckptfs.fuse.hooks import LossOf
from ckptfs.history import Checkpoint, hook_checkpoints, removal
from ckptfs.history.authors import Signer
from ckptfs.history.auto import (
    UNKNOWN,
    AutoCheckpointer,
    Due,
    Loss,
    Moments,
    Policy,
    cause_of,
    message_of,
)
from ckptfs.history.checkpoints import LOST, MOMENT, numbered
from ckptfs.history.paths import seek
from ckptfs.history.programs import HARNESSES
from ckptfs.history.settings import Settings
from ckptfs.history.steps import TRUST_NS, AnnouncedSteps, Caller, Callers, Key, Step
from ckptfs.model import ROOT_INO, Epoch, Ino
from ckptfs.service import Service, wire

log = logging.getLogger(__name__)

#: More records than a checkpoint takes: where the disk has no room for so many, none is taken.
_MARK_RECORDS = 16
#: How many process ids are remembered at once.
_RECENT_MAX = 1024
#: How often it is looked whether settings were changed.
_SETTINGS_NS = 200_000_000
#: On a full disk moments go until about so much is free.
_ROOM_BYTES = 16 << 20
_EXPIRING = (
    "the disk is full: what may expire does so before a write is refused, moments first, the "
    "oldest first. Free room on the disk to keep more"
)
_FULL = (
    "the disk is full, and nothing is left that may expire for room: writes are refused (ENOSPC), "
    "what is there is unchanged. Free room on the disk, or give up checkpoints (`ckptfs delete`); "
    "these hold most: %s"
)


class AutoSave:
    """Takes checkpoints by itself: before steps, as the policy says, and before what nothing else
    has is destroyed."""

    def __init__(self, service: Service, policy: Policy, hub: Hub) -> None:
        self._service = service
        self._hub = hub
        self._steps = AnnouncedSteps()
        self._who = Callers()
        self._who.announced = self._steps.of
        self._policy = policy
        self._checkpointer = AutoCheckpointer(policy, unsaved=service.has_unsaved)
        self._moments = Moments(self._is_own, self._who.may_be_harness)
        #: What the settings were read from, and until when that is believed.
        self._settings_stamp: object = None
        self._settings_until_ns = 0
        self._signer = Signer(service.fs)
        self._head = service.fs.head
        #: The epoch of the checkpoint that the head stands on.
        self._base = self._base_of_head()
        self._names = StepNames(service.fs, self._who, self._moments)
        #: Callers by process id, and until when they are believed.
        self._recent: dict[int, tuple[Caller | None, int]] = {}
        self._warnings = ThrottledLog(log)
        #: How many checkpoints and moments expired because the disk had no room.
        self.expired_for_room = 0
        #: How many changes came from processes that cannot be seen.
        self.unseen = 0
        #: The process of the last change, its call, and when that was.
        self._last_change: tuple[int, Key, int] = (0, UNKNOWN, 0)

    def _configure(self, settings: Settings) -> None:
        """Let settings hold."""
        self._moments.stood_ns = settings.value("moments.stood")
        self._who.harnesses = HARNESSES | set(settings.harnesses)
        self._who.record = settings.record_command

    def __call__(self, pid: int, loss: LossOf | None, *, begins: bool = True) -> None:
        """Before a change."""
        base = self._base
        if self._service.fs.head is not self._head:  # a verb saved or restored
            self._names.resolve()
            base = self._head.epoch
            self._note_saved()
        if not self._is_kept(base):
            self._moments.unsealed()
        now_ns = monotonic_ns()
        caller = self._caller(pid, now_ns)
        if caller is None:
            self.unseen += begins
            step, call = None, UNKNOWN
        else:
            step, call, pid = caller
        due = self._checkpointer.before_change(step if begins else None, now_ns)
        if due is not None:
            saved = self._save(due, "auto")
            if caller is not None:
                self._names.expect(saved, caller)
        elif loss is not None and (lost := self._lost(loss, pid, call, now_ns)) is not None:
            path = path_of(self._service.fs, Ino(lost.ino))
            message = edit_message([path]) if step is not None and step.edits else ""
            due = Due(cause_of(step), message or message_of(step), "moment")
            self._save(due, MOMENT, {LOST: os.fsdecode(path)} if path else None)
        self._last_change = (pid, call, now_ns)
        self._signer.sign(step)

    def declare(self, pid: int) -> bool:
        """Treat a process as a harness, independent of its name."""
        self._recent.clear()
        return self._who.declare(pid)

    def _lost(self, loss: LossOf, pid: int, call: Key, now_ns: int) -> Loss | None:
        """What a change destroys that has to be kept."""
        if self._policy.kind == "off" or not self._moments.may_lose:
            return None
        lost = loss()
        if lost is None or not self._moments.is_due(lost, pid, call, now_ns):
            return None
        return lost

    def _is_own(self, ino: int) -> bool:
        fs = self._service.fs
        return fs.is_own(fs.head, Ino(ino))

    def _caller(self, pid: int, now_ns: int) -> Caller | None:
        known = self._recent.get(pid)
        if known is not None and now_ns < known[1]:
            return known[0]
        self._look_at_settings(now_ns)
        harnesses = self._who.harness_count
        caller = self._who(pid)
        if len(self._recent) >= _RECENT_MAX or harnesses != self._who.harness_count:
            self._recent.clear()
        if caller is None or not caller.step.provisional:
            self._recent[pid] = (caller, now_ns + TRUST_NS)
        return caller

    def _look_at_settings(self, now_ns: int) -> None:
        """Let settings hold that were changed since a moment ago."""
        if now_ns < self._settings_until_ns:
            return
        self._settings_until_ns = now_ns + _SETTINGS_NS
        stamp = self._service.settings_stamp()
        if stamp != self._settings_stamp:
            self._settings_stamp = stamp
            with suppress(SettingInvalid):  # housekeeping complains
                self._configure(self._service.settings())

    def made(self, ino: int, *, content: bool = True, new: bool = False) -> None:
        """The process of the last change has made or changed this inode."""
        self._moments.note(ino, *self._last_change, content=content, new=new)

    def made_all(self, inodes: Sequence[int], makers: Sequence[int]) -> None:
        """These are new, each made by the process beside it."""
        now_ns = monotonic_ns()
        for maker in set(makers):
            caller = self._caller(maker, now_ns)
            own = [ino for ino, by in zip(inodes, makers, strict=True) if by == maker]
            pid, call = (caller.pid, caller.call) if caller else (maker, UNKNOWN)
            self._moments.note_new(own, pid, call, now_ns)

    def is_writing(self, ino: int, pid: int) -> bool:
        now_ns = monotonic_ns()
        caller = self._caller(pid, now_ns)
        return self._moments.is_writing(ino, caller.pid if caller else pid, now_ns)

    def mark(self, pid: int, message: str) -> int:
        """Take a checkpoint because a process says so, also if nothing changed: its number."""
        self._service.fs.store.require(_MARK_RECORDS)
        caller = self._caller(pid, monotonic_ns())
        if self._who.record != FULL:
            message = masked(message)
        saved = self._service.save(
            message, hook_checkpoints.MARK, cause=cause_of(caller.step if caller else None)
        )
        if self._hub.is_watched:
            self._hub.happened("save", wire.checkpoint(saved))
        return saved.id

    def take_back(self, number: int) -> None:
        """Delete a mark that had not all of its message."""
        with suppress(CkptfsError):  # it was deleted, tagged or pinned meanwhile
            self._service.delete_named([str(number)])
            self._hub.happened("delete", {"checkpoints": [{"id": number}]})

    def name_step(self, pid: int, text: str) -> None:
        """What this process does next, and what it starts, is called so."""
        self._steps.name(pid, shown(text, self._who.record))
        self._recent.clear()

    def make_room(self, ino: int) -> bool:
        """The disk is full for a write to this inode: delete checkpoints that may expire and hold
        something, moments first, except those that keep an earlier state of this file. False if
        none can go."""
        fs = self._service.fs
        path = path_of(fs, Ino(ino)) if ino else b""
        doomed = self._service.room_makers(
            _ROOM_BYTES, lambda item: bool(path) and self._keeps(item, path, ino)
        )
        if not doomed:
            self._tell_of_full_disk()
            return False
        self.expired_for_room += len(doomed)
        self._warnings.warn("expiring", _EXPIRING)
        log.info("expired, since the disk is full: %s", ", ".join(str(item.id) for item in doomed))
        removal.delete(fs, doomed)
        # Pages that one commit gives up can be used by the one after the next.
        fs.commit()
        fs.commit()
        self._hub.happened("delete", {"checkpoints": [{"id": item.id} for item in doomed]})
        return True

    def _tell_of_full_disk(self) -> None:
        if self._warnings.is_due("full"):
            found = self._service.heaviest()
            named = (f"{item['id']} ({item['bytes'] >> 10:,} KiB)" for item in found)
            self._warnings.warn("full", _FULL, ", ".join(named) or "none")

    def _keeps(self, moment: Checkpoint, path: bytes, ino: int) -> bool:
        """Whether a moment was taken for the sake of this very file."""
        if moment.metadata.get(LOST) != os.fsdecode(path):
            return False
        fs = self._service.fs
        found = seek(fs, fs.view_of(moment.epoch), path)
        return found is not None and found.ino == ino

    def lasting(self, pid: int) -> int:
        """Until when nothing is due before a change by this process."""
        caller = self._caller(pid, monotonic_ns())
        if self._service.fs.head is not self._head or caller is None:
            return 0
        return self._checkpointer.lasting(caller.step)

    def on_quiet(self) -> None:
        """No change has come for a moment."""
        due = self._checkpointer.tick()
        if due is not None:
            self._save(due, "auto")
        self._names.resolve()

    def _save(self, due: Due, kind: str, metadata: dict[str, str] | None = None) -> Checkpoint:
        self._names.resolve()
        fs = self._service.fs
        # What is sealed has stood like this since the last change, however late it is sealed.
        since = fs.clock() - due.idle_ns
        saved = history.seal(fs, kind, due.message, since, cause=due.cause, metadata=metadata)
        self._note_saved()
        if self._hub.is_watched:  # a writer waits for this
            self._hub.happened("save", wire.checkpoint(saved))
        return saved

    def _note_saved(self) -> None:
        self._head = self._service.fs.head
        self._base = self._base_of_head()
        self._checkpointer.saved()
        self._moments.sealed(monotonic_ns())

    def _base_of_head(self) -> Epoch:
        store = self._service.fs.store
        return store.epochs[self._service.fs.head.epoch].parent

    def _is_kept(self, epoch: Epoch) -> bool:
        """Whether what was sealed can still be looked at. When a checkpoint is deleted, what only
        it had is the head's again, and in no other."""
        record = self._service.fs.store.epochs.get(epoch)
        return record is not None and bool(record.info)


# -- names that show only after a checkpoint was taken ---------------------------------------------
#
# A shell opens the target of ``>`` before it becomes the command, and which files a harness edits
# shows when they are edited.

#: How many files are looked at to name an edit.
_EDITED_MAX = 1000
#: How many checkpoints wait for their name at once.
_WAITING_MAX = 16


class _Waiting(NamedTuple):
    number: int
    caller: Caller
    since_ns: int


class StepNames:
    """The checkpoints that have no good name yet."""

    def __init__(self, fs: Filesystem, who: Callers, moments: Moments) -> None:
        self._fs = fs
        self._who = who
        self._moments = moments
        self._waiting: list[_Waiting] = []

    def expect(self, checkpoint: Checkpoint, caller: Caller) -> None:
        """A checkpoint was taken before a step whose name shows later, if that is so."""
        if caller.step.provisional or caller.step.edits:
            waiting = _Waiting(checkpoint.id, caller, monotonic_ns())
            self._waiting = [*self._waiting, waiting][-_WAITING_MAX:]

    def resolve(self) -> None:
        """Name what can be named. Also to be called before a seal: what was edited since the last
        is known until then."""
        self._waiting = [one for one in self._waiting if not self._name(one)]

    def _name(self, waiting: _Waiting) -> bool:
        """Whether nothing is left to wait for."""
        step = waiting.caller.step
        if step.edits:
            self._rename(waiting.number, self._edit_of(waiting.caller), step)
            return True
        found = self._who(waiting.caller.pid)
        if found is not None and found.step.provisional:
            return monotonic_ns() - waiting.since_ns >= TRUST_NS
        if found is not None:
            self._rename(waiting.number, message_of(found.step), found.step)
        return True

    def _edit_of(self, caller: Caller) -> str:
        changed = self._moments.changed_by(caller.call)[:_EDITED_MAX]
        return edit_message(path_of(self._fs, Ino(ino)) for ino in changed) or "before: edit"

    def _rename(self, number: int, message: str, step: Step) -> None:
        """Keeps the tag and pin it has by now; it may also have been deleted."""
        found = numbered(self._fs.store, number)
        if found is not None:
            better = replace(found, message=message, cause=cause_of(step))
            history.describe(self._fs.store, better)


def edit_message(paths: Iterable[bytes]) -> str:
    """What a harness edited, in words; empty if nothing is left of it."""
    files = [path for path in paths if path]
    if not files:
        return ""
    if len(files) == 1:
        return f"before: edit: {printable(os.fsdecode(files[0]))}"
    return f"before: edit: {len(files):,} files"


def path_of(fs: Filesystem, ino: Ino) -> bytes:
    """Where a file of the workspace is; empty for a directory, and for what has no name."""
    names: list[bytes] = []
    try:
        inode = fs.getattr(fs.head, ino)
        if inode.is_dir:
            return b""
        while inode.ino != ROOT_INO:
            if not inode.parent:
                return b""
            names.append(inode.name)
            inode = fs.getattr(fs.head, inode.parent)
    except OSError:
        return b""  # damaged, or gone: a name is not worth a failure
    return b"/".join(reversed(names))


# -- warnings that come true again and again -------------------------------------------------------

#: How long a warning is not repeated.
_INTERVAL_S = 600.0


class ThrottledLog:
    """Logs a warning under a name, unless one of that name was logged a short while ago."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, float] = {}

    def is_due(self, name: str) -> bool:
        return monotonic() - self._last.get(name, -_INTERVAL_S) >= _INTERVAL_S

    def warn(self, name: str, message: str, *values: object) -> None:
        if self.is_due(name):
            self._last[name] = monotonic()
            self._log.warning(message, *values)
