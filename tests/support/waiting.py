"""Waiting for something to become true, with a deadline instead of a guess."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Return as soon as `true()` is; fail the test by name when the deadline passes first."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain until {what}")
        time.sleep(0.005)


def wait_for_exit(pid: int, seconds: float = 30.0) -> None:
    """Return when the process `pid`, which need not be our child, has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([pidfd], [], [], seconds)
    finally:
        os.close(pidfd)
    if not ended:
        raise AssertionError(f"process {pid} still runs after {seconds:g} s")
