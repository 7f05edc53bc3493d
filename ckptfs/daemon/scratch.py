"""Scratch trees: forks of the workspace that a command runs in, and that end with it.

Each is a line of its own in the store (`ckptfs.history.forks`) with a mount of its own, served by
the workspace's daemon, below a directory that only its user can enter. It begins at now or at a
checkpoint, and takes no checkpoints by itself. What it was when it ended is one, unless nobody
wants it. What a daemon that died left behind is cleared away by the next one.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from ckptfs import mountinfo
from ckptfs.daemon import mounts
from ckptfs.errors import ControlError, ForkUnknown
from ckptfs.fs import Filesystem
from ckptfs.fuse import Connection, Connections, MountOptions, Tree
from ckptfs.history import Cause, Checkpoint, forks
from ckptfs.service import Service

log = logging.getLogger(__name__)

#: How the names of their forks begin.
_PREFIX = "scratch-"
#: Between a store and the number of a fork, in the source of its mount.
_FORK = "//fork/"


class Scratch(NamedTuple):
    """One that is mounted. ``base`` is the checkpoint that it began at."""

    name: str
    path: Path
    base: int
    connection: Connection


class Scratches:
    """All of a mounted workspace."""

    def __init__(self, service: Service, store: Path, options: MountOptions) -> None:
        self._service = service
        self._source = os.fspath(store)
        self._options = replace(options, show_checkpoints=False)
        #: What serves their mounts, as long as that of the workspace is served.
        self.connections = Connections()
        self._all: dict[str, Scratch] = {}

    async def begin(self, start: str, cause: Cause) -> Scratch:
        """A new one at a checkpoint, or at now."""
        if self.connections.reason:
            raise ControlError(
                "Cannot fork: that takes the compiled server, which does not serve this workspace "
                f"({self.connections.reason}). Nothing was changed."
            )
        fs = self._service.fs
        fork = forks.create(fs, _next_name(fs), start, cause=cause)
        fs.commit()
        try:
            path = Path(tempfile.mkdtemp(prefix="ckptfs-"))
            tree = Tree(Filesystem(fs.store, fs.clock, line=fork.number), self._options)
            try:
                source = f"{self._source}{_FORK}{fork.number}"
                connection = await self.connections.add(tree, path, source)
            except BaseException:
                os.rmdir(path)
                raise
        except BaseException:
            self._drop(fork.name, cause, keep=False)
            raise
        base = forks.base_of(fs.store, fork)
        scratch = Scratch(fork.name, path, -1 if base is None else base.id, connection)
        self._all[fork.name] = scratch
        return scratch

    async def end(self, name: str, cause: Cause, *, keep: bool) -> Checkpoint | None:
        """End one; with ``keep`` the checkpoint of what it was. For a process that still uses it,
        it is dead then."""
        scratch = self._all.pop(name, None)
        if scratch is None:
            raise ForkUnknown(name)
        if not scratch.connection.ended.is_set():
            await trio.to_thread.run_sync(mounts.sync_filesystem, scratch.path)
            await trio.to_thread.run_sync(partial(mounts.unmount, scratch.path, detach=True))
            self.connections.remove(scratch.connection)
        with suppress(OSError):
            os.rmdir(scratch.path)
        return self._drop(name, cause, keep=keep)

    def _drop(self, name: str, cause: Cause, *, keep: bool) -> Checkpoint | None:
        last = forks.delete(self._service.fs, name, cause)
        self._service.fs.commit()
        if keep:
            return last
        self._service.delete([last])
        return None

    def close(self) -> None:
        """The workspace's mount has ended, and with it theirs. Their states stay in the store."""
        for scratch in self._all.values():
            with suppress(OSError):
                mounts.unmount(scratch.path, detach=True)
                os.rmdir(scratch.path)
        self._all.clear()

    def clear_leftovers(self) -> None:
        """End what another daemon left: what each was is a checkpoint for a while."""
        for mount in mountinfo.entries(Path("/proc/self/mountinfo").read_bytes()):
            if mount.source.startswith(self._source + _FORK):
                with suppress(OSError):
                    mounts.unmount(Path(mount.path), detach=True)
                    os.rmdir(mount.path)
        for fork in forks.forks(self._service.fs.store):
            if fork.name.startswith(_PREFIX):
                log.info("a command in a scratch tree did not end in order: %s", fork.name)
                self._drop(fork.name, Cause(), keep=True)


def _next_name(fs: Filesystem) -> str:
    """A name that no other has, and nobody can give."""
    taken = {fork.name for fork in forks.forks(fs.store)}
    number = len(taken) + 1
    while f"{_PREFIX}{number}" in taken:
        number += 1
    return f"{_PREFIX}{number}"
