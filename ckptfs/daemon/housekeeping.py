"""Housekeeping: what a daemon does by itself while no changes come.

It does not run at all while nothing happens.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from ckptfs import interrupts
from ckptfs.daemon import memory
from ckptfs.daemon.autosave import ThrottledLog
from ckptfs.daemon.giving_back import GivingBack
from ckptfs.daemon.lines import Lines
from ckptfs.daemon.slices import Slices, until_idle
from ckptfs.errors import SettingInvalid
from ckptfs.fuse.loop import requests
from ckptfs.history import compression, packing, removal
from ckptfs.history.diff import compare
from ckptfs.history.retention import Shortage
from ckptfs.history.upkeep import Job, Steps, Worker
from ckptfs.model import Epoch
from ckptfs.service import Service

log = logging.getLogger(__name__)

#: How long after a commit to look whether changes go on: the quiet time of the policies.
_QUIET_S = 2.1
#: How often a job that rests looks whether requests go on, and after how many looks without one it
#: goes on itself.
_LOOK_S = 0.1
_CALM_LOOKS = 3
#: How long upkeep rests after each step while others want all processors.
_CROWDED_S = 0.1
#: After so long without a request history is made smaller; or after so long since something was
#: committed, if requests never end.
_IDLE_S = 15
_BUSY_S = 600
#: Before that, checkpoints younger than this are left alone: what was just written is read next.
_COMPRESS_AGE_NS = 10_000_000_000
#: How long one step of freeing space may keep requests waiting.
_STEP_S = 0.005
#: For so long after the start the clock is not believed to be far ahead of the last checkpoint.
_GRACE_NS = 3_600_000_000_000
#: In this time no more history goes for room than is to be free.
_GIVEN_NS = 3_600_000_000_000

_SHORT_OF_ROOM = "the disk is short of room: %d MiB free for this store, %d wanted; %s"
_EXPIRES = {
    True: "the oldest automatic checkpoints expire until there is as much",
    False: "what may expire for that would not be enough, so nothing does before the disk is full. "
    "Free room on the disk, or give up checkpoints (`ckptfs delete`)",
}


def is_crowded() -> bool:
    """Whether more wants to run at this moment than there are processors, this thread included."""
    try:
        runnable = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
    except OSError:  # no descriptor to spare for a look
        return False
    return int(runnable) > (os.cpu_count() or 1)


def _uptime_ns() -> int:
    """Time that passes while the machine sleeps, too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _last_ns(service: Service) -> int:
    """The time of the last checkpoint, by the clock of then."""
    found = service.checkpoints()
    return max((item.time_ns for item in found), default=service.fs.clock())


class Housekeeping:
    """Works off what can wait, in steps short enough not to be noticed."""

    def __init__(self, service: Service, lines: Lines, slices: Slices) -> None:
        self._service = service
        self._slices = slices
        self._lines = lines
        self._woken = trio.Event()
        #: Something was committed since history was last made smaller.
        self._young = trio.Event()
        self._young.set()
        self._giving_back = GivingBack(service, slices, self._cpu)
        self.give_back = self._giving_back.run
        #: How often what was being made smaller had to be given up.
        self._given_up = 0
        #: Checkpoints that are not counted here: they changed too much.
        self._too_large: set[Epoch] = set()
        self._complaint = ""
        self._warnings = ThrottledLog(log)
        #: What of history went for room, and when.
        self._given: list[tuple[int, int]] = []
        #: When the machine was started, as the clock would have it when this began.
        self._began_ns = service.fs.clock() - _uptime_ns()
        self._began_uptime_ns = _uptime_ns()
        self._last_ns = _last_ns(service)

    def notify(self) -> None:
        """Something was committed, or is to be."""
        self._woken.set()
        self._young.set()
        self._giving_back.notify()

    def give_up(self) -> None:
        """A verb begins to take things out of the store: what is being packed may be among them,
        and must not come back."""
        self._given_up += 1
        self._young.set()

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            seen = requests()
            await trio.sleep(_QUIET_S)
            if requests() == seen:
                memory.give_back()
            with self._surviving():
                for line in self._lines:
                    line.auto.on_quiet()
                await self._expire()
                await self._free()
                await self._wake()
                self._service.fs.commit()

    async def compress(self) -> None:
        """Make history smaller while no requests come, and count what checkpoints changed."""
        fs = self._service.fs
        while True:
            await self._young.wait()
            self._young = trio.Event()
            await until_idle(_IDLE_S, trio.current_time() + _BUSY_S)
            await self._work_off(compare.counting_steps(fs, self._too_large), self._cpu())
            steps = compression.compression_steps(fs, _COMPRESS_AGE_NS)
            await self._work_off(steps, self._share())
            await self._work_off(compression.repacking_steps(fs), self._share())
            if packing.is_due(fs.store):
                await self._work_off(packing.packing_steps(fs), self._share())
            with self._surviving():
                fs.commit()
            self._giving_back.notify()
            seen = requests()
            await trio.sleep(_QUIET_S)
            if requests() == seen:
                fs.store.blocks.forget_decoded()  # what was packed is not what is read next
                memory.give_back()

    def _cpu(self) -> int:
        """How much of a processor upkeep may use, in per cent."""
        try:
            return self._service.upkeep_cpu()
        except SettingInvalid as error:
            self._complain(error)
            return 0

    async def _work_off(self, steps: Steps, share: int) -> None:
        """Take the steps of some work, short pieces at a time and no more than so many per cent of
        a processor."""
        await self._slices.idle()
        worker, done = Worker(self._service.fs, steps), False
        given_up = self._given_up
        while share and not done and given_up == self._given_up:
            seen, begun, done = requests(), time.thread_time(), True
            with self._surviving():
                done = worker.step(_STEP_S)
                spent = time.thread_time() - begun
                if worker.job is not None:
                    result, took = await trio.to_thread.run_sync(_timed, worker.job)
                    worker.resume(result)
                    spent += took
                self._service.fs.store.trim()
                await trio.sleep(spent * (100 / share - 1))
            if requests() != seen:
                await trio.sleep(_QUIET_S)
            elif is_crowded():
                await trio.sleep(_CROWDED_S)
        steps.close()

    def _share(self) -> int:
        """How much of a processor may be used to compress history, in per cent; nothing if it is
        not to be compressed."""
        try:
            return self._cpu() if self._service.compresses() else 0
        except SettingInvalid as error:
            self._complain(error)
            return 0

    async def _expire(self) -> None:
        """Let checkpoints expire as the settings say; with settings that make no sense, none."""
        try:
            steps = self._service.expiring(self._now_ns(), self.given_bytes())
            gone, shortage = await self._slices.run(steps, in_turn=False)
        except SettingInvalid as error:
            self._complain(error)
        else:
            if shortage is not None:
                self._tell_of(shortage)
                self._lines.main.auto.expired_for_room += shortage.expiring
            for item in gone:
                log.info("checkpoint %d expired: %s", item.id, item.reason)
            for line in self._lines:
                record = {"checkpoints": [{"id": item.id} for item in gone]}
                line.hub.happened("delete", record)

    def given_bytes(self) -> int:
        """How much history went for room in the last hour."""
        now_ns = _uptime_ns()
        self._given = [(ns, size) for ns, size in self._given if now_ns - ns < _GIVEN_NS]
        return sum(size for _, size in self._given)

    def _tell_of(self, shortage: Shortage) -> None:
        if shortage.expiring:
            self._given.append((_uptime_ns(), shortage.expirable_bytes))
        free, wanted = max(shortage.free_bytes, 0) >> 20, shortage.wanted_bytes >> 20
        self._warnings.warn("short", _SHORT_OF_ROOM, free, wanted, _EXPIRES[shortage.expiring > 0])

    def _now_ns(self) -> int:
        """The time, but no later than the time that has passed allows: a clock that is set forward
        must not make everything old at once. One that was set forward before the mount has an hour
        to be set right."""
        now_ns = min(self._service.fs.clock(), self._began_ns + _uptime_ns())
        passed_ns = _uptime_ns() - self._began_uptime_ns
        return now_ns if passed_ns > _GRACE_NS else min(now_ns, self._last_ns + passed_ns)

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """What can wait must not end the mount: damage is logged, and whatever
        needs the record meets it again."""
        try:
            yield
        except (OSError, struct.error, LookupError, ValueError) as error:
            self._complain(error)
            if self._service.fs.store.is_missing:
                self._service.fs.commit()  # says so, and that ends the mount

    def _complain(self, error: Exception) -> None:
        """Once, not every few seconds."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning("some housekeeping was left undone: %r", error)

    async def _free(self) -> None:
        """Free what deleted checkpoints and files in limbo held."""
        await self._slices.run(removal.freeing(self._service.fs))

    async def _wake(self) -> None:
        """Bring back the records that a restored workspace would look for among packed ones."""
        worker = Worker(self._service.fs, packing.unpacking_steps(self._service.fs))
        while not worker.step(_STEP_S):
            await trio.lowlevel.checkpoint()


def _timed(job: Job) -> tuple[object, float]:
    """What came of a job, and the CPU seconds that it took. It is done in a thread, and rests while
    requests come."""
    begun = time.thread_time()
    with interrupts.resting(_Rest()):
        return job(), time.thread_time() - begun


class _Rest:
    """Lets a job wait between its pieces: if requests came since the last time, until none has come
    for a moment, so that one who looks at a file every second holds up little, and each time no
    longer than `Housekeeping` waits between jobs; and for a moment if others want all
    processors."""

    def __init__(self) -> None:
        self._seen = requests()

    def __call__(self) -> None:
        if requests() != self._seen:
            self._until_calm()
        elif is_crowded():
            _sleep(_CROWDED_S)

    def _until_calm(self) -> None:
        calm = 0
        for _ in range(round(_QUIET_S / _LOOK_S)):
            self._seen = requests()
            _sleep(_LOOK_S)
            calm = calm + 1 if requests() == self._seen else 0
            if calm == _CALM_LOOKS:
                break
        self._seen = requests()


def _sleep(seconds: float) -> None:
    """In a job's thread, no longer than the daemon lives."""
    time.sleep(seconds)
    trio.from_thread.check_cancelled()
