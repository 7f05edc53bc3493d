"""What a mount asks from the layers above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

#: Tells whether what a change takes away is in no checkpoint.
Loss = Callable[[], bool]
#: Told before every change which process makes it and, if it takes content away, how to find out
#: whether that is lost: the moment to take a checkpoint of what was.
Guard = Callable[[int, Loss | None], None]


#: Threads of this process that touch files to wake whoever watches them: what they ask for changes
#: nothing, not even a time.
touching: set[int] = set()


def unguarded(pid: int, loss: Loss | None) -> None:
    """The guard of a mount that takes no checkpoints by itself."""


class HistoryHooks(Protocol):
    """What `.checkpoints` needs from above: both have told the kernel when they return. ``pid`` is
    the thread that asks."""

    async def save(self, name: str) -> int: ...
    async def delete(self, number: int, pid: int) -> None: ...
