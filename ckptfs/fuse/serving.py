"""Serving a workspace: mount it, run the request loop, commit in step with the load, unmount.

Commits happen at fsync, when the requests pause, and at an interval under load; here are the last
two. While nothing changes, nothing wakes up.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path

import pyfuse3
import trio

from ckptfs import errors
from ckptfs.fs import Filesystem
from ckptfs.fuse import loop, notify, priority
from ckptfs.fuse.adapter import Operations, is_awaited
from ckptfs.fuse.connections import (
    Connections,
    device_of,
    follow_handles,
    follow_lookups,
    read_ahead,
)
from ckptfs.fuse.control_files import Connect, refuse
from ckptfs.fuse.forks_dir import Points, no_forks
from ckptfs.fuse.hooks import Gate, Guard, HistoryHooks, MountOptions, ServedBy, ungated
from ckptfs.fuse.latency import Latency
from ckptfs.fuse.notify import invalidate
from ckptfs.fuse.requests import Requests
from ckptfs.fuse.server import binding
from ckptfs.fuse.server.interface import CompiledServer
from ckptfs.model import Ino
from ckptfs.store.snapshot import NO_READER
from ckptfs.sync import lower

log = logging.getLogger(__name__)

#: A pause of this length between requests is a good moment to commit.
PAUSE_S = 0.1
#: Under load, what is not committed is at most this old.
INTERVAL_S = 1.0
#: Since then it has what `protocol.h` calls NEEDED.
_KERNEL_LEAST = (5, 11)
_OLD_KERNEL = "the kernel is older than 5.11"
#: How long another thread may hold the interpreter's lock while requests wait.
_SWITCH_S = 0.0005
#: How long a commit may make holes in the heap while requests wait.
_PUNCHING_S = 0.005
#: Reading alone fills memory with the store's map: look at it after so many requests.
_TRIM_REQUESTS = 5_000


async def serve(
    fs: Filesystem,
    mountpoint: Path,
    options: MountOptions,
    *,
    started: Callable[[], None],
    prepare: Callable[[], None] = lambda: None,
    history: HistoryHooks | None = None,
    guard: Guard | None = None,
    gate: Gate | None = None,
    connect: Connect = refuse,
    committed: Callable[[], None] = lambda: None,
    report: Callable[[ServedBy], None] = lambda served: None,
    connections: Connections | None = None,
    forks: Points = no_forks,
) -> None:
    """Serve until the workspace is unmounted, or this is cancelled or fails. Then the connection
    ends, and a mount that is still there is dead: it stays, since what it covers may be older.

    ``prepare`` is called when the mount covers its directory and nothing is answered yet,
    ``started`` just before requests are. ``guard`` is called before every change, ``gate`` tells
    what has to be compared before it is shown; without the compiled server that is done first.
    ``connect`` makes the connections of `.checkpoints/.control`, ``committed`` is called
    after every commit that was made because requests paused or the interval ended. ``report`` is
    called with what serves the requests: before ``started``, and again should the kernel turn out
    to be too old. ``connections`` takes more mounts, as long as this one is served;
    ``forks`` says what stands in `.forks`.
    """
    _tune_collector()
    _tune_threads()
    connections = connections or Connections()
    logging.getLogger("pyfuse3").addFilter(is_awaited)
    operations = Operations(fs, options, history, guard, connect, forks)
    module, reason = binding.load()
    gate = gate or ungated()
    bound = binding.Bound(operations.requests, fs, gate)
    server = module.Server(bound) if module else None
    latency = Latency(wanted=options.keep_cpus_awake)
    if server is not None:
        priority.prepare(server, wanted=options.raise_priority)
    path = _RequestPath(fs, operations.requests, server, connections, latency, report)
    committer = Committer(fs, committed, lambda: path.met(mountpoint), connections.meet)
    waiter = loop.install(committer.turn, server, latency)
    committer.requests = waiter.requests
    _mount(operations, mountpoint, _fuse_options(options))
    try:
        prepare()
        if not path.is_compiled or _is_old_kernel():
            gate.compare_all()
    except BaseException:
        pyfuse3.close(unmount=False)
        raise
    notify.session.ended.clear()
    fs.keep_unlinked = True
    fs.store.heap.punching_s = _PUNCHING_S
    reason = path.begin(gate, reason)
    usable = False
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.run)
            operations.requests.spoiled = lambda node: nursery.start_soon(
                invalidate, (), {Ino(node)}
            )
            if module is not None and server is not None and fs.can_ask:
                connections.open(module, server, bound, waiter, nursery)
            else:
                connections.reason = reason or "pyfuse3 does not call the compiled server"
            started()
            usable = True
            await pyfuse3.main(min_tasks=1, max_tasks=8)
            nursery.cancel_scope.cancel()
    finally:
        fs.store.heap.punching_s = inf
        fs.keep_unlinked = False
        connections.close()
        operations.requests.connections.close()
        path.use_open_handles()
        latency.close()
        notify.session.ended.set()
        # One that never became usable covers nothing that is newer.
        pyfuse3.close(unmount=not usable)
        if server is not None:
            server.close()
        fs.commit()


class _RequestPath:
    """Whether the compiled server replies to requests or pyfuse3 alone, and having it known."""

    def __init__(
        self,
        fs: Filesystem,
        requests: Requests,
        server: CompiledServer | None,
        connections: Connections,
        latency: Latency,
        report: Callable[[ServedBy], None],
    ) -> None:
        self._fs = fs
        self._requests = requests
        self._server = server
        self._connections = connections
        self._latency = latency
        self._report = report

    @property
    def is_compiled(self) -> bool:
        return self._server is not None and self._server.hooked()

    def begin(self, gate: Gate, reason: str) -> str:
        """Serve by the compiled server where that can be. Returns why it is not so, or empty;
        ``reason`` is why there is no such server."""
        server = self._server
        if server is not None and server.hooked():
            follow_lookups(self._fs, self._requests, server)
            self._fs.commit()
            self._fs.store.attach_reader(server)
            if gate.is_closed:
                server.close_gate()
                gate.kept_by(server)
            reason = _OLD_KERNEL if _is_old_kernel() else ""
        self._have_known(reason or ("" if self._fs.can_ask else "pyfuse3 does not call it"))
        return reason

    def met(self, mountpoint: Path) -> None:
        """The kernel's first request, with which it says how old it is."""
        read_ahead(mountpoint)
        if self._fs.can_ask and not self.is_compiled:
            self._have_known(_OLD_KERNEL)
            self._connections.reason = _OLD_KERNEL
            self.use_open_handles()
        elif self._fs.can_ask and _is_old_kernel():
            self._have_known("")

    def use_open_handles(self) -> None:
        follow_handles(self._fs, self._requests)
        self._fs.store.attach_reader(NO_READER)

    def _have_known(self, reason: str) -> None:
        path = "portable" if reason else "compiled"
        log.info("requests: %s path%s", path, f", since {reason}" if reason else "")
        self._report(ServedBy(path, reason, not self._latency.reason, self._latency.reason))


def _is_old_kernel() -> bool:
    """What is to be expected; the kernel itself says it with its first request."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) < _KERNEL_LEAST


def _mount(operations: Operations, mountpoint: Path, options: set[str]) -> None:
    """Mount on the directory of this path; not where a link leads that was put into the path since
    it was resolved: a user who may rename in it could have root cover any directory.

    Ordinary users mount with fusermount3, which takes a name, and has their rights.
    """
    if os.geteuid() == 0 and _mount_pinned(operations, mountpoint, options):
        return
    before = device_of(mountpoint)
    try:
        pyfuse3.init(operations, str(mountpoint), options)
    except RuntimeError as error:
        raise errors.MountFailed(mountpoint, str(error)) from error
    if device_of(mountpoint) in ("", before):
        pyfuse3.close(unmount=True)
        raise errors.MountFailed(mountpoint, "its path leads elsewhere now")


def _mount_pinned(operations: Operations, mountpoint: Path, options: set[str]) -> bool:
    """Whether it could be done by descriptor: not without /proc, nor by a libfuse that follows no
    link at all. The descriptor stays: what leads to it is the name by which libfuse unmounts."""
    try:
        pinned = lower.by_descriptor(lower.open_root(mountpoint))
    except OSError as error:
        raise errors.MountFailed(mountpoint, errors.reason_of(error)) from error
    with suppress(RuntimeError):
        if os.path.exists(pinned):
            pyfuse3.init(operations, pinned, options)
            return True
    return False


def _tune_threads() -> None:
    """A thread that computes in Python (notifications one by one, a look through /proc) gives the
    interpreter's lock back after so long, and requests wait for it: 5 ms unless one says."""
    sys.setswitchinterval(_SWITCH_S)


def _tune_collector() -> None:
    """Requests make short-lived objects without cycles: look for cycles seldom, and not among what
    start-up left behind. But a look at 50,000 objects took up to 40 ms, in which no request is
    answered; one at all that there are, hardly ever, takes nearly a second after a restore of a
    million files."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 400)


def _fuse_options(options: MountOptions) -> set[str]:
    chosen = {"default_permissions", f"fsname={options.fsname}", "subtype=ckptfs", "noatime"}
    if options.allow_other:
        chosen.add("allow_other")
    # libfuse gives every mount nosuid and nodev that does not ask for suid and dev.
    return chosen | options.flags


class Committer:
    """Commits in step with the load. ``turn`` is called by the request loop whenever it pauses,
    and every millisecond when it does not."""

    def __init__(
        self,
        fs: Filesystem,
        committed: Callable[[], None],
        met: Callable[[], None],
        meet: Callable[[], None],
    ) -> None:
        self._fs = fs
        #: Called every turn: more mounts have their first requests later.
        self._meet = meet
        #: Called once, after the first request.
        self._met: Callable[[], None] | None = met
        self._committed = committed
        self._changed = trio.Event()
        self._trimmed = 0
        self.requests: Callable[[], int] = lambda: 0

    def turn(self) -> None:
        self._fs.store.expect_records()
        if self._met is not None and self.requests():
            self._met()
            self._met = None
        self._meet()
        store = self._fs.store
        # One that is missing refuses every change, so nothing would become dirty.
        if store.dirty or store.is_missing or self.requests() - self._trimmed > _TRIM_REQUESTS:
            self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            paused = await self._pause_or_interval()
            self._fs.commit()
            if paused:
                self._fs.store.heap.trim()
            self._fs.store.trim()
            self._committed()
            self._trimmed = self.requests()
            self._changed = trio.Event()
            if self._fs.store.heap.is_waiting:
                self._changed.set()

    async def _pause_or_interval(self) -> bool:
        """Wait until no request has come for a while, or for the whole interval. Whether it was a
        pause."""
        deadline = trio.current_time() + INTERVAL_S
        seen = -1
        while self.requests() != seen and trio.current_time() < deadline:
            seen = self.requests()
            await trio.sleep(PAUSE_S)
        return self.requests() == seen
