"""Holding a workspace still while checkpoints of several are taken as one.

A client asks for `freeze`, and from the answer on until `thaw` the daemon serves nobody else: no
program reads or writes in the workspace, nobody else's request is heard. It is one thread, so
holding it still is waiting in it. The wait has a deadline, after which the daemon goes on by itself
and hangs up; so whoever got an answer to a save knows that the workspace stood still until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ckptfs.control.protocol import JsonObject, encode_error, encode_result
from ckptfs.control.server import Connection
from ckptfs.errors import CkptfsError, ControlError

#: Seconds that a workspace stands still at most, whatever a client asks for.
HOLD_MAX = 2.0


def hold(
    connection: Connection, seconds: float, perform: Callable[[str, JsonObject], JsonObject]
) -> None:
    """Stand still for one client, which may save meanwhile; the caller's loop does nothing else."""
    deadline = time.monotonic() + min(seconds, HOLD_MAX)
    connection.send_now(encode_result({"frozen": True}), deadline)
    while (request := connection.request_now(deadline)) is not None:
        if request.op == "thaw":
            connection.send_now(encode_result({"frozen": False}), deadline)
            return
        try:
            if request.op != "save":
                raise ControlError(f"Cannot {request.op} while the workspace is held still.")
            answer = encode_result(perform("save", request.args))
        except CkptfsError as error:
            answer = encode_error(error)
        connection.send_now(answer, deadline)
