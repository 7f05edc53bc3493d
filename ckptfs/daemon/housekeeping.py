"""What a daemon does by itself: checkpoints before changes, and tidying up when it is quiet.

`AutoSave` is asked before every change, in the path of the writer; it only decides and seals, which
costs a few records and no sync. `Housekeeping` runs when changes have come to rest, and not at all
while nothing happens.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic_ns

import trio

from ckptfs import history
from ckptfs.control.events import Hub
from ckptfs.control.verbs import checkpoint_record
from ckptfs.errors import SettingInvalid
from ckptfs.fuse.hooks import LossOf
from ckptfs.fuse.loop import requests
from ckptfs.history import Cause, Checkpoint, resting
from ckptfs.history.authors import Signer
from ckptfs.history.auto import AutoCheckpointer, Due, Policy, cause_of, message_of
from ckptfs.history.compression import Compressor
from ckptfs.history.moments import UNKNOWN, Moments
from ckptfs.history.processes import TRUST_NS, Caller, Key, Who
from ckptfs.history.removal import Reaper
from ckptfs.model import Ino
from ckptfs.service import Service

log = logging.getLogger(__name__)

#: How long after a commit to look whether things have come to rest: the quiet time of the policies.
_REST_S = 2.1
#: Checkpoints are compressed at this age.
_COMPRESS_AGE_S = 600
#: How many process ids are remembered at once.
_RECENT_MAX = 1024
#: How long one step of freeing space may keep requests waiting.
_STEP_S = 0.005


class AutoSave:
    """Takes checkpoints by itself: before steps, as the policy says, and before what nothing else
    has is destroyed."""

    def __init__(self, service: Service, policy: Policy, hub: Hub) -> None:
        self._service = service
        self._hub = hub
        self._who = Who()
        self._policy = policy
        self._checkpointer = AutoCheckpointer(policy, unsaved=service.has_unsaved)
        self._moments = Moments(self._is_own, self._who.may_be_harness)
        self._signer = Signer(service.fs)
        self._head = service.fs.head
        self._last: Checkpoint | None = None
        #: The process whose step had no good name yet when a checkpoint was taken before it.
        self._unnamed: tuple[int, int] | None = None
        #: Callers by process id, and until when they are believed.
        self._recent: dict[int, tuple[Caller | None, int]] = {}
        #: The process that was told of last, its call, and when that was.
        self._told: tuple[int, Key, int] = (0, UNKNOWN, 0)

    def __call__(self, pid: int, loss: LossOf | None, *, begins: bool = True) -> None:
        """Before a change."""
        if self._service.fs.head is not self._head:
            self._note_saved()  # somebody else saved or restored
        now_ns = monotonic_ns()
        caller = self._caller(pid, now_ns)
        step, call = (None, UNKNOWN) if caller is None else (caller.step, caller.call)
        due = self._checkpointer.before_change(step if begins else None, now_ns)
        if due is not None:
            self._save(due, "auto")
            self._unnamed = (pid, now_ns) if step is not None and step.provisional else None
        elif loss is not None and self._is_moment(loss, pid, call, now_ns):
            self._save(Due(cause_of(step), message_of(step), "moment"), "moment")
        self._told = (pid, call, now_ns)
        self._signer.sign(step)

    def _is_moment(self, loss: LossOf, pid: int, call: Key, now_ns: int) -> bool:
        if self._policy.kind == "off" or not self._moments.may_lose:
            return False
        lost = loss()
        return lost is not None and self._moments.is_due(lost, pid, call, now_ns)

    def _is_own(self, ino: int) -> bool:
        fs = self._service.fs
        return fs.is_own(fs.head, Ino(ino))

    def _caller(self, pid: int, now_ns: int) -> Caller | None:
        known = self._recent.get(pid)
        if known is not None and now_ns < known[1]:
            return known[0]
        caller = self._who(pid)
        if len(self._recent) >= _RECENT_MAX:
            self._recent.clear()
        if caller is None or not caller.step.provisional:
            self._recent[pid] = (caller, now_ns + TRUST_NS)
        return caller

    def made(self, ino: int) -> None:
        """The process that was told of last has made or changed this inode."""
        self._moments.note(ino, *self._told)

    def made_all(self, inodes: Sequence[int], makers: Sequence[int]) -> None:
        """These are new, each made by the process beside it."""
        now_ns = monotonic_ns()
        for maker in set(makers):
            caller = self._caller(maker, now_ns)
            own = [ino for ino, by in zip(inodes, makers, strict=True) if by == maker]
            self._moments.note_new(own, maker, caller.call if caller else UNKNOWN, now_ns)

    def is_writing(self, ino: int, pid: int) -> bool:
        return self._moments.is_writing(ino, pid, monotonic_ns())

    def sign(self, pid: int) -> None:
        """What comes next is this process's doing."""
        caller = self._caller(pid, monotonic_ns())
        self._signer.sign(caller.step if caller else None)

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

    def _save(self, due: Due, kind: str) -> None:
        self._name_last()
        fs = self._service.fs
        # What is sealed has stood like this since the last change, however late it is sealed.
        since = fs.clock() - due.idle_ns
        self._last = history.seal(fs, kind, due.message, since, cause=due.cause)
        self._note_saved()
        if self._hub.is_watched:  # a writer waits for this
            self._hub.happened("save", checkpoint_record(self._last))

    def _note_saved(self) -> None:
        self._head = self._service.fs.head
        self._checkpointer.saved()
        self._moments.sealed()

    def _name_last(self) -> None:
        """Give the last checkpoint its name, once there is one: a shell opens the target of ``>``
        before it becomes the command."""
        if self._unnamed is None or self._last is None:
            return
        pid, since_ns = self._unnamed
        caller = self._who(pid)
        if caller is not None and caller.step.provisional:
            if monotonic_ns() - since_ns < TRUST_NS:
                return
            caller = None
        self._unnamed = None
        if caller is not None:
            self._rename(self._last, message_of(caller.step), cause_of(caller.step))

    def _rename(self, checkpoint: Checkpoint, message: str, cause: Cause) -> None:
        store = self._service.fs.store
        if checkpoint.epoch in store.epochs and store.epochs[checkpoint.epoch].info:
            better = dataclasses.replace(checkpoint, message=message, cause=cause)
            history.describe(store, better)


class Housekeeping:
    """Works off what can wait, in steps short enough not to be noticed."""

    def __init__(self, service: Service, auto: AutoSave, hub: Hub) -> None:
        self._service = service
        self._hub = hub
        self._auto = auto
        self._stirred = trio.Event()
        #: Something was committed that is too young to be compressed.
        self._young = trio.Event()
        self._complaint = ""

    def stir(self) -> None:
        """Something was committed, or is to be."""
        self._stirred.set()
        self._young.set()

    async def run(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred = trio.Event()
            await trio.sleep(_REST_S)
            with self._surviving():
                self._auto.rest()
                self._expire()
                await self._free()
                await self._wake()
                self._service.fs.commit()

    async def compress(self) -> None:
        """Compress old checkpoints whenever nobody asks for anything."""
        compressor = Compressor(self._service.fs, _COMPRESS_AGE_S * 1_000_000_000)
        while True:
            await trio.sleep(_COMPRESS_AGE_S + 1)
            while self._may_compress():
                seen, done = requests(), True
                with self._surviving():
                    done = compressor.step(_STEP_S)
                if done:
                    break
                await trio.lowlevel.checkpoint()
                if requests() != seen:
                    await trio.sleep(_REST_S)
            await self._young.wait()
            self._young = trio.Event()

    def _may_compress(self) -> bool:
        try:
            return self._service.compresses()
        except SettingInvalid as error:
            self._complain(error)
            return False

    def _expire(self) -> None:
        """Let checkpoints expire as the settings say; with settings that make no sense, none."""
        try:
            gone = self._service.expire()
        except SettingInvalid as error:
            self._complain(error)
        else:
            for item in gone:
                log.info("checkpoint %d expired: %s", item.id, item.reason)
            self._hub.happened("delete", {"checkpoints": [{"id": item.id} for item in gone]})

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """What can wait must not end the mount: damage is told, and met again by who needs it."""
        try:
            yield
        except (OSError, struct.error, LookupError, ValueError) as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Once, not every few seconds."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning("some housekeeping was left undone: %r", error)

    async def _free(self) -> None:
        """Free what deleted checkpoints and files in limbo held."""
        history.leave_limbo(self._service.fs)
        reaper = Reaper(self._service.fs)
        while not reaper.step(_STEP_S):
            await trio.lowlevel.checkpoint()

    async def _wake(self) -> None:
        """Bring back the records that a restored workspace would look for at rest."""
        fs = self._service.fs
        while resting.is_in_the_way(fs) and not resting.wake(fs, _STEP_S):
            await trio.lowlevel.checkpoint()
