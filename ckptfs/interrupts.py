"""Stopping a verb whose client has gone.

A verb runs to its end on one thread, so it has to ask by itself whether its client still waits. The
caller of a verb says how to find that out (`watching`). The verb says where it may be left: while
it only reads (`stoppable`), or between two steps that each leave everything whole
(`stoppable_between`). Loops that read ask with `check` or `checked`, loops that change something
with `between`. Elsewhere asking does nothing, so code that reads for others need not know whether
it may be left: a restore that has begun its transaction reads, too, and comes to its end.

A verb that changes much is a generator, `Steps`: it yields where everything is whole and others may
change anything. A daemon runs it in slices between requests (`sliced`, `resume`); the verb asks
with `is_due` whether its slice is used up. `finish` runs it where there is nothing to give way to.
Where it yields it may be left: `Interrupted` is raised there, and the verb says what it leaves.

A verb that only reads may have a limit, too (`limited`), where others wait for the thread: beyond
it, `check` raises `OverBudget`, and the caller has the verb run elsewhere.

What is computed for long in another thread asks with `rest` between its pieces whether to wait,
as the one that has it computed says (`resting`).

A signal to this process itself may come anywhere; what must not be left half done is `deferred`.
"""

from __future__ import annotations

import math
import signal
import time
from _thread import _local
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any, Generic, NamedTuple, TypeVar

from ckptfs.errors import Interrupted

#: How often to look whether the client is there, in seconds.
_LOOK_S = 0.02
#: `checked` asks after so many items.
_STRIDE = 64

_NOWHERE, _BETWEEN, _ANYWHERE = range(3)

T = TypeVar("T")

#: A verb in steps, which returns its result. It opens none of the parts below across a yield: they
#: would hold for what runs in between. It yields nothing, or for how many seconds it waits for
#: something else.
Steps = Generator[Any, None, T]


class Ended(NamedTuple, Generic[T]):
    """A verb in steps has come to its end."""

    result: T


class OverBudget(Exception):
    """A verb that only reads has run for as long as it may on this thread."""


class _State(_local):
    """Of each thread its own."""

    #: Tells whether the client of the verb that runs has gone; None if there is none to ask for.
    gone: Callable[[], bool] | None = None
    #: Where the verb may be left just now, and what is said of it then.
    where = _NOWHERE
    left = ""
    look_at = 0.0
    #: Tells whether the slice that runs is used up; None where nothing has to give way.
    due: Callable[[], bool] | None = None
    #: When a verb that only reads has to give way.
    until = math.inf
    #: Returns when a long computation may go on; None where it need not wait.
    rest: Callable[[], None] | None = None


_state = _State()


@contextmanager
def watching(gone: Callable[[], bool] | None) -> Iterator[None]:
    """Perform a verb for a client, if there is one; ``gone`` tells whether it has hung up."""
    before, _state.gone = _state.gone, gone
    _state.look_at = time.monotonic() + _LOOK_S
    try:
        yield
    finally:
        _state.gone = before


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Within `watching`: let reading raise `OverBudget` after that long."""
    before, _state.until = _state.until, time.monotonic() + seconds
    _state.look_at = min(_state.look_at, _state.until)
    try:
        yield
    finally:
        _state.until = before


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


@contextmanager
def sliced(due: Callable[[], bool] | None) -> Iterator[None]:
    """Run a slice of a verb; ``due`` tells whether it is used up."""
    before, _state.due = _state.due, due
    try:
        yield
    finally:
        _state.due = before


def is_due() -> bool:
    """Whether the verb should yield, to give way to requests."""
    return _state.due is not None and _state.due()


@contextmanager
def resting(pause: Callable[[], None]) -> Iterator[None]:
    """Compute something for long beside others; ``pause`` returns when it may go on."""
    before, _state.rest = _state.rest, pause
    try:
        yield
    finally:
        _state.rest = before


def rest() -> None:
    """Between two pieces of a long computation: wait as long as that is wanted."""
    if _state.rest is not None:
        _state.rest()


def resume(steps: Steps[T], gone: Callable[[], bool] | None = None) -> Ended[T] | float:
    """Run the next step of a verb, and have it end there if its client has gone; how it ended, if
    it did, else how many seconds it waits for something else."""
    try:
        pause = next(steps)
        if gone is not None and gone():
            pause = steps.throw(Interrupted())
    except StopIteration as done:
        return Ended(done.value)
    return float(pause or 0)


def as_long_as(holds: Callable[[], bool], steps: Steps[T]) -> Steps[T]:
    """Steps that end as if their client had gone, once something does not hold any more."""
    stopped: Interrupted | None = None
    with closing(steps):
        while True:
            try:
                pause = next(steps) if stopped is None else steps.throw(stopped)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                yield pause
                stopped = None if holds() else Interrupted()
            except Interrupted as met:
                stopped = met


def finish(steps: Steps[T]) -> T:
    """Run a verb to its end, unless the client goes, or it only reads and has no time left; its
    result."""
    watched = _state.gone is not None
    _state.look_at = 0.0  # a verb that only waited for its turn ends at its first yield
    with closing(steps), sliced(_is_time_to_pause if watched else None):
        while not isinstance(ended := resume(steps, _has_gone if watched else None), Ended):
            if _state.where == _ANYWHERE and time.monotonic() >= _state.until:
                raise OverBudget
            time.sleep(ended)
    result: T = ended.result
    return result


def at_once(steps: Steps[T]) -> T:
    """Run steps to their end within one; their result."""
    with closing(steps), sliced(None):
        while not isinstance(ended := resume(steps), Ended):
            pass
    result: T = ended.result
    return result


def unstopped(steps: Steps[T]) -> Steps[T]:
    """Steps that come to their end although the client has gone."""
    with closing(steps):
        while True:
            with watching(None):
                ended = resume(steps)
            if isinstance(ended, Ended):
                result: T = ended.result
                return result
            with suppress(Interrupted):
                yield ended


def _is_time_to_look() -> bool:
    return time.monotonic() >= _state.look_at


def _is_time_to_pause() -> bool:
    return time.monotonic() >= min(_state.look_at, _state.until)


def _has_gone() -> bool:
    if not _is_time_to_look():
        return False
    _state.look_at = time.monotonic() + _LOOK_S
    return _state.gone is not None and _state.gone()


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
    if _state.gone is None or not _is_time_to_look():
        return
    if _has_gone():
        raise Interrupted(_state.left)
    if time.monotonic() >= _state.until and _state.where == _ANYWHERE:
        raise OverBudget
