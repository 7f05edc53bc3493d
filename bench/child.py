"""Run a function in a process of its own, with a time limit.

A call into a mount whose daemon hangs does not come back and cannot be interrupted, only killed.
So the harness itself never touches a mount: a child does, in a session of its own together with
the programs it starts, and that whole session can be killed.
"""

import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_DEATH_S = 5.0


class ChildFailed(Exception):
    """The function raised, or its process died; the text says how."""


class ChildTimedOut(ChildFailed):
    """The function did not finish in time, and was killed."""


def in_child(function: Callable[[], T], timeout_s: float) -> T:
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_the_child(function, writer)
    os.close(writer)
    try:
        answer = _read_all(reader, time.monotonic() + timeout_s)
    finally:
        os.close(reader)
        _end_session(pid)
    if not answer:
        raise ChildFailed("the process that did the work died")
    worked, value = pickle.loads(answer)
    if not worked:
        raise ChildFailed(value)
    result: T = value
    return result


def _be_the_child(function: Callable[[], object], writer: int) -> None:
    """Never returns: whatever stands on the parent's stack is none of the child's business."""
    try:
        os.setsid()
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        answer: tuple[bool, object]
        try:
            answer = (True, function())
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}")
        with os.fdopen(writer, "wb") as out:
            pickle.dump(answer, out)
    finally:
        os._exit(0)


def _read_all(fd: int, deadline: float) -> bytes:
    answer = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise ChildTimedOut("did not finish in time")
        part = os.read(fd, 1 << 16)
        if not part:
            return answer
        answer += part


def _end_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # The child has not come to its setsid yet, or is done and gone.
        os.kill(pid, signal.SIGKILL)
    # sync(2) on a hanging mount cannot even be killed; the child ends when the mount does.
    deadline = time.monotonic() + _DEATH_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
