"""Keeping the CPUs awake while requests come one after the other.

Every request is two handovers: from the program to the daemon, and back. The side that waits leaves
its CPU idle, and an idle CPU falls asleep; a virtual one is then given back to the host, and takes
longer to come back than most requests take to answer. The kernel has an interface for programs
that cannot wait for that: as long as /dev/cpu_dma_latency is held open with a number in it, no CPU
sleeps so deeply that waking up takes more microseconds. It is root's, so for others nothing is
done here.

Held only while requests come in a row: an idle mount lets every CPU sleep as it likes. The setting
`serve.keep_cpus_awake` and CKPTFS_LATENCY=off leave it out; docs/design/performance.md has figures.
"""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path

log = logging.getLogger(__name__)

_DEVICE = Path("/dev/cpu_dma_latency")
_DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")

#: No wish at all: what the kernel assumes without one, 2,000 seconds.
_ANY = struct.pack("i", 2_000_000_000)
#: A physical CPU may stop its clock, which takes a microsecond or two to undo, but no more.
_SHALLOW_US = 2
#: A virtual one, by the driver that is made for them, may not halt: it looks for work instead.
_AWAKE_US = 0

#: So many requests in one turn of the loop are a row.
ROW = 4


def _wish_us(driver: Path) -> int:
    try:
        name = driver.read_text().strip()
    except OSError:
        return _SHALLOW_US
    return _AWAKE_US if name == "haltpoll" else _SHALLOW_US


def _open(device: Path) -> tuple[int, str]:
    """The descriptor, or -1 and the reason."""
    if os.environ.get("CKPTFS_LATENCY") == "off":
        return -1, "CKPTFS_LATENCY=off"
    try:
        # Opening is a wish for 0 already, until the first number is written.
        fd = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, _ANY)
    except OSError as error:
        log.info("the CPUs sleep as they like: %s: %s", device, error.strerror)
        return -1, f"{device}: {(error.strerror or str(error)).lower()}"
    return fd, ""


class Latency:
    """A wish to the kernel that can be made and taken back many times a second."""

    def __init__(
        self, device: Path = _DEVICE, driver: Path = _DRIVER, *, wanted: bool = True
    ) -> None:
        #: ``reason`` is why no wish can be made.
        self._fd, self.reason = _open(device) if wanted else (-1, "the settings say so")
        self._held = False
        self._wish = struct.pack("i", _wish_us(driver))

    def hold(self) -> None:
        """Requests come in a row."""
        if not self._held and self._fd >= 0:
            os.write(self._fd, self._wish)
            self._held = True

    def relax(self) -> None:
        """They do not, any more."""
        if self._held:
            os.write(self._fd, _ANY)
            self._held = False

    def close(self) -> None:
        """The kernel forgets the wish with the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._held = -1, False
