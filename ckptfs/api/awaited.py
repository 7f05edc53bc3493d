"""`AsyncCheckpointService`: `CheckpointService` with every call to be awaited, by asyncio or trio.

Each runs in a thread, so the event loop goes on meanwhile.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import ParamSpec, TypeVar

from ckptfs.api.service import AnyPath, CheckpointService
from ckptfs.api.values import CheckpointConfig, CheckpointEvent

P = ParamSpec("P")
R = TypeVar("R")


def in_thread(function: Callable[P, R], *, abandon: bool = False) -> Callable[P, Awaitable[R]]:
    """A function that blocks as one to await, under asyncio or trio, whichever runs.

    ``abandon`` lets a cancelled call go on alone under trio too, as asyncio always does it.
    """

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = functools.partial(function, *args, **kwargs)
        if _runs_asyncio():
            import asyncio

            return await asyncio.to_thread(bound)
        import trio

        return await trio.to_thread.run_sync(bound, abandon_on_cancel=abandon)

    return call


def _runs_asyncio() -> bool:
    """Neither library is imported to find that out: it takes longer than most calls."""
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


class AsyncCheckpointService:
    """`CheckpointService`, every call to be awaited. One that is cancelled may still happen."""

    def __init__(
        self,
        workspace_dir: str | os.PathLike[str],
        storage_dir: str | os.PathLike[str] | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        #: The service that does the work, for what needs no waiting: `on`, `workspace`.
        self.service = service = CheckpointService(workspace_dir, storage_dir, config)
        self.on = service.on
        self.initialize = in_thread(service.initialize)
        self.close = in_thread(service.close)
        self.save = in_thread(service.save)
        self.restore = in_thread(service.restore)
        self.state = in_thread(service.state)
        self.diff = in_thread(service.diff)
        self.list = in_thread(service.list)
        self.get = in_thread(service.get)
        self.show = in_thread(service.show)
        self.delete = in_thread(service.delete)
        self.log = in_thread(service.log)
        self.restores = in_thread(service.restores)
        self.tag = in_thread(service.tag)
        self.pin = in_thread(service.pin)
        self.unpin = in_thread(service.unpin)
        self.rewind = in_thread(service.rewind)
        self.merge = in_thread(service.merge)
        self.compare = in_thread(service.compare)
        self.forks = in_thread(service.forks)
        self.delete_fork = in_thread(service.delete_fork)
        self.rename_fork = in_thread(service.rename_fork)
        self.undo = in_thread(service.undo)
        self.redo = in_thread(service.redo)
        self.prune = in_thread(service.prune)
        self.compact = in_thread(service.compact)
        self.purge = in_thread(service.purge)
        self.status = in_thread(service.status)
        self.check = in_thread(service.check)
        self.export = in_thread(service.export)
        self.backup = in_thread(service.backup)
        self.import_from = in_thread(service.import_from)
        self.settings = in_thread(service.settings)
        self.configure = in_thread(service.configure)
        self.start_task = in_thread(service.start_task)
        self.finish_task = in_thread(service.finish_task)
        self.tasks = in_thread(service.tasks)
        self.revert_task = in_thread(service.revert_task)
        self.call = in_thread(service.call)

    async def fork(
        self,
        name: str,
        *,
        start: str = "",
        at: AnyPath | None = None,
        without: Sequence[str] = (),
    ) -> AsyncCheckpointService:
        """As `CheckpointService.fork`."""
        making = in_thread(self.service.fork)
        made = await making(name, start=start, at=at, without=without)
        return AsyncCheckpointService(made.workspace.path)

    async def watch(self) -> AsyncIterator[CheckpointEvent]:
        """Events of the mounted workspace, of whichever process."""
        stream = await in_thread(self.service.watch)()
        following = in_thread(lambda: next(stream, None), abandon=True)
        try:
            while (event := await following()) is not None:
                yield event
        finally:
            stream.close()

    async def __aenter__(self) -> AsyncCheckpointService:
        await self.initialize()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()
