"""The time in which the workspace is mounted: the event loop, its requests and its signals.

Owns trio in the daemon. FUSE requests are answered by `ckptfs.fuse`, questions on the control
socket here, a verb at a time, between two FUSE requests. It ends when the mount ends, by
`ckptfs umount`, umount by hand, or a signal. How it ends is in `shutdown`, what comes
before and after in `lifecycle`.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from ckptfs import fuse, history, interrupts
from ckptfs.control import runtime, server
from ckptfs.control.events import Hub
from ckptfs.control.protocol import Request, encode_error, encode_result
from ckptfs.control.server import CONNECTIONS_MAX, Accepted, Connection, Peer, ReplyStream
from ckptfs.daemon import mounts, sandbox
from ckptfs.daemon.autosave import AutoSave
from ckptfs.daemon.housekeeping import Housekeeping
from ckptfs.daemon.mounts import is_inside
from ckptfs.daemon.preflight import Plan
from ckptfs.daemon.reading import Client, Readers
from ckptfs.daemon.scanning import Scanning, not_brought_in
from ckptfs.daemon.scratch import Scratches
from ckptfs.daemon.shutdown import Shutdown
from ckptfs.daemon.slices import Slices
from ckptfs.daemon.watchers import WatchNotifier, heard
from ckptfs.errors import CkptfsError, ControlError, Interrupted, SettingInvalid, WorkspaceReadOnly
from ckptfs.fs import Filesystem
from ckptfs.fuse.history_dir import NAME
from ckptfs.fuse.nodes import HISTORY_ROOT, checkpoint_base, in_checkpoint
from ckptfs.history import Cause, Checkpoint, references
from ckptfs.history.auto import parse_policy
from ckptfs.interrupts import Steps
from ckptfs.model import ROOT_INO, Ino
from ckptfs.service import Service, service, verbs, wire
from ckptfs.service.arguments import JsonObject, OnProgress
from ckptfs.service.verbs import Verb
from ckptfs.store import View
from ckptfs.sync import ScanBehind

log = logging.getLogger(__name__)

T = TypeVar("T")

CHECKPOINTS = os.fsdecode(NAME)

#: How long the kernel may take to forget what no program has open: it does so at once.
_FORGETTING_MS = 10
#: Seconds that a verb may read while requests wait.
_READING_S = 0.01
#: Seconds that an unmount waits for those who watch files to be woken.
_WAKING_PATIENCE = 5.0


def mount_options(plan: Plan) -> fuse.MountOptions:
    source = mounts.source_option(plan.workspace.store)
    options = fuse.MountOptions(allow_other=plan.allow_other, flags=plan.flags, fsname=source)
    return options if plan.xattrs is None else replace(options, xattrs=plan.xattrs)


class UmountReplies:
    """The clients that asked for the unmount and wait to hear how it ended."""

    def __init__(self) -> None:
        self._streams: list[ReplyStream] = []
        self._listening = False
        #: Whether the lower directory shall be brought up to date; a client may decide against.
        self.write_back = True
        #: Whether it shall come into sight even if something had to be left out.
        self.force = False

    def add(self, stream: ReplyStream, *, listening: bool) -> None:
        self._streams.append(stream)
        self._listening |= listening

    def decide(self, *, write_back: bool, force: bool) -> None:
        self.write_back, self.force = write_back, force

    def remove(self, stream: ReplyStream) -> None:
        self._streams.remove(stream)
        stream.close()

    @property
    def on_progress(self) -> OnProgress | None:
        """Takes progress for all of them; None if none of them looks at it."""
        return self._tell if self._listening else None

    def _tell(self, record: JsonObject) -> None:
        for stream in self._streams:
            stream.send_progress(record)

    def finish(self, record: JsonObject) -> None:
        for stream in self._streams:
            stream.finish(encode_result(record))

    def fail(self, error: CkptfsError) -> None:
        for stream in self._streams:
            stream.finish(encode_error(error))


class CheckpointsDir:
    """What `.checkpoints` can ask for: mkdir in it saves, rmdir deletes."""

    def __init__(self, service: Service, path: Path, hub: Hub) -> None:
        self._service = service
        self._path = path
        self._hub = hub

    async def save(self, name: str) -> int:
        references.require_plain_tag(name)
        await trio.to_thread.run_sync(mounts.sync_filesystem, self._path)
        saved = self._service.save(name, tag=name)
        self._hub.happened("save", wire.checkpoint(saved))
        return saved.id

    async def delete(self, number: int, pid: int) -> None:
        # A recursive delete runs in there; `rmdir .checkpoints/12` does not, and means it.
        if is_inside(pid, self._path / CHECKPOINTS):
            log.info(
                "rmdir of checkpoint %d refused: process %d is in %s", number, pid, CHECKPOINTS
            )
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        self._service.delete_named([str(number)])
        self._hub.happened("delete", {"checkpoints": [{"id": number}]})


def _nothing() -> None:
    pass


class MountConnections:
    """Connections that come through the mount, on their way to the control server."""

    def __init__(self) -> None:
        self._sending, self.handed = trio.open_memory_channel[Accepted](CONNECTIONS_MAX)

    def __call__(self, uid: int, pid: int) -> socket.socket:
        """One end of a new connection for a user and process, by the rule of the socket."""
        if not server.allowed(uid):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        ours, theirs = socket.socketpair()
        try:
            since = time.clock_gettime(time.CLOCK_BOOTTIME)
            self._sending.send_nowait((theirs, Peer(pid, uid, since, through_mount=True)))
        except trio.WouldBlock:
            ours.close()
            theirs.close()
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY)) from None
        # The request loop waits for what wakes trio; a task that is ready does not.
        trio.lowlevel.current_trio_token().run_sync_soon(_nothing, idempotent=True)
        return ours


async def _forgotten(fs: Filesystem, inodes: Collection[Ino]) -> None:
    """Return when the kernel has forgotten these, or seems not to be going to."""
    for _ in range(_FORGETTING_MS):
        if not any(map(fs.is_used, inodes)):
            return
        await trio.sleep(0.001)


class Mounted:
    """One mount, from the first request to the last."""

    def __init__(
        self,
        plan: Plan,
        service: Service,
        note: runtime.Daemon,
        replies: UmountReplies,
        shutdown: Shutdown,
        scan: ScanBehind | None = None,
    ) -> None:
        self._plan = plan
        self._service = service
        self._note = note
        self._replies = replies
        self._shutdown = shutdown
        self._failure: Exception | None = None
        self._is_mounted = trio.Event()
        #: What replies to requests, from the mount on.
        self.served = fuse.ServedBy("portable", "it is not mounted yet", False, "")
        self._scope = trio.CancelScope()
        self._hub = Hub(plan.workspace.path)
        self._auto = AutoSave(service, parse_policy(plan.auto), self._hub)
        self._slices = Slices()
        self._scanning = Scanning(service, scan, self._slices)
        #: Verbs that make another checkpoint the head follow each other.
        self._restoring = trio.Lock()
        self._housekeeping = Housekeeping(service, self._auto, self._hub, self._slices)
        service.free_later = self._housekeeping.notify
        self._watch_notifier = WatchNotifier(service, plan.workspace.path, self._slices)
        self._mount_connections = MountConnections()
        self._scratches = Scratches(service, plan.workspace.store, mount_options(plan))
        self._readers = Readers(service.fs.store)

    def serve(
        self, listener: socket.socket, prepare: Callable[[], None], started: Callable[[], None]
    ) -> None:
        """Mount and serve until unmounted. Raises what ended it if that was an error."""
        self._prepare = prepare
        try:
            trio.run(self._run, listener, started)
        except BaseExceptionGroup as group:
            raise _first_of(group) from group
        if self._failure is not None:
            raise _first_of(self._failure) from self._failure

    async def _run(self, listener: socket.socket, started: Callable[[], None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, signals)
                nursery.start_soon(
                    server.serve, listener, self._answer, self._mount_connections.handed
                )
                nursery.start_soon(self._scan)
                nursery.start_soon(self._after_scan, self._clear_leftovers)
                nursery.start_soon(self._after_scan, self._housekeeping.run)
                nursery.start_soon(self._after_scan, self._housekeeping.compress)
                nursery.start_soon(self._after_scan, self._housekeeping.give_back)
                nursery.start_soon(self._watch_notifier.run)
                with self._scope:
                    await self._serve_files(lambda: self._started(started, nursery))
                self._scratches.close()
                nursery.cancel_scope.cancel()

    def _started(self, started: Callable[[], None], nursery: trio.Nursery) -> None:
        self._shutdown.mounted()
        nursery.start_soon(self._shutdown.watch)
        nursery.start_soon(self._after_scan, self._finish_purge)
        self._is_mounted.set()
        started()

    async def _scan(self) -> None:
        """End the scan that goes on behind the mount; it ends the mount if it fails."""
        await self._is_mounted.wait()
        try:
            await self._scanning.run()
        except OSError as error:
            self._failure = not_brought_in(self._plan.workspace, error)
            self._scope.cancel()

    async def _clear_leftovers(self) -> None:
        self._scratches.clear_leftovers()

    async def _after_scan(self, task: Callable[[], Awaitable[None]]) -> None:
        await self._scanning.wait()
        await task()

    async def _serve_files(self, started: Callable[[], None]) -> None:
        path, options = self._plan.workspace.path, mount_options(self._plan)
        with suppress(SettingInvalid):
            settings = self._service.settings()
            options = replace(
                options,
                keep_cpus_awake=bool(settings.value("serve.keep_cpus_awake")),
                raise_priority=bool(settings.value("serve.priority")),
            )
        try:
            await fuse.serve(
                self._service.fs,
                path,
                options,
                started=started,
                prepare=self._prepare,
                history=CheckpointsDir(self._service, path, self._hub),
                guard=self._auto,
                gate=self._scanning,
                connect=self._mount_connections,
                committed=self._housekeeping.notify,
                report=self._note_served,
                connections=self._scratches.connections,
            )
        except Exception as error:  # noqa: BLE001 - kept for the caller, outside of the nursery's group
            self._failure = error

    def _note_served(self, served: fuse.ServedBy) -> None:
        self.served = served

    async def _obey(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            log.info("ending on %s", signal.Signals(number).name)
            await self._shutdown.sync_kernel()
            self._scope.cancel()

    async def _answer(self, request: Request, connection: Connection) -> JsonObject | bytes | None:
        request = sandbox.admit(request, connection.peer)
        try:
            result = await self._perform(request, connection)
        except Interrupted as stopped:
            log.info("%s ended before its time, with its client: %s", request.op, stopped)
            raise
        except CkptfsError as error:
            self._hub.failed(request.op, error)
            raise
        if isinstance(result, dict):
            self._hub.happened(request.op, result)
        return result

    async def _perform(self, request: Request, connection: Connection) -> JsonObject | bytes | None:
        verb = verbs.find(request.op)
        values = verb.decode(request.args)
        if verb.module == verbs.DAEMON:
            own: Callable[..., Awaitable[JsonObject | None]] = getattr(self, f"_do_{verb.name}")
            return await own(request, connection, **values)
        await self._scanning.ended()
        if verb.changes_files(values):
            self._require_writable(verb.name)
        if verb.needs_sync:
            await self._sync()
        cause = service.caller_of(self._service, request.args)
        on_progress = connection.send_progress if request.progress else None
        if verb.in_slices and not verb.reads(values):
            steps = service.steps(self._service, verb, values, cause, on_progress)
            return await self._run_in_slices(connection, cause, steps)
        run = partial(service.run, self._service, verb, values, cause, on_progress)
        if verb.in_thread:
            return await self._run_beside(connection, run)
        if verb.reads(values):
            return await self._announced(self._read(verb, request, connection, run))
        if not verb.moves_head:
            return await self._announced(self._carry_out(connection, run))
        async with self._restoring:
            try:
                await self._prepare_restore(verb, values, connection, on_progress)
                return await self._announced(self._carry_out(connection, run))
            finally:
                history.drop_prepared(self._service.fs)

    async def _announced(self, doing: Awaitable[T]) -> T:
        """Do something, and have the kernel hear what it changed, also if it fails."""
        before, nameless = self._service.fs.head, set(self._service.fs.unlinked)
        try:
            return await doing
        finally:
            self._wake_housekeeping()
            if not self._service.fs.store.failed:
                await self._announce(before, nameless)

    async def _carry_out(self, connection: Connection, run: Callable[[], JsonObject]) -> JsonObject:
        """In one step, between two requests."""
        with interrupts.watching(connection.has_gone):
            return run()

    def _wake_housekeeping(self) -> None:
        store = self._service.fs.store
        # What is dirty is in the journal only, and on a quiet mount no request comes that a commit
        # would follow; or one has failed, and the next ends the mount. What is hidden holds space.
        if store.dirty or store.epoch_tree.hidden:
            self._housekeeping.notify()

    async def _sync(self) -> None:
        """Have the kernel send what programs wrote and it still keeps to itself."""
        await trio.to_thread.run_sync(mounts.sync_filesystem, self._plan.workspace.path)

    async def _read(
        self, verb: Verb, request: Request, connection: Connection, run: Callable[[], JsonObject]
    ) -> JsonObject | bytes:
        """Carry out a verb that only reads: here if that does not take long, else in a process."""
        if not verb.in_process:
            limit = interrupts.limited(_READING_S)
            with suppress(interrupts.OverBudget), interrupts.watching(connection.has_gone), limit:
                return run()
        self._service.fs.flush()
        on_progress = connection.send_progress if request.progress else None
        return await self._readers.perform(verb, request, Client(connection.has_gone, on_progress))

    async def _prepare_restore(
        self,
        verb: Verb,
        values: JsonObject,
        connection: Connection,
        on_progress: OnProgress | None,
    ) -> None:
        """Find out what a verb that makes another checkpoint the head changes, in slices, so that
        the step itself is short; and have the kernel drop those files: what it still knows then is
        open."""

        def watch(done: int) -> None:
            if on_progress is not None:
                on_progress({"phase": "compare", "files": done})

        fs = self._service.fs
        with interrupts.watching(connection.has_gone), interrupts.stoppable():
            target = service.head_after(self._service, verb, values)
        if target is not None:
            steps = history.preparing(fs, target, watch)
            files = await self._slices.run(steps, connection.has_gone, in_turn=False)
            if files:
                await fuse.invalidate(files, (), files)
                await _forgotten(fs, set(files.values()))

    async def _run_beside(
        self, connection: Connection, run: Callable[[], JsonObject]
    ) -> JsonObject:
        """In a thread: requests are answered meanwhile."""
        self._service.fs.commit()

        def watched() -> JsonObject:
            with interrupts.watching(connection.has_gone):
                return run()

        return await trio.to_thread.run_sync(watched)

    async def _run_in_slices(
        self, connection: Connection, cause: Cause, steps: Steps[JsonObject]
    ) -> JsonObject:
        """Requests and other verbs are served between two slices, each of which leaves everything
        whole; what it changed is announced after it."""
        acting = partial(self._service.acting, cause)
        self._housekeeping.give_up()
        try:
            return await self._slices.run(
                steps, connection.has_gone, around=acting, between=self._announce_slice
            )
        finally:
            self._wake_housekeeping()
            await self._announce_slice()

    async def _announce_slice(self) -> None:
        if self._service.unannounced and not self._service.fs.store.failed:
            await self._announce(self._service.fs.head, set())

    async def _finish_purge(self) -> None:
        """Go on with a purge that the end of the last daemon cut short."""
        if not self._service.owes_purge():
            return
        log.info("a purge was cut short: going on with it")
        await self._sync()  # before its first request the kernel takes no notifications
        self._housekeeping.give_up()
        try:
            await self._slices.run(self._service.finishing_purge(), between=self._announce_slice)
            await self._announce_slice()
            log.info("the purge is done")
        except (CkptfsError, OSError) as error:
            log.warning("a purge that was cut short could not be ended: %s", error)

    def _require_writable(self, op: str) -> None:
        """A mount that is read-only stays as it is, whichever way a change comes."""
        path = self._plan.workspace.path
        if mounts.is_read_only(path):
            raise WorkspaceReadOnly(path, op.replace("_", " "))

    async def _announce(self, before: View, nameless: set[Ino]) -> None:
        """Tell the kernel what a verb changed, also before it failed or its client had gone; only
        then has the verb happened for everyone.

        ``before`` is the head as it was, ``nameless`` what was open in it without a name.
        """
        pending, fs = self._service.take_unannounced(), self._service.fs
        for changed in pending.changed:
            steps = heard(fs, before, nameless, changed)
            known, gone = await self._slices.run(steps, in_turn=False)
            await fuse.invalidate(known.entries, known.inodes, gone)
            self._watch_notifier.add(known)
        for checkpoint in self._cached_checkpoints() if pending.purged else ():
            for changed in pending.purged:
                places = in_checkpoint(checkpoint.id, changed.entries, changed.inodes)
                await fuse.invalidate(*places)
        if pending.deleted:
            await fuse.invalidate({(Ino(HISTORY_ROOT), b"%d" % n) for n in pending.deleted}, ())
        if pending.new_names:
            # The kernel was told for ever that they are not there.
            names = {(ROOT_INO, name) for name, _ in fs.entries(fs.head, ROOT_INO)}
            await fuse.invalidate(names, {ROOT_INO})

    def _cached_checkpoints(self) -> list[Checkpoint]:
        """The checkpoints of whose trees the kernel may cache something."""
        fs, found = self._service.fs, self._service.checkpoints()
        if not fs.can_ask:
            return found
        if not fs.is_used(Ino(HISTORY_ROOT)):
            return []
        return [item for item in found if fs.is_used(Ino(checkpoint_base(item.id) | ROOT_INO))]

    # -- the daemon's own verbs --------------------------------------------------------------------

    async def _do_watch(self, _: Request, connection: Connection) -> None:
        await self._hub.follow(connection)

    async def _do_sync(self, *_: object) -> JsonObject:
        await self._sync()
        self._service.fs.commit()
        return {}

    async def _do_freeze(
        self, _: Request, connection: Connection, *, seconds: float | None
    ) -> None:
        """Stand still for a client that takes checkpoints of several workspaces as one."""
        await self._scanning.ended()
        await self._sync()
        saved: list[JsonObject] = []

        def save(wishes: JsonObject) -> JsonObject:
            saved.append(service.perform(self._service, "save", wishes))
            return saved[-1]

        server.hold(connection, seconds, save)
        for record in saved:
            self._hub.happened("save", record)

    async def _do_thaw(self, *_: object) -> JsonObject:
        raise ControlError("Cannot thaw: the workspace is not held still. Nothing was changed.")

    async def _do_status(self, *_: object) -> JsonObject:
        figures = self._service.figures()._asdict()
        room = self._service.shortage(self._housekeeping.given_bytes())
        return {
            **self._note._asdict(),
            "state": runtime.SERVING,  # the note is of the start
            "store": str(self._plan.workspace.store),
            "log": str(self._plan.workspace.log),
            **figures,
            "unseen": self._auto.unseen,
            "expired_for_room": self._auto.expired_for_room,
            "short_of_room": room is not None,
            "room": None if room is None else room._asdict(),
            "scan": self._scanning.status(),
            "read_only": mounts.is_read_only(self._plan.workspace.path),
            **self.served._asdict(),
        }

    async def _do_harness(self, *_: object, pid: int) -> JsonObject:
        """Take a process for a harness: each command that it starts is a step."""
        if not self._auto.declare(pid):
            raise ControlError(f"Cannot see process {pid}. Nothing was changed.")
        return {"pid": pid}

    async def _do_scratch(self, request: Request, _: Connection, *, start: str) -> JsonObject:
        """A fork of now, or of a checkpoint, for a command to run in."""
        await self._scanning.ended()
        self._require_writable("fork")
        await self._sync()
        made = await self._scratches.begin(start, service.caller_of(self._service, request.args))
        return {"name": made.name, "path": str(made.path), "base": made.base}

    async def _do_scratch_end(
        self, request: Request, _: Connection, *, name: str, keep: bool
    ) -> JsonObject:
        cause = service.caller_of(self._service, request.args)
        last = await self._scratches.end(name, cause, keep=keep)
        self._wake_housekeeping()
        return {"name": name, "checkpoint": None if last is None else last.id}

    async def _do_umount(
        self,
        request: Request,
        connection: Connection,
        *,
        lazy: bool,
        force: bool,
        write_back: bool,
    ) -> JsonObject | None:
        """Unmount; the answer comes once the lower directory is current, from `lifecycle`."""
        # Adopted first: a mount that ends takes this task with it.
        stream = connection.adopt()
        self._replies.add(stream, listening=request.progress)
        try:
            cut_off = await self._take_away(
                connection.peer_pid, lazy=lazy, force=force, write_back=write_back
            )
        except trio.Cancelled:
            # The mount has ended before the unmount was seen to: `lifecycle` answers.
            self._replies.decide(write_back=write_back, force=force)
            raise
        except BaseException:
            self._replies.remove(stream)
            raise
        self._replies.decide(write_back=write_back, force=force)
        if lazy and not cut_off:
            self._replies.remove(stream)
            runtime.update(self._plan.workspace, self._note._replace(state=runtime.DETACHED))
            return {"detached": True}
        if not cut_off:
            await self._shutdown.outlived()
        self._scope.cancel()
        return None

    async def _take_away(self, asking: int, *, lazy: bool, force: bool, write_back: bool) -> bool:
        """Take the mount away. Whether the connection has to end first, for others who have it."""
        with trio.move_on_after(_WAKING_PATIENCE):
            await self._watch_notifier.idle()
        if force:
            await self._shutdown.sync_kernel()
            return True
        if not lazy:
            await self._shutdown.require_idle(asking)
            if not await self._shutdown.wait_for_copies(self._replies.on_progress):
                await self._shutdown.sync_kernel()
                return True
        await self._shutdown.sync_kernel()
        await self._scanning.may_be_left()
        await self._shutdown.unmount(
            lazy=lazy,
            write_back=write_back and self._shutdown.writes_back,
            on_progress=self._replies.on_progress,
        )
        if not lazy:  # else programs go on in it, and their changes wait for the end
            self._scanning.stop()
        return False


def _first_of(error: BaseException) -> BaseException:
    """The error that a nursery's group is about; one that says what to do before any other."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first_of(part) for part in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, CkptfsError)), leaves[0])
