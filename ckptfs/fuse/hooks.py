"""What a mount asks from the layers above it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol

_FOREVER = 1 << 62

#: Tells whether what a change takes away is in no checkpoint.
Loss = Callable[[], bool]


class Guard(Protocol):
    """Told before every change which process makes it and, if it takes content away, how to find
    out whether that is lost: the moment to take a checkpoint of what was."""

    def __call__(self, pid: int, loss: Loss | None) -> None: ...

    def sign(self, pid: int) -> None:
        """What comes next is this process's doing, and no reason for a checkpoint: times that the
        kernel tells behind the data."""

    def lasting(self, pid: int) -> int:
        """Until when, by the monotonic clock, changes by this process that take nothing away need
        not be told before they happen, as long as no other actor changes anything. 0: they do."""

    def mark(self, pid: int, message: str) -> int:
        """Take a checkpoint now, on the word of this process; its number. It is durable then, or an
        OSError says why there is none."""

    def take_back(self, number: int) -> None:
        """Delete a mark: it had not all of its message."""

    def name_step(self, pid: int, text: str) -> None:
        """What this process does next is called so; nothing in particular if it is empty."""


#: Threads of this process that touch files to wake whoever watches them: what they ask for changes
#: nothing, not even a time.
touching: set[int] = set()


class _Unguarded:
    """The guard of a mount that takes no checkpoints by itself."""

    def __call__(self, pid: int, loss: Loss | None) -> None:
        pass

    def sign(self, pid: int) -> None:
        pass

    def lasting(self, pid: int) -> int:
        return _FOREVER

    def mark(self, pid: int, message: str) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def take_back(self, number: int) -> None:
        pass

    def name_step(self, pid: int, text: str) -> None:
        pass


unguarded: Guard = _Unguarded()


class HistoryHooks(Protocol):
    """What `.checkpoints` needs from above: both have told the kernel when they return. ``pid`` is
    the thread that asks."""

    async def save(self, name: str) -> int: ...
    async def delete(self, number: int, pid: int) -> None: ...
