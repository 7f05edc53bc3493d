"""The reader process: one verb that only reads, on what the daemon committed last.

A process of its own, begun by `reading` with a socket and the daemon's descriptor of the store's
directory. It writes nothing and takes no lock, so it may be ended at any instruction; it ends with
the daemon. The same functions carry out the verb as in the daemon. It imports neither trio nor
anything of FUSE: most of the time that a short verb takes here is the start.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import traceback
from base64 import b64encode
from pathlib import Path

from ckptfs.control.protocol import encode_failure, encode_progress, encode_result
from ckptfs.errors import CkptfsError, ControlError
from ckptfs.fs import Filesystem
from ckptfs.service import Service, service
from ckptfs.service.arguments import JsonObject
from ckptfs.store import Store

#: Those whom the daemon serves come first.
_NICE = 5
_PR_SET_PDEATHSIG = 1


def main(socket_fd: int, directory_fd: int, daemon: int) -> None:
    """Carry out the verb that the socket brings, and answer as the daemon would."""
    _end_with(daemon)
    os.nice(_NICE)
    tune_collector()
    with socket.socket(fileno=socket_fd) as connection:
        with connection.makefile("rb") as lines:
            asked = json.loads(lines.readline())
        connection.sendall(_answer(asked, directory_fd, connection))


def tune_collector() -> None:
    """What a verb reads it keeps until its answer, so a look for cycles among it finds none: that
    took a fifth of a `log` of many checkpoints."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 400)


def _end_with(daemon: int) -> None:
    """End when the process that began this one ends, however it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != daemon:
        sys.exit(1)  # it ended before


def _answer(asked: JsonObject, directory_fd: int, connection: socket.socket) -> bytes:
    def tell(progress: JsonObject) -> None:
        connection.sendall(encode_progress(progress))

    op, before = asked["op"], asked["before"]
    try:
        store = Store.open_snapshot(Path(asked["store"]), directory_fd)
        if asked["line"] not in store.heads:
            verb = op.replace("_", " ")
            raise ControlError(
                f"Cannot {verb}: that fork was deleted meanwhile. Nothing was changed."
            )
        fs = Filesystem(store, line=asked["line"])
        if asked["plans"]:
            for part in service.plan_of(Service(fs), op, asked["args"]):
                tell({"part": b64encode(part).decode()})
            return encode_result({})
        if before is not None:
            return encode_result(service.changed_names(Service(fs), before))
        on_progress, served = tell if asked["progress"] else None, Service(fs)
        result = service.perform(served, op, asked["args"], on_progress)
        if served.new_counts:
            tell({"counts": served.new_counts})
        return encode_result(result)
    except Exception as error:  # noqa: BLE001 - the daemon has the answer whatever happens
        if not isinstance(error, CkptfsError | OSError):
            traceback.print_exc()
        remark = "Nothing was changed." if before is None else "The restore stands."
        return encode_failure(op, error, remark)
