"""The time in which the workspace is mounted: the event loop, its requests and its signals.

Owns trio in the daemon. FUSE requests are answered by `ckptfs.fuse`, questions on the control
socket here, a verb at a time, between two FUSE requests. It ends when the mount ends, by
`ckptfs umount`, umount by hand, or a signal. How it ends is in `shutdown`, what comes
before and after in `lifecycle`.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import TypeVar

import trio

from ckptfs import fuse, history, interrupts
from ckptfs.control import runtime, server
from ckptfs.control.protocol import Request, encode_error, encode_result
from ckptfs.control.server import Connection, ReplyStream
from ckptfs.daemon import mounts, planning, sandbox
from ckptfs.daemon.forks import NamedForks, Wish
from ckptfs.daemon.housekeeping import Housekeeping
from ckptfs.daemon.lines import Line, Lines, Shared
from ckptfs.daemon.preflight import Plan
from ckptfs.daemon.reading import Client, Readers, turn
from ckptfs.daemon.scanning import Scanning, not_brought_in
from ckptfs.daemon.scratch import Scratches
from ckptfs.daemon.shutdown import Shutdown
from ckptfs.daemon.slices import Slices
from ckptfs.errors import CkptfsError, ControlError, Interrupted, SettingInvalid
from ckptfs.fs import Filesystem
from ckptfs.history import Cause, forks
from ckptfs.history.auto import parse_policy
from ckptfs.history.diff import compare
from ckptfs.interrupts import Steps
from ckptfs.model import MAIN_LINE, Ino
from ckptfs.service import Service, service, verbs, wire
from ckptfs.service.arguments import JsonObject, OnProgress
from ckptfs.service.verbs import Verb
from ckptfs.sync import ScanBehind

log = logging.getLogger(__name__)

T = TypeVar("T")

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
        self._slices = Slices(lambda: service.fs.store.commits)
        options, policy = mount_options(plan), parse_policy(plan.auto)
        shared = Shared(plan.workspace, options, policy, self._slices)
        self._lines = Lines(service, shared)
        self._main = self._lines.main
        self._scanning = Scanning(service, scan, self._slices)
        #: Verbs that make another checkpoint the head, and the steps of merges, follow each other.
        self._restoring = trio.Lock()
        #: So do those that make, rename and delete forks.
        self._forking = trio.Lock()
        self._housekeeping = Housekeeping(service, self._lines, self._slices)
        service.free_later = self._housekeeping.notify
        self._scratches = Scratches(self._lines, plan.workspace)
        self._forks = NamedForks(self._lines, plan.workspace)
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
                self._lines.nursery = nursery
                handed = self._lines.mount_connections.handed
                nursery.start_soon(server.serve, listener, self._answer, handed)
                nursery.start_soon(self._scan)
                nursery.start_soon(self._after_scan, self._housekeeping.run)
                nursery.start_soon(self._after_scan, self._housekeeping.compress)
                nursery.start_soon(self._after_scan, self._housekeeping.give_back)
                nursery.start_soon(self._main.watch_notifier.run)
                with self._scope:
                    await self._serve_files(lambda: self._started(started, nursery))
                self._lines.close()
                nursery.cancel_scope.cancel()

    def _started(self, started: Callable[[], None], nursery: trio.Nursery) -> None:
        self._shutdown.mounted()
        nursery.start_soon(self._shutdown.watch)
        nursery.start_soon(self._after_scan, self._finish_purge)
        self._is_mounted.set()
        mounts.clear_forks(self._plan.workspace.store)
        if self._service.fs.store.forks:
            nursery.start_soon(self._mount_forks, started)
        else:
            started()

    async def _mount_forks(self, started: Callable[[], None]) -> None:
        """Who mounted the workspace finds the forks where they were."""
        self._scratches.clear_leftovers()
        if self._plan.new_store:
            self._forks.forget_places()
        await self._forks.mount_all()
        started()

    async def _scan(self) -> None:
        """End the scan that goes on behind the mount; it ends the mount if it fails."""
        await self._is_mounted.wait()
        try:
            await self._scanning.run()
        except OSError as error:
            self._failure = not_brought_in(self._plan.workspace, error)
            self._scope.cancel()

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
                history=self._main.history,
                guard=self._main.auto,
                gate=self._scanning,
                connect=self._lines.mount_connections.of(MAIN_LINE),
                committed=self._housekeeping.notify,
                report=self._note_served,
                connections=self._lines.connections,
                forks=self._forks.points,
            )
        except Exception as error:  # noqa: BLE001 - kept for the caller, outside of the nursery's group
            self._failure = error

    def forks_not_mounted(self) -> list[JsonObject]:
        """Forks that could not be mounted, and why."""
        return self._forks.not_mounted()

    def _note_served(self, served: fuse.ServedBy) -> None:
        self.served = served

    async def _obey(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            log.info("ending on %s", signal.Signals(number).name)
            await self._shutdown.sync_kernel()
            await self._lines.sync_forks()
            self._scope.cancel()

    async def _answer(self, request: Request, connection: Connection) -> JsonObject | bytes | None:
        peer = connection.peer
        line = self._lines.find(peer.line if peer.through_mount else request.line)
        request = sandbox.admit(request, peer)._replace(line=line.number)
        try:
            result = await self._perform(line, request, connection)
        except Interrupted as stopped:
            log.info("%s ended before its time, with its client: %s", request.op, stopped)
            raise
        except (CkptfsError, OSError) as error:
            self._lines.require(line)  # that it has ended is why
            if isinstance(error, CkptfsError):
                line.hub.failed(request.op, error)
            raise
        if isinstance(result, dict):
            line.hub.happened(request.op, result)
        return result

    async def _perform(
        self, line: Line, request: Request, connection: Connection
    ) -> JsonObject | bytes | None:
        verb = verbs.find(request.op)
        values = verb.decode(request.args)
        if verb.module == verbs.DAEMON:
            own: Callable[..., Awaitable[JsonObject | None]] = getattr(self, f"_do_{verb.name}")
            return await own(line, request, connection, **values)
        await self._scanning.ended()
        if verb.changes_files(values):
            line.require_writable(verb.name)
        if verb.needs_sync:
            await self._sync(line, verb, values)
        cause = service.caller_of(line.service, request.args)
        on_progress = connection.send_progress if request.progress else None
        if verb.in_slices and not verb.reads(values):
            steps = service.steps(line.service, verb, values, cause, on_progress)
            return await self._run_in_slices(line, connection, cause, steps)
        run = partial(service.run, line.service, verb, values, cause, on_progress)
        if verb.in_thread:
            return await self._run_beside(connection, run)
        if verb.reads(values):
            read = partial(self._read, verb, request, connection, run)
            return await self._announced(line, read)
        if verb.is_planned:
            return await self._plan_and_carry_out(line, verb, values, request, connection, run)
        if not verb.moves_head:
            return await self._announced(line, partial(self._carry_out, connection, run))
        # Without what undoes it they could not be found afterwards.
        names_later = values.get("names") and values.get("backup") is not False
        asked = {**values, "names": False} if names_later else values
        run = partial(service.run, line.service, verb, asked, cause, on_progress)
        # With the names, so that those who watch hear of restores in their order.
        async with turn(self._restoring.acquire, self._restoring.release, connection.has_gone):
            self._lines.require(line)
            try:
                await self._prepare_restore(line, verb, values, connection, on_progress)
                done = await self._announced(line, partial(self._carry_out, connection, run))
            finally:
                history.drop_prepared(line.service.fs)
            if names_later:
                names = partial(self._find_names, line, verb, request, connection, done["before"])
                done |= await self._changed_names(verb, names)
        return done

    async def _announced(self, line: Line, do: Callable[[], Awaitable[T]]) -> T:
        """Do something, and have the kernel hear what it changed, also if it fails."""
        self._lines.require(line)
        before, nameless = line.service.fs.head, set(line.service.fs.unlinked)
        try:
            return await do()
        finally:
            self._wake_housekeeping()
            if not line.service.fs.store.failed:
                await self._lines.announce(line, before, nameless)

    async def _carry_out(
        self, connection: Connection, run: Callable[[], JsonObject], limit_s: float = inf
    ) -> JsonObject:
        """In one step, between two requests; `OverBudget` if reading takes longer than so."""
        with interrupts.watching(connection.has_gone), interrupts.limited(limit_s):
            return run()

    async def _plan_and_carry_out(
        self,
        line: Line,
        verb: Verb,
        values: JsonObject,
        request: Request,
        connection: Connection,
        run: Callable[[], JsonObject],
    ) -> JsonObject:
        """What a verb is to do is decided here if that does not take long, else in a process while
        programs go on; so they wait only while it is done."""

        async def carry_out(limit_s: float) -> JsonObject:
            async with turn(self._restoring.acquire, self._restoring.release, connection.has_gone):
                do = partial(self._carry_out, connection, run, limit_s)
                return await self._announced(line, do)

        client = Client(connection.has_gone)
        plan = partial(self._readers.plan, verb, request, client)
        sync = partial(self._sync, line, verb, values)
        async with turn(line.planning.acquire, line.planning.release, connection.has_gone):
            work = planning.Work(verb.name, carry_out, plan, sync)
            return await planning.perform(line.service.fs, work, _READING_S)

    def _wake_housekeeping(self) -> None:
        store = self._service.fs.store
        # What is dirty is in the journal only, and on a quiet mount no request comes that a commit
        # would follow; or one has failed, and the next ends the mount. What is hidden holds space.
        if store.dirty or store.epoch_tree.hidden:
            self._housekeeping.notify()

    async def _sync(self, line: Line, verb: Verb, values: JsonObject) -> None:
        """Have the kernel send what it still keeps to itself of what programs wrote: in the line,
        and in every other that the verb names."""
        await line.sync()
        for other in self._lines:
            if other is not line and verb.names(other.name or forks.MAIN, values):
                await other.sync()

    async def _read(
        self, verb: Verb, request: Request, connection: Connection, run: Callable[[], JsonObject]
    ) -> JsonObject | bytes:
        """Carry out a verb that only reads: here if that does not take long, else in a process."""
        if not verb.in_process:
            limit = interrupts.limited(_READING_S)
            with suppress(interrupts.OverBudget), interrupts.watching(connection.has_gone), limit:
                return run()
        fs = self._service.fs
        fs.flush()
        on_progress = connection.send_progress if request.progress else None
        keep = partial(compare.keep_counts, fs, forgotten=compare.times_forgotten(fs.store))
        client = Client(connection.has_gone, on_progress, keep)
        return await self._readers.perform(verb, request, client)

    async def _changed_names(
        self, verb: Verb, names: Callable[[], Awaitable[JsonObject]]
    ) -> JsonObject:
        """The names that a restore changed. It is done, and those who watch are to hear of it,
        whatever keeps the names from being found."""
        try:
            return await names()
        except Exception as error:
            level = logging.INFO if isinstance(error, Interrupted) else logging.WARNING
            trace = None if isinstance(error, CkptfsError | OSError) else error
            words = "%s is done, but what it changed is not told: %s"
            log.log(level, words, verb.name, error, exc_info=trace)
            return wire.unknown_paths()

    async def _find_names(
        self,
        line: Line,
        verb: Verb,
        request: Request,
        connection: Connection,
        before: int | None,
    ) -> JsonObject:
        """To find them takes longer than the step itself, and so it is done after it, beside the
        requests, if it takes long."""
        self._lines.require(line)
        run = partial(service.changed_names, line.service, before)
        with suppress(interrupts.OverBudget):
            return await self._carry_out(connection, run, _READING_S)
        assert before is not None  # else there is nothing to read
        return await self._readers.names(verb, request, Client(connection.has_gone), before)

    async def _prepare_restore(
        self,
        line: Line,
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

        fs = line.service.fs
        with interrupts.watching(connection.has_gone), interrupts.stoppable():
            target = service.head_after(line.service, verb, values)
        if target is not None:
            steps = history.preparing(fs, target, watch)
            files = await self._slices.run(steps, connection.has_gone, in_turn=False)
            if files:
                await line.invalidate(files, (), files)
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
        self, line: Line, connection: Connection, cause: Cause, steps: Steps[JsonObject]
    ) -> JsonObject:
        """Requests and other verbs are served between two slices, each of which leaves everything
        whole; what it changed is announced after it."""
        acting = partial(line.service.acting, cause)
        announce = partial(self._announce_slice, line)
        steps = interrupts.as_long_as(lambda: self._lines.get(line.number) is line, steps)
        self._housekeeping.give_up()
        try:
            return await self._slices.run(
                steps, connection.has_gone, around=acting, between=announce
            )
        finally:
            self._wake_housekeeping()
            await announce()

    async def _announce_slice(self, line: Line) -> None:
        fs = line.service.fs
        if line.service.unannounced and not fs.store.failed:
            head = fs.head if fs.line in fs.store.heads else self._service.fs.head
            await self._lines.announce(line, head, set())

    async def _finish_purge(self) -> None:
        """Go on with a purge that the end of the last daemon cut short."""
        if not self._service.owes_purge():
            return
        log.info("a purge was cut short: going on with it")
        await self._main.sync()  # before its first request the kernel takes no notifications
        self._housekeeping.give_up()
        announce = partial(self._announce_slice, self._main)
        try:
            await self._slices.run(self._service.finishing_purge(), between=announce)
            await announce()
            log.info("the purge is done")
        except (CkptfsError, OSError) as error:
            log.warning("a purge that was cut short could not be ended: %s", error)

    # -- the daemon's own verbs --------------------------------------------------------------------

    async def _do_watch(self, line: Line, _: Request, connection: Connection) -> None:
        await line.hub.follow(connection)

    async def _do_sync(self, line: Line, *_: object) -> JsonObject:
        await line.sync()
        line.service.fs.commit()
        return {}

    async def _do_freeze(
        self, line: Line, _: Request, connection: Connection, *, seconds: float | None
    ) -> None:
        """Stand still for a client that takes checkpoints of several workspaces as one."""
        await self._scanning.ended()
        await line.sync()
        saved: list[JsonObject] = []

        def save(wishes: JsonObject) -> JsonObject:
            saved.append(service.perform(line.service, "save", wishes))
            return saved[-1]

        server.hold(connection, seconds, save)
        for record in saved:
            line.hub.happened("save", record)

    async def _do_thaw(self, *_: object) -> JsonObject:
        raise ControlError("Cannot thaw: the workspace is not held still. Nothing was changed.")

    async def _do_status(self, line: Line, *_: object) -> JsonObject:
        figures = line.service.figures()._asdict()
        room = line.service.shortage(self._housekeeping.given_bytes())
        return {
            **self._note._asdict(),
            "state": runtime.SERVING,  # the note is of the start
            "workspace": str(line.path),
            "store": str(self._plan.workspace.store),
            "log": str(self._plan.workspace.log),
            **figures,
            "fork": line.name,
            "fork_of": str(self._plan.workspace.path) if line.name else "",
            "fork_names": [fork.name for fork in self._forks.all()],
            "forks_not_mounted": self.forks_not_mounted(),
            "unseen": line.auto.unseen,
            "expired_for_room": self._main.auto.expired_for_room,
            "short_of_room": room is not None,
            "room": None if room is None else room._asdict(),
            "scan": self._scanning.status(),
            "read_only": mounts.is_read_only(line.path),
            **self.served._asdict(),
        }

    async def _do_harness(self, *_: object, pid: int) -> JsonObject:
        """Take a process for a harness: each command that it starts is a step."""
        if not self._lines.declare(pid):
            raise ControlError(f"Cannot see process {pid}. Nothing was changed.")
        return {"pid": pid}

    async def _do_scratch(
        self, line: Line, request: Request, connection: Connection, *, start: str
    ) -> JsonObject:
        """A fork of now, or of a checkpoint, for a command to run in."""
        cause = await self._about_to_fork(line, request)
        made = await self._scratches.begin(line, start, cause, connection.peer_pid)
        return {"name": made.name, "path": str(made.path), "base": made.base}

    async def _about_to_fork(self, line: Line, request: Request) -> Cause:
        await self._scanning.ended()
        line.require_writable("fork")
        await line.sync()
        return service.caller_of(line.service, request.args)

    async def _do_scratch_end(
        self, line: Line, request: Request, _: Connection, *, name: str, keep: bool
    ) -> JsonObject:
        cause = service.caller_of(line.service, request.args)
        last = await self._scratches.end(name, cause, keep=keep)
        self._wake_housekeeping()
        return {"name": name, "checkpoint": None if last is None else last.id}

    async def _do_fork(
        self,
        line: Line,
        request: Request,
        _: Connection,
        *,
        name: str,
        start: str,
        at: str,
        without: list[str],
        count: int,
    ) -> JsonObject:
        cause = await self._about_to_fork(line, request)
        async with self._forking:
            made = await self._forks.create(line, Wish(name, start, at, without, count), cause)
        self._wake_housekeeping()
        return {"forks": [self._fork_record(each) for each in made]}

    def _fork_record(self, line: Line) -> JsonObject:
        store = line.service.fs.store
        fork = store.forks[line.number]
        return wire.fork(fork, forks.base_of(store, fork), str(line.path))

    async def _do_fork_delete(
        self, line: Line, request: Request, connection: Connection, *, name: str, force: bool
    ) -> JsonObject:
        cause = service.caller_of(line.service, request.args)
        async with self._forking:
            last, cut_off = await self._forks.delete(
                name, cause, force=force, asking=connection.peer_pid
            )
        self._wake_housekeeping()
        return {"name": name, "checkpoint": last.id, "cut_off": cut_off}

    async def _do_fork_rename(
        self, line: Line, _: Request, connection: Connection, *, name: str, new: str
    ) -> JsonObject:
        async with self._forking:
            moved = await self._forks.rename(name, new, asking=connection.peer_pid)
        return {"name": new, "was": name, "path": "" if moved is None else str(moved.path)}

    async def _do_umount(
        self,
        line: Line,
        request: Request,
        connection: Connection,
        *,
        lazy: bool,
        force: bool,
        write_back: bool,
    ) -> JsonObject | None:
        """Unmount; the answer comes once the lower directory is current, from `lifecycle`."""
        if line.name:
            raise ControlError(
                f"Cannot unmount {line.path}: it is the fork {line.name}. Nothing was changed.",
                hint=f"To end it: ckptfs fork --delete {line.name}",
            )
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
            for line in self._lines:
                await line.watch_notifier.idle()
        on_progress = self._replies.on_progress
        if not lazy and not force:
            await self._shutdown.require_idle(asking)
            await self._forks.require_idle(asking)
            force = not await self._shutdown.wait_for_copies(on_progress)
            if not force:
                self._shutdown.cut_off = await self._forks.let_go(asking, on_progress)
        await self._lines.sync_forks()
        await self._shutdown.sync_kernel()
        if force:
            return True
        await self._scanning.may_be_left()
        unmount = partial(
            self._shutdown.unmount,
            write_back=write_back and self._shutdown.writes_back,
            on_progress=on_progress,
        )
        async with self._forking:
            if lazy:  # programs go on in it, and in forks; their changes wait for the end
                path = self._plan.workspace.path
                await self._forks.detach_with(path, partial(unmount, lazy=True))
                return False
            await self._forks.unmount_all()
            try:
                await unmount(lazy=False)
            except BaseException:
                await self._forks.mount_all()
                raise
        self._scanning.stop()
        return False


def _first_of(error: BaseException) -> BaseException:
    """The error that a nursery's group is about; one that says what to do before any other."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first_of(part) for part in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, CkptfsError)), leaves[0])
