"""How a service asks its workspace: finding it, a session for each question, telling what happened.

Every error that leaves is one of ckptfs, and whoever wants to hear of errors has heard of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ckptfs.api import place
from ckptfs.api.events import CheckpointEvent, Handlers
from ckptfs.api.values import JsonObject, moment
from ckptfs.config import Workspace
from ckptfs.connect import Session, open_workspace
from ckptfs.errors import CkptfsError, SystemRefused

#: Seconds to wait while another process has the store of a plain directory.
STORE_PATIENCE = 30.0


class Asking:
    """One workspace to ask. Holds no connection: each question has its own session."""

    def __init__(self, directory: str, storage: str | None) -> None:
        self.directory = directory
        self.storage = storage
        self.handlers = Handlers()
        self.found: Workspace | None = None
        #: The last error that was told: it may pass here more than once on its way out.
        self._told: CkptfsError | None = None

    @property
    def workspace(self) -> Workspace:
        if self.found is None:
            self.found = place.find(self.directory, self.storage)
        return self.found

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session for several questions."""
        with self.telling_errors():
            with open_workspace(self.workspace, patience=STORE_PATIENCE) as session:
                yield session

    def ask(self, op: str, args: JsonObject | None = None) -> JsonObject:
        with self.session() as session:
            return session.call(op, args)

    def text(self, op: str, asked: JsonObject) -> str:
        """The text diff of what `diff` or `show` answers."""
        from ckptfs.control.transfer import patch_lines

        with self.session() as session:
            record = session.call(op, {**asked, "files": True})
            text = b"".join(line + b"\n" for line in patch_lines(session, record))
        return text.decode("utf-8", "surrogateescape")

    def caller(self) -> JsonObject:
        """Who asks, for the history."""
        return {"pid": os.getpid(), "command": " ".join(sys.argv[:1] or ["python"])}

    def emit(self, kind: str, data: JsonObject, checkpoint_id: str | None = None) -> None:
        path = str(self.workspace.path)
        event = CheckpointEvent(kind, path, moment(time.time_ns()), checkpoint_id, data)
        self.handlers.emit(event)

    @contextmanager
    def telling_errors(self) -> Iterator[None]:
        try:
            yield
        except CkptfsError as error:
            if error is not self._told:
                self._tell(error)
            raise
        except OSError as error:
            ours = SystemRefused("go on", error)
            self._tell(ours)
            raise ours from error

    def _tell(self, error: CkptfsError) -> None:
        self._told = error
        now, data = moment(time.time_ns()), dict(error.record())
        self.handlers.emit(CheckpointEvent(CheckpointEvent.ERROR, self.directory, now, None, data))
