"""Starting the daemon: fork, leave the terminal, and tell the parent how it went.

The parent waits at a pipe for the protocol's lines: progress, then a result (the mount is
usable) or an error. It returns or raises accordingly, so `ckptfs mount` ends with the truth.
Nothing that does not survive a fork, LMDB above all, may be open when `launch` is called. What
the child does is given as a function; this module does not know mounts.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from ckptfs.control.protocol import (
    Answer,
    decode_answer,
    encode_error,
    encode_progress,
    encode_result,
)
from ckptfs.errors import CkptfsError, SystemRefused
from ckptfs.service.arguments import JsonObject

#: Progress is sent on at most this often, in seconds.
PROGRESS_INTERVAL = 0.1


class Announcer(Protocol):
    """By which a daemon says how its start goes."""

    is_ready: bool

    @property
    def progress(self) -> Callable[[JsonObject], None] | None:
        """Takes progress; None without a reader, since counting what lies ahead costs time."""

    def ready(self, record: JsonObject) -> None: ...


class PipeAnnouncer:
    """Announces through the pipe to the waiting parent, or to nothing if that is gone."""

    def __init__(self, descriptor: int, *, listening: bool) -> None:
        self._descriptor = descriptor
        self._last_progress = 0.0
        self.is_ready = False
        self.progress = self._tell if listening else None
        self._write(encode_progress({"phase": "start", "pid": os.getpid()}))

    def _tell(self, record: JsonObject) -> None:
        now = time.monotonic()
        if now - self._last_progress >= PROGRESS_INTERVAL:
            self._last_progress = now
            self._write(encode_progress(record))

    def ready(self, record: JsonObject) -> None:
        self.is_ready = True
        self._write(encode_result(record))
        self._close()

    def fail(self, error: CkptfsError) -> None:
        self._write(encode_error(error))
        self._close()

    def _write(self, line: bytes) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.write(self._descriptor, line)

    def _close(self) -> None:
        self._descriptor = _close(self._descriptor)


def launch(
    life: Callable[[Announcer], None],
    progress: Callable[[JsonObject], None] | None,
    *,
    ended: Callable[[], CkptfsError],
) -> JsonObject:
    """Run ``life`` in a daemon; return what it announced as ready, or raise why it did not.

    ``ended`` makes the error for a daemon that ended without a word (killed, out of memory).
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with open(reading, "rb") as lines:
        start = _Start(lines)
        try:
            child = os.fork()
            if child == 0:
                _become_daemon(life, writing, listening=progress is not None)  # never returns
            writing = _close(writing)
            os.waitpid(child, 0)
            return start.follow(progress, ended)
        except KeyboardInterrupt:
            _close(writing)  # or the pipe would never end
            raise KeyboardInterrupt(start.stop()) from None


def _close(descriptor: int) -> int:
    """Close it if it is open; returns one that is not."""
    if descriptor >= 0:
        with suppress(OSError):
            os.close(descriptor)
    return -1


class _Start:
    """What a daemon says of its start, as its parent hears it."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._pid = 0
        self._is_ready = False

    def follow(
        self, progress: Callable[[JsonObject], None] | None, ended: Callable[[], CkptfsError]
    ) -> JsonObject:
        for answer in self._answers():
            if answer.error is not None:
                raise answer.error
            if answer.result is not None:
                return answer.result
            if answer.progress is not None and progress is not None:
                progress(answer.progress)
        raise ended()

    def stop(self) -> str:
        """Pass an interrupt on: the daemon left our terminal, so it reached only us. Waits for the
        end of the pipe, that is until the daemon has cleaned up; returns what became of it."""
        signalled = self._terminate()
        for _ in self._answers():
            signalled = signalled or self._terminate()
        if self._is_ready:
            return "Stopped. It was mounted already, and is unmounted again."
        return "Stopped. Nothing was mounted; a store that was made for it is gone again."

    def _terminate(self) -> bool:
        if self._pid:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGTERM)
        return bool(self._pid)

    def _answers(self) -> Iterator[Answer]:
        for line in self._lines:
            answer = decode_answer(line)
            if answer.progress is not None:
                self._pid = answer.progress.get("pid", self._pid)
            self._is_ready = self._is_ready or answer.result is not None
            yield answer


def _become_daemon(life: Callable[[Announcer], None], writing: int, *, listening: bool) -> None:
    """In the first child: detach in the usual two steps, then live and end."""
    status = 1
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        _leave_everything_but(writing)
        status = _live(life, PipeAnnouncer(writing, listening=listening))
    finally:
        # No exit handlers and no flushing: those belong to the parent.
        os._exit(status)


def _live(life: Callable[[Announcer], None], announcer: PipeAnnouncer) -> int:
    try:
        life(announcer)
    except CkptfsError as error:
        announcer.fail(error)
        return error.exit_code
    except KeyboardInterrupt:
        announcer.fail(CkptfsError("The daemon was told to end before it was ready."))
        return 1
    except OSError as error:
        announcer.fail(SystemRefused("mount", error))
        return SystemRefused.exit_code
    except BaseException as error:  # noqa: BLE001 - the edge: the parent has to hear of it
        detail = traceback.format_exc() if os.environ.get("CKPTFS_DEBUG") else ""
        what = str(error) or type(error).__name__
        announcer.fail(
            CkptfsError(
                f"The daemon failed: {what}. It is not mounted.",
                hint=detail or "Its log may say more; `ckptfs status` names it.",
            )
        )
        return 1
    return 0


def _leave_everything_but(kept: int) -> None:
    """No working directory, terminal or inherited file is held by the daemon."""
    os.chdir("/")
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor != kept:
            with suppress(OSError):
                os.close(descriptor)
