"""Ending a pass in the middle: every system call that changes the lower directory is a step, and so
is every commit, and a pass can be made to die before or after any of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ckptfs.fs import Filesystem
from ckptfs.sync import lower

_CALLS = ("rename", "unlink", "mkdir", "rmdir", "link", "symlink", "mknod", "fchmod", "utime",
          "pwrite", "chown", "fchown", "setxattr")  # fmt: skip


class Death(BaseException):
    """The process is no more: nobody catches this, and nothing it does any more has effect."""


class Steps:
    def __init__(self, last: int, *, done: bool) -> None:
        self._last = last
        self._done = done
        self.count = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count < self._last:
                return call(*args, **options)
            if self.count == self._last and self._done:
                call(*args, **options)
            raise Death

        return step


@contextmanager
def dying_at(step: int, *, done: bool) -> Iterator[Steps]:
    """Let the pass inside die at a step, which is ``done`` or not. Leaves quietly either way."""
    steps = Steps(step, done=done)
    saved: list[tuple[Any, str, Any]] = [(os, name, getattr(os, name)) for name in _CALLS]
    saved += [(Filesystem, "commit", Filesystem.commit), (lower, "create", lower.create)]
    for place, name, call in saved:
        setattr(place, name, steps.wrap(call))
    try:
        yield steps
    except Death:
        pass
    finally:
        for place, name, call in saved:
            setattr(place, name, call)
