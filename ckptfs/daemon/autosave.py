"""Checkpoints that take themselves: asked before every change, in the path of the writer.

It only decides and seals, which costs a few records and no sync. When a checkpoint that people read
is due, `ckptfs.history.auto` decides; `ckptfs.history.moments` decides what must not be destroyed
unseen.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import monotonic_ns

from ckptfs import history
from ckptfs.commands import FULL, masked, printable, shown
from ckptfs.control.events import Hub
from ckptfs.control.verbs import checkpoint_record
from ckptfs.errors import CkptfsError, SettingInvalid
from ckptfs.fs import Filesystem
from ckptfs.fuse.hooks import LossOf
from ckptfs.history import Cause, Checkpoint, marks, removal
from ckptfs.history.authors import Signer
from ckptfs.history.auto import AutoCheckpointer, Due, Policy, cause_of, message_of
from ckptfs.history.checkpoints import LOST, MOMENT
from ckptfs.history.moments import UNKNOWN, Loss, Moments
from ckptfs.history.processes import TRUST_NS, Caller, Key, Who
from ckptfs.history.programs import HARNESSES
from ckptfs.history.settings import Settings
from ckptfs.history.steps import Steps
from ckptfs.model import ROOT_INO, Ino
from ckptfs.service import Service

log = logging.getLogger(__name__)

#: More records than a checkpoint takes: where the disk has no room for so many, none is taken.
_MARK_RECORDS = 16
#: How many process ids are remembered at once.
_RECENT_MAX = 1024
#: On a full disk this share of the moments goes at a time.
_SHARE = 4
#: How many files are looked at to name an edit.
_EDITED_MAX = 1000


class AutoSave:
    """Takes checkpoints by itself: before steps, as the policy says, and before what nothing else
    has is destroyed."""

    def __init__(self, service: Service, policy: Policy, hub: Hub) -> None:
        self._service = service
        self._hub = hub
        self._steps = Steps()
        self._who = Who()
        self._who.told = self._steps.of
        self._policy = policy
        self._checkpointer = AutoCheckpointer(policy, unsaved=service.has_unsaved)
        self._moments = Moments(self._is_own, self._who.may_be_harness)
        with suppress(SettingInvalid):  # the first housekeeping complains
            self.configure(service.settings())
        self._signer = Signer(service.fs)
        self._head = service.fs.head
        self._last: Checkpoint | None = None
        #: The caller whose step had no good name yet when a checkpoint was taken before it, and
        #: when that was.
        self._unnamed: tuple[Caller, int] | None = None
        #: Callers by process id, and until when they are believed.
        self._recent: dict[int, tuple[Caller | None, int]] = {}
        #: How many changes came from processes that cannot be seen.
        self.unseen = 0
        #: The process that was told of last, its call, and when that was.
        self._told: tuple[int, Key, int] = (0, UNKNOWN, 0)

    def configure(self, settings: Settings) -> None:
        """Let settings hold."""
        self._moments.stood_ns = settings.value("moments.stood")
        self._who.harnesses = HARNESSES | set(settings.harnesses)
        self._who.record = settings.record_command

    def __call__(self, pid: int, loss: LossOf | None, *, begins: bool = True) -> None:
        """Before a change."""
        if self._service.fs.head is not self._head:
            self._note_saved()  # somebody else saved or restored
        now_ns = monotonic_ns()
        caller = self._caller(pid, now_ns)
        if caller is None:
            self.unseen += begins
            step, call = None, UNKNOWN
        else:
            step, call, pid = caller
        due = self._checkpointer.before_change(step if begins else None, now_ns)
        if due is not None:
            self._save(due, "auto")
            if caller is not None and (caller.step.provisional or caller.step.edits):
                self._unnamed = (caller, now_ns)
        elif loss is not None and (lost := self._lost(loss, pid, call, now_ns)) is not None:
            path = path_of(self._service.fs, Ino(lost.ino))
            message = edit_message([path]) if step is not None and step.edits else ""
            due = Due(cause_of(step), message or message_of(step), "moment")
            self._save(due, MOMENT, {LOST: os.fsdecode(path)} if path else None)
        self._told = (pid, call, now_ns)
        self._signer.sign(step)

    def declare(self, pid: int) -> bool:
        """Take a process for a harness, whatever it is called."""
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
        harnesses = self._who.harness_count
        caller = self._who(pid)
        if len(self._recent) >= _RECENT_MAX or harnesses != self._who.harness_count:
            self._recent.clear()
        if caller is None or not caller.step.provisional:
            self._recent[pid] = (caller, now_ns + TRUST_NS)
        return caller

    def made(self, ino: int, *, content: bool = True) -> None:
        """The process that was told of last has made or changed this inode."""
        self._moments.note(ino, *self._told, content=content)

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
            message, marks.MARK, cause=cause_of(caller.step if caller else None)
        )
        if self._hub.is_watched:
            self._hub.happened("save", checkpoint_record(saved))
        return saved.id

    def take_back(self, number: int) -> None:
        """Delete a mark that had not all of its message."""
        with suppress(CkptfsError):  # somebody was faster, or likes it
            self._service.delete_named([str(number)])
            self._hub.happened("delete", {"checkpoints": [{"id": number}]})

    def name_step(self, pid: int, text: str) -> None:
        """What this process does next, and what it starts, is called so."""
        self._steps.name(pid, shown(text, self._who.record))
        self._recent.clear()

    def make_room(self) -> bool:
        """The disk is full: let the oldest moments go. False if there is none."""
        fs = self._service.fs
        moments = [item for item in history.checkpoints(fs.store) if item.is_moment]
        doomed = moments[: max(1, len(moments) // _SHARE)]
        if not doomed:
            return False
        log.warning("the disk is full: %d moments go, %d are left", len(doomed), len(moments))
        removal.delete(fs, doomed)
        # Pages that one commit gives up can be used by the one after the next.
        fs.commit()
        fs.commit()
        self._hub.happened("delete", {"checkpoints": [{"id": item.id} for item in doomed]})
        return True

    def lasting(self, pid: int) -> int:
        """Until when nothing is due before a change by this process."""
        caller = self._caller(pid, monotonic_ns())
        if self._service.fs.head is not self._head or caller is None:
            return 0
        return self._checkpointer.lasting(caller.step)

    def rest(self) -> None:
        """Changes have come to rest for a moment."""
        due = self._checkpointer.tick()
        if due is not None:
            self._save(due, "auto")
        self._name_last()

    def _save(self, due: Due, kind: str, metadata: dict[str, str] | None = None) -> None:
        self._name_last()
        fs = self._service.fs
        # What is sealed has stood like this since the last change, however late it is sealed.
        since = fs.clock() - due.idle_ns
        self._last = history.seal(fs, kind, due.message, since, cause=due.cause, metadata=metadata)
        self._note_saved()
        if self._hub.is_watched:  # a writer waits for this
            self._hub.happened("save", checkpoint_record(self._last))

    def _note_saved(self) -> None:
        self._head = self._service.fs.head
        self._checkpointer.saved()
        self._moments.sealed()

    def _name_last(self) -> None:
        """Give the last checkpoint its name, once there is one: a shell opens the target of ``>``
        before it becomes the command, and which files an edit is about shows when it is made."""
        if self._unnamed is None or self._last is None:
            return
        caller, since_ns = self._unnamed
        found = self._who(caller.pid) if caller.step.provisional else caller
        if found is not None and found.step.provisional:
            if monotonic_ns() - since_ns < TRUST_NS:
                return
            found = None
        self._unnamed = None
        if found is None:
            return
        message = message_of(found.step)
        if found.step.edits:
            changed = self._moments.changed_by(found.call)[:_EDITED_MAX]
            files = [path_of(self._service.fs, Ino(ino)) for ino in changed]
            message = edit_message(files) or message
        self._rename(self._last, message, cause_of(found.step))

    def _rename(self, checkpoint: Checkpoint, message: str, cause: Cause) -> None:
        store = self._service.fs.store
        if checkpoint.epoch in store.epochs and store.epochs[checkpoint.epoch].info:
            better = dataclasses.replace(checkpoint, message=message, cause=cause)
            history.describe(store, better)


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
