"""What happens to a mounted workspace, told to everyone who watches its daemon.

Telling never waits: each watcher has a queue of bounded length, and one that does not read until it
overflows is cut off; the others notice nothing. On trio, as the daemon is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from ckptfs.control.protocol import encode_event, encode_result
from ckptfs.control.server import Connection
from ckptfs.errors import CkptfsError
from ckptfs.service.arguments import JsonObject
from ckptfs.service.verbs import events_of, find

#: How many events wait for a watcher before it counts as one that never reads.
QUEUE_MAX = 256


class Hub:
    """The watchers of one line of a workspace."""

    def __init__(self, path: Path, fork: str = "") -> None:
        """``fork`` is the name of the line, empty for the main one."""
        self._workspace = str(path)
        self.fork = fork
        self._watchers: dict[trio.MemorySendChannel[JsonObject], trio.CancelScope] = {}

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def publish(self, kind: str, data: JsonObject, checkpoint: int | None = None) -> None:
        if not self._watchers:
            return
        event: JsonObject = {
            "event": kind,
            "workspace": self._workspace,
            "fork": self.fork,
            "time_ns": time.time_ns(),
            "checkpoint": checkpoint,
            "data": data,
        }
        for channel, scope in list(self._watchers.items()):
            try:
                channel.send_nowait(event)
            except trio.WouldBlock:
                del self._watchers[channel]
                scope.cancel()

    def happened(self, op: str, result: JsonObject) -> None:
        """A verb is done; its declaration says which events that makes."""
        if self._watchers:
            for event in events_of(find(op), result):
                self.publish(*event)

    def failed(self, op: str, error: CkptfsError) -> None:
        self.publish("error", {**error.record(), "op": op})

    @contextmanager
    def _subscription(
        self, scope: trio.CancelScope
    ) -> Iterator[trio.MemoryReceiveChannel[JsonObject]]:
        sending, receiving = trio.open_memory_channel[JsonObject](QUEUE_MAX)
        self._watchers[sending] = scope
        try:
            yield receiving
        finally:
            self._watchers.pop(sending, None)

    async def follow(self, connection: Connection) -> None:
        """Tell one client everything from now on, until it hangs up or the mount ends."""
        with trio.CancelScope() as scope, self._subscription(scope) as events:
            await connection.send(encode_result({"watching": True}))
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_until_hung_up, connection, scope)
                    nursery.start_soon(_tell, connection, scope, events)
            finally:
                if not scope.cancel_called:
                    connection.last_word(encode_result({"watching": False}))


async def _tell(
    connection: Connection, scope: trio.CancelScope, events: trio.MemoryReceiveChannel[JsonObject]
) -> None:
    with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        async for event in events:
            await connection.send(encode_event(event))
    scope.cancel()


async def _until_hung_up(connection: Connection, scope: trio.CancelScope) -> None:
    """A watcher has nothing more to say; whatever comes is its end."""
    await connection.wait_for_anything()
    scope.cancel()
