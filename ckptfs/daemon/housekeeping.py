"""Housekeeping: what a daemon does by itself while no changes come.

It does not run at all while nothing happens.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ckptfs import history
from ckptfs.control.events import Hub
from ckptfs.daemon.autosave import AutoSave, ThrottledLog
from ckptfs.errors import SettingInvalid
from ckptfs.fuse.loop import requests
from ckptfs.history import compression
from ckptfs.history.compression import Compressor
from ckptfs.history.removal import Reaper
from ckptfs.history.retention import Shortage
from ckptfs.service import Service

log = logging.getLogger(__name__)

#: How long after a commit to look whether changes go on: the quiet time of the policies.
_QUIET_S = 2.1
#: Checkpoints are compressed at this age.
_COMPRESS_AGE_S = 600
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


def _uptime_ns() -> int:
    """Time that passes while the machine sleeps, too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _last_ns(service: Service) -> int:
    """The time of the last checkpoint, by the clock of then."""
    found = service.checkpoints()
    return max((item.time_ns for item in found), default=service.fs.clock())


class Housekeeping:
    """Works off what can wait, in steps short enough not to be noticed."""

    def __init__(self, service: Service, auto: AutoSave, hub: Hub) -> None:
        self._service = service
        self._hub = hub
        self._auto = auto
        self._woken = trio.Event()
        #: Something was committed that is too young to be compressed.
        self._young = trio.Event()
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

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            await trio.sleep(_QUIET_S)
            with self._surviving():
                self._auto.on_quiet()
                self._expire()
                await self._free()
                await self._wake()
                self._service.fs.commit()

    async def compress(self) -> None:
        """Compress old checkpoints while no requests come."""
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
                    await trio.sleep(_QUIET_S)
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
            gone, shortage = self._service.expire(self._now_ns(), self.given_bytes())
        except SettingInvalid as error:
            self._complain(error)
        else:
            if shortage is not None:
                self._tell_of(shortage)
                self._auto.expired_for_room += shortage.expiring
            for item in gone:
                log.info("checkpoint %d expired: %s", item.id, item.reason)
            self._hub.happened("delete", {"checkpoints": [{"id": item.id} for item in gone]})

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
        history.leave_limbo(self._service.fs)
        reaper = Reaper(self._service.fs)
        while not reaper.step(_STEP_S):
            await trio.lowlevel.checkpoint()

    async def _wake(self) -> None:
        """Bring back the records that a restored workspace would look for among packed ones."""
        fs = self._service.fs
        while compression.head_reads_packed(fs) and not compression.unpack_records(fs, _STEP_S):
            await trio.lowlevel.checkpoint()
