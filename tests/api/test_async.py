"""The API under asyncio and trio: the event loop goes on while a call waits.

The proof is a call that cannot end unless the loop runs meanwhile: the command after a restore
waits for a FIFO that only the loop writes to.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import trio

from ckptfs import AsyncCheckpointService, CheckpointConfig, CheckpointService
from ckptfs.errors import CheckpointUnknown
from tests.support.mounting import ckptfs, succeed


@pytest.fixture
def fifo(base: Path) -> Path:
    os.mkfifo(base / "fifo")
    return base / "fifo"


def config_waiting_for(fifo: Path) -> CheckpointConfig:
    return CheckpointConfig(mount=False, on_restore=["sh", "-c", f"read word < {fifo}"])


def test_asyncio_goes_on(work: Path, fifo: Path) -> None:
    async def main() -> None:
        async with AsyncCheckpointService(work, config=config_waiting_for(fifo)) as service:
            (work / "a").write_text("a")
            restoring = asyncio.create_task(service.restore("0"))
            while (writing := _writer(fifo)) is None:
                assert not restoring.done()
                await asyncio.sleep(0.01)
            os.write(writing, b"go\n")
            os.close(writing)
            assert (await restoring).hook == "done"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_trio_goes_on(work: Path, fifo: Path) -> None:
    async def free_it() -> None:
        while (writing := _writer(fifo)) is None:  # noqa: ASYNC110 - nobody tells when it is read
            await trio.sleep(0.01)
        os.write(writing, b"go\n")
        os.close(writing)

    async def main() -> None:
        async with AsyncCheckpointService(work, config=config_waiting_for(fifo)) as service:
            (work / "a").write_text("a")
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(free_it)
                    assert (await service.restore("0")).hook == "done"

    trio.run(main)


def _writer(fifo: Path) -> int | None:
    """The FIFO for writing, once somebody reads it."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_values_and_errors_come_through(work: Path) -> None:
    async def main() -> None:
        async with AsyncCheckpointService(work, config=CheckpointConfig(mount=False)) as service:
            (work / "a").write_text("one\n")
            saved = await service.save("one", state={"turn": 1})
            assert next(iter(await service.list())) == saved
            assert await service.state(saved.id) == {"turn": 1}
            assert (await service.diff("0")).added_files == ["a"]
            with pytest.raises(CheckpointUnknown):
                await service.get("99")

    asyncio.run(main())


def test_events_are_watched_under_asyncio(mounted: CheckpointService, work: Path) -> None:
    async def main() -> None:
        service = AsyncCheckpointService(work)
        events = service.watch()
        first = asyncio.ensure_future(anext(events))
        while not first.done():
            await service.save("again", allow_empty=True)
        assert (await first).kind == "checkpoint_created"
        waiting = asyncio.ensure_future(anext(_drained(events, service)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(asyncio.wait_for(main(), 60))


async def _drained(events, service):  # type: ignore[no-untyped-def]
    """Wait for an event that never comes."""
    async for event in events:
        if event.kind == "error":
            yield event


def test_events_are_watched_under_trio(mounted: CheckpointService, work: Path) -> None:
    async def main() -> None:
        service = AsyncCheckpointService(work)
        seen = []
        with trio.move_on_after(60) as scope:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    async for event in service.watch():
                        seen.append(event)
                        nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                while True:
                    await service.save("again", allow_empty=True)
        assert not scope.cancelled_caught
        assert seen[0].kind == "checkpoint_created"
        # A watch that nothing happens to can be left as well.
        with trio.move_on_after(0.2):
            async for _ in service.watch():
                raise AssertionError("nothing happens")

    trio.run(main)
    succeed(ckptfs("status", "-w", work))
