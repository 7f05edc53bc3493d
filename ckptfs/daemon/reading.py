"""Verbs that only read, beside the requests: each in a process of its own (`reader`).

A verb that reads much would keep every request of the workspace waiting, since the tree belongs to
one thread. So the daemon commits, holds the snapshot, and has a process carry out the verb on it,
which may take as long as it likes. What is freed meanwhile is used again only afterwards.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import trio

import ckptfs
from ckptfs.control.protocol import Request, decode_answer, is_result
from ckptfs.errors import Interrupted, ReaderEnded
from ckptfs.history.diff.compare import NewCounts
from ckptfs.service.arguments import JsonObject, OnProgress
from ckptfs.service.verbs import Verb
from ckptfs.store import Store

log = logging.getLogger(__name__)

#: Processes at once: of verbs that take long, of those that are moved here, and of those that plan.
#: Others wait.
_LONG_MAX = 2
_MOVED_MAX = 4
_PLANS_MAX = 2
#: How often to look whether the client is still there, in seconds.
_LOOK_S = 0.05
#: How long to wait for a process that was killed.
_END_MS = 1_000

#: Of what a process says of its failures.
_COMPLAINTS_MAX = 8_192

_PACKAGE = Path(ckptfs.__file__).parent

# This very package, whatever the environment says; everything else from where Python has it, and
# nothing from the current directory (-P).
_START = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
_, package, *numbers = sys.argv
spec = spec_from_file_location("ckptfs", package + "/__init__.py")
sys.modules["ckptfs"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["ckptfs"])
from ckptfs.daemon.reader import main
main(*map(int, numbers))
"""


class Client(NamedTuple):
    """For whom a verb is carried out."""

    has_gone: Callable[[], bool]
    on_progress: OnProgress | None = None
    #: Called with what was counted of checkpoints on the way.
    keep_counts: Callable[[NewCounts], None] | None = None

    def hear(self, progress: JsonObject) -> None:
        """Take in what a process says before its result."""
        counts = progress.get("counts")
        if counts is None:
            if self.on_progress is not None:
                self.on_progress(progress)
        elif self.keep_counts is not None:
            self.keep_counts(counts)


class Readers:
    """The reader processes of a workspace."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._long = trio.CapacityLimiter(_LONG_MAX)
        self._moved = trio.CapacityLimiter(_MOVED_MAX)
        self._plans = trio.CapacityLimiter(_PLANS_MAX)
        #: One restore comes after the other, and so do their names.
        self._names = trio.CapacityLimiter(1)

    async def plan(
        self, verb: Verb, request: Request, client: Client, add: Callable[[bytes], None]
    ) -> None:
        """Have it decided what a verb is to do; ``add`` is given the parts of the plan. Raises what
        `perform` does."""

        def take(record: JsonObject) -> None:
            add(b64decode(record["part"]))

        planner = client._replace(on_progress=take)
        await self._perform(self._plans, verb, request, planner, plans=True)

    async def names(self, verb: Verb, request: Request, client: Client, before: int) -> JsonObject:
        """The names that a restore changed, as `service.changed_names` has them. Raises what
        `perform` does."""
        line = await self._perform(self._names, verb, request, client, before=before)
        return decode_answer(line).result or {}

    async def perform(self, verb: Verb, request: Request, client: Client) -> bytes:
        """Carry out a verb that only reads; the line of its result. Raises its error, `Interrupted`
        once the client has gone, and `ReaderEnded`. Everything must be flushed."""
        limiter = self._long if verb.in_process else self._moved
        return await self._perform(limiter, verb, request, client)

    async def _perform(
        self,
        limiter: trio.CapacityLimiter,
        verb: Verb,
        request: Request,
        client: Client,
        *,
        plans: bool = False,
        before: int | None = None,
    ) -> bytes:
        owner = object()
        acquire = partial(limiter.acquire_on_behalf_of, owner)
        release = partial(limiter.release_on_behalf_of, owner)
        async with turn(acquire, release, client.has_gone):
            if before is None:  # others wait for the names of a restore
                await self._let_copy_pass(client)
            self._store.commit()
            with self._store.hold_snapshot():
                begun = _process(request.op, self._store.directory_fd)
                async with begun as (process, connection, complaints):
                    record = {
                        "store": os.fspath(self._store.path),
                        "op": request.op,
                        "args": request.args,
                        "line": request.line,
                        "progress": client.on_progress is not None,
                        "plans": plans,
                        "before": before,
                    }
                    await _send(connection, json.dumps(record).encode() + b"\n")
                    line = await _last_line(connection, client)
                    if not line:
                        await _ended(process)  # it is on its way; how it ended is to be told
                        raise ReaderEnded(request.op, _words(process.returncode, complaints))
        if is_result(line):
            return line
        answer = decode_answer(line)
        raise answer.error or ReaderEnded(request.op, "gave no answer")

    async def _let_copy_pass(self, client: Client) -> None:
        """If readers follow readers, no copy of the data file can take its place: for a moment one
        that waits goes before the next of them."""
        while self._store.awaits_readers:
            if client.has_gone():
                raise Interrupted
            await trio.sleep(_LOOK_S)


@asynccontextmanager
async def turn(
    acquire: Callable[[], Awaitable[None]],
    release: Callable[[], None],
    has_gone: Callable[[], bool],
) -> AsyncIterator[None]:
    """Hold what one waits for in a row, as long as the client is there."""
    has_turn = False

    async def watch(waiting: trio.CancelScope) -> None:
        await trio.sleep(_LOOK_S)
        while not has_gone():  # noqa: ASYNC110 (nobody says so)
            await trio.sleep(_LOOK_S)
        waiting.cancel()

    try:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as waiting:
                nursery.start_soon(watch, waiting)
                await acquire()
                has_turn = True
            nursery.cancel_scope.cancel()
        if not has_turn:
            raise Interrupted
        yield
    finally:
        if has_turn:
            release()


@asynccontextmanager
async def _process(
    op: str, directory_fd: int
) -> AsyncIterator[tuple[subprocess.Popen[bytes], trio.SocketStream, BinaryIO]]:
    """A reader process, the connection to it, and what it says of its failures, all of which end
    here."""
    with ExitStack() as ends:
        try:
            memory = os.memfd_create("ckptfs-reader")
            complaints = ends.enter_context(os.fdopen(memory, "rb"))
            process, ours = _start(directory_fd, complaints)
        except OSError as error:  # no descriptor, no memory, no process, or no Python any more
            reason = f"could not be started ({error.strerror})"
            raise ReaderEnded(op, reason, started=False) from error
        connection = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        try:
            yield process, connection, complaints
        finally:
            connection.socket.close()  # without a wait, which a cancellation would end
            await _end(process)
            if words := _read(complaints):
                log.warning("a reader process: %s", words)


def _start(
    directory_fd: int, complaints: BinaryIO
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Everything that is open here is closed there, the device of the mount above all. Not in a
    thread: the process ends with the thread that began it."""
    ours, theirs = socket.socketpair()
    numbers = (theirs.fileno(), directory_fd, os.getpid())
    words = [sys.executable, "-P", "-c", _START, os.fspath(_PACKAGE), *map(str, numbers)]
    with theirs:
        try:
            process = subprocess.Popen(
                words,
                pass_fds=numbers[:2],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


async def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, which has nothing to lose; it may have ended already. One in the middle of a
    read from a disk that hangs ends when the disk answers, and is not waited for."""
    if process.poll() is None:
        process.kill()
    with trio.CancelScope(shield=True):
        await _ended(process)


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Return when a process has ended, or does not seem to."""
    for _ in range(_END_MS):
        if process.poll() is not None:
            return
        await trio.sleep(0.001)


def _read(complaints: BinaryIO) -> str:
    return os.pread(complaints.fileno(), _COMPLAINTS_MAX, 0).decode(errors="replace")


async def _send(connection: trio.SocketStream, line: bytes) -> None:
    try:
        await connection.send_all(line)
    except trio.BrokenResourceError:
        return  # it ended; that no answer comes says so


async def _last_line(connection: trio.SocketStream, client: Client) -> bytes:
    """The line behind those of progress; empty if the process ended before."""
    parts: list[bytes] = []
    while True:
        more = await _receive(connection, client)
        if not more:
            return b""
        *lines, rest = more.split(b"\n")
        for line in lines:
            whole = b"".join((*parts, line, b"\n"))
            parts = []
            if is_result(whole) or (progress := decode_answer(whole).progress) is None:
                return whole
            client.hear(progress)
        parts.append(rest)


async def _receive(connection: trio.SocketStream, client: Client) -> bytes:
    """What comes next, as long as the client is there."""
    while True:
        with trio.move_on_after(_LOOK_S):
            try:
                return bytes(await connection.receive_some())
            except trio.BrokenResourceError:
                return b""
        if client.has_gone():
            raise Interrupted


def _words(status: int | None, complaints: BinaryIO) -> str:
    """How a process ended, and what it said last."""
    if status is None:
        return "does not answer any more, nor end"
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"{-status}"
        how = "was killed, perhaps for want of memory" if name == "SIGKILL" else "crashed"
        return f"{how} ({name})"
    last = _read(complaints).strip().rpartition("\n")[2]
    return f"ended with status {status}" + (f" ({last})" if last else "")
