"""Giving free pages of the data file back to the disk, while nothing else happens.

What is deleted, expired or packed leaves free pages in the data file, which LMDB keeps. When they
are a good part of it, the file is exchanged for a copy without them (`ckptfs.store.compaction`): at
idle, and not before the last one has paid for itself. Nothing runs while nothing changes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import trio

from ckptfs.daemon.slices import Slices, until_idle
from ckptfs.errors import CkptfsError
from ckptfs.service import Service
from ckptfs.store import compaction
from ckptfs.store.compaction import Outlook
from ckptfs.store.pages import BrokenPage

log = logging.getLogger(__name__)

#: No request for so long is idle: longer than what packs history waits for, which frees pages.
_IDLE_S = 20.0
#: How often to look again where a machine on battery is busy.
_BUSY_S = 300.0
#: What a copy must gain: so much of the file, and so many bytes. With a fifth the file is at most
#: 1.25 times as long as a copy of it.
_GAIN_SHARE = 5
_GAIN_BYTES = 256 << 10
#: What the disk must have beyond the copy.
_SPARE = 64 << 20
#: Behind everything else that runs on the machine.
_NICENESS = 19
_POWER = Path("/sys/class/power_supply")


def pays(outlook: Outlook) -> bool:
    """Whether a copy is worth its making."""
    return outlook.gain_bytes > max(_GAIN_BYTES, outlook.bytes // _GAIN_SHARE)


def is_on_battery(supplies: Path = _POWER) -> bool:
    """Whether the machine has a battery, and nothing else at the moment."""
    states = []
    for path in supplies.glob("*/status"):
        try:
            states.append(path.read_text().strip())
        except OSError:
            continue  # it was taken out just now
    return "Discharging" in states


def is_busy() -> bool:
    """Whether more runs on the machine than it has processors."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


class GivingBack:
    """``share`` says how much of a processor may be used, in per cent; 0 is not at all."""

    def __init__(self, service: Service, slices: Slices, share: Callable[[], int]) -> None:
        self._store = service.fs.store
        self._slices = slices
        self._share = share
        self._changed = trio.Event()
        self._changed.set()

    def notify(self) -> None:
        """Something was committed."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await self._until_idle()
            try:
                if self._is_due():
                    await self._give_back()
            except (CkptfsError, OSError, BrokenPage) as error:
                # Whatever needs the record, or the space, meets it again.
                log.warning("free pages were not given back: %s", error)

    async def _until_idle(self) -> None:
        await until_idle(_IDLE_S)
        while is_busy() and is_on_battery():
            await trio.sleep(_BUSY_S)
            await until_idle(_IDLE_S)

    def _is_due(self) -> bool:
        store = self._store
        if store.failed or store.is_read or store.is_copied or not self._share():
            return False
        outlook = store.outlook()
        return pays(outlook) and store.free_bytes() > outlook.copy_bytes + _SPARE

    async def _give_back(self) -> None:
        before, own_s = self._store.size_bytes(), time.thread_time()
        copier_s = await self._slices.run(compaction.steps(self._store, niceness=_NICENESS))
        spent_s = time.thread_time() - own_s + copier_s
        gained = before - self._store.size_bytes()
        log.info(
            "free pages went back: %d of %d KiB; CPU %.1f s", gained >> 10, before >> 10, spent_s
        )
        # So that upkeep as a whole takes no more than its share.
        await trio.sleep(spent_s * 100 / max(1, self._share()))
