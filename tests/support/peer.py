"""A second process that makes system calls for a test, as the same user or as another one.

    with peer(NOBODY) as nobody, fails(errno.EACCES):
        nobody(os.open, path, os.O_RDONLY)

The process lives as long as the `with` block, so descriptors and locks it takes stay taken.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

#: A user without any right of its own; uid 65534 is `nobody` on Debian.
NOBODY = 65534
#: Another one, in no group of the first. Nothing needs it to have a name.
STRANGER = 65533

Function = Callable[..., Any]


class Peer:
    """The near end. Functions must stand at module level, arguments and answers pickle."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __call__(self, function: Function, *arguments: Any, **keywords: Any) -> Any:
        """Run `function` over there; its answer is ours, and so is the exception it raises."""
        self.begin(function, *arguments, **keywords)
        return self.finish(60)

    def begin(self, function: Function, *arguments: Any, **keywords: Any) -> None:
        """Start a call that may block; `finish` takes its answer."""
        self._pipe.send((function, arguments, keywords))

    def finish(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"the call in the peer still waits after {seconds:g} s")
        answer, error = self._pipe.recv()
        if error is not None:
            raise error
        return answer


@contextmanager
def peer(uid: int | None = None, groups: tuple[int, ...] = ()) -> Iterator[Peer]:
    """A child process, of user `uid` and only of `groups` where given; a uid is its own group."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_live, args=(here, there, uid, groups))
    process.start()
    there.close()
    try:
        yield Peer(here)
    finally:
        here.close()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def _live(here: Connection, there: Connection, uid: int | None, groups: tuple[int, ...]) -> None:
    here.close()
    if uid is not None:
        os.setgroups(groups)
        os.setgid(uid)
        os.setuid(uid)
    while True:
        try:
            function, arguments, keywords = there.recv()
        except EOFError:
            os._exit(0)
        try:
            there.send((function(*arguments, **keywords), None))
        except Exception as error:  # handed to the test, which judges it
            there.send((None, error))
