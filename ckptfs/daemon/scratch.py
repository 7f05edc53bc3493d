"""Scratch trees: forks of the workspace that a command runs in, and that end with it.

Each is a line of its own in the store (`ckptfs.history.forks`) with a mount of its own, served by
the workspace's daemon, beside those of the named forks. Not in a directory for temporary files: a
user may have that in the workspace, and the daemon cannot go through its own mount. It begins at
now or at a checkpoint, and takes no checkpoints by itself. What it was when it ended is one, unless
the command's result is not wanted. What a daemon that died left behind is cleared away by the next
one.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import trio

from ckptfs.config import Workspace
from ckptfs.daemon import mounts
from ckptfs.daemon.lines import Line, Lines
from ckptfs.errors import ForkUnknown
from ckptfs.fs import Filesystem
from ckptfs.history import Cause, Checkpoint, forks

log = logging.getLogger(__name__)


class Scratch(NamedTuple):
    """One that is mounted. ``base`` is the checkpoint that it began at."""

    name: str
    path: Path
    base: int
    line: Line
    #: Waits for the end of the client that it is for.
    waiting: trio.CancelScope


class Scratches:
    """All of a mounted workspace."""

    def __init__(self, lines: Lines, workspace: Workspace) -> None:
        self._lines = lines
        self._place = workspace.forks
        self._all: dict[str, Scratch] = {}

    async def begin(self, line: Line, start: str, cause: Cause, client: int) -> Scratch:
        """A new one at a checkpoint, or at now, of a line. It ends with the process that wants it,
        if that one does not end it before."""
        self._lines.require_forks()
        fs = line.service.fs
        fork = forks.create(fs, _next_name(fs), start, cause=cause)
        fs.commit()
        try:
            path = self._place / fork.name
            mounts.make_point(path)
            try:
                made = await self._lines.add(fork, path, scratch=True)
            except BaseException:
                mounts.remove_point(path)
                raise
        except BaseException:
            self._drop(fork.name, cause, keep=False)
            raise
        base = forks.base_of(fs.store, fork)
        scratch = Scratch(
            fork.name, path, -1 if base is None else base.id, made, trio.CancelScope()
        )
        self._all[fork.name] = scratch
        self._lines.nursery.start_soon(self._end_with, client, scratch)
        return scratch

    async def _end_with(self, client: int, scratch: Scratch) -> None:
        """End one when its client was killed before it could."""
        with scratch.waiting, suppress(OSError):  # a client of another pid namespace is not seen
            process = os.pidfd_open(client)
            try:
                await trio.lowlevel.wait_readable(process)
            finally:
                os.close(process)
            if self._all.get(scratch.name) is scratch:
                log.info("the client of the scratch tree %s has gone", scratch.name)
                await self.end(scratch.name, Cause(), keep=True)

    async def end(self, name: str, cause: Cause, *, keep: bool) -> Checkpoint | None:
        """End one; with ``keep`` the checkpoint of what it was. For a process that still uses it,
        it is dead then."""
        scratch = self._all.pop(name, None)
        if scratch is None:
            raise ForkUnknown(name)
        try:
            await self._lines.end(scratch.line, detach=True)
        except BaseException:
            self._all[name] = scratch
            raise
        scratch.waiting.cancel()
        mounts.remove_point(scratch.path)
        return self._drop(name, cause, keep=keep)

    def _drop(self, name: str, cause: Cause, *, keep: bool) -> Checkpoint | None:
        service = self._lines.main.service
        last = forks.delete(service.fs, name, cause)
        service.fs.commit()
        if keep:
            return last
        service.delete([last])
        return None

    def clear_leftovers(self) -> None:
        """End what another daemon left: what each was is a checkpoint for a while."""
        for fork in forks.forks(self._lines.main.service.fs.store):
            if forks.is_scratch(fork.name):
                log.info("a command in a scratch tree did not end in order: %s", fork.name)
                self._drop(fork.name, Cause(), keep=True)


def _next_name(fs: Filesystem) -> str:
    """A name that no other has, and that users cannot give."""
    taken = {fork.name for fork in forks.forks(fs.store)}
    number = len(taken) + 1
    while f"{forks.SCRATCH}{number}" in taken:
        number += 1
    return f"{forks.SCRATCH}{number}"
