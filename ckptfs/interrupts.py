"""Stopping a verb whose client has gone.

A verb runs to its end on one thread, so it has to ask by itself whether its client still waits. The
caller of a verb says how to find that out (`watching`). The verb says where it may be left: while
it only reads (`stoppable`), or between two steps that each leave everything whole
(`stoppable_between`). Loops that read ask with `check` or `checked`, loops that change something
with `between`. Elsewhere asking does nothing, so code that reads for others need not know whether
it may be left: a restore that has begun its transaction reads, too, and comes to its end.

A signal to this process itself may come anywhere; what must not be left half done is `deferred`.
"""

from __future__ import annotations

import signal
import time
from _thread import _local
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from ckptfs.errors import Interrupted

#: How often to look whether the client is there, in seconds.
_LOOK_S = 0.02
#: `checked` asks after so many items.
_STRIDE = 64

_NOWHERE, _BETWEEN, _ANYWHERE = range(3)

T = TypeVar("T")


class _State(_local):
    """Of each thread its own."""

    #: Tells whether the client of the verb that runs has gone; None if there is none to ask for.
    gone: Callable[[], bool] | None = None
    #: Where the verb may be left just now, and what is said of it then.
    where = _NOWHERE
    left = ""
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
def _part(where: int, left: str) -> Iterator[None]:
    before = _state.where, _state.left
    _state.where, _state.left = where, left
    try:
        yield
    finally:
        _state.where, _state.left = before


def stoppable(left: str = "Nothing was changed.") -> AbstractContextManager[None]:
    """A part of a verb that only reads. ``left`` says in a sentence what is the case if it is left.
    The caller has flushed the file system."""
    return _part(_ANYWHERE, left)


def stoppable_between(left: str) -> AbstractContextManager[None]:
    """A part of a verb that may be left between its steps."""
    return _part(_BETWEEN, left)


def unstoppable() -> AbstractContextManager[None]:
    """A part within such a part that must come to its end."""
    return _part(_NOWHERE, "")


def check() -> None:
    """Raise `Interrupted` if the client has gone and the verb only reads. Costs next to nothing
    without a client, and a look at the clock with one."""
    if _state.where == _ANYWHERE:
        _look()


def between() -> None:
    """The same between two steps, each of which leaves everything whole."""
    if _state.where != _NOWHERE:
        _look()


def checked(items: Iterable[T]) -> Iterable[T]:
    """The items, with a `check` now and then."""
    return _checked(items) if _state.where == _ANYWHERE and _state.gone is not None else items


def _checked(items: Iterable[T]) -> Iterator[T]:
    for number, item in enumerate(items):
        if not number % _STRIDE:
            check()
        yield item


@contextmanager
def deferred() -> Iterator[None]:
    """Let a signal that raises, as Ctrl-C does, wait for the end of a short step."""
    came: list[int] = []
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                before[number] = handler
                signal.signal(number, lambda met, frame: came.append(met))
    except ValueError:
        before.clear()  # only the main thread has handlers, and only there they raise
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _look() -> None:
    if _state.gone is None:
        return
    now = time.monotonic()
    if now < _state.look_at:
        return
    _state.look_at = now + _LOOK_S
    if _state.gone():
        raise Interrupted(_state.left)
