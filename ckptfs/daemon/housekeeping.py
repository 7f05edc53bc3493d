"""What a daemon does by itself: checkpoints before changes, and tidying up when it is quiet.

`AutoSave` is asked before every change, in the path of the writer; it only decides and seals, which
costs a few records and no sync. `Housekeeping` runs when changes have come to rest, and not at all
while nothing happens.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import trio

from ckptfs import history
from ckptfs.control.events import Hub
from ckptfs.control.verbs import checkpoint_record
from ckptfs.errors import CkptfsError, SettingInvalid
from ckptfs.fuse.loop import requests
from ckptfs.history import Checkpoint, marks, resting
from ckptfs.history.authors import Signer
from ckptfs.history.auto import Policy
from ckptfs.history.compression import Compressor
from ckptfs.history.processes import Who
from ckptfs.history.removal import Reaper
from ckptfs.history.steps import Steps
from ckptfs.history.watch import AutoCheckpointer, Due, cause_of
from ckptfs.service import Service

log = logging.getLogger(__name__)

#: How long after a commit to look whether things have come to rest: the quiet time of the policies.
_REST_S = 2.1
#: Checkpoints are compressed at this age.
_COMPRESS_AGE_S = 600
#: More records than a checkpoint takes: where the disk has no room for so many, none is taken.
_MARK_RECORDS = 16
#: How long one step of freeing space may keep requests waiting.
_STEP_S = 0.005


class AutoSave:
    """Takes checkpoints by itself, as the policy says."""

    def __init__(self, service: Service, policy: Policy, hub: Hub) -> None:
        self._service = service
        self._hub = hub
        self._who = Who()
        self._checkpointer = AutoCheckpointer(policy, who=self._who, unsaved=service.has_unsaved)
        self._signer = Signer(service.fs, self._who)
        self._steps = Steps()
        self._head = service.fs.head
        self._last: Checkpoint | None = None

    def __call__(self, pid: int, loss: Callable[[], bool] | None) -> None:
        """Before a change."""
        fs = self._service.fs
        if fs.head is not self._head:
            # Somebody saved or restored.
            self._head = fs.head
            self._checkpointer.saved()
        due = self._checkpointer.before_change(pid, loss is not None, loss)
        if due is not None:
            self._save(due)
        self._signer.sign(pid)

    def sign(self, pid: int) -> None:
        """What comes next is this process's doing."""
        self._signer.sign(pid)

    def lasting(self, pid: int) -> int:
        """Until when nothing is due before a change by this process."""
        if self._service.fs.head is not self._head:
            return 0
        return self._checkpointer.lasting(pid)

    def mark(self, pid: int, message: str) -> int:
        """Take a checkpoint because a process says so, also if nothing changed: its number."""
        self._service.fs.store.require(_MARK_RECORDS)
        saved = self._service.save(message, marks.MARK, cause=cause_of(self._who(pid)))
        if self._hub.is_watched:
            self._hub.happened("save", checkpoint_record(saved))
        return saved.id

    def take_back(self, number: int) -> None:
        """Delete a mark that had not all of its message."""
        with suppress(CkptfsError):  # somebody was faster, or likes it
            self._service.delete_named([str(number)])
            self._hub.happened("delete", {"checkpoints": [{"id": number}]})

    def name_step(self, pid: int, text: str) -> None:
        """What this process does next is called so."""
        self._steps.name(pid, text)

    def step_of(self, pid: int) -> str:
        """What a process says that it does; empty if it says nothing."""
        return self._steps.of(pid)

    def rest(self) -> None:
        """Changes have come to rest for a moment."""
        due = self._checkpointer.tick()
        if due is not None:
            self._save(due)
        better = self._checkpointer.second_look()
        if better is not None and self._last is not None:
            self._rename(self._last, better)

    def _save(self, due: Due) -> None:
        fs = self._service.fs
        if due.renames is not None and self._last is not None:
            self._rename(self._last, due.renames)
        # What is sealed has stood like this since the last change, however late it is sealed.
        since = fs.clock() - due.idle_ns
        self._last = history.seal(fs, "auto", due.message, since, cause=due.cause)
        self._head = fs.head
        if self._hub.is_watched:  # a writer waits for this
            self._hub.happened("save", checkpoint_record(self._last))

    def _rename(self, checkpoint: Checkpoint, due: Due) -> None:
        store = self._service.fs.store
        if checkpoint.epoch in store.epochs and store.epochs[checkpoint.epoch].info:
            better = dataclasses.replace(checkpoint, message=due.message, cause=due.cause)
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
