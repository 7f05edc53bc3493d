"""Stopping a verb whose client has gone.

A verb runs to its end on one thread, so it has to ask by itself whether anybody still waits for it.
Whoever has a verb performed says how to find that out (`watching`). The verb says where it may be
left (`stoppable`): while it only reads, or between steps that each leave everything whole. Loops
that may be long ask there (`check`); outside of such a part asking does nothing, so code that reads
for others need not know whether it may be left.
"""

from __future__ import annotations

import time
from _thread import _local
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckptfs.errors import Interrupted

#: How often to look whether the client is there, in seconds.
_LOOK_S = 0.02


class _State(_local):
    """Of each thread its own."""

    #: Tells whether the client of the verb that runs has gone; None if there is none to ask for.
    gone: Callable[[], bool] | None = None
    #: What is said of a verb that is left here; None where it must not be left.
    left: str | None = None
    look_at = 0.0


_state = _State()


@contextmanager
def watching(gone: Callable[[], bool]) -> Iterator[None]:
    """Perform a verb for a client; ``gone`` tells whether it has hung up."""
    before, _state.gone = _state.gone, gone
    _state.look_at = time.monotonic() + _LOOK_S
    try:
        yield
    finally:
        _state.gone = before


@contextmanager
def stoppable(left: str = "Nothing was changed.") -> Iterator[None]:
    """A part of a verb that may be left at every `check` in it. ``left`` says in a sentence what is
    the case then."""
    before, _state.left = _state.left, left
    try:
        yield
    finally:
        _state.left = before


@contextmanager
def unstoppable() -> Iterator[None]:
    """A part within such a part that must come to its end."""
    before, _state.left = _state.left, None
    try:
        yield
    finally:
        _state.left = before


def check() -> None:
    """Raise `Interrupted` if the client has gone and the verb may be left here. Costs next to
    nothing where nobody asks, and a look at the clock where somebody does."""
    if _state.left is None or _state.gone is None:
        return
    now = time.monotonic()
    if now < _state.look_at:
        return
    _state.look_at = now + _LOOK_S
    if _state.gone():
        raise Interrupted(_state.left)
