"""What happens to a workspace, as events: to handlers of a service, and as a stream from a daemon.

A handler hears what its own service does, in the thread that does it and before the call returns.
A stream hears what anybody does to a mounted workspace: this process, another one, or the daemon.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, ClassVar

from ckptfs.api.values import moment
from ckptfs.control.client import Client
from ckptfs.errors import UsageError
from ckptfs.service.arguments import JsonObject

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointEvent:
    """Something that happened. ``kind`` is one of the constants."""

    INITIALIZED: ClassVar[str] = "initialized"
    CHECKPOINT_CREATED: ClassVar[str] = "checkpoint_created"
    CHECKPOINT_RESTORED: ClassVar[str] = "checkpoint_restored"
    CHECKPOINTS_PRUNED: ClassVar[str] = "checkpoints_pruned"
    ERROR: ClassVar[str] = "error"

    kind: str
    workspace: str
    timestamp: datetime
    #: The checkpoint that it is about, if it is about one.
    checkpoint_id: str | None = None
    #: What else is known: the record of the checkpoint or restore, the ids of pruned checkpoints
    #: (``ids``), the error (``kind``, ``message``, ``hint``).
    data: dict[str, Any] = field(default_factory=dict)


#: The kinds of events that there are.
EVENTS = (
    CheckpointEvent.INITIALIZED,
    CheckpointEvent.CHECKPOINT_CREATED,
    CheckpointEvent.CHECKPOINT_RESTORED,
    CheckpointEvent.CHECKPOINTS_PRUNED,
    CheckpointEvent.ERROR,
)

Handler = Callable[[CheckpointEvent], object]


def event_of(record: JsonObject) -> CheckpointEvent:
    found = record.get("checkpoint")
    return CheckpointEvent(
        kind=record["event"],
        workspace=record["workspace"],
        timestamp=moment(record["time_ns"]),
        checkpoint_id=None if found is None else str(found),
        data=record["data"],
    )


class Handlers:
    """Who wants to hear what. A handler that fails is logged; what it heard of has happened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[str, list[Handler]] = {kind: [] for kind in EVENTS}

    def add(self, kind: str, handler: Handler) -> Callable[[], None]:
        """Returns the function that takes the handler away again."""
        if kind not in self._wanted:
            raise UsageError(f"There is no event {kind!r}.", hint=f"Events: {', '.join(EVENTS)}.")
        with self._lock:
            self._wanted[kind].append(handler)

        def remove() -> None:
            with self._lock:
                if handler in self._wanted[kind]:
                    self._wanted[kind].remove(handler)

        return remove

    def emit(self, event: CheckpointEvent) -> None:
        with self._lock:
            listening = list(self._wanted[event.kind])
        for handler in listening:
            try:
                handler(event)
            except Exception:
                log.exception("a handler of %s failed", event.kind)


class EventStream:
    """Events of a mounted workspace, of whichever process, as an iterator that waits for the next.

    It ends when the workspace is unmounted or `close` is called, also from another thread. A reader
    that falls behind by more than the daemon keeps for it is cut off: `DaemonGone` is raised.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._events = client.watch()

    def __iter__(self) -> Iterator[CheckpointEvent]:
        return self

    def __next__(self) -> CheckpointEvent:
        return event_of(next(self._events))

    def close(self) -> None:
        self._client.hang_up()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()
